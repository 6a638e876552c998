"""Read sessions by columns: frames of blocks, larger than S2's own, within the same limits."""

from __future__ import annotations

import struct
from array import array
from typing import Any

from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.columns import RECORDS_MAX
from millpond.transports.http.s2.read_limits import BULK_BYTES, ReadBudget
from tests.transports.http.s2.samples import span_of
from tests.transports.http.s2.session_client import RECORDS, Speaker, speaker

COLUMNS = "s2s/columns"
HEAD = struct.Struct("<IIQQII")


def blocks_of(data: bytes) -> list[tuple[int, list[bytes]]]:
    """The first sequence of each block and its bodies, which have no headers."""
    found, at = [], 0
    while at < len(data):
        count, flags, first, _, size, _ = HEAD.unpack_from(data, at)
        at += HEAD.size + (8 * count if flags & 1 else 0)
        assert not flags & 2
        lengths = array("I", data[at : at + 4 * count])
        at += 4 * count
        bodies = []
        for length in lengths:
            bodies.append(data[at : at + length])
            at += length
        assert sum(lengths) == size
        found.append((first, bodies))
    return found


async def session(s2: Speaker, query: str) -> list[frames.Frame]:
    """All frames of a session that ends by itself."""
    path, found = f"{RECORDS}?{query}", []
    given: dict[str, Any] = {"accept": COLUMNS, "content_type": "s2s/proto"}
    async with s2.session("GET", path, **given) as talk:
        assert (await talk.head())[b"content-type"] == COLUMNS.encode()
        while (frame := await talk.frame()) is not None:
            found.append(frame)
    return found


async def test_a_session_by_columns_has_more_records_in_a_frame() -> None:
    async with speaker("orders") as s2:
        bodies = [f"{i:05}" for i in range(3500)]
        for at in range(0, 3500, 500):
            await s2.append(*bodies[at : at + 500])
        (frame,) = await session(s2, "seq_num=0&count=3500")
        records = [body for _, each in blocks_of(frame.message()) for body in each]
        assert records == [each.encode() for each in bodies]
        (part,) = await session(s2, "seq_num=1200&count=900")
        found = blocks_of(part.message())
        assert found[0][0] == 1200
        assert [body for _, each in found for body in each] == records[1200:2100]


async def test_limits_and_refusals_are_those_of_any_session() -> None:
    async with speaker("orders") as s2:
        await s2.append(*["x" * 92] * 20)
        (frame,) = await session(s2, "seq_num=0&bytes=1000")
        assert [len(bodies) for _, bodies in blocks_of(frame.message())] == [10]
        assert (
            await s2.ask("GET", f"{RECORDS}?seq_num=99", content_type="s2s/proto")
        ).status == 416
        given: dict[str, Any] = {"accept": COLUMNS, "content_type": "s2s/proto"}
        async with s2.session("GET", f"{RECORDS}?seq_num=20", **given) as talk:
            await talk.head()
            beat = await talk.frame()
            assert beat is not None and beat.message() == b""
            await s2.append("new")
            new = await talk.frame()
            assert new is not None
            assert blocks_of(new.message()) == [(20, [b"new"])]
            assert (await s2.ask("DELETE", "/v1/streams/orders")).status == 202
            assert (await talk.terminal())[0] == 404


def test_chunks_are_asked_for_and_batches_stay_within_a_frame() -> None:
    budget = ReadBudget(records_max=RECORDS_MAX)
    assert (budget.is_bulk, budget.bytes_left) == (True, BULK_BYTES)
    large = span_of([b"x" * 1000] * 2000)
    sizes = [sum(len(each.bodies) for each in batch.spans) for batch in budget.batches([large])]
    assert sum(sizes) == 2000 and max(sizes) * 1008 <= 2**20
