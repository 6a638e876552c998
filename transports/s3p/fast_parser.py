"""The fast path of the S3P parser: a whole buffer at once, by splitting it at its line ends.

A bulk string is right if the part before it is the one canonical header of a string as long as it
is. Input that is not plainly right, or not complete, is left to the incremental parser.
"""

from __future__ import annotations

from functools import lru_cache

from millpond.actors.messages import CellMessage
from millpond.actors.streams.messages import Append, PackedBodies
from millpond.transports.s3p.commands import (
    OPTIONS_MAX,
    SCHEMAS,
    VALUE_BYTES_MAX,
    AppendRecords,
    Command,
    Options,
    ReadRecords,
    S3pError,
    S3pLimits,
    Schema,
    parse_id,
)
from millpond.transports.s3p.scanner import CRLF
from millpond.transports.speedups import is_native, native

RECORD_BYTES_MAX = 512
"""For longer records the incremental parser, which does not search them, is faster."""


# By length. None equals no header: the empty string has no right one.
_HEADS: list[bytes | None] = [None, *(b"$%d" % size for size in range(1, RECORD_BYTES_MAX + 1))]
_COUNTS = {b"*%d" % count: count for count in range(1, 1001)}
_OPTIONS = {b"*%d" % count: count for count in range(0, OPTIONS_MAX + 1, 2)}
_OPENINGS = {
    verb: (schema, [b"*%d" % schema.elements, b"$%d" % len(verb), verb])
    for verb, schema in SCHEMAS.items()
}
_WORDS = _HEADS[: VALUE_BYTES_MAX + 1]
_NONE = b"*0"
_ONE_RECORD = [b"*0", b"*1"]
_SIZES = {b"%d" % size: size for size in range(1, 1025)}
_DIGITS_MAX = 20
_NUMBER_MAX = 2**31 - 1


class RepeatedAppend:
    """The fastest path: APPENDs without options to the same stream as before.

    A client mostly appends to one stream, so the bytes before the records repeat: to compare them
    is to parse them. `opening` ends before the records. While `name` is empty there was no APPEND
    yet, and `opening` means nothing.
    """

    __slots__ = (
        "_alike",
        "_limits",
        "_single",
        "_size",
        "_size_max",
        "name",
        "opening",
        "request",
    )

    def __init__(self, limits: S3pLimits) -> None:
        self._size_max = min(limits.record_bytes_max, limits.append_bytes_max)
        self._limits = tuple(
            min(each, _NUMBER_MAX)
            for each in (limits.records_max, limits.record_bytes_max, limits.append_bytes_max)
        )
        self._alike = self._single = self.opening = b""
        self._size = 0
        self.name = b""
        self.request = AppendRecords(b"", None, [])
        """An APPEND to that stream, without its records: errors tell only the name."""

    def remember(self, command: Command) -> None:
        """The command was read, so that the name in it is within the limits."""
        if type(command) is not AppendRecords or command.name == self.name:
            return
        self.name = name = command.name
        self.request = AppendRecords(name, None, [])
        self.opening = b"*4\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n*0\r\n" % (len(name), name)
        self._single = self.opening + b"*1\r\n$"
        self._alike = self._single + b"1\r\n"
        self._size = 1

    def take(self, data: bytes, found: list[Command]) -> int:
        """Put APPENDs into `found`; gives where the first one begins that is none, or is not all
        there, or not plainly right. In Python only those of one record are taken."""
        if not is_native:
            return self.take_in_python(data, found)
        return native.read_appends(
            data, self.opening, self.name, AppendRecords, PackedBodies, found, self._limits
        )

    def read_run(self, data: bytes, number: int) -> list[CellMessage] | None:
        """The requests for the APPENDs of which all of `data` consists, numbered from `number` on;
        None: it consists of others as well, or is not plainly right."""
        if not is_native:
            return self.read_run_in_python(data, number)
        return native.read_append_run(
            data, self.opening, number, Append, PackedBodies, self._limits
        )

    def read_run_in_python(self, data: bytes, number: int) -> list[CellMessage] | None:
        """The same, for APPENDs of one record each."""
        found: list[Command] = []
        if self.take_in_python(data, found) < len(data):
            return None
        commands = (each for each in found if type(each) is AppendRecords)
        return [Append(number + at, each.records) for at, each in enumerate(commands)]

    def take_in_python(self, data: bytes, found: list[Command]) -> int:
        """The same, for APPENDs of one record each."""
        name, alike, size = self.name, self._alike, self._size
        at = 0
        while name:
            start = at + len(alike)
            if data[at:start] != alike:
                # Not as long as the last one. Mostly they are, and that is seen at once.
                if (start := self._find_record(data, at)) == at:
                    break
                alike, size = self._alike, self._size
            stop = start + size
            if data[stop : stop + 2] != CRLF:
                break
            found.append(AppendRecords(name, None, [data[start:stop]]))
            at = stop + 2
        return at

    def _find_record(self, data: bytes, at: int) -> int:
        """The start of the record of the APPEND at `at`; `at` itself if it is no such APPEND."""
        start = at + len(self._single)
        if data[at:start] != self._single:
            return at
        stop = data.find(CRLF, start, start + _DIGITS_MAX + 2)
        digits = data[start : max(start, stop)]
        size = _SIZES.get(digits) or (int(digits) if digits.isdigit() else 0)
        if not 0 < size <= self._size_max:
            return at
        self._alike = data[at : stop + 2]
        self._size = size
        return stop + 2


class RepeatedRead:
    """The fast path of a client that walks over a stream: READs that differ from the last one in
    the last value alone, which is that of MIN_ID."""

    __slots__ = ("_block_ms", "_count", "_name", "_opening")

    def __init__(self) -> None:
        self._opening = self._name = b""
        """All bytes of the last READ before the length of its last value; empty: there was none."""
        self._count = self._block_ms = 0

    def remember(self, data: bytes, command: ReadRecords) -> None:
        """`data` is the command, and was read as it."""
        before, _, value = data[: -len(CRLF)].rpartition(CRLF)
        end = b"$6\r\nMIN_ID\r\n$%d" % len(value)
        if before.endswith(end):
            self._opening = before[: before.rindex(b"$") + 1]
            self._name, self._count, self._block_ms = command.name, command.count, command.block_ms

    def read(self, data: bytes) -> ReadRecords | None:
        """The READ that is all of `data`. None: it is none, or not plainly right."""
        opening = self._opening
        if not opening or not data.startswith(opening):
            return None
        size, _, rest = data[len(opening) :].partition(CRLF)
        value = rest[: -len(CRLF)]
        if size != b"%d" % len(value) or len(value) > VALUE_BYTES_MAX or rest[-2:] != CRLF:
            return None
        try:
            min_id = parse_id(value)
        except S3pError:
            return None
        return ReadRecords(self._name, self._count, self._block_ms, min_id)


class FastParser:
    """Whole commands off the front of a buffer; keeps nothing between buffers."""

    __slots__ = ("_heads", "_limits", "_names", "_records_max")

    def __init__(self, limits: S3pLimits) -> None:
        longest = min(limits.record_bytes_max, limits.append_bytes_max, RECORD_BYTES_MAX)
        self._limits = limits
        self._heads = _HEADS[: longest + 1]
        self._names = _HEADS[: limits.name_bytes_max + 1]
        # So many of the longest are within append_bytes_max without being counted.
        self._records_max = min(limits.records_max, limits.append_bytes_max // longest)

    def take(self, data: bytes, found: list[Command]) -> bytes:
        """Put whole commands into `found`; gives the bytes from the first one on that is not
        plainly right."""
        parts = data.split(CRLF)
        end = len(parts) - 1
        at = 0
        try:
            while at < end and (after := self._take_command(parts, at, found)):
                at = after
        except (LookupError, S3pError):
            pass
        return CRLF.join(parts[at:])

    def _take_command(self, parts: list[bytes], at: int, found: list[Command]) -> int:
        """The command that begins with the part `at`; gives the part behind it, 0: it is not sure.

        Nor is it where this raises LookupError or S3pError.
        """
        name = parts[at + 4]
        schema, opening = _OPENINGS[parts[at + 2]]
        if parts[at : at + 3] != opening or parts[at + 3] != self._names[len(name)]:
            return 0
        if parts[at + 5 : at + 7] == _ONE_RECORD and schema.elements == 4:
            record = parts[at + 8]
            if at + 9 >= len(parts) or parts[at + 7] != self._heads[len(record)]:
                return 0
            found.append(AppendRecords(name, None, [record]))
            return at + 9
        options = Options(self._limits.count_default)
        if parts[at + 5] == _NONE:
            at += 6
        elif not (at := self._read_options(parts, at + 5, schema, options)):
            return 0
        records: list[bytes] = []
        if schema.elements == 4:
            count = _COUNTS[parts[at]]
            first = at + 1
            at = first + 2 * count
            records = parts[first + 1 : at : 2]
            heads = list(map(self._heads.__getitem__, map(len, records)))
            if count > self._records_max or heads != parts[first:at:2]:
                return 0
        if at >= len(parts):
            return 0
        found.append(schema.build(name, options, records))
        return at

    def _read_options(self, parts: list[bytes], at: int, schema: Schema, options: Options) -> int:
        """The options whose header is the part `at`; gives the part behind them, 0: not sure."""
        after = at + 1 + 2 * _OPTIONS[parts[at]]
        if after >= len(parts):
            return 0
        for index in range(at + 1, after, 4):
            key_head, key, value_head, value = parts[index : index + 4]
            if key_head != _WORDS[len(key)] or value_head != _WORDS[len(value)]:
                return 0
            schema.option(key).read(options, value, self._limits)
        return after


@lru_cache(maxsize=16)
def fast_parser(limits: S3pLimits) -> FastParser:
    """The parser for these limits: one for all connections, as it keeps nothing."""
    return FastParser(limits)
