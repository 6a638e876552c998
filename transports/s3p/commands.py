"""The words of S3P v0.2.0: commands, limits, error codes (specs/s3p 8, 9, 11; wire.md 3h)."""

from __future__ import annotations

import msgspec

from millpond.actors.positions import Position
from millpond.transports.errors import WireError

BAD_FORMAT = "ERR_BAD_FORMAT"
LIMITS = "ERR_LIMITS"
STREAM_EXISTS = "ERR_STREAM_EXISTS"
UNKNOWN_STREAM = "ERR_UNKNOWN_STREAM"
NON_MONOTONIC_ID = "ERR_NON_MONOTONIC_ID"

FIRST_ID = Position(0, 0)


class S3pLimits(msgspec.Struct, frozen=True, gc=False):
    """What a server takes of its clients. Lengths are bytes, `append_bytes_max` those of all
    records of an APPEND together."""

    name_bytes_max: int = 256
    records_max: int = 1000
    record_bytes_max: int = 2**20
    append_bytes_max: int = 8 * 2**20
    count_default: int = 100
    count_max: int = 1000
    block_ms_max: int = 60_000


class S3pError(WireError):
    """A client broke the protocol or a limit; nothing behind it can be read (section 9).

    `code` is BAD_FORMAT or LIMITS; `text` is printable ASCII.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class CreateStream(msgspec.Struct, frozen=True, gc=False):
    """CREATE (8.1)."""

    name: bytes


class AppendRecords(msgspec.Struct, frozen=True, gc=False):
    """APPEND (8.2): at least one record, none of them empty; `ms` is the option ID."""

    name: bytes
    ms: int | None
    records: list[bytes]


class ReadRecords(msgspec.Struct, frozen=True, gc=False):
    """READ (8.3), with the defaults put in; `block_ms` 0: do not wait."""

    name: bytes
    count: int
    block_ms: int
    min_id: Position


class TrimBelow(msgspec.Struct, frozen=True, gc=False):
    """TRIM (8.4)."""

    name: bytes
    min_id: Position


class DeleteStream(msgspec.Struct, frozen=True, gc=False):
    """DELETE (8.5)."""

    name: bytes


Command = CreateStream | AppendRecords | ReadRecords | TrimBelow | DeleteStream


def bad_format(text: str) -> S3pError:
    """The error for what is no S3P."""
    return S3pError(BAD_FORMAT, text)


def over_limit(text: str) -> S3pError:
    """The error for what is more than the server takes."""
    return S3pError(LIMITS, text)


def printable(raw: bytes) -> str:
    """Bytes as text for an error line: what is not printable ASCII as `\\xNN` (S3A-06)."""
    text = raw.decode("latin-1")
    if raw.isascii() and text.isprintable():
        return text
    return "".join(each if " " <= each <= "~" else f"\\x{ord(each):02x}" for each in text)
