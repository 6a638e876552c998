"""Basins and streams by the published client: made, listed, configured, deleted (A.2, A.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from s2_sdk import (
    BasinConfig,
    EnsureStatus,
    S2ServerError,
    StreamConfig,
    TailOffset,
    Timestamping,
    TimestampingMode,
)

from tests.node.http.clients import eventually
from tests.node.http.s2.conftest import BASIN, client, running

WEEK_S = 604_800


def _default() -> StreamConfig:
    return StreamConfig(
        storage_class="express",
        retention_policy=WEEK_S,
        timestamping=Timestamping(mode=TimestampingMode.CLIENT_PREFER, uncapped=False),
        delete_on_empty_min_age=0,
    )


def _code(found: pytest.ExceptionInfo[Any]) -> tuple[int, str]:
    return found.value.status_code, found.value.code


async def test_a_2_a_basin_from_its_making_to_its_end(s2: Any) -> None:
    """A.2, A.3: names, times, states, and errors of what is not there."""
    made = await s2.create_basin(BASIN)
    assert (made.name, made.location, made.deleted_at) == (BASIN, "default", None)
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert [each.name for each in (await s2.list_basins()).items] == ["millpond", BASIN]
    with pytest.raises(S2ServerError) as twice:
        await s2.create_basin(BASIN)
    assert _code(twice) == (409, "resource_already_exists")
    await s2.delete_basin(BASIN)
    with pytest.raises(S2ServerError) as gone:
        await s2.delete_basin(BASIN)
    assert _code(gone) == (404, "basin_not_found")
    await s2.delete_basin(BASIN, ignore_not_found=True)
    for call in (s2.get_basin_config(BASIN), s2.basin(BASIN).create_stream("a")):
        with pytest.raises(S2ServerError) as missing:
            await call
        assert _code(missing) == (404, "basin_not_found")


async def test_a_2_lists_are_in_byte_order_and_in_pages(s2: Any, basin: Any) -> None:
    """A.2: prefix, start_after (exclusive), limit, has_more; all by pages of the client."""
    names = ["a", "a/b c", "a/%2F?#", "b", "é", "漢", "z" * 512]
    for name in names:
        await basin.create_stream(name)
    ordered = sorted(names, key=str.encode)
    page = await basin.list_streams()
    assert [each.name for each in page.items] == ordered
    assert not page.has_more
    page = await basin.list_streams(prefix="a")
    assert [each.name for each in page.items] == ["a", "a/%2F?#", "a/b c"]
    page = await basin.list_streams(prefix="a", start_after="a", limit=1)
    assert ([each.name for each in page.items], page.has_more) == (["a/%2F?#"], True)
    page = await basin.list_streams(start_after="é")
    assert [each.name for each in page.items] == ["漢"]
    for number in range(3):
        await s2.create_basin(f"basin-{number}-of-3")
    page = await s2.list_basins(prefix="basin-", start_after="basin-0-of-3", limit=1)
    assert ([each.name for each in page.items], page.has_more) == (["basin-1-of-3"], True)
    assert [each.name async for each in s2.list_all_basins(prefix="basin-")] == [
        f"basin-{number}-of-3" for number in range(3)
    ]


async def test_a_2_more_streams_than_one_page_has(s2: Any, basin: Any) -> None:
    """A.2: 1000 a page at most, whatever is asked."""
    limiter = anyio.CapacityLimiter(50)

    async def make(number: int) -> None:
        async with limiter:
            await basin.create_stream(f"s{number:04}")

    async with anyio.create_task_group() as tasks:
        for number in range(1005):
            tasks.start_soon(make, number)
    page = await basin.list_streams(limit=5000)
    assert (len(page.items), page.has_more) == (1000, True)
    names = [each.name async for each in basin.list_all_streams()]
    assert names == [f"s{number:04}" for number in range(1005)]
    await s2.delete_basin(BASIN)
    with anyio.fail_after(60):
        while [each async for each in s2.list_all_basins(prefix=BASIN)]:  # noqa: ASYNC110
            await anyio.sleep(0.02)  # its streams go one by one


async def test_a_2_ensure_makes_changes_or_leaves_alone(s2: Any) -> None:
    """A.2: PUT is exactly this configuration; unnamed fields fall back to the defaults."""
    config = BasinConfig(create_stream_on_append=True)
    results = [
        (await s2.ensure_basin(BASIN, config=config)).status,
        (await s2.ensure_basin(BASIN, config=config)).status,
        (await s2.ensure_basin(BASIN)).status,
    ]
    assert results == [
        EnsureStatus.CREATED,
        EnsureStatus.CONFIG_UNCHANGED,
        EnsureStatus.CONFIG_UPDATED,
    ]
    assert not (await s2.get_basin_config(BASIN)).create_stream_on_append
    basin = s2.basin(BASIN)
    short = StreamConfig(retention_policy=60)
    results = [
        (await basin.ensure_stream("a/b", config=short)).status,
        (await basin.ensure_stream("a/b", config=short)).status,
        (await basin.ensure_stream("a/b")).status,
    ]
    assert results == [
        EnsureStatus.CREATED,
        EnsureStatus.CONFIG_UNCHANGED,
        EnsureStatus.CONFIG_UPDATED,
    ]
    assert await basin.get_stream_config("a/b") == _default()


async def test_a_3_a_stream_shows_all_of_its_configuration(s2: Any, basin: Any) -> None:
    """A.3: defaults; A.2: a change names what changes."""
    await basin.create_stream("plain")
    assert await basin.get_stream_config("plain") == _default()
    given = StreamConfig(
        storage_class="standard",
        retention_policy="infinite",
        timestamping=Timestamping(mode=TimestampingMode.ARRIVAL, uncapped=True),
        delete_on_empty_min_age=3600,
    )
    await basin.create_stream("told", config=given)
    assert await basin.get_stream_config("told") == given
    changed = await basin.reconfigure_stream(
        "told", config=StreamConfig(timestamping=Timestamping(mode=TimestampingMode.CLIENT_REQUIRE))
    )
    assert changed.timestamping == Timestamping(mode=TimestampingMode.CLIENT_REQUIRE, uncapped=True)
    assert (changed.storage_class, changed.retention_policy) == ("standard", "infinite")
    assert await basin.get_stream_config("told") == changed


async def test_a_2_a_basins_default_holds_for_streams_made_from_then_on(s2: Any) -> None:
    """A.2: the default is applied when a stream is made, not afterwards."""
    config = BasinConfig(default_stream_config=StreamConfig(retention_policy=120))
    await s2.create_basin(BASIN, config=config)
    basin = s2.basin(BASIN)
    await basin.create_stream("first")
    shown = await s2.get_basin_config(BASIN)
    assert shown.default_stream_config is not None
    assert shown.default_stream_config.retention_policy == 120
    assert shown.default_stream_config.storage_class == "express"
    later = BasinConfig(default_stream_config=StreamConfig(retention_policy=240))
    await s2.reconfigure_basin(BASIN, config=later)
    await basin.create_stream("second")
    ages = [(await basin.get_stream_config(name)).retention_policy for name in ("first", "second")]
    assert ages == [120, 240]


async def test_a_6_a_deleted_stream_is_gone_with_its_readers(basin: Any, stream: Any) -> None:
    """A.6: its data operations and its configuration are refused; readers are cut."""
    outcome: list[tuple[int, str]] = []
    session = stream.read_session(start=TailOffset(0))

    async def follow() -> None:
        with pytest.raises(S2ServerError) as cut:
            async for _ in session:
                pass
        outcome.append(_code(cut))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await session.caught_up()
        await basin.delete_stream("orders")
        await eventually(lambda: bool(outcome))
    assert outcome[0][0] in (404, 409, 503)
    for call in (stream.check_tail(), basin.get_stream_config("orders")):
        with pytest.raises(S2ServerError) as gone:
            await call
        assert gone.value.status_code in (404, 409)
    assert (await basin.list_streams()).items == []


async def test_what_was_made_is_there_after_a_restart(store: dict[str, Any]) -> None:
    """In memory nothing is, on a disk everything: basins, streams, their configurations."""
    is_kept = "data" in store
    async with running(**store) as node, client(node) as s2:
        config = BasinConfig(create_stream_on_read=True)
        made = await s2.create_basin(BASIN, config=config)
        told = StreamConfig(retention_policy="infinite", delete_on_empty_min_age=60)
        await s2.basin(BASIN).create_stream("kept/ü", config=told)
        before = await s2.basin(BASIN).get_stream_config("kept/ü")
    async with running(**store) as node, client(node) as s2:
        names = [each.name for each in (await s2.list_basins()).items]
        assert names == (["millpond", BASIN] if is_kept else ["millpond"])
        if is_kept:
            found = (await s2.list_basins(prefix=BASIN)).items[0]
            assert found == made
            assert (await s2.get_basin_config(BASIN)).create_stream_on_read
            assert await s2.basin(BASIN).get_stream_config("kept/ü") == before
