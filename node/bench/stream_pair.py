"""A stream with one connection that appends, and one that follows."""

from __future__ import annotations

import anyio

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import (
    START,
    Answer,
    Appended,
    RecordPosition,
    Records,
    after,
)
from millpond.node.bench.load import Run
from millpond.node.bench.payload import Payload
from millpond.node.bench.stream_rows import BATCH, StreamLoad
from millpond.node.bench.verify import Fault

WAIT_MS = 5_000


class TailWorkload:
    """One connection appends single records, another follows the stream and times them.

    `pipeline` records are under way, each until it has its answer and was seen.
    """

    def __init__(
        self,
        load: StreamLoad,
        number: int,
        name: str,
        run: Run,
        producer: DriverConnection,
        follower: DriverConnection,
    ) -> None:
        self.lines = [producer, follower]
        self.appended = 0
        self._load = load
        self._name = name
        self._run = run
        self._producer, self._follower = producer, follower
        self._content = Payload(number, load.size)
        self._next = self._seen = 0
        self._last: RecordPosition = (-1, -1)
        self._sent_at: dict[int, float] = {}
        self._place = START
        self._must_poll = False
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._producer.make(self._name)

    def start(self) -> None:
        self._producer.take = self._take_kept
        self._follower.take = self._take_found
        self._follow()
        self._append(self._load.pipeline)

    async def settle(self) -> None:
        self._quiet = anyio.Event()
        if self._under_way:
            await self._quiet.wait()

    async def read_back(self) -> int:
        return self._seen

    def poll(self) -> None:
        if self._must_poll:
            self._must_poll = False
            self._follow()

    def close(self) -> None:
        lost = self._next - self._seen
        if lost > 0:
            self._run.faults.note(Fault.LOST, f"record {self._seen} was never seen", lost)
        if self._next > self.appended:
            count = self._next - self.appended
            text = f"no answer to {count} appends to {self._name}"
            self._run.faults.note(Fault.UNACKNOWLEDGED, text, count)

    @property
    def _under_way(self) -> int:
        return self._next - min(self._seen, self.appended)

    def _append(self, count: int) -> None:
        now, requests = self._run.now(), []
        for sequence in range(self._next, self._next + count):
            self._sent_at[sequence] = now
            body = self._content.make(sequence)
            requests.append(self._producer.speech.append(self._name, [body]))
        self._next += count
        self._producer.send(b"".join(requests))

    def _follow(self) -> None:
        speech = self._follower.speech
        wait_ms = 0 if speech.polls else WAIT_MS
        request = speech.read(self._name, self._place, BATCH, self._load.size, wait_ms)
        self._follower.send(request)

    def _take_kept(self, batch: list[Answer]) -> None:
        for answer in batch:
            match answer:
                case Appended(first=first, last=last):
                    if first <= self._last:
                        text = f"place {first} was given after {self._last}"
                        self._run.faults.note(Fault.DISORDERED, text)
                    self._last = last
                    self.appended += 1
                case _:
                    self._run.faults.note(Fault.REFUSED, str(answer))
        self._go_on()

    def _take_found(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            match answer:
                case Records(records=records):
                    for place, body in records:
                        self._see(body, now)
                        self._place = after(place)
                    self._must_poll = not records
                case _:
                    self._run.faults.note(Fault.REFUSED, str(answer))
                    return
        if not (self._must_poll and self._follower.speech.polls):
            self._must_poll = False
            self._follow()
        self._go_on()

    def _see(self, body: bytes, now: float) -> None:
        sequence = self._content.read(body)
        if sequence != self._seen:
            text = f"record {sequence} was seen where {self._seen} was due"
            self._run.faults.note(Fault.DISORDERED, text)
            return
        self._seen += 1
        self._run.record(self._sent_at.pop(sequence), now)

    def _go_on(self) -> None:
        room = self._load.pipeline - self._under_way
        if self._run.is_sending:
            if room > 0:
                self._append(room)
        elif self._quiet is not None and not self._under_way:
            self._quiet.set()
