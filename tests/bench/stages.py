"""The CPU time of each stage of a PUT: each stage alone, in one process, without sockets.

    python -m tests.bench.stages

Prints microseconds a message, the best of many short runs, for reads of 1 and of 16 messages. The
last row is an empty function call, to compare machines by.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter
from typing import Any

import anyio

from millpond.actors.messages import Ack, Batch, Msg, Put, PutAck, Role
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.connection import P2PConnection
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import Hello, encode_hello

DATA = b"x" * 100
RUNS = 200
MESSAGES = 16_000
CHANNEL = b"bench"
ROOMY = Config(
    p2p="off",
    ws="off",
    s3p="off",
    rustlog="off",
    http="off",
    channel_messages_max=10**9,
    channel_bytes_max=2**40,
    node_messages_max=10**9,
    node_bytes_max=2**40,
)


class Sink:
    """A wire that keeps the last thing written."""

    peer, host, secure, congested, unsent_bytes = "sink", "127.0.0.1", False, False, 0
    peer_certificate_hash: bytes | None = None
    failure: OSError | None = None
    last = b""

    def write(self, data: bytes) -> None:
        self.last = data

    def soon(self, callback: Callable[[], None]) -> None:
        callback()

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def best_us(work: Callable[[Any], object], items: Sequence[Any], each: int = 1) -> float:
    """Microseconds for one of the `each` messages of an item: the quickest of many runs."""
    size = max(1, len(items) // RUNS)
    quickest = float("inf")
    for start in range(0, len(items) - size + 1, size):
        part = items[start : start + size]
        began = perf_counter()
        for item in part:
            work(item)
        quickest = min(quickest, (perf_counter() - began) / size)
    return quickest / each * 1e6


def client(node: Node, role: Role) -> tuple[P2PConnection, Sink]:
    connection, wire = node.new_session("p2p"), Sink()
    assert isinstance(connection, P2PConnection)
    connection.opened(wire)
    hello = encode_hello(Hello(channel=CHANNEL, role=role, want_push=role is not Role.PRODUCER))
    connection.received(LengthPrefixed(2**20).frame([hello]))
    return connection, wire


def stages(node: Node, each: int) -> dict[str, float]:
    """One read of `each` PUTs, stage by stage, and whole."""
    producer, _ = client(node, Role.PRODUCER)
    framing, now = LengthPrefixed(2**20), node.clock.now()
    first = Random(each).randrange(2**31)
    puts = [
        [Put(first + at + offset, 60, DATA) for offset in range(each)]
        for at in range(0, MESSAGES, each)
    ]
    packets = [[p.encode(put) for put in batch] for batch in puts]
    reads = [framing.frame(batch) for batch in packets]
    acks = [PutAck(at, 60, at << 22) for at in range(MESSAGES)]
    batches = [Batch(producer, list(batch)) for batch in puts]
    behaviour = node.scheduler.view(CHANNEL)
    assert behaviour is not None
    effects = []
    times = {
        "split a read into packets": best_us(LengthPrefixed(2**20).feed, reads, each),
        "decode": best_us(lambda batch: [p.decode(one) for one in batch], packets, each),
        "channel": best_us(
            lambda batch: effects.append(behaviour.handle(batch, now)), batches, each
        ),
        "store": best_us(
            lambda effect: node._store.write(CHANNEL + b"2", effect.changes), effects, each
        ),
        "encode the receipt": best_us(p.encode, acks),
        "frame the receipts": best_us(framing.frame, [[b"r" * 17] * each] * 4000, each),
    }
    later = [framing.frame([p.encode(Put(one.key ^ 1 << 31, 60, DATA)) for one in b]) for b in puts]
    times["the whole connection"] = best_us(producer.received, later, each)
    return times


def push_us(node: Node) -> tuple[float, float]:
    """PUT with its push to another connection, and the MSG_ACK, in microseconds."""
    producer, _ = client(node, Role.PRODUCER)
    consumer, sink = client(node, Role.CONSUMER)
    framing = LengthPrefixed(2**20)
    put_us = ack_us = float("inf")
    for key in range(8000):
        data = framing.frame([p.encode(Put(key, 60, DATA))])
        began = perf_counter()
        producer.received(data)
        put_us = min(put_us, perf_counter() - began)
        pushed = p.decode(sink.last[4:])
        assert isinstance(pushed, Msg)
        data = framing.frame([p.encode(Ack(pushed.id))])
        began = perf_counter()
        consumer.received(data)
        ack_us = min(ack_us, perf_counter() - began)
    return put_us * 1e6, ack_us * 1e6


async def main() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    single, many = stages(Node(ROOMY, rng=Random(1)), 1), stages(Node(ROOMY, rng=Random(1)), 16)
    print("| stage, us a message | reads of 1 | reads of 16 |\n| --- | --- | --- |")
    for name in single:
        print(f"| {name} | {single[name]:.2f} | {many[name]:.2f} |")
    put_us, ack_us = push_us(Node(ROOMY, rng=Random(1)))
    print(f"| PUT with its push to another connection | {put_us:.2f} | |")
    print(f"| MSG_ACK | {ack_us:.2f} | |")
    call_us = best_us(lambda _: None, range(100_000))
    print(f"| an empty call | {call_us:.3f} | |")


if __name__ == "__main__":
    anyio.run(main)
