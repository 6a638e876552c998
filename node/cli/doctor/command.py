"""`millpond doctor`: checks of this machine, the configuration and the node."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from millpond.actors.messages import Durability
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.streams.names import (
    BASINS,
    CHANNELS,
    FLOWS,
    SCHEDULES,
    TOKENS,
    TOPICS,
    basin_cell,
    results_cell,
    stream_cell,
    subscription_cell,
)
from millpond.node.access.policy import load_access
from millpond.node.access.rules_file import AccessFileError
from millpond.node.cli.doctor.data_folder import folder_findings, is_of_standby
from millpond.node.cli.doctor.finding import Finding, print_findings
from millpond.node.cli.doctor.node import node_findings, scrub_findings
from millpond.node.cli.doctor.peers import encryption_findings, peer_findings, plain_peer_findings
from millpond.node.cli.doctor.repair import repair_all, repair_partition
from millpond.node.cli.doctor.tls import file_findings
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import data_folder, existing_folder, is_data_folder
from millpond.node.cli.options.node import add_node_options, add_timeout, channel_name
from millpond.node.cli.output import installed, print_json, print_line
from millpond.node.cli.token_file import read_token
from millpond.node.clock_file import confirm
from millpond.node.config import LISTENERS, OFF, Config, ConfigError, load_config
from millpond.transports.io.address import parse_address
from millpond.transports.speedups import unused_because

EPILOG = """\
examples:
  millpond doctor                             this machine, the configuration and the running node
  millpond doctor --data /srv/millpond        this machine and a data folder
  millpond doctor --data /srv/millpond --repair jobs/mail
  millpond doctor tls tls://mill.lan:7400     the TLS of a node
  millpond doctor access bob jobs/mail        the rights of bob, and their rules

Each line is ok, warn or fail; warnings and failures say what to do. The exit code is 1 if a check
failed or no node answers. The self test puts a message into a channel of its own, reads it back and
acknowledges it.

The default data folder is that of the running node, else that of `millpond serve`. Its disk is
checked; if no node uses the folder, everything in it is read and verified, and nothing is changed.
--scrub has a running node read everything, while it serves, and prints what is damaged.
--repair writes a new file for a damaged channel with the intact messages of the old file and the
journal; --repair-stream does the same for a stream, whose records keep their sequences;
--repair-all repairs everything that is damaged. The old files stay in DIR/damaged. The exit code of
a repair is 1 if anything is lost; it prints what.

--confirm-clock says that the clock of this machine is right. A node uses it once: expiry that is
held because the clock jumped ahead goes on, and a node that starts goes back to a clock that is
behind the data folder.
"""
MORE = ("millpond.node.cli.doctor.tls", "millpond.node.cli.doctor.access")
"""Modules with checks of their own, each with `add_action(actions)`."""
PACKAGES = ("anyio", "cryptography", "msgspec", "snowflake-id", "websockets")
DESCRIPTORS_MIN = 1024
CLOCK_S_MAX = 2.0
YEAR_MIN = 2025


def add_parser(subparsers: Any) -> None:
    """Add `doctor` to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        description="Check this machine, the configuration and the node.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", default=os.environ.get("MILLPOND_CONFIG"))
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--repair",
        metavar="CHANNEL",
        type=channel_name,
        help="repair a damaged channel; needs --data",
    )
    which.add_argument(
        "--repair-stream",
        metavar="STREAM",
        dest="repair",
        type=_stream,
        help="repair a damaged stream",
    )
    which.add_argument(
        "--repair-topics",
        dest="repair",
        action="store_const",
        const=TOPICS,
        help="repair the catalog of partitioned topics",
    )
    which.add_argument(
        "--repair-s2-stream",
        metavar="BASIN:STREAM",
        dest="repair",
        type=_basin_stream,
        help="repair a stream of another basin",
    )
    which.add_argument(
        "--repair-basins",
        dest="repair",
        action="store_const",
        const=BASINS,
        help="repair the catalog of basins",
    )
    which.add_argument(
        "--repair-tokens",
        dest="repair",
        action="store_const",
        const=TOKENS,
        help="repair the catalog of access tokens for S2 clients",
    )
    which.add_argument(
        "--repair-channels",
        dest="repair",
        action="store_const",
        const=CHANNELS,
        help="repair the catalog of created channels",
    )
    which.add_argument(
        "--repair-schedules",
        dest="repair",
        action="store_const",
        const=SCHEDULES,
        help="repair the catalog of schedules of job queues",
    )
    which.add_argument(
        "--repair-flows",
        dest="repair",
        action="store_const",
        const=FLOWS,
        help="repair the catalog of flows of jobs",
    )
    which.add_argument(
        "--repair-results",
        metavar="CHANNEL",
        dest="repair",
        type=_results,
        help="repair the results of a queue's jobs (its channel is jobs/QUEUE)",
    )
    which.add_argument(
        "--repair-subscription",
        metavar="ID",
        dest="repair",
        type=_subscription,
        help="repair a subscription of Durable Streams",
    )
    which.add_argument(
        "--repair-all",
        action="store_true",
        help="repair everything that is not served, and remove the reports",
    )
    which.add_argument(
        "--confirm-clock",
        action="store_true",
        help="confirm that the clock of this machine is right; needs --data",
    )
    which.add_argument(
        "--scrub",
        action="store_true",
        help="have everything in the data folder read and checked, also by a running node",
    )
    add_timeout(parser)
    add_node_options(parser, or_data=True)
    actions = parser.add_subparsers(dest="action", metavar="CHECK", title="more checks")
    for module in MORE:
        import_module(module).add_action(actions)


def _stream(text: str) -> bytes:
    return stream_cell(os.fsencode(text))


def _basin_stream(text: str) -> bytes:
    basin, colon, name = os.fsencode(text).partition(b":")
    if not basin or not colon:
        raise argparse.ArgumentTypeError("expected BASIN:STREAM")
    return basin_cell(basin, name)


def _results(text: str) -> bytes:
    return results_cell(os.fsencode(text))


def _subscription(text: str) -> bytes:
    return subscription_cell(os.fsencode(text))


def run(args: argparse.Namespace) -> int:
    """Check everything; 1 if anything failed."""
    if args.action is not None:
        code: int = args.work(args)
        return code
    if args.confirm_clock:
        return _confirm_clock(args)
    if args.repair is not None or args.repair_all:
        if args.data is None:
            raise usage_error("a repair needs --data, the folder of a stopped node")
        folder = existing_folder(args.data)
        if args.repair_all:
            return repair_all(folder, OsDisk(), as_json=args.json)
        return repair_partition(folder, args.repair, as_json=args.json)
    return print_findings(_findings(args), as_json=args.json)


def _confirm_clock(args: argparse.Namespace) -> int:
    if args.data is None:
        raise usage_error("--confirm-clock needs --data, the folder of the node")
    folder, wall = existing_folder(args.data), time.time()
    try:
        confirm(folder, wall)
    except OSError as exc:
        raise Failure(f"{folder}: {exc.strerror}") from exc
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall))
    text = f"confirmed: it is {shown}; a running node uses this within 30 s, else the next start"
    if args.json:
        print_json({"confirmed": wall})
    else:
        print_line(text)
    return ExitCode.OK


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield from _versions()
    yield _loop()
    yield _codecs()
    yield _descriptors()
    yield _clock()
    config = Config()
    try:
        config = load_config({}, os.environ, Path(args.config) if args.config else None).config
        yield Finding("configuration", "ok", args.config or "environment and defaults")
    except ConfigError as exc:
        yield Finding("configuration", "fail", str(exc))
    if args.data is not None:
        is_known = is_data_folder(args.data) or is_of_standby(args.data)
        yield from _folder(args.data if is_known else existing_folder(args.data))
        return
    yield from _token_files(args, config)
    yield from file_findings(config)
    yield from plain_peer_findings(config)
    for name in LISTENERS:
        address: str = getattr(config, name)
        if address != OFF:
            yield _port(name, address)
    used = yield from node_findings(args)
    if args.scrub and used is not None:
        yield from scrub_findings(args)
    elif args.scrub:
        yield Finding("scrub", "warn", "no running node with a data folder on this machine")
    yield from _folder(used) if used is not None else _usual_folder(config)


def _folder(folder: Path) -> Iterator[Finding]:
    yield from folder_findings(folder)
    yield from peer_findings(folder)
    yield from encryption_findings(folder)


def _usual_folder(config: Config) -> Iterator[Finding]:
    if config.durability is Durability.MEMORY:
        yield Finding("data folder", "ok", "none: messages are in memory")
        return
    folder = Path(config.data) if config.data else data_folder(os.environ)
    try:
        is_there = is_data_folder(folder) or is_of_standby(folder)
    except Failure as exc:
        yield Finding("data folder", "fail", str(exc))
        return
    if is_there:
        yield from _folder(folder)
    else:
        yield Finding("data folder", "ok", f"{folder} is created by `millpond serve`")


def _versions() -> Iterator[Finding]:
    own = installed("millpond") or "not installed (run from a checkout)"
    yield Finding("millpond", "ok", f"{own}, Python {platform.python_version()} ({sys.platform})")
    missing = [package for package in PACKAGES if installed(package) is None]
    if missing:
        text = f"not installed: {', '.join(missing)}; run scripts/run, or `pip install .`"
        yield Finding("packages", "fail", text)
    else:
        yield Finding("packages", "ok", ", ".join(f"{each} {installed(each)}" for each in PACKAGES))


def _loop() -> Finding:
    version = installed("uvloop")
    if version is None:
        return Finding("event loop", "warn", "asyncio; `pip install uvloop` for a faster node")
    return Finding("event loop", "ok", f"uvloop {version}")


def _codecs() -> Finding:
    if unused_because is None:
        return Finding("codecs", "ok", "native")
    return Finding("codecs", "ok", f"Python's; native ones are faster ({unused_because})")


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("descriptors", "ok", "unlimited")
    if hard < DESCRIPTORS_MIN:
        text = (
            f"{hard} at most, which limits connections; raise the limit (ulimit -Hn, LimitNOFILE=)"
        )
        return Finding("descriptors", "warn", text)
    return Finding("descriptors", "ok", f"up to {hard}, one per connection")


def _clock() -> Finding:
    """Message ids and times to live follow the wall clock; a file's time stamp is a second look."""
    with tempfile.NamedTemporaryFile() as file:
        apart_s = abs(Path(file.name).stat().st_mtime - time.time())
    if time.gmtime().tm_year < YEAR_MIN:
        text = f"the year is not {time.gmtime().tm_year}: set the clock before starting a node"
        return Finding("clock", "fail", text)
    if apart_s > CLOCK_S_MAX:
        text = f"{apart_s:.0f} s apart from the clock of the file system; synchronize the clocks"
        return Finding("clock", "warn", text)
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _token_files(args: argparse.Namespace, config: Config) -> Iterator[Finding]:
    yield _access(config)
    if args.token_file:
        try:
            read_token(args.token_file)
            yield Finding("token", "ok", args.token_file)
        except Failure as exc:
            yield Finding("token", "fail", str(exc))


def _access(config: Config) -> Finding:
    data = config.data or str(data_folder(os.environ))
    try:
        access = load_access(config.access_file, config.token_file, data)
    except AccessFileError as exc:
        return Finding("access control", "fail", str(exc))
    if access.is_controlled:
        return Finding("access control", "ok", " ".join(map(str, access.files)))
    text = "no access file: local clients, contacts and relays only"
    return Finding("access control", "ok", text)


def _port(name: str, address: str) -> Finding:
    check = f"port {name}"
    try:
        host, port = parse_address(address)
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (ValueError, OSError) as exc:
        return Finding(check, "fail", f"{address}: {exc}; set another with --{name}")
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(where)
        except OSError as exc:
            return Finding(check, "ok", f"{address} is in use ({exc.strerror}), perhaps by a node")
    return Finding(check, "ok", f"{address} is free")
