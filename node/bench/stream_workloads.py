"""What a stream's connections do in each kind of row, and how their answers are checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import Answer, Appended, RecordPosition, Records, Refused
from millpond.node.bench.load import Run
from millpond.node.bench.payload import Payload
from millpond.node.bench.stream_pair import TailWorkload
from millpond.node.bench.stream_rows import BATCH, StreamKind, StreamLoad
from millpond.node.bench.stream_walk import Walk
from millpond.node.bench.verify import Fault

PRELOADED, PRELOADED_MIN = 20_000, 10 * BATCH
"""Records that are there to be read: of all streams, and of one at least."""
READ_BACK = 100_000
"""Records of all streams that are read back after appends; of each at least the last ones."""


class Workload(Protocol):
    """What happens in one stream. Its `lines` are connected before `prepare`."""

    lines: list[DriverConnection]
    appended: int

    async def prepare(self) -> None:
        """Make the stream, and what is to be in it."""

    def start(self) -> None:
        """Send the first requests; from then on each answer makes room for another."""

    async def settle(self) -> None:
        """Wait until nothing is under way."""

    async def read_back(self) -> int:
        """Compare what is kept with what was sent; how many records were read."""

    def poll(self) -> None:
        """Ask again, if that is what is due."""

    def close(self) -> None:
        """Everything has been waited for: what is not here now is a fault."""


def workload_of(
    load: StreamLoad, number: int, name: str, run: Run, dialled: Callable[[], DriverConnection]
) -> Workload:
    """The work of stream `number`; `dialled` makes a connection for it."""
    match load.kind:
        case StreamKind.APPEND | StreamKind.BATCH | StreamKind.SESSION:
            return AppendWorkload(load, number, name, run, dialled())
        case StreamKind.READ | StreamKind.CATCHUP:
            return ReadWorkload(load, number, name, run, dialled())
        case StreamKind.TAIL:
            return TailWorkload(load, number, name, run, dialled(), dialled())


class AppendWorkload:
    """Keeps `pipeline` appends under way; their places have to ascend."""

    def __init__(
        self, load: StreamLoad, number: int, name: str, run: Run, line: DriverConnection
    ) -> None:
        self.lines = [line]
        self.appended = 0
        """Records that the server says are kept."""
        self._load = load
        self._name = name
        self._run = run
        self._line = line
        self._content = Payload(number, load.size)
        self._next = 0
        self._sent_at: deque[float] = deque()
        self._last: RecordPosition = (-1, -1)
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._line.make(self._name)

    def start(self) -> None:
        self._line.take = self._take
        self._append(self._load.pipeline)

    async def settle(self) -> None:
        self._quiet = anyio.Event()
        if self._sent_at:
            await self._quiet.wait()

    def poll(self) -> None:
        """Nothing is due."""

    def close(self) -> None:
        if self._sent_at:
            text = f"no answer to {len(self._sent_at)} appends to {self._name}"
            self._run.faults.note(Fault.UNACKNOWLEDGED, text, len(self._sent_at))

    async def read_back(self) -> int:
        quota = READ_BACK // self._load.connections
        if StreamKind.READ not in self._line.speech.kinds:
            return 0
        return await Walk(self._line, self._name, self._content, self._load.size, self._run).all(
            self.appended, self._last, quota
        )

    def _append(self, count: int) -> None:
        now, batch, make = self._run.now(), self._load.batch, self._content.make
        requests = []
        for _ in range(count):
            bodies = [make(sequence) for sequence in range(self._next, self._next + batch)]
            self._next += batch
            self._sent_at.append(now)
            requests.append(self._line.speech.append(self._name, bodies))
        self._line.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            if not self._sent_at:
                self._run.faults.note(Fault.UNEXPECTED, "an answer that nobody waits for")
                return
            sent_at = self._sent_at.popleft()
            if self._is_kept(answer):
                self._run.record(sent_at, now)
        if self._run.is_sending:
            self._append(len(batch))
        elif self._quiet is not None and not self._sent_at:
            self._quiet.set()

    def _is_kept(self, answer: Answer) -> bool:
        match answer:
            case Appended(first=first, last=last, count=count) if count == self._load.batch:
                if first <= self._last:
                    text = f"place {first} was given after {self._last}"
                    self._run.faults.note(Fault.DISORDERED, text)
                self._last = last
                self.appended += count
                return True
            case Refused(text=text):
                self._run.faults.note(Fault.REFUSED, text)
            case _:
                self._run.faults.note(Fault.UNEXPECTED, f"{answer} where an append was due")
        return False


class ReadWorkload:
    """Walks over records that are there, so many at a time, again and again."""

    def __init__(
        self, load: StreamLoad, number: int, name: str, run: Run, line: DriverConnection
    ) -> None:
        self.lines = [line]
        self.appended = 0
        self._load = load
        self._name = name
        self._run = run
        self._line = line
        self._content = Payload(number, load.size)
        self._blocks: list[tuple[RecordPosition, list[bytes]]] = []
        self._next = 0
        self._asked: deque[tuple[float, int]] = deque()
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._line.make(self._name)
        count, block = max(PRELOADED_MIN, PRELOADED // self._load.connections), self._load.batch
        for start in range(0, max(count // block, 1) * block, BATCH):
            bodies = [self._content.make(sequence) for sequence in range(start, start + BATCH)]
            answer = await self._line.ask(self._line.speech.append(self._name, bodies))
            if isinstance(answer, Appended):
                if start % block == 0:
                    self._blocks.append((answer.first, []))
                self._blocks[-1][1].extend(bodies)
                self.appended += answer.count

    def start(self) -> None:
        self._line.take = self._take
        if self._blocks:
            self._ask(self._load.pipeline)

    async def settle(self) -> None:
        self._quiet = anyio.Event()
        if self._asked:
            await self._quiet.wait()

    async def read_back(self) -> int:
        return 0

    def poll(self) -> None:
        """Nothing is due."""

    def close(self) -> None:
        if self._asked:
            text = f"no answer to {len(self._asked)} reads of {self._name}"
            self._run.faults.note(Fault.UNACKNOWLEDGED, text, len(self._asked))

    def _ask(self, count: int) -> None:
        now, speech, requests = self._run.now(), self._line.speech, []
        for _ in range(count):
            place, bodies = self._blocks[self._next]
            self._asked.append((now, self._next))
            self._next = (self._next + 1) % len(self._blocks)
            requests.append(speech.read(self._name, place, len(bodies), self._load.size, 0))
        self._line.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            if not self._asked:
                self._run.faults.note(Fault.UNEXPECTED, "an answer that nobody waits for")
                return
            asked_at, block = self._asked.popleft()
            if self._is_block(answer, block):
                self._run.record(asked_at, now)
        if self._run.is_sending:
            self._ask(len(batch))
        elif self._quiet is not None and not self._asked:
            self._quiet.set()

    def _is_block(self, answer: Answer, block: int) -> bool:
        place, bodies = self._blocks[block]
        match answer:
            case Records(records=records):
                is_right = [body for _, body in records] == bodies and records[0][0] == place
                if not is_right:
                    text = f"a read of {self._name} at {place} found {len(records)} other records"
                    self._run.faults.note(Fault.DAMAGED, text)
                return is_right
            case Refused(text=text):
                self._run.faults.note(Fault.REFUSED, text)
            case _:
                self._run.faults.note(Fault.UNEXPECTED, f"{answer} where a read was due")
        return False
