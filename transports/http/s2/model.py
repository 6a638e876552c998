"""Types, limits, names and metering of S2, shared by its codecs and handlers (A.3, A.6)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from millpond.actors.streams.messages import (
    U64_MAX,
    Headers,
    PackedBodies,
    PackedSlice,
    RecordColumns,
    RecordFilter,
    RecordFormat,
    RecordSlice,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, StreamPosition, invalid

RECORDS_MAX = 1000
"""The most records of an append, and of a batch that is read."""
HEADERS_MAX = 2**15
"""The most headers of an append. S2 limits only their metered size, in which a third of a million
would fit, and block the node for as long as it takes to read them."""
METERED_MAX = 2**20
"""Metered bytes of a record, of an append, and of a batch that is read."""
RECORD_BYTES = 8
"""The metered size of a record besides its body and headers; a header adds 2 to its bytes."""
FENCE_BYTES_MAX = 36

READ_VIEW = RecordFilter(body_bytes_max=METERED_MAX - RECORD_BYTES)
"""Other views can append larger records; a batch cannot carry them."""

_BASIN = re.compile(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]")
_BASIN_PREFIX = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,47})?")
BASIN_BYTES_MAX = 48
STREAM_BYTES_MAX = 512
TOKEN_BYTES_MAX = 96
_DOTS = (b".", b"..")


class AppendInput(msgspec.Struct, frozen=True, gc=False):
    """Records by columns, as `millpond.actors.streams.messages.Append` takes them, and conditions.

    `headers` None: no record has any; `timestamps` None: no record has one (milliseconds).
    """

    bodies: list[bytes] | PackedBodies
    headers: list[Headers] | None = None
    timestamps: list[int | None] | None = None
    match_seq_num: int | None = None
    fencing_token: bytes | None = None


class AppendAck(msgspec.Struct, frozen=True, gc=False):
    """`start` is the first record; `end` one behind the last, with that one's timestamp; `tail`
    that of the stream, as it was when this was said."""

    start: StreamPosition
    end: StreamPosition
    tail: StreamPosition


class RecordBatch(msgspec.Struct, frozen=True, gc=False):
    """Records that a read found, ascending; without any it is a heartbeat, and has a tail.

    `slices`, if there are any, are the same as `spans`; `packed`, if there are any, are in place of
    `spans`.
    """

    spans: Sequence[RecordColumns] = ()
    tail: StreamPosition | None = None
    slices: Sequence[RecordSlice] = ()
    packed: Sequence[PackedSlice] = ()

    def encoded(self, record_format: RecordFormat) -> list[bytes]:
        """The records as `record_format` writes them, in pieces."""
        if self.slices:
            return [each.encoded(record_format) for each in self.slices]
        return [record_format.encode(each) for each in self.spans]


def metered(body: bytes, headers: Headers) -> int:
    """The metered size of a record, in bytes."""
    size = RECORD_BYTES + len(body) + 2 * len(headers)
    for name, value in headers:
        size += len(name) + len(value)
    return size


def metered_sizes(bodies: Sequence[bytes], headers: Sequence[Headers] | None) -> Iterable[int]:
    """The metered size of each record."""
    if headers is None:
        return map(RECORD_BYTES.__add__, map(len, bodies))
    return map(metered, bodies, headers)


def metered_span(span: RecordColumns) -> int:
    """The metered size of all records of a slice."""
    if span.headers is None:
        return RECORD_BYTES * len(span.bodies) + sum(map(len, span.bodies))
    return sum(metered_sizes(span.bodies, span.headers))


def check_append(given: AppendInput) -> int:
    """The metered size of an append. Raises CodedError (422) for a wrong count or size, for command
    records that are invalid (A.6), and for a fencing token that no stream can have."""
    bodies, headers = given.bodies, given.headers
    if not 0 < len(bodies) <= RECORDS_MAX:
        raise invalid(f"an append has 1 to {RECORDS_MAX} records, not {len(bodies)}")
    if headers is not None and sum(map(len, headers)) > HEADERS_MAX:
        raise too_many_headers()
    if type(bodies) is PackedBodies:
        size, bodies = RECORD_BYTES * bodies.count + bodies.size, []
    elif headers is None:
        size = RECORD_BYTES * len(bodies) + sum(map(len, bodies))
    else:
        size = sum(map(metered, bodies, headers))
    if size > METERED_MAX:
        raise invalid(f"records of {size} metered bytes, at most {METERED_MAX} are allowed")
    for pairs, body in zip(headers or (), bodies, strict=False):
        if any(not name for name, _ in pairs):
            _check_command(pairs, body)
    if given.fencing_token is not None and len(given.fencing_token) > FENCE_BYTES_MAX:
        raise invalid(f"a fencing token has at most {FENCE_BYTES_MAX} bytes")
    return size


def too_many_records() -> CodedError:
    """422, before anything is made of them."""
    return invalid(f"an append has at most {RECORDS_MAX} records")


def too_many_headers() -> CodedError:
    """422: too many headers, found before they are decoded."""
    return invalid(f"an append has at most {HEADERS_MAX} headers")


def _check_command(pairs: Headers, body: bytes) -> None:
    """A header has no name: then it is the only one, and the record is a command."""
    if len(pairs) > 1:
        raise invalid("a header without a name must be the only one")
    match pairs[0][1]:
        case b"fence":
            if len(body) > FENCE_BYTES_MAX or not is_text(body):
                raise invalid(f"a fencing token is UTF-8 of at most {FENCE_BYTES_MAX} bytes")
        case b"trim":
            if len(body) != 8:
                raise invalid("a trim point has 8 bytes")
        case verb:
            raise invalid(f"unknown command {verb[:20]!r}")


def is_text(data: bytes) -> bool:
    """True for UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_u64(value: int | None, name: str, code: ErrorCode) -> None:
    """Raises CodedError with `code` unless it is None, or an unsigned number of 64 bits."""
    if value is not None and not 0 <= value <= U64_MAX:
        raise CodedError(code, f"{name}: expected 0 to 2^64 - 1")


def check_basin(name: str, code: ErrorCode) -> None:
    """Raises CodedError with `code` unless it can be a basin's name."""
    if _BASIN.fullmatch(name) is None:
        raise CodedError(
            code, "basin: 8 to 48 of a-z, 0-9 and '-', which neither begins nor ends the name"
        )


def check_basin_prefix(prefix: str) -> None:
    """Raises CodedError (bad_query) for a prefix that no name of a basin has."""
    if _BASIN_PREFIX.fullmatch(prefix) is None:
        raise CodedError(ErrorCode.BAD_QUERY, "prefix: no basin has such a name")


def check_stream(name: bytes, code: ErrorCode) -> None:
    """Raises CodedError with `code` unless it can be a stream's name."""
    if not 0 < len(name) <= STREAM_BYTES_MAX:
        raise CodedError(code, f"stream: 1 to {STREAM_BYTES_MAX} bytes")
    if name in _DOTS or b"\0" in name or not is_text(name):
        raise CodedError(code, "stream: UTF-8 without NUL, and neither '.' nor '..'")


def check_token_id(name: str, code: ErrorCode) -> None:
    """Raises CodedError with `code` unless it can be an access token's id."""
    data = name.encode("utf-8", "surrogatepass")
    is_sized = 0 < len(data) <= TOKEN_BYTES_MAX
    if not is_sized or data in _DOTS or b"\0" in data or not is_text(data):
        text = f"access token: UTF-8 of 1 to {TOKEN_BYTES_MAX} bytes without NUL, not '.' or '..'"
        raise CodedError(code, text)
