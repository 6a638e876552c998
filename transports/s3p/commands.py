"""Commands of S3P v0.2.0: their options, limits and error codes (specs/s3p 7 to 11;
docs/reference/compatibility.md)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.actors.positions import Position
from millpond.actors.streams.messages import PackedBodies
from millpond.transports.errors import WireError

BAD_FORMAT = "ERR_BAD_FORMAT"
LIMITS = "ERR_LIMITS"
STREAM_EXISTS = "ERR_STREAM_EXISTS"
UNKNOWN_STREAM = "ERR_UNKNOWN_STREAM"
NON_MONOTONIC_ID = "ERR_NON_MONOTONIC_ID"

FIRST_ID = Position(0, 0)
U64_MAX = 2**64 - 1
OPTIONS_MAX = 16
"""Elements of an options array; more than these are of no use (S3A-22)."""

COMMAND_BYTES_MAX = 32
KEY_BYTES_MAX = 64
VALUE_BYTES_MAX = 64


class S3pLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of a server for its clients. Lengths are bytes, `append_bytes_max` those of all
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
    records: list[bytes] | PackedBodies


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
    """The error for bytes that are not S3P."""
    return S3pError(BAD_FORMAT, text)


def over_limit(text: str) -> S3pError:
    """The error for more than the server accepts."""
    return S3pError(LIMITS, text)


def printable(raw: bytes) -> str:
    """Bytes as text for an error line: what is not printable ASCII as `\\xNN` (S3A-06)."""
    text = raw.decode("latin-1")
    if raw.isascii() and text.isprintable():
        return text
    return "".join(each if " " <= each <= "~" else f"\\x{ord(each):02x}" for each in text)


class Options(msgspec.Struct, gc=False):
    """The options of one command; the last value of each key counts (S3P-17)."""

    count: int
    ms: int | None = None
    block_ms: int = 0
    min_id: Position | None = None


class Option(msgspec.Struct, frozen=True):
    """A key that a command knows: `read` puts its value into the options, or raises S3pError.

    `too_long` is the error for a value of more than VALUE_BYTES_MAX bytes, whatever they are.
    """

    read: Callable[[Options, bytes, S3pLimits], None]
    too_long: Callable[[int, int], S3pError]


class Schema(msgspec.Struct, frozen=True):
    """The form of a command: its number of elements, its options, and its constructor."""

    elements: int
    options: dict[bytes, Option]
    build: Callable[[bytes, Options, list[bytes]], Command]

    def option(self, key: bytes) -> Option:
        """The option of that key, in any case (S3P-12); S3pError if there is none (S3P-16)."""
        found = self.options.get(key) or self.options.get(key.upper())
        if found is None:
            raise bad_format(f"unknown option {printable(key)}")
        return found


def schema_of(verb: bytes, elements: int) -> Schema:
    """The command of that name, in any case; S3pError if there is none, or it is of another size
    (S3P-12, S3P-14)."""
    schema = SCHEMAS.get(verb) or SCHEMAS.get(verb.upper())
    if schema is None:
        raise bad_format(f"unknown command {printable(verb)}")
    if schema.elements != elements:
        name = printable(verb.upper())
        raise bad_format(f"{name} has {schema.elements} elements, not {elements}")
    return schema


def name_too_long(size: int, size_max: int) -> S3pError:
    """A stream name of `size` bytes (S3P-18)."""
    return over_limit(f"stream name length not in range [1, {size_max}]")


def verb_too_long(size: int, size_max: int) -> S3pError:
    """The name of no command has so many bytes (S3P-14)."""
    return bad_format(f"unknown command of {size} bytes")


def key_too_long(size: int, size_max: int) -> S3pError:
    """No option's key has so many bytes (S3P-16)."""
    return bad_format(f"unknown option of {size} bytes")


def record_too_large(size: int, size_max: int) -> S3pError:
    """A record of `size` bytes (S3P-26)."""
    return over_limit(f"record of {size} bytes, at most {size_max} are allowed")


def append_too_large(size: int, size_max: int) -> S3pError:
    """A record that makes the APPEND larger than the limit (S3P-26)."""
    return over_limit(f"aggregate of records too large: {size} bytes more, {size_max} are left")


def parse_id(value: bytes) -> Position:
    """`<ms>-<seq>`, two decimal u64; leading zeros do not count (S3P-31, S3A-09, S3A-16)."""
    ms, _, seq = value.partition(b"-")
    if ms.isdigit() and seq.isdigit():
        ms_number, seq_number = int(ms), int(seq)
        if ms_number <= U64_MAX and seq_number <= U64_MAX:
            return Position(ms_number, seq_number)
    raise bad_format(
        f"invalid ID {printable(value)}, not <ms>-<seq> of two unsigned 64-bit numbers"
    )


def _read_ms(options: Options, value: bytes, limits: S3pLimits) -> None:
    if not value.isdigit() or (ms := int(value)) > U64_MAX:
        raise bad_format(f"invalid ID {printable(value)}, not an unsigned 64-bit number")
    options.ms = ms


def _read_count(options: Options, value: bytes, limits: S3pLimits) -> None:
    options.count = _number(b"COUNT", value, 1, limits.count_max)


def _read_block(options: Options, value: bytes, limits: S3pLimits) -> None:
    options.block_ms = _number(b"BLOCK", value, 0, limits.block_ms_max)


def _read_min_id(options: Options, value: bytes, limits: S3pLimits) -> None:
    options.min_id = parse_id(value)


def _number(key: bytes, value: bytes, low: int, high: int) -> int:
    is_negative = value[:1] == b"-"
    if not (value[1:] if is_negative else value).isdigit():
        raise bad_format(f"invalid {printable(key)} {printable(value)}, not a number")
    if is_negative or not low <= (number := int(value)) <= high:
        raise over_limit(f"{printable(key)} {printable(value)} not in range [{low}, {high}]")
    return number


def _id_too_long(size: int, size_max: int) -> S3pError:
    return bad_format(f"invalid ID of {size} bytes")


def _number_too_long(size: int, size_max: int) -> S3pError:
    return over_limit(f"number of {size} bytes, at most {size_max} are allowed")


def _create(name: bytes, options: Options, records: list[bytes]) -> Command:
    return CreateStream(name)


def _append(name: bytes, options: Options, records: list[bytes]) -> Command:
    return AppendRecords(name, options.ms, records)


def _read(name: bytes, options: Options, records: list[bytes]) -> Command:
    min_id = FIRST_ID if options.min_id is None else options.min_id
    return ReadRecords(name, options.count, options.block_ms, min_id)


def _trim(name: bytes, options: Options, records: list[bytes]) -> Command:
    if options.min_id is None:
        raise bad_format("missing option MIN_ID")
    return TrimBelow(name, options.min_id)


def _delete(name: bytes, options: Options, records: list[bytes]) -> Command:
    return DeleteStream(name)


_ID = Option(_read_ms, _id_too_long)
_COUNT = Option(_read_count, _number_too_long)
_BLOCK = Option(_read_block, _number_too_long)
_MIN_ID = Option(_read_min_id, _id_too_long)

SCHEMAS = {
    b"CREATE": Schema(3, {}, _create),
    b"APPEND": Schema(4, {b"ID": _ID}, _append),
    b"READ": Schema(3, {b"COUNT": _COUNT, b"BLOCK": _BLOCK, b"MIN_ID": _MIN_ID}, _read),
    b"TRIM": Schema(3, {b"MIN_ID": _MIN_ID}, _trim),
    b"DELETE": Schema(3, {}, _delete),
}
