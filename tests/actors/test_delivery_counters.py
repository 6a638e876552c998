"""What channels count of their deliveries, and how far their subscribers are behind."""

from __future__ import annotations

import logging
from dataclasses import asdict

import pytest

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs.messages import RejectJob
from millpond.actors.messages import Ack, Mode, NackReason, Put
from tests.actors.pond import NAME, Pond, fanout, pair, queue

ANN, BOB = b"a" * 32, b"b" * 32


def changed(pond: Pond) -> dict[str, int]:
    """All counters that are not 0."""
    return {name: value for name, value in asdict(pond.shared.counters).items() if value}


def lags(pond: Pond) -> list[int]:
    channel = pond.scheduler.view(NAME)
    assert isinstance(channel, Channel)
    return sorted(channel.lags)


@pytest.mark.parametrize("settings", [pair(), fanout(), queue()], ids=lambda each: each.mode.name)
def test_a_message_that_is_pushed_and_acknowledged(settings: ChannelSettings) -> None:
    pond = Pond(settings)
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put()
    producer.ask(Put(receipt.key, 3600, b"hi"))  # a retry is no other message
    consumer.ack(receipt.id)
    consumer.ask(Ack(receipt.id), Ack(receipt.id))
    assert changed(pond) == {"kept": 1, "pushes": 1, "acks": 1, "late_acks": 2}


def test_a_batch_counts_each_of_its_messages() -> None:
    pond = Pond(queue(window=8))
    producer, worker = pond.producer(), pond.join(window=8)
    producer.say(*(Put(key, 3600, b"x") for key in range(5)))
    worker.say(*map(Ack, worker.pushed_ids()))
    assert changed(pond) == {"kept": 5, "pushes": 5, "acks": 5}


def test_what_comes_back_and_is_pushed_again() -> None:
    pond = Pond(queue(ack_timeout_s=10.0))
    producer, worker = pond.producer(), pond.join()
    receipt = producer.put(ttl=36_000)
    worker.nack(receipt.id, NackReason.LATER, 0)
    pond.settle()
    assert changed(pond) == {"kept": 1, "pushes": 2, "redeliveries": 1, "nacks": 1}
    pond.advance(60)  # nobody acknowledges it: it comes back, and is handed out again
    counted = changed(pond)
    assert counted["timeouts"] >= 1 and counted["redeliveries"] == counted["timeouts"] + 1
    pond.advance(0.5)
    assert pond.info().leased == 1
    worker.leave()
    assert changed(pond) == counted | {"lost": 1}


def test_a_job_that_was_not_begun_is_lost_and_not_redelivered() -> None:
    pond = Pond(queue(ack_timeout_s=10.0))
    producer, worker = pond.producer(), pond.join(reports_start=True)
    producer.put(ttl=36_000)
    while pond.info().leased:
        pond.advance(0.5)
    assert changed(pond) == {"kept": 1, "pushes": 1, "timeouts": 1}
    pond.advance(5)
    assert changed(pond) == {"kept": 1, "pushes": 2, "timeouts": 1}
    worker.leave()
    assert changed(pond) == {"kept": 1, "pushes": 2, "timeouts": 1, "lost": 1}


@pytest.mark.parametrize("is_job", [False, True])
def test_a_rejected_message_is_a_dead_letter_which_is_kept(is_job: bool) -> None:
    pond = Pond(queue())
    producer, worker = pond.producer(), pond.join()
    receipt = producer.put()
    worker.pushed()
    if is_job:
        worker.ask(RejectJob(1, receipt.id, "bad"))
    else:
        worker.nack(receipt.id, NackReason.REJECT)
    pond.settle()
    assert changed(pond) == {"kept": 2, "pushes": 1, "nacks": 1, "dead_letters": 1}


def test_a_rejected_message_of_a_pair_counts_as_nack_alone() -> None:
    pond = Pond(pair())
    producer, consumer = pond.producer(), pond.join()
    consumer.nack(producer.put().id, NackReason.REJECT)
    assert pond.kept() == [] and changed(pond) == {"kept": 1, "pushes": 1, "nacks": 1}


def test_a_message_that_a_consumer_cannot_read_is_given_back_once() -> None:
    pond = Pond(pair())
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put()
    for _ in range(2):
        consumer.nack(receipt.id, NackReason.CANNOT_DECRYPT)
    assert changed(pond) == {"kept": 1, "pushes": 1, "nacks": 1}


@pytest.mark.parametrize("bury", [False, True])
def test_a_message_that_expires(bury: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    pond = Pond(ChannelSettings(mode=Mode.QUEUE, dead_letter_expired=bury))
    pond.producer().put(ttl=5)
    pond.advance(60)
    dead = {"kept": 2, "dead_letters": 1} if bury else {"kept": 1}
    assert changed(pond) == {"expired": 1} | dead


def test_subscribers_are_behind_by_what_they_did_not_acknowledge() -> None:
    pond = Pond(fanout())
    producer, quick, slow = pond.producer(), pond.join(), pond.join()
    ids = [producer.put().id for _ in range(5)]
    assert lags(pond) == [5, 5]
    quick.ack(*ids)
    slow.ack(ids[2])
    assert lags(pond) == [0, 4]
    late = pond.join()
    assert lags(pond) == [0, 0, 4], "what was put before it came is not owed to it"
    for each in (quick, late):
        each.leave()
    assert lags(pond) == [4]


def test_an_identity_that_is_away_falls_behind_and_owes_itself_nothing() -> None:
    pond = Pond(fanout())
    ann, producer = pond.join(identity=ANN), pond.producer()
    ids = [producer.put().id for _ in range(3)]
    ann.put()
    ann.ack(ids[1])
    assert lags(pond) == [2]
    ann.leave()
    producer.put()
    assert lags(pond) == [3]
    bob = pond.join(identity=BOB)
    assert lags(pond) == [0, 3]
    bob.put()
    assert lags(pond) == [0, 4]


@pytest.mark.parametrize("settings", [pair(), queue()], ids=lambda each: each.mode.name)
def test_nobody_subscribes_to_other_channels(settings: ChannelSettings) -> None:
    pond = Pond(settings)
    pond.join()
    pond.producer().put()
    assert lags(pond) == []
