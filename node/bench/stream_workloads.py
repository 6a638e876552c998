"""The work of one stream in each kind of row, and the checks of its answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import (
    START,
    Answer,
    Appended,
    RecordPosition,
    Records,
    Refused,
    after,
)
from millpond.node.bench.load import Run, Workload
from millpond.node.bench.payload import Payload
from millpond.node.bench.scenarios import BATCH, StreamKind, StreamLoad
from millpond.node.bench.verify import Fault

PRELOADED, PRELOADED_MIN = 20_000, 10 * BATCH
"""Records for reads: of all streams together, and of one stream at least."""
WAIT_MS = 5_000
"""Time limit of a follower's read at the end of the stream."""
READ_BACK = 100_000
"""Records of all streams that are read back after appends; of each at least the last one."""


class StreamWorkload(Workload, Protocol):
    """The work of one stream. Its connections are dialled before `prepare`."""

    connections: list[DriverConnection]
    appended: int

    async def prepare(self) -> None:
        """Create the stream and its first records."""

    def poll(self) -> None:
        """Send the next read of a follower whose protocol cannot wait."""


def workload_of(
    load: StreamLoad, number: int, name: str, run: Run, connection: Callable[[], DriverConnection]
) -> StreamWorkload:
    """The work of stream `number`; `connection` makes one to be dialled."""
    match load.kind:
        case StreamKind.APPEND | StreamKind.BATCH | StreamKind.SESSION:
            return AppendWorkload(load, number, name, run, connection())
        case StreamKind.READ | StreamKind.CATCHUP:
            return ReadWorkload(load, number, name, run, connection())
        case StreamKind.TAIL:
            return TailWorkload(load, number, name, run, connection(), connection())


class AppendWorkload:
    """Appends, `pipeline` of them under way; their positions have to ascend."""

    def __init__(
        self, load: StreamLoad, number: int, name: str, run: Run, connection: DriverConnection
    ) -> None:
        self.connections = [connection]
        self.appended = 0
        """Records whose append the server has confirmed."""
        self._load = load
        self._name = name
        self._run = run
        self._connection = connection
        self._payload = Payload(number, load.size)
        self._next = 0
        self._sent_at: deque[float] = deque()
        self._last: RecordPosition = (-1, -1)
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._connection.create(self._name)

    def start(self) -> None:
        self._connection.on_answers = self._take
        self._append(self._load.pipeline)

    async def settle(self) -> None:
        self._quiet = anyio.Event()
        if self._sent_at:
            await self._quiet.wait()

    def poll(self) -> None:
        """Appends and reads do not poll."""

    def close(self) -> None:
        if self._sent_at:
            text = f"no answer to {len(self._sent_at)} appends to {self._name}"
            self._run.faults.note(Fault.UNACKNOWLEDGED, text, len(self._sent_at))

    async def read_back(self) -> int:
        limit = READ_BACK // self._load.connections
        if StreamKind.READ not in self._connection.driver.kinds:
            return 0
        reader = StreamReader(
            self._connection, self._name, self._payload, self._load.size, self._run
        )
        return await reader.check(self.appended, self._last, limit)

    def _append(self, count: int) -> None:
        now, batch, make = self._run.now(), self._load.batch, self._payload.make
        requests = []
        for _ in range(count):
            bodies = [make(sequence) for sequence in range(self._next, self._next + batch)]
            self._next += batch
            self._sent_at.append(now)
            requests.append(self._connection.driver.append(self._name, bodies))
        self._connection.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            if not self._sent_at:
                self._run.faults.note(Fault.UNEXPECTED, "an answer came without a request")
                return
            sent_at = self._sent_at.popleft()
            if self._is_appended(answer):
                self._run.record(sent_at, now)
        if self._run.is_sending:
            self._append(len(batch))
        elif self._quiet is not None and not self._sent_at:
            self._quiet.set()

    def _is_appended(self, answer: Answer) -> bool:
        match answer:
            case Appended(first=first, last=last, count=count) if count == self._load.batch:
                if first <= self._last:
                    text = f"position {first} was given after {self._last}"
                    self._run.faults.note(Fault.DISORDERED, text)
                self._last = last
                self.appended += count
                return True
            case Refused(text=text):
                self._run.faults.note(Fault.REFUSED, text)
            case _:
                self._run.faults.note(Fault.UNEXPECTED, f"{answer} in position of an append")
        return False


class ReadWorkload:
    """Reads that pass over preloaded records again and again."""

    def __init__(
        self, load: StreamLoad, number: int, name: str, run: Run, connection: DriverConnection
    ) -> None:
        self.connections = [connection]
        self.appended = 0
        self._load = load
        self._name = name
        self._run = run
        self._connection = connection
        self._payload = Payload(number, load.size)
        self._blocks: list[tuple[RecordPosition, list[bytes]]] = []
        self._next = 0
        self._sent: deque[tuple[float, int]] = deque()
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._connection.create(self._name)
        count, block = max(PRELOADED_MIN, PRELOADED // self._load.connections), self._load.batch
        for start in range(0, max(count // block, 1) * block, BATCH):
            bodies = [self._payload.make(sequence) for sequence in range(start, start + BATCH)]
            answer = await self._connection.request(
                self._connection.driver.append(self._name, bodies)
            )
            if isinstance(answer, Appended):
                if start % block == 0:
                    self._blocks.append((answer.first, []))
                self._blocks[-1][1].extend(bodies)
                self.appended += answer.count

    def start(self) -> None:
        self._connection.on_answers = self._take
        if self._blocks:
            self._read(self._load.pipeline)

    async def settle(self) -> None:
        self._quiet = anyio.Event()
        if self._sent:
            await self._quiet.wait()

    async def read_back(self) -> int:
        return 0

    def poll(self) -> None:
        """Appends and reads do not poll."""

    def close(self) -> None:
        if self._sent:
            text = f"no answer to {len(self._sent)} reads of {self._name}"
            self._run.faults.note(Fault.UNACKNOWLEDGED, text, len(self._sent))

    def _read(self, count: int) -> None:
        now, driver, requests = self._run.now(), self._connection.driver, []
        for _ in range(count):
            position, bodies = self._blocks[self._next]
            self._sent.append((now, self._next))
            self._next = (self._next + 1) % len(self._blocks)
            requests.append(driver.read(self._name, position, len(bodies), self._load.size, 0))
        self._connection.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            if not self._sent:
                self._run.faults.note(Fault.UNEXPECTED, "an answer came without a request")
                return
            sent_at, block = self._sent.popleft()
            if self._is_block(answer, block):
                self._run.record(sent_at, now)
        if self._run.is_sending:
            self._read(len(batch))
        elif self._quiet is not None and not self._sent:
            self._quiet.set()

    def _is_block(self, answer: Answer, block: int) -> bool:
        position, bodies = self._blocks[block]
        match answer:
            case Records(records=records):
                is_right = [body for _, body in records] == bodies and records[0][0] == position
                if not is_right:
                    text = (
                        f"a read of {self._name} at {position} found {len(records)} other records"
                    )
                    self._run.faults.note(Fault.DAMAGED, text)
                return is_right
            case Refused(text=text):
                self._run.faults.note(Fault.REFUSED, text)
            case _:
                self._run.faults.note(Fault.UNEXPECTED, f"{answer} in position of a read")
        return False


class TailWorkload:
    """Appends of single records on one connection, and a follower on another that times them.

    `pipeline` records are under way, each until its append is answered and the follower has it.
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
        self.connections = [producer, follower]
        self.appended = 0
        self._load = load
        self._name = name
        self._run = run
        self._producer, self._follower = producer, follower
        self._payload = Payload(number, load.size)
        self._next = self._seen = 0
        self._last: RecordPosition = (-1, -1)
        self._sent_at: dict[int, float] = {}
        self._position = START
        self._must_poll = False
        self._quiet: anyio.Event | None = None

    async def prepare(self) -> None:
        await self._producer.create(self._name)

    def start(self) -> None:
        self._producer.on_answers = self._take_appends
        self._follower.on_answers = self._take_records
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
            self._run.faults.note(
                Fault.LOST, f"record {self._seen} did not reach the follower", lost
            )
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
            body = self._payload.make(sequence)
            requests.append(self._producer.driver.append(self._name, [body]))
        self._next += count
        self._producer.send(b"".join(requests))

    def _follow(self) -> None:
        driver = self._follower.driver
        wait_ms = 0 if driver.polls else WAIT_MS
        request = driver.read(self._name, self._position, BATCH, self._load.size, wait_ms)
        self._follower.send(request)

    def _take_appends(self, batch: list[Answer]) -> None:
        for answer in batch:
            match answer:
                case Appended(first=first, last=last):
                    if first <= self._last:
                        text = f"position {first} was given after {self._last}"
                        self._run.faults.note(Fault.DISORDERED, text)
                    self._last = last
                    self.appended += 1
                case _:
                    self._run.faults.note(Fault.REFUSED, str(answer))
        self._continue()

    def _take_records(self, batch: list[Answer]) -> None:
        now = self._run.now()
        for answer in batch:
            match answer:
                case Records(records=records):
                    for position, body in records:
                        self._see(body, now)
                        self._position = after(position)
                    self._must_poll = not records
                case _:
                    self._run.faults.note(Fault.REFUSED, str(answer))
                    return
        if not (self._must_poll and self._follower.driver.polls):
            self._must_poll = False
            self._follow()
        self._continue()

    def _see(self, body: bytes, now: float) -> None:
        sequence = self._payload.read(body)
        if sequence != self._seen:
            text = f"record {sequence} arrived in position of {self._seen}"
            self._run.faults.note(Fault.DISORDERED, text)
            return
        self._seen += 1
        self._run.record(self._sent_at.pop(sequence), now)

    def _continue(self) -> None:
        free = self._load.pipeline - self._under_way
        if self._run.is_sending:
            if free > 0:
                self._append(free)
        elif self._quiet is not None and not self._under_way:
            self._quiet.set()


class StreamReader:
    """Reads a stream back: records in the order of their numbers, none missing, none too many."""

    def __init__(
        self, connection: DriverConnection, name: str, payload: Payload, size: int, run: Run
    ) -> None:
        self._connection = connection
        self._name = name
        self._payload = payload
        self._size = size
        self._run = run

    async def check(self, count: int, last: RecordPosition, limit: int) -> int:
        """Check the first `limit` of `count` records, and those from `last` on; the number read."""
        position, sequence = START, 0
        while sequence < min(count, limit):
            records = await self._read(position)
            if not records:
                text = f"record {sequence} of {self._name} is missing"
                self._run.faults.note(Fault.LOST, text, count - sequence)
                return sequence
            for position, body in records:
                self._check(position, body, sequence)
                sequence += 1
            position = after(position)
        if sequence > count:
            text = f"{self._name} has {sequence} records, {count} were appended"
            self._run.faults.note(Fault.UNEXPECTED, text, sequence - count)
        return sequence + await self._end(last, count - 1) if count else sequence

    async def _end(self, position: RecordPosition, sequence: int) -> int:
        records = await self._read(position)
        if [each for each, _ in records] != [position]:
            text = f"{self._name} has {len(records)} records from its last position on, {position}"
            self._run.faults.note(Fault.LOST, text)
        for each, body in records[:1]:
            self._check(each, body, sequence)
        return len(records)

    async def _read(self, position: RecordPosition) -> list[tuple[RecordPosition, bytes]]:
        driver = self._connection.driver
        request = driver.read(self._name, position, BATCH * 10, self._size, 0)
        match await self._connection.request(request):
            case Records(records=records):
                return records
            case _:
                return []

    def _check(self, position: RecordPosition, body: bytes, sequence: int) -> None:
        if self._payload.read(body) != sequence:
            text = f"the record at {position} of {self._name} is not what was appended"
            self._run.faults.note(Fault.DAMAGED, text)
