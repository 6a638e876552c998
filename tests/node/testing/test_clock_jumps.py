"""Wrong clocks: nothing is lost by a jump, and no PUT stops (design/wire.md PA-30, PA-31)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from millpond.actors.errors import IdsExhausted
from millpond.actors.ids import created_ms
from millpond.node import clock_file
from millpond.node.clock import CONFIRM_S, IDS_LEAD_S
from millpond.node.config import ChannelRule, StreamRule
from millpond.testing import SimNode, World

pytestmark = pytest.mark.usefixtures("looks_rarely")
TTL_S = 1200
HOUR_S = 3600
DAY_S = 24 * HOUR_S
LOOKED_S = 31.0
"""A node looks at its wall clock within this time."""
YEAR_2081 = datetime(2081, 1, 1, tzinfo=UTC).timestamp()


async def test_a_jump_that_is_taken_back_loses_nothing(node: SimNode, world: World) -> None:
    async with node.connect("chat") as chat, node.streams() as streams:
        await chat.put(b"for 20 minutes", ttl=TTL_S)
        stream = streams.stream("orders")
        await stream.create()
        await stream.append(b"a record")
        world.clock.skew("pond", 2 * HOUR_S)
        await world.clock.sleep(CONFIRM_S - LOOKED_S)
        assert node.node.clock_status().jump_s == pytest.approx(2 * HOUR_S)
        assert len(await chat.list()) == 1
        world.clock.skew("pond", 0)
        await world.clock.sleep(LOOKED_S)
        assert node.node.clock_status().jump_s == 0
        await world.clock.sleep(TTL_S - CONFIRM_S - 60)
        assert len(await chat.list()) == 1
        await world.clock.sleep(120)
        assert await chat.list() == []
        assert (await stream.info()).tail == 1


async def test_a_jump_is_confirmed_by_a_second_look(
    node: SimNode, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "millpond.node.node")
    async with node.connect("chat") as chat:
        await chat.put(b"for 20 minutes", ttl=TTL_S)
        world.clock.skew("pond", 2 * HOUR_S)
        await world.clock.sleep(CONFIRM_S - 1)
        assert len(await chat.list()) == 1
        await world.clock.sleep(2 * LOOKED_S)
        assert await chat.list() == []
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "clock jumped: seconds=7200.0 while running; expiry is held for 600 s",
        "clock confirmed: seconds=7200.0",
    ]


async def test_what_is_put_during_a_jump_lives_as_long_as_it_should(
    node: SimNode, world: World
) -> None:
    for is_right in (True, False):
        async with node.connect(f"chat-{is_right}") as chat:
            world.clock.skew("pond", 2 * HOUR_S)
            await world.clock.sleep(LOOKED_S)
            await chat.put(b"for 20 minutes", ttl=TTL_S)
            if not is_right:
                world.clock.skew("pond", 0)
            await world.clock.sleep(CONFIRM_S + LOOKED_S)
            assert node.node.clock_status().jump_s == 0
            await world.clock.sleep(TTL_S - CONFIRM_S - 2 * LOOKED_S - 60)
            assert len(await chat.list()) == 1, is_right
            await world.clock.sleep(60 + 4 * LOOKED_S)
            assert await chat.list() == [], is_right
        await node.stop()
        world.clock.skew("pond", 0)
        clock_file.confirm(node.folder, world.clock.wall("pond"))
        await node.start()


async def test_a_deadline_by_a_jump_is_corrected_where_a_channel_is_loaded(
    node: SimNode, world: World
) -> None:
    """The clock was wrong by ten years for a minute, and the node was killed meanwhile."""
    async with node.connect("chat") as chat:
        world.clock.skew("pond", 10 * 366 * DAY_S)
        await world.clock.sleep(LOOKED_S)
        await chat.put(b"for 20 minutes", ttl=TTL_S)
    await node.crash()
    world.clock.skew("pond", 0)
    await node.start()
    async with node.connect("chat") as chat:
        assert len(await chat.list()) == 1
        await world.clock.sleep(TTL_S + 1)
        assert await chat.list() == []


async def test_leases_run_in_time_that_passes(node: SimNode, world: World) -> None:
    async with node.connect("jobs", mode="queue") as consumer:
        async with node.connect("jobs") as producer:
            await producer.put(b"work")
        held = await consumer.receive(timeout_s=5)
        async with node.connect("jobs") as other:
            world.clock.skew("pond", 2 * HOUR_S)
            await world.clock.sleep(20)
            for _ in range(int(CONFIRM_S / 20) + 5):
                await held.touch(30.0)
                await world.clock.sleep(20)
            assert node.node.clock_status().jump_s == 0, "it was confirmed"
            assert node.node.clock.now() == pytest.approx(world.clock.wall("pond"), abs=1)
            await held.ack()
            with pytest.raises(TimeoutError):
                await other.receive(timeout_s=5)


async def test_records_of_a_jump_are_as_young_as_they_are(world: World) -> None:
    """The machine was off for eight days: what is appended before the confirmation stays."""
    node = await world.node("pond", streams=(StreamRule("*", age=7 * DAY_S),))
    async with node.streams() as streams:
        await streams.stream("orders").create()
        await streams.stream("orders").append(b"before")
    await node.crash(power=True)
    await world.clock.sleep(8 * DAY_S)
    await node.start()
    async with node.streams() as streams:
        stream = streams.stream("orders")
        assert node.node.clock_status().jump_s == pytest.approx(8 * DAY_S, abs=60)
        await stream.append(b"after")
        assert (await stream.info()).trim_point == 0, "its age is not confirmed"
        await world.clock.sleep(CONFIRM_S + 2 * LOOKED_S)
        await stream.append(b"later")
        info = await stream.info()
        assert (info.trim_point, info.tail) == (1, 3)


@pytest.mark.parametrize("power", [False, True])
async def test_pa_31_with_a_clock_that_was_set_back_puts_go_on(
    node: SimNode, world: World, power: bool
) -> None:
    async with node.connect("chat") as chat:
        receipts = [await chat.put(b"before", ttl=TTL_S)]
    await node.crash(power=power)
    world.clock.skew("pond", -2 * DAY_S)
    await node.start()
    async with node.connect("chat") as chat:
        receipts += [await chat.put(b"after", ttl=TTL_S) for _ in range(5)]
        ids = [each.id for each in receipts]
        assert ids == sorted(ids)
        assert node.node.clock_status().behind_s == pytest.approx(2 * DAY_S, abs=60)
        await world.clock.sleep(TTL_S + 120)
        assert await chat.list() == [], "no deadline moved"


async def test_what_expired_stays_away_when_the_clock_goes_back(
    node: SimNode, world: World
) -> None:
    async with node.connect("chat") as chat:
        await chat.put(b"for a minute", ttl=60)
        await world.clock.sleep(61)
        assert await chat.list() == []
    await node.crash(power=True)
    world.clock.skew("pond", -DAY_S)
    await node.start()
    async with node.connect("chat") as chat:
        assert await chat.list() == []


async def test_an_operator_confirms_a_clock(node: SimNode, world: World) -> None:
    async with node.connect("chat") as chat:
        await chat.put(b"for 20 minutes", ttl=TTL_S)
        world.clock.skew("pond", 2 * HOUR_S)
        clock_file.confirm(node.folder, world.clock.wall("pond"))
        await world.clock.sleep(LOOKED_S)
        assert await chat.list() == []
    await node.stop()
    world.clock.skew("pond", 0)
    clock_file.confirm(node.folder, world.clock.wall("pond"))
    await node.start()
    assert node.node.clock.now() == pytest.approx(world.clock.now(), abs=1)
    await node.restart()
    assert node.node.clock.now() == pytest.approx(world.clock.now(), abs=1), "the file is used once"


async def test_a_confirmation_of_another_time_is_not_used(node: SimNode, world: World) -> None:
    clock_file.confirm(node.folder, world.clock.wall("pond"))
    world.clock.skew("pond", 2 * DAY_S)
    await world.clock.sleep(LOOKED_S)
    assert node.node.clock_status().jump_s == pytest.approx(2 * DAY_S)


async def test_a_clock_file_that_cannot_be_read_is_none(
    node: SimNode, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await node.stop()
    (node.folder / clock_file.READING).write_bytes(b"{")
    await node.start()
    assert "clock file not read" in caplog.text
    assert node.node.clock_status().warnings == []


async def test_the_end_of_ids_is_an_error_and_no_crash(world: World) -> None:
    world.clock.skew("pond", YEAR_2081 - world.clock.now())
    node = await world.node("pond")
    async with node.connect("chat") as chat:
        for _ in range(20):
            with pytest.raises(IdsExhausted):
                await chat.put(b"too late")
    assert node.node.clock_status().have_ids_ended
    assert node.node.scheduler.counters.crashes == 0
    world.clock.skew("pond", 0)
    await node.stop()
    clock_file.confirm(node.folder, world.clock.wall("pond"))
    await node.start()
    async with node.connect("chat") as chat:
        assert await chat.put(b"in time")


async def put_on(node: SimNode, name: str) -> int:
    async with node.connect(name) as channel:
        return (await channel.put(b"x", ttl=TTL_S)).id


RULES = tuple(ChannelRule.parse(f"{each}=pair,durability={each}") for each in ("os", "memory"))


@pytest.mark.parametrize("name", ["os", "memory"])
@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_no_id_comes_again_after_a_power_failure_with_a_clock_behind(
    world: World, name: str, is_confirmed: bool
) -> None:
    """The last ids are on no disk, and the wall clock does not tell how late it was."""
    node = await world.node("pond", channels=RULES)
    given_out = 0
    for seconds in (1, 29, 31, 5, 0, 0):
        await world.clock.sleep(seconds)
        latest = [await put_on(node, name) for _ in range(5)]
        assert given_out < latest[0] and latest == sorted({*latest})
        given_out = latest[-1]
        ahead_s = node.node.clock_status().ids_ahead_s
        assert is_confirmed or ahead_s <= IDS_LEAD_S + 5, "it does not add up"
        await node.crash(power=True)
        world.clock.skew("pond", -DAY_S)
        if is_confirmed:
            clock_file.confirm(node.folder, world.clock.wall("pond"))
        await node.start()


async def test_no_id_comes_again_where_trusted_time_moved_right_before(world: World) -> None:
    """An operator confirmed two hours, ids followed, and the power failed in the same moment."""
    node = await world.node("pond", channels=RULES)
    await world.clock.sleep(2 * LOOKED_S)
    world.clock.skew("pond", 2 * HOUR_S)
    node.node.clock.look()
    node.node.clock.confirm()
    given_out = await put_on(node, "memory")
    await node.crash(power=True)
    world.clock.skew("pond", 0)
    await node.start()
    assert await put_on(node, "memory") > given_out


async def test_after_a_clean_stop_or_a_kill_ids_are_those_of_the_time(world: World) -> None:
    node = await world.node("pond")
    for _ in range(3):
        for stop in (node.stop, node.crash):
            await put_on(node, "chat")
            await stop()
            await world.clock.sleep(2)
            if stop == node.stop:
                world.clock.reboot("pond")
            await node.start()
            before_ms = int(node.node.clock.now() * 1000)
            assert created_ms(await put_on(node, "chat")) - before_ms < 1000
            assert node.node.clock_status().warnings == []


async def test_ids_go_on_where_their_bound_cannot_be_stored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    node = await world.node("pond")
    path = node.folder / (clock_file.READING + ".new")
    path.mkdir()
    (path / "in the way").touch()
    ids = []
    for _ in range(5):
        await world.clock.sleep(IDS_LEAD_S)
        ids.append(await put_on(node, "chat"))
    assert ids == sorted({*ids}) and "clock file not written" in caplog.text


@pytest.mark.parametrize("stop", ["stop", "crash"])
async def test_no_id_comes_again_that_was_ahead_of_the_time(world: World, stop: str) -> None:
    """They were ahead since a loss of power, and are on no disk."""
    node = await world.node("pond", channels=RULES)
    await node.crash(power=True)
    await node.start()
    given_out = 0
    for _ in range(5):
        latest = [await put_on(node, "memory") for _ in range(5)]
        assert latest == sorted({*latest}) and latest[0] > given_out
        given_out = latest[-1]
        await (node.stop() if stop == "stop" else node.crash())
        await node.start()


async def set_back(node: SimNode, world: World, names: tuple[str, ...]) -> None:
    """Put messages while the clock is wrong by ten years, which was confirmed, and have an operator
    set the time back."""
    world.clock.skew("pond", 10 * 366 * DAY_S)
    clock_file.confirm(node.folder, world.clock.wall("pond"))
    await world.clock.sleep(LOOKED_S)
    for name in names:
        await put_on(node, name)
    await node.stop()
    world.clock.skew("pond", 0)
    clock_file.confirm(node.folder, world.clock.wall("pond"))
    await node.start()
    assert node.node.clock.now() == pytest.approx(world.clock.now(), abs=1)


async def ids_in(node: SimNode, name: str) -> list[int]:
    async with node.connect(name) as channel:
        return await channel.list()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("used", ["used", "not used"])
async def test_a_deadline_is_corrected_once_whatever_starts_again(
    node: SimNode, world: World, used: str, power: bool
) -> None:
    await set_back(node, world, ("chat", "filler"))
    if used == "used":
        assert len(await ids_in(node, "chat")) == 1
    for _ in range(3):
        await world.clock.sleep(TTL_S / 3 - LOOKED_S)
        await node.crash(power=power)
        await node.start()
        if used == "used":
            assert len(await ids_in(node, "chat")) == 1
    await world.clock.sleep(4 * LOOKED_S)
    assert await ids_in(node, "chat") == []
    assert node.node._store.usage.messages == 0, "nobody read the other channel"


async def test_deadlines_are_corrected_although_the_node_is_killed_right_after(
    node: SimNode, world: World
) -> None:
    """The confirmation was used, and no channel was loaded yet."""
    await set_back(node, world, ("chat",))
    await node.crash()
    await node.start()
    await world.clock.sleep(LOOKED_S)
    await node.restart()
    await world.clock.sleep(TTL_S)
    assert await ids_in(node, "chat") == []


@pytest.mark.parametrize("how", ["restarted", "loaded"])
async def test_a_message_of_a_jump_lives_as_long_as_it_should_after_a_restart(
    node: SimNode, world: World, how: str
) -> None:
    world.clock.skew("pond", 2 * HOUR_S)
    await world.clock.sleep(LOOKED_S)
    await put_on(node, "chat")
    if how == "restarted":
        await node.crash()
        await node.start()
    else:
        await world.clock.sleep(150)
    assert len(await ids_in(node, "chat")) == 1
    await world.clock.sleep(CONFIRM_S + LOOKED_S)
    assert node.node.clock_status().jump_s == 0, "it was confirmed"
    assert len(await ids_in(node, "chat")) == 1
    await world.clock.sleep(TTL_S - CONFIRM_S)
    assert await ids_in(node, "chat") == []


async def test_a_message_of_a_later_jump_lives_as_long_as_it_should(
    node: SimNode, world: World
) -> None:
    """Deadlines were corrected before: those of the jump are not."""
    await set_back(node, world, ("chat",))
    await world.clock.sleep(2 * LOOKED_S)
    world.clock.skew("pond", 2 * HOUR_S)
    await world.clock.sleep(LOOKED_S)
    late = await put_on(node, "chat")
    for _ in range(2):
        await node.crash()
        await node.start()
        assert late in await ids_in(node, "chat")
    await world.clock.sleep(CONFIRM_S + LOOKED_S)
    assert node.node.clock_status().jump_s == 0, "it was confirmed"
    assert await ids_in(node, "chat") == [late]
