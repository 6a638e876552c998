"""Mistakes in flows, results and schedules; found by the seeds of such worlds (flow_plans.py)."""

from __future__ import annotations

from tests.sim.nodes.mutants import Mutant

FLOWS, SCHEDULES = "actors/jobs/flows.py", "actors/jobs/schedules.py"

FLOW_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "pending job not sent again",
        "flows",
        FLOWS,
        "        self._retry_at[flow.number, at] = now + RETRY_S\n",
        "",
    ),
    Mutant(
        "step does not wait",
        "flows",
        FLOWS,
        "case _:\n                    state = StepState.WAITING\n        return state",
        "case _:\n                    pass\n        return state",
    ),
    Mutant(
        "failure ignored",
        "flows",
        FLOWS,
        "                    if policy is m.OnFailure.FAIL:",
        "                    if policy is None:",
    ),
    Mutant(
        "outcome not written",
        "flows",
        FLOWS,
        (
            "            ended = StepStatus(StepState.DONE, message.job, message.data)\n"
            "            if self._bytes + len(message.data) > RESULTS_MAX:\n"
            "                ended = StepStatus(StepState.FAILED, message.job, reason=NO_ROOM)\n"
            "            self._set(flow, message.step, ended, effects)"
        ),
        (
            "            ended = StepStatus(StepState.DONE, message.job, message.data)\n"
            "            flow.statuses[message.step] = ended"
        ),
    ),
    Mutant(
        "result forgotten too early",
        "flows",
        FLOWS,
        "if status.data and all(state is StepState.DONE for state in followers)",
        "if status.data and any(state is StepState.DONE for state in followers)",
    ),
    Mutant(
        "lost job not found out",
        "flows",
        FLOWS,
        "                elif status.state is StepState.QUEUED:\n",
        "                elif status.state is StepState.DONE:\n",
    ),
    Mutant(
        "full queue fails the step",
        "flows",
        FLOWS,
        "        if answer.code in _PASSING or is_former:",
        "        if is_former:",
    ),
    Mutant(
        "cancelled flow goes on",
        "flows",
        FLOWS,
        (
            "            if status.state is StepState.WAITING:\n"
            '                skipped = StepStatus(StepState.SKIPPED, reason="cancelled")\n'
            "                self._set(flow, at, skipped, effects)\n"
            "            elif status.state in _OPEN_JOB:"
        ),
        "            if status.state in _OPEN_JOB:",
    ),
    Mutant(
        "dead letter taken for done",
        "flows",
        "actors/channels/channel.py",
        "        if self.jobs is not None and not is_dead_letter_channel(self.name):\n",
        "        if self.jobs is not None:\n",
    ),
    Mutant(
        "job of a step put twice",
        "flows",
        "actors/channels/channel.py",
        "                attributes.claim(outcome, unique, effects.changes)\n        code = ",
        "                pass\n        code = ",
    ),
    Mutant(
        "result not written",
        "flows",
        "actors/jobs/results.py",
        "        effects.changes.append(MetadataSet(_key(message.job), _encode(record)))\n",
        "",
    ),
    Mutant(
        "result does not expire",
        "flows",
        "actors/jobs/results.py",
        "        if record is not None and record.until <= now:",
        "        if record is not None and record.until <= now - 60:",
    ),
    Mutant(
        "result goes too early",
        "flows",
        "actors/jobs/results.py",
        "        until = now + min(message.keep_s, KEEP_S_MAX)",
        "        until = now + min(message.keep_s, 20)",
    ),
    Mutant(
        "moment not pending before it is put",
        "flows",
        SCHEDULES,
        "            pending_ms=_ms(moment),\n",
        "            pending_ms=0,\n",
    ),
    Mutant(
        "scheduled job not sent again",
        "flows",
        SCHEDULES,
        "        self._retry_at[number] = now + RETRY_S\n",
        "        self._retry_at[number] = inf\n",
    ),
    Mutant(
        "full queue takes the moment",
        "flows",
        SCHEDULES,
        "        if code in _PASSING:\n            return  # sent again",
        "        if code is Code.STORAGE_FAILED:\n            return  # sent again",
    ),
    Mutant(
        "channel forgets the moment",
        "flows",
        "actors/channels/idempotency.py",
        "        return None if last_ms < at_ms else known.id if last_ms == at_ms else 0",
        "        return None if last_ms <= at_ms else 0",
    ),
    Mutant(
        "moments in between are jumped over",
        "flows",
        SCHEDULES,
        "        behind = now if moment is None else moment\n",
        "        behind = now\n",
    ),
    Mutant(
        "deleted schedule goes on",
        "flows",
        SCHEDULES,
        "        effects.changes.append(MetadataSet(_key(number), None))\n",
        "",
    ),
)
