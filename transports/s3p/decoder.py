"""S3P v0.2.0 as a server speaks it: commands out of bytes, replies into bytes (specs/s3p 3-9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate

from millpond.actors.messages import CellMessage
from millpond.actors.positions import Position
from millpond.actors.streams.messages import (
    MeasureBodies,
    PackedBodies,
    PackedSlice,
    RecordColumns,
    RecordSlice,
)
from millpond.transports.s3p.commands import (
    LIMITS,
    AppendRecords,
    Command,
    ReadRecords,
    S3pError,
    S3pLimits,
)
from millpond.transports.s3p.fast_parser import (
    RECORD_BYTES_MAX,
    RepeatedAppend,
    RepeatedRead,
    fast_parser,
)
from millpond.transports.s3p.parser import IncrementalParser
from millpond.transports.s3p.scanner import CRLF
from millpond.transports.speedups import is_native, native

OK = b"+OK\r\n"
NOTHING = b"*0\r\n"
NO_MEMORY = "the node has no memory for the command now"
ERROR_BYTES_MAX = 200
"""The length of an error line; longer ones are cut (S3A-06)."""


_VISIBLE = bytes(each if 0x20 <= each <= 0x7E else ord("?") for each in range(256))
_SEQUENCES = [b"%d\r\n$" % seq for seq in range(2048)]
_LENGTHS = [b"%d\r\n" % size for size in range(2049)]


class Decoder:
    """Bytes in, commands out, alike for any split of the input.

    Commands that are complete before an error are given out; nothing after it.
    """

    __slots__ = ("_fast", "_incremental", "_is_plain", "_read_again", "_repeated", "error")

    def __init__(self, limits: S3pLimits) -> None:
        self._incremental = IncrementalParser(limits)
        self._fast = fast_parser(limits)
        self._repeated = RepeatedAppend(limits)
        self._read_again = RepeatedRead()
        self._is_plain = True
        self.error: S3pError | None = None

    @property
    def is_midway(self) -> bool:
        """A command has begun and is not complete."""
        return self._incremental.is_midway

    @property
    def buffered_bytes(self) -> int:
        """The bytes of that command that came so far."""
        return self._incremental.buffered_bytes

    def refuse(self) -> None:
        """Refuse the command of which a part has come, as there is no memory for it."""
        if self.is_midway:
            self._incremental.clear()
            self.error = S3pError(LIMITS, NO_MEMORY)

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""
        self._incremental.clear()

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes; `error` is set if the stream broke after them."""
        found: list[Command] = []
        if self.error is None:
            try:
                self._read(data, found)
            except S3pError as error:
                # Its traceback would hold this decoder, and with it what it has kept.
                self.error = error.with_traceback(None)
        return found

    def feed_appends(
        self, data: bytes, number: int
    ) -> tuple[AppendRecords, list[CellMessage]] | None:
        """The requests for the APPENDs of which all of `data` consists, to the same stream as
        before and numbered from `number` on, and a command that stands for each of them. None:
        nothing is read, `data` is to be fed."""
        if self.error is not None or self._incremental.is_midway:
            return None
        appends = self._repeated.read_run(data, number)
        return (self._repeated.request, appends) if appends else None

    def feed_read(self, data: bytes) -> ReadRecords | None:
        """The READ that is all of `data`, which differs from the one before in its MIN_ID alone.
        None: nothing is read, `data` is to be fed."""
        if self.error is not None or self._incremental.is_midway:
            return None
        return self._read_again.read(data)

    def _read(self, data: bytes, found: list[Command]) -> None:
        incremental, repeated = self._incremental, self._repeated
        if incremental.is_midway:
            data = incremental.finish(data, found)
            if found:
                self._choose_parser(found[0])
        if at := repeated.take(data, found):
            data = data[at:]
        if not data:
            return
        if (read := self._read_again.read(data)) is not None:
            found.append(read)
            return
        if self._is_plain:
            count, command_bytes = len(found), data
            if not (data := self._fast.take(data, found)):
                last = found[-1]
                repeated.remember(last)
                if type(last) is ReadRecords and len(found) == count + 1:
                    self._read_again.remember(command_bytes, last)
                return
        incremental.feed(data, found, repeated)
        if found:
            self._choose_parser(found[-1])

    def _choose_parser(self, command: Command) -> None:
        """Choose the parser for the next bytes by a command that the incremental parser read."""
        self._repeated.remember(command)
        if type(command) is AppendRecords:
            records = command.records
            if not isinstance(records, PackedBodies):
                self._is_plain = len(records[-1]) <= RECORD_BYTES_MAX and CRLF not in records[-1]


def encode_error(code: str, text: str) -> bytes:
    """An error line: printable ASCII and nothing else, whatever `text` holds (S3P-02, S3A-06)."""
    line = f"{code} {text}".encode("ascii", "backslashreplace")[:ERROR_BYTES_MAX]
    return b"-%b\r\n" % line.translate(_VISIBLE)


def encode_id(position: Position) -> bytes:
    """The reply to an APPEND (8.2)."""
    seq = position.seq
    line = _LENGTHS[seq] if seq < len(_LENGTHS) else b"%d\r\n" % seq
    return _id_head(position.ms, len(line)) + line


@lru_cache(maxsize=64)
def _id_head(ms: int, line_bytes: int) -> bytes:
    """The bytes of an id before its sequence line, which has so many bytes.

    Records that come together have a millisecond in common.
    """
    text = b"%d-" % ms
    return b"$%d\r\n%b" % (len(text) + line_bytes - len(CRLF), text)


def encode_records(spans: Sequence[RecordColumns], slices: Sequence[RecordSlice] = ()) -> bytes:
    """The reply to a READ (8.3): ids and bodies alternate; no body is empty. `slices` are the same
    as `spans`, or there are none."""
    count = 0
    for span in spans:
        count += len(span.bodies)
    pieces = [b"*%d\r\n" % (2 * count)]
    if slices:
        pieces += [each.encoded(PAIRS) for each in slices]
    else:
        for span in spans:
            _add_span(pieces, span)
    return b"".join(pieces)


MEASURE: MeasureBodies | None = partial(native.measure_bodies, 0) if is_native else None
"""Of READs: their records come packed where they are read natively."""


def encode_packed(slices: Sequence[PackedSlice]) -> bytes:
    """The reply to a READ whose records come as chunks keep them."""
    count = 0
    pieces = [b""]
    for each in slices:
        count += each.count
        pieces.append(
            native.write_packed_records(each.data, each.offset, each.count, each.seq, each.ms)
        )
    pieces[0] = b"*%d\r\n" % (2 * count)
    return b"".join(pieces)


class _Pairs:
    """Ids and bodies alternating, as in the answer to a READ."""

    def encode(self, span: RecordColumns) -> bytes:
        if len(span.bodies) == 1 and span.ids is None:
            return _encode_record(span.id, span.bodies[0])
        pieces: list[bytes] = []
        _add_span(pieces, span)
        return b"".join(pieces)

    def ends(self, span: RecordColumns) -> Sequence[int]:
        first, bodies = span.id, span.bodies
        ids = span.ids or [Position(first.ms, first.seq + at) for at in range(len(bodies))]
        return list(accumulate(map(len, map(_encode_record, ids, bodies))))


PAIRS = _Pairs()


def _add_span(pieces: list[bytes], span: RecordColumns) -> None:
    bodies = span.bodies
    if span.ids is not None:
        pieces += map(_encode_record, span.ids, bodies)
    elif len(bodies) == 1:
        pieces.append(_encode_record(span.id, bodies[0]))
    else:
        pieces.append(encode_run(span.id.ms, span.id.seq, bodies))


def _encode_record(position: Position, body: bytes) -> bytes:
    text = b"%d-%d" % (position.ms, position.seq)
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(text), text, len(body), body)


def encode_run_in_python(ms: int, first: int, bodies: list[bytes]) -> bytes:
    """Records with the ids `<ms>-<first>` and up: all whose ids are equally long at a time."""
    pieces: list[bytes] = []
    done, count = 0, len(bodies)
    while done < count:
        seq = first + done
        digits = len(b"%d" % seq)
        stop = min(count, 10**digits - first)
        some = bodies if stop - done == count else bodies[done:stop]
        head = b"%d-" % ms
        head = b"$%d\r\n%b" % (len(head) + digits, head)
        run = [CRLF] * (5 * len(some))
        run[0::5] = [head] * len(some)
        run[1::5] = _sequences(seq, len(some))
        run[2::5] = _lengths(some)
        run[3::5] = some
        pieces += run
        done = stop
    return b"".join(pieces)


encode_run = native.write_records if is_native else encode_run_in_python


def _sequences(seq: int, count: int) -> Iterable[bytes]:
    if seq + count <= len(_SEQUENCES):
        return _SEQUENCES[seq : seq + count]
    return [b"%d\r\n$" % each for each in range(seq, seq + count)]


def _lengths(bodies: list[bytes]) -> Iterable[bytes]:
    try:
        return list(map(_LENGTHS.__getitem__, map(len, bodies)))
    except IndexError:
        return [b"%d\r\n" % len(body) for body in bodies]
