"""Moments of cron expressions and intervals, over the changes of clocks as well."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.jobs.recurrence import BadRecurrence, Recurrence

BERLIN = "Europe/Berlin"
EXPRESSIONS = ("*/7 * * * *", "30 2 * * *", "0 7 * * mon-fri", "15,45 * 1 * *", "10 */5 * * * *")


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def moments(cron: str, start: str, count: int, zone: str = BERLIN) -> list[str]:
    recurrence, found, moment = Recurrence(cron, zone), [], at(start, zone)
    for _ in range(count):
        following = recurrence.next_after(moment)
        assert following is not None
        moment = following
        found.append(datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%m-%dT%H:%M%z"))
    return found


def test_working_days_in_a_time_zone() -> None:
    assert moments("0 7 * * mon-fri", "2026-11-27T06:59", 3) == [
        "11-27T07:00+0100",
        "11-30T07:00+0100",
        "12-01T07:00+0100",
    ]


def test_a_time_that_the_clocks_jump_over_comes_right_after_the_gap() -> None:
    assert moments("30 2 * * *", "2026-03-28T12:00", 2) == ["03-29T03:00+0200", "03-30T02:30+0200"]


def test_a_time_that_comes_twice_counts_once() -> None:
    assert moments("30 2 * * *", "2026-10-24T12:00", 2) == ["10-25T02:30+0200", "10-26T02:30+0100"]


def test_within_an_hour_that_comes_twice_the_next_moment_is_still_to_come() -> None:
    second_0215 = at("2026-10-25T01:15") + 2 * 3600
    following = Recurrence("30 2 * * *", BERLIN).next_after(second_0215)
    assert following == at("2026-10-26T02:30")


def test_each_half_hour_passes_twice_where_the_clocks_are_set_back() -> None:
    assert moments("*/30 * * * *", "2026-10-25T01:45", 5) == [
        "10-25T02:00+0200",
        "10-25T02:30+0200",
        "10-25T02:00+0100",
        "10-25T02:30+0100",
        "10-25T03:00+0100",
    ]


@given(
    st.sampled_from(EXPRESSIONS),
    st.floats(1.7e9, 1.9e9),
    st.sampled_from(["UTC", BERLIN, "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_the_last_moment_until_the_next_one_is_the_next_one(
    cron: str, moment: float, zone: str
) -> None:
    recurrence = Recurrence(cron, zone)
    following = recurrence.next_after(moment)
    assert following is not None and following > moment
    assert recurrence.last_until(following) == following
    again = recurrence.next_after(following)
    assert again is not None and again > following


@given(st.integers(1000, 10**9), st.integers(0, 2 * 10**12), st.floats(1.7e9, 1.9e9))
def test_intervals_count_from_their_anchor(every_ms: int, anchor_ms: int, moment: float) -> None:
    recurrence = Recurrence(every_ms=every_ms, anchor_ms=anchor_ms)
    following = recurrence.next_after(moment)
    assert following is not None and following > moment - 0.001
    steps = (round(following * 1000) - anchor_ms) / every_ms
    assert steps == int(steps) and following - moment <= every_ms / 1000 + 0.001


@pytest.mark.parametrize(
    ("recurrence", "told"),
    [
        (Recurrence(), "either"),
        (Recurrence("* * * * *", every_ms=5000), "either"),
        (Recurrence(every_ms=10), "shortest"),
        (Recurrence("61 * * * *"), "not a cron expression"),
        (Recurrence("0 0 30 2 *"), "not a cron expression"),
        (Recurrence("* * * *"), "not a cron expression"),
        (Recurrence("*" * 300), "at most"),
        (Recurrence("* * * * *", "Europe/Nowhere"), "no such time zone"),
        (Recurrence("* * * * *", "../../etc/passwd"), "no such time zone"),
    ],
)
def test_what_cannot_be_read_is_told(recurrence: Recurrence, told: str) -> None:
    with pytest.raises(BadRecurrence, match=told):
        recurrence.check(1.8e9)
