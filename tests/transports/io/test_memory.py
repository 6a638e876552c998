"""The network in memory: its faults, virtual time, and the same run for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import pytest
import trio.testing

from millpond.transports.io.interface import Wire
from millpond.transports.io.memory import Network

virtual_time = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}), id="virtual")],
)


@dataclass
class Recorder:
    """Keeps what comes, with the time it came at."""

    echoes: bool = False
    events: list[str] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    wire: Wire = None  # type: ignore[assignment]

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        self.events.append("opened")

    def received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.times.append(anyio.current_time())
        if self.echoes:
            self.wire.write(data)

    def uncongested(self) -> None:
        self.events.append("uncongested")

    def eof(self) -> None:
        self.events.append("eof")
        self.wire.close()

    def ended(self) -> None:
        self.events.append("ended")


async def until(true: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110 (what it waits for happens in a session)
            await anyio.sleep(0.001)


async def connect(
    network: Network, tasks: anyio.abc.TaskGroup, name: str = "alice", source: str = "bob"
) -> tuple[Recorder, Recorder]:
    """A connection from `source` to `name`: the accepted end and the connector one."""
    accepted, connector = Recorder(echoes=True), Recorder()
    listener = network.listen(name, lambda: accepted)
    await network.connect(tasks, name, connector, source=source)
    await until(lambda: accepted.events)
    await listener.aclose()
    return accepted, connector


@virtual_time
async def test_latency_delays_every_byte_and_takes_no_real_time() -> None:
    network = Network(random.Random(1), latency_s=30.0)
    async with anyio.create_task_group() as tasks:
        accepted, connector = await connect(network, tasks)
        start = anyio.current_time()
        connector.wire.write(b"there and back")
        await anyio.sleep(59.9)
        assert accepted.data == b"there and back" and connector.data == b""
        await anyio.sleep(0.2)
        assert connector.data == b"there and back"
        assert accepted.times[0] - start == pytest.approx(30)
        assert connector.times[0] - start == pytest.approx(60)
        tasks.cancel_scope.cancel()


@virtual_time
async def test_a_partition_holds_bytes_until_it_heals() -> None:
    network = Network(random.Random(1))
    async with anyio.create_task_group() as tasks:
        _, connector = await connect(network, tasks)
        network.partition("bob", "alice")
        connector.wire.write(b"held")
        await anyio.sleep(3600)
        assert connector.data == b"" and connector.events == ["opened"]
        with pytest.raises(OSError):
            await network.connect(tasks, "alice", Recorder(), source="bob")
        network.heal("alice", "bob")
        await anyio.sleep(1)
        assert connector.data == b"held"
        tasks.cancel_scope.cancel()


@virtual_time
async def test_a_partition_leaves_others_alone() -> None:
    network = Network(random.Random(1))
    async with anyio.create_task_group() as tasks:
        _, bob = await connect(network, tasks, source="bob")
        _, carol = await connect(network, tasks, source="carol")
        network.partition("alice", "bob")
        for recorder in (bob, carol):
            recorder.wire.write(b"hello")
        await anyio.sleep(60)
        assert (bob.data, carol.data) == (b"", b"hello")
        tasks.cancel_scope.cancel()


async def test_a_reset_ends_both_ends_of_the_address_only() -> None:
    network = Network(random.Random(1))
    async with anyio.create_task_group() as tasks:
        alice, bob = await connect(network, tasks, "alice", "bob")
        dave, carol = await connect(network, tasks, "dave", "carol")
        network.reset("bob")
        await until(lambda: "ended" in alice.events and "ended" in bob.events)
        assert alice.events == bob.events == ["opened", "ended"]
        carol.wire.write(b"still here")
        await until(lambda: carol.data == b"still here")
        assert dave.events == ["opened"]
        tasks.cancel_scope.cancel()


async def test_a_stalled_reader_fills_the_window_and_then_the_queue() -> None:
    network = Network(random.Random(1), window_bytes=1000, high_water_bytes=5000)
    async with anyio.create_task_group() as tasks:
        alice, bob = await connect(network, tasks)
        network.stall("bob")
        alice.wire.write(bytes(5900))
        await anyio.sleep(0.01)
        assert alice.wire.congested and bob.data == b""
        network.unstall("bob")
        await until(lambda: len(bob.data) == 5900)
        await until(lambda: not alice.wire.congested)
        assert alice.events == ["opened", "uncongested"]
        tasks.cancel_scope.cancel()


@virtual_time
async def test_a_seed_decides_where_segments_are_cut() -> None:
    async def run(seed: int) -> list[int]:
        network = Network(random.Random(seed), split=True)
        async with anyio.create_task_group() as tasks:
            accepted, connector = await connect(network, tasks)
            connector.wire.write(bytes(20_000))
            await anyio.sleep(10)
            assert accepted.data == connector.data == bytes(20_000)
            tasks.cancel_scope.cancel()
        return [len(chunk) for chunk in accepted.chunks]

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again != other and len(first) > 5


async def test_a_free_address_refuses_and_a_taken_one_is_an_error() -> None:
    network = Network(random.Random(1))
    async with anyio.create_task_group() as tasks:
        with pytest.raises(ConnectionRefusedError):
            await network.connect(tasks, "alice", Recorder())
        listener = network.listen("alice", Recorder)
        with pytest.raises(OSError):
            network.listen("alice", Recorder)
        await listener.aclose()
        await network.listen("alice", Recorder).aclose()


async def test_three_hundred_short_connections_leave_nothing_behind() -> None:
    network = Network(random.Random(1))
    network.listen("alice", Recorder)
    async with anyio.create_task_group() as tasks:
        for _ in range(300):
            session = Recorder()
            await network.connect(tasks, "alice", session, source="bob")
            session.wire.close()
    assert not network._pipes
