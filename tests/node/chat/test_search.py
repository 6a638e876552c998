"""Search over histories: an index in memory, made by searches (docs/guides/chat.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.errors import DataTooLarge, EmptyData, Malformed, UnknownPeer
from millpond.actors.streams import messages as m
from millpond.node.chat import search
from millpond.node.chat.local_stream import REQUEST_ID
from millpond.node.chat.records import Kind, Record, State, conversation_stream, encode_record
from millpond.node.chat.search import IDLE_S, INDEXED_S, QUERY_CHARS_MAX, Search
from millpond.node.chat.search_index import CHANGES_MAX, SearchIndex, excerpt
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from tests.node.chat.chat_client import ask, couple, received, say
from tests.node.outbox.peer_nodes import PeerNode

pytestmark = pytest.mark.anyio

PLACE = b"chat/bob"


def came(n: int, text: str, action: str = "", about: int = 0, *, late: bool = False) -> Record:
    uuid = f"{about:032x}" if action else ""
    return Record(
        1, Kind.IN, n, f"{n:032x}", text, None, n, "b" * 8, n, late=late, action=action, about=uuid
    )


def index_of(*records: Record, backwards: bool = False) -> SearchIndex:
    index = SearchIndex()
    placed = list(enumerate(records))
    for each in reversed(placed) if backwards else placed:
        index.add(PLACE, [each])
    return index


def texts(index: SearchIndex, query: str) -> list[str]:
    return [each.text for each in index.find(query, None, 50)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("pond", True),
        ("PON", True),
        ("pond mill", True),
        ("ond", False),
        ("pond river", False),
        ("cafe", True),
        ("cafe\N{COMBINING ACUTE ACCENT}", True),
        ("ca\N{COMBINING ACUTE ACCENT}fe", True),
        ("don't", True),
        ("東京", True),
        ("京", True),
        ("東山", False),
        ("👍", True),
        ("👎", False),
        ('"pond" OR * NOT', False),
        ("pond -mill", True),
        ("_", False),
    ],
)
def test_words_are_found_by_their_beginnings(query: str, found: bool) -> None:
    text = "The mill beside the Pond: café, don't, 東京都に行く 👍"
    assert bool(texts(index_of(came(1, text)), query)) is found


@given(st.text(min_size=1, max_size=40))
def test_no_query_is_an_error(query: str) -> None:
    index = index_of(came(1, "a text"))
    index.find(query, PLACE, 5)
    index.close()


@pytest.mark.parametrize("backwards", [False, True])
def test_what_was_edited_and_deleted_is_found_as_it_is_now(backwards: bool) -> None:
    index = index_of(
        came(1, "one first"),
        came(2, "two first"),
        came(3, "one second", "edit", 1),
        came(5, "one third", "edit", 1),
        came(4, "one late", "edit", 1, late=True),
        came(6, "deleted a message", "delete", 2),
        came(7, "two again", "edit", 2),
        came(8, "ok", "react", 1),
        came(9, "three", "reply", 1),
        backwards=backwards,
    )
    assert texts(index, "one") == ["one third"]
    assert texts(index, "first") == texts(index, "two") == texts(index, "ok") == []
    assert texts(index, "deleted") == []
    assert texts(index, "three") == ["three"]
    assert index.text_bytes == len("one third") + len("three")


@pytest.mark.parametrize("backwards", [False, True])
def test_of_two_late_edits_the_later_one_is_found(backwards: bool) -> None:
    index = index_of(
        came(1, "first"),
        came(4, "fourth", "edit", 1, late=True),
        came(3, "third", "edit", 1, late=True),
        backwards=backwards,
    )
    assert (texts(index, "fourth"), texts(index, "third")) == (["fourth"], [])


async def test_a_record_whose_uuid_is_none_ends_no_search(tmp_path: Path) -> None:
    """The user of the node can write one into the history."""
    alice, bob = couple(tmp_path)
    async with alice.node() as here:
        await say(here, "bob", "the pond")
        stream = here.peer_services._local_stream(conversation_stream(bob.public))
        await stream.append([b'{"v":1,"kind":"in","at":1,"uuid":"my own","text":"a pond"}'])
        assert await find(here, "pond") == [("bob", "out", "the pond")]


def test_nobody_changes_what_another_one_said() -> None:
    index = index_of(came(1, "original"))
    forged = Record(
        1, Kind.OUT, 2, "f" * 32, "forged", State.SENT, action="edit", about=f"{1:032x}"
    )
    index.add(PLACE, [(1, forged)])
    index.add(b"chat/eve", [(2, came(2, "forged", "edit", 1))])
    assert texts(index, "original") == ["original"]


def test_a_member_of_a_group_changes_its_own_messages_alone() -> None:
    def wrote(by: str, n: int, text: str, action: str = "") -> Record:
        uuid, about = f"{n:032x}", f"{1:032x}" if action else ""
        return Record(
            1, Kind.IN, n, uuid, text, n=n, line="b" * 8, action=action, about=about, by=by
        )

    index = index_of(
        wrote("bob", 1, "original of bob"),
        wrote("carol", 1, "original of carol"),
        wrote("carol", 2, "edited by carol", "edit"),
        wrote("eve", 3, "edited by eve", "edit"),
    )
    found = {each.author: each.text for each in index.find("by", None, 9)}
    assert found == {"carol": "edited by carol"}
    assert texts(index, "original") == ["original of bob"]


def test_so_many_changes_of_unknown_messages_are_kept() -> None:
    index = SearchIndex()
    changes = (came(n, "x", "edit", 10**6 + n) for n in range(CHANGES_MAX + 5))
    index.add(PLACE, enumerate(changes))
    assert len(index._changes) == CHANGES_MAX


def test_texts_of_changes_of_unknown_messages_count() -> None:
    index = index_of(came(2, "hello", "edit", 1), came(3, "hello!", "edit", 1))
    assert index.text_bytes == len("hello!")
    index.add(PLACE, [(0, came(1, "helo"))])
    assert (index.text_bytes, texts(index, "hello")) == (len("hello!"), ["hello!"])


def test_an_excerpt_has_the_word() -> None:
    assert excerpt("a\nb  Pond", "pond") == "a b Pond"
    told = excerpt(f"{'x ' * 300}the Pond{' y' * 300}", "pond")
    assert "the Pond" in told and told.startswith("...") and told.endswith("...")
    assert len(told) < 210


async def find(node: Node, query: str, **fields: Any) -> list[tuple[str, str, str]]:
    answer = await ask(node, PeerOperation.CHAT_SEARCH, query=query, **fields)
    return [(each["peer"], each["kind"], each["text"]) for each in answer["found"]]


async def test_all_conversations_are_searched_and_what_comes_later_as_well(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    alice.knows(carol)
    async with alice.node() as here, bob.node() as there:
        await say(there, "alice", "the pond is frozen")
        await received(here, bob, 1)
        await say(here, "carol", "the pond, again")
        assert await find(here, "pond") == [
            ("carol", "out", "the pond, again"),
            ("bob", "in", "the pond is frozen"),
        ]
        await say(here, "bob", "which pond?")
        assert len(await find(here, "pon")) == 3
        assert [each[2] for each in await find(here, "pond", peer="bob")] == [
            "which pond?",
            "the pond is frozen",
        ]
        answer = await ask(here, PeerOperation.CHAT_SEARCH, query="pond", limit=2)
        assert (len(answer["found"]), answer["more"], answer["indexing"]) == (2, True, False)
        assert len(await find(here, "pond", limit=2, offset=2)) == 1
        here.outbox.context.book.block("carol")
        assert {each[0] for each in await find(here, "pond")} == {"bob"}
        for error, fields in (
            (EmptyData, {"query": " "}),
            (DataTooLarge, {"query": "x" * (QUERY_CHARS_MAX + 1)}),
            (Malformed, {"query": "x", "offset": -1}),
            (UnknownPeer, {"query": "x", "peer": "nobody"}),
        ):
            with pytest.raises(error):
                await ask(here, PeerOperation.CHAT_SEARCH, **fields)
    names = [each.name for each in alice.folder.iterdir()]
    assert not any("search" in each for each in names), "nothing of it is on the disk"


async def test_a_long_history_is_indexed_in_steps_and_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = couple(tmp_path)
    monkeypatch.setattr(search, "PAGE", 10)
    async with alice.node() as here:
        services = here.peer_services
        stream = services._local_stream(conversation_stream(bob.public))
        await stream.create(2**26)
        await stream.append([encode_record(came(n, f"text {n}")) for n in range(100)])
        clock = 0.0

        def tick() -> float:
            nonlocal clock
            clock += INDEXED_S / 2
            return clock

        now = 0.0
        slow = Search(services._local_stream, lambda: now, tick=tick)
        steps = 0
        while True:
            result = await slow.find("text", [conversation_stream(bob.public)], None, 200, 0)
            steps += 1
            if not result.is_indexing:
                break
            assert result.found, "what is indexed is found meanwhile, the newest first"
            assert result.found[0].text == "text 99"
        assert (len(result.found), result.has_left_out) == (100, False)
        assert 3 < steps < 20
        now = IDLE_S
        await slow.drop_idle()
        assert slow.text_bytes
        now += 1
        await slow.drop_idle()
        assert not slow.text_bytes
        small = Search(services._local_stream, lambda: now, text_bytes_max=100)
        result = await small.find("text", [conversation_stream(bob.public)], None, 200, 0)
        assert (result.has_left_out, result.is_indexing) == (True, False)
        assert 10 < len(result.found) < 40
        assert result.found[0].text == "text 99"


async def test_a_full_index_has_the_newest_texts_of_all_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    monkeypatch.setattr(search, "PAGE", 10)
    async with alice.node() as here:
        open_stream = here.peer_services._local_stream
        small = Search(open_stream, lambda: 0.0, text_bytes_max=100)
        streams = [conversation_stream(each.public) for each in (bob, carol)]
        for name, first in zip(streams, (0, 1000), strict=True):
            stream = open_stream(name)
            await stream.create(2**26)
            records = [came(first + n, f"text {first + n}") for n in range(50)]
            await stream.append([encode_record(each) for each in records])
        result = await small.find("text", streams, None, 200, 0)
        assert result.has_left_out and result.found[0].text == "text 1049"
        newest = {each.conversation for each in result.found[:10]}
        assert newest == {conversation_stream(carol.public)}


async def test_new_messages_do_not_let_an_index_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = couple(tmp_path)
    monkeypatch.setattr(search, "PAGE", 10)
    async with alice.node() as here:
        stream = here.peer_services._local_stream(conversation_stream(bob.public))
        await stream.create(2**26)
        small = Search(here.peer_services._local_stream, lambda: 0.0, text_bytes_max=100)
        for round_ in range(10):
            records = [came(n, f"text {n}") for n in range(100 * round_, 100 * round_ + 30)]
            await stream.append([encode_record(each) for each in records])
            result = await small.find("text", [conversation_stream(bob.public)], None, 200, 0)
            assert result.found[0].text == f"text {100 * round_ + 29}"
            assert small.text_bytes < 600


async def test_another_history_under_the_name_has_all_searched_anew(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    async with alice.node() as here:
        open_stream = here.peer_services._local_stream
        search_all = Search(open_stream, lambda: 0.0)
        streams = [conversation_stream(each.public) for each in (bob, carol)]
        for name in streams:
            stream = open_stream(name)
            await stream.create(2**26)
            await stream.append([encode_record(came(1, "text"))])
        assert len((await search_all.find("text", streams, None, 9, 0)).found) == 2
        await stream._request(m.Delete(REQUEST_ID), m.Done)
        await stream.create(2**26)
        await stream.append([encode_record(came(2, "other text"))])
        while (result := await search_all.find("text", streams, None, 9, 0)).is_indexing:
            pass
        assert [each.text for each in result.found] == ["other text", "text"]
