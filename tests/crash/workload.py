"""Clients of the victim: writers that keep PUTs in flight, and readers that ack what they get."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

import anyio

from tests.conformance import packets as p
from tests.conformance.peer import Ended
from tests.crash.connection import Connection, UnexpectedPacket, join
from tests.crash.events import Got, Kept, Label, Refused, Sent, Settled
from tests.crash.history import FENCE, History

IN_FLIGHT_MAX = 16
STANDING_MAX = 4000
"""A channel with so many messages is given no more."""
TTL_S = 86_400
BRIEF_TTL_S = 1
SILENCE_S = 15.0
"""A node that lives and owes an answer gives it before."""
RETRY_DELAY_S = 0.1
IDLE_S = 0.05
DOUBTED = 8
"""So many answered PUTs are sent again after a restart."""
FENCE_EVERY = 24
WINDOW = 32
PUT_ACK, PUT_NACK = 0x07, b"\xff\x06"
MSG, GOODBYE = 0x02, b"\xff\xff\x00"


@dataclass(frozen=True)
class WriterPlan:
    """`number` is in the keys, so writers of one channel need different ones."""

    name: str
    number: int
    channel: str
    per_s: float
    ttl_s: int = TTL_S


class Writer:
    """Puts messages into one channel.

    Messages that were not answered before the node died are sent again, in order, same key and same
    bytes; so are the last that were, as if their answers had been lost (PA-09).
    """

    def __init__(self, plan: WriterPlan, history: History) -> None:
        self.plan = plan
        self._history = history
        self._n = 0
        self._unanswered: dict[int, None] = {}
        """By number, in the order of their last sending."""
        self._answered_last: deque[int] = deque(maxlen=DOUBTED)
        self._waiting: deque[int] = deque()
        """To be sent again."""

    @property
    def has_unanswered(self) -> bool:
        return bool(self._unanswered)

    async def run(self, address: str, *, only_retries: bool = False) -> None:
        """Write until the node is gone, or until nothing is unanswered."""
        try:
            tags = {p.ROLE: p.PRODUCER}
            async with await join(address, self.plan.channel, tags, wants_push=False) as connection:
                await self._write(connection, only_retries)
        except Ended:
            pass

    async def _write(self, conn: Connection, only_retries: bool) -> None:
        connection = self._history.connection()
        self._waiting = deque([*self._answered_last, *self._unanswered])
        in_flight: dict[int, None] = {}
        while self._waiting or self._unanswered or not only_retries:
            batch = self._batch(IN_FLIGHT_MAX - len(in_flight), only_retries)
            if batch:
                await conn.send(*(self._put(n, connection) for n in batch))
                in_flight.update(dict.fromkeys(batch))
            elif not in_flight:
                await _idle(conn)
                continue
            with anyio.fail_after(SILENCE_S):
                answers = await conn.receive()
            was_refused = False
            for packet in answers:
                was_refused |= self._answer(packet, connection, in_flight)
            await anyio.sleep(RETRY_DELAY_S if was_refused else len(answers) / self.plan.per_s)

    def _batch(self, count_max: int, only_retries: bool) -> list[int]:
        batch = [self._waiting.popleft() for _ in range(min(count_max, len(self._waiting)))]
        standing = self._history.standing.get(self.plan.channel, ())
        if not only_retries and len(standing) < STANDING_MAX:
            while len(batch) < count_max:
                self._n += 1
                self._unanswered[self._n] = None
                batch.append(self._n)
        return batch

    def _put(self, n: int, connection: int) -> bytes:
        label = Label(self.plan.name, n)
        self._history.record(Sent(label, connection, self.plan.ttl_s == BRIEF_TTL_S))
        return p.put(self._key(n), self._history.data(label), self.plan.ttl_s)

    def _key(self, n: int) -> int:
        return self.plan.number << 24 | n

    def _answer(self, packet: bytes, connection: int, in_flight: dict[int, None]) -> bool:
        """Take one packet. True: it was a refusal, and the PUT waits to be sent again."""
        if packet == GOODBYE:
            return False
        n = self._answered(packet, in_flight)
        label = Label(self.plan.name, n)
        del in_flight[n]
        if packet[0] == PUT_ACK:
            self._unanswered.pop(n, None)
            if n not in self._answered_last:
                self._answered_last.append(n)
            message_id = int.from_bytes(packet[9:], "big")
            self._history.kept(self.plan.channel, Kept(label, message_id, connection))
            return False
        self._history.record(Refused(label, packet[2], connection))
        if n not in self._answered_last:
            self._waiting.append(n)
            del self._unanswered[n]
            self._unanswered[n] = None  # it is sent after the others now
        return True

    def _answered(self, packet: bytes, in_flight: dict[int, None]) -> int:
        if packet[0] == PUT_ACK and len(packet) == 17:
            key = int.from_bytes(packet[1:5], "big")
        elif packet[:2] == PUT_NACK and len(packet) >= 7:
            key = int.from_bytes(packet[3:7], "big")
        else:
            raise UnexpectedPacket(f"{self.plan.name} got {packet[:32].hex()}")
        if key >> 24 != self.plan.number or key & 0xFFFFFF not in in_flight:
            raise UnexpectedPacket(
                f"{self.plan.name} got an answer to another key: {packet[:32].hex()}"
            )
        return key & 0xFFFFFF


async def _idle(connection: Connection) -> None:
    """Wait a moment; nothing may come but the end. Raises Ended."""
    with anyio.move_on_after(IDLE_S):
        if (packets := await connection.receive()) != [GOODBYE]:
            raise UnexpectedPacket(f"unasked: {packets[0][:32].hex()}")


@dataclass(frozen=True)
class ReaderPlan:
    """`every`: it is there in one life of so many. `late_s`: it takes up to so long to ack."""

    name: str
    number: int
    channel: str
    every: int = 1
    late_s: float = 0.0
    window: int = WINDOW


class Reader:
    """Acks what it is pushed. Now and then it puts a fence: a brief message behind its acks.

    Once the fence is acknowledged the acks before it must be durable too (PS-13), because the
    node's commits keep the order.
    """

    def __init__(self, plan: ReaderPlan, history: History, rng: Random) -> None:
        self.plan = plan
        self._history = history
        self._rng = rng
        self._fences = 0

    async def run(self, address: str) -> None:
        """Read until the node is gone."""
        tags = {p.ROLE: p.BOTH, p.WINDOW: p.u16(self.plan.window)}
        try:
            async with await join(address, self.plan.channel, tags, wants_push=True) as connection:
                await self._read(connection)
        except Ended:
            pass

    async def _read(self, connection: Connection) -> None:
        held: deque[int] = deque()
        fresh: list[int] = []
        fenced: dict[int, tuple[int, ...]] = {}
        while True:
            packets: list[bytes] = []
            with anyio.move_on_after(self._rng.uniform(0, self.plan.late_s) if held else None):
                packets = await connection.receive()
            out: list[bytes] = []
            for packet in packets:
                self._take(packet, held, fenced, out)
            count = 1 if self.plan.late_s else len(held)
            done = [held.popleft() for _ in range(min(count, len(held)))]
            for message_id in done:
                self._history.done(self.plan.channel, message_id)
            fresh += done
            out += map(p.ack, done)
            if len(fresh) >= FENCE_EVERY and not fenced:
                out.append(self._fence(fresh, fenced))
                fresh = []
            if out:
                await connection.send(*out)

    def _fence(self, fresh: list[int], fenced: dict[int, tuple[int, ...]]) -> bytes:
        self._fences += 1
        key = self.plan.number << 24 | self._fences
        fenced[key] = tuple(fresh)
        return p.put(key, FENCE + p.u32(key), BRIEF_TTL_S)

    def _take(
        self,
        packet: bytes,
        held: deque[int],
        fenced: dict[int, tuple[int, ...]],
        out: list[bytes],
    ) -> None:
        if packet[0] == MSG:
            message_id = int.from_bytes(packet[1:9], "big")
            if packet[9:].startswith(FENCE):
                out.append(p.ack(message_id))
                return
            label, is_whole = self._history.read(packet[9:])
            self._history.record(Got(message_id, label, self._history.life, is_whole))
            held.append(message_id)
        elif packet[0] == PUT_ACK:
            ids = fenced.pop(int.from_bytes(packet[1:5], "big"))
            self._history.record(Settled(ids))
        elif packet[:2] == PUT_NACK:
            fenced.pop(int.from_bytes(packet[3:7], "big"))
        elif packet != GOODBYE:
            raise UnexpectedPacket(f"{self.plan.name} got {packet[:32].hex()}")
