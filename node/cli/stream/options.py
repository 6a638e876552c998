"""Options and argument types of commands for streams: names, positions, records."""

from __future__ import annotations

import argparse
import os
import re
from datetime import UTC, datetime, timedelta

from millpond.actors.store.changes import Position
from millpond.actors.streams.durable.messages import is_content_type
from millpond.node.cli.options.node import U64_MAX
from millpond.node.client.streams.stream import Start
from millpond.node.units import duration_s
from millpond.transports.p2p.streams.bodies import CONTENT_TYPE_BYTES_MAX, NAME_BYTES_MAX

_AGO = re.compile(r"-?(.*[a-z])")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,255}")


def add_start(parser: argparse.ArgumentParser, what: str = "--from") -> None:
    """Add the options for the start: a sequence, an id or a time."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        what, dest="start", type=sequence, metavar="SEQ", help="at this sequence (default: 0)"
    )
    where.add_argument(
        "--id", dest="start", type=record_id, metavar="MS-SEQ", help="start at this S3P id"
    )
    where.add_argument(
        "--time",
        dest="start",
        type=timestamp,
        metavar="TIME",
        help="start at this time: 2025-11-21T10:00:00Z, -10m (ago; d, h, m, s), or ms since 1970",
    )


def stream_name(text: str) -> bytes:
    """A stream name as bytes."""
    name = os.fsencode(text)
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"a stream name has 1 to {NAME_BYTES_MAX} bytes, not {len(name)}"
        )
    return name


def topic_name(text: str) -> bytes:
    """Letters, digits, `_` and `-`."""
    if _TOPIC.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a topic name: 1 to 255 letters, digits, _ and -"
        )
    return text.encode("ascii")


def sequence(text: str) -> int:
    """A sequence, or an offset of RustLog, which is the same."""
    return _u64(text, "a sequence")


def partitions(text: str) -> int:
    """A number of partitions."""
    number = _u64(text, "a number of partitions")
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("a topic has 1 to 1000 partitions")
    return number


def record_id(text: str) -> Position:
    """An S3P id."""
    ms, dash, seq = text.partition("-")
    if not dash:
        raise argparse.ArgumentTypeError(f"{text!r} is not an id: MS-SEQ, two decimal numbers")
    return Position(_u64(ms, "the first part of an id"), _u64(seq, "the second part of an id"))


def position(text: str) -> int | Position:
    """A sequence or an id."""
    return record_id(text) if "-" in text else sequence(text)


def timestamp(text: str) -> Start:
    """A time; without an offset it is the local one."""
    ago = duration_s(found[1]) if (found := _AGO.fullmatch(text)) is not None else None
    if ago is not None:
        try:
            return datetime.now(UTC) - timedelta(seconds=ago)
        except OverflowError as exc:
            raise argparse.ArgumentTypeError(f"{text!r} is too long ago") from exc
    try:
        if text.isascii() and text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: 2025-11-21T10:00:00Z, -10m, or ms since 1970"
        ) from exc


def content_type(text: str) -> bytes:
    """A media type, perhaps with parameters."""
    found = os.fsencode(text)
    if len(found) > CONTENT_TYPE_BYTES_MAX or not is_content_type(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a content type such as text/plain")
    return found


def header(text: str) -> tuple[bytes, bytes]:
    """`NAME=VALUE`."""
    name, equals, value = os.fsencode(text).partition(b"=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _u64(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= U64_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} (0 to {U64_MAX})")
    return int(text)
