"""`millpond chat` through pipes and on a terminal, between nodes that are processes (3f)."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.chat.chat_processes import ChatProcess, Terminal, chat_processes
from tests.node.chat.wrapping_terminal import WrappingTerminal

Pair = tuple[ChatProcess, ChatProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with chat_processes(tmp_path_factory.mktemp("friends")) as pair:
        yield pair


def said(friend: ChatProcess, other: ChatProcess) -> list[str]:
    return [each["text"] for each in friend.history(other) if each["kind"] == "in"]


def test_a_history_of_so_many_messages_is_that_also_as_objects(pair: Pair) -> None:
    """Receipts are records as well, and are not counted."""
    alice, bob = pair
    for first in range(0, 12, 4):
        typed = "".join(f"number {number}\n" for number in range(first, first + 4))
        alice.do("chat", "bob", "--wait", "10", typed=typed.encode())
        bob.do("chat", "alice")
    for count in (1, 3):
        objects = alice.history(bob, count)
        assert objects[0]["kind"] == "out"
        texts = [each["text"] for each in objects if each["kind"] in ("in", "out")]
        assert texts == [f"number {number}" for number in range(12 - count, 12)]
    objects = bob.history(alice, 10)
    assert next(each["text"] for each in objects if each["kind"] == "in") == "number 2"


def test_each_line_of_stdin_is_a_message(pair: Pair) -> None:
    alice, bob = pair
    typed = "one\n\ntwo äöü\n/three\n".encode()
    assert alice.do("chat", "bob", "--wait", "10", typed=typed) == ""
    assert said(bob, alice)[-3:] == ["one", "two äöü", "/three"]
    lines = bob.do("chat", "alice", "--history", "2").splitlines()
    assert lines == ["alice: two äöü", "alice: /three"]


def test_files_are_sent_and_saved_without_a_terminal(pair: Pair, tmp_path: Path) -> None:
    alice, bob = pair
    sent, folder = tmp_path / "pond.txt", tmp_path / "in"
    folder.mkdir()
    sent.write_bytes(b"fish\n" * 30_000)
    options = ("--file", str(sent), "--wait", "30")
    alice.do("chat", "bob", *options, typed=b"look\n")
    words = ("chat", "alice", "--history", "2", "--save", str(folder))
    for name in ("pond.txt", "pond (1).txt"):
        lines = bob.do(*words).splitlines()
        assert lines == ["alice: file: pond.txt (150.0 kB)", "alice: look"]
        assert (folder / name).read_bytes() == sent.read_bytes()
    assert [each.name for each in sorted(folder.iterdir())] == ["pond (1).txt", "pond.txt"]
    assert "no such file" in alice.do("chat", "bob", "--file", "nowhere.txt", code=1)
    assert "no such folder" in alice.do("chat", "bob", "--save", str(sent), code=2)
    assert "need a peer" in alice.do("chat", "--file", str(sent), code=2)


def test_json_has_everything_that_is_known(pair: Pair) -> None:
    alice, bob = pair
    alice.do("chat", "bob", "--wait", "10", typed=b"with a receipt\n")
    *_, out = [each for each in alice.history(bob) if each["kind"] == "out"]
    assert (out["peer"], out["text"], out["state"]) == ("bob", "with a receipt", "waiting")
    fates = [each["state"] for each in alice.history(bob) if each["uuid"] == out["uuid"]]
    assert "delivered" in fates
    listed = json.loads(bob.do("chat", "--json"))
    assert (
        listed["peer"] == "alice" and listed["here"] and listed["stream"] == f"chat/{listed['id']}"
    )


def test_the_list_tells_who_wrote(pair: Pair) -> None:
    alice, bob = pair
    bob.history(alice)
    alice.do("chat", "bob", "--wait", "10", typed=b"unread\n")
    assert bob.do("chat") == "alice is online (not verified), 1 unread\n"
    bob.do("chat", "alice")
    assert bob.do("chat") == "alice is online (not verified)\n"


def test_what_cannot_be_is_told_in_one_line(pair: Pair) -> None:
    alice, bob = pair
    told = alice.do("chat", "nobody", code=4)
    assert told == "millpond chat: there is no peer 'nobody'; `millpond peer ls` lists them\n"
    assert "--web takes no peer" in alice.do("chat", "bob", "--web", code=2)
    assert "without `--ws off`" in bob.do("chat", "--web", code=1)
    assert "larger than any" in alice.do("chat", "bob", typed=b"x" * 40_000, code=1)


def test_a_link_to_the_page_is_new_each_time(pair: Pair) -> None:
    alice, _ = pair
    links = {alice.do("chat", "--web") for _ in range(2)}
    assert len(links) == 2
    assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+/\S*#\S{20,}\n", link) for link in links)
    assert json.loads(alice.do("chat", "--web", "--json"))["url"].startswith("http://")


def test_a_dialogue_on_two_terminals(pair: Pair) -> None:
    alice, bob = pair
    alice.do("chat", "bob", "--wait", "10", typed=b"before\n")
    with Terminal(bob, "chat", "alice") as bobs, Terminal(alice, "chat", "bob") as alices:
        bobs.expect("alice: before")
        bobs.expect("alice> ")
        alices.expect("you: before")
        alices.expect("bob> ")
        bobs.type("are you there?\r")
        bobs.expect("you: are you there?")
        alices.expect("bob: are you there?")
        alices.type("half a line")
        bobs.expect("-- read: are you there?")
        bobs.type("really?\r")
        alices.expect("bob: really?")
        alices.expect("bob> half a line")  # what is being typed stays below
        alices.type("\x15/who\r")
        alices.expect("bob is online")
        alices.type("/nonsense\r")
        alices.expect("unknown command")
        alices.type("//slash\r")
        bobs.expect("alice: /slash")
        alices.type("\x04")
        bobs.type("/quit\r")
        assert (alices.left(), bobs.left()) == (0, 0)


def test_pasted_lines_are_one_message(pair: Pair) -> None:
    alice, bob = pair
    with Terminal(alice, "chat", "bob", "--history", "0") as alices:
        alices.expect("bob> ")
        alices.type("\x1b[200~first\rsecond\x1b[201~\r")
        alices.expect("you: first")
        alices.expect("second")
        alices.expect("-- delivered: first second")
        alices.type("\x04")
        assert alices.left() == 0
    assert said(bob, alice)[-1] == "first\nsecond"
    assert bob.do("chat", "alice", "--history", "1") == "alice: first\n  second\n"


def test_nothing_that_a_peer_writes_reaches_the_terminal_as_a_command(pair: Pair) -> None:
    alice, bob = pair
    alice.do("chat", "bob", "--wait", "10", typed=b"\x1b[2J\x1b]0;gotcha\x07 \xe2\x80\xae evil\n")
    with Terminal(bob, "chat", "alice", "--history", "1") as bobs:
        bobs.expect("\\x1b[2J\\x1b]0;gotcha\\x07 \\x202e evil")
        assert b"\x1b]" not in bobs.raw and b"\x1b[2J" not in bobs.raw
        bobs.type("\x04")
        assert bobs.left() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_terminal_is_as_it_was_however_it_ends(pair: Pair, number: signal.Signals) -> None:
    alice, _ = pair
    with Terminal(alice, "chat", "bob") as alices:
        alices.expect("bob> ")
        assert alices.modes != alices.before
        if number is signal.SIGINT:
            alices.type("\x03")
        else:
            alices.process.send_signal(number)
        assert alices.left() == 0
    with Terminal(alice, "chat", "nobody") as alices:
        alices.expect("there is no peer 'nobody'")
        assert alices.left() == 4


def test_a_narrow_window_shows_the_end_of_what_is_typed(pair: Pair) -> None:
    alice, _ = pair
    with Terminal(alice, "chat", "bob", "--history", "0", columns=20) as alices:
        alices.expect("bob> ")
        alices.type("a long line that has no room")
        alices.expect("bob> at has no room")
        alices.resize(60)
        alices.expect("bob> a long line that has no room")
        alices.type("\x15\x04")
        assert alices.left() == 0


def test_a_window_that_gets_narrow_shows_the_prompt_once(pair: Pair) -> None:
    """On terminals that wrap what does not fit any more, as most do."""
    alice, _ = pair
    with Terminal(alice, "chat", "bob", "--history", "0", columns=60) as alices:
        alices.expect("bob> ")
        alices.type("a line that is long, and longer than the window")
        alices.expect("longer than the window")
        alices.settle()
        screen = WrappingTerminal(60)
        screen.feed(alices.raw)
        before, alices.raw = screen.rows(), b""
        screen.resize(20)
        wrapped = ["bob> a line that is ", "long, and longer tha", "n the window"]
        assert screen.rows()[-3:] == wrapped
        alices.resize(20)
        alices.expect("bob> ")
        alices.settle()
        screen.feed(alices.raw)
        assert screen.rows()[-1] == "bob> han the window"
        assert sum(row.startswith("bob> ") for row in screen.rows()) == 1
        screen.resize(60)
        assert screen.rows()[:-1] == before[:-1], "what stands above is still there"
        alices.type("\x15\x04")
        assert alices.left() == 0


def test_tab_completes_with_whom_to_talk(pair: Pair) -> None:
    alice, _ = pair
    with Terminal(alice, "chat", "bob", "--history", "0") as alices:
        alices.expect("bob> ")
        alices.type("/wh\t\r")
        alices.expect("bob is online")
        alices.type("/t\t")
        alices.expect("bob> /to bob")
        alices.type("\r")
        alices.expect("--- bob is online")
        alices.type("/\t")
        alices.expect("/file   /group   /help   /invite")
        alices.expect("/save   /search   /to bob")
        alices.type("\x15\x04")
        assert alices.left() == 0


def test_what_was_said_while_the_other_was_away_comes_later(tmp_path: Path) -> None:
    alice, bob = ChatProcess(tmp_path, "alice"), ChatProcess(tmp_path, "bob")
    alice.meet(bob)
    bob.meet(alice)
    with alice.serving():
        assert "in time" in alice.do("chat", "bob", "--wait", "0.5", typed=b"you up?\n", code=3)
        assert alice.do("chat") == "bob is away (not verified)\n"
        with Terminal(alice, "chat", "bob") as alices:
            alices.expect("bob is away")
            alices.expect("you: you up?   (kept here, until it can go)")
            with bob.serving():
                alices.expect("bob is online", "-- delivered: you up?")
                assert bob.do("chat", "alice", "--history", "9") == "alice: you up?\n"
                alices.expect("-- read: you up?")
            alices.expect("bob is away")
            alices.type("\x04")
            assert alices.left() == 0


def test_messages_are_found_answered_and_changed(pair: Pair) -> None:
    """In a terminal, with commands, and by `chat search`."""
    alice, bob = pair
    alice.do("chat", "bob", "--wait", "10", typed=b"the heron is bcak\n")
    with Terminal(bob, "chat", "alice", "--history", "1") as bobs:
        bobs.expect("alice: the heron is bcak")
        with Terminal(alice, "chat", "bob", "--history", "1") as alices:
            alices.expect("you: the heron is bcak")
            alices.type("/edit the heron is back\r")
            bobs.expect('alice (edited "the heron is bcak"): the heron is back')
            bobs.type("/reply where?\r")
            alices.expect('bob (to "the heron is back"): where?')
            bobs.type("/react \N{EYES}\r")
            alices.expect("bob reacted \N{EYES} to")
            alices.type("/search hero\r")
            alices.expect("you to bob: the heron is back")
            alices.type("/delete\r")
            bobs.expect("alice deleted the message of")
            alices.type("/last\r/delete\r\x04")
            alices.expect("-1  bob: ", "where?")
            assert alices.left() == 0
        bobs.type("\x04")
        assert bobs.left() == 0
    assert bob.do("chat", "search", "where", "--with", "alice").endswith(" you to alice: where?\n")
    assert json.loads(alice.do("chat", "search", "WHER", "--json"))["peer"] == "bob"
    assert alice.do("chat", "search", "heron") == "no message has these words\n"
    assert "there is no peer" in alice.do("chat", "search", "x", "--with", "carol", code=4)
    assert "--with needs" in alice.do("chat", "bob", "--with", "bob", code=2)
