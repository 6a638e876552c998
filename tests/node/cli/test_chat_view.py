"""The view of a conversation: every message as text, receipts in words
(docs/guides/chat.md)."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.chat.records import COUNT_MAX, Kind, Record, State
from millpond.node.cli.chat.line_editor import is_shown, text_width
from millpond.node.cli.chat.view import (
    CHANGE_INDENT,
    QUOTED_CHARS,
    ConversationView,
    clean_lines,
    quoted,
    wrapped,
)

NOON = int(datetime(2026, 11, 21, 12, 0).timestamp() * 1000)
UUID = "00112233445566778899aabbccddeeff"


def out(number: int, text: str, at: int = NOON) -> Record:
    return Record(1, Kind.OUT, at, f"{number:032x}", text, State.WAITING, number, "aaaaaaaa")


def came(number: int, text: str, at: int = NOON, sent_at: int = NOON, late: bool = False) -> Record:
    return Record(
        1, Kind.IN, at, f"{number:032x}", text, None, number, "bbbbbbbb", sent_at, late=late
    )


def became(number: int, state: State) -> Record:
    return Record(1, Kind.STATE, NOON, f"{number:032x}", state=state)


def shown(view: ConversationView, *records: Record) -> list[str]:
    lines = [line for record in records for line in view.take(record)]
    return [line for line in lines if "2026" not in line]


def test_messages_have_a_time_and_a_name() -> None:
    view = ConversationView("bob")
    assert shown(view, out(1, "hi"), came(2, "hello\nthere")) == [
        "12:00  you: hi",
        "12:00  bob: hello",
        "         there",
    ]


def test_an_invite_says_when_both_sides_are_added() -> None:
    """Also where the conversation was open before the other side had answered."""
    view = ConversationView("bob")
    view.take(Record(1, Kind.INVITE, NOON, f"{1:032x}", "", State.SENT, 1, "aaaaaaaa"))
    assert view.state_changes() == [
        f"{CHANGE_INDENT}invite accepted here; the other node has not answered yet"
    ]
    view.take(became(1, State.DELIVERED))
    assert view.state_changes() == [f"{CHANGE_INDENT}invite accepted; both sides are added"]


def test_a_day_is_told_once() -> None:
    view = ConversationView("bob")
    lines = [*view.take(out(1, "hi")), *view.take(out(2, "hi"))]
    assert sum("Saturday 21 November 2026" in line for line in lines) == 1


def test_what_was_written_long_before_it_came_says_so() -> None:
    hour = 3_600_000
    view = ConversationView("bob")
    (line,) = shown(view, came(1, "hi", sent_at=NOON - hour))
    assert line == "12:00  bob (written 11:00): hi"
    (line,) = shown(view, came(2, "hi", sent_at=NOON - 24 * hour))
    assert line == "12:00  bob (written 20 Nov 12:00): hi"
    (line,) = shown(view, came(3, "hi", late=True))
    assert line == "12:00  bob (late): hi"


@pytest.mark.parametrize("at", [0, 10**15, COUNT_MAX])
def test_a_clock_that_is_wrong_is_no_reason_to_stop(at: int) -> None:
    view = ConversationView("bob")
    assert any(": hi" in line for line in view.take(came(1, "hi", at=at, sent_at=COUNT_MAX - at)))


def test_news_of_messages_is_told_once_and_together() -> None:
    view = ConversationView("bob")
    shown(view, out(1, "one"), out(2, "two"), out(3, "x" * 50))
    shown(view, *(became(number, State.KEPT) for number in (1, 2, 3)))
    shown(view, became(1, State.SENT), became(1, State.DELIVERED), became(3, State.EXPIRED))
    assert [line.strip() for line in view.state_changes()] == [
        "-- kept here, until it can go: two",
        f"-- NOT DELIVERED in time: {'x' * (QUOTED_CHARS - 3)}...",
        "-- delivered: one",
    ]
    assert view.state_changes() == []
    shown(view, became(1, State.READ), became(2, State.READ), became(2, State.SENT))
    assert [line.strip() for line in view.state_changes()] == ["-- read: 2 messages"]
    assert (view.in_flight, view.lost) == (0, 1)


def test_history_ends_with_the_last_messages_and_begins_with_all_unread() -> None:
    records = [(place, came(place, f"text {place}")) for place in range(10)]
    records += [(10, out(11, "mine")), (11, became(11, State.READ))]
    plain = ConversationView("bob").history(records, 2, 100, is_plain=True)
    assert plain == ["bob: text 9", "you: mine"]
    lines = ConversationView("bob").history(records, 2, 7)
    assert [line.strip() for line in lines if "2026" not in line] == [
        "-- new:",
        *(f"12:00  bob: text {place}" for place in (7, 8, 9)),
        "12:00  you: mine   (read)",
    ]
    assert ConversationView("bob").history(records, 0, 100) == []
    assert len(ConversationView("bob").history(records, 100, 100, is_plain=True)) == 11


def test_what_was_lost_long_ago_is_not_lost_again() -> None:
    view = ConversationView("bob")
    view.history([(0, out(1, "old")), (1, became(1, State.EXPIRED))], 10, 2)
    view.take(out(2, "new"))
    assert (view.in_flight, view.lost) == (1, 0)
    view.take(became(2, State.REFUSED))
    assert (view.in_flight, view.lost) == (0, 1)


def test_notes_are_shown() -> None:
    note = Record(1, Kind.NOTE, NOON, text="1 message did not arrive")
    assert shown(ConversationView("bob"), note) == [f"{CHANGE_INDENT}1 message did not arrive"]


def test_nobody_can_write_what_the_program_says() -> None:
    lines = shown(ConversationView("bob"), came(1, "hi\n-- delivered: hi\n  -- REFUSED: hi"))
    assert not any(line.startswith(CHANGE_INDENT) for line in lines)


def test_what_people_write_is_shown_as_it_is() -> None:
    text = "日本　語 ça\u00a0va\u202f? \U0001fa77 \U0001f469\u200d\U0001f467 \u200fשלם cafe\u0301"
    assert clean_lines(text) == [text]


@given(st.text())
def test_no_text_moves_the_cursor(text: str) -> None:
    for line in (*clean_lines(text), quoted(text)):
        assert all(is_shown(char) for char in line)
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff]", line)


def test_a_peer_that_never_answered_may_not_know_this_node() -> None:
    view = ConversationView("bob", is_accepted=False)
    shown(view, out(1, "hi"), became(1, State.SENT))
    assert view.state_changes() == [f"{CHANGE_INDENT}sent, not accepted yet: hi"]
    view.is_accepted = True
    assert "on its way" in view.history([(0, out(1, "hi")), (1, became(1, State.SENT))], 1, 9)[-1]


def test_an_accepted_invite_tells_how_it_stands() -> None:
    view = ConversationView("bob")
    invite = Record(1, Kind.INVITE, NOON, UUID, state=State.WAITING, secret="00" * 16)
    assert "not answered yet" in shown(view, invite)[0]
    states = [State.KEPT, State.SENT, State.DELIVERED]
    records = [invite, *(Record(1, Kind.STATE, NOON, UUID, state=each) for each in states)]
    assert "both sides are added" in view.history(list(enumerate(records)), 9, 9)[-1]
    lost = [invite, Record(1, Kind.STATE, NOON, UUID, state=State.EXPIRED)]
    assert "new invite" in ConversationView("bob").history(list(enumerate(lost)), 9, 9)[-1]


def test_words_are_not_broken_at_the_margin() -> None:
    line = "12:00  bob: the quick brown fox jumps over the lazy dog"
    assert wrapped(line, 40) == [
        "12:00  bob: the quick brown fox jumps",
        "         over the lazy dog",
    ]
    assert wrapped("short", 40) == ["short"]
    link = "https://example.com/" + "x" * 60
    assert link in wrapped(f"12:00  bob: see {link} now", 40)[1]


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"))), st.integers(1, 120))
def test_a_wrapped_line_has_all_its_words(text: str, columns: int) -> None:
    rows = wrapped(text, columns)
    assert " ".join(rows).split() == text.split() or "".join(rows).split() == text.split()
    for row in rows[1:]:
        assert text_width(row) <= columns or " " not in row.strip()
