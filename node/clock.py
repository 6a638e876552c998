"""The node's clock: trusted time in seconds since the Unix epoch, which never steps back.

Trusted time is the wall clock at the start, and runs with the monotonic clock from then on.
Deadlines are compared with it. Three rules say what becomes of the difference to the wall clock:

- **Behind**: trusted time runs on. Nothing that expired comes back, and no deadline moves.
- **Ahead by little** (up to JUMP_S_MAX), **or by a time that is proven**: a sleep of the machine,
  or a stop of the node within one boot of the machine. Trusted time moves forward at once.
- **Ahead by more**: a jump. Nothing expires by it until it is confirmed: the wall clock is still
  ahead by as much after `confirm_s` of monotonic time, or an operator says that it is right.

No I/O: the sources are arguments, and `node/clock_file.py` stores the readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from math import ceil
from typing import NamedTuple

import msgspec

from millpond.actors.clock_jump import ClockJump

DRIFT_S_MIN = 0.001
"""The wall clock is followed from this difference on: stamps of records are near to it."""
STEP_S_MIN = 1.0
"""Smaller differences are the drift of two clocks, and no event."""
JUMP_S_MAX = 300.0
"""The wall clock may be ahead of trusted time by this without a proof. Steps of this size are
trusted only as often as monotonic time passes: a wall clock that runs away is a jump as well."""
AGREE_S = 60.0
"""A jump that changes by more than this while it waits for confirmation begins to wait anew."""
BEHIND_S_MIN = 5.0
"""A wall clock behind trusted time, and ids ahead of it, are reported from this on."""
CONFIRM_S = 600.0
IDS_AHEAD_S = 1.0
"""Ids that are ahead of trusted time move by much less between two readings: 4096 take 1 ms."""
IDS_LEAD_S = 90.0
"""Ids are reserved for so long ahead, which is more than the time between two readings."""


class ClockReading(msgspec.Struct, frozen=True):
    """Trusted time at one moment, as the data folder keeps it. `boot` names the boot of the
    machine, and `uptime` is its seconds since then, sleep included (empty and 0: unknown). The last
    message id was of the time `ids_at`, and none later than `ids_until` was given out after it
    (0: unknown). `was_set_back`: an operator set the time back, and the store may have deadlines of
    the time before.
    """

    time: float
    boot: str = ""
    uptime: float = 0.0
    ids_at: float = 0.0
    ids_until: float = 0.0
    was_set_back: bool = False


class Boot(NamedTuple):
    """The running boot of the machine: its name, and its seconds since then, sleep included."""

    name: str
    uptime: Callable[[], float]


class ClockEvent(Enum):
    """The result of a look at the wall clock."""

    NONE = auto()
    FOLLOWED = auto()
    JUMPED = auto()
    CONFIRMED = auto()
    WITHDRAWN = auto()


class ClockLook(NamedTuple):
    """An event and its size in seconds: trusted time moved by `moved_s`."""

    event: ClockEvent
    seconds: float = 0.0
    moved_s: float = 0.0


class ClockStatus(msgspec.Struct, frozen=True):
    """The clocks of a node, in seconds: for metrics, `/ready` and `doctor`.

    `jump_s`: the wall clock jumped so far ahead, unconfirmed (0: no); `confirmed_in_s`: a second
    look comes after this. `behind_s`: the wall clock is so far behind trusted time.
    `ids_ahead_s`: so far the last message id is ahead of trusted time.
    """

    jump_s: float = 0.0
    confirmed_in_s: float = 0.0
    behind_s: float = 0.0
    ids_ahead_s: float = 0.0
    have_ids_ended: bool = False

    @property
    def warnings(self) -> list[str]:
        """One sentence for each that is worth a look."""
        found = []
        if self.jump_s:
            found.append(
                f"clock: {self.jump_s:.0f} s ahead of trusted time, unconfirmed; expiry is held "
                f"for {ceil(self.confirmed_in_s)} s more"
            )
        if self.behind_s >= BEHIND_S_MIN:
            found.append(f"clock: {self.behind_s:.0f} s behind trusted time")
        if self.ids_ahead_s >= BEHIND_S_MIN:
            found.append(f"ids: {self.ids_ahead_s:.0f} s ahead of trusted time")
        return found


def is_same_boot(last: ClockReading, boot: Boot | None) -> bool:
    """True: the machine did not restart since the reading."""
    return boot is not None and last.boot == boot.name


def continued_time(last: ClockReading, boot: Boot | None) -> float:
    """Trusted time now, or the least that it can be where the machine has restarted since."""
    if boot is None or last.boot != boot.name:
        return last.time
    return last.time + max(0.0, boot.uptime() - last.uptime)


class Clock:
    """Trusted time. `now` gives it; `look` compares it with the wall clock, now and then.

    `jump` is shared with the cells: while it is not 0, whatever gets a deadline gets it that much
    later, so that a confirmation does not cut it short. `wall` may be asked in any thread;
    `ticks_ns` is for how long something took, in nanoseconds.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        ticks_ns: Callable[[], int] = time.perf_counter_ns,
        boot: Boot | None = None,
    ) -> None:
        self._monotonic = monotonic
        self.wall = wall
        self.ticks_ns = ticks_ns
        self._boot = boot
        self.confirm_s = CONFIRM_S
        """A jump is confirmed by itself after this time."""
        self.jump = ClockJump()
        looked_at = monotonic()
        self._offset = wall() - looked_at
        self._looked_at = looked_at
        self._awake_since = 0.0 if boot is None else boot.uptime() - looked_at
        self._jumped_at = 0.0
        self._trusted_s = 0.0
        """Steps of late that had no proof, less the time that passed since."""

    def now(self) -> float:
        return self._monotonic() + self._offset

    def latest(self) -> float:
        """Trusted time, or the wall clock during a jump: tokens end by the later one."""
        return self.now() + self.jump.seconds

    def reading(
        self, ids_at: float = 0.0, ids_until: float = 0.0, *, was_set_back: bool = False
    ) -> ClockReading:
        """Trusted time, to be stored."""
        boot = self._boot
        name, uptime = ("", 0.0) if boot is None else (boot.name, boot.uptime())
        return ClockReading(self.now(), name, uptime, ids_at, ids_until, was_set_back)

    def ids_floor(self, last: ClockReading, *, is_confirmed: bool) -> float:
        """The time behind which ids go on after an earlier run, whose last ids may be on no disk.

        Where trusted time goes on, so do those ids that were not ahead of it.
        """
        if is_confirmed or not is_same_boot(last, self._boot):
            return last.ids_until
        line = continued_time(last, self._boot)
        return min(last.ids_until, max(last.ids_at + IDS_AHEAD_S, line))

    def resume(self, last: ClockReading, *, is_confirmed: bool = False) -> ClockLook:
        """Continue the trusted time of an earlier run. Call it once, at the start.

        Within one boot of the machine it is known how long the node was stopped. Else the wall
        clock says so, and it may be wrong. `is_confirmed`: an operator says that it is right, even
        where it is behind.
        """
        if is_confirmed:
            return ClockLook(ClockEvent.CONFIRMED, self.wall() - last.time)
        line, wall = continued_time(last, self._boot), self.wall()
        if line < wall < line + STEP_S_MIN:
            line = wall  # or the first moments would be those of the last run again
        self._offset = line - self._monotonic()
        return self.look()

    def look(self) -> ClockLook:
        """Compare trusted time with the wall clock, and move it forward where that is safe."""
        monotonic = self._monotonic()
        slept_s = self._slept_s(monotonic)
        self._trusted_s = max(0.0, self._trusted_s - (monotonic - self._looked_at))
        self._looked_at = monotonic
        ahead_s = self.wall() - monotonic - self._offset
        jump, before_s = self.jump, self.jump.seconds
        if slept_s >= STEP_S_MIN and ahead_s >= STEP_S_MIN:
            moved_s = min(slept_s, ahead_s)
            self._offset += moved_s
            ahead_s -= moved_s
            before_s = max(0.0, before_s - moved_s)
        else:
            moved_s = 0.0
        if ahead_s + self._trusted_s <= JUMP_S_MAX:
            jump.seconds = 0.0
            if ahead_s >= DRIFT_S_MIN:
                self._offset += ahead_s
                self._trusted_s += ahead_s
                moved_s += ahead_s
            if before_s:
                return ClockLook(ClockEvent.WITHDRAWN, before_s, moved_s)
            if moved_s < STEP_S_MIN:
                return ClockLook(ClockEvent.NONE, 0.0, moved_s)
            return ClockLook(ClockEvent.FOLLOWED, moved_s, moved_s)
        if not before_s or abs(ahead_s - before_s) > AGREE_S:
            self._jumped_at = monotonic
            jump.seconds = ahead_s
            return ClockLook(ClockEvent.JUMPED, ahead_s, moved_s)
        jump.seconds = ahead_s
        if monotonic - self._jumped_at >= self.confirm_s:
            return self.confirm()
        return ClockLook(ClockEvent.FOLLOWED if moved_s else ClockEvent.NONE, moved_s, moved_s)

    def confirm(self) -> ClockLook:
        """The wall clock is right: trusted time moves forward to it, and never back."""
        ahead_s = self.wall() - self.now()
        self.jump.seconds = 0.0
        if ahead_s < STEP_S_MIN:
            return ClockLook(ClockEvent.NONE)
        self._offset += ahead_s
        return ClockLook(ClockEvent.CONFIRMED, ahead_s, ahead_s)

    @property
    def behind_s(self) -> float:
        """Seconds that the wall clock is behind trusted time; 0: it is not."""
        return max(0.0, self.now() - self.wall())

    @property
    def confirmed_in_s(self) -> float:
        """Seconds until the jump is confirmed by itself; 0: there is none."""
        if not self.jump.seconds:
            return 0.0
        return max(0.0, self._jumped_at + self.confirm_s - self._monotonic())

    def _slept_s(self, monotonic: float) -> float:
        """Seconds that the machine slept since the last look."""
        if self._boot is None:
            return 0.0
        awake_since = self._boot.uptime() - monotonic
        slept_s, self._awake_since = awake_since - self._awake_since, awake_since
        return slept_s
