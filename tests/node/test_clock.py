"""The node's clock: trusted time, jumps of the wall clock, and their confirmation."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.clock import (
    CONFIRM_S,
    JUMP_S_MAX,
    STEP_S_MIN,
    Boot,
    Clock,
    ClockEvent,
    ClockReading,
    ClockStatus,
)

START_S = 1_763_683_200.0
HOUR_S = 3600.0


class Hands:
    """The clocks of a machine, which a test moves."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.wall = START_S
        self.uptime = 5000.0
        self.boot = "first"

    def clock(self, *, can_tell_boot: bool = True) -> Clock:
        boot = Boot(self.boot, lambda: self.uptime) if can_tell_boot else None
        return Clock(lambda: self.monotonic, lambda: self.wall, boot=boot)

    def run(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds
        self.uptime += seconds

    def sleep(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands."""
        self.wall += seconds
        self.uptime += seconds

    def reboot(self, off_s: float) -> None:
        self.boot += " again"
        self.wall += off_s
        self.uptime, self.monotonic = 10.0, 10.0


def test_it_starts_at_the_wall_clock_and_runs_with_the_monotonic_one() -> None:
    hands = Hands()
    clock = hands.clock()
    assert clock.now() == START_S
    hands.run(2.5)
    assert clock.now() == START_S + 2.5


@pytest.mark.parametrize("step_s", [-HOUR_S, -0.5, 0.5, HOUR_S])
def test_a_stepped_wall_clock_moves_nothing_by_itself(step_s: float) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += step_s
    assert clock.now() == START_S


@pytest.mark.parametrize("step_s", [0.002, STEP_S_MIN * 0.9])
def test_the_drift_of_the_wall_clock_is_followed_without_an_event(step_s: float) -> None:
    """A node that runs for weeks would stamp records seconds beside the time otherwise."""
    hands = Hands()
    clock = hands.clock()
    hands.wall += step_s
    event, seconds, moved_s = clock.look()
    assert (event, seconds) == (ClockEvent.NONE, 0.0) and moved_s == pytest.approx(step_s, abs=1e-6)
    assert clock.now() == pytest.approx(hands.wall)


@pytest.mark.parametrize("step_s", [-HOUR_S, -STEP_S_MIN, -0.5, 0.0])
def test_it_never_steps_back(step_s: float) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += step_s
    before = clock.now()
    assert clock.look() == (ClockEvent.NONE, 0.0, 0.0) and clock.now() == before
    assert clock.behind_s == max(0.0, -step_s)


def test_a_small_step_forward_is_followed() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += JUMP_S_MAX
    assert clock.look() == (ClockEvent.FOLLOWED, JUMP_S_MAX, JUMP_S_MAX)
    assert clock.now() == hands.wall
    assert clock.look().event is ClockEvent.NONE


def test_after_a_sleep_of_the_machine_it_catches_up() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.sleep(8 * HOUR_S)
    assert clock.look() == (ClockEvent.FOLLOWED, 8 * HOUR_S, 8 * HOUR_S)
    assert clock.now() == hands.wall and clock.jump.seconds == 0


def test_a_jump_waits_until_the_wall_clock_has_agreed_for_long() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 2 * HOUR_S
    assert clock.look() == (ClockEvent.JUMPED, 2 * HOUR_S, 0.0)
    assert (clock.jump.seconds, clock.confirmed_in_s) == (2 * HOUR_S, CONFIRM_S)
    assert clock.latest() == hands.wall
    for _ in range(19):
        hands.run(30)
        assert clock.look().event is ClockEvent.NONE
    assert hands.wall - clock.now() == 2 * HOUR_S
    hands.run(30)
    assert clock.look() == (ClockEvent.CONFIRMED, 2 * HOUR_S, 2 * HOUR_S)
    assert clock.now() == clock.latest() == hands.wall


def test_a_jump_that_is_taken_back_was_none() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 2 * HOUR_S
    clock.look()
    hands.run(300)
    hands.wall -= 2 * HOUR_S
    assert clock.look() == (ClockEvent.WITHDRAWN, 2 * HOUR_S, 0.0)
    assert (clock.now(), clock.jump.seconds) == (START_S + 300, 0)


def test_another_jump_waits_anew() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 2 * HOUR_S
    clock.look()
    hands.run(CONFIRM_S - 1)
    hands.wall += HOUR_S
    assert clock.look() == (ClockEvent.JUMPED, 3 * HOUR_S, 0.0)
    hands.run(CONFIRM_S - 1)
    assert clock.look().event is ClockEvent.NONE
    hands.run(1)
    assert clock.look().event is ClockEvent.CONFIRMED


def test_an_operator_confirms_at_once() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 2 * HOUR_S
    assert clock.confirm() == (ClockEvent.CONFIRMED, 2 * HOUR_S, 2 * HOUR_S)
    hands.wall -= 2 * HOUR_S
    assert clock.confirm().event is ClockEvent.NONE
    assert clock.now() == START_S + 2 * HOUR_S


def test_a_wall_clock_that_runs_away_in_small_steps_is_a_jump() -> None:
    hands = Hands()
    clock = hands.clock()
    for _ in range(100):
        hands.run(30)
        hands.wall += 200
        clock.look()
    assert clock.jump.seconds > JUMP_S_MAX
    assert clock.now() - START_S < 2 * 3000 + JUMP_S_MAX


def test_within_one_boot_a_restart_knows_how_long_it_was_stopped() -> None:
    for step_s in (0.0, -2 * HOUR_S, 250.0):
        hands = Hands()
        last = hands.clock().reading()
        hands.run(100 * HOUR_S)
        hands.wall += step_s
        clock = hands.clock()
        look = clock.resume(last)
        assert clock.now() == START_S + 100 * HOUR_S + max(0.0, step_s)
        assert look.event is (ClockEvent.FOLLOWED if step_s > 0 else ClockEvent.NONE)


def test_a_jump_while_the_node_was_stopped_is_one() -> None:
    hands = Hands()
    last = hands.clock().reading()
    hands.run(60)
    hands.wall += 2 * HOUR_S
    clock = hands.clock()
    assert clock.resume(last) == (ClockEvent.JUMPED, 2 * HOUR_S, 0.0)
    assert clock.now() == START_S + 60


@pytest.mark.parametrize("off_s", [0.01, 0.5, STEP_S_MIN, 5.0])
def test_a_boot_within_a_moment_steps_nothing_back(off_s: float) -> None:
    """The node had stored its time before, and gave out ids since."""
    hands = Hands()
    clock = hands.clock()
    last = clock.reading()
    hands.run(off_s / 2)
    before = clock.now()
    hands.reboot(off_s=off_s / 2)
    clock = hands.clock()
    clock.resume(last)
    assert clock.now() == hands.wall > before


@pytest.mark.parametrize("can_tell_boot", [True, False])
def test_after_a_boot_the_wall_clock_alone_knows(can_tell_boot: bool) -> None:
    hands = Hands()
    last = hands.clock(can_tell_boot=can_tell_boot).reading()
    hands.reboot(off_s=200)
    clock = hands.clock(can_tell_boot=can_tell_boot)
    clock.resume(last)
    assert clock.now() == START_S + 200
    last = clock.reading()
    hands.reboot(off_s=24 * HOUR_S)
    clock = hands.clock(can_tell_boot=can_tell_boot)
    assert clock.resume(last).event is ClockEvent.JUMPED
    assert clock.now() == last.time
    hands.run(CONFIRM_S)
    assert clock.look().event is ClockEvent.CONFIRMED
    assert clock.now() == hands.wall


def test_a_confirmation_at_the_start_goes_back_as_well() -> None:
    hands = Hands()
    last = ClockReading(START_S + 50 * 366 * 86_400)
    clock = hands.clock()
    clock.resume(last, is_confirmed=True)
    assert clock.now() == START_S


def test_warnings_say_what_waits() -> None:
    assert ClockStatus(behind_s=4, ids_ahead_s=4).warnings == []
    told = ClockStatus(jump_s=7200, confirmed_in_s=500.2, behind_s=90, ids_ahead_s=95).warnings
    assert told == [
        "clock: 7200 s ahead of trusted time, unconfirmed; expiry is held for 501 s more",
        "clock: 90 s behind trusted time",
        "ids: 95 s ahead of trusted time",
    ]


STEPS = st.sampled_from((-1e9, -7200.0, -30.0, -0.5, 0.5, 30.0, 250.0, 301.0, 7200.0, 2e9))
MOVES = st.one_of(
    st.tuples(st.just("run"), st.floats(0.0, 45.0)),
    st.tuples(st.just("set"), STEPS),
    st.tuples(st.just("sleep"), st.floats(0.0, 1e5)),
    st.tuples(st.just("restart"), st.floats(0.0, 1e5)),
    st.tuples(st.just("reboot"), st.floats(0.0, 1e5)),
)


@given(st.lists(MOVES, max_size=60))
def test_trusted_time_never_steps_back_and_nothing_moves_it_far_without_a_second_look(
    moves: list[tuple[str, float]],
) -> None:
    """By a wall clock without proof it moves up to JUMP_S_MAX, and as much as time passes; a jump
    moves it no sooner than CONFIRM_S after it was seen."""
    hands = Hands()
    clock = hands.clock()
    proven_s, unproven_s, seen_at = 0.0, 0.0, None
    awake_s = 0.0
    for kind, amount in moves:
        before = clock.now()
        match kind:
            case "run":
                hands.run(amount)
                awake_s += amount
                proven_s += amount
            case "set":
                hands.wall += amount
            case "sleep":
                hands.sleep(amount)
                proven_s += amount
            case "restart" | "reboot":
                last = clock.reading()
                hands.run(amount)
                if kind == "reboot":
                    hands.reboot(0.0)
                else:
                    proven_s += amount
                clock = hands.clock()
                seen_at = None
                unproven_s += JUMP_S_MAX  # it does not remember the steps of the last run
                look = clock.resume(last)
                before = last.time
        if kind not in ("restart", "reboot"):
            look = clock.look()
        assert clock.now() >= before - 1e-3
        if look.event is ClockEvent.JUMPED:
            seen_at = awake_s
        elif look.event is ClockEvent.CONFIRMED:
            assert seen_at is not None and awake_s - seen_at >= CONFIRM_S - 1e-3
            unproven_s += look.moved_s
            seen_at = None
        assert (clock.jump.seconds == 0) is (clock.confirmed_in_s == 0) or clock.jump.seconds
        limit_s = proven_s + unproven_s + awake_s + JUMP_S_MAX
        assert clock.now() - START_S <= limit_s + 1e-3


def test_by_default_it_is_this_machines_time() -> None:
    assert abs(Clock().now() - time.time()) < 5
