"""Replies, edits, deletions and reactions in the view of a conversation (docs/guides/chat.md)."""

from __future__ import annotations

from datetime import datetime

from millpond.node.chat.records import Kind, Record, State
from millpond.node.cli.chat.shown_messages import MESSAGES_MAX, ShownMessages
from millpond.node.cli.chat.view import CHANGE_INDENT, ConversationView

NOON = int(datetime(2026, 11, 21, 12, 0).timestamp() * 1000)


def record(
    number: int, text: str, action: str = "", about: int = 0, kind: Kind = Kind.IN
) -> Record:
    state = State.WAITING if kind is Kind.OUT else None
    uuid = f"{about:032x}" if action else ""
    return Record(
        1, kind, NOON, f"{number:032x}", text, state, number, "bbbbbbbb", action=action, about=uuid
    )


def mine(number: int, text: str, action: str = "", about: int = 0) -> Record:
    return record(number, text, action, about, Kind.OUT)


def live(*records: Record) -> list[str]:
    view = ConversationView("bob")
    lines = [line for each in records for line in view.take(each)]
    return [line for line in lines if "2026" not in line]


def later(*records: Record) -> list[str]:
    """The same, as history."""
    lines = ConversationView("bob").history(list(enumerate(records)), 100, 1000)
    return [line for line in lines if "2026" not in line]


def test_what_comes_is_told_with_the_message_that_it_is_about() -> None:
    assert live(
        mine(1, "are you there?"),
        record(2, "yes", "reply", 1),
        record(3, "yes!", "edit", 2),
        record(4, "ok", "react", 1),
        record(5, "took back a reaction", "unreact", 1),
        record(6, "deleted a message", "delete", 2),
        record(7, "of what?", "reply", 99),
    ) == [
        "12:00  you: are you there?",
        '12:00  bob (to "are you there?"): yes',
        '12:00  bob (edited "yes"): yes!',
        f'{CHANGE_INDENT}bob reacted ok to "are you there?"',
        f'{CHANGE_INDENT}bob took back the reaction to "are you there?"',
        f"{CHANGE_INDENT}bob deleted the message of 12:00",
        "12:00  bob (to an earlier message): of what?",
    ]


def test_a_history_shows_messages_as_they_are_now() -> None:
    assert later(
        record(1, "helo"),
        record(2, "hello", "edit", 1),
        record(3, "oops"),
        record(4, "deleted a message", "delete", 3),
        mine(5, "hi"),
        record(6, "ok", "react", 5),
        mine(7, "me too", "react", 5),
    ) == [
        "12:00  bob (edited): hello",
        "12:00  bob: (deleted)",
        "12:00  you: hi   [ok bob, me too you]   (waits for a key of the peer)",
    ]


def test_nobody_edits_or_deletes_what_another_one_said() -> None:
    forged = (
        mine(1, "mine"),
        record(2, "forged", "edit", 1),
        record(3, "deleted a message", "delete", 1),
    )
    assert live(*forged) == [
        "12:00  you: mine",
        "12:00  bob (edited an earlier message): forged",
        f"{CHANGE_INDENT}bob deleted an earlier message",
    ]
    assert later(*forged)[0].startswith("12:00  you: mine ")


def test_a_message_of_the_peer_with_the_uuid_of_an_own_one_is_another_one() -> None:
    """A sender chooses the uuids of its messages."""
    told = (
        mine(1, "I owe you 5"),
        record(1, "I owe you 50"),
        record(2, "I owe you 500", "edit", 1),
        record(3, "ok", "react", 1),
    )
    assert live(*told) == [
        "12:00  you: I owe you 5",
        "12:00  bob: I owe you 50",
        '12:00  bob (edited "I owe you 50"): I owe you 500',
        f'{CHANGE_INDENT}bob reacted ok to "I owe you 5"',
    ]
    for each in (told, (told[1], told[0], *told[2:])):
        assert sorted(later(*each)) == [
            "12:00  bob (edited): I owe you 500",
            "12:00  you: I owe you 5   [ok bob]   (waits for a key of the peer)",
        ]


def test_a_reaction_is_short_and_on_one_line() -> None:
    lines = later(
        mine(1, "hi"),
        record(2, "ok\n12:00  you: forged", "react", 1),
        record(3, "x" * 65, "react", 1),
    )
    assert lines == [
        "12:00  you: hi   [ok 12:00  you: forged bob]   (waits for a key of the peer)",
        f"12:00  bob: {'x' * 65}",
    ]


def test_pipes_show_texts_and_new_texts_alone() -> None:
    view = ConversationView("bob")
    records = [
        record(1, "helo"),
        record(2, "hello", "edit", 1),
        record(3, "ok", "react", 1),
        record(4, "answer", "reply", 1),
        record(5, "deleted a message", "delete", 4),
    ]
    lines = [view.plain(each) for each in records]
    assert lines == [["bob: helo"], ["bob (edited): hello"], [], ["bob: answer"], []]
    plain = view.history(list(enumerate(records)), 2, 1000, is_plain=True)
    assert plain == ["bob (edited): hello"], "the last two messages, of which one is deleted"


def test_a_change_that_comes_before_its_message_counts() -> None:
    messages = ShownMessages()
    messages.learn(record(2, "hello", "edit", 1))
    messages.learn(record(1, "helo"))
    (message,) = messages.latest(Kind.IN)
    assert (message.text, message.is_edited) == ("hello", True)


def test_a_late_change_does_not_undo_a_later_one() -> None:
    records = [
        record(1, "helo"),
        record(4, "hello", "edit", 1),
        record(3, "hell", "edit", 1),
        record(6, "ok", "react", 1),
        record(5, "no", "react", 1),
        record(2, "took back a reaction", "unreact", 1),
    ]
    assert later(*records) == ["12:00  bob (edited): hello   [ok bob]"]
    assert live(*records) == [
        "12:00  bob: helo",
        '12:00  bob (edited "helo"): hello',
        f'{CHANGE_INDENT}bob reacted ok to "hello"',
    ]


def test_so_many_messages_are_known_and_no_more() -> None:
    messages = ShownMessages()
    for number in range(MESSAGES_MAX + 1):
        messages.learn(record(number, "x"))
        messages.learn(record(number, "x", "react", MESSAGES_MAX * 9))
    assert messages.get(Kind.IN, f"{0:032x}") is None
    assert len(list(messages.latest(Kind.IN))) == messages._early_count == MESSAGES_MAX
