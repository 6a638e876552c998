"""Sealed messages: the cost of sealing and opening, and messages a second through a relay.

    python -m tests.bench.sealed_messages [COUNT]

Three nodes in one process, on loopback, with data folders, and on uvloop as `millpond serve` is:
COUNT messages of 100 bytes (default 2,000) go from one to another by way of the third. Times are
until the last one is in its channel, and until the last receipt is back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import uvloop
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.node import Node
from millpond.node.peers.identity import Identity
from millpond.node.peers.sealed_message import open_message, seal_message
from tests.node.outbox.peer_nodes import PeerNode, message, until

BODY = b"x" * 100
ROUNDS, CALLS = 5, 1000
SENDERS = 16
DEADLINE_S = 600.0
CHANNEL = b"notes"


def best_ms(call: Callable[[], object]) -> float:
    """The time of a call in milliseconds, of the best of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - began) / CALLS * 1000)
    return min(rounds)


def measure_sealing() -> None:
    sender, recipient = Identity.new(os.urandom), Identity.new(os.urandom)
    private = os.urandom(32)
    prekey = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    content = message(BODY, CHANNEL)

    def seal() -> bytes:
        return seal_message(
            content, sender=sender, recipient=recipient.public, prekey=prekey, entropy=os.urandom
        )

    sealed = seal()
    open_ms = best_ms(
        lambda: open_message(sealed, recipient=recipient, prekey_of=lambda _: private)
    )
    print(f"sealing 100 B: {best_ms(seal):.3f} ms")
    print(f"opening 100 B: {open_ms:.3f} ms")


async def measure_relay(folder: Path, count: int) -> None:
    relay = PeerNode(folder, "relay", relay=True)
    alice = PeerNode(folder, "alice", via=(relay.as_relay,))
    bob = PeerNode(folder, "bob", via=(relay.as_relay,))
    for one, other in ((alice, bob), (bob, alice)):
        one.knows(other, dials=False, relays=(relay.as_relay,))
        one.learns_key_of(other)
        one.knows(relay)
        relay.knows(one, dials=False)
    async with relay.node() as between, alice.node() as here, bob.node() as there:
        began, cpu_began = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for number in range(SENDERS):
                tasks.start_soon(_send, here, bob.public, range(number, count, SENDERS))
            await until(lambda: there.outbox.context.local.count(CHANNEL) == count, DEADLINE_S)
        arrived_s = time.perf_counter() - began
        await until(lambda: here.outbox.unconfirmed(bob.public) == 0, DEADLINE_S)
        confirmed_s = time.perf_counter() - began
        cpu_ms = (time.process_time() - cpu_began) / count * 1000
        state = there.outbox.context.store.state(alice.public)
        print(f"through a relay: {count / arrived_s:.0f} messages/s ({arrived_s:.2f} s)")
        print(f"until receipts:  {count / confirmed_s:.0f} messages/s ({confirmed_s:.2f} s)")
        print(f"CPU:             {cpu_ms:.2f} ms for each message, all three nodes")
        print(f"state of a peer: {len(msgspec.msgpack.encode(state))} bytes")
        halves = _sum(there, "SELECT SUM(LENGTH(data)) FROM one_time_prekeys")
        given = _sum(between, "SELECT MAX(LENGTH(keys)) FROM given_prekeys")
        print(f"one-time keys:   {halves} bytes at their owner, {given} for an owner at its relay")


def _sum(node: Node, query: str) -> int:
    found: int = node.outbox.context.store.query(query)[0][0]
    return found


async def _send(node: Node, peer: bytes, numbers: range) -> None:
    for _ in numbers:
        await node.outbox.send(peer, CHANNEL, BODY)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    measure_sealing()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure_relay(Path(folder), count))


if __name__ == "__main__":
    main()
