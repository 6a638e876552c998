"""Nothing fails unheard, and nothing hangs: what goes wrong behind a test is the test's failure."""

from __future__ import annotations

import logging
import logging.config
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from millpond import Channel, ConnectionLost
from millpond.actors.channels.channel import Channel as ChannelActor
from millpond.actors.errors import OutcomeUnknown
from millpond.node.testing import timeouts
from millpond.node.testing.disk.faults import DiskFault
from millpond.node.testing.inline_workers import InlineRuntime
from millpond.testing import NotRunning, SimNode, TookTooLong, World


async def spin() -> None:
    while True:
        await anyio.lowlevel.checkpoint()


async def never_give_way() -> None:
    await anyio.lowlevel.checkpoint()
    while True:
        pass


async def wait_for_ever() -> None:
    await anyio.Event().wait()


async def test_a_livelock_ends_and_shows_running_functions() -> None:
    with pytest.raises(TookTooLong, match="running functions") as caught:
        async with World(timeout_s=0.3) as world:
            world.start(spin)
            await wait_for_ever()
    runs, _, waits = str(caught.value).partition("its tasks wait at")
    assert re.search(r"test_failures\.py:\d+ in spin", runs), runs
    assert re.search(r"test_failures\.py:\d+ in wait_for_ever", waits), waits


async def test_what_never_gives_way_is_ended_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "GRACE_S", 0.2)
    with pytest.raises(TookTooLong, match="in never_give_way") as caught:
        async with World(timeout_s=0.2) as world:
            world.start(never_give_way)
            await wait_for_ever()
    assert "never_give_way" in {entry.name for entry in caught.traceback}


async def test_a_wait_that_is_shielded_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "GRACE_S", 0.2)
    with pytest.raises(TookTooLong, match="in wait_for_ever"):
        async with World(timeout_s=0.2):
            with anyio.CancelScope(shield=True):
                await wait_for_ever()


class Guarded:
    """A block that failures interrupt, all the time."""

    is_guarded = True

    def add(self, error: BaseException) -> None: ...


async def test_a_limit_that_ends_while_it_raises_raises_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "GRACE_S", 0.0)
    monkeypatch.setattr(timeouts, "SAMPLE_S", 0.0)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # the watching thread runs at any step of this one
    try:
        for _ in range(100):
            with suppress(TookTooLong), timeouts.time_limit(Guarded(), 0.0):
                for _ in range(200):
                    sum(range(100))
    finally:
        sys.setswitchinterval(usual)
    for thread in threading.enumerate():
        if thread.name == timeouts.THREAD:
            thread.join(20.0)
            assert not thread.is_alive()


async def test_a_block_without_a_guard_ends_as_well() -> None:
    """And says where it was."""
    with pytest.raises(TookTooLong, match=r"test_failures\.py:\d+ in wait_for_ever"):
        async with World(timeout_s=0.2):
            await wait_for_ever()


async def test_a_world_whose_body_waits_is_interrupted_by_a_handler() -> None:
    async def fails() -> None:
        raise KeyError("in a handler")

    with pytest.raises(KeyError, match="in a handler"):
        async with World() as world:
            world.start(fails)
            await world.clock.sleep(10**9)


async def test_what_the_body_raises_first_is_told_of_the_rest() -> None:
    async def fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("in a handler")

    with pytest.raises(ValueError, match="of the test") as caught:
        async with World() as world:
            world.start(fails)
            await world.idle()
            raise ValueError("of the test")
    assert "KeyError: 'in a handler'" in "".join(caught.value.__notes__)


async def test_a_handler_that_runs_on_at_the_end_is_no_failure() -> None:
    """It is ended before the nodes are."""

    async def produce(node: SimNode) -> None:
        async with node.connect("chat", who="producer") as chat:
            while True:
                await chat.put(b"again")

    async with World() as world:
        node = await world.node("pond")
        world.start(produce, node)
        await world.clock.sleep(0.1)


async def test_pytest_fail_in_a_handler_fails_the_test(world: World) -> None:
    async def misses() -> None:
        with pytest.raises(KeyError):
            pass

    world.start(misses)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), world.guard():
        await world.clock.sleep(5)


async def raise_in_handling() -> None:
    try:
        raise DiskFault(5, "as the test said")
    except OSError:
        raise KeyError("a bug in the handling")  # noqa: B904 (that is the bug)


async def raise_from_a_fault() -> None:
    try:
        raise DiskFault(5, "as the test said")
    except OSError as exc:
        raise RuntimeError("cannot write") from exc


async def raise_a_group() -> None:
    raise BaseExceptionGroup("both", [KeyError("one"), ExceptionGroup("", [ValueError("two")])])


@pytest.mark.parametrize(
    ("work", "expected", "raised"),
    [
        (raise_in_handling, (), KeyError),
        (raise_from_a_fault, (), None),
        (raise_a_group, (KeyError, ValueError), None),
        (raise_a_group, (KeyError,), BaseExceptionGroup),
    ],
)
async def test_what_is_expected_and_what_is_a_bug(
    work: Callable[[], Awaitable[None]],
    expected: tuple[type[Exception], ...],
    raised: type[BaseException] | None,
    world: World,
) -> None:
    world.expect(*expected)
    world.start(work)
    if raised is None:
        await world.settled()
        return
    with pytest.raises(raised) as caught, world.guard():
        await world.clock.sleep(5)
    assert not isinstance(caught.value, BaseExceptionGroup) or not caught.value.subgroup(KeyError)


def disable() -> None:
    logging.disable()


def set_level() -> None:
    logging.getLogger("millpond.actors").setLevel(logging.CRITICAL + 1)


def configure() -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})


@pytest.mark.parametrize("mute", [disable, set_level, configure])
async def test_a_program_that_mutes_its_log_mutes_no_failure(
    mute: Callable[[], None], channel: Channel, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(*_: object) -> None:
        raise ZeroDivisionError("in a cell")

    monkeypatch.setattr(ChannelActor, "handle", handle)
    loggers = list(logging.Logger.manager.loggerDict.values())
    before = [each.disabled for each in loggers if isinstance(each, logging.Logger)]
    mute()
    try:
        with pytest.raises(ZeroDivisionError), world.guard():
            with pytest.raises(OutcomeUnknown):
                await channel.put(b"x")
            await world.clock.sleep(1)
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger("millpond.actors").setLevel(logging.NOTSET)
        kept = [each for each in loggers if isinstance(each, logging.Logger)]
        for logger, was in zip(kept, before, strict=True):
            logger.disabled = was


async def test_where_an_error_was_logged_stays_known(
    channel: Channel,
    world: World,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handle(*_: object) -> None:
        raise ZeroDivisionError("in a cell")

    world.expect(ZeroDivisionError)
    monkeypatch.setattr(ChannelActor, "handle", handle)
    with pytest.raises(OutcomeUnknown):
        await channel.put(b"x")
    assert {record.filename for record in caplog.records if record.exc_info} == {"scheduler.py"}


async def test_a_node_that_dies_by_itself_can_be_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections break, nobody listens any more, and the error is the test's."""
    dies, run = anyio.Event(), InlineRuntime.run

    async def die(self: InlineRuntime) -> None:
        await dies.wait()
        raise KeyError("in the node")

    monkeypatch.setattr(InlineRuntime, "run", die)
    node = await world.node("pond")
    with pytest.raises(KeyError, match="in the node"), world.guard():
        dies.set()
        await world.clock.sleep(5)
    assert not node.is_running
    with pytest.raises(ConnectionLost):
        async with node.connect("chat"):
            pass
    monkeypatch.setattr(InlineRuntime, "run", run)
    await node.start()
    async with node.connect("chat") as chat:
        assert await chat.ping() >= 0


async def test_a_node_whose_clean_up_hangs_hangs_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = anyio.Event()

    async def clean_up_for_ever(self: InlineRuntime) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await released.wait()

    monkeypatch.setattr(InlineRuntime, "run", clean_up_for_ever)
    node = await world.node("pond")
    began = time.monotonic()
    with pytest.raises(TookTooLong, match=r"still cleans up.*\n(.*\n)*.*clean_up_for_ever"):
        await node.crash()
    assert time.monotonic() - began < 5
    released.set()


async def test_a_crash_closes_what_was_open_on_a_real_disk(world: World) -> None:
    def open_files(folder: Path) -> list[str]:
        names = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [str(name) for name in names if name.is_relative_to(folder)]

    node = await world.node("pond", storage="real")
    async with node.connect("notes") as notes:
        receipt = await notes.put(b"kept")
        assert open_files(node.folder)
        await node.crash()
        assert open_files(node.folder) == []
        await node.start()
        assert await notes.get(receipt.id) == b"kept"


async def test_a_node_stops_when_its_disk_has_answered(
    node: SimNode, channel: Channel, world: World
) -> None:
    world.disk("pond").hang()
    put = channel.put_nowait(b"slow")
    stopped: list[float] = []

    async def stop() -> None:
        await node.stop()
        stopped.append(world.clock.elapsed())

    world.start(stop)
    await world.clock.sleep(50)
    assert (stopped, node.is_running) == ([], True)
    world.disk("pond").resume()
    await world.clock.sleep(1)
    (stopped_at,) = stopped
    assert 50 <= stopped_at <= 51
    with pytest.raises(NotRunning):
        _ = node.node
    await node.start()
    receipt = await put
    assert await channel.list() == [receipt.id]
