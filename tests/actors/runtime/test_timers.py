"""Deadlines: one heap, the earliest wins, outdated entries cost nothing for long."""

from __future__ import annotations

from math import inf

from millpond.actors.runtime.timers import SLACK, DeadlineHeap, TimerOwner, Timers


def due(timers: Timers, now: float) -> list[TimerOwner]:
    owners = []
    while (owner := timers.take_due(now)) is not None:
        owners.append(owner)
    return owners


class Sleeper:
    def __init__(self) -> None:
        self.deadline = inf

    def wake(self, now: float) -> None:
        raise AssertionError("the test wakes nobody")


def test_the_earliest_deadline_wins_and_later_ones_change_nothing() -> None:
    earlier: list[float] = []
    timers, sleeper = Timers(earlier.append), Sleeper()
    for when in (30.0, 10.0, 20.0):
        timers.arm(sleeper, when)
    assert timers.next_at == 10.0 and sleeper.deadline == 10.0
    assert earlier == [30.0, 10.0]
    assert due(timers, 9.9) == []
    assert due(timers, 50.0) == [sleeper]
    assert timers.next_at == inf and sleeper.deadline == inf


def test_due_owners_come_in_order_of_time_and_then_of_arrival() -> None:
    timers = Timers(lambda when: None)
    sleepers = [Sleeper() for _ in range(4)]
    for sleeper, when in zip(sleepers, (2.0, 1.0, 2.0, 3.0), strict=True):
        timers.arm(sleeper, when)
    assert due(timers, 2.0) == [sleepers[1], sleepers[0], sleepers[2]]
    assert timers.next_at == 3.0


def test_a_disarmed_owner_is_not_woken_and_may_be_armed_again() -> None:
    timers, sleeper = Timers(lambda when: None), Sleeper()
    timers.arm(sleeper, 1.0)
    timers.disarm(sleeper)
    assert timers.next_at == inf and due(timers, 9.0) == []
    timers.arm(sleeper, 1.0)
    assert due(timers, 1.0) == [sleeper]


def test_the_heap_does_not_grow_with_outdated_entries() -> None:
    current: dict[str, float] = {}
    agenda = DeadlineHeap[str](lambda when, item: current.get(item) == when)
    for number in range(10_000):
        item = f"item {number % 10}"
        current[item] = 1e6 - number
        agenda.add(current[item], item)
        assert len(agenda) <= 3 * 10 + SLACK + 1
    assert sorted(agenda.due(1e6)) == sorted(current)
    assert len(agenda) == 0
