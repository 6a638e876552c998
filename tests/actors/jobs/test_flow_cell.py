"""The cell of flows alone: late and repeated words of channels, and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millpond.actors.errors import Code
from millpond.actors.jobs import flows
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.flows import Flows
from millpond.actors.messages import (
    Batch,
    CancelFlowJob,
    CellMessage,
    Failed,
    FlowJob,
    FlowJobFailed,
    FlowJobRequeued,
    FlowJobStored,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from tests.actors.recording_port import RecordingPort

MAIL = b"jobs/mail"


class Cell:
    """The cell with its stored metadata; channels are what the test says they are."""

    def __init__(self, stored: dict[bytes, bytes] | None = None, now: float = 1000.0) -> None:
        self.stored: dict[bytes, bytes] = {} if stored is None else dict(stored)
        self.now = now
        self.cell = Flows(LogSnapshot(metadata=dict(self.stored)), _encode)
        self.port = RecordingPort(1, now)
        self.numbers = 0

    def restarted(self) -> Cell:
        return Cell(self.stored, self.now + 1)

    def told(self, message: CellMessage, port: RecordingPort | None = None) -> Effects:
        return self._stored(self.cell.handle(Batch(port, [message]), self.now))

    def asked(self, request: Any) -> Any:
        effects = self.told(m.FlowRequest(request.number, MAIL, request), self.port)
        (reply,) = effects.batch_replies
        return reply

    def woken(self, seconds: float = 0.0) -> Effects:
        self.now += seconds
        return self._stored(self.cell.wake(self.now))

    def _stored(self, effects: Effects) -> Effects:
        for change in effects.changes:
            assert isinstance(change, MetadataSet)
            if change.value is None:
                self.stored.pop(change.name, None)
            else:
                self.stored[change.name] = change.value
        return effects

    def put(self, *after: Sequence[int], keep: int = 60) -> int:
        self.numbers += 1
        steps = tuple(
            m.FlowStep(MAIL, b"job", tuple(each), m.OnFailure.FAIL, False, 60) for each in after
        )
        done = self.asked(m.PutFlow(1, self.numbers, keep, steps))
        assert isinstance(done, m.FlowDone), done
        return done.flow

    def end(self, flow: int, step: int, job: int, data: bytes = b"result") -> Effects:
        return self.told(m.EndStep(0, MAIL, flow, step, job, data, 0))

    def show(self, flow: int) -> m.FlowFound:
        found = self.asked(m.GetFlow(1, flow, 2**20))
        assert isinstance(found, m.FlowFound)
        return found

    def states(self, flow: int) -> list[str]:
        return [step.state for step in self.show(flow).steps]


def _encode(data: bytes, found: Sequence[tuple[bytes, str]], feeds: bool, now_ms: int) -> bytes:
    return data


def sent(effects: Effects) -> list[tuple[int, int]]:
    return [(job.flow, job.step) for _, job in effects.posts if isinstance(job, FlowJob)]


def failed_once(cell: Cell) -> int:
    """A flow of two steps, the job 7 of whose first one failed."""
    flow = cell.put((), (0,))
    cell.told(FlowJobStored(flow, 0, 7))
    cell.told(FlowJobFailed(MAIL, flow, 0, 7, "dead"))
    assert cell.states(flow) == ["failed", "skipped"]
    return flow


def test_a_flow_whose_job_may_be_in_its_queue_still_is_not_retried() -> None:
    """The queue's answer to the cancellation would be taken for one about the next job."""
    cell = Cell()
    flow = cell.put((), (0,))
    cell.asked(m.CancelFlow(2, flow))
    refused = cell.asked(m.RetryFlow(3, flow))
    assert isinstance(refused, Failed) and refused.code is Code.SLOW_DOWN
    posts = [post for _, post in cell.woken(flows.CHECK_S).posts]
    assert posts == [CancelFlowJob(flows.FLOWS, flow, 0)], "nor is its job sent again"
    cell.told(FlowJobFailed(MAIL, flow, 0, 0, "cancelled"))
    assert cell.states(flow) == ["failed", "skipped"]
    assert cell.asked(m.RetryFlow(4, flow)).state is m.FlowState.RUNNING
    assert cell.states(flow) == ["pending", "waiting"]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_failure_that_is_told_twice_does_not_fail_the_next_job_of_its_step(
    is_stored: bool, restarts: bool
) -> None:
    cell = Cell()
    flow = failed_once(cell)
    assert cell.asked(m.RetryFlow(1, flow)).state is m.FlowState.RUNNING
    cell = cell.restarted() if restarts else cell
    if is_stored:
        cell.told(FlowJobStored(flow, 0, 8))
    cell.told(FlowJobFailed(MAIL, flow, 0, 7, "dead"))
    cell.told(FlowJobStored(flow, 0, 8))
    assert cell.states(flow) == ["queued", "waiting"]
    assert sent(cell.end(flow, 0, 8)) == [(flow, 1)]


def test_a_job_on_its_way_out_is_not_taken_for_the_next_one() -> None:
    cell = Cell()
    flow = failed_once(cell)
    cell.asked(m.RetryFlow(1, flow))
    cell.told(FlowJobStored(flow, 0, 7))
    assert cell.states(flow) == ["pending", "waiting"]
    assert sent(cell.woken(flows.RETRY_S)) == [(flow, 0)]
    cell.told(FlowJobStored(flow, 0, 8))
    assert cell.states(flow) == ["queued", "waiting"]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_dead_letter_that_runs_again_ends_its_step(is_told: bool) -> None:
    """Also where a crash lost the word that it was put back."""
    cell = Cell()
    flow = failed_once(cell)
    if is_told:
        cell.told(FlowJobRequeued(flow, 0, 9))
        assert cell.states(flow) == ["queued", "waiting"]
        assert cell.show(flow).state is m.FlowState.RUNNING
    assert sent(cell.end(flow, 0, 9)) == [(flow, 1)]
    cell.told(FlowJobStored(flow, 1, 10))
    cell.end(flow, 1, 10)
    assert cell.show(flow).state is m.FlowState.DONE
    assert cell.restarted().show(flow).state is m.FlowState.DONE


def test_a_dead_letter_of_a_cancelled_flow_stays_outside() -> None:
    cell = Cell()
    flow = cell.put((), ())
    for step in (0, 1):
        cell.told(FlowJobStored(flow, step, 7 + step))
    cell.told(FlowJobFailed(MAIL, flow, 0, 7, "dead"))
    cell.asked(m.CancelFlow(1, flow))
    cell.told(FlowJobFailed(MAIL, flow, 1, 8, "cancelled"))
    cell.told(FlowJobRequeued(flow, 0, 9))
    cell.end(flow, 0, 9)
    assert cell.show(flow).state is m.FlowState.CANCELLED


def test_a_late_result_of_a_flow_that_is_forgotten_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell()
    flow = failed_once(cell)
    monkeypatch.setattr(flows, "FLOWS_MAX", 1)
    other = cell.put(())
    cell.end(flow, 0, 9)
    assert isinstance(cell.asked(m.GetFlow(1, flow, 1000)), Failed)
    assert {int.from_bytes(key.split(b"\0", 1)[1][:8]) for key in cell.stored} == {other}


def test_results_have_a_limit_and_their_steps_fail_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flows, "RESULTS_MAX", 100)
    cell = Cell()
    flow = cell.put((), (), (0, 1))
    for step in (0, 1):
        cell.told(FlowJobStored(flow, step, 7 + step))
    cell.end(flow, 0, 7, bytes(60))
    cell.end(flow, 1, 8, bytes(60))
    found = cell.show(flow)
    assert [step.state for step in found.steps] == ["done", "failed", "skipped"]
    assert found.steps[1].reason == flows.NO_ROOM


def test_a_result_goes_once_all_that_wait_for_it_are_done() -> None:
    cell = Cell()
    flow = cell.put((), (0,), (0,))
    cell.end(flow, 0, 7, bytes(5000))
    cell.end(flow, 1, 8, b"one")
    assert cell.cell.counts[2] > 5000
    cell.end(flow, 2, 9, b"two")
    assert cell.cell.counts == (0, 1, 9 + len(b"onetwo"))
    assert [step.data for step in cell.show(flow).steps] == [None, b"one", b"two"]
    assert max(map(len, cell.stored.values())) < 1000


def test_a_cancelled_flow_whose_channel_does_not_answer_is_asked_again_now_and_then() -> None:
    """And not at once, again and again."""
    cell = Cell()
    flow = cell.put(())
    cell.asked(m.CancelFlow(1, flow))
    cell.woken()
    wakes = asked = 0
    end = cell.now + 10 * flows.CHECK_S
    while cell.cell.deadline <= end:
        cell.now = max(cell.now, cell.cell.deadline)
        woken = cell.woken()
        assert sent(woken) == [], "no job of a cancelled flow is put"
        asked += sum(isinstance(each, CancelFlowJob) for _, each in woken.posts)
        wakes += 1
        assert wakes < 100
    assert asked in (10, 11)


def test_pending_jobs_are_sent_again_after_a_restart_and_flows_go_in_their_time() -> None:
    cell = Cell()
    flow, ended = cell.put((), (0,)), cell.put((), keep=60)
    cell.told(FlowJobStored(ended, 0, 7))
    cell.end(ended, 0, 7)
    again = cell.restarted()
    assert sent(again.woken()) == [(flow, 0)]
    assert sent(again.woken(flows.RETRY_S - 1)) == []
    again.told(FlowJobStored(flow, 0, 0, Code.BUFFER_FULL))
    assert sent(again.woken(1)) == [(flow, 0)]
    again.woken(60)
    assert again.cell.counts[:2] == (1, 0)
    assert isinstance(again.asked(m.GetFlow(1, ended, 1000)), Failed)


def test_a_flow_that_is_retried_is_forgotten_after_its_last_end() -> None:
    cell = Cell()
    flow = failed_once(cell)
    cell.now += 50
    cell.asked(m.RetryFlow(1, flow))
    cell.told(FlowJobStored(flow, 0, 8))
    cell.told(FlowJobFailed(MAIL, flow, 0, 8, "dead"))
    cell.woken(20)
    assert cell.states(flow) == ["failed", "skipped"]
    cell.woken(41)
    assert not cell.stored
    assert cell.cell.deadline > 1e9
