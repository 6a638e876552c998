"""Scatter-gather: one request to many streams, whose replies become one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed, Port, Reply, StreamFailed
from millpond.actors.streams.messages import Describe, StreamDescription
from millpond.actors.streams.names import stream_cell

Submit = Callable[[bytes, Batch, float], bool]
Answers = dict[int, StreamDescription | Code]
"""The reply of each stream, by its index."""


class ScatterGather(Port):
    """Asks streams to describe themselves. `finish` is called once, when all have replied."""

    __slots__ = ("_answers", "_finish", "_is_done", "_names", "number", "received_at")

    def __init__(
        self, number: int, names: Sequence[bytes], finish: Callable[[Answers], None]
    ) -> None:
        self.number = number
        self.received_at = 0.0
        self._names = names
        self._answers: Answers = {}
        self._finish = finish
        self._is_done = False

    def start(self, submit: Submit, now: float) -> None:
        """Send the requests; replies are numbered by the index in `names`."""
        self.received_at = now
        for index, name in enumerate(self._names):
            submit(stream_cell(name), Batch(self, [Describe(index)]), now)

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            match reply:
                case StreamDescription(number=index):
                    self._answers[index] = reply
                case StreamFailed(number=index, code=code):
                    self._answers[index] = code
                case Failed(request=Describe(number=index), code=code):
                    self._answers[index] = code
                case _:
                    raise AssertionError(f"{reply} answers no request")

    def flush(self) -> None:
        if not self._is_done and len(self._answers) == len(self._names):
            self._is_done = True
            self._finish(self._answers)
