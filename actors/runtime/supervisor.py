"""Supervision: restart rules of both tiers of actors.

A cell that gives up is quarantined and the node lives on; a task actor that gives up is
infrastructure, and its failure goes to the parent. The broad `except` of the project are here, in
`scheduler`, and in `store.workers`, which answers for the store's threads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from random import Random

import anyio
import msgspec

log = logging.getLogger(__name__)


class RestartPolicy(msgspec.Struct, frozen=True):
    """At most `restarts_max` within `window_s`; waits grow from base to max. Times in seconds."""

    restarts_max: int = 5
    window_s: float = 60.0
    backoff_s_base: float = 0.05
    backoff_s_max: float = 10.0
    quarantine_s: float = 300.0


class RestartsExceeded(Exception):
    """An actor crashed more often than its policy allows."""


class Restarts:
    """One child's crashes within the window; a count for each child, so siblings never add up."""

    __slots__ = ("_crashes",)

    def __init__(self) -> None:
        self._crashes: list[float] = []

    def count(self, policy: RestartPolicy, rng: Random, now: float) -> float:
        """Count a crash. Gives the backoff in seconds. Raises RestartsExceeded."""
        self._crashes = [at for at in self._crashes if at > now - policy.window_s]
        self._crashes.append(now)
        crashes = len(self._crashes)
        if crashes > policy.restarts_max:
            self._crashes.clear()
            raise RestartsExceeded(f"{crashes} crashes within {policy.window_s:g} s")
        ceiling = min(policy.backoff_s_max, policy.backoff_s_base * 2.0 ** (crashes - 1))
        return ceiling * rng.uniform(0.5, 1.0)


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    policy: RestartPolicy,
    rng: Random,
    now: Callable[[], float],
) -> None:
    """Run a task actor again after each crash, until it returns or is cancelled.

    Raises RestartsExceeded from the last crash when the policy is used up.
    """
    restarts = Restarts()
    while True:
        try:
            return await run()
        except Exception as exc:  # any error is a crash: logged, and raised when there are too many
            try:
                backoff_s = restarts.count(policy, rng, now())
            except RestartsExceeded as exceeded:
                raise exceeded from exc
            log.exception("actor crashed: name=%s restart_in_s=%.2f", name, backoff_s)
        await anyio.sleep(backoff_s)


def contain_call(name: str, call: Callable[[], None]) -> bool:
    """Call `call`, and log what it raises, so that it ends nothing else. False: it did raise."""
    try:
        call()
    except Exception:  # any error is a crash of this actor alone
        log.exception("actor crashed: name=%s", name)
        return False
    return True


async def contain(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a task actor that is never restarted, such as a connection; its crash ends it alone."""
    try:
        await run()
    except Exception:  # any error is a crash of this actor alone
        log.exception("actor crashed: name=%s", name)
