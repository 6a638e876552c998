"""Connections of commands, and failures for the errors of the client."""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from math import inf
from pathlib import Path

import anyio

from millpond.actors.errors import (
    NotAllowed,
    NotFound,
    NotNegotiated,
    RequestError,
    StorageFailed,
    UnknownStream,
)
from millpond.node.cli.exit_codes import ExitCode, Failure, first_cause, usage_error
from millpond.node.cli.options.identity import explain_mismatch, identity_options
from millpond.node.cli.options.tls import tls_context
from millpond.node.cli.token_file import read_token
from millpond.node.client.channel import Channel, ModeName, RoleName
from millpond.node.client.connect import connect
from millpond.node.client.errors import (
    ConnectionLost,
    HandshakeRefused,
    ModeMismatch,
    NotEncrypted,
    PeerMismatch,
)
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.probe import PROBE
from millpond.node.client.url import parse_urls
from millpond.node.ip import is_loopback
from millpond.node.tls.errors import reason_of
from millpond.transports.io.address import format_address
from millpond.transports.io.tls import HandshakeFailed
from millpond.transports.p2p.nacks import HelloCode

COOKIE = "DIR/operator.cookie"
"""The token of the operator, in the data folder of the node."""
INFO = 1
"""The operation of packet 90 with the statistics of the node (wire protocol)."""
SUBSCRIPTIONS = 4
"""The operation of packet 90 with the subscriptions of the node."""
ISSUED_TOKENS = 5
"""The operation of packet 90 with the tokens that clients of S2 were issued."""
DELETE_SUBSCRIPTION = 24
"""The operation of packet 90 that deletes a subscription of the node."""
ACTIVITY = 11
"""The operation of packet 90 with what the node does now."""
EVENTS = 12
"""The operation of packet 90 with the last events of the node."""

ACCESS_STATUSES = (401, 403)
ACCESS_CODES = (HelloCode.AUTHENTICATION_FAILED, HelloCode.NOT_ALLOWED)


def run_in_loop(
    args: argparse.Namespace, work: Callable[[], Awaitable[int]], elapsed_s: float = 0.0
) -> int:
    """Run the work of a command to its exit code, within `args.timeout` seconds, of which some have
    passed."""
    timeout_s = args.timeout if args.timeout is None else max(0.0, args.timeout - elapsed_s)
    with explain_errors(args):
        return anyio.run(_within, timeout_s, work)


@asynccontextmanager
async def open_channel(
    args: argparse.Namespace,
    channel: bytes,
    role: RoleName,
    *,
    mode: ModeName | None = None,
    window: int | None = 0,
    reconnect_s: float = 0.0,
    wait_s: float = 0.0,
    notify: Callable[[str], None] | None = None,
) -> AsyncIterator[Channel]:
    """The channel, for the block; a lost connection may be away for up to `reconnect_s` seconds,
    the first one may come within `wait_s`.

    `notify` hears of attempts to come back, and of a node that is new to us; by default the user
    does, on stderr.
    `window` 0: nothing is pushed here, so nothing is leased to a command that only looks.
    """
    limit = ReconnectLimit(reconnect_s, notify or _warn)
    known = identity_options(args, notify or _warn)
    with limit.scope:
        async with connect(
            args.connect,
            channel,
            role=role,
            mode=mode,
            window=window,
            token=read_token(args.token_file) or operator_cookie(args.connect),
            identity=known.identity,
            peer=known.peer,
            on_peer=known.on_peer,
            tls=tls_context(args, *parse_urls(args.connect)),
            allow_plain=args.allow_plain,
            reconnect=reconnect_s > 0,
            wait_s=wait_s,
            on_event=limit.on_event,
        ) as opened:
            yield opened
    if limit.scope.cancelled_caught:
        raise ConnectionLost(f"the connection was lost and not back within {reconnect_s:g} s")


class ReconnectLimit:
    """The limit of reconnecting: its scope is cancelled when a connection is away too long."""

    def __init__(self, reconnect_s: float, notify: Callable[[str], None]) -> None:
        self.scope = anyio.CancelScope()
        self._notify = notify
        self._reconnect_s = reconnect_s
        self._was_connected = False
        self._reason = ""

    def on_event(self, event: Event) -> None:
        """Handle an event of the connection."""
        match event:
            case Connected():
                self._was_connected = True
                self.scope.deadline = inf
            case Disconnected(reason=reason):
                self._reason = reason
                if self._was_connected and self.scope.deadline == inf:
                    self.scope.deadline = anyio.current_time() + self._reconnect_s
            case Retrying(delay_s=delay_s):
                self._notify(f"not connected ({self._reason}); trying again in {delay_s:.1f} s")


def _warn(text: str) -> None:
    print(f"millpond: {text}", file=sys.stderr)


def operator_cookie(
    url: str, environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> str | None:
    """The cookie of the operator for a node on this machine, where the system does not tell the
    node which user connects; None: it does, or the node is not that of the data folder.

    The folder is that of MILLPOND_DATA, or the default one.
    """
    if platform.startswith("linux"):
        return None
    from millpond.node.access.operator import read_cookie
    from millpond.node.cli.options.data_folder import data_folder  # the store, which takes long

    found = read_cookie(Path(environ.get("MILLPOND_DATA") or data_folder(environ)))
    if found is None:
        return None
    cookie, addresses = found
    address = parse_urls(url)[0]
    host = "127.0.0.1" if address.host == "localhost" else address.host
    wanted = format_address(host, address.port)
    listener = "ws" if address.websocket else "p2p"
    is_own = is_loopback(host) and wanted == local_address(addresses.get(listener, ""))
    return cookie if is_own else None


def local_address(address: str) -> str:
    """The address of a listener on this machine; it may listen at all addresses of the machine."""
    host, colon, port = address.rpartition(":")
    match host.strip("[]"):
        case "" | "0.0.0.0" if colon:
            return f"127.0.0.1:{port}"
        case "::":
            return f"[::1]:{port}"
        case _:
            return address


@contextmanager
def explain_errors(args: argparse.Namespace) -> Generator[None]:
    """A context that turns errors of the client into failures."""
    try:
        parse_urls(args.connect)
    except ValueError as exc:
        raise usage_error(f"--connect: {exc}") from exc
    try:
        yield
    except (RequestError, OSError, BaseExceptionGroup) as exc:
        cause = first_cause(exc)
        raise explain(cause, args) or cause from exc


def explain(error: BaseException, args: argparse.Namespace) -> Failure | None:
    """The failure for an error of the client; None for other errors."""
    where = ", ".join(map(str, parse_urls(args.connect)))
    if getattr(args, "context", None):
        where += f" (context {args.context})"
    match error:
        case PeerMismatch():
            return explain_mismatch(error, where)
        case NotEncrypted():
            how = "use tls:// (docs/guides/tls.md), or accept that with --allow-plain"
            return Failure(str(error), ExitCode.REFUSED, how)
        case HandshakeRefused():
            return _refused(error, args, where)
        case ConnectionLost(__cause__=ssl.SSLError() | HandshakeFailed() as cause):
            return _other_listener(args, where) or Failure(f"{where}: {reason_of(cause)}")
        case ConnectionLost(__cause__=socket.gaierror() as cause):
            return Failure(f"{where}: the name of the host cannot be resolved ({cause.strerror})")
        case ConnectionLost(__cause__=ConnectionRefusedError() | OSError(errno=None)):
            # Without a number: a name with several addresses, each of which refused.
            return Failure(f"no node at {where}", hint="start one with `millpond serve`")
        case ConnectionLost():
            if (other := _other_listener(args, where)) is not None:
                return other
            hint = f"is a Millpond node there{_without_tls(args)}? See `millpond doctor`"
            return Failure(f"{where}: {error}", hint=hint)
        case BrokenPipeError():
            return None
        case TimeoutError():
            if (other := _other_listener(args, where)) is not None:
                return other
            text = f"no answer from {where} within {args.timeout:g} s (--timeout)"
            return Failure(text, ExitCode.TIMEOUT)
        case OSError():
            return Failure(f"cannot write the output: {error.strerror}")
        case NotFound():
            return Failure(str(error), ExitCode.NOT_FOUND)
        case UnknownStream():
            name = getattr(args, "name", None)
            about = "" if name is None else f"{os.fsdecode(name)!r}: "
            is_append = getattr(args, "action", None) == "append"
            hint = "`millpond stream create` makes one" if is_append else ""
            return Failure(f"{about}{error}", ExitCode.NOT_FOUND, hint)
        case NotAllowed() if args.command == "put" and b"!" in args.channel:
            hint = "clients cannot write to names with `!`"
            return Failure(str(error), ExitCode.REFUSED, hint)
        case NotAllowed() if args.command == "chat" or getattr(args, "to", None):
            hint = f"chats are for the operator of the node (--token-file {COOKIE})"
            return Failure(str(error), ExitCode.REFUSED, hint)
        case NotAllowed():
            hint = "use a token with this right (--token-file)"
            return Failure(str(error), ExitCode.REFUSED, hint)
        case StorageFailed():
            return Failure(str(error), hint="see `millpond doctor`")
        case NotNegotiated():
            return Failure(f"the node at {where} cannot do this: {error}")
        case RequestError(delay_ms=int(delay_ms)):
            return Failure(f"{error} (retry in {delay_ms / 1000:g} s)")
        case RequestError():
            return Failure(str(error))
        case _:
            return None


def _other_listener(args: argparse.Namespace, where: str) -> Failure | None:
    """The failure where the port is that of another listener, or has TLS or none; None: it is not
    known to be."""
    from millpond.node.cli.listener_probe import advice

    found = advice(parse_urls(args.connect)[0])
    return None if found is None else Failure(f"{where}: {found[0]}", hint=found[1])


def _without_tls(args: argparse.Namespace) -> str:
    scheme = args.connect.partition(":")[0]
    secure = {"tcp": "tls", "ws": "wss"}.get(scheme)
    return "" if secure is None else f", or one behind TLS ({secure}://)"


def _refused(error: HandshakeRefused, args: argparse.Namespace, where: str) -> Failure:
    if error.code in ACCESS_CODES or error.status in ACCESS_STATUSES:
        name = os.fsdecode(getattr(args, "channel", None) or PROBE)
        text = f"the node at {where} refuses access to channel {name!r}"
        return Failure(text, ExitCode.REFUSED, _login_hint(args))
    if isinstance(error, ModeMismatch):
        return Failure(str(error), hint="remove --mode, or use another channel")
    if error.code == HelloCode.TLS_REQUIRED:
        return Failure(f"{where}: {error}", ExitCode.REFUSED, "use tls:// or wss://")
    if error.code == HelloCode.STORAGE_FAILED:
        name = os.fsdecode(getattr(args, "channel", None) or PROBE)
        text = f"{where}: {error}: channel {name!r} cannot be read"
        return Failure(text, hint="see `millpond doctor`")
    if error.status is not None and (other := _other_listener(args, where)) is not None:
        return other
    return Failure(f"{where}: {error}")


def _login_hint(args: argparse.Namespace) -> str:
    # `bench` has no identity to give.
    match bool(args.token_file), bool(getattr(args, "identity", None)):
        case False, False:
            identity = ", or a trusted identity (--identity)"
            return f"give a token (--token-file){identity if 'identity' in args else ''}"
        case True, False:
            return "the token has no rights for it"
        case False, True:
            return "the identity has no rights for it"
        case _:
            return "neither token nor identity have rights for it"


async def _within(timeout_s: float | None, work: Callable[[], Awaitable[int]]) -> int:
    with anyio.fail_after(timeout_s):
        return await work()
