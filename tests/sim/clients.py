"""Connections of a simulated world: their requests, and the checks of the replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    CellMessage,
    Failed,
    Get,
    GetAck,
    Hangup,
    List,
    ListAck,
    Mode,
    Msg,
    Nack,
    NackReason,
    Probe,
    Put,
    PutAck,
    Reply,
    TouchAck,
)
from tests.sim.loop import Clock
from tests.sim.queue_facts import Fact
from tests.sim.recording_store import Broken, RecordingStore

EXPECTED = {
    Code.OUTCOME_UNKNOWN,
    Code.STORAGE_FAILED,
    Code.QUARANTINED,
    Code.NOT_FOUND,
    Code.BUFFER_FULL,
    Code.KEY_REUSED,
}


@dataclass(eq=False)
class Attempt:
    """A PUT, tried until its outcome is known. `until`: how long its key is remembered for sure.

    `identity`: that of all connections that try it.
    """

    put: Put
    identity: bytes | None = None
    id: int = 0
    until: float = 0.0


@dataclass
class ClientModel:
    """A model of one channel: what all its clients know together, over all restarts."""

    name: bytes
    mode: Mode
    attempts: dict[int, Attempt] = field(default_factory=dict)
    unknown: dict[int, Attempt] = field(default_factory=dict)
    """Those to be tried again, by key."""
    acked: set[int] = field(default_factory=set)
    """The messages that some consumer acked: they may be removed."""
    said: set[tuple[bytes, int]] = field(default_factory=set)
    """The acks of consumers with an identity."""
    ids: list[int] = field(default_factory=list)
    """Everything anybody saw, in the order of seeing."""

    def unknown_to(self, identity: bytes | None) -> list[Attempt]:
        """The requests that connections of this identity are to send again."""
        return [attempt for attempt in self.unknown.values() if attempt.identity == identity]

    def forget_promises(self) -> None:
        """The power failed, and nothing was promised for that."""
        for attempt in self.attempts.values():
            attempt.until = 0.0


class Client:
    """A connection, and the `Port` it is to its channel. It lives as long as one boot."""

    writable = True
    identity: bytes | None = None

    def __init__(
        self, model: ClientModel, ledger: RecordingStore, number: int, clock: Clock, rng: Random
    ) -> None:
        self.model = model
        self.number = number
        self.received_at = clock.now
        self._ledger = ledger
        self._clock = clock
        self._rng = rng
        self._sent: list[Reply] = []
        self._is_gone = False
        self.in_flight: list[CellMessage] = []
        """Requests without a reply yet."""
        self.held: list[int] = []
        """The pushed messages that are neither acked nor given back."""
        self.on_failed: Callable[[Failed], None] = lambda reply: None

    # The port.

    def send(self, replies: Sequence[Reply]) -> None:
        self._sent += replies

    def flush(self) -> None:
        sent, self._sent = self._sent, []
        for reply in () if self._is_gone else sent:
            self._take(reply)

    # Requests.

    def puts(self, attempts: list[Attempt]) -> list[CellMessage]:
        puts: list[CellMessage] = []
        for attempt in attempts:
            self.model.unknown.pop(attempt.put.key, None)
            self.model.attempts[attempt.put.key] = attempt
            puts.append(attempt.put)
        self.in_flight += puts
        return puts

    def reads(self) -> list[CellMessage]:
        """LIST, and GET of something seen before."""
        requests: list[CellMessage] = [List(0, 0, 0)]
        if self.model.ids:
            requests.append(Get(self._rng.choice(self.model.ids)))
        self.in_flight += requests
        return requests

    def settle(self) -> list[CellMessage]:
        """Ack some of what is held, and give some back."""
        said: list[CellMessage] = []
        for message_id in self.held[: self._rng.randint(1, 8)]:
            self.held.remove(message_id)
            if self._rng.random() < 0.8:
                said.append(self.ack(message_id))
            elif self.model.mode is Mode.QUEUE and self._rng.random() < 0.3:
                said.append(Nack(message_id, NackReason.REJECT))
            else:
                said.append(Nack(message_id, NackReason.LATER, self._rng.randint(0, 2000)))
        if self.identity is not None and self._rng.random() < 0.3:
            said += self._acks_of_its_own()
        return said

    def _acks_of_its_own(self) -> list[CellMessage]:
        """PS-10: they change nothing."""
        facts = self._ledger.queue(self.model.name).facts.values()
        return [Ack(fact.row.id) for fact in facts if fact.identity == self.identity][-3:]

    def ack(self, message_id: int) -> Ack:
        """It is done with a message."""
        self.model.acked.add(message_id)
        if self.identity is not None:
            self.model.said.add((self.identity, message_id))
        return Ack(message_id)

    def hang_up(self) -> None:
        """The connection breaks: what was not answered may have happened or not."""
        self._is_gone = True
        for request in self.in_flight:
            self._doubt(request)
        self.in_flight.clear()

    def _doubt(self, request: CellMessage) -> None:
        if isinstance(request, Put):
            attempt = self.model.attempts[request.key]
            if not attempt.id:
                self.model.unknown[request.key] = attempt

    # Replies.

    def _take(self, reply: Reply) -> None:
        match reply:
            case PutAck():
                self._answered(lambda it: isinstance(it, Put) and it.key == reply.key)
                self._kept(reply)
            case Msg():
                fact = self._see(reply.id, reply.data)
                if fact.identity is not None and fact.identity == self.identity:
                    raise Broken(f"message {reply.id} is pushed to who put it")
                self.held.append(reply.id)
            case GetAck():
                self._answered(lambda it: isinstance(it, Get) and it.id == reply.id)
                self._see(reply.id, reply.data)
            case ListAck():
                self._answered(lambda it: isinstance(it, List))
                for message_id in reply.ids:
                    self._see(message_id, None)
            case Failed():
                if reply.code not in EXPECTED:
                    raise Broken(f"a client is told {reply}")
                self.on_failed(reply)
                if not isinstance(reply.request, Ack | Nack | Attach):
                    self._answered(lambda it: it == reply.request)
                    self._doubt(reply.request)
            case Attached() | TouchAck() | Probe() | Hangup():
                pass
            case _:
                assert_never(reply)

    def _answered(self, is_it: Callable[[CellMessage], bool]) -> None:
        """Replies come in the order of the requests."""
        if not self.in_flight or not is_it(self.in_flight[0]):
            raise Broken(f"this does not answer {self.in_flight[:1]}")
        del self.in_flight[0]

    def _kept(self, ack: PutAck) -> None:
        attempt = self.model.attempts[ack.key]
        if attempt.id and attempt.id != ack.id and self._clock.now < attempt.until:
            raise Broken(f"key {ack.key} has the ids {attempt.id} and {ack.id}")
        fact = self._ledger.show(self.model.name, ack.id, is_there=False)
        is_same = fact.row.data == attempt.put.data and fact.row.key & 0xFFFFFFFF == ack.key
        if not is_same or fact.identity != attempt.identity:
            raise Broken(f"key {ack.key} is acknowledged for {fact.row}")
        attempt.id, attempt.until = ack.id, fact.row.until
        self.model.ids.append(ack.id)

    def _see(self, message_id: int, data: bytes | None) -> Fact:
        fact = self._ledger.show(self.model.name, message_id)
        if data is not None and fact.row.data != data:
            raise Broken(f"message {message_id} is shown with other data")
        attempt = self.model.attempts.get(fact.row.key & 0xFFFFFFFF)
        if fact.row.origin is None and (attempt is None or attempt.put.data != fact.row.data):
            raise Broken(f"message {message_id} of {self.model.name!r} was never put")
        self.model.ids.append(message_id)
        return fact
