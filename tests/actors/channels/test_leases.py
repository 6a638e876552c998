"""Leases of a channel whose disk hangs or fails (docs/internals/storage.md, "When the disk
fails")."""

from __future__ import annotations

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import Ack, Attach, Batch, Msg, NackReason, Put, PutAck
from millpond.actors.runtime.scheduler import LOAD_RETRY_S
from millpond.actors.store.changes import AttemptsSet, Snapshot
from millpond.actors.store.interface import Deferred, Fault
from tests.actors.channels.harness import NAME, ChannelHarness, fanout, pair, queue
from tests.actors.runtime.harness import LateStore

MODES = [queue(ack_timeout_s=4), pair(ack_timeout_s=4), fanout(ack_timeout_s=4)]


def finish(store: LateStore, fault: Fault | None = None) -> None:
    for commit in store.commits:
        if not commit.is_done:
            commit.finish(fault)


class UnreadableStore(LateStore):
    """A store whose next `failures` loads do not succeed, at once or when the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.is_slow = False
        self.loads: list[Deferred[Snapshot | Fault]] = []

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:  # type: ignore[override]
        if not self.failures:
            return super().load(name)
        self.failures -= 1
        self.loads.append(Deferred())
        if not self.is_slow:
            self.loads[-1].finish(Fault.UNREADABLE)
        return self.loads[-1]


class TestHangs:
    """A push that waits for the disk has no lease yet."""

    @pytest.mark.parametrize("settings", MODES, ids=["queue", "pair", "fanout"])
    def test_ps_02_a_message_leaves_once_and_its_lease_begins_then(
        self, settings: ChannelSettings
    ) -> None:
        harness = ChannelHarness(settings, store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        harness.advance(60)
        finish(store)
        assert [(each.data, each.attempt) for each in worker.pushed()] == [(b"one", 1)]
        harness.advance(3)  # a lease lasts 4 s, give or take a fifth
        finish(store)
        assert worker.pushed() == []
        harness.advance(3)
        finish(store)
        assert [(each.data, each.attempt) for each in worker.pushed()] == [(b"one", 2)]

    def test_ps_02_a_lease_begins_late_although_nothing_happened_meanwhile(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=10), store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        harness.advance(7)
        finish(store)
        (message,) = worker.pushed()
        harness.advance(7)  # a lease lasts 10 s, give or take a fifth
        finish(store)
        assert worker.pushed() == []
        worker.ack(message.id)
        assert harness.info().messages == 0

    def test_a_silent_consumer_delays_no_other(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=4), store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        producer.send()
        finish(store)
        assert [each.data for each in worker.pushed()] == [b"one"]
        assert harness.scheduler.counters.crashes == 0

    def test_ps_02_one_worker_gets_it_while_others_wait(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=4), store=(store := LateStore()))
        workers, producer = [harness.join(), harness.join()], harness.producer()
        producer.send(Put(1, 3600, b"one"), Put(2, 3600, b"two"))
        harness.advance(60)
        finish(store)
        pushed = [each for worker in workers for each in worker.pushed()]
        assert sorted((each.data, each.attempt) for each in pushed) == [(b"one", 1), (b"two", 1)]

    def test_p2p_14_a_message_that_expired_while_its_push_waited_is_not_pushed(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 5, b"short"), Put(2, 3600, b"long"))
        harness.advance(60)
        finish(store)
        assert [each.data for each in worker.pushed()] == [b"long"]
        assert [type(each) for each in producer.port.take()] == [PutAck, PutAck]

    def test_ps_14_a_hang_uses_up_no_attempts(self) -> None:
        harness = ChannelHarness(
            queue(ack_timeout_s=1, attempts_max=2), store=(store := LateStore())
        )
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        harness.advance(600)
        finish(store)
        (message,) = worker.pushed()
        assert message.attempt == 1
        assert harness.info().messages == 1

    def test_a_message_pushed_before_goes_to_another_in_time(self) -> None:
        """Its holder's lease ends as ever; who is next has it from when it leaves."""
        harness = ChannelHarness(queue(ack_timeout_s=4), store=(store := LateStore()))
        first, second, producer = harness.join(), harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (holder, other) = (first, second) if first.port.written else (second, first)
        assert [each.attempt for each in holder.pushed()] == [1]
        harness.advance(60)
        finish(store)
        again = [*holder.pushed(), *other.pushed()]
        assert [each.attempt for each in again] == [2]
        harness.advance(3)
        finish(store)
        assert [*holder.pushed(), *other.pushed()] == []

    @pytest.mark.parametrize("fault", [None, Fault.NOT_STORED])
    def test_ps_14_a_worker_that_detaches_before_its_push_uses_up_no_attempt(
        self, fault: Fault | None
    ) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=4), store=(store := LateStore()))
        first, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        first.leave()
        finish(store, fault)
        assert first.pushed() == []
        harness.run_due()
        second = harness.join()
        finish(store)
        assert [(each.data, each.attempt) for each in second.pushed()] == [(b"one", 1)]

    def test_an_ack_of_the_last_attempt_takes_the_next_one_out_of_the_line(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=4), store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = worker.pushed()
        harness.advance(30)
        worker.ack(message.id)
        harness.advance(30)
        finish(store)
        assert worker.pushed() == []


class TestFailures:
    """A channel that is built anew knows who has what."""

    def test_ps_02_no_two_hold_a_message(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=30, window=1), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        other = harness.join()
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        harness.advance(10)
        finish(store)
        assert message.id not in other.pushed_ids() + holder.pushed_ids()
        assert holder.touch(message.id, 5000).id == message.id  # type: ignore[union-attr]

    def test_the_lease_ends_when_it_would_have(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=10, window=1), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        holder.port.take()
        received: list[Msg] = []
        for _ in range(20):
            harness.advance(1)
            finish(store)
            received += holder.pushed()
        again = [each for each in received if each.id == message.id]
        assert again[0].attempt == 2

    def test_its_holder_acks_it_or_gives_it_back(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"), Put(2, 3600, b"two"))
        finish(store)
        one, two = holder.pushed()
        producer.send(Put(3, 3600, b"three"))
        finish(store, Fault.NOT_STORED)
        harness.run_due()
        finish(store)
        holder.port.take()
        holder.ack(one.id)
        holder.nack(two.id, NackReason.LATER, 1000)
        finish(store)
        harness.advance(2)
        finish(store)
        assert [(each.id, each.attempt) for each in holder.pushed()] == [(two.id, 2)]

    def test_a_push_lost_on_its_way_leaves_no_lease(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        worker, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store, Fault.NOT_STORED)
        harness.run_due()
        finish(store)
        # This store keeps what it refuses, as a disk may.
        assert [(each.data, each.attempt) for each in worker.pushed()] == [(b"one", 1)]

    def test_ps_02_a_leased_message_that_was_delayed_is_not_delayed_any_more(self) -> None:
        """That it rests until then is kept; that this is over, is not."""
        harness = ChannelHarness(queue(ack_timeout_s=300, window=1), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        holder.nack(message.id, NackReason.LATER, 1000)
        finish(store)
        harness.advance(2)
        finish(store)
        assert [each.attempt for each in holder.pushed()] == [2]
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        harness.run_due()
        other = harness.join(window=8)
        harness.advance(60)
        finish(store)
        assert message.id not in other.pushed_ids()
        holder.leave()
        harness.run_due()
        finish(store)
        assert [(each.id, each.attempt) for each in other.pushed()] == [(message.id, 3)]

    def test_ps_14_a_worker_that_detaches_at_the_refusal_uses_up_no_attempt(self) -> None:
        """The push to this consumer never left."""
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        producer = harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        producer.send(Put(2, 3600, b"two"))
        newcomer = harness.port()
        newcomer.on_send = lambda replies: harness.scheduler.detach(NAME, newcomer)
        harness.scheduler.attach(NAME, newcomer, Attach(keep_alive_s=1e9), harness.now)
        finish(store, Fault.NOT_STORED)
        harness.run_due()
        worker = harness.join()
        finish(store)
        assert {each.attempt for each in worker.pushed()} == {1}

    @pytest.mark.parametrize("leaves_at_once", [True, False])
    def test_ps_14_a_worker_that_detaches_before_the_channel_is_built_uses_up_its_attempt(
        self, leaves_at_once: bool
    ) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        producer.send(Put(2, 3600, b"two"))
        if leaves_at_once:
            producer.port.on_send = lambda replies: holder.leave()
        finish(store, Fault.NOT_STORED)
        if not leaves_at_once:
            holder.leave()
        harness.run_due()
        finish(store)
        other = harness.join()
        finish(store)
        assert [each.attempt for each in other.pushed() if each.id == message.id] == [2]
        assert holder.pushed() == []
        assert harness.info().connections == 2
        assert harness.restarted().join().pushed()[0].attempt == 2

    @pytest.mark.parametrize("leaves", ["before", "during", "at the refusal", "after", "crash"])
    def test_a_worker_that_leaves_while_its_channel_cannot_be_loaded_leaves_nothing(
        self, leaves: str
    ) -> None:
        """No connection, and no lease that others wait for; its attempt is used up."""
        store = UnreadableStore()
        harness = ChannelHarness(queue(ack_timeout_s=300), store=store)
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        store.failures, store.is_slow = int(leaves != "crash"), leaves == "during"
        harness.crash_on_spawn = lambda name: leaves == "crash" and harness.now < began + 0.01
        began = harness.now
        if leaves in ("before", "crash"):
            holder.leave()
        elif leaves == "at the refusal":
            producer.port.on_send = lambda replies: holder.leave()
            producer.send(Put(3, 3600, b"three"))
        harness.run_due()
        if leaves == "during":
            holder.leave()
            store.loads[0].finish(Fault.UNREADABLE)
        elif leaves == "after":
            holder.leave()
        harness.advance(LOAD_RETRY_S + 1)
        finish(store)
        other = harness.join()
        finish(store)
        assert harness.info().connections == 2
        assert [each.attempt for each in other.pushed() if each.id == message.id] == [2]
        assert holder.pushed() == []

    def test_ps_14_a_last_attempt_that_ends_before_the_channel_is_built_makes_a_dead_letter(
        self,
    ) -> None:
        harness = ChannelHarness(
            queue(ack_timeout_s=300, attempts_max=1), store=(store := LateStore())
        )
        holder, other, producer = harness.join(window=1), harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        assert len(holder.pushed()) == 1
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        holder.leave()
        harness.run_due()
        finish(store)
        harness.run_due()
        finish(store)
        assert [each.data for each in other.pushed()] == [b"two"]
        assert harness.kept(NAME + b"!dead") == [b"one"]

    def test_an_ack_before_the_detach_counts_though_the_channel_is_built_behind_it(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        producer.send(Put(2, 3600, b"two"))

        def ack_and_leave(replies: object) -> None:
            harness.scheduler.submit(NAME, Batch(holder.port, [Ack(message.id)]), harness.now)
            holder.leave()

        producer.port.on_send = ack_and_leave
        finish(store, Fault.NOT_STORED)
        harness.run_due()
        finish(store)
        other = harness.join()
        finish(store)
        assert message.id not in other.pushed_ids()
        assert message.data not in harness.kept()

    def test_a_detached_worker_has_no_leases(self) -> None:
        harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
        holder, producer = harness.join(), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        finish(store)
        (message,) = holder.pushed()
        producer.send(Put(2, 3600, b"two"))
        finish(store, Fault.NOT_STORED)
        holder.leave()
        finish(store)  # the attempt is counted
        other = harness.join()
        harness.advance(1)
        finish(store)
        assert message.id in other.pushed_ids()

    @pytest.mark.parametrize("gets_one", [True, False])
    def test_ps_14_a_message_without_attempts_is_not_pushed_after_a_restart(
        self, gets_one: bool
    ) -> None:
        """A loss of power came between the count and the dead letter."""
        harness = ChannelHarness(queue(ack_timeout_s=300, attempts_max=2))
        producer = harness.producer()
        message = producer.put(b"one")
        harness.store.write(NAME, [AttemptsSet(message.id, 2)])
        again = harness.restarted()
        worker = again.join() if gets_one else again.producer()
        again.advance(60)
        assert worker.pushed() == []
        assert again.kept() == []
        assert len(again.kept(NAME + b"!dead")) == 1
