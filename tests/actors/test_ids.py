"""Message ids ascend whatever the clock does (P2P-08, PA-31)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.errors import IdsExhausted
from millpond.actors.ids import EPOCH_MS, IdSource, created_ms

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
    st.lists(st.tuples(st.floats(-3600, 4.9), st.integers(1, 50)), max_size=60),
)
def test_p2p_08_ids_ascend_over_any_clock(instance: int, steps: list[tuple[float, int]]) -> None:
    ids, last = IdSource(instance), 0
    ids.next(NOW)
    for offset, count in steps:
        # A clock that went back for more than 5 s is refused ids, never given an old one.
        for _ in range(count):
            try:
                message_id = ids.next(NOW + offset)
            except IdsExhausted:
                assert offset < 0
                break
            assert last < message_id < 2**63
            assert message_id >> 12 & 1023 == instance
            last = message_id


def test_pa_31_a_full_millisecond_borrows_the_next_one() -> None:
    ids = IdSource(0)
    given_out = [ids.next(NOW) for _ in range(4097)]
    assert given_out == sorted(set(given_out))
    assert created_ms(given_out[4095]) == created_ms(given_out[0])
    assert created_ms(given_out[4096]) == created_ms(given_out[0]) + 1


def test_pa_31_no_more_than_the_limit_ahead_of_the_clock() -> None:
    ids = IdSource(0, ahead_ms_max=2)
    for _ in range(3 * 4096):
        ids.next(NOW)
    with pytest.raises(IdsExhausted):
        ids.next(NOW)
    assert created_ms(ids.next(NOW + 0.001)) == int(NOW * 1000) + 3


def test_ids_go_on_above_the_last_one_of_an_earlier_run() -> None:
    last = IdSource(7).next(NOW)
    assert IdSource(3, last_id=last).next(NOW - 1) > last
    with pytest.raises(IdsExhausted):
        IdSource(3, last_id=last).next(NOW - 60)
