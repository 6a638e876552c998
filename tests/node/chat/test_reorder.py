"""One sender's messages come out once each and in order, whatever the ways did to them (3f)."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from millpond.node.chat.payloads import Text
from millpond.node.chat.reorder import (
    GAP_WAIT_S,
    HELD_MAX,
    LINES_MAX,
    Gap,
    OrderedMessage,
    ReorderBuffer,
)

LINE = "00000001"


def text(n: int, line: str = LINE) -> Text:
    return Text(line, n, 0, f"{line} {n}")


def take(
    order: ReorderBuffer, n: int, now: float = 0.0, line: str = LINE
) -> list[OrderedMessage | Gap]:
    return order.add(f"{line}-{n}", text(n, line), now)


def numbers(shown: list[OrderedMessage | Gap]) -> list[int]:
    return [each.text.n for each in shown if isinstance(each, OrderedMessage)]


@given(st.integers(1, HELD_MAX - 1).flatmap(lambda count: st.permutations(range(1, count + 1))))
def test_any_order_of_arrival_is_shown_in_the_order_sent(arrivals: list[int]) -> None:
    order = ReorderBuffer()
    shown = [each for n in arrivals for each in take(order, n)]
    assert numbers(shown) == sorted(arrivals)
    assert not any(isinstance(each, Gap) for each in shown)
    assert order.deadline == inf and not order.held


@given(
    st.lists(st.tuples(st.integers(1, 120), st.floats(0, 60)), max_size=150),
    st.sets(st.integers(1, 120), max_size=20),
)
def test_nothing_is_lost_shown_twice_or_shown_early(
    arrivals: list[tuple[int, float]], lost: set[int]
) -> None:
    order, now, shown = ReorderBuffer(), 0.0, list[OrderedMessage | Gap]()
    seen: set[int] = set()
    for n, pause_s in arrivals:
        now += pause_s
        shown += order.release(now)
        if n not in lost and n not in seen:  # the conversation knows uuids that came before
            seen.add(n)
            shown += take(order, n, now)
    while order.held:
        now = order.deadline
        shown += order.release(now)
    assert sorted(numbers(shown)) == sorted(seen)
    on_time = [each.text.n for each in shown if isinstance(each, OrderedMessage) and not each.late]
    assert on_time == sorted(on_time)
    told = [range(each.first, each.last + 1) for each in shown if isinstance(each, Gap)]
    gone = {n for gap in told for n in gap}
    assert gone | set(on_time) >= set(range(1, max(on_time, default=0) + 1))
    late = {each.text.n for each in shown if isinstance(each, OrderedMessage) and each.late}
    assert late <= gone


def test_what_is_early_waits_and_is_then_shown_behind_its_gap() -> None:
    order = ReorderBuffer()
    assert numbers(take(order, 1)) == [1]
    assert take(order, 4, now=10.0) == []
    assert order.release(10.0 + GAP_WAIT_S - 0.1) == []
    gap, received = order.release(10.0 + GAP_WAIT_S)
    assert gap == Gap(LINE, 2, 3)
    assert received == OrderedMessage(f"{LINE}-4", text(4))
    assert take(order, 3, now=99.0) == [OrderedMessage(f"{LINE}-3", text(3), late=True)]


def test_no_more_is_held_than_its_limit() -> None:
    order = ReorderBuffer()
    for n in range(2, HELD_MAX + 1):
        assert take(order, n) == []
    assert len(order.held) == HELD_MAX - 1
    assert numbers(take(order, HELD_MAX + 1)) == list(range(2, HELD_MAX + 2))


def test_a_second_gap_waits_for_its_own_time() -> None:
    order = ReorderBuffer()
    take(order, 2, now=0.0)
    take(order, 4, now=20.0)
    assert numbers(order.release(30.0)) == [2]
    assert order.deadline == 30.0 + GAP_WAIT_S
    assert numbers(order.release(order.deadline)) == [4]


def test_a_sender_who_began_anew_does_not_wait_for_what_it_forgot() -> None:
    order = ReorderBuffer()
    take(order, 1)
    take(order, 3)
    shown = take(order, 1, line="00000002")
    assert [type(each) for each in shown] == [Gap, OrderedMessage, OrderedMessage]
    assert numbers(shown) == [3, 1]
    assert take(order, 2) == [OrderedMessage(f"{LINE}-2", text(2), late=True)]


def test_after_a_crash_what_was_shown_goes_on_where_it_was() -> None:
    order = ReorderBuffer()
    order.resume(LINE, 1)
    order.resume(LINE, 2)
    assert numbers(take(order, 3)) == [3]


def test_what_was_said_too_long_ago_to_be_read_again_is_not_missing() -> None:
    order = ReorderBuffer(is_whole=False)
    assert numbers(take(order, 500)) == [500]
    assert numbers(take(order, 501)) == [501]
    assert numbers(take(order, 1, line="b" * 8)) == [1]
    assert take(order, 3, line="b" * 8) == []


def test_a_peer_that_begins_anew_all_the_time_takes_no_memory() -> None:
    order = ReorderBuffer()
    for line in range(3 * LINES_MAX):
        assert numbers(take(order, 1, line=f"{line:08x}")) == [1]
    assert len(order._expected) == LINES_MAX
