"""`millpond serve`: a node in the foreground, until a signal drains it."""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import anyio
import anyio.to_thread

from millpond.actors.messages import Durability
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.redis.errors import RedisStoreError
from millpond.actors.store.repair.quarantine import read_reports
from millpond.node.access.rules_file import AccessFileError
from millpond.node.cli.exit_codes import ExitCode, Failure, first_cause, usage_error
from millpond.node.cli.options.data_folder import DATA_DEFAULT, data_folder, explain_folder
from millpond.node.cli.options.outbox import OUTBOX_FIELDS, add_outbox_options
from millpond.node.cli.options.tls import add_listener_options, key_of
from millpond.node.cli.options.traces import add_traces_option, make_spans
from millpond.node.cli.output import json_line, write_async
from millpond.node.config import LISTENERS, OFF, Config, ConfigError, load_config
from millpond.node.credentials import hide_credentials
from millpond.node.data_folder import StopTimedOut
from millpond.node.environment import current_environment, installed_version, loop_time
from millpond.node.events import EventLog, log_as_events
from millpond.node.late_modules import load_late_modules
from millpond.node.log_handler import flush_log, set_up_logging, write_error
from millpond.node.machine_memory import keep_freed_blocks
from millpond.node.node import Node
from millpond.node.replica.errors import ReplicaError, Superseded

EPILOG = """\
examples:
  millpond serve                                    all listeners, for this machine only
  millpond serve --p2p 127.0.0.1:0 --ws off --s3p off --rustlog off --http off --json
                                                    any free port; the ready line shows it
  millpond serve --channel 'jobs/*=queue,lease=60,attempts=5' --channel 'news/*=fanout,ttl=3600'
  millpond serve --stream 'logs/*=age=86400,bytes=1000000000'
  millpond serve --p2p 0.0.0.0:7400 --token-file /etc/millpond/tokens
  millpond serve --p2p 0.0.0.0:7400 --token-file /etc/millpond/tokens --tls-cert alice.crt
                                                    with TLS; `millpond keys cert` makes the files

Every setting can also be given in --config FILE (TOML) or as the environment variable
MILLPOND_<SETTING>. `millpond config show --origin` prints all settings and their origin.
A line of the access file: SUBJECT RIGHT[,RIGHT...] [PATTERN...] (docs/guides/access.md; `millpond
token new` writes one). A line of the token file: TOKEN RIGHT[,RIGHT...] [PATTERN...]. The rights
are put, get, push, ack, list, admin, all. Only the owner may be able to read the files.

SIGTERM, SIGINT and the end of the terminal stop the node after open requests, with exit code 0. A
second signal stops it at once, with exit code 1, and so does a stop that takes longer than
drain_timeout_s and stop_timeout_s (25 s together). SIGHUP reloads the access, token and TLS files.
Messages are stored in the data folder and survive restarts and crashes. With --memory a restart
loses them.
"""

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
YOUNG_OBJECTS_MAX = 50_000
"""Allocations between two runs of the garbage collector: hot paths make no cycles."""


def add_parser(subparsers: Any) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        description="Run a node. It stores messages for consumers that are offline and pushes"
        " the messages when they are back.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_listeners(parser)
    _add_store(parser)
    parser.add_argument(
        "--channel",
        dest="channels",
        action="append",
        metavar="RULE",
        help="PATTERN=pair|fanout|queue[,ttl=S,lease=S,attempts=N,durability=D,tee=STREAM]; "
        "repeatable, the first match counts",
    )
    parser.add_argument(
        "--stream",
        dest="streams",
        action="append",
        metavar="RULE",
        help="PATTERN=age=S,bytes=N,local=N,durability=D (one or more): records are removed "
        "when they are older, the oldest when there is more; older ones than the newest `local` "
        "bytes are in the --replica alone; repeatable, the first match counts",
    )
    parser.add_argument(
        "--default-channel", metavar="NAME", help="channel of clients that name none"
    )
    parser.add_argument(
        "--require-hello",
        action="store_true",
        default=None,
        help="reject clients that do not send HELLO",
    )
    parser.add_argument(
        "--access-file",
        metavar="FILE",
        help="access rules (default: access.conf in the data folder, if it exists)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="access tokens and their rights; see below"
    )
    add_listener_options(parser)
    add_outbox_options(parser)
    parser.add_argument(
        "--insecure-public",
        action="store_true",
        default=None,
        help="allow public addresses without access control",
    )
    parser.add_argument(
        "--host-name",
        dest="host_names",
        action="append",
        metavar="NAME",
        help="name by which HTTP and WebSocket clients reach the node; repeatable",
    )
    parser.add_argument(
        "--origin",
        dest="origins",
        action="append",
        metavar="URL",
        help="web origin whose pages may use the node; repeatable",
    )
    parser.add_argument(
        "--drain-timeout",
        dest="drain_timeout_s",
        metavar="S",
        help="longest time in seconds to finish requests at the end (default 5)",
    )
    parser.add_argument("--config", metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--loop", choices=("asyncio", "uvloop", "trio"), help="event loop (default uvloop)"
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: one object a line (docs/guides/monitoring.md)",
    )
    add_traces_option(parser)
    parser.add_argument("--json", action="store_true", help="print the ready line as a JSON object")


def _add_listeners(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--p2p",
        metavar="H:P",
        help="listen for P2P here; `off`: do not listen (default 127.0.0.1:7400)",
    )
    parser.add_argument(
        "--ws", metavar="H:P", help="listen for P2P over WebSocket here (default 127.0.0.1:7401)"
    )
    parser.add_argument("--s3p", metavar="H:P", help="listen for S3P here (default 127.0.0.1:7402)")
    parser.add_argument(
        "--rustlog", metavar="H:P", help="listen for RustLog here (default 127.0.0.1:7403)"
    )
    parser.add_argument(
        "--http", metavar="H:P", help="listen for HTTP/1.1 and HTTP/2 here (default 127.0.0.1:7404)"
    )
    parser.add_argument(
        "--long-poll",
        dest="http_long_poll_s",
        metavar="S",
        help="Durable Streams: longest wait of a long poll in seconds (default 20)",
    )


def _add_store(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--memory", action="store_true", help="store nothing on disk")
    where.add_argument("--data", metavar="DIR", help=f"data folder (default {DATA_DEFAULT})")
    parser.add_argument(
        "--store",
        metavar="URL",
        help="keep channels and streams in Redis or Valkey: redis://HOST:PORT/DB?prefix=NAME, "
        "rediss://, unix:///PATH, redis+cluster://; the data folder keeps the keys of the node",
    )
    parser.add_argument(
        "--replica",
        metavar="URL",
        help="ship the journal to s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER as it is "
        "written; `millpond restore --from URL` makes a data folder of it",
    )
    parser.add_argument(
        "--replica-keys",
        metavar="FILE",
        help="the passphrase under which identity, keys, peers and access rules of the node are in "
        "the replica as well, so that a standby or a restoration is the same peer",
    )
    parser.add_argument(
        "--without-cold",
        action="store_true",
        default=None,
        help="serve without the replica that older records of streams are in, and refuse their "
        "reads",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        default=None,
        help="follow the --replica of another node, and take over when that is gone",
    )
    parser.add_argument(
        "--takeover-s",
        type=float,
        metavar="S",
        help="take over when the owner gave no sign of life for so long (default 10)",
    )
    parser.add_argument(
        "--passphrase-file",
        metavar="FILE",
        help="the passphrase under which keys and chat histories are stored encrypted",
    )
    parser.add_argument(
        "--durability",
        metavar="replicated|disk|os|memory",
        help="what an acknowledgement means: in the object store of --replica, written to disk "
        "(default), handed to the operating system, or in memory only",
    )


def run(args: argparse.Namespace) -> int:
    """Run a node until a signal ends it."""
    _refuse_contradictions(args)
    config = _config(args)
    set_up_logging(args.log_level.upper(), as_json=args.log_format == "json")
    raise_descriptor_limit()
    flush_spans = make_spans(args.traces) if args.traces else None
    loop = args.loop or ("uvloop" if find_spec("uvloop") else "asyncio")
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    if loop != "asyncio" and find_spec(loop) is None:
        raise usage_error(f"--loop {loop}: {loop} is not installed; remove --loop")
    backend = "trio" if loop == "trio" else "asyncio"
    deadline = _StopDeadline(config.drain_timeout_s + config.stop_timeout_s)
    gc.disable()  # until the node is ready
    try:
        with log_as_events() as record:
            return anyio.run(
                partial(_serve, config, args.json, deadline, record),
                backend=backend,
                backend_options=options,
            )
    except RedisStoreError as error:
        raise Failure(f"store: {error}") from error
    except BaseExceptionGroup as group:
        match first_cause(group):
            case Superseded() as exc:
                raise Failure(f"replica: {exc}", ExitCode.FENCED) from exc
            case RedisStoreError() as exc:
                raise Failure(f"store: {exc}") from exc
            case ReplicaError() as exc:
                shown = hide_credentials(config.replica)
                raise Failure(f"replica {shown}: {exc}") from exc
        raise
    finally:
        deadline.cancel()
        if flush_spans is not None:
            flush_spans()
        flush_log()
        gc.enable()


def _refuse_contradictions(args: argparse.Namespace) -> None:
    if args.memory and args.durability not in (None, "memory"):
        raise usage_error("--memory excludes --durability")
    if args.data is not None and args.durability == "memory":
        raise usage_error("--durability memory excludes --data")
    if args.memory and args.replica is not None:
        raise usage_error("--memory excludes --replica: nothing is stored that could be shipped")
    if args.memory and args.store is not None:
        raise usage_error("--memory excludes --store")
    if args.memory and args.standby:
        raise usage_error("--memory excludes --standby")


def _config(args: argparse.Namespace) -> Config:
    fields = (
        *(*LISTENERS, "channels", "streams", "default_channel", "require_hello", "token_file"),
        *("access_file", "insecure_public", "host_names", "origins"),
        *("drain_timeout_s", "data", "passphrase_file", "durability", "replica", "store"),
        *("standby", "takeover_s", "replica_keys", "without_cold"),
        *("tls_cert", "tls_key", "tls_client_ca", "tls_client", "tls_listeners"),
        "http_long_poll_s",
        *OUTBOX_FIELDS,
    )
    given: dict[str, Any] = {name: getattr(args, name) for name in fields}
    flags = {name: value for name, value in given.items() if value is not None}
    if args.memory:
        flags |= {"data": "", "durability": "memory"}
    path = args.config or os.environ.get("MILLPOND_CONFIG")
    try:
        config = load_config(flags, os.environ, Path(path) if path else None).config
    except ConfigError as exc:
        raise usage_error(str(exc)) from exc
    if config.durability is Durability.MEMORY and not config.store:
        config = replace(config, data="")
    elif not config.data:
        config = replace(config, data=str(data_folder(os.environ)))
    config = replace(config, tls_key=key_of(config.tls_cert, config.tls_key))
    if config.standby and not (config.replica and config.data):
        raise usage_error("--standby needs the --replica to follow, and a data folder")
    if all(getattr(config, name) == OFF for name in LISTENERS):
        raise usage_error("all listeners are off; give --p2p or --ws")
    return config


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to what the system allows."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # some systems have a lower limit that they do not tell
        logging.getLogger(__name__).warning("descriptor limit stays as it is: hard=%d", hard)


class _StopDeadline:
    """The deadline of the whole stop: then the process exits, whatever it waits for.

    A thread keeps it, since the event loop's own may wait for a disk that does not answer.
    Acknowledged data is as safe as in a crash.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = Timer(seconds, self.exit)
        self._timer.daemon = True

    def start(self) -> None:
        """The stop begins now."""
        self._timer.start()

    def cancel(self) -> None:
        """The node has stopped."""
        self._timer.cancel()

    def exit(self) -> None:
        """End the process at once."""
        text = f"the stop takes longer than {self._seconds:g} s: ended without it"
        write_error(f"millpond serve: {text} (does the disk answer?)")
        os._exit(ExitCode.FAILURE)


async def _serve(
    config: Config, as_json: bool, deadline: _StopDeadline, record: Callable[[EventLog], None]
) -> int:
    # `nohup` ignores SIGHUP for its commands: that stays.
    numbers = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    had_terminal = _has_terminal()
    with anyio.open_signal_receiver(*numbers) as signals:
        if config.standby and not await _stood_by(config, as_json, signals):
            return ExitCode.OK
        node = await _started(config, record)
        try:
            tune_memory()
            async with anyio.create_task_group() as announcing:
                announcing.start_soon(_announce, node, as_json)
                _notify_systemd("READY=1")
                announcing.start_soon(_load_late_modules, node)
                async for number in signals:
                    if number != signal.SIGHUP or (had_terminal and not _has_terminal()):
                        break
                    node.reload()
                announcing.cancel_scope.cancel()
        except BaseException as exc:
            await node.__aexit__(type(exc), exc, exc.__traceback__)
            raise
    for number in numbers:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else _exit_at_once)
    deadline.start()
    _notify_systemd("STOPPING=1")
    try:
        await node.__aexit__(None, None, None)
    except StopTimedOut:
        # Threads that wait for the disk keep the interpreter from ending.
        deadline.exit()
    return ExitCode.OK


async def _stood_by(config: Config, as_json: bool, signals: AsyncIterator[signal.Signals]) -> bool:
    """Follow the replica until the node is to start. False: a signal ended it."""
    from millpond.node.http.standby import listen_as_standby
    from millpond.node.peers.data_key import DataKeyError, read_passphrase
    from millpond.node.replica.keys import KeysCipher
    from millpond.node.replica.object_store import open_object_store
    from millpond.node.replica.standby import Standby

    address: str | None = None

    def announce() -> None:
        if as_json:
            fields = {"replica": config.replica, "http": address}
            line = json_line({"event": "standby", **fields})
        else:
            where = "" if address is None else f" http={address}"
            line = f"millpond standby: follows {config.replica}{where}\n".encode()
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    environment = current_environment()
    keys = None
    if config.replica_keys:
        try:
            passphrase = read_passphrase(config.replica_keys)
        except DataKeyError as exc:
            raise usage_error(f"replica_keys: {exc}") from exc
        keys = KeysCipher(passphrase, environment.entropy)
    standby = Standby(
        open_object_store(config.replica),
        Path(config.data),
        config.takeover_s,
        now=loop_time(),
        wall=environment.wall,
        entropy=environment.entropy,
        ready=announce,
        keys=keys,
    )
    is_over = False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            async for number in signals:
                if number != signal.SIGHUP:
                    tasks.cancel_scope.cancel()
                    return

        try:
            address = await listen_as_standby(tasks, config, standby, environment.wall)
        except ValueError as exc:
            raise usage_error(f"http: {exc}") from exc
        except (ConfigError, OSError) as exc:
            _explain_listener("http", config.http, exc)
            raise
        tasks.start_soon(watch)
        await standby.run()
        is_over = True
        tasks.cancel_scope.cancel()
    return is_over


async def _started(config: Config, record: Callable[[EventLog], None]) -> Node:
    try:
        node = Node(config)
    except (AccessFileError, ConfigError) as exc:
        raise usage_error(str(exc)) from exc
    record(node.events)
    try:
        return await node.__aenter__()
    except BaseException as exc:
        _explain(first_cause(exc), node)
        raise


def _explain(cause: BaseException, node: Node) -> None:
    """Raise the failure for an error that kept the node from starting."""
    if node.config.data:
        failure = explain_folder(cause, Path(node.config.data))
        if failure is not None:
            raise failure from cause
    name = next(name for name in LISTENERS if _is_missing(node, name))
    _explain_listener(name, getattr(node.config, name), cause)


def _explain_listener(name: str, address: str, cause: BaseException) -> None:
    """Raise the failure for an error that kept a listener from opening."""
    match cause:
        case ConfigError():
            raise usage_error(str(cause)) from cause
        case OSError(errno=errno.EADDRINUSE):
            text = f"{address} is in use, perhaps by a node; choose another address with --{name}"
            raise Failure(f"{name}: {text}") from cause
        case OSError(errno=errno.EACCES):
            text = f"no permission to listen on {address}; choose a port above 1023 with --{name}"
            raise Failure(f"{name}: {text}") from cause
        case OSError(errno=errno.EADDRNOTAVAIL) | socket.gaierror():
            text = f"{address} is not an address of this machine ({cause.strerror})"
            raise usage_error(f"{name}: {text}") from cause
        case OSError():
            raise Failure(f"{name}: cannot listen on {address}: {cause.strerror}") from cause


def _is_missing(node: Node, name: str) -> bool:
    return getattr(node.config, name) != OFF and name not in node.listeners


def tune_memory() -> None:
    """Run the garbage collector rarely, as hot paths make no cycles, and keep freed blocks.

    The objects loaded so far are frozen without a collection, which would look at all of it for a
    few hundred objects.
    """
    keep_freed_blocks()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 10, 10)
    gc.enable()


async def _load_late_modules(node: Node) -> None:
    load = partial(load_late_modules, tuple(node.listeners))
    await anyio.to_thread.run_sync(load, abandon_on_cancel=True)
    gc.freeze()


async def _announce(node: Node, as_json: bool) -> None:
    """Print the ready line; the node serves meanwhile, also where nobody reads it."""
    durability = node.durability.name.lower()
    data = node.config.data
    damaged = len(read_reports(Path(data) / "damaged", OsDisk())) if data else 0
    if damaged:
        text = (
            f"{damaged} partitions are damaged and not served: see `millpond doctor --data {data}`"
        )
        await write_async(f"millpond serve: {text}\n".encode(), sys.stderr)
    if as_json:
        ready: dict[str, Any] = {
            "event": "ready",
            "node": os.urandom(8).hex(),
            "version": installed_version(),
            "durability": durability,
            "data": data or None,
            "damaged": damaged,
            "listeners": node.listeners,
        }
        if node.tls.names:
            ready["tls"] = node.tls.names
        if node.store_url is not None:
            ready["store"] = node.store_url
        await write_async(json_line(ready))
        return
    where = " ".join(f"{name}={address}" for name, address in node.listeners.items())
    if node.tls.names:
        where += f" tls={','.join(node.tls.names)}"
    if node.durability is Durability.MEMORY:
        line = f"millpond ready: {where} ({durability} only: a restart forgets every message)\n"
    else:
        store = "" if node.store_url is None else f" store={node.store_url}"
        line = f"millpond ready: {where} data={data}{store} durability={durability}\n"
    await write_async(line.encode("utf-8", "surrogateescape"))


def _exit_at_once(number: int, _frame: object) -> NoReturn:
    write_error(f"millpond serve: {signal.Signals(number).name} again: stopped without draining")
    os._exit(ExitCode.FAILURE)


def _has_terminal() -> bool:
    """True if a terminal controls this process; a process loses a terminal that closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _notify_systemd(state: str) -> None:
    """Send a state such as `READY=1` to the service manager, if NOTIFY_SOCKET names one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux' abstract name space
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), address)
        except OSError as exc:
            log.warning("service manager not reached: %s", exc)
