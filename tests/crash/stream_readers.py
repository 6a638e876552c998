"""Readers and trimmers of the victim's streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import anyio

from millpond.actors.errors import UnknownStream
from millpond.actors.store.changes import Position
from millpond.node.client.s3p.client import S3p, connect_s3p
from millpond.node.client.s3p.records import FIRST, RecordId
from millpond.node.client.s3p.records import S3pRecord as S3pRecord
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import Record as OwnRecord
from millpond.node.client.streams.streams import Streams
from tests.crash.process import Addresses
from tests.crash.stream_events import Below, Look, Looked, Place, Trim, Trimmed
from tests.crash.stream_writers import GONE, make
from tests.crash.workload import SILENCE_S
from tests.crash.written_streams import Row, WrittenStreams

PAGE = 1000
BLOCK_MS = 1000
LOOK_S = 60.0
PAUSE_S = 0.05, 0.3
U64_MAX = 2**64 - 1


@dataclass(frozen=True)
class TrimPlan:
    """`all_share`: how often all that is known is trimmed; else up to a place amid it. `is_own`:
    through our own API, by sequence. `at_once_share`: all there is, known or not."""

    stream: str
    all_share: float
    is_own: bool = False
    at_once_share: float = 0.0


class Trimmer:
    """Trims a stream now and then."""

    def __init__(self, plan: TrimPlan, written_streams: WrittenStreams, rng: Random) -> None:
        self.plan = plan
        self._written_streams = written_streams
        self._rng = rng

    async def run(self, to: Addresses) -> None:
        """Trim until the node is gone."""
        try:
            async with (
                connect_s3p(to.s3p, reconnect=False) as s3p,
                connect_streams(to.url, reconnect=False) as streams,
            ):
                await make(s3p, self.plan.stream)
                while s3p.connected:
                    await anyio.sleep(self._rng.uniform(*PAUSE_S))
                    if self._written_streams[self.plan.stream].batches:
                        await self._trim(s3p, streams)
        except* GONE:
            pass

    async def _trim(self, s3p: S3p, streams: Streams) -> None:
        stream, history = self.plan.stream, self._written_streams.history
        below = self._choose()
        number = self._written_streams.number()
        history.record(Trim(stream, number, below))
        with anyio.fail_after(SILENCE_S):
            if isinstance(below, int):
                await streams.stream(stream).trim(below)
            elif self.plan.is_own:
                await streams.stream(stream).trim(Position(*below))
            else:
                await s3p.trim(stream, below)
        history.record(Trimmed(stream, number))

    def _choose(self) -> Below:
        """The point of a trim, which is taken for done."""
        written, rng = self._written_streams[self.plan.stream], self._rng
        what = rng.random()
        is_all = what < self.plan.all_share + self.plan.at_once_share
        last = len(written.batches) - 1 if is_all else rng.randrange(len(written.batches))
        batch = written.batches[last]
        end = batch.place.moved(batch.count if is_all else rng.randrange(batch.count))
        written.drop(last + is_all)
        if what < self.plan.at_once_share:
            return U64_MAX, U64_MAX
        return end.sequence if self.plan.is_own and end.sequence is not None else end.id


class Follower:
    """Reads on where it was, and waits for more: whatever it gets must stay."""

    def __init__(self, stream: str, written_streams: WrittenStreams) -> None:
        self._stream = stream
        self._written_streams = written_streams
        self._reader = f"follower of {stream}"
        self._next: RecordId = FIRST

    async def run(self, to: Addresses, *, is_last: bool = False) -> None:
        """Follow until the node is gone; `is_last`: until nothing comes any more."""
        try:
            async with connect_s3p(to.s3p, reconnect=False) as s3p:
                await make(s3p, self._stream)
                found: Sequence[S3pRecord] | None = None
                while found != [] or not is_last:
                    with anyio.fail_after(SILENCE_S):
                        found = await s3p.read(self._stream, self._next, block_ms=BLOCK_MS)
                    self._written_streams.saw(self._stream, self._reader, map(_row, found))
                    self._next = found[-1].id.next if found else self._next
        except* GONE:
            pass


class Looker:
    """Reads streams from beginning to end, in turns by S3P and by our own API."""

    def __init__(self, written_streams: WrittenStreams) -> None:
        self._written_streams = written_streams

    async def run(self, to: Addresses, names: list[str], *, by_s3p: bool) -> None:
        """One stream after the other, or until the node is gone."""
        try:
            if by_s3p:
                async with connect_s3p(to.s3p, reconnect=False) as s3p:
                    for name in names:
                        await self._by_s3p(s3p, name)
            else:
                async with connect_streams(to.url, reconnect=False) as streams:
                    for name in names:
                        await self._by_own(streams, name)
        except* GONE:
            pass

    async def _by_s3p(self, s3p: S3p, name: str) -> None:
        reader = self._begins(name)
        at, is_full = FIRST, True
        try:
            while is_full:
                with anyio.fail_after(SILENCE_S):
                    page = await s3p.read(name, at, count=PAGE)
                self._written_streams.saw(name, reader, map(_row, page))
                is_full = len(page) == PAGE
                at = page[-1].id.next if page else at
        except UnknownStream:
            pass
        self._written_streams.history.record(Looked(name, reader))

    async def _by_own(self, streams: Streams, name: str) -> None:
        reader = self._begins(name)
        try:
            with anyio.fail_after(LOOK_S):
                async for page in streams.stream(name).pages():
                    self._written_streams.saw(name, reader, [_own_row(each) for each in page])
        except UnknownStream:
            pass
        self._written_streams.history.record(Looked(name, reader))

    def _begins(self, name: str) -> str:
        reader = f"look {self._written_streams.number()}"
        self._written_streams.history.record(Look(name, reader))
        return reader


def _own_row(record: OwnRecord) -> Row:
    return Row(Place(record.id.ms, record.id.seq, record.sequence), record.data)


def _row(record: S3pRecord) -> Row:
    return Row(Place(*record.id), record.data)
