"""P2P-15, PA-09, PA-38: whatever the network does, what was acknowledged is delivered."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.peer import Ended, Peer
from tests.conformance.served import Serve, Served, virtual_time

MESSAGES = 60
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(100, 200))]
PRODUCING, CONSUMING = {p.ROLE: p.PRODUCER}, {p.ROLE: p.CONSUMER}


class Outcome:
    """The receipts of the producer, and the messages that consumers got."""

    def __init__(self) -> None:
        self.promised: dict[int, int] = {}
        self.handed: set[int] = set()
        self.is_complete = anyio.Event()

    def promise(self, key: int, message_id: int) -> None:
        self.promised[key] = message_id
        self._look()

    def hand(self, message_id: int, data: bytes) -> None:
        self.handed.add(message_id)
        assert self.promised.get(int(data), message_id) == message_id, "stored twice"
        self._look()

    def _look(self) -> None:
        if len(self.promised) == MESSAGES and set(self.promised.values()) <= self.handed:
            self.is_complete.set()


async def _connected(server: Served, name: str, tags: p.Tags) -> Peer:
    peer = await server.dial(b"chat/1", source=name)
    await peer.send(p.hello(b"chat/1", tags))
    p.read_ready(await peer.packet())
    return peer


async def _produce(server: Served, outcome: Outcome, tags: p.Tags) -> None:
    """PUT every message until its ack is there, again with the same key after every loss."""
    while len(outcome.promised) < MESSAGES:
        try:
            peer = await _connected(server, "producer", PRODUCING | tags)
            for key in range(MESSAGES):
                if key not in outcome.promised:
                    outcome.promise(key, await peer.put(key, b"%d" % key, ttl=86_400))
                    await anyio.sleep(0.3)
        except (Ended, TimeoutError, OSError):
            await anyio.sleep(0.1)


async def _consume(
    server: Served, outcome: Outcome, number: int, is_careless: Callable[[], bool]
) -> None:
    """Take what is pushed and ack it, unless that is forgotten."""
    while True:
        try:
            peer = await _connected(server, f"consumer-{number}", CONSUMING)
            while True:
                packet = await peer.packet(within_s=60)
                if packet == p.PING:
                    await peer.send(p.PONG)
                elif packet[0] == 2:
                    message_id = int.from_bytes(packet[1:9], "big")
                    outcome.hand(message_id, packet[9:])
                    if not is_careless():
                        await peer.send(p.ack(message_id))
        except (Ended, TimeoutError, OSError):
            await anyio.sleep(0.1)


async def _trouble(server: Served, rng: Random) -> None:
    """Resets, partitions and stalls, one after the other."""
    names = ["producer", "consumer-1", "consumer-2"]
    while True:
        await anyio.sleep(rng.uniform(0, 2))
        name = rng.choice(names)
        match rng.randrange(3):
            case 0:
                server.network.reset(name)
            case 1:
                server.network.partition(name, "node")
                await anyio.sleep(rng.choice([0.5, 15]))
                server.network.heal(name, "node")
            case _:
                server.network.stall(name)
                await anyio.sleep(rng.choice([0.5, 15]))
                server.network.unstall(name)


@virtual_time
@pytest.mark.parametrize("mode", [p.PAIR, p.QUEUE], ids=["pair", "queue"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_p2p_15_acknowledged_messages_are_delivered_over_any_network(
    serve: Serve, seed: int, mode: bytes
) -> None:
    rng = Random(seed)
    async with serve(seed=seed, attempts_max=1000) as server:
        server.network.latency_s = 0.01
        server.network.split = True
        outcome = Outcome()
        with anyio.fail_after(7200):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_trouble, server, rng)
                tasks.start_soon(_produce, server, outcome, {p.MODE: mode})
                for number in (1, 2):
                    tasks.start_soon(_consume, server, outcome, number, lambda: rng.random() < 0.2)
                await outcome.is_complete.wait()
                tasks.cancel_scope.cancel()
        assert len(set(outcome.promised.values())) == MESSAGES
