"""The state in the node: bounded, rebuilt, given up, and of the stream that there is now."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import StateTooLarge, UnknownStream
from millpond.actors.streams.names import state_cell
from millpond.node.config import Durability, StreamRule
from tests.node.state.node_clients import RESET, node_clients, put


async def test_it_is_rebuilt_after_a_restart(tmp_path: Path) -> None:
    settings = {"data": str(tmp_path), "durability": Durability.DISK}
    async with node_clients(**settings) as clients:
        await clients.streams.stream("users").create()
        for start in range(0, 2500, 500):
            rows = [put(str(number % 700), number) for number in range(start, start + 500)]
            await clients.by_p2p("users", rows)
        before = await clients.state("users")
    async with node_clients(**settings) as clients:
        assert await clients.state("users") == before and len(before["user"]) == 700
        await clients.by_p2p("users", [put("1", "new")])
        row = await clients.streams.stream("users").state.get("user", "1")
        assert row is not None and row.value == "new"


async def test_it_is_written_down_when_the_node_stops(tmp_path: Path) -> None:
    settings = {"data": str(tmp_path), "durability": Durability.DISK}
    quick = StreamRule("quick", durability=Durability.MEMORY)
    async with node_clients(**settings, streams=(quick,)) as clients:
        for name in ("users", "quick", "gone"):
            await clients.streams.stream(name).create()
            await clients.by_p2p(name, [put(str(number), number) for number in range(1000)])
            assert len((await clients.state(name))["user"]) == 1000
        await clients.streams.stream("gone").delete()
    assert len(list((tmp_path / "states").iterdir())) == 1, "neither of memory nor of what is gone"
    async with node_clients(**settings) as clients:
        stream = clients.streams.stream("users")
        await stream.trim(999)
        assert len((await clients.state("users"))["user"]) == 1000
        await stream.delete()
    assert list((tmp_path / "states").iterdir()) == []
    async with node_clients(**settings, state_disk_bytes_max=0) as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put(str(number), number) for number in range(1000)])
        await clients.state("users")
    assert list((tmp_path / "states").iterdir()) == []


async def test_a_page_begins_behind_the_last_row_of_the_one_before() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        keys = [f"{number:05}" for number in range(2345)]
        for start in range(0, 2345, 500):
            await clients.by_p2p(
                "users", [put(key, 1) for key in reversed(keys[start : start + 500])]
            )
        await clients.by_p2p("users", [put("x", 1, "a"), put("x", 1, "z")])
        state = clients.streams.stream("users").state
        rows = [(row.type, row.key) async for row in state.rows()]
        assert rows == [("a", "x"), *(("user", key) for key in keys), ("z", "x")]
        assert [row.key async for row in state.rows("user")] == keys
        assert [row async for row in state.rows("nobody")] == []


async def test_values_are_told_as_they_were_written() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        value = b'{ "big": 123456789012345678901234567890, "e": 1.50e2,\n"a":[] }'
        event = b'{"type":"user","key":"a","value":%b,"headers":{"operation":"insert"}}' % value
        await clients.by_s3p("users", [event])
        row = await clients.streams.stream("users").state.get("user", "a")
        assert row is not None and row.written == value
        assert (await clients.get("users/user/a")).body == (
            b'{"position":"1","value":{"big":123456789012345678901234567890,"e":1.50e2,"a":[]}}'
        )


async def test_above_its_limit_it_is_given_up_and_refused() -> None:
    async with node_clients(state_bytes_max=20_000) as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        await clients.by_p2p("users", [put(str(number), "x" * 100) for number in range(40)])
        assert (await stream.state.info()).types == {"user": 40}
        await clients.by_p2p("users", [put(str(number), "y" * 100) for number in range(40, 100)])
        for _ in range(2):
            with pytest.raises(StateTooLarge):
                await stream.state.info()
        assert (await clients.get("users")).status == 507
        assert clients.node._streams.states.bytes == 0


async def test_all_states_of_a_node_share_a_limit() -> None:
    async with node_clients(node_state_bytes_max=20_000) as clients:
        for name in ("one", "two"):
            await clients.streams.stream(name).create()
            await clients.by_p2p(name, [put(str(number), "x" * 100) for number in range(50)])
        assert (await clients.streams.stream("one").state.info()).types == {"user": 50}
        with pytest.raises(StateTooLarge):
            await clients.streams.stream("two").state.info()
        await clients.by_p2p("one", [RESET])
        assert (await clients.streams.stream("one").state.info()).bytes == 0


async def test_what_nobody_asks_for_is_given_up_and_made_again() -> None:
    async with node_clients(state_idle_s=0.2) as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put("a", 1)])
        assert (await clients.state("users"))["user"] == {"a": 1}
        while state_cell(b"users") in clients.node.scheduler.cells:  # noqa: ASYNC110
            await anyio.sleep(0.02)
        assert clients.node._streams.states.bytes == 0
        assert (await clients.streams.stream("users").info()).waiting == 0
        await clients.by_p2p("users", [put("b", 2)])
        assert (await clients.state("users"))["user"] == {"a": 1, "b": 2}


async def test_a_stream_that_is_deleted_has_no_state_and_a_new_one_has_its_own() -> None:
    async with node_clients() as clients:
        stream = clients.streams.stream("users")
        with pytest.raises(UnknownStream):
            await stream.state.info()
        for turn in range(3):
            await stream.create()
            await clients.by_p2p("users", [put(f"{turn}", turn) for _ in range(turn + 1)])
            assert (await clients.state("users"))["user"] == {f"{turn}": turn}
            await stream.delete()
            with pytest.raises(UnknownStream):
                await stream.state.info()
            await anyio.sleep(0.002)
        assert state_cell(b"users") not in clients.node.scheduler.cells


async def test_a_stream_made_anew_at_once_is_not_taken_for_the_old_one() -> None:
    async with node_clients() as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        await clients.by_p2p("users", [put("old", 1)])
        assert (await clients.state("users"))["user"] == {"old": 1}
        await anyio.sleep(0.002)
        await stream.delete()
        await stream.create()
        await clients.by_p2p("users", [put("new", 1), put("more", 2)])
        assert (await clients.state("users"))["user"] == {"new": 1, "more": 2}


async def test_a_trimmed_stream_begins_where_it_begins() -> None:
    async with node_clients() as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        await clients.by_p2p("users", [put(str(number), number) for number in range(5)])
        await stream.trim(3)
        info = await stream.state.info()
        assert (info.first, info.position, info.missed) == (3, 5, 0)
        await clients.by_p2p("users", [put("5", 5)])
        await stream.trim(6)
        assert (await clients.state("users"))["user"] == {"3": 3, "4": 4, "5": 5}


async def test_many_who_ask_while_the_stream_is_read_are_all_answered(tmp_path: Path) -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        for start in range(0, 20_000, 1000):
            await clients.by_p2p("users", [put(str(n), n) for n in range(start, start + 1000)])
        found: list[int] = []

        async def ask(number: int) -> None:
            row = await clients.streams.stream("users").state.get("user", str(number))
            assert row is not None
            found.append(row.value)

        async with anyio.create_task_group() as tasks:
            for number in range(0, 20_000, 1000):
                tasks.start_soon(ask, number)
        assert sorted(found) == list(range(0, 20_000, 1000))


async def test_a_crash_of_the_state_costs_nothing_but_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put("a", 1)])
        assert (await clients.state("users"))["user"] == {"a": 1}
        cell = clients.node.scheduler.cells[state_cell(b"users")]
        broken = cell.behaviour
        assert broken is not None
        broken._table = None  # type: ignore[attr-defined]
        await clients.by_p2p("users", [put("b", 2)])
        assert cell.behaviour is not broken
        assert (await clients.state("users"))["user"] == {"a": 1, "b": 2}
