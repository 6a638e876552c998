"""Random lives of a channel against a simple model of what it promises
(docs/reference/wire-protocol.md).

After every step: LIST is what the model keeps (no message lost, none past its deadline, an ack
deletes), nobody holds more than its credit, a queue leases a message once. At the end: whatever is
kept reaches a consumer that takes everything.
"""

from __future__ import annotations

import logging
from collections import Counter
from random import Random

import pytest

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.delivery_modes import QueueDelivery
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import (
    Credit,
    Detach,
    Mode,
    Msg,
    Nack,
    NackReason,
    Put,
    PutAck,
    Touch,
    Writable,
)
from tests.actors.channels.harness import NAME, ChannelHarness, Peer, fanout, pair, queue

DEAD = NAME + b"!dead"
LEASE_S_MIN = 24.0
STEPS = 400


class Life:
    """A harness, its model, and a random generator."""

    def __init__(
        self, settings: ChannelSettings, seed: int, identities: tuple[bytes, ...] = ()
    ) -> None:
        self.dice = Random(seed)
        self.harness = ChannelHarness(settings, seed=seed)
        self.watcher = self.harness.producer()
        self.mode = settings.mode
        self.identities = identities
        self.owed: dict[bytes, set[int]] = {}
        """The messages that known subscribers have not acked yet (fanout)."""
        self.peers: list[Peer] = []
        self.kept: dict[int, tuple[float, bytes | int, bytes]] = {}
        """Deadline, source and data of what must be there."""
        self.receipts: dict[int, PutAck] = {}
        self.held: dict[int, tuple[Peer, float]] = {}
        """The last consumer of a message, and the earliest end of its lease."""
        self.last_id = 0
        self.crashed_at = 0.0

    def step(self) -> None:
        moves = [self.put] * 4 + [self.ack] * 4 + [self.nack, self.touch, self.credit, self.clog]
        moves += [self.wait] * 3 + [self.join, self.leave, self.retry]
        if self.dice.random() < 0.02:
            moves = [self.crash, self.restart] if self.identities else [self.crash]
        self.dice.choice(moves)()
        self.check()

    def who(self, peer: Peer) -> bytes | int:
        """Its identity, or its connection."""
        return peer.identity or peer.port.number

    def some_peer(self) -> Peer:
        return self.dice.choice(self.peers) if self.peers else self.watcher

    def some_id(self) -> int:
        if self.last_id and self.dice.random() < 0.9:
            return self.dice.choice(list(self.kept) or [self.last_id])
        return self.dice.randrange(2**63)

    def put(self) -> None:
        peer, ttl = self.some_peer(), self.dice.choice((1, 20, 100, 90_000))
        data = bytes(self.dice.randrange(1, 30))
        receipt = peer.put(data, ttl=ttl)
        assert receipt.id > self.last_id
        self.last_id = receipt.id
        self.receipts[receipt.key] = receipt
        self.kept[receipt.id] = (self.harness.now + ttl, self.who(peer), data)
        self.retry_data = (receipt, data, peer.identity)
        for identity, owed in self.owed.items():
            if identity != peer.identity:
                owed.add(receipt.id)

    def retry(self) -> None:
        if self.last_id:
            receipt, data, identity = self.retry_data
            scope = [each for each in (*self.peers, self.watcher) if each.identity == identity]
            if scope:
                assert self.dice.choice(scope).put(data, key=receipt.key) == receipt

    def ack(self) -> None:
        peer, message_id = self.some_peer(), self.some_id()
        peer.ack(message_id)
        own = peer.identity and message_id in self.kept and self.kept[message_id][1]
        if peer.identity and own == peer.identity:
            return
        self.owed.get(peer.identity or b"", set()).discard(message_id)
        if self.mode is not Mode.FANOUT:
            self.kept.pop(message_id, None)
            self.held.pop(message_id, None)

    def nack(self) -> None:
        held = [(message_id, peer) for message_id, (peer, _) in self.held.items()]
        if held:
            message_id, peer = self.dice.choice(held)
            reason = self.dice.choice((NackReason.LATER, NackReason.BUSY, NackReason.OTHER))
            peer.request(Nack(message_id, reason, self.dice.choice((None, 0, 1000, 60_000))))
            del self.held[message_id]

    def touch(self) -> None:
        peer, message_id = self.some_peer(), self.some_id()
        peer.request(Touch(message_id, ms := self.dice.randrange(100_000)))
        if message_id in self.held and self.held[message_id][0] is peer:
            self.held[message_id] = (peer, self.harness.now + ms / 1000)

    def credit(self) -> None:
        self.some_peer().request(Credit(self.dice.randrange(3)))

    def clog(self) -> None:
        port = self.some_peer().port
        port.writable = not port.writable
        if port.writable:
            self.some_peer().send(Writable())

    def join(self) -> None:
        if len(self.peers) < 5:
            window = self.dice.choice((None, 0, 1, 3))
            ordered = self.dice.random() < 0.1
            identity = self.dice.choice((None, *self.identities)) if self.identities else None
            peer = self.harness.join(window=window, ordered=ordered, identity=identity)
            self.peers.append(peer)
            if identity is not None and self.mode is Mode.FANOUT:
                self.owed.setdefault(identity, set())

    def leave(self) -> None:
        if self.peers:
            peer = self.peers.pop(self.dice.randrange(len(self.peers)))
            self.collect(peer)
            peer.leave()
            self.held = {each: held for each, held in self.held.items() if held[0] is not peer}

    def wait(self) -> None:
        self.harness.advance(self.dice.choice((0.1, 1, 5, 40)))

    def crash(self) -> None:
        if self.harness.now < self.crashed_at + 60:
            return  # a second one would be on its way to quarantine
        self.crashed_at = self.harness.now
        self.harness.crash()
        self.harness.advance(0.1)
        self.held.clear()

    def restart(self) -> None:
        for peer in self.peers:
            self.collect(peer)
        self.harness = self.harness.restarted()
        self.peers.clear()
        self.held.clear()
        self.watcher = self.harness.producer()

    def collect(self, peer: Peer) -> None:
        for push in peer.pushed():
            assert push.id in self.kept or push.id <= self.last_id
            if push.id in self.kept:
                _, source, data = self.kept[push.id]
                assert source != self.who(peer) and data == push.data
            self.held[push.id] = (peer, self.harness.now)

    def check(self) -> None:
        self.harness.run_due()
        now = self.harness.now
        for peer in (*self.peers, self.watcher):
            self.collect(peer)
        self.kept = {each: kept for each, kept in self.kept.items() if kept[0] > now}
        self.held = {each: held for each, held in self.held.items() if each in self.kept}
        dead = {row.origin.id for row in self.harness.store.load(DEAD).rows if row.origin}
        assert len(dead) == len(self.harness.store.load(DEAD).rows)
        alive = self.kept
        if self.mode is Mode.FANOUT:
            self.kept = {each: self.kept[each] for each in self.watcher.list(limit=9999)}
        shown = self.watcher.list(limit=9999)
        assert set(shown).isdisjoint(dead) and shown == sorted(shown)
        assert set(shown) | (dead & set(self.kept)) == set(self.kept)
        self.kept = {each: self.kept[each] for each in shown}
        for owed in self.owed.values():
            owed.intersection_update(each for each, kept in alive.items() if kept[0] > now)
            assert owed <= set(self.kept)
        self.check_leases()

    def check_leases(self) -> None:
        channel = self.harness.scheduler.view(NAME)
        assert isinstance(channel, Channel)
        holders: Counter[int] = Counter()
        for consumer in channel.delivery.consumers.values():
            assert (
                consumer.credit >= 0 and consumer.credit + len(consumer.leases) == consumer.window
            )
            assert consumer.leased_bytes == sum(lease.size for lease in consumer.leases.values())
            assert set(consumer.leases) <= set(self.kept)
            holders.update(consumer.leases.keys())
        if self.mode is Mode.QUEUE:
            assert max(holders.values(), default=1) == 1
        assert channel.info.messages == len(self.kept)
        assert self.harness.store.usage.messages == len(self.kept) + len(self.harness.kept(DEAD))

    def finish(self) -> None:
        """Everyone leaves; who comes now takes everything there is."""
        for peer in self.peers:
            self.collect(peer)
            peer.leave()
        self.harness.advance(1)
        self.check_deadlines()
        for identity, owed in self.owed.items():
            self.check_owed(identity, owed)
        last = self.harness.join(resume_after=0)
        expected = {each for each, kept in self.kept.items() if kept[0] > self.harness.now + 7200}
        got: set[int] = set()
        for _ in range(7200 // 60):
            while ids := last.pushed_ids():
                got.update(ids)
                last.ack(*ids)
            self.harness.advance(60)
        dead_letters = {row.origin.id for row in self.harness.store.load(DEAD).rows if row.origin}
        assert expected <= got | dead_letters

    def check_owed(self, identity: bytes, owed: set[int]) -> None:
        """A subscriber that returns gets what it has not acked, and nothing that it had or put."""
        expected = {each for each in owed if each in self.kept}
        back = self.harness.join(identity=identity, window=1000)
        got = set(back.pushed_ids())
        assert expected == got & set(self.kept)
        back.leave()

    def check_deadlines(self) -> None:
        now = self.harness.now
        self.kept = {each: kept for each, kept in self.kept.items() if kept[0] > now}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "settings",
    [pair(), fanout(), queue(attempts_max=10**6), queue(attempts_max=3)],
    ids=["pair", "fanout", "queue", "queue with dead letters"],
)
def test_p2p_10_14_15_whatever_happens_the_promises_hold(
    settings: ChannelSettings, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    life = Life(settings, seed)
    for _ in range(STEPS):
        life.step()
    life.finish()
    assert life.harness.scheduler.counters.quarantines == 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "settings", [pair(), fanout(), queue(attempts_max=10**6)], ids=["pair", "fanout", "queue"]
)
def test_pa_18_ps_06_ps_10_whatever_identities_do_the_promises_hold(
    settings: ChannelSettings, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """On many connections, away, through crashes and restarts; beside some that are anonymous."""
    caplog.set_level(logging.CRITICAL)
    life = Life(settings, seed, (b"a" * 32, b"b" * 32, b"c" * 32))
    for _ in range(STEPS):
        life.step()
    life.finish()
    assert life.harness.scheduler.counters.quarantines == 0


def test_a_queue_hands_a_message_to_the_next_only_after_the_last_lost_it() -> None:
    """The view of a worker: until its push ends, no other one is pushed the same message."""
    dice, harness = Random(4), ChannelHarness(queue(ack_timeout_s=30, attempts_max=10**6))
    producer, workers = harness.producer(), [harness.join(window=3) for _ in range(4)]
    held: dict[int, tuple[Peer, float]] = {}
    for _ in range(2000):
        producer.put(ttl=dice.choice((30, 3000)))
        harness.advance(dice.random() * 3)
        for worker in workers:
            for push in worker.pushed():
                if push.id in held:
                    assert harness.now >= held[push.id][1] + LEASE_S_MIN - 3
                held[push.id] = (worker, harness.now)
                if dice.random() < 0.6:
                    worker.ack(push.id)
    assert len(held) > 500


def test_detach_and_put_in_one_batch_store_the_message() -> None:
    harness = ChannelHarness()
    peer = harness.join()
    peer.send(Put(1, 60, b"last words"), Detach())
    assert harness.kept() == [b"last words"]
    assert [each.data for each in harness.join().pushed() if isinstance(each, Msg)] == [
        b"last words"
    ]


def test_nothing_is_remembered_of_messages_that_are_gone() -> None:
    """A worker that also puts leaves its own messages to others; all come back once and more."""
    harness = ChannelHarness(queue(ack_timeout_s=1, attempts_max=10**6))
    peers = [harness.join(window=4) for _ in range(3)]
    for turn in range(300):
        peers[turn % 3].put(ttl=600)
        harness.advance(0.5)
        for peer in peers:
            peer.ack(*peer.pushed_ids()[::2])
    for _ in range(40):
        harness.advance(10)
        for peer in peers:
            peer.ack(*peer.pushed_ids())
    channel = harness.scheduler.view(NAME)
    assert isinstance(channel, Channel) and isinstance(channel.delivery, QueueDelivery)
    delivery = channel.delivery
    assert harness.kept() == [] and delivery.attempts == {} and not delivery.has_delays
    assert delivery._backlog._taken == set() and delivery._backlog._returned.heap == []
    assert len(delivery._deadlines) <= 64 and not harness.store.load(NAME).attempts
