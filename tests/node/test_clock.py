"""The node's time line: it starts at the wall clock and never steps back."""

from __future__ import annotations

import time

import pytest

from millpond.node.clock import STEP_S_MIN, Clock


class Hands:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.monotonic = 100.0
        self.wall = 1_763_683_200.0

    def clock(self) -> Clock:
        return Clock(lambda: self.monotonic, lambda: self.wall)

    def run(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


def test_it_starts_at_the_wall_clock_and_runs_with_the_monotonic_one() -> None:
    hands = Hands()
    clock = hands.clock()
    assert clock.now() == 1_763_683_200.0
    hands.run(2.5)
    assert clock.now() == 1_763_683_202.5


@pytest.mark.parametrize("step_s", [-3600.0, -0.5, 0.5, 3600.0])
def test_a_stepped_wall_clock_moves_nothing(step_s: float) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += step_s
    assert clock.now() == 1_763_683_200.0


def test_after_a_sleep_of_the_machine_it_catches_up() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += 3600
    assert clock.resync() == 3600
    assert clock.now() == 1_763_686_800.0
    assert clock.resync() == 0


@pytest.mark.parametrize("step_s", [-3600.0, -STEP_S_MIN, 0.0, STEP_S_MIN * 0.9])
def test_catching_up_never_steps_back_nor_for_little(step_s: float) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += step_s
    before = clock.now()
    assert clock.resync() == 0 and clock.now() == before


def test_by_default_it_is_this_machines_time() -> None:
    assert abs(Clock().now() - time.time()) < 5
