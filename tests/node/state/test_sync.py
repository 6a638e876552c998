"""The blocking writer and follower, from ordinary threads, against a node of its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from millpond.actors.state.errors import BadValue
from millpond.actors.state.events import Control
from millpond.actors.state.fold import Changed, ControlApplied, InvalidEvent, OnInvalid
from millpond.actors.state.schema import Collection, StreamState
from millpond.node.client.state.follower import FollowSettings
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.sync import StateWriter, Stream, connect_streams, follow_state

OFF = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")


class User(msgspec.Struct):
    id: str
    name: str


USERS = Collection("user", User, key="id")
CHAT = StreamState(users=USERS, notes=Collection("note", None))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    async def serve() -> Node:
        return Node(Config(p2p="127.0.0.1:0", drain_timeout_s=0.5, **OFF))

    with start_blocking_portal() as portal:
        node = portal.call(serve)
        with portal.wrap_async_context_manager(node):
            yield f"tcp://{node.listeners['p2p']}"


@pytest.fixture
def stream(url: str, request: pytest.FixtureRequest) -> Iterator[Stream]:
    with connect_streams(url) as streams:
        stream = streams.stream(request.node.name)
        stream.create()
        yield stream


def test_what_is_written_is_followed_and_gone_on_with(stream: Stream, tmp_path: Path) -> None:
    settings = FollowSettings(checkpoint=tmp_path / "kept")
    writer = StateWriter(stream, CHAT)
    with pytest.raises(BadValue):
        writer.insert("users", {"id": 1})
    writer.insert("users", User("u1", "Ann"))
    with follow_state(stream, CHAT, settings) as view:
        view.caught_up()
        assert view["users"] == {"u1": User("u1", "Ann")} and view.types == ["user"]
        assert view.table(USERS) == view["users"]
        with view.changes("user") as changes:
            writer.update("users", User("u1", "Anna"))
            with writer.snapshot():
                writer.upsert("notes", "hello", "n1")
            writer.delete("users", "u1")
            received = [changes.next(5) for _ in range(4)]
            with pytest.raises(TimeoutError):
                changes.next(0.01)
        changed = [each for each in received if isinstance(each, Changed)]
        assert changed[0].value["name"] == "Anna"
        marks = [each.control for each in received if isinstance(each, ControlApplied)]
        assert marks == [Control.SNAPSHOT_START, Control.SNAPSHOT_END]
        assert view.get("note", "n1") == "hello" and view.get_type("user") == {}
        assert (view.stats.snapshots, view.failure) == (1, None)
        position = view.position
    with follow_state(stream, CHAT, settings) as view:
        view.applied(position - 1)
        assert view.position == position and view["notes"] == {"n1": "hello"}
        last = writer.reset()
        view.applied(last.first)
        assert view.types == []


def test_a_thread_waits_for_changes_while_another_writes(stream: Stream) -> None:
    writer, received = StateWriter(stream, CHAT), list[Any]()
    with follow_state(stream) as view, view.changes() as changes:
        thread = threading.Thread(target=lambda: received.extend(changes))
        thread.start()
        for number in range(100):
            last = writer.insert("notes", number, str(number % 10))
        view.applied(last.first)
        changes.__exit__(None, None, None)
        thread.join(5)
    assert [each.value for each in received] == list(range(100))


def test_what_ends_the_following_is_raised(stream: Stream) -> None:
    stream.append(b"no event")
    with pytest.raises(InvalidEvent):
        with follow_state(stream, CHAT, FollowSettings(on_invalid=OnInvalid.STOP)) as view:
            view.applied(0)
    quarantine = FollowSettings(on_invalid=OnInvalid.QUARANTINE)
    with follow_state(stream, CHAT, quarantine) as view:
        view.caught_up()
        assert [each.data for each in view.quarantined] == [b"no event"]


def test_the_node_is_asked(stream: Stream) -> None:
    StateWriter(stream, CHAT).insert("notes", [1], "n")
    row = stream.state.get("note", "n")
    assert row is not None and row.value == [1] and stream.state.get("note", "x") is None
    assert [each.key for each in stream.state.rows()] == ["n"]
    assert [(position, len(rows)) for position, rows in stream.state.pages("note")] == [(1, 1)]
    assert stream.state.info().types == {"note": 1}
