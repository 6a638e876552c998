"""PUT: receipts, time to live, idempotency keys, refusals and quotas."""

from __future__ import annotations

import gc
from random import Random

import msgspec
import pytest

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy, NodeLimits
from millpond.actors.errors import Code
from millpond.actors.messages import Ack, Failed, Get, Put, PutAck
from tests.actors.channels.harness import START_S, ChannelHarness

DAY = 86_400


def refusal(peer, put: Put) -> Code:
    (reply,) = peer.request(put)
    assert isinstance(reply, Failed) and reply.request == put, reply
    return reply.code


def test_p2p_06_08_a_receipt_has_key_ttl_and_an_ascending_id() -> None:
    producer = ChannelHarness().producer()
    replies = producer.request(*(Put(key, 60, b"hi") for key in (0, 1, 2**32 - 1)))
    ids = [each.id for each in replies]
    assert replies == [PutAck(key, 60, i) for key, i in zip((0, 1, 2**32 - 1), ids, strict=True)]
    assert ids == sorted(set(ids)) and ids[0] > 0


@pytest.mark.parametrize(
    ("asked", "honoured"), [(0, DAY), (1, 1), (7 * DAY, 7 * DAY), (7 * DAY + 1, 7 * DAY)]
)
def test_pa_06_07_ttl_is_defaulted_clamped_and_returned(asked: int, honoured: int) -> None:
    harness = ChannelHarness()
    assert harness.producer().put(ttl=asked).ttl == honoured
    assert harness.store.load(b"orders").rows[0].expires_at == START_S + honoured


@pytest.mark.parametrize("ttl", [0, 7 * DAY + 1])
def test_pa_06_strict_mode_refuses_a_ttl_that_it_would_change(ttl: int) -> None:
    harness = ChannelHarness(ChannelSettings(ttl_strict=True))
    producer = harness.producer()
    assert refusal(producer, Put(1, ttl, b"hi")) is Code.TTL_REFUSED
    assert harness.kept() == []
    assert producer.put(key=1, ttl=60).ttl == 60


def test_pa_11_key_zero_is_an_ordinary_key() -> None:
    producer = ChannelHarness().producer()
    first = producer.put(b"hi", key=0)
    assert producer.put(b"hi", key=0) == first
    assert refusal(producer, Put(0, 60, b"other")) is Code.KEY_REUSED


def test_pa_08_keys_of_anonymous_connections_are_shared() -> None:
    harness = ChannelHarness()
    first = harness.producer().put(b"hi", key=1)
    assert harness.producer().put(b"hi", key=1) == first
    elsewhere = harness.producer(b"another channel").put(b"other", key=1)
    assert elsewhere.id != first.id


@pytest.mark.parametrize(
    ("ttl", "window"), [(60, 600), (3600, 3600), (2 * DAY, DAY)], ids=["short", "ttl", "cap"]
)
@pytest.mark.parametrize("acked", [True, False])
def test_pa_08_a_key_is_known_for_its_window_acked_or_not(ttl, window, acked) -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    receipt = producer.put(b"hi", key=1, ttl=ttl)
    if acked:
        producer.ack(receipt.id)
    harness.advance(window - 0.001)
    assert producer.put(b"hi", key=1, ttl=ttl) == receipt
    harness.advance(0.001)
    assert producer.put(b"other", key=1, ttl=ttl).id > receipt.id


def test_pa_08_a_message_that_outlives_its_key_s_window_is_kept_all_the_same() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    old = producer.put(b"old", key=1, ttl=3 * DAY)
    harness.advance(DAY + 10)
    new = producer.put(b"new", key=1, ttl=60)
    producer.ack(new.id)
    assert producer.list() == [old.id] and harness.kept() == [b"old"]
    harness.crash()
    harness.advance(1)
    assert producer.put(b"new", key=1, ttl=60) == new
    harness.advance(2 * DAY)
    assert harness.kept() == []


def test_keys_survive_a_crash_and_passivation() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    kept, gone = producer.put(b"kept", key=1), producer.put(b"gone", key=2)
    producer.ack(gone.id)
    harness.crash()
    harness.advance(1)
    assert (producer.put(b"kept", key=1), producer.put(b"gone", key=2)) == (kept, gone)
    producer.leave()
    harness.advance(120)
    assert harness.scheduler.cells[b"orders"].behaviour is None
    producer = harness.producer()
    assert (producer.put(b"kept", key=1), producer.put(b"gone", key=2)) == (kept, gone)
    assert refusal(producer, Put(2, 60, b"other")) is Code.KEY_REUSED


def test_keys_beyond_the_limit_push_out_the_oldest() -> None:
    harness = ChannelHarness(ChannelSettings(keys_max=64))
    producer = harness.producer()
    first = producer.put(b"hi", key=0)
    for key in range(1, 64):
        producer.put(b"hi", key=key)
    assert producer.put(b"hi", key=0) == first
    producer.put(b"hi", key=64)
    assert harness.info().keys <= 64
    assert producer.put(b"hi", key=0).id > first.id
    assert len(harness.kept()) == 66, "no message is dropped for a key"


def test_the_node_limits_the_keys_of_gone_messages() -> None:
    harness = ChannelHarness(limits=NodeLimits(keys_max=40))
    producer = harness.producer()
    for _ in range(100):
        producer.ack(producer.put().id)
        assert harness.store.usage.keys <= 41


@pytest.mark.parametrize(
    ("policy", "kept"),
    [(EmptyPolicy.IGNORE, []), (EmptyPolicy.REFUSE, []), (EmptyPolicy.STORE, [b""])],
)
def test_p2p_20_pa_22_empty_data(policy: EmptyPolicy, kept: list[bytes]) -> None:
    harness = ChannelHarness(ChannelSettings(empty=policy))
    producer = harness.producer()
    replies = producer.request(Put(1, 60, b""))
    assert harness.kept() == kept
    match policy:
        case EmptyPolicy.IGNORE:
            assert replies == []
        case EmptyPolicy.REFUSE:
            assert replies == [Failed(Put(1, 60, b""), Code.EMPTY_DATA)]
        case EmptyPolicy.STORE:
            assert isinstance(replies[0], PutAck)


def test_pa_34_data_above_the_limit_is_refused_and_at_the_limit_kept() -> None:
    harness = ChannelHarness(ChannelSettings(data_bytes_max=10))
    producer = harness.producer()
    assert refusal(producer, Put(1, 60, bytes(11))) is Code.DATA_TOO_LARGE
    producer.put(bytes(10), key=1)


@pytest.mark.parametrize(
    "quota",
    [
        {"settings": ChannelSettings(messages_max=3)},
        {"settings": ChannelSettings(bytes_max=35)},
        {"limits": NodeLimits(messages_max=3)},
        {"limits": NodeLimits(bytes_max=35)},
    ],
    ids=["channel messages", "channel bytes", "node messages", "node bytes"],
)
@pytest.mark.parametrize("batched", [True, False])
def test_pa_35_a_full_buffer_refuses_and_drops_nothing(quota, batched) -> None:
    harness = ChannelHarness(**quota)
    producer = harness.producer()
    puts = [Put(key, 60, bytes(10)) for key in range(5)]
    replies = producer.request(*puts) if batched else [producer.request(each)[0] for each in puts]
    assert [type(each) for each in replies] == [PutAck] * 3 + [Failed] * 2
    assert {each.code for each in replies[3:]} == {Code.BUFFER_FULL}
    assert harness.store.usage.messages == 3
    assert producer.put(bytes(10), key=0, ttl=60) == replies[0], "a retry needs no room"
    producer.ack(replies[1].id)
    assert producer.put(bytes(10), key=3)


def test_pa_35_an_ack_makes_room_within_its_batch() -> None:
    harness = ChannelHarness(ChannelSettings(messages_max=1))
    producer = harness.producer()
    kept = producer.put()
    assert isinstance(producer.request(Ack(kept.id), Put(5, 60, b"hi"))[0], PutAck)


def test_pa_35_expired_messages_make_room_even_before_a_sweep() -> None:
    harness = ChannelHarness(ChannelSettings(messages_max=3))
    producer = harness.producer()
    for _ in range(3):
        producer.put(ttl=5)
    harness.now += 5
    producer.put(b"new")
    assert harness.kept() == [b"new"]


def test_pa_35_the_node_s_quota_is_shared_by_its_channels() -> None:
    harness = ChannelHarness(limits=NodeLimits(messages_max=2))
    one, two = harness.producer(b"one"), harness.producer(b"two")
    first = one.put()
    one.put()
    assert refusal(two, Put(1, 60, b"hi")) is Code.BUFFER_FULL
    one.ack(first.id)
    two.put(key=1)


def test_pa_31_a_clock_that_was_set_back_refuses_nothing() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    before = producer.put().id
    harness.now -= 3600
    for start in range(0, 5000, 500):
        puts = [Put(start + key, 60, b"hi") for key in range(500)]
        ids = [each.id for each in producer.request(*puts) if isinstance(each, PutAck)]
        assert len(ids) == 500 and ids == sorted(ids) and ids[0] > before
        before = ids[-1]
    assert len(harness.kept()) == 5001


def test_pa_31_no_ids_left_is_a_refusal_and_nothing_is_kept() -> None:
    harness = ChannelHarness()
    harness.shared.ids.resume(1023, 2**63 - 3)
    producer = harness.producer()
    puts = [Put(key, 60, b"hi") for key in range(1, 5)]
    assert producer.request(*puts)[-1] == Failed(puts[-1], Code.IDS_EXHAUSTED)
    assert producer.request(puts[-1]) == [Failed(puts[-1], Code.IDS_EXHAUSTED)]
    assert len(harness.kept()) == 2
    assert harness.scheduler.counters.crashes == 0


def test_p2p_22_channels_never_see_each_other() -> None:
    harness = ChannelHarness()
    here, there = harness.join(b"here"), harness.join(b"there")
    receipt = here.put(b"secret")
    assert there.list() == [] and there.pushed() == []
    assert there.get(receipt.id) == Failed(Get(receipt.id), Code.NOT_FOUND)
    there.ack(receipt.id)
    assert harness.kept(b"here") == [b"secret"] and harness.kept(b"there") == []


def test_p2p_27_channels_appear_on_demand_and_go_without_a_trace() -> None:
    harness = ChannelHarness()
    for number in range(100):
        harness.join(b"channel %d" % number).leave()
    assert harness.scheduler.cells == {}
    producer = harness.producer()
    producer.ack(producer.put(ttl=60).id)
    producer.leave()
    harness.advance(700)
    assert harness.scheduler.cells == {} and harness.store._partitions == {}


def test_p2p_14_expired_messages_are_swept_in_slices_and_the_space_returns() -> None:
    harness = ChannelHarness()
    producer, other = harness.producer(), harness.producer(b"other")
    for start in range(0, 9000, 500):
        producer.request(*(Put(key, 60, b"hi") for key in range(start, start + 500)))
    harness.now += 60
    harness.scheduler.turn(harness.now)
    assert 0 < harness.info().messages < 9000, "one turn takes one slice"
    other.put()
    harness.run_due()
    assert harness.info().messages == 0 and harness.store.usage.messages == 1


def test_the_same_seed_and_input_give_the_same_effects() -> None:
    def run(seed: int) -> list[bytes]:
        dice, harness, said = Random(9), ChannelHarness(seed=seed), []
        peers = [harness.join(name) for name in (b"a", b"b", b"a", b"a")]
        for _ in range(300):
            peer = dice.choice(peers)
            peer.send(Put(dice.randrange(99), dice.randrange(90), b"hi"), Get(1))
            if dice.random() < 0.3:
                harness.advance(dice.random() * 20)
            said += [msgspec.json.encode(each.port.take(), enc_hook=str) for each in peers]
        return said

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_passivated_and_forgotten_cells_are_freed_without_the_garbage_collector() -> None:
    def alive() -> int:
        return sum(isinstance(each, Channel) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before, harness = alive(), ChannelHarness()
        producer, consumer = harness.producer(), harness.join()
        receipt = producer.put()
        consumer.nack(receipt.id)
        harness.join(b"empty").leave()
        for peer in (producer, consumer):
            peer.leave()
        harness.advance(600)
        assert harness.scheduler.counters.passivations == 1
        assert alive() == before
    finally:
        gc.enable()
