"""Groups in a terminal, and their view (docs/guides/chat.md, Groups)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from millpond.node.chat.records import Kind, Record, State, Transfer
from millpond.node.cli.chat.files import KnownFiles
from millpond.node.cli.chat.view import ConversationView
from millpond.node.peers.file_format import File
from tests.node.chat.chat_processes import Terminal, chat_processes

NOON = int(datetime(2026, 11, 21, 12, 0).timestamp() * 1000)
NAMES = {"b": "bob", "c": "carol", "a": "you"}


def record(kind: Kind, number: int, text: str = "", **fields: object) -> Record:
    return Record(1, kind, NOON, f"{number:032x}", text, **fields)  # type: ignore[arg-type]


def shown(view: ConversationView, *records: Record) -> list[str]:
    lines = [line for each in records for line in view.take(each)]
    return [line for line in lines if "2026" not in line]


def test_each_message_has_the_name_of_its_author_and_only_that_one_changes_it() -> None:
    view = ConversationView("pond", names=NAMES)
    lines = shown(
        view,
        record(Kind.IN, 1, "from bob", by="b"),
        record(Kind.IN, 1, "of the same uuid", by="c"),
        record(Kind.IN, 2, "forged", by="c", action="edit", about=f"{1:032x}"),
        record(Kind.IN, 3, "!", by="c", action="react", about=f"{1:032x}"),
        record(Kind.NOTE, 4, "joined the group", by="a"),
        record(Kind.HELD, 5, "", by="c"),
    )
    assert lines[:2] == ["12:00  bob: from bob", "12:00  carol: of the same uuid"]
    assert "carol (edited" in lines[2] and "same uuid" in lines[2]
    assert "carol reacted !" in lines[3]
    assert lines[4].strip() == "-- you joined the group" and len(lines) == 5
    by_bob = view.messages.get(Kind.IN, f"{1:032x}", "b")
    assert by_bob is not None and by_bob.text == "from bob"


def test_a_message_says_how_many_have_it_and_have_read_it() -> None:
    view = ConversationView("pond", names=NAMES)
    out = record(Kind.OUT, 1, "hi", state=State.WAITING)
    shown(view, out, record(Kind.STATE, 1, state=State.KEPT, count=2))
    assert view.state_changes() == [] and view.in_flight == 1
    shown(view, record(Kind.STATE, 1, state=State.READ, members=("b",)))
    assert view.own_state(out.uuid) == "delivered to 1 of 2, read by 1"
    assert view.state_changes() == [] and view.in_flight == 1
    # A forwarded message of somebody else with this uuid has states of its own.
    shown(view, record(Kind.STATE, 1, state=State.KEPT, count=9, by="b"))
    shown(view, record(Kind.STATE, 1, state=State.DELIVERED, members=("c",)))
    assert view.in_flight == 0
    (line,) = view.state_changes()
    assert line.strip() == "-- delivered to 2 of 2, read by 1: hi"


def test_a_file_says_how_many_have_it_and_who_does_not_take_it() -> None:
    file = File(root="0" * 64, size=5, key="0" * 64, name="a.txt")
    files = KnownFiles()

    def told(*records: Record) -> list[str]:
        return [line.strip() for each in records for line in files.learn(1, each)]

    out = record(Kind.OUT, 1, "file", file=file, members=("b", "c"))
    state = {"transfer": Transfer.RECEIVED}
    of_another = record(Kind.IN, 1, "file", file=file, by="b")
    assert told(out, of_another, record(Kind.FILE_OUT, 1, members=("b",), **state)) == []
    refused = record(Kind.FILE_OUT, 1, "no room", members=("c",), transfer=Transfer.REFUSED)
    assert told(refused) == ["-- a.txt: not taken by 1 of 2 members (no room)"]
    assert files.are_pending and not list(files.received())
    assert told(record(Kind.FILE_OUT, 1, **state)) == ["-- a.txt: received by 1 of 2 members"]
    assert told(record(Kind.FILE_IN, 1, by="b", **state)) == ["-- a.txt: complete: /save saves it"]
    assert [each.record.by for each in files.received()] == ["b"] and not files.are_pending


def test_a_file_of_before_is_not_waited_for_and_a_deleted_one_is_not_saved() -> None:
    file = File(root="0" * 64, size=5, key="0" * 64, name="a.txt")
    files = KnownFiles()
    for number in (1, 2):
        files.learn(number, record(Kind.OUT, number, "file", file=file))
        files.learn(number, record(Kind.FILE_OUT, number, transfer=Transfer.REFUSED))
        files.learn(number, record(Kind.IN, number, "file", file=file, by="b"))
        files.learn(number, record(Kind.FILE_IN, number, by="b", transfer=Transfer.RECEIVED))
    sent = bytes.fromhex(record(Kind.OUT, 2).uuid)
    assert list(files.not_taken([sent, bytes(16)])) == ["a.txt"]
    assert list(files.not_taken([])) == []
    about = record(Kind.IN, 2).uuid
    files.learn(3, record(Kind.IN, 3, by="c", action="delete", about=about))
    files.learn(4, record(Kind.IN, 4, by="b", action="delete", about=about))
    assert [each.sequence for each in files.received()] == [1]


def test_two_people_in_a_group_at_their_terminals(tmp_path: Path) -> None:
    with (
        chat_processes(tmp_path) as (alice, bob),
        Terminal(alice, "chat", "bob") as at_alice,
        Terminal(bob, "chat", "alice") as at_bob,
    ):
        at_alice.expect("/help tells")
        at_alice.type('/group new "the pond" bob\r')
        at_alice.expect("created", "the pond: group of 1")
        at_bob.expect("alice invites you")
        at_bob.type("/to the pond\r")
        at_bob.expect("the pond> ")
        at_bob.type("/group accept\r")
        at_bob.expect("the pond: group of 2")
        at_alice.expect("bob joined the group")
        at_alice.type("hello pond\r")
        at_bob.expect("alice: hello pond")
        at_alice.expect("delivered to 1 of 1")
        at_bob.type("/group\r")
        at_bob.expect("alice, admin", "you")
        at_bob.type("/group rename mine\r")
        at_bob.expect("only admins may do this")
        at_bob.type("/verify\r")
        at_bob.expect("about one peer")
        at_alice.type("/group remove bob\r")
        at_bob.expect("alice removed you")
        at_bob.type("anybody?\r")
        at_bob.expect("not sent")
        at_alice.type("/last\r")
        at_alice.expect("hello pond", "read by 1")
