"""`millpond put`: a message from an argument or stdin, or one per line.

One message is put without an event loop, which would take longer to load than the node to store it;
`put_channel` does the rest, and takes over where the exchange is not the plain one.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from millpond.node.cli.exit_codes import ExitCode, usage_error
from millpond.node.cli.options.node import add_channel, add_node_options, add_reconnect, u32
from millpond.node.cli.options.units import seconds, whole_seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.token_file import read_token
from millpond.node.client.single_put import (
    DATA_BYTES_MAX,
    NotPlain,
    PutRequest,
    RefusedPacket,
    put_once,
)

if TYPE_CHECKING:
    from millpond.node.client.single_put import PutReceipt

EPILOG = """\
examples:
  millpond put chat/1 'hello'               prints the id of the message
  millpond put --ttl 60 chat/1 < picture    stdin is one message, stored for a minute
  tail -f log | millpond put --lines logs   each line is a message
  millpond put --key 7 orders '{"n": 1}'    can be repeated: the message is stored once
  millpond put --to bob notes 'hello'       encrypted for bob, who receives it in `notes`

The id is printed when the node has stored the message with the promised durability (see --json).
With --to the node stores the message until the peer has it. The peer's node accepts it in a channel
that it opens to contacts (`millpond serve --peer-channel notes`), and refuses it otherwise.
"""
STDIN = 0
CHUNK_BYTES = 65_536
DURABILITIES = ("memory", "os", "disk", "replicated")
"""The names of durabilities, by their numbers on the wire."""
PORT_MAX = 2**16 - 1


def add_parser(subparsers: Any) -> None:
    """Add `put` to the command line."""
    parser = subparsers.add_parser(
        "put",
        description="Put messages into a channel.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--to",
        metavar="PEER",
        help="encrypt the message for this peer and deliver it there",
    )
    add_channel(parser)
    parser.add_argument("data", metavar="DATA", nargs="?", help="message; - or none: read stdin")
    parser.add_argument(
        "--ttl",
        type=whole_seconds,
        metavar="S",
        default=0,
        help="time to live: 90, 15m, 1h30m, 7d; 0: the default of the node",
    )
    parser.add_argument(
        "--key",
        type=u32,
        metavar="N",
        help="idempotency key; with --lines that of the first line, then counting up",
    )
    parser.add_argument("--lines", action="store_true", help="put each line of stdin as a message")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="give up after S seconds, with exit code 3"
    )
    add_reconnect(
        parser,
        "how long a lost connection may be away (default %(default)g); nothing is put twice",
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Put the messages and print their ids."""
    if args.to is not None and args.key is not None:
        raise usage_error("--key and --to exclude each other: an encrypted message has its own key")
    if args.lines:
        if args.data not in (None, "-"):
            raise usage_error("--lines reads stdin; remove DATA")
    elif args.data is None and sys.stdin.isatty():
        raise usage_error("nothing to put: give DATA, or - to read stdin")
    address = _plain_address(args)
    if address is not None:
        return _put_plainly(args, *address)
    from millpond.node.cli.commands import put_channel

    return put_channel.run(args)


def _plain_address(args: argparse.Namespace) -> tuple[str, int] | None:
    """The host and port for a single PUT without an event loop; None: it takes a client.

    It does if there is more than a message to put, TLS, WebSocket or an identity; a name to look
    up, which may have many addresses; or a token that another machine may not get without TLS.
    Elsewhere than on Linux a cookie of the operator may be needed.
    """
    scheme, _, place = args.connect.partition("://")
    host, _, port = place.rpartition(":")
    if args.to is not None or args.lines or args.identity or args.peer is not None:
        return None
    if scheme != "tcp" or not sys.platform.startswith("linux"):
        return None
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        return None
    if args.token_file and host not in ("localhost", "127.0.0.1", "[::1]"):
        return None
    return (host.strip("[]"), int(port)) if host == "localhost" or _is_number(host) else None


def _is_number(host: str) -> bool:
    is_ipv6 = host.startswith("[") and host.endswith("]")
    try:
        socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, host.strip("[]"))
    except OSError:
        return False
    return True


def _put_plainly(args: argparse.Namespace, host: str, port: int) -> int:
    started = time.monotonic()
    deadline = None if args.timeout is None else started + args.timeout
    token = read_token(args.token_file)
    key = int.from_bytes(os.urandom(4), "big") if args.key is None else args.key
    try:
        data = _data(args.data, deadline)
        request = PutRequest(
            args.channel, data, key, args.ttl, None if token is None else token.encode()
        )
        try:
            stored = put_once(host, port, request, time.monotonic, deadline)
        except NotPlain as plain:
            from millpond.node.cli.commands import put_channel

            args.key = key  # the node may have stored the message
            wait_s = args.reconnect if plain.was_ready else 0.0
            return put_channel.put_again(args, data, wait_s, time.monotonic() - started)
        _show(stored, args.json)
    except RefusedPacket as refusal:
        _fail(_error_of(refusal.packet), args)
    except OSError as error:
        _fail(error, args)
    return ExitCode.OK


def _data(argument: str | None, deadline: float | None) -> bytes:
    """The message. Raises Failure, and TimeoutError at the deadline."""
    is_given = argument is not None and argument != "-"
    data = os.fsencode(argument) if is_given and argument else _read_all(deadline)
    if not data:
        raise usage_error("the message is empty: a node ignores empty messages")
    return data


def _read_all(deadline: float | None) -> bytes:
    data = bytearray()
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([STDIN], [], [], left_s)[0]:
            raise TimeoutError
        chunk = os.read(STDIN, CHUNK_BYTES)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > DATA_BYTES_MAX:
            from millpond.node.cli.input import too_large

            raise too_large("stdin", DATA_BYTES_MAX)


def _error_of(refusal: bytes) -> Exception:
    """The client's error for a NACK."""
    from millpond.node.client.errors import handshake_refused
    from millpond.transports.p2p.nacks import decode_refused
    from millpond.transports.p2p.packets import HELLO, Refused, decode

    packet = decode(refusal)
    assert isinstance(packet, Refused)
    return handshake_refused(packet.code) if packet.packet_type == HELLO else decode_refused(packet)


def _fail(error: Exception, args: argparse.Namespace) -> NoReturn:
    from millpond.node.cli.connection import explain

    raise explain(error, args) or error from error


def _show(stored: PutReceipt, as_json: bool) -> None:
    if not as_json:
        print_line(str(stored.id))
        return
    fields = {"id": str(stored.id), "ttl": stored.ttl, "key": stored.key}
    print_json(fields | {"durability": DURABILITIES[stored.durability or 0]})
