"""Connections with an identity in a channel (PA-08, PA-18, PS-06, PS-10)."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import Failed, GetAck, Mode, NackReason, Put, PutAck, Role
from millpond.actors.store.changes import SENDER_SHIFT, StoredMessage
from tests.actors.channels.harness import NAME, START_S, ChannelHarness, Peer, fanout, pair, queue

ANN, BOB, CAT = (bytes([each]) * 32 for each in b"abc")
WEEK = 604_800
BY_MODE = pytest.mark.parametrize(
    "settings", [pair(), fanout(), queue()], ids=lambda each: each.mode.name.lower()
)


def refused(peer: Peer, put: Put) -> Code:
    (reply,) = peer.request(put)
    assert isinstance(reply, Failed)
    return reply.code


class TestKeys:
    """PA-08: keys are those of the sender."""

    def test_pa_08_two_identities_may_use_the_same_key_for_different_messages(self) -> None:
        harness = ChannelHarness()
        ann, bob = harness.producer(identity=ANN), harness.producer(identity=BOB)
        nobody, other = harness.producer(), harness.producer()
        receipts = [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7), nobody.put(b"x", key=7)]
        assert len({each.id for each in receipts}) == 3
        assert {each.key for each in receipts} == {7}, "the receipt has the key as it was given"
        assert [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)] == receipts[:2]
        assert other.put(b"x", key=7) == receipts[2], "all who are anonymous share their keys"
        assert harness.kept() == [b"of Ann", b"of Bob", b"x"]

    @pytest.mark.parametrize("is_gone", [False, True])
    @pytest.mark.parametrize("how", ["connection", "crash", "restart"])
    def test_pa_08_a_retry_on_another_connection_gets_the_same_answer(
        self, how: str, is_gone: bool
    ) -> None:
        harness = ChannelHarness()
        ann, bob = harness.producer(identity=ANN), harness.producer(identity=BOB)
        receipts = [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)]
        if is_gone:
            harness.producer().ack(*(each.id for each in receipts))
        if how == "crash":
            harness.crash()
            harness.advance(1)
        elif how == "restart":
            harness = harness.restarted()
        bob, ann = harness.producer(identity=BOB), harness.producer(identity=ANN)
        assert [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)] == receipts
        assert refused(ann, Put(7, 3600, b"of Bob")) is Code.KEY_REUSED
        assert len(harness.kept()) == (0 if is_gone else 2)

    def test_pa_08_when_the_window_is_over_key_and_identity_are_forgotten(self) -> None:
        harness = ChannelHarness()
        ann = harness.producer(identity=ANN)
        first = ann.put(b"one", key=7, ttl=60)
        harness.advance(601)
        second = ann.put(b"two", key=7, ttl=60)
        assert second.id > first.id
        harness.advance(1000)
        assert harness.store.usage.keys == 0 and harness.store._partitions == {}
        third = ann.put(b"three", key=7, ttl=60)
        reader = harness.join(identity=ANN)
        assert harness.kept() == [b"three"] and reader.pushed() == []
        assert harness.join(identity=BOB).pushed_ids() == [third.id]

    def test_an_identity_is_remembered_as_long_as_its_longest_message(self) -> None:
        harness = ChannelHarness()
        ann = harness.producer(identity=ANN)
        ann.put(b"short", ttl=1)
        ann.put(b"long", ttl=WEEK)
        ann.put(b"short", ttl=1)
        ann.leave()
        harness.advance(WEEK - 60)
        harness = harness.restarted()
        assert harness.join(identity=ANN).pushed() == []
        assert len(harness.join(identity=BOB).pushed()) == 1

    def test_a_channel_with_too_many_identities_refuses_new_ones_and_serves_the_others(
        self,
    ) -> None:
        harness = ChannelHarness(ChannelSettings(subscribers_max=2))
        ann, bob, cat = (harness.producer(identity=each) for each in (ANN, BOB, CAT))
        ann.put(ttl=WEEK), bob.put(ttl=60)
        assert refused(cat, Put(1, 60, b"hi")) is Code.BUFFER_FULL
        ann.put(), harness.producer().put()
        harness.advance(1000)
        assert isinstance(cat.put(), PutAck), "there is room as soon as one is forgotten"

    def test_a_refused_put_adds_no_identity(self) -> None:
        harness = ChannelHarness()
        ann = harness.producer(identity=ANN)
        assert refused(ann, Put(1, 60, bytes(2**21))) is Code.DATA_TOO_LARGE
        harness.run_due()
        assert harness.store._partitions == {}


class TestOnesOwn:
    """PA-18 and PS-10: what an identity put itself."""

    @BY_MODE
    @pytest.mark.parametrize("how", ["connections", "crash", "restart"])
    def test_pa_18_nothing_is_pushed_to_any_connection_of_its_sender(
        self, settings: ChannelSettings, how: str
    ) -> None:
        harness = ChannelHarness(settings)
        ann, early = harness.producer(identity=ANN), harness.join(identity=ANN)
        receipt = ann.put()
        if how == "crash":
            harness.crash()
            harness.advance(1)
        elif how == "restart":
            harness = harness.restarted()
            ann, early = harness.producer(identity=ANN), harness.join(identity=ANN)
        late = harness.join(identity=ANN, resume_after=0)
        harness.advance(120)
        assert early.pushed() == late.pushed() == []
        for each in (ann, early, late):
            assert each.list() == [receipt.id]
            assert each.get(receipt.id) == GetAck(receipt.id, b"hi")
        assert harness.join(identity=BOB, resume_after=0).pushed_ids() == [receipt.id]

    @BY_MODE
    def test_ps_10_the_sender_s_own_ack_is_ignored_on_all_its_connections(
        self, settings: ChannelSettings
    ) -> None:
        harness = ChannelHarness(settings)
        bob = harness.join(identity=BOB)
        ann, again = harness.join(identity=ANN), harness.join(identity=ANN)
        receipt = ann.put()
        ann.ack(receipt.id), again.ack(receipt.id)
        assert harness.kept() == [b"hi"] and ann.list() == [receipt.id]
        assert bob.pushed_ids() == [receipt.id]
        bob.ack(receipt.id)
        assert harness.kept() == []

    def test_ps_10_an_anonymous_ack_of_anything_deletes(self) -> None:
        harness = ChannelHarness()
        nobody, ann = harness.producer(), harness.producer(identity=ANN)
        nobody.ack(nobody.put().id, ann.put().id)
        assert harness.kept() == []

    def test_ps_02_in_pair_mode_every_connection_of_every_other_identity_is_pushed(self) -> None:
        harness = ChannelHarness(pair())
        ann = [harness.join(identity=ANN) for _ in range(2)]
        bob = [harness.join(identity=BOB) for _ in range(2)]
        nobody = harness.join()
        receipt = ann[0].put()
        assert [each.pushed_ids() for each in ann] == [[], []]
        others = [*bob, nobody]
        assert all(each.pushed_ids() == [receipt.id] for each in others)
        bob[0].ack(receipt.id)
        assert harness.kept() == [] and harness.info().leased == 0

    def test_pa_18_a_queue_leaves_it_to_the_others(self) -> None:
        harness = ChannelHarness(queue())
        ann, worker = harness.producer(identity=ANN), harness.join(identity=ANN, role=Role.WORKER)
        receipt = ann.put()
        harness.advance(60)
        assert worker.pushed() == []
        assert harness.join(identity=BOB).pushed_ids() == [receipt.id]

    def test_after_a_damage_a_new_identity_gets_no_number_in_use(self) -> None:
        """The table of subscribers is gone, and messages still have the number of one."""
        harness = ChannelHarness()
        key = 3 << SENDER_SHIFT | 1
        harness.store.write(NAME, [StoredMessage(5, key, 3600, START_S + 3600, b"whose?")])
        ann = harness.join(identity=ANN)
        own = ann.put(key=1)
        assert ann.pushed_ids() == [5]
        assert harness.join(identity=BOB).pushed_ids() == [5, own.id]


class TestSubscribers:
    """PS-06: an identity stays subscribed while it is away."""

    @pytest.fixture
    def harness(self) -> ChannelHarness:
        return ChannelHarness(fanout())

    def test_ps_06_a_subscriber_that_was_away_gets_messages_put_meanwhile(
        self, harness: ChannelHarness
    ) -> None:
        ann, bob = harness.producer(identity=ANN), harness.join(identity=BOB)
        before = ann.put()
        assert bob.pushed_ids() == [before.id]
        bob.ack(before.id)
        bob.leave()
        while_away = [ann.put(b"%d" % each, ttl=WEEK).id for each in range(3)]
        harness.advance(3600)
        assert harness.info().subscribers == 1 and len(harness.kept()) == 3
        assert harness.join().pushed() == [], "a connection without identity has just subscribed"
        bob = harness.join(identity=BOB)
        assert bob.pushed_ids() == while_away == bob.list()
        bob.ack(*while_away)
        assert harness.kept() == [] and bob.list() == []

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
    @pytest.mark.parametrize("how", ["restart", "crash"])
    def test_ps_06_acks_are_known_after_a_restart(
        self, harness: ChannelHarness, how: str, order: tuple[int, ...]
    ) -> None:
        ann, bob = harness.producer(identity=ANN), harness.join(identity=BOB)
        cat = harness.join(identity=CAT)
        ids = [ann.put(b"%d" % each).id for each in range(4)]
        bob.ack(*(ids[each] for each in order[:3]))
        left = [ids[order[3]]]
        bob.leave(), cat.leave()
        if how == "crash":
            harness.crash()
            harness.advance(1)
        else:
            harness = harness.restarted()
        bob, cat = harness.join(identity=BOB), harness.join(identity=CAT)
        assert bob.pushed_ids() == left and bob.list() == left
        assert cat.pushed_ids() == ids
        cat.ack(*ids)
        assert len(harness.kept()) == 1
        bob.ack(*left)
        assert harness.kept() == []

    def test_ps_06_an_identity_is_one_subscriber_on_all_its_connections(
        self, harness: ChannelHarness
    ) -> None:
        ann, cat = harness.producer(identity=ANN), harness.join(identity=CAT)
        bob = [harness.join(identity=BOB) for _ in range(2)]
        receipt = ann.put()
        assert [each.pushed_ids() for each in bob] == [[receipt.id], [receipt.id]]
        bob[0].ack(receipt.id)
        assert harness.info().leased == 1, "Bob has it, and Cat not yet"
        harness.advance(600)
        assert bob[1].pushed() == [] == bob[1].list()
        cat.ack(receipt.id)
        assert harness.kept() == []

    def test_ps_06_a_subscriber_idle_for_the_longest_ttl_is_forgotten(
        self, harness: ChannelHarness
    ) -> None:
        ann, bob = harness.producer(identity=ANN), harness.join(identity=BOB)
        bob.leave()
        harness.advance(WEEK - 3600)
        receipt = ann.put(ttl=WEEK)
        assert harness.join(identity=BOB).pushed_ids() == [receipt.id]
        harness = harness.restarted()
        ann = harness.producer(identity=ANN)
        harness.advance(1.5 * WEEK)
        assert harness.kept() == [] and harness.store._partitions == {}
        ann.put(b"after")
        assert harness.join(identity=BOB).pushed() == []

    def test_ps_06_a_connected_subscriber_is_never_idle(self, harness: ChannelHarness) -> None:
        bob = harness.join(identity=BOB)
        harness.advance(5 * WEEK)
        harness = harness.restarted()
        assert bob.harness.info().subscribers == 1
        receipt = harness.producer(identity=ANN).put()
        assert harness.join(identity=BOB).pushed_ids() == [receipt.id]

    def test_ps_06_a_forgotten_subscriber_cannot_ack_for_others(
        self, harness: ChannelHarness
    ) -> None:
        """A connection that asks for no pushes keeps no subscription alive, and lives on."""
        harness.join(identity=BOB).leave()
        asking = harness.join(identity=BOB, push=False)
        harness.advance(2 * WEEK)
        assert harness.info().subscribers == 0
        cat = harness.join(identity=CAT)
        receipt = harness.producer(identity=ANN).put()
        asking.ack(receipt.id)
        cat.leave()
        assert harness.kept() == [b"hi"] and asking.list() == [receipt.id]
        bob, cat = harness.join(identity=BOB), harness.join(identity=CAT)
        assert bob.pushed() == [] and cat.pushed_ids() == [receipt.id]
        later = harness.producer(identity=ANN).put()
        asking.ack(later.id)
        assert asking.list() == [receipt.id], "it is subscribed again, on all its connections"

    def test_a_subscriber_that_puts_is_owed_nothing_for_it(self, harness: ChannelHarness) -> None:
        ann, bob = harness.join(identity=ANN), harness.join(identity=BOB)
        of_ann, of_bob = ann.put(), bob.put()
        ann.ack(of_bob.id), bob.ack(of_ann.id)
        assert harness.kept() == []

    def test_a_subscriber_without_identity_holds_it_until_its_deadline_also_after_a_restart(
        self, harness: ChannelHarness
    ) -> None:
        ann, bob, nobody = harness.producer(), harness.join(identity=BOB), harness.join()
        receipt = ann.put(ttl=3600)
        bob.ack(receipt.id)
        assert nobody.pushed_ids() == [receipt.id] and harness.kept() == [b"hi"]
        harness = harness.restarted()
        bob = harness.join(identity=BOB)
        assert bob.pushed() == [] and harness.kept() == [b"hi"]
        other = harness.producer().put(b"later")
        bob.ack(other.id)
        assert harness.kept() == [b"hi"], "there was nobody but Bob for that one"
        harness.advance(3600)
        assert harness.kept() == []

    def test_the_anonymous_connection_s_own_ack_and_bob_s_end_it(
        self, harness: ChannelHarness
    ) -> None:
        producer, bob, nobody = harness.producer(), harness.join(identity=BOB), harness.join()
        one, two = producer.put(), producer.put()
        bob.ack(one.id), nobody.ack(one.id)
        nobody.ack(two.id), bob.ack(two.id)
        assert harness.kept() == []

    def test_ps_06_resume_after_0_pushes_messages_from_before_the_subscription(
        self, harness: ChannelHarness
    ) -> None:
        receipt = harness.producer().put()
        bob = harness.join(identity=BOB, resume_after=0)
        assert bob.pushed_ids() == [receipt.id]
        bob.ack(receipt.id)
        assert harness.kept() == [b"hi"] and bob.list() == [], "its ack does not count"
        harness = harness.restarted()
        bob = harness.join(identity=BOB, resume_after=0)
        assert bob.pushed() == [] and bob.list() == []

    def test_a_reject_counts_as_had_also_after_a_restart(self, harness: ChannelHarness) -> None:
        producer, bob, _cat = (
            harness.producer(),
            harness.join(identity=BOB),
            harness.join(identity=CAT),
        )
        receipt = producer.put()
        bob.nack(receipt.id, NackReason.REJECT)
        harness = harness.restarted()
        assert harness.join(identity=BOB).pushed() == []
        assert harness.join(identity=CAT).pushed_ids() == [receipt.id]

    def test_a_producer_is_no_subscriber(self, harness: ChannelHarness) -> None:
        ann, bob = harness.producer(identity=ANN), harness.join(identity=BOB, role=Role.PRODUCER)
        ann.put(), bob.put()
        assert harness.info().subscribers == 0

    def test_too_many_subscribers_are_served_and_forgotten(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.CRITICAL)
        harness = ChannelHarness(ChannelSettings(mode=Mode.FANOUT, subscribers_max=1))
        producer, bob = harness.producer(), harness.join(identity=BOB)
        cat = harness.join(identity=CAT)
        receipt = producer.put()
        assert bob.pushed_ids() == cat.pushed_ids() == [receipt.id]
        bob.ack(receipt.id), cat.ack(receipt.id)
        assert harness.kept() == [] and harness.info().subscribers == 1
        cat.leave(), bob.leave()
        producer.put()
        assert (
            harness.join(identity=CAT).pushed() == []
            and len(harness.join(identity=BOB).pushed()) == 1
        )


class TestMode:
    """PS-05, where subscribers are away."""

    def test_ps_05_they_hold_an_empty_channel_to_its_mode_also_after_a_restart(self) -> None:
        harness = ChannelHarness()
        bob = harness.join(identity=BOB, mode=Mode.FANOUT)
        bob.leave()
        assert harness.join(mode=Mode.QUEUE).joined.mode is Mode.FANOUT
        harness = harness.restarted()
        assert harness.join(mode=Mode.QUEUE).joined.mode is Mode.FANOUT

    def test_ps_05_configuration_is_stronger(self) -> None:
        harness = ChannelHarness()
        harness.join(identity=BOB, mode=Mode.FANOUT).leave()
        harness.settings = queue()
        harness = harness.restarted()
        bob = harness.join(identity=BOB)
        assert bob.joined.mode is Mode.QUEUE and harness.info().subscribers == 0
        receipt = harness.producer().put()
        assert bob.pushed_ids() == [receipt.id]
