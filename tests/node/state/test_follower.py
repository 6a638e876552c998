"""A followed state: live, across restarts, with every policy; and the writer beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from millpond.actors.errors import Trimmed, UnknownStream
from millpond.actors.state.errors import BadValue
from millpond.actors.state.events import Control, InvalidReason, change
from millpond.actors.state.events import Operation as Op
from millpond.actors.state.fold import (
    Changed,
    ControlApplied,
    InvalidEvent,
    OnInvalid,
    OnReset,
    StateReset,
)
from millpond.actors.state.schema import Collection, StreamState
from millpond.node.client.state.changes import Missed
from millpond.node.client.state.follower import FollowSettings, follow_state
from millpond.node.client.state.writer import SnapshotOpen, StateWriter
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.stream import Stream
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from tests.ports import free_port

SOON_S = 10
NAME = "users"


class User(msgspec.Struct):
    id: str
    age: int


USERS = Collection("user", User, key="id")
PEOPLE = StreamState(users=USERS, notes=Collection("note"))


@asynccontextmanager
async def streaming() -> AsyncIterator[Stream]:
    config = Config(p2p="127.0.0.1:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)
    async with Node(config) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            stream = streams.stream(NAME)
            await stream.create()
            with anyio.fail_after(SOON_S):
                yield stream


def put(key: str, value: Any, kind: str = "note") -> bytes:
    event = {"type": kind, "key": key, "value": value, "headers": {"operation": "insert"}}
    return json.dumps(event).encode()


async def test_what_is_written_is_in_the_view_as_its_type() -> None:
    async with streaming() as stream, follow_state(stream, PEOPLE) as view:
        writer = StateWriter(stream, PEOPLE)
        await writer.insert("users", User("u1", 30))
        await writer.update("users", {"id": "u1", "age": 31}, txid="t")
        last = await writer.upsert("notes", ["a"], "n1")
        await view.applied(last.tail - 1)
        assert view.get("user", "u1") == {"id": "u1", "age": 31}
        assert dict(view["users"]) == {"u1": User("u1", 31)} and view["notes"]["n1"] == ["a"]
        assert dict(view.table(USERS)) == {"u1": User("u1", 31)}
        with pytest.raises(KeyError, match="user"):
            view.table(Collection("user", User))  # another one, although of the same type
        last = await writer.delete("users", "u1")
        await view.applied(last.first)
        assert view.types == ["note"] and not view["users"]


async def test_nothing_is_appended_that_does_not_fit() -> None:
    async with streaming() as stream:
        writer = StateWriter(stream, PEOPLE)
        with pytest.raises(BadValue):
            await writer.insert("users", {"id": "u1"})
        for event in (change(Op.INSERT, "other", "k", 1), change(Op.INSERT, "user", "k", 1)):
            with pytest.raises(BadValue):
                await writer.send(PEOPLE["notes"].insert(1, "n"), event)
        assert (await stream.info()).tail == 0


async def test_snapshots_are_never_within_snapshots() -> None:
    async with streaming() as stream:
        writer = StateWriter(stream, PEOPLE)
        async with writer.snapshot():
            await writer.insert("notes", 1, "n")
            with pytest.raises(SnapshotOpen):
                async with writer.snapshot():
                    pass
        with pytest.raises(KeyError):
            async with writer.snapshot():
                raise KeyError
        async with writer.snapshot():
            await writer.reset()
        words = [json.loads(each.data)["headers"] for each in await stream.read()]
        start, end = {"control": "snapshot-start"}, {"control": "snapshot-end"}
        reset = {"control": "reset"}
        assert words == [start, {"operation": "insert"}, end, start, end, start, reset]


async def test_changes_of_one_type_and_of_one_key() -> None:
    async with streaming() as stream, follow_state(stream) as view:
        await view.caught_up()
        with view.changes() as all_of_it, view.changes("note", "a") as one:
            await stream.append([put("a", 1), put("b", 2), put("a", 3)])
            await stream.append(b'{"headers":{"control":"reset"}}')
            first = [await anext(all_of_it) for _ in range(4)]
            assert [(each.key, each.value, each.before) for each in first if type(each) is Changed][
                2
            ] == ("a", 3, 1)
            assert first[3] == ControlApplied(3, Control.RESET)
            assert [getattr(await anext(one), "value", None) for _ in range(2)] == [1, 3]
            assert await anext(one) == ControlApplied(3, Control.RESET)


async def test_a_slow_subscriber_is_told_what_it_missed() -> None:
    async with streaming() as stream, follow_state(stream) as view:
        await view.caught_up()
        with view.changes(size_max=2) as changes:
            await stream.append([put("a", value) for value in range(5)])
            await view.applied(4)
            assert await anext(changes) == Missed(3)
            values = [getattr(await anext(changes), "value", None) for _ in range(2)]
            assert values == [3, 4]


async def test_what_does_not_fit_is_dropped_kept_aside_or_stops() -> None:
    async with streaming() as stream:
        bad = put("u1", {"id": "u1"}, "user")
        await stream.append([put("u1", {"id": "u1", "age": 1}, "user"), bad, b"hello"])
        async with follow_state(stream, PEOPLE) as view:
            await view.caught_up()
            assert view.stats.rejected == {"bad_value": 1, "not_json": 1}
            assert view.get("user", "u1") == {"id": "u1", "age": 1} and not view.quarantined
        aside = FollowSettings(on_invalid=OnInvalid.QUARANTINE, quarantine_max=10)
        async with follow_state(stream, PEOPLE, aside) as view:
            await view.caught_up()
            assert [each.data for each in view.quarantined] == [bad, b"hello"]
            assert view.quarantined[0].error.reason is InvalidReason.BAD_VALUE
        with pytest.raises(InvalidEvent, match="sequence 1"):
            async with follow_state(stream, PEOPLE, FollowSettings(OnInvalid.STOP)) as view:
                with pytest.raises(InvalidEvent):
                    await view.caught_up()
                assert view.position == 1


async def test_a_reset_clears_or_stops() -> None:
    async with streaming() as stream:
        await stream.append([put("a", 1), b'{"headers":{"control":"reset"}}', put("b", 2)])
        async with follow_state(stream) as view:
            await view.caught_up()
            assert dict(view.get_type("note")) == {"b": 2}
        with pytest.raises(StateReset, match="sequence 1"):
            async with follow_state(stream, None, FollowSettings(on_reset=OnReset.STOP)) as view:
                with view.changes() as changes:
                    async for _ in changes:
                        pass


async def test_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    async with streaming() as stream:
        settings = FollowSettings(checkpoint=tmp_path / "users.state")
        await stream.append([put("a", 1), put("b", 2)])
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
        await stream.append([put("a", 3)])
        await stream.trim(2)
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
            assert dict(view.get_type("note")) == {"a": 3, "b": 2} and view.stats.changes == 3


async def test_a_checkpoint_of_an_end_that_was_lost_counts_for_nothing(tmp_path: Path) -> None:
    """Nothing but the last record tells it: the file is made to name the later stream."""
    path = tmp_path / "users.state"
    settings = FollowSettings(checkpoint=path)
    async with streaming() as stream:
        await stream.append([put("a", 1), put("lost", 2)])
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
        kept = json.loads(path.read_bytes())
        await stream.delete()
        await stream.create()
        await stream.append([put("a", 1), put("b", 2), put("c", 3)])
        path.write_text(json.dumps(kept | {"born": (await stream.info()).created_ms}))
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
            assert dict(view.get_type("note")) == {"a": 1, "b": 2, "c": 3}
        assert view.stats.changes == 3


async def test_a_snapshot_is_a_hint_to_keep_a_checkpoint(tmp_path: Path) -> None:
    async with streaming() as stream:
        path = tmp_path / "users.state"
        writer = StateWriter(stream, PEOPLE)
        async with follow_state(stream, PEOPLE, FollowSettings(checkpoint=path)):
            async with writer.snapshot():
                await writer.insert("notes", 1, "n")
            while not path.exists():  # noqa: ASYNC110 (the file is written when it is)
                await anyio.sleep(0.01)


async def test_a_checkpoint_of_a_stream_that_was_deleted_counts_for_nothing(tmp_path: Path) -> None:
    async with streaming() as stream:
        settings = FollowSettings(checkpoint=tmp_path / "users.state")
        await stream.append([put("a", 1), put("b", 2)])
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
        await stream.delete()
        await anyio.sleep(0.002)
        await stream.create()
        await stream.append(put("c", 3))
        async with follow_state(stream, None, settings) as view:
            await view.caught_up()
            assert dict(view.get_type("note")) == {"c": 3}


async def test_what_was_trimmed_before_it_was_read_is_told(tmp_path: Path) -> None:
    async with streaming() as stream:
        path = tmp_path / "users.state"
        await stream.append([put("a", 1)])
        async with follow_state(stream, None, FollowSettings(checkpoint=path)) as view:
            await view.caught_up()
        await stream.append([put("b", 2), put("c", 3)])
        await stream.trim(2)
        with pytest.raises(Trimmed, match="1 to 1"):
            async with follow_state(stream, None, FollowSettings(checkpoint=path)) as view:
                await view.applied(2)
        settings = FollowSettings(checkpoint=path, skip_gaps=True)
        async with follow_state(stream, None, settings) as view:
            await view.applied(2)
            assert dict(view.get_type("note")) == {"a": 1, "c": 3} and view.stats.missed == 1


async def test_it_may_begin_with_what_the_node_has() -> None:
    async with streaming() as stream:
        await stream.append([put(str(each % 50), each) for each in range(500)])
        await stream.append(put("x", {"id": 5}, "user"))
        async with follow_state(stream, PEOPLE, FollowSettings(from_node=True)) as view:
            await view.caught_up()
            assert view.stats.changes == 0 and view.position == 501
            assert dict(view.get_type("note")) == {str(key): 450 + key for key in range(50)}
            last = await stream.append(put("7", "new"))
            await view.applied(last.first)
            assert view.get("note", "7") == "new" and view.stats.changes == 1


async def test_a_stream_that_is_deleted_ends_it_and_one_made_anew_begins_it_anew() -> None:
    async with streaming() as stream:
        await stream.append([put("a", 1), put("b", 2)])
        with pytest.raises(UnknownStream):
            async with follow_state(stream) as view:
                await view.caught_up()
                await stream.delete()
                await view.applied(99)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio starts tasks in any order
async def test_a_stream_made_anew_and_longer_in_one_breath_is_not_taken_for_the_old_one() -> None:
    async with streaming() as stream, follow_state(stream) as view:
        await stream.append([put("a", 1), put("b", 2)])
        await view.caught_up()
        await anyio.sleep(0.002)  # a stream is known by the millisecond in which it was made
        async with anyio.create_task_group() as tasks:  # in this order, without a wait between
            tasks.start_soon(stream.delete)
            tasks.start_soon(stream.create)
            tasks.start_soon(stream.append, [put(each, 3) for each in "cde"])
        await view.applied(2)
        assert view.get_type("note") == {"c": 3, "d": 3, "e": 3}


async def test_an_error_of_the_block_comes_as_it_is() -> None:
    async with streaming() as stream:
        with pytest.raises(KeyError, match="mine"):
            async with follow_state(stream):
                raise KeyError("mine")


class Turn:
    """A node that runs in a task, until it is told to stop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stop, self._gone = anyio.Event(), anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        async with Node(self._config):
            task_status.started()
            await self._stop.wait()
        self._gone.set()

    async def end(self) -> None:
        self._stop.set()
        await self._gone.wait()


async def test_another_stream_behind_a_new_connection_is_not_taken_for_the_old_one(
    tmp_path: Path,
) -> None:
    """Another node came in the place of the first, and its stream is longer."""
    off = {"ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF}
    quiet: dict[str, Any] = {"p2p": f"127.0.0.1:{free_port()}", "drain_timeout_s": 0.1, **off}
    later = Config(data=str(tmp_path), **quiet)
    url, first, second = f"tcp://{later.p2p}", Turn(Config(**quiet)), Turn(later)
    async with Node(later), connect_streams(url) as streams:
        await streams.stream(NAME).create()
        await streams.stream(NAME).append([put(f"{each}", 2) for each in range(10)])
    await anyio.sleep(0.002)
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(first.run)
            async with connect_streams(url) as streams:
                stream = streams.stream(NAME)
                await stream.create()
                await stream.append([put(each, 1) for each in "abc"])
                async with follow_state(stream) as view:
                    await view.caught_up()
                    assert list(view.get_type("note")) == ["a", "b", "c"]
                    with view.changes() as changes:
                        await first.end()
                        await tasks.start(second.run)
                        assert await anext(changes) == ControlApplied(0, Control.RESET)
                    await view.caught_up()
                    assert dict(view.get_type("note")) == {f"{each}": 2 for each in range(10)}
            await second.end()
