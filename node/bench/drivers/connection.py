"""The connection of a load to streams, over the driver of any protocol."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from millpond.node.bench.drivers.interface import Answer, Created, Driver, Refused
from millpond.node.bench.verify import Fault, Faults
from millpond.node.client.errors import ConnectionLost
from millpond.transports.io.interface import Wire

OnAnswers = Callable[[list[Answer]], None]


def ignore(batch: list[Answer]) -> None:
    """Drop answers that nobody waits for."""


class DriverConnection:
    """One connection of a load, as a session on any wire. `on_answers` takes its answers.

    Mistakes are counted in `faults`; `on_end` is called if the server ends the connection.
    """

    def __init__(self, driver: Driver, faults: Faults, on_end: Callable[[], None]) -> None:
        self.on_answers: OnAnswers = ignore
        self.driver = driver
        self.closed = anyio.Event()
        self._faults = faults
        self._on_end = on_end
        self._wire: Wire | None = None
        self._is_leaving = False
        self._answers: list[Answer] = []
        self._answered = anyio.Event()

    # Session: called by the wire.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.send(self.driver.due())

    def received(self, data: bytes) -> None:
        batch = self.driver.feed(data)
        if batch:
            self.on_answers(batch)
        self.send(self.driver.due())
        if self.driver.error:
            self._fail(self.driver.error)
            self.leave()

    def uncongested(self) -> None:
        """The pipeline bounds the bytes that wait."""

    def eof(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def ended(self) -> None:
        if not self._is_leaving:
            self._fail("the server ended the connection")
        self._wire = None
        self.closed.set()

    # Called by the load.

    def send(self, data: bytes) -> None:
        """Write; nothing once the connection is closed."""
        if data and self._wire is not None:
            self._wire.write(data)

    async def request(self, request: bytes) -> Answer:
        """Send one request while no other is under way, and wait for its answer.

        A refusal is also counted as a fault. Raises ConnectionLost.
        """
        self._answers, self._answered, self.on_answers = [], anyio.Event(), self._take_one
        self.send(request)
        if self._wire is not None:
            await self._answered.wait()
        if not self._answers:
            raise ConnectionLost("the server ended the connection")
        answer = self._answers[0]
        if isinstance(answer, Refused):
            self._faults.note(Fault.REFUSED, answer.text)
        return answer

    async def create(self, name: str) -> None:
        """Create a stream. Raises ConnectionLost."""
        answer = await self.request(self.driver.create(name))
        if not isinstance(answer, Created | Refused):  # a refusal is counted already
            self._faults.note(Fault.UNEXPECTED, f"{answer} in place of a new stream")

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
