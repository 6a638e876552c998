"""Reads that waited when a commit failed are asked again, before what was said later (3g)."""

from __future__ import annotations

import pytest

from millpond.actors.messages import Batch, CellMessage, Detach
from millpond.actors.store.interface import Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import NAME, StreamHarness, read_of, waiting

CELL = stream_cell(NAME)
FOR_EVER_S = 1e9
FULL_BYTES = 2**20
"""Held by a commit, this is all that the mailbox takes: what comes then is mail."""


def fail(slow: StreamHarness) -> None:
    """The commit that is under way fails; the disk is sound from then on."""
    slow.store.finish(Fault.NOT_STORED)
    slow.store.is_slow = slow.store.is_doomed = False
    slow.settle()


def submit(slow: StreamHarness, port: RecordingPort, message: CellMessage, size: int = 0) -> None:
    slow.scheduler.submit(CELL, Batch(port, [message], size), slow.now)


def fail_with_mail(slow: StreamHarness, port: RecordingPort, message: CellMessage) -> None:
    """A commit fails while the mailbox has what a waiting port said."""
    slow.store.is_doomed = True
    writer = slow.port()
    for number in range(2):
        submit(slow, writer, m.Append(number, [b"a"]), FULL_BYTES)
    submit(slow, port, message)
    assert slow.scheduler.cells[CELL].mailbox
    fail(slow)


@pytest.mark.parametrize("message", [Detach(), m.CancelRead(0)])
def test_who_leaves_or_cancels_meanwhile_does_not_wait(
    slow: StreamHarness, message: CellMessage
) -> None:
    port = waiting(slow, wait_s=FOR_EVER_S)
    fail_with_mail(slow, port, message)
    assert slow.describe().info.waiting == 0


def test_s3p_40_who_waits_no_longer_meanwhile_is_answered(slow: StreamHarness) -> None:
    port = waiting(slow, wait_s=FOR_EVER_S)
    fail_with_mail(slow, port, m.FinishRead(0))
    assert len(port.take()) == 1


def test_a_number_that_is_used_again_means_the_later_read(slow: StreamHarness) -> None:
    """The cancel is held by the commit, the new read lies in the mail."""
    port, writer = waiting(slow, wait_s=FOR_EVER_S), slow.port()
    slow.store.is_doomed = True
    submit(slow, writer, m.Append(0, [b"a"]), FULL_BYTES // 2)
    submit(slow, port, m.CancelRead(0))
    submit(slow, writer, m.Append(1, [b"a"]), FULL_BYTES)
    submit(slow, port, read_of(0, number=0, wait_until=slow.now + FOR_EVER_S))
    fail(slow)
    slow.append(b"b")
    assert len(port.take()) == 1


def test_others_wait_on_behind_what_is_in_the_mail(slow: StreamHarness) -> None:
    first, second = waiting(slow), waiting(slow)
    fail_with_mail(slow, second, m.Append(5, [b"z"]))
    assert [len(port.take()) for port in (first, second)] == [1, 2]


def test_what_the_stream_had_to_look_for_waits_on(slow: StreamHarness) -> None:
    """The records that were found wait for the commit, and must not be refused with it."""
    slow.store.is_slow = False
    for _ in range(60):
        slow.append(b"")
        slow.clock.now += 0.002
    slow.append(b"x")
    slow.store.is_slow = slow.store.is_doomed = True
    port, view = slow.port(), m.RecordFilter(empty=False)
    slow.say(port, read_of(0, bytes_max=1, count=1, record_filter=view, wait_until=slow.now + 60))
    assert not port.written
    slow.say(slow.port(), m.Append(0, [b"a"]))
    slow.settle()
    fail(slow)
    (reply,) = port.take()
    assert isinstance(reply, m.Records)


def test_nobody_waits_at_a_cell_that_refuses_everything(slow: StreamHarness) -> None:
    """A commit fails while its cell is quarantined, which lasts 300 s."""
    port = waiting(slow, wait_s=10)
    slow.store.is_doomed = True
    slow.say(slow.port(), m.Append(0, [b"a"]))
    slow.crash_on = {m.Describe}
    while slow.scheduler.cells[CELL].refusal is None:
        slow.say(slow.port(), m.Describe(9))
        slow.advance(0.05)
    slow.crash_on = set()
    fail(slow)
    slow.advance(20)
    assert len(port.take()) == 1
