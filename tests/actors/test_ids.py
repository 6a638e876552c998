"""Message ids ascend whatever the clock does (P2P-08, PA-31)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.errors import IdsExhausted
from millpond.actors.ids import END_MS, EPOCH_MS, IdSource, created_ms, last_id_at

NOW = 1_763_683_200.0


def test_pa_31_layout_is_time_node_sequence() -> None:
    ids = IdSource(5)
    assert [ids.next(NOW) for _ in range(8)][-1] == 0x1BA3CA3A0FC05007
    ms = int(NOW * 1000) - EPOCH_MS
    assert ids.next(NOW) == ms << 22 | 5 << 12 | 8
    assert created_ms(ids.next(NOW)) == int(NOW * 1000)


@pytest.mark.parametrize("instance", [-1, 1024])
def test_an_instance_has_ten_bits(instance: int) -> None:
    with pytest.raises(ValueError, match=r"within 0\.\.1023"):
        IdSource(instance)


@given(
    st.integers(0, 1023),
    st.lists(
        st.tuples(st.floats(-1.7e9, 1e8), st.integers(1, 50), st.none() | st.integers(0, 1023)),
        max_size=60,
    ),
)
def test_p2p_08_ids_ascend_over_any_clock_and_restart(
    instance: int, steps: list[tuple[float, int, int | None]]
) -> None:
    ids, last = IdSource(instance), 0
    for offset, count, restarted_as in steps:
        if restarted_as is not None:
            instance = restarted_as
            ids.resume(instance, last)
        for _ in range(count):
            message_id = ids.next(NOW + offset)
            assert last < message_id < 2**63
            assert message_id >> 12 & 1023 == instance
            last = message_id


def test_pa_31_a_full_millisecond_borrows_the_next_one() -> None:
    ids = IdSource(0)
    given_out = [ids.next(NOW) for _ in range(4097)]
    assert given_out == sorted(set(given_out))
    assert created_ms(given_out[4095]) == created_ms(given_out[0])
    assert created_ms(given_out[4096]) == created_ms(given_out[0]) + 1


@pytest.mark.parametrize("behind_s", [0.0, 60.0, 86_400.0 * 366 * 50])
def test_pa_31_a_clock_behind_stops_nothing_and_uses_a_millisecond_for_4096_ids(
    behind_s: float,
) -> None:
    first = IdSource(7)
    last = first.next(NOW)
    ids = IdSource(7, last_id=last)
    for _ in range(10 * 4096):
        last = ids.next(NOW - behind_s)
    assert created_ms(last) == int(NOW * 1000) + 10
    assert round(ids.ahead_s(NOW - behind_s) - behind_s, 3) == 0.01
    assert created_ms(ids.next(NOW + 1)) == int((NOW + 1) * 1000)
    assert ids.ahead_s(NOW + 1) == 0


def test_restarts_with_a_clock_behind_use_no_future() -> None:
    """Each restart goes on within the millisecond of the highest id."""
    last = IdSource(7).next(NOW)
    for _ in range(1000):
        last = IdSource(7, last_id=last).next(NOW - 60)
    assert created_ms(last) == int(NOW * 1000)


def test_ids_of_another_instance_go_on_above_the_last_one() -> None:
    last = IdSource(7).next(NOW)
    for instance in (3, 9):
        assert IdSource(instance, last_id=last).next(NOW - 1) > last


@pytest.mark.parametrize("late_s", [0.001, 1.0, 1e9])
def test_a_clock_behind_the_end_of_ids_is_an_error_and_spends_nothing(late_s: float) -> None:
    ids = IdSource(1)
    last = ids.next(NOW)
    for _ in range(3):
        with pytest.raises(IdsExhausted):
            ids.next(END_MS / 1000 + late_s)
    assert ids.has_ended(END_MS / 1000 + late_s) and not ids.has_ended(NOW)
    assert ids.next(NOW) == last + 1, "the clock was set right"


def test_the_last_id_is_the_last_one() -> None:
    ids = IdSource(1023, last_id=2**63 - 3)
    assert ids.next(NOW) == 2**63 - 2
    assert not ids.has_ended(NOW)
    assert ids.next(NOW) == 2**63 - 1
    assert ids.has_ended(NOW)
    with pytest.raises(IdsExhausted):
        ids.next(NOW)
    with pytest.raises(IdsExhausted):
        IdSource(3, last_id=2**63 - 1).next(NOW)


@given(st.lists(st.floats(-10.0, 500.0), max_size=40))
def test_no_id_is_later_than_a_bound_that_was_told_before(offsets: list[float]) -> None:
    ids, bounds = IdSource(7), [NOW]

    def reserve_more() -> None:
        bounds.append(max(bounds[-1], ids.time) + 60.0)
        ids.bound(bounds[-1], reserve_more)

    ids.bound(NOW, reserve_more)
    for offset in offsets:
        assert created_ms(ids.next(NOW + offset)) <= bounds[-1] * 1000
    assert len(bounds) <= 1 + 10, "a bound is used up before the next one"


def test_ids_begin_above_all_of_a_time() -> None:
    for instance in (0, 1023):
        first = IdSource(instance, last_id=last_id_at(NOW)).next(NOW - 60.0)
        assert created_ms(first) == int(NOW * 1000) + 1
        assert first > IdSource(1023, last_id=IdSource(1023).next(NOW)).next(NOW)
    assert last_id_at(0.0) == 0
    with pytest.raises(IdsExhausted):
        IdSource(0, last_id=last_id_at(END_MS / 1000 + 1e6)).next(NOW)
