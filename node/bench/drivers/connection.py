"""A benchmark's connection to streams: requests out, answers in batches, and one at a time."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from millpond.node.bench.drivers.interface import Answer, Created, Driver, Refused
from millpond.node.bench.verify import Fault, Faults
from millpond.node.client.errors import ConnectionLost
from millpond.transports.io.interface import Wire

TakeAnswers = Callable[[list[Answer]], None]


def ignore(batch: list[Answer]) -> None:
    """For a connection from which nothing is wanted."""


class DriverConnection:
    """One connection of the load, as a session on any wire.

    What goes wrong is counted in `faults`; `on_end` is called if the server ends the connection.
    """

    def __init__(self, speech: Driver, faults: Faults, on_end: Callable[[], None]) -> None:
        self.take: TakeAnswers = ignore
        self.speech = speech
        self.gone = anyio.Event()
        self._faults = faults
        self._on_end = on_end
        self._wire: Wire | None = None
        self._is_leaving = False
        self._answers: list[Answer] = []
        self._answered = anyio.Event()

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.send(self.speech.due())

    def received(self, data: bytes) -> None:
        batch = self.speech.feed(data)
        if batch:
            self.take(batch)
        self.send(self.speech.due())
        if self.speech.error:
            self._fail(self.speech.error)
            self.leave()

    def uncongested(self) -> None:
        """What may wait to be sent is bounded by the pipeline."""

    def eof(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def ended(self) -> None:
        if not self._is_leaving:
            self._fail("the server ended the connection")
        self._wire = None
        self.gone.set()

    # What the load calls.

    def send(self, data: bytes) -> None:
        """Write; nothing to nobody once the connection is gone."""
        if data and self._wire is not None:
            self._wire.write(data)

    async def ask(self, request: bytes) -> Answer:
        """Send one request, while no other is under way, and wait for its answer.

        A refusal is a fault, too. Raises ConnectionLost.
        """
        self._answers, self._answered, self.take = [], anyio.Event(), self._take_one
        self.send(request)
        if self._wire is not None:
            await self._answered.wait()
        if not self._answers:
            raise ConnectionLost("the server ended the connection")
        answer = self._answers[0]
        if isinstance(answer, Refused):
            self._faults.note(Fault.REFUSED, answer.text)
        return answer

    async def make(self, name: str) -> None:
        """Make a stream. Raises ConnectionLost."""
        answer = await self.ask(self.speech.create(name))
        if not isinstance(answer, Created | Refused):  # a refusal is counted already
            self._faults.note(Fault.UNEXPECTED, f"{answer} where a stream was to be made")

    def leave(self) -> None:
        """Close."""
        self._is_leaving = True
        if self._wire is not None:
            self._wire.close()

    def _take_one(self, batch: list[Answer]) -> None:
        self._answers += batch
        if len(self._answers) > 1:
            self._faults.note(Fault.UNEXPECTED, "more answers came than requests were sent")
        self._answered.set()

    def _fail(self, text: str) -> None:
        self._faults.note(Fault.DISCONNECTED, text)
        self._answered.set()
        self._on_end()
