"""Records and spans of every shape, and a plain reader of what S2 says of them."""

from __future__ import annotations

from hypothesis import strategies as st

from millpond.actors.positions import Position
from millpond.actors.streams.messages import Headers, RecordColumns
from millpond.transports.http.s2.errors import StreamPosition

U64 = 2**64 - 1
TS = 1_700_000_000_000

numbers = st.one_of(
    st.integers(0, 300),
    st.integers(2**14 - 3, 2**14 + 3),
    st.integers(2**28 - 3, 2**28 + 3),
    st.integers(0, U64 - 2000),
)
bodies = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"x" * size for size in (1, 125, 126, 127, 128, 129, 16380, 16381, 16384)]),
)
names = st.binary(min_size=1, max_size=130)
headers = st.lists(st.tuples(names, st.binary(max_size=5)), max_size=3)
places = st.builds(StreamPosition, numbers, numbers)

Record = tuple[int, int, Headers, bytes]


@st.composite
def spans(draw: st.DrawFn, first: int | None = None) -> RecordColumns:
    """Consecutive records, with and without columns of timestamps and headers."""
    found = draw(st.lists(bodies, min_size=1, max_size=6))
    count = len(found)
    start = draw(numbers) if first is None else first
    times = draw(st.none() | st.lists(numbers, min_size=count, max_size=count).map(sorted))
    pairs = draw(st.none() | st.lists(headers, min_size=count, max_size=count))
    return RecordColumns(start, found, draw(numbers), Position(1, 1), times, None, pairs)


def span_of(found: list[bytes], first: int = 0, timestamp: int = TS) -> RecordColumns:
    """Plain records."""
    return RecordColumns(first, found, timestamp, Position(timestamp, 0))


def records_of(span: RecordColumns) -> list[Record]:
    """Sequence, timestamp, headers and body of each record."""
    count = len(span.bodies)
    return [
        (span.first + at, timestamp, pairs, body)
        for at, timestamp, pairs, body in zip(
            range(count),
            span.timestamps or [span.timestamp] * count,
            span.headers or [[]] * count,
            span.bodies,
            strict=True,
        )
    ]


def metered_of(record: Record) -> int:
    """As the contract has it (A.6)."""
    _, _, pairs, body = record
    return 8 + 2 * len(pairs) + sum(len(a) + len(b) for a, b in pairs) + len(body)
