"""Options and argument types of commands that connect to a node."""

from __future__ import annotations

import argparse
import os

from millpond.node.cli.options.context import CONNECT, add_context_option
from millpond.node.cli.options.identity import add_identity_options
from millpond.node.cli.options.tls import add_plain_option, add_tls_options
from millpond.node.cli.options.units import U32_MAX, seconds

TIMEOUT_S = 10.0
RECONNECT_S = 30.0
RECONNECT_HELP = "reconnect for S seconds after a lost connection (default %(default)g)"
U64_MAX = 2**64 - 1
NAME_BYTES_MAX, DEAD = 250, b"!dead"


def add_node_options(parser: argparse.ArgumentParser, *, or_data: bool = False) -> None:
    """`--connect`, or `--data` in its place if there is a way without a node; `--token-file`,
    `--json`, `--context`, and those of identities and TLS."""
    where = parser.add_mutually_exclusive_group()
    if or_data:
        from pathlib import Path

        where.add_argument("--data", type=Path, metavar="DIR", help="data folder of a stopped node")
    add_connect(where)
    add_token_file(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_identity_options(parser)
    add_tls_options(parser)
    add_plain_option(parser)
    add_context_option(parser)


def add_connect(parser: argparse._ActionsContainer) -> None:
    """Add `--connect`."""
    parser.add_argument(
        "--connect",
        metavar="URL",
        help="node to connect to: tcp://, ws://, tls:// or wss://H:P; several with commas: the "
        f"next one is used when one is lost (or MILLPOND_CONNECT; default {CONNECT})",
    )


def add_token_file(parser: argparse.ArgumentParser) -> None:
    """Add `--token-file`."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file that begins with the access token (or MILLPOND_TOKEN)",
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add `--timeout`, for commands that end by themselves."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        default=TIMEOUT_S,
        help="give up after S seconds, with exit code 3 (default %(default)g)",
    )


def add_reconnect(parser: argparse.ArgumentParser, text: str = RECONNECT_HELP) -> None:
    """Add `--reconnect`, in seconds; `text` is its help."""
    parser.add_argument("--reconnect", type=seconds, metavar="S", default=RECONNECT_S, help=text)


def add_channel(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the argument CHANNEL, as bytes."""
    nargs = "?" if optional else None
    parser.add_argument("channel", metavar="CHANNEL", type=channel_name, nargs=nargs)


def channel_name(text: str) -> bytes:
    """A channel name: 1 to 250 bytes, optionally followed by `!dead`."""
    name = os.fsencode(text)
    length = len(name.removesuffix(DEAD))
    if not 0 < length <= NAME_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"a channel name has 1 to {NAME_BYTES_MAX} bytes, not {length}"
        )
    return name


def message_id(text: str) -> int:
    """A message id, as `put` and `list` print it."""
    return _whole(text, "a message id", U64_MAX)


def u32(text: str) -> int:
    """An idempotency key, or another whole number of 32 bits."""
    return _whole(text, "a whole number", U32_MAX)


def positive(text: str) -> int:
    """A count of at least 1."""
    number = _whole(text, "a count", U32_MAX)
    if number == 0:
        raise argparse.ArgumentTypeError("a count is at least 1")
    return number


def _whole(text: str, what: str, number_max: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= number_max):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} (0 to {number_max})")
    return int(text)
