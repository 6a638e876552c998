"""Batches of several connections for one cell, and errors while they are submitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.actors.messages import Batch
from millpond.actors.streams.messages import Append
from millpond.transports.server.batching import CellBatcher
from tests.actors.recording_port import RecordingPort


class Client(RecordingPort):
    """A connection that may have to wait."""

    def must_wait(self, cell: bytes) -> None:
        raise AssertionError("no mailbox is full here")


def test_a_cell_that_raises_does_not_keep_what_others_were_given() -> None:
    given: list[bytes] = []

    def submit(cell: bytes, batch: Batch, now: float) -> bool:
        if cell.startswith(b"bad"):
            raise RuntimeError(cell)
        given.append(cell)
        return True

    ends: list[Callable[[], None]] = []
    gathering = CellBatcher(submit, float)
    for cell in (b"first", b"bad", b"second", b"bad too"):
        gathering.add(cell, Client(1), [Append(0, [b"x"])], 1, ends.append)
    with pytest.raises(RuntimeError):
        ends.pop()()
    assert sorted(given) == [b"first", b"second"] and not ends
    gathering.add(b"third", Client(1), [Append(1, [b"x"])], 1, ends.append)
    ends.pop()()
    assert given[-1] == b"third"


def test_s3p_46_a_command_never_overtakes_a_batched_one() -> None:
    """Also what a connection asks because of an answer it gets while all is handed over."""
    given: list[bytes] = []

    def submit(cell: bytes, batch: Batch, now: float) -> bool:
        given.append(cell)
        if cell == b"first":
            gathering.submit_now(b"second")
            given.append(b"behind the second")
        return True

    for cells in ((b"first", b"second"), (b"second", b"first")):
        given.clear()
        ends: list[Callable[[], None]] = []
        gathering = CellBatcher(submit, float)
        for cell in cells:
            gathering.add(cell, Client(1), [Append(0, [b"x"])], 1, ends.append)
        ends.pop()()
        assert given.index(b"second") < given.index(b"behind the second"), cells
