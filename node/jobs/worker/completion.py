"""The completion of an attempt: tells the node, the producer that waits, and the history."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from math import isnan
from random import Random
from typing import Any, assert_never

import anyio
import msgspec

from millpond.actors.errors import LeaseLost, NotFound, OutcomeUnknown, RequestError
from millpond.node.client.channel import acknowledge_now
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.errors import LeaseExpired
from millpond.node.jobs.history import History
from millpond.node.jobs.job import NOTHING
from millpond.node.jobs.payload import UNREADABLE, Kind
from millpond.node.jobs.records import RECORD_BYTES_MAX, encode_record
from millpond.node.jobs.requests import Operation, ask
from millpond.node.jobs.results import ResultMailboxes
from millpond.node.jobs.worker.leases import REPLY_S, Leases
from millpond.node.jobs.worker.outcome import (
    AttemptResult,
    Done,
    Failed,
    Outcome,
    OutcomeName,
    Rejected,
    Stopped,
    error_text,
    utf8_text,
)
from millpond.node.jobs.worker.progress import ProgressReports
from millpond.node.jobs.worker.subscription import LeasedJob
from millpond.node.jobs.worker.tracebacks import traceback_text, trimmed

REASON_CHARS_MAX = 200
ERROR_CHARS_MAX = 10_000
"""An error's text is cut to this for the producer: it has to fit a packet."""
DELAY_S_MAX = 3600.0
DELAY_S = 1.0
"""The delay where a backoff gives no number."""

Completed = tuple[OutcomeName, str, BaseException | None]

log = logging.getLogger("millpond.node.jobs")


class JobCompletion:
    """The completion of all attempts of a worker. `ended` is called with each result, last of all.

    `log_done`: the history gets successes as well.
    """

    def __init__(
        self,
        leases: Leases,
        mailboxes: ResultMailboxes,
        progress: ProgressReports,
        history: History | None,
        rng: Random,
        now: Callable[[], float],
        ended: Callable[[AttemptResult], None],
        log_done: bool = False,
    ) -> None:
        self._leases = leases
        self._mailboxes = mailboxes
        self._progress = progress
        self._history = history
        self._rng = rng
        self._now = now
        self._ended = ended
        self._log_done = log_done

    def acknowledge(self, leased: LeasedJob, began_at: float) -> bool:
        """Acknowledge a job that is done, which waits for nothing. False, and nothing is done: its
        result is for others, its lease may be over, or the connection is."""
        if leased.content.reply_to is not None or leased.has_result:
            return False
        message = leased.message
        now = self._now()
        if leased.is_lost or now >= leased.until or not message.leased:
            return False
        acknowledge_now(message)
        self._record(leased, "done", "", now - began_at, None)
        return True

    async def complete(self, leased: LeasedJob, outcome: Outcome, began_at: float) -> None:
        """Tell the outcome of an attempt. A job whose lease is over is left alone.

        Each step has a deadline, also where the node cannot be reached. A worker that gave the job
        up waits 2 s at most for all of them.
        """
        try:
            what, error, cause = await self._complete_in_time(leased, outcome)
        except (ConnectionLost, ChannelClosed) as exc:
            what, error, cause = "lost", f"the connection is lost: {exc}", None
        self._record(leased, what, error, self._now() - began_at, cause)

    async def fail(self, leased: LeasedJob, error: Exception, began_at: float) -> None:
        """An unforeseen error fails this job, and no other."""
        log.error(
            "job %d of %s could not be completed", leased.message.id, leased.subscription.queue
        )
        self._leases.drop(leased)
        with suppress(ConnectionLost, ChannelClosed):
            await leased.message.nack()
        self._record(leased, "failed", error_text(error), self._now() - began_at, error)

    async def give_back(self, leased: LeasedJob) -> None:
        """As `Leases.give_back`. Without a connection, its loss returns the job."""
        await self._leases.give_back(leased)

    def report(self, leased: LeasedJob, value: Any) -> None:
        """Send progress to the producer that waits, and to the node."""
        if leased.report is not None:
            self._progress.changed(leased)
        if leased.content.reply_to is not None and value is not NOTHING:
            self._mailboxes.send_progress(leased.subscription.queue, leased.content.reply_to, value)

    async def _complete_in_time(self, leased: LeasedJob, outcome: Outcome) -> Completed:
        with leased.completion_scope():
            return await self._complete(leased, outcome)
        return await self._complete_at_once(leased, outcome)

    async def _complete(self, leased: LeasedJob, outcome: Outcome) -> Completed:
        match outcome:
            case Stopped() if leased.is_lost:
                return *await self._why_lost(leased), None
            case Stopped():
                await self.give_back(leased)
                return "returned", "the worker ended", None
            case Done(value=value):
                if not await self._is_leased(leased):
                    return *await self._why_lost(leased), LeaseExpired("done after its lease")
                await self._send_result(leased, "result", value)
                if leased.has_result:
                    return await self._finish(leased, value)
                return await self._acknowledge(leased)
            case Failed(error=error, delay_s=delay_s):
                return await self._failed(leased, error, delay_s)
            case Rejected(reason=reason, error=text, cause=cause):
                return await self._rejected(leased, reason, text, cause)
            case _:
                assert_never(outcome)

    async def _complete_at_once(self, leased: LeasedJob, outcome: Outcome) -> Completed:
        """Out of time for the producer and for requests: send what needs no reply."""
        if not leased.is_lost and self._now() < leased.until:
            match outcome:
                case Done():
                    return await self._acknowledge(leased)
                case Rejected(reason=reason, error=text, cause=cause):
                    await leased.message.nack(reject=True)
                    return "rejected", _reason_text(reason, text), cause
                case _:
                    pass
        return "lost", "the worker ended before the node was told", None

    async def _finish(self, leased: LeasedJob, value: Any) -> Completed:
        """End the job by a request that has its result. A result that cannot be stored is a
        failure: in a flow of the job, else it is stored in the place of the result."""
        record = self._progress.record_of(leased)
        try:
            data = encode_record(msgspec.structs.replace(record, kind="result", value=value))
            if len(data) > RECORD_BYTES_MAX:
                raise ValueError(f"it has {len(data)} bytes, and {RECORD_BYTES_MAX} are kept")
        except UNREADABLE as exc:
            text = utf8_text(str(exc))[:ERROR_CHARS_MAX]
            if leased.content.results is not None:
                return await self._rejected(leased, "result", text, None)
            failure = {"reason": "result", "error": text}
            data = encode_record(msgspec.structs.replace(record, kind="failed", value=failure))
        fields = {"id": leased.message.id, "data": data, "keep": leased.keep_s}
        try:
            with anyio.fail_after(REPLY_S):
                await ask(leased.subscription.channel, Operation.FINISH, **fields)
        except (LeaseLost, OutcomeUnknown):
            return *await self._why_lost(leased), LeaseExpired("done after its lease")
        except (RequestError, TimeoutError) as exc:
            return await self._failed(leased, exc, DELAY_S)
        self._leases.drop(leased)
        return "done", "", None

    async def _acknowledge(self, leased: LeasedJob) -> Completed:
        # Lost while the result was sent, or with the connection, whose end is not handled yet.
        if leased.is_lost or not leased.message.leased:
            return *await self._why_lost(leased), LeaseExpired("done after its lease")
        await leased.message.ack()
        return "done", "", None

    async def _failed(
        self, leased: LeasedJob, error: BaseException, delay_s: float | None
    ) -> Completed:
        attempt = leased.message.attempt
        if attempt >= leased.attempts_max:
            return await self._rejected(leased, "attempts", error_text(error), error)
        if leased.is_lost:
            return *await self._why_lost(leased), error
        if delay_s is None:
            delay_s = leased.task.backoff.delay_s(attempt, self._rng)
        await leased.message.nack(_delay_s(delay_s))
        return "failed", error_text(error), error

    async def _rejected(
        self, leased: LeasedJob, reason: str, text: str, cause: BaseException | None
    ) -> Completed:
        if not await self._is_leased(leased):
            return *await self._why_lost(leased), cause
        reason = utf8_text(reason)[:REASON_CHARS_MAX]
        full_reason = _reason_text(reason, text)
        await self._send_result(
            leased, "failed", {"reason": reason, "error": text[:ERROR_CHARS_MAX]}
        )
        if leased.is_lost or not await self._dead_letter(leased, full_reason):
            return *await self._why_lost(leased), cause
        return "rejected", full_reason, cause

    async def _dead_letter(self, leased: LeasedJob, full_reason: str) -> bool:
        """False: the lease was over."""
        reason = full_reason[:REASON_CHARS_MAX]
        try:
            with anyio.fail_after(REPLY_S):
                await ask(
                    leased.subscription.channel,
                    Operation.REJECT,
                    id=leased.message.id,
                    reason=reason,
                )
        except LeaseLost:
            return False
        except (RequestError, TimeoutError):
            if leased.is_lost:
                return False
            await leased.message.nack(reject=True)
        return True

    async def _is_leased(self, leased: LeasedJob) -> bool:
        """Whether the lease is surely not over. Where that is not known, the node is asked."""
        if not leased.is_lost and self._now() >= leased.until:
            with anyio.move_on_after(REPLY_S):
                await self._leases.renew(leased)
        return not leased.is_lost and self._now() < leased.until

    async def _send_result(self, leased: LeasedJob, kind: Kind, value: Any) -> None:
        waiter = leased.content.reply_to
        if waiter is not None:
            failure = await self._mailboxes.send(leased.subscription.queue, waiter, kind, value)
            if failure is not None:
                text = "job %d: its result could not be sent to the producer: %s"
                log.warning(text, leased.message.id, failure)

    async def _why_lost(self, leased: LeasedJob) -> tuple[OutcomeName, str]:
        """Whether the job is gone, or only its lease is lost."""
        self._leases.drop(leased)
        channel = leased.subscription.channel
        if channel.connected and leased.was_refused:
            try:
                with anyio.fail_after(REPLY_S):
                    await ask(channel, Operation.SHOW, id=leased.message.id)
            except NotFound:
                return "cancelled", "the job is gone: cancelled, or its time was over"
            except (RequestError, ConnectionLost, ChannelClosed, TimeoutError):
                pass
        return "lost", "the lease was over first"

    def _record(
        self,
        leased: LeasedJob,
        what: OutcomeName,
        error: str,
        seconds: float,
        cause: BaseException | None,
    ) -> None:
        message, queue = leased.message, leased.subscription.queue
        shown = None
        if cause is not None and what in ("failed", "rejected"):
            shown = trimmed(cause)
        if self._history is not None and (what != "done" or self._log_done):
            trace = "" if shown is None else traceback_text(shown)
            self._history.add(queue, message.id, message.attempt, what, error, trace)
        if what in ("failed", "rejected", "lost"):
            place = (message.id, queue, message.attempt, what, error)
            log.warning("job %d of %s, attempt %d: %s (%s)", *place, exc_info=shown)
        name, attempt = leased.task.name, message.attempt
        try:
            self._ended(
                AttemptResult(message.id, queue, name, attempt, what, error, seconds, cause)
            )
        except Exception:  # the border to code that is not ours: `on_end`
            log.exception("on_end failed for job %d of %s", message.id, queue)


def _reason_text(reason: str, text: str) -> str:
    return f"{reason}: {text}" if text else reason


def _delay_s(delay_s: float) -> float:
    """Seconds that a nack can carry, whatever a backoff or an error gives."""
    try:
        seconds = float(delay_s)
    except (TypeError, ValueError, OverflowError):
        return DELAY_S
    return DELAY_S if isnan(seconds) else min(max(seconds, 0.0), DELAY_S_MAX)
