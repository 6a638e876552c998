"""A question to many streams at once whose answers are one answer to the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed, Port, Reply, StreamFailed
from millpond.actors.streams.messages import Describe, StreamDescription
from millpond.actors.streams.names import stream_cell

Submit = Callable[[bytes, Batch, float], bool]
Answers = dict[int, StreamDescription | Code]
"""What each stream said, by its place among those that were asked."""


class ScatterGather(Port):
    """Asks streams how they are. `finish` is called once, when all have answered."""

    __slots__ = ("_answers", "_asked", "_finish", "_is_done", "number", "received_at")

    def __init__(
        self, number: int, names: Sequence[bytes], finish: Callable[[Answers], None]
    ) -> None:
        self.number = number
        self.received_at = 0.0
        self._asked = names
        self._answers: Answers = {}
        self._finish = finish
        self._is_done = False

    def ask(self, submit: Submit, now: float) -> None:
        """Ask the streams; their answers are known by their places in `names`."""
        self.received_at = now
        for place, name in enumerate(self._asked):
            submit(stream_cell(name), Batch(self, [Describe(place)]), now)

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            match reply:
                case StreamDescription(number=place):
                    self._answers[place] = reply
                case StreamFailed(number=place, code=code):
                    self._answers[place] = code
                case Failed(request=Describe(number=place), code=code):
                    self._answers[place] = code
                case _:
                    raise AssertionError("nobody asked for this")

    def flush(self) -> None:
        if not self._is_done and len(self._answers) == len(self._asked):
            self._is_done = True
            self._finish(self._answers)
