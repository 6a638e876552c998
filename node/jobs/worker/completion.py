"""Tells everybody what became of an attempt: the node, who waits for the result, the history."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from math import isnan
from random import Random
from types import TracebackType
from typing import Any, assert_never

import anyio

from millpond.actors.errors import LeaseLost, NotFound, RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.errors import LeaseExpired, Retry
from millpond.node.jobs.history import History
from millpond.node.jobs.requests import Operation, ask
from millpond.node.jobs.results import Kind, ResultMailboxes
from millpond.node.jobs.worker.leased_job import LeasedJob
from millpond.node.jobs.worker.leases import LOOK_S, Leases
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

REASON_CHARS_MAX = 200
ERROR_CHARS_MAX = 10_000
"""More of an error's text is not told to who waits: it has to fit a packet."""
DELAY_S_MAX = 3600.0
DELAY_S = 1.0
"""The rest where a backoff says what is no time."""

Settled = tuple[OutcomeName, str, BaseException | None]

log = logging.getLogger("millpond.node.jobs")


class JobCompletion:
    """`ended` hears of each attempt, after all others. `log_done`: history of successes, too."""

    def __init__(
        self,
        leases: Leases,
        mailboxes: ResultMailboxes,
        history: History | None,
        rng: Random,
        now: Callable[[], float],
        ended: Callable[[AttemptResult], None],
        log_done: bool = False,
    ) -> None:
        self._leases = leases
        self._mailboxes = mailboxes
        self._history = history
        self._rng = rng
        self._now = now
        self._ended = ended
        self._log_done = log_done

    async def settle(self, held: LeasedJob, outcome: Outcome, began_at: float) -> None:
        """Say what became of it. A job whose lease is over is left alone.

        Each step has an end, also where the node cannot be reached; a worker that gave the job up
        waits for all of them together 2 s at most.
        """
        try:
            what, error, cause = await self._settled_in_time(held, outcome)
        except (ConnectionLost, ChannelClosed) as exc:
            what, error, cause = "lost", f"the connection is lost: {exc}", None
        self._tell(held, what, error, self._now() - began_at, cause)

    async def cannot_settle(self, held: LeasedJob, error: Exception, began_at: float) -> None:
        """Something unforeseen: it is this job's failure, and that of no other."""
        log.error("job %d of %s could not be settled", held.message.id, held.feed.queue)
        self._leases.drop(held)
        with suppress(ConnectionLost, ChannelClosed):
            await held.message.nack()
        self._tell(held, "failed", error_text(error), self._now() - began_at, error)

    async def give_back(self, held: LeasedJob) -> None:
        """As `Leases.give_back`. Where that cannot be said, leaving says it."""
        await self._leases.give_back(held)

    def report(self, held: LeasedJob, value: Any) -> None:
        """Progress, for who waits."""
        if held.body.reply_to is not None:
            self._mailboxes.tell_soon(held.feed.queue, held.body.reply_to, value)

    async def _settled_in_time(self, held: LeasedJob, outcome: Outcome) -> Settled:
        if isinstance(outcome, Done) and held.body.reply_to is None and self._is_here(held):
            return await self._acknowledge(held)  # which does not wait: it needs no end
        with anyio.CancelScope() as held.settling:
            if held.is_given_up:
                held.hurry(held.settling)
            return await self._settled(held, outcome)
        return await self._last_word(held, outcome)

    async def _settled(self, held: LeasedJob, outcome: Outcome) -> Settled:
        match outcome:
            case Stopped() if held.is_lost:
                return *await self._why_lost(held), None
            case Stopped():
                await self.give_back(held)
                return "returned", "the worker ended", None
            case Done(value=value):
                if not await self._is_ours(held):
                    return *await self._why_lost(held), LeaseExpired("done after its lease")
                await self._answer(held, "result", value)
                return await self._acknowledge(held)
            case Failed(error=error, delay_s=delay_s):
                return await self._failed(held, error, delay_s)
            case Rejected(reason=reason, error=text):
                return await self._rejected(held, reason, text, None)
            case _:
                assert_never(outcome)

    async def _last_word(self, held: LeasedJob, outcome: Outcome) -> Settled:
        """There was no time to tell who waits, or to ask: what can be said at once is said."""
        if not held.is_lost and self._now() < held.until:
            match outcome:
                case Done():
                    return await self._acknowledge(held)
                case Rejected(reason=reason, error=text):
                    await held.message.nack(reject=True)
                    return "rejected", _told(reason, text), None
                case _:
                    pass
        return "lost", "the worker ended before the node was told", None

    async def _acknowledge(self, held: LeasedJob) -> Settled:
        # Lost while the result was told, or with the connection, which nobody has told us yet.
        if held.is_lost or not held.message.leased:
            return *await self._why_lost(held), LeaseExpired("done after its lease")
        await held.message.ack()
        return "done", "", None

    async def _failed(
        self, held: LeasedJob, error: BaseException, delay_s: float | None
    ) -> Settled:
        attempt = held.message.attempt
        if attempt >= held.limit:
            return await self._rejected(held, "attempts", error_text(error), error)
        if held.is_lost:
            return *await self._why_lost(held), error
        if delay_s is None:
            delay_s = held.task.backoff.delay_s(attempt, self._rng)
        await held.message.nack(_rest_s(delay_s))
        return "failed", error_text(error), error

    async def _rejected(
        self, held: LeasedJob, reason: str, text: str, cause: BaseException | None
    ) -> Settled:
        if not await self._is_ours(held):
            return *await self._why_lost(held), cause
        reason = utf8_text(reason)[:REASON_CHARS_MAX]
        told = _told(reason, text)
        await self._answer(held, "failed", {"reason": reason, "error": text[:ERROR_CHARS_MAX]})
        if held.is_lost or not await self._bury(held, told):
            return *await self._why_lost(held), cause
        return "rejected", told, cause

    async def _bury(self, held: LeasedJob, told: str) -> bool:
        """False: the lease was over."""
        reason = told[:REASON_CHARS_MAX]
        try:
            with anyio.fail_after(LOOK_S):
                await ask(held.feed.channel, Operation.REJECT, id=held.message.id, reason=reason)
        except LeaseLost:
            return False
        except (RequestError, TimeoutError):
            if held.is_lost:
                return False
            await held.message.nack(reject=True)
        return True

    def _is_here(self, held: LeasedJob) -> bool:
        """Is the lease surely not over, nor the connection that it came by?"""
        return not held.is_lost and self._now() < held.until and held.message.leased

    async def _is_ours(self, held: LeasedJob) -> bool:
        """Is the lease surely not over? The node is asked where that is not known."""
        if not held.is_lost and self._now() >= held.until:
            with anyio.move_on_after(LOOK_S):
                await self._leases.renew(held)
        return not held.is_lost and self._now() < held.until

    async def _answer(self, held: LeasedJob, kind: Kind, value: Any) -> None:
        waiter = held.body.reply_to
        if waiter is not None:
            failure = await self._mailboxes.tell(held.feed.queue, waiter, kind, value)
            if failure is not None:
                text = "job %d: its result could not be left for who waits: %s"
                log.warning(text, held.message.id, failure)

    async def _why_lost(self, held: LeasedJob) -> tuple[OutcomeName, str]:
        """Is the job gone, or did we only lose it?"""
        self._leases.drop(held)
        channel = held.feed.channel
        if channel.connected and held.was_refused:
            try:
                with anyio.fail_after(LOOK_S):
                    await ask(channel, Operation.SHOW, id=held.message.id)
            except NotFound:
                return "cancelled", "the job is gone: cancelled, or its time was over"
            except (RequestError, ConnectionLost, ChannelClosed, TimeoutError):
                pass
        return "lost", "the lease was over first"

    def _tell(
        self,
        held: LeasedJob,
        what: OutcomeName,
        error: str,
        seconds: float,
        cause: BaseException | None,
    ) -> None:
        message, queue = held.message, held.feed.queue
        if self._history is not None and (what != "done" or self._log_done):
            self._history.add(queue, message.id, message.attempt, what, error)
        if what in ("failed", "rejected", "lost"):
            place = (message.id, queue, message.attempt, what, error)
            exc_info = None if cause is None or what == "lost" else _theirs(cause)
            log.warning("job %d of %s, attempt %d: %s (%s)", *place, exc_info=exc_info)
        name, attempt = held.task.name, message.attempt
        try:
            self._ended(
                AttemptResult(message.id, queue, name, attempt, what, error, seconds, cause)
            )
        except Exception:  # the border to code that is not ours: `on_end`
            log.exception("on_end failed for job %d of %s", message.id, queue)


def _told(reason: str, text: str) -> str:
    return f"{reason}: {text}" if text else reason


def _rest_s(delay_s: float) -> float:
    """Seconds as a nack can say them, whatever a backoff or an error was made to say."""
    try:
        seconds = float(delay_s)
    except (TypeError, ValueError, OverflowError):
        return DELAY_S
    return DELAY_S if isnan(seconds) else min(max(seconds, 0.0), DELAY_S_MAX)


def _theirs(error: BaseException) -> BaseException | None:
    """The error with the traceback of code that is not ours; None for what was only asked for."""
    if isinstance(error, Retry):
        return None
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _is_ours(trace: TracebackType) -> bool:
    name = str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "anyio" or name.startswith("millpond.node.jobs")
