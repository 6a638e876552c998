"""What it means in a channel that a connection has an identity (PA-08, PA-18, PS-06, PS-10)."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import Failed, GetAck, Mode, NackReason, Put, PutAck, Role
from millpond.actors.store.changes import SENDER_SHIFT, StoredMessage
from tests.actors.pond import NAME, START_S, Peer, Pond, fanout, pair, queue

ANN, BOB, CAT = (bytes([each]) * 32 for each in b"abc")
WEEK = 604_800
BY_MODE = pytest.mark.parametrize(
    "settings", [pair(), fanout(), queue()], ids=lambda each: each.mode.name.lower()
)


def refused(peer: Peer, put: Put) -> Code:
    (reply,) = peer.ask(put)
    assert isinstance(reply, Failed)
    return reply.code


class TestKeys:
    """PA-08: keys are those of the sender."""

    def test_pa_08_two_identities_may_use_the_same_key_for_different_messages(self) -> None:
        pond = Pond()
        ann, bob = pond.producer(identity=ANN), pond.producer(identity=BOB)
        nobody, other = pond.producer(), pond.producer()
        receipts = [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7), nobody.put(b"x", key=7)]
        assert len({each.id for each in receipts}) == 3
        assert {each.key for each in receipts} == {7}, "the receipt has the key as it was given"
        assert [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)] == receipts[:2]
        assert other.put(b"x", key=7) == receipts[2], "all who are anonymous share their keys"
        assert pond.kept() == [b"of Ann", b"of Bob", b"x"]

    @pytest.mark.parametrize("is_gone", [False, True])
    @pytest.mark.parametrize("how", ["connection", "crash", "restart"])
    def test_pa_08_a_retry_on_another_connection_gets_the_same_answer(
        self, how: str, is_gone: bool
    ) -> None:
        pond = Pond()
        ann, bob = pond.producer(identity=ANN), pond.producer(identity=BOB)
        receipts = [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)]
        if is_gone:
            pond.producer().ack(*(each.id for each in receipts))
        if how == "crash":
            pond.crash()
            pond.advance(1)
        elif how == "restart":
            pond = pond.restarted()
        bob, ann = pond.producer(identity=BOB), pond.producer(identity=ANN)
        assert [ann.put(b"of Ann", key=7), bob.put(b"of Bob", key=7)] == receipts
        assert refused(ann, Put(7, 3600, b"of Bob")) is Code.KEY_REUSED
        assert len(pond.kept()) == (0 if is_gone else 2)

    def test_pa_08_when_the_window_is_over_key_and_identity_are_forgotten(self) -> None:
        pond = Pond()
        ann = pond.producer(identity=ANN)
        first = ann.put(b"one", key=7, ttl=60)
        pond.advance(601)
        second = ann.put(b"two", key=7, ttl=60)
        assert second.id > first.id
        pond.advance(1000)
        assert pond.store.usage.keys == 0 and pond.store._partitions == {}
        third = ann.put(b"three", key=7, ttl=60)
        reader = pond.join(identity=ANN)
        assert pond.kept() == [b"three"] and reader.pushed() == []
        assert pond.join(identity=BOB).pushed_ids() == [third.id]

    def test_an_identity_is_remembered_as_long_as_its_longest_message(self) -> None:
        pond = Pond()
        ann = pond.producer(identity=ANN)
        ann.put(b"short", ttl=1)
        ann.put(b"long", ttl=WEEK)
        ann.put(b"short", ttl=1)
        ann.leave()
        pond.advance(WEEK - 60)
        pond = pond.restarted()
        assert pond.join(identity=ANN).pushed() == []
        assert len(pond.join(identity=BOB).pushed()) == 1

    def test_a_channel_that_knows_too_many_refuses_newcomers_and_serves_the_others(self) -> None:
        pond = Pond(ChannelSettings(members_max=2))
        ann, bob, cat = (pond.producer(identity=each) for each in (ANN, BOB, CAT))
        ann.put(ttl=WEEK), bob.put(ttl=60)
        assert refused(cat, Put(1, 60, b"hi")) is Code.BUFFER_FULL
        ann.put(), pond.producer().put()
        pond.advance(1000)
        assert isinstance(cat.put(), PutAck), "there is room as soon as one is forgotten"

    def test_a_refused_put_makes_nobody_known(self) -> None:
        pond = Pond()
        ann = pond.producer(identity=ANN)
        assert refused(ann, Put(1, 60, bytes(2**21))) is Code.DATA_TOO_LARGE
        pond.settle()
        assert pond.store._partitions == {}


class TestOnesOwn:
    """PA-18 and PS-10: what an identity put itself."""

    @BY_MODE
    @pytest.mark.parametrize("how", ["connections", "crash", "restart"])
    def test_pa_18_nothing_is_pushed_to_any_connection_of_its_sender(
        self, settings: ChannelSettings, how: str
    ) -> None:
        pond = Pond(settings)
        ann, early = pond.producer(identity=ANN), pond.join(identity=ANN)
        receipt = ann.put()
        if how == "crash":
            pond.crash()
            pond.advance(1)
        elif how == "restart":
            pond = pond.restarted()
            ann, early = pond.producer(identity=ANN), pond.join(identity=ANN)
        late = pond.join(identity=ANN, resume_after=0)
        pond.advance(120)
        assert early.pushed() == late.pushed() == []
        for each in (ann, early, late):
            assert each.list() == [receipt.id]
            assert each.get(receipt.id) == GetAck(receipt.id, b"hi")
        assert pond.join(identity=BOB, resume_after=0).pushed_ids() == [receipt.id]

    @BY_MODE
    def test_ps_10_the_sender_s_own_ack_is_ignored_on_all_its_connections(
        self, settings: ChannelSettings
    ) -> None:
        pond = Pond(settings)
        bob = pond.join(identity=BOB)
        ann, again = pond.join(identity=ANN), pond.join(identity=ANN)
        receipt = ann.put()
        ann.ack(receipt.id), again.ack(receipt.id)
        assert pond.kept() == [b"hi"] and ann.list() == [receipt.id]
        assert bob.pushed_ids() == [receipt.id]
        bob.ack(receipt.id)
        assert pond.kept() == []

    def test_ps_10_an_anonymous_ack_of_anything_deletes(self) -> None:
        pond = Pond()
        nobody, ann = pond.producer(), pond.producer(identity=ANN)
        nobody.ack(nobody.put().id, ann.put().id)
        assert pond.kept() == []

    def test_ps_02_in_pair_mode_every_connection_of_every_other_identity_is_pushed(self) -> None:
        pond = Pond(pair())
        ann = [pond.join(identity=ANN) for _ in range(2)]
        bob = [pond.join(identity=BOB) for _ in range(2)]
        nobody = pond.join()
        receipt = ann[0].put()
        assert [each.pushed_ids() for each in ann] == [[], []]
        others = [*bob, nobody]
        assert all(each.pushed_ids() == [receipt.id] for each in others)
        bob[0].ack(receipt.id)
        assert pond.kept() == [] and pond.info().leased == 0

    def test_pa_18_a_queue_leaves_it_to_the_others(self) -> None:
        pond = Pond(queue())
        ann, worker = pond.producer(identity=ANN), pond.join(identity=ANN, role=Role.WORKER)
        receipt = ann.put()
        pond.advance(60)
        assert worker.pushed() == []
        assert pond.join(identity=BOB).pushed_ids() == [receipt.id]

    def test_after_a_damage_a_newcomer_is_not_taken_for_who_was_lost(self) -> None:
        """The table of members is gone, and messages still have the number of one."""
        pond = Pond()
        key = 3 << SENDER_SHIFT | 1
        pond.store.write(NAME, [StoredMessage(5, key, 3600, START_S + 3600, b"whose?")])
        ann = pond.join(identity=ANN)
        own = ann.put(key=1)
        assert ann.pushed_ids() == [5]
        assert pond.join(identity=BOB).pushed_ids() == [5, own.id]


class TestSubscribers:
    """PS-06: an identity stays subscribed while it is away."""

    @pytest.fixture
    def pond(self) -> Pond:
        return Pond(fanout())

    def test_ps_06_who_was_away_gets_what_was_put_meanwhile(self, pond: Pond) -> None:
        ann, bob = pond.producer(identity=ANN), pond.join(identity=BOB)
        before = ann.put()
        assert bob.pushed_ids() == [before.id]
        bob.ack(before.id)
        bob.leave()
        while_away = [ann.put(b"%d" % each, ttl=WEEK).id for each in range(3)]
        pond.advance(3600)
        assert pond.info().subscribers == 1 and len(pond.kept()) == 3
        assert pond.join().pushed() == [], "a connection without identity has just subscribed"
        bob = pond.join(identity=BOB)
        assert bob.pushed_ids() == while_away == bob.list()
        bob.ack(*while_away)
        assert pond.kept() == [] and bob.list() == []

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
    @pytest.mark.parametrize("how", ["restart", "crash"])
    def test_ps_06_what_it_had_is_known_after_a_restart(
        self, pond: Pond, how: str, order: tuple[int, ...]
    ) -> None:
        ann, bob = pond.producer(identity=ANN), pond.join(identity=BOB)
        cat = pond.join(identity=CAT)
        ids = [ann.put(b"%d" % each).id for each in range(4)]
        bob.ack(*(ids[each] for each in order[:3]))
        left = [ids[order[3]]]
        bob.leave(), cat.leave()
        if how == "crash":
            pond.crash()
            pond.advance(1)
        else:
            pond = pond.restarted()
        bob, cat = pond.join(identity=BOB), pond.join(identity=CAT)
        assert bob.pushed_ids() == left and bob.list() == left
        assert cat.pushed_ids() == ids
        cat.ack(*ids)
        assert len(pond.kept()) == 1
        bob.ack(*left)
        assert pond.kept() == []

    def test_ps_06_an_identity_is_one_subscriber_on_all_its_connections(self, pond: Pond) -> None:
        ann, cat = pond.producer(identity=ANN), pond.join(identity=CAT)
        bob = [pond.join(identity=BOB) for _ in range(2)]
        receipt = ann.put()
        assert [each.pushed_ids() for each in bob] == [[receipt.id], [receipt.id]]
        bob[0].ack(receipt.id)
        assert pond.info().leased == 1, "Bob has it, and Cat not yet"
        pond.advance(600)
        assert bob[1].pushed() == [] == bob[1].list()
        cat.ack(receipt.id)
        assert pond.kept() == []

    def test_ps_06_who_is_idle_for_the_longest_ttl_is_forgotten(self, pond: Pond) -> None:
        ann, bob = pond.producer(identity=ANN), pond.join(identity=BOB)
        bob.leave()
        pond.advance(WEEK - 3600)
        receipt = ann.put(ttl=WEEK)
        assert pond.join(identity=BOB).pushed_ids() == [receipt.id]
        pond = pond.restarted()
        ann = pond.producer(identity=ANN)
        pond.advance(1.5 * WEEK)
        assert pond.kept() == [] and pond.store._partitions == {}
        ann.put(b"after")
        assert pond.join(identity=BOB).pushed() == []

    def test_ps_06_who_is_connected_is_never_idle(self, pond: Pond) -> None:
        bob = pond.join(identity=BOB)
        pond.advance(5 * WEEK)
        pond = pond.restarted()
        assert bob.pond.info().subscribers == 1
        receipt = pond.producer(identity=ANN).put()
        assert pond.join(identity=BOB).pushed_ids() == [receipt.id]

    def test_ps_06_who_was_forgotten_cannot_ack_for_others(self, pond: Pond) -> None:
        """A connection that asks for no pushes keeps no subscription alive, and lives on."""
        pond.join(identity=BOB).leave()
        asking = pond.join(identity=BOB, push=False)
        pond.advance(2 * WEEK)
        assert pond.info().subscribers == 0
        cat = pond.join(identity=CAT)
        receipt = pond.producer(identity=ANN).put()
        asking.ack(receipt.id)
        cat.leave()
        assert pond.kept() == [b"hi"] and asking.list() == [receipt.id]
        bob, cat = pond.join(identity=BOB), pond.join(identity=CAT)
        assert bob.pushed() == [] and cat.pushed_ids() == [receipt.id]
        later = pond.producer(identity=ANN).put()
        asking.ack(later.id)
        assert asking.list() == [receipt.id], "it is subscribed again, on all its connections"

    def test_a_subscriber_that_puts_is_owed_nothing_for_it(self, pond: Pond) -> None:
        ann, bob = pond.join(identity=ANN), pond.join(identity=BOB)
        of_ann, of_bob = ann.put(), bob.put()
        ann.ack(of_bob.id), bob.ack(of_ann.id)
        assert pond.kept() == []

    def test_a_subscriber_without_identity_holds_it_until_its_deadline_also_after_a_restart(
        self, pond: Pond
    ) -> None:
        ann, bob, nobody = pond.producer(), pond.join(identity=BOB), pond.join()
        receipt = ann.put(ttl=3600)
        bob.ack(receipt.id)
        assert nobody.pushed_ids() == [receipt.id] and pond.kept() == [b"hi"]
        pond = pond.restarted()
        bob = pond.join(identity=BOB)
        assert bob.pushed() == [] and pond.kept() == [b"hi"]
        other = pond.producer().put(b"later")
        bob.ack(other.id)
        assert pond.kept() == [b"hi"], "there was nobody but Bob for that one"
        pond.advance(3600)
        assert pond.kept() == []

    def test_the_anonymous_connection_s_own_ack_and_bob_s_end_it(self, pond: Pond) -> None:
        producer, bob, nobody = pond.producer(), pond.join(identity=BOB), pond.join()
        one, two = producer.put(), producer.put()
        bob.ack(one.id), nobody.ack(one.id)
        nobody.ack(two.id), bob.ack(two.id)
        assert pond.kept() == []

    def test_ps_06_resume_after_0_shows_what_was_there_before_the_subscription(
        self, pond: Pond
    ) -> None:
        receipt = pond.producer().put()
        bob = pond.join(identity=BOB, resume_after=0)
        assert bob.pushed_ids() == [receipt.id]
        bob.ack(receipt.id)
        assert pond.kept() == [b"hi"] and bob.list() == [], "its ack does not count"
        pond = pond.restarted()
        bob = pond.join(identity=BOB, resume_after=0)
        assert bob.pushed() == [] and bob.list() == []

    def test_a_reject_counts_as_had_also_after_a_restart(self, pond: Pond) -> None:
        producer, bob, _cat = pond.producer(), pond.join(identity=BOB), pond.join(identity=CAT)
        receipt = producer.put()
        bob.nack(receipt.id, NackReason.REJECT)
        pond = pond.restarted()
        assert pond.join(identity=BOB).pushed() == []
        assert pond.join(identity=CAT).pushed_ids() == [receipt.id]

    def test_who_only_puts_is_no_subscriber(self, pond: Pond) -> None:
        ann, bob = pond.producer(identity=ANN), pond.join(identity=BOB, role=Role.PRODUCER)
        ann.put(), bob.put()
        assert pond.info().subscribers == 0

    def test_too_many_subscribers_are_served_and_forgotten(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.CRITICAL)
        pond = Pond(ChannelSettings(mode=Mode.FANOUT, members_max=1))
        producer, bob = pond.producer(), pond.join(identity=BOB)
        cat = pond.join(identity=CAT)
        receipt = producer.put()
        assert bob.pushed_ids() == cat.pushed_ids() == [receipt.id]
        bob.ack(receipt.id), cat.ack(receipt.id)
        assert pond.kept() == [] and pond.info().subscribers == 1
        cat.leave(), bob.leave()
        producer.put()
        assert pond.join(identity=CAT).pushed() == [] and len(pond.join(identity=BOB).pushed()) == 1


class TestMode:
    """PS-05, where subscribers are away."""

    def test_ps_05_they_hold_an_empty_channel_to_its_mode_also_after_a_restart(self) -> None:
        pond = Pond()
        bob = pond.join(identity=BOB, mode=Mode.FANOUT)
        bob.leave()
        assert pond.join(mode=Mode.QUEUE).joined.mode is Mode.FANOUT
        pond = pond.restarted()
        assert pond.join(mode=Mode.QUEUE).joined.mode is Mode.FANOUT

    def test_ps_05_configuration_is_stronger(self) -> None:
        pond = Pond()
        pond.join(identity=BOB, mode=Mode.FANOUT).leave()
        pond.settings = queue()
        pond = pond.restarted()
        bob = pond.join(identity=BOB)
        assert bob.joined.mode is Mode.QUEUE and pond.info().subscribers == 0
        receipt = pond.producer().put()
        assert bob.pushed_ids() == [receipt.id]
