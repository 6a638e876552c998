"""Flows for producers: steps, each a job that waits for others (docs/guides/jobs.md, "Flows").

`await queue.put_flow(chain(Step(fetch, url), Step(parse), Step(save)))`
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from millpond.actors.jobs.messages import STEPS_MAX
from millpond.node.jobs.payload import (
    QUEUE_PREFIX,
    Headers,
    JobMessage,
    channel_of,
    encode_job,
)
from millpond.node.jobs.records import FoundRecord, decode_record
from millpond.node.jobs.task import AnyTask, Task

KEEP_S = 86_400

OnFailure = Literal["fail", "ignore", "wait"]
FlowState = Literal["running", "blocked", "done", "failed", "cancelled"]
StepState = Literal["waiting", "pending", "queued", "done", "failed", "skipped"]
_UNSET: Any = object()


class Step:
    """A job of a flow, which is put once the steps `after` have ended.

    `work` is a task, or the name of one (None: the only one of the queue). `queue`: that of the
    task, or by default the one in which the flow is put. Without a `payload` the results of the
    steps before are the payload: the result of one, a list of several. `on_failure` says what
    becomes of the steps that wait for this one when it fails: they are skipped (`fail`), they run
    with the failure among `Job.results` (`ignore`), or they wait until the flow is retried
    (`wait`). Other options as those of `Queue.put`.
    """

    def __init__(
        self,
        work: AnyTask | str | None = None,
        payload: object = _UNSET,
        *,
        queue: str | None = None,
        after: Sequence[Step] = (),
        on_failure: OnFailure = "fail",
        ttl: int = 0,
        attempts: int | None = None,
        headers: Headers | None = None,
        keep: int | None = None,
    ) -> None:
        if on_failure not in ("fail", "ignore", "wait"):
            raise ValueError(f"on_failure is fail, ignore or wait, not {on_failure!r}")
        self.name = work.name if isinstance(work, Task) else work
        self.queue = queue or (work.queue if isinstance(work, Task) else None)
        if isinstance(work, Task):
            if self.queue is not None:
                work.check_queue(self.queue)
            if payload is not _UNSET:
                work.check_payload(payload)
        self.payload = payload
        self.after = list(after)
        self.on_failure = on_failure
        self.ttl = ttl
        self.attempts, self.headers, self.keep_s = attempts, headers, keep

    def __repr__(self) -> str:
        return f"Step({self.name!r}, queue={self.queue!r}, after={len(self.after)})"

    def fields(self, places: dict[int, int], now_ms: int) -> dict[str, object]:
        """The fields of the request. `places` has the steps before it."""
        feeds = self.payload is _UNSET and bool(self.after)
        payload = None if self.payload is _UNSET else self.payload
        body = JobMessage(
            payload, self.name, None, self.attempts, self.headers or {}, now_ms, keep_s=self.keep_s
        )
        fields: dict[str, object] = {
            "data": encode_job(body),
            "after": [places[id(each)] for each in self.after],
            "on_failure": self.on_failure,
            "feeds": feeds,
            "ttl": self.ttl,
        }
        if self.queue is not None:
            fields["channel"] = channel_of(self.queue)
        return fields


def chain(*steps: Step) -> Step:
    """Have each step wait for the one before it, and give the last one."""
    if not steps:
        raise ValueError("a chain has a step at least")
    for before, step in pairwise(steps):
        step.after.append(before)
    return steps[-1]


def join(step: Step, group: Sequence[Step]) -> Step:
    """Have a step wait for all steps of a group, and give it."""
    step.after.extend(group)
    return step


def flow_fields(last: Step | Sequence[Step], now_ms: int) -> list[dict[str, object]]:
    """The fields of the request: of these steps, and all that they wait for.

    Raises ValueError for steps that wait for one another, and for too many.
    """
    ordered: list[Step] = []
    places: dict[int, int] = {}
    opened: set[int] = set()
    stack: list[tuple[Step, bool]] = [(each, False) for each in reversed(_list(last))]
    while stack:
        step, is_left = stack.pop()
        if is_left:
            places[id(step)] = len(ordered)
            ordered.append(step)
        elif id(step) not in places:
            if id(step) in opened:
                raise ValueError(f"{step!r} waits for itself")
            opened.add(id(step))
            stack.append((step, True))
            stack.extend((each, False) for each in reversed(step.after) if id(each) not in places)
    if not 0 < len(ordered) <= STEPS_MAX:
        raise ValueError(f"a flow has 1 to {STEPS_MAX} steps, not {len(ordered)}")
    return [each.fields(places, now_ms) for each in ordered]


def _list(last: Step | Sequence[Step]) -> list[Step]:
    return [last] if isinstance(last, Step) else list(last)


class FlowStepInfo(msgspec.Struct, frozen=True):
    """A step as the node has it. `job` 0: it was not put yet. `after` are places in the flow;
    `reason` tells why it failed or was skipped."""

    queue: str
    state: StepState
    job: int
    reason: str
    after: list[int]


class FlowInfo(msgspec.Struct, frozen=True):
    """A flow as the node has it. Times in ms since 1970; `ended` 0: it has not. `blocked`: what is
    left waits for a step that failed. `last` are the steps that no other one waits for."""

    id: int
    state: FlowState
    created: int
    ended: int
    steps: list[FlowStepInfo]
    last: list[int]


class FlowSummary(msgspec.Struct, frozen=True):
    """A flow of a list: `ended` counts the steps that have."""

    id: int
    state: FlowState
    steps: int
    ended: int
    created: int


def flow_info(answer: dict[str, Any]) -> FlowInfo:
    """The flow of an answer."""
    steps = [
        FlowStepInfo(
            each["channel"].removeprefix(QUEUE_PREFIX).decode("utf-8", "replace"),
            each["state"],
            each.get("job", 0),
            each.get("reason", ""),
            list(each.get("after", ())),
        )
        for each in answer["steps"]
    ]
    times = answer["created"], answer["ended"]
    return FlowInfo(answer["flow"], answer["state"], *times, steps, list(answer["last"]))


def flow_results(answer: dict[str, Any]) -> list[object]:
    """The results of the last steps of a flow that is done."""
    results: list[object] = []
    for at in answer["last"]:
        record = decode_record(answer["steps"][at].get("data") or b"")
        results.append(None if record is None else FoundRecord(None, record, True).result())
    return results


def flow_summary(fields: dict[str, Any]) -> FlowSummary:
    """A flow of a page."""
    return FlowSummary(
        fields["flow"], fields["state"], fields["steps"], fields["ended"], fields["created"]
    )
