"""Lines: no message of a sender is accepted twice, in whatever order and however often it comes."""

from __future__ import annotations

import os

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.peers.contact_keys import ContactKeys
from millpond.node.peers.lines import LINES_MAX, WINDOW, Lines, ReplayStatus
from millpond.node.peers.peer_store import CHANNELS_MAX, PeerState
from millpond.node.peers.sealed_message import SEEN_LINES_MAX, Content, Kind

NOW_MS = 10 * 86_400_000
OVER_MS = 3_600_000
"""So long after its deadline a message is not accepted, whatever its line."""


def message(counter: int, began: int = 1, settled: int = 0, deadline: int = 0) -> Content:
    """A message of the line that began then."""
    return Content(
        kind=Kind.MESSAGE,
        channel=b"notes",
        deadline=deadline,
        sent_at=0,
        uuid=bytes(16),
        line=began.to_bytes(8, "big"),
        began=began,
        counter=counter,
        settled=settled,
        seen=(),
        floor=0,
        key=None,
        body=b"",
    )


def accept(lines: Lines, content: Content) -> bool:
    """As a node does; the state is stored and read again after each message."""
    if lines.replay_status(content) is not ReplayStatus.NEW:
        return False
    lines.mark(content, content.counter.to_bytes(32, "big"), NOW_MS)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(lines), type=Lines)
    assert read == lines
    return True


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 7)), max_size=60))
def test_nothing_is_accepted_twice(messages: list[tuple[int, int]]) -> None:
    lines = Lines()
    accepted = [each for each in messages + messages if accept(lines, message(*each))]
    assert len(accepted) == len(set(accepted))


@given(st.lists(st.tuples(st.integers(1, 2**53), st.just(1), st.integers(0, 2**53)), max_size=20))
def test_counters_of_any_size_cost_no_more_than_small_ones(
    messages: list[tuple[int, int, int]],
) -> None:
    """A sender chooses counters; the shift of the window is not as large as their distance."""
    lines = Lines()
    accepted = [each for each in messages + messages if accept(lines, message(*each))]
    assert len(accepted) == len({counter for counter, _, _ in accepted})


@given(st.permutations(range(1, 80)))
@settings(max_examples=30)
def test_whatever_the_order_everything_is_accepted(counters: list[int]) -> None:
    lines = Lines()
    accepted = [accept(lines, message(each)) for each in counters]
    assert all(accepted)
    (seen,) = lines.seen(lines.names, frozenset(), 16)
    assert (seen.highest, seen.upto, seen.missing) == (79, 79, ())
    assert seen.hash == (79).to_bytes(32, "big")


@given(st.sets(st.integers(1, 900), min_size=1), st.integers(1, 40))
def test_the_account_is_true(counters: set[int], limit: int) -> None:
    """Up to `upto` a counter is missing if and only if it was not accepted."""
    lines = Lines()
    for each in counters:
        accept(lines, message(each))
    (seen,) = lines.seen(lines.names, frozenset(), limit)
    assert len(seen.missing) <= limit
    assert set(seen.missing) == set(range(1, seen.upto + 1)) - counters
    assert seen.upto == seen.highest or len(seen.missing) == limit


def test_what_is_not_finished_is_missing_yet() -> None:
    lines = Lines()
    for counter in range(1, 6):
        accept(lines, message(counter))
    line = message(1).line
    (seen,) = lines.seen(lines.names, {(line, 3)}, 16)
    assert (seen.missing, seen.upto) == ((3,), 5)
    assert lines.replay_status(message(3)) is ReplayStatus.SEEN


def test_what_is_taken_back_is_missing_and_accepted_once_more() -> None:
    lines = Lines()
    for counter in range(1, 6):
        accept(lines, message(counter))
    lines.take_back(message(1).line, 3)
    (seen,) = lines.seen(lines.names, frozenset(), 16)
    assert (seen.missing, seen.upto) == ((3,), 5)
    assert accept(lines, message(3)) and not accept(lines, message(3))


@given(st.integers(0, 5000), st.integers(1, 3))
def test_nothing_else_is_taken_back(counter: int, began: int) -> None:
    """Counters that the window has not, and lines that are forgotten."""
    lines = Lines()
    accept(lines, message(2000))
    if (counter, began) != (2000, 1):
        lines.take_back(message(1, began).line, counter)
    assert lines.replay_status(message(2000)) is ReplayStatus.SEEN
    assert lines.replay_status(message(2000 - WINDOW)) is ReplayStatus.OLD


def test_what_is_refused_is_said_and_not_asked_again() -> None:
    lines = Lines()
    accept(lines, message(1))
    lines.mark(message(2), bytes(32), NOW_MS, is_refused=True)
    accept(lines, message(3))
    (seen,) = lines.seen(lines.names, frozenset(), 16)
    assert (seen.refused, seen.missing, seen.upto) == ((2,), (), 3)
    assert lines.replay_status(message(2)) is ReplayStatus.SEEN


def test_what_the_sender_has_settled_is_not_missing_and_not_accepted() -> None:
    """It expired there; a relay that kept it back is too late."""
    lines = Lines()
    accept(lines, message(9, settled=7))
    (seen,) = lines.seen(lines.names, frozenset(), 16)
    assert seen.missing == (7, 8)
    assert lines.replay_status(message(6)) is ReplayStatus.SEEN
    assert accept(lines, message(8))


def test_below_the_window_nothing_is_accepted() -> None:
    lines = Lines()
    accept(lines, message(WINDOW + 5))
    assert lines.replay_status(message(6)) is ReplayStatus.NEW
    assert lines.replay_status(message(5)) is ReplayStatus.OLD


def test_a_line_that_was_forgotten_is_never_known_again() -> None:
    """A relay that keeps a message back until its line is forgotten gains nothing."""
    lines = Lines()
    for began in range(1, SEEN_LINES_MAX + 3):
        assert accept(lines, message(1, began))
    assert lines.floor == 2
    for began in (1, 2):
        assert lines.replay_status(message(1, began)) is ReplayStatus.OLD
        assert lines.replay_status(message(5, began)) is ReplayStatus.OLD
    assert lines.replay_status(message(1, 3)) is ReplayStatus.SEEN
    assert lines.replay_status(message(2, 3)) is ReplayStatus.NEW


def test_a_line_is_remembered_while_its_messages_could_come_again() -> None:
    lines = Lines()
    for began in range(1, LINES_MAX + 1):
        assert accept(lines, message(1, began, deadline=NOW_MS - OVER_MS))
    assert lines.names[0] == message(1, 1).line
    for began in range(1, LINES_MAX + 1):
        assert lines.replay_status(message(1, began)) is ReplayStatus.SEEN


def test_of_too_many_lines_the_oldest_are_forgotten_and_none_begins_before_them() -> None:
    """Else it would be the first to go, and what was accepted of it could come again."""
    lines = Lines()
    for began in range(10, LINES_MAX + 12):
        assert accept(lines, message(1, began, deadline=NOW_MS))
    assert len(lines.lines) == LINES_MAX and lines.floor == 11
    for began in (5, 10, 11):
        assert lines.replay_status(message(2, began)) is ReplayStatus.OLD
    assert lines.replay_status(message(1, 12)) is ReplayStatus.SEEN
    assert lines.replay_status(message(2, 12)) is ReplayStatus.NEW


def test_an_old_line_that_comes_late_is_remembered() -> None:
    """Its messages overtook one another on their way."""
    lines = Lines()
    for began in range(5, 0, -1):
        assert accept(lines, message(1, began))
    for began in range(1, 6):
        assert lines.replay_status(message(1, began)) is not ReplayStatus.NEW


def test_a_line_begins_once() -> None:
    lines = Lines()
    accept(lines, message(1, 1000))
    assert (
        lines.replay_status(msgspec.structs.replace(message(2, 1000), began=999))
        is ReplayStatus.OLD
    )


def test_a_line_costs_less_than_384_bytes() -> None:
    lines = Lines()
    for began in range(LINES_MAX):
        lines.mark(message(2**53, 2**53 - began, deadline=2**53), os.urandom(32), NOW_MS)
    assert len(lines.lines) == LINES_MAX
    assert len(msgspec.msgpack.encode(lines)) < 384 * LINES_MAX


def test_a_peer_costs_less_than_2_kb() -> None:
    state = PeerState()
    now_ms = 1_763_683_200_000
    for began in range(SEEN_LINES_MAX):
        for counter in (1, 900, 2000):
            state.lines.mark(message(counter, now_ms + began), os.urandom(32), NOW_MS)
    keys = ContactKeys()
    for number in range(9):
        keys.make(now_ms + number, 777_600_000, os.urandom)
    state.keys = keys
    state.their_key = keys.current(0)
    encoded = len(msgspec.msgpack.encode(state))
    assert encoded < 2048
    assert CHANNELS_MAX == 64
