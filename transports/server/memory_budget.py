"""The memory budget: one limit for the bytes that all connections of a node hold together.

Counted are input under way (half a frame, a body that is being collected, requests that wait) and
answers that were made and not read. A connection measures itself after each CHECK_BYTES that it
read or wrote, so small requests cost nothing here; what it holds below SMALL_BYTES is not counted.
Each open connection counts CONNECTION_BYTES besides, but all together no more than half of the
budget: many idle connections slow others down, and do not stop them.

When the budget is used up, new work waits. Meanwhile connections whose client neither sends nor
reads are closed, those that hold most first. One connection at a time, the one that has waited
longest, is favoured: it may go beyond the budget, so that a request that has to finish before it
frees memory can finish. `overrun_bytes_max` is kept for that; above it the connection that holds
most is closed, whatever it does. Connections that were let in read once more before they are
measured: READ_BYTES of the budget are kept free for each, and no more than the overrun for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Protocol

import msgspec

CHECK_BYTES = 2**15
SMALL_BYTES = 2**14
READ_BYTES = 2**18
"""The room that a connection needs to be read on."""
MOVED_BYTES = 2**14
"""A client that moves fewer bytes than this within STALLED_S counts as stalled."""
STALLED_S = 2.0
"""Half of it after each connection that had to be closed for it, down to a tick: under attack the
others do not wait for one stalled client after the other. RECOVERED_S later it is whole again."""
RECOVERED_S = 5.0
TICK_S = 0.25
FAVOURED_AFTER_S = 0.5
FAVOURED_S = 10.0
REFUSED_AFTER_S = 5.0
TRIM_BYTES = 2**25
TRIM_S = 2.0
"""Memory goes back to the system once so much was freed, at most this often."""
TRIM_SHORT_BYTES = 2**21
CONNECTION_BYTES = 2**14
"""The memory of an idle connection, as it was measured: 2 KiB to 16 KiB (over TLS)."""
HANDSHAKE_BYTES = 2**15
"""About the memory of a TLS handshake in progress."""


class MemorySettings(msgspec.Struct, frozen=True):
    """Sizes of the budget in bytes; docs/reference/limits.md.

    `connection_bytes_max` and `principal_bytes_max` are the shares of one connection, and of all
    connections of one identity or address.
    """

    bytes_max: int = 2**30
    connection_bytes_max: int = 2**26
    principal_bytes_max: int = 2**29
    overrun_bytes_max: int = 2**24

    @classmethod
    def of(cls, bytes_max: int, message_bytes_max: int) -> MemorySettings:
        """The shares of a budget of `bytes_max`; one connection may hold the largest message
        twice: as it came, and as it is answered."""
        share = max(bytes_max // 16, min(2 * message_bytes_max, bytes_max // 2))
        return cls(bytes_max, share, bytes_max // 2, min(2**24, bytes_max // 4))


class MemoryStats(msgspec.Struct):
    """Counts since the start: work that had to wait, that was refused, connections closed."""

    waited: int = 0
    refused: int = 0
    closed: int = 0


class MemoryHolder(Protocol):
    """A connection, as the budget sees it."""

    @property
    def held_bytes(self) -> int:
        """Its input under way, and its answers that were not read."""

    @property
    def moved_bytes(self) -> int:
        """All bytes that came from the client and left to it; it only grows."""

    @property
    def waits_for_client(self) -> bool:
        """True if the client has to send or to read before anything becomes free."""

    def close_for_memory(self) -> None:
        """Close at once, and free what is held before this returns, as far as can be done:
        others read on in the same pass of the event loop."""


class MemoryWaiter:
    """Work that waits for memory. `granted` or `refused` is called once, unless it is cancelled, or
    `refused` finds that nothing can be refused: then it waits on."""

    __slots__ = ("account", "granted", "refused", "since", "size_bytes")

    def __init__(
        self,
        account: MemoryAccount,
        size_bytes: int,
        since: float,
        granted: Callable[[], None],
        refused: Callable[[], bool] | None,
    ) -> None:
        self.account = account
        self.size_bytes = size_bytes
        self.since = since
        self.granted = granted
        self.refused = refused
        """None: it may wait as long as it has to."""


class MemoryAccount:
    """The bytes that one connection holds, as they were measured last."""

    __slots__ = (
        "_budget",
        "expected_bytes",
        "held_bytes",
        "holder",
        "is_closed",
        "is_closing",
        "moved_at",
        "moved_before",
        "principal",
    )

    def __init__(
        self, budget: MemoryBudget, holder: MemoryHolder, principal: Hashable, now: float
    ) -> None:
        self._budget = budget
        self.holder = holder
        self.principal = principal
        """The client by its identity or address; None: it has no share of its own."""
        self.held_bytes = 0
        self.expected_bytes = 0
        """Room that was granted and is not used yet."""
        self.moved_at = now
        self.moved_before = holder.moved_bytes
        self.is_closing = False
        """The budget closes the connection; what it holds is not free yet."""
        self.is_closed = False

    def measure(self, now: float) -> None:
        """Count what the connection holds now."""
        self._budget.measure(self, now)

    def has_room(self, size_bytes: int, now: float) -> bool:
        """Measure, and tell whether `size_bytes` more fit into the budget and its shares."""
        self._budget.measure(self, now)
        return self.is_closed or self._budget.has_room(self, size_bytes)

    def wait(
        self,
        size_bytes: int,
        now: float,
        granted: Callable[[], None],
        refused: Callable[[], bool] | None = None,
    ) -> MemoryWaiter:
        """Have `granted` called once there is memory. The part that it does not use at once is kept
        free for it up to the next tick. `refused`, if given, is called once, after REFUSED_AFTER_S;
        if it gives False, nothing can be refused, and the work waits on."""
        return self._budget.wait(MemoryWaiter(self, size_bytes, now, granted, refused))

    def cancel(self, waiter: MemoryWaiter) -> None:
        """The work is given up; nothing is called any more."""
        self._budget.cancel(waiter)

    def close(self, now: float) -> None:
        """The connection is gone: nothing is held, and nothing waits."""
        self._budget.close(self, now)


class MemoryBudget:
    """The bytes that all connections hold, and the work that waits for some to become free.

    Implements `actors.runtime.timers.TimerOwner`: `arm` has `wake` called at a time. `trim` gives
    freed memory back to the system.
    """

    def __init__(
        self,
        settings: MemorySettings,
        arm: Callable[[MemoryBudget, float], None],
        trim: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.stats = MemoryStats()
        self.deadline = inf
        self.used_bytes = 0
        self.promised_bytes = 0
        """For answers that are being made and not measured yet, and for the input that connections
        are expected to read which were just let in."""
        self._arm = arm
        self._trim = trim
        self._accounts: dict[MemoryAccount, None] = {}
        self._expecting: dict[MemoryAccount, None] = {}
        self._by_principal: dict[Hashable, int] = {}
        self._waiters: dict[MemoryWaiter, None] = {}
        self._is_serving = False
        self._favoured: MemoryAccount | None = None
        self._favoured_until = -inf
        self._stalled_s = STALLED_S
        self._closed_at = -inf
        self._connections = 0
        self._closing_bytes = 0
        """Of connections that are being closed: still used, but free in a moment."""
        self._freed_bytes = 0
        """About what was freed since memory was given back last."""
        self._trimmed_at = -inf

    @property
    def connections_bytes(self) -> int:
        """Memory of open connections by themselves, as far as it counts."""
        return min(self._connections * CONNECTION_BYTES, self.settings.bytes_max // 2)

    @property
    def waiting(self) -> int:
        """Requests and connections that wait for memory."""
        return len(self._waiters)

    def open(self, holder: MemoryHolder, principal: Hashable, now: float) -> MemoryAccount:
        """An account for a connection that holds more than a little."""
        return MemoryAccount(self, holder, principal, now)

    def measure(self, account: MemoryAccount, now: float) -> None:
        """Count what the connection of an account holds now; see `MemoryAccount.measure`."""
        if account.is_closing or account.is_closed:
            return
        if account.expected_bytes:
            self._expect(account, 0)
        holder = account.holder
        held = holder.held_bytes
        if held <= SMALL_BYTES:
            held = 0
        moved = holder.moved_bytes
        if moved - account.moved_before >= MOVED_BYTES or not account.held_bytes:
            account.moved_before, account.moved_at = moved, now
        before = account.held_bytes
        if held == before:
            return
        self._count(account, held)
        if held > before and self.used_bytes > self._hard_bytes_max:
            self._close_worst(now)
        if held < before:
            if account is self._favoured:
                self._favoured = None  # something of it has finished
            if self._waiters:
                self._serve(now)
        self._watch(now)

    def has_room(self, account: MemoryAccount, size_bytes: int) -> bool:
        """True if `size_bytes` more of an account fit into the budget and its shares."""
        settings = self.settings
        taken_bytes = self.used_bytes + self.promised_bytes + size_bytes
        if account is self._favoured:
            return taken_bytes <= self._hard_bytes_max
        if taken_bytes > self._bytes_max - self._reads_bytes:
            return False
        if account.held_bytes + size_bytes > settings.connection_bytes_max:
            return False
        principal = account.principal
        if principal is None:
            return True
        held = self._by_principal.get(principal, 0)
        return held + size_bytes <= settings.principal_bytes_max

    def promise(self, size_bytes: int) -> bool:
        """Set bytes apart for an answer that is being made; False: there is no room. To be kept
        (`keep_promise`) once the answer is there, and counts by itself."""
        if self.used_bytes + self.promised_bytes + size_bytes > self._bytes_max:
            return False
        self.promised_bytes += size_bytes
        return True

    def keep_promise(self, size_bytes: int) -> None:
        """The bytes that were promised are not set apart any more."""
        self.promised_bytes -= size_bytes

    def wait(self, waiter: MemoryWaiter) -> MemoryWaiter:
        """See `MemoryAccount.wait`. Work that needs more than half of the budget waits for half of
        it, as there might never be more."""
        self.stats.waited += 1
        waiter.size_bytes = min(waiter.size_bytes, self.settings.bytes_max // 2)
        self._waiters[waiter] = None
        self._watch(waiter.since)
        return waiter

    def cancel(self, waiter: MemoryWaiter) -> None:
        """See `MemoryAccount.cancel`."""
        self._waiters.pop(waiter, None)

    def close(self, account: MemoryAccount, now: float) -> None:
        """See `MemoryAccount.close`."""
        if not account.is_closed:
            self._forget(account)
            self._serve(now)

    def _forget(self, account: MemoryAccount) -> None:
        account.is_closed = True
        if account.is_closing:
            self._closing_bytes -= account.held_bytes
        self._count(account, 0)
        self._drop_waiters(account)

    def _drop_waiters(self, account: MemoryAccount) -> None:
        self._expect(account, 0)
        if account is self._favoured:
            self._favoured = None
        for waiter in [each for each in self._waiters if each.account is account]:
            del self._waiters[waiter]

    def connection_opened(self) -> None:
        """There is one more connection."""
        self._connections += 1

    def connection_ended(self, now: float) -> None:
        """A connection is gone that was opened."""
        self._connections -= 1
        self._free(CONNECTION_BYTES + SMALL_BYTES, now)

    def handshake_failed(self, now: float) -> None:
        """A connection is gone whose TLS handshake did not succeed."""
        self._free(HANDSHAKE_BYTES, now)

    def _free(self, size_bytes: int, now: float) -> None:
        """About so many bytes that did not count are freed."""
        self._freed_bytes += size_bytes
        if self._freed_bytes > TRIM_BYTES:
            self._watch(now)

    def wake(self, now: float) -> None:
        """Measure all accounts; then close, let in and refuse, as far as something waits."""
        # While work waits, freed memory counts as used by the system all the same.
        is_short = bool(self._waiters) and self._freed_bytes > TRIM_SHORT_BYTES
        is_due = self._freed_bytes > TRIM_BYTES and now >= self._trimmed_at + TRIM_S
        if is_short or is_due:
            # Before anything is closed: what was closed a tick ago is freed by now.
            self._freed_bytes, self._trimmed_at = 0, now
            self._trim()
        for account in tuple(self._expecting):
            self._expect(account, 0)
        for account in tuple(self._accounts):
            self.measure(account, now)
        if now >= self._closed_at + RECOVERED_S:
            self._stalled_s = STALLED_S
        if now >= self._favoured_until:
            self._favoured = None
        if self._waiters:
            self._close_stalled(now)
            self._serve(now)
            self._refuse_late(now)
        self._watch(now)

    @property
    def _bytes_max(self) -> int:
        """The rest of the budget, for the work of connections."""
        return self.settings.bytes_max - self.connections_bytes

    @property
    def _reads_bytes(self) -> int:
        """Kept free for connections that were let in: each reads once more before it is measured,
        and all at once they would use up the overrun, which is for the favoured one."""
        held_up = len(self._waiters) + len(self._expecting)
        others = max(0, len(self._accounts) - held_up - 1)
        return min(others * READ_BYTES, self.settings.overrun_bytes_max)

    @property
    def _hard_bytes_max(self) -> int:
        return self._bytes_max + self.settings.overrun_bytes_max

    def _watch(self, now: float) -> None:
        is_used = self._accounts or self._waiters or self._expecting
        has_work = is_used or self._freed_bytes > TRIM_BYTES
        if has_work and self.deadline == inf:
            self._arm(self, now + TICK_S)

    def _count(self, account: MemoryAccount, held: int) -> None:
        grown = held - account.held_bytes
        account.held_bytes = held
        self.used_bytes += grown
        self._freed_bytes += max(0, -grown)
        if held:
            self._accounts[account] = None
        else:
            self._accounts.pop(account, None)
        principal = account.principal
        if principal is not None:
            total = self._by_principal.get(principal, 0) + grown
            if total:
                self._by_principal[principal] = total
            else:
                self._by_principal.pop(principal, None)

    # Closing.

    def _close_stalled(self, now: float) -> None:
        """Close connections whose clients do nothing, until the first waiter has room."""
        first = next(iter(self._waiters))
        stalled = [
            each
            for each in self._accounts
            if now >= each.moved_at + self._stalled_s and each.holder.waits_for_client
        ]
        stalled.sort(key=lambda each: each.held_bytes)
        while stalled and first in self._waiters and not self._fits(first):
            self._end(stalled.pop())
            self._stalled_s, self._closed_at = max(TICK_S, self._stalled_s / 2), now

    def _fits(self, waiter: MemoryWaiter) -> bool:
        # A waiter that is above a share of its own frees nothing by the end of others.
        taken_bytes = self.used_bytes + self.promised_bytes + waiter.size_bytes
        return taken_bytes - self._closing_bytes <= self._bytes_max - self._reads_bytes

    def _close_worst(self, now: float) -> None:
        """Close connections until the use is below the overrun: what holds most for longest."""
        while self._accounts and self.used_bytes - self._closing_bytes > self._hard_bytes_max:
            self._end(self._worst(self._accounts, now))

    def _worst(self, accounts: Iterable[MemoryAccount], now: float) -> MemoryAccount:
        # The least time keeps the size in play among those that have just moved.
        def badness(account: MemoryAccount) -> tuple[bool, float]:
            still_s = max(now - account.moved_at, 0.001)
            return account is not self._favoured, account.held_bytes * still_s

        return max(accounts, key=badness)

    def _end(self, account: MemoryAccount) -> None:
        self.stats.closed += 1
        account.is_closing = True
        self._closing_bytes += account.held_bytes
        del self._accounts[account]
        self._drop_waiters(account)
        account.holder.close_for_memory()
        if not account.is_closed:
            self._count_closing(account)

    def _count_closing(self, account: MemoryAccount) -> None:
        """Count what a connection that is being closed still holds."""
        before, left = account.held_bytes, account.holder.held_bytes
        self._closing_bytes += left - before
        self._count(account, left)
        self._accounts.pop(account, None)

    # Waiting.

    def _serve(self, now: float) -> None:
        """Let in what has room, in the order in which it came."""
        if self._is_serving:
            return  # the loop below goes on
        self._is_serving = True
        try:
            for waiter in tuple(self._waiters):
                if self.used_bytes >= self._bytes_max:
                    break
                if waiter in self._waiters and self.has_room(waiter.account, waiter.size_bytes):
                    self._grant(waiter, now)
            if self._favoured is None:
                self._favour(now)
        finally:
            self._is_serving = False

    def _favour(self, now: float) -> None:
        """Favour what has waited longest, as everything else may depend on it."""
        waiter = next(iter(self._waiters), None)
        if waiter is None or now < waiter.since + FAVOURED_AFTER_S:
            return
        taken_bytes = self.used_bytes + self.promised_bytes + waiter.size_bytes
        if taken_bytes > self._hard_bytes_max:
            # Work that can be refused is. The rest must not wait for ever.
            others = [each for each in self._accounts if each is not waiter.account]
            is_late = waiter.refused is None and now >= waiter.since + REFUSED_AFTER_S
            if is_late and others and taken_bytes - self._closing_bytes > self._hard_bytes_max:
                self._end(self._worst(others, now))
            return  # when that one is gone, or at the next tick
        account = waiter.account
        self._favoured, self._favoured_until = account, now + FAVOURED_S
        # A connection may wait to be read on, and each of its requests for what it has read.
        for each in [each for each in self._waiters if each.account is account]:
            if self._favoured is account and each in self._waiters:
                if each is waiter or self.has_room(account, each.size_bytes):
                    self._grant(each, now)

    def _grant(self, waiter: MemoryWaiter, now: float) -> None:
        del self._waiters[waiter]
        account = waiter.account
        account.moved_at = now  # it can move only from here on
        self._expect(account, 0)
        before = account.held_bytes + self.promised_bytes
        waiter.granted()
        self.measure(account, now)
        if not (account.is_closing or account.is_closed):
            used = account.held_bytes + self.promised_bytes - before
            self._expect(account, min(waiter.size_bytes, max(0, waiter.size_bytes - used)))

    def _expect(self, account: MemoryAccount, size_bytes: int) -> None:
        self.promised_bytes += size_bytes - account.expected_bytes
        account.expected_bytes = size_bytes
        if size_bytes:
            self._expecting[account] = None
        else:
            self._expecting.pop(account, None)

    def _refuse_late(self, now: float) -> None:
        # Nothing is let in meanwhile: a waiter keeps its place until it is refused.
        self._is_serving = True
        try:
            for waiter in tuple(self._waiters):
                if now < waiter.since + REFUSED_AFTER_S:
                    break
                refuse, waiter.refused = waiter.refused, None
                if refuse is not None and waiter in self._waiters and refuse():
                    self._waiters.pop(waiter, None)
                    self.stats.refused += 1
                    self.measure(waiter.account, now)
        finally:
            self._is_serving = False
