"""Effects that wait for a commit and those that do not; a failed release harms no other effect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millpond.actors.messages import (
    Attach,
    Attached,
    Failed,
    Get,
    GetAck,
    Hangup,
    Msg,
    Probe,
    Put,
    PutAck,
    Reply,
)
from millpond.actors.store.changes import Change
from millpond.actors.store.interface import Commit, Deferred, Fault
from tests.actors.channels.harness import NAME, ChannelHarness, pair
from tests.actors.recording_port import RecordingPort
from tests.actors.runtime.harness import LateStore, RuntimeHarness

A, B, C = b"a", b"b", b"c"


def fail(replies: Sequence[Reply]) -> None:
    raise RuntimeError("this connection cannot be told anything")


class TestLiveness:
    """PA-28: a disk that stalls is no reason to take longer over who is still there."""

    def test_pa_28_pings_and_hang_ups_do_not_wait_for_the_disk(self) -> None:
        harness = ChannelHarness(pair(ack_timeout_s=300), store=(store := LateStore()))
        silent, producer = harness.join(keep_alive_s=20), harness.producer()
        producer.send(Put(1, 3600, b"one"), Put(2, 3600, b"two"))
        received: list[tuple[float, Reply]] = []
        for second in range(1, 41):
            harness.advance(1)
            received += [(second, each) for each in silent.port.take()]
        assert received == [(20, Probe()), (30, Probe()), (40, Hangup())]
        assert producer.port.take() == []
        for commit in store.commits:
            commit.finish(None)
        assert [each.data for each in silent.pushed()] == [b"one", b"two"]
        assert [type(each) for each in producer.port.take()] == [PutAck, PutAck]

    def test_a_failed_commit_loses_no_ping(self) -> None:
        harness = ChannelHarness(store=(store := LateStore()))
        silent, producer = harness.join(keep_alive_s=20), harness.producer()
        producer.send(Put(1, 3600, b"one"))
        harness.advance(20)
        store.commits[0].finish(Fault.NOT_STORED)
        assert silent.port.take() == [Probe()]

    def test_a_connection_is_not_pinged_before_it_is_attached(self) -> None:
        harness = ChannelHarness(store=(store := LateStore()))
        producer, newcomer = harness.producer(), harness.port()
        producer.send(Put(1, 3600, b"one"))
        harness.scheduler.attach(NAME, newcomer, Attach(keep_alive_s=20), harness.now)
        harness.advance(25)
        assert newcomer.take() == []
        for commit in store.commits:
            commit.finish(None)
        assert [type(each) for each in newcomer.take()] == [Attached, Msg, Probe]


class TestFailures:
    def runtime(self) -> tuple[RuntimeHarness, LateStore, list[RecordingPort]]:
        """Three cells whose requests wait for one commit, each with a connection of its own."""
        store = LateStore(shares=True)
        runtime = RuntimeHarness(store=store)
        ports = [RecordingPort(number) for number in (1, 2, 3)]
        for name, port in zip((A, B, C), ports, strict=True):
            for number in (1, 2):
                runtime.submit(name, port, Put(number, 60, b""), Get(number))
        assert len(store.commits) == 1
        return runtime, store, ports

    def test_one_cell_that_fails_holds_up_no_other_of_its_commit(self) -> None:
        runtime, store, (a, b, c) = self.runtime()
        b.on_send = fail
        with pytest.raises(RuntimeError, match="cannot be told"):
            store.commits[0].finish(None)
        assert a.take() == c.take() == [GetAck(1, b""), GetAck(2, b"")]
        assert [runtime.scheduler.cells[name].pending for name in (A, B, C)] == [None] * 3
        assert [runtime.scheduler.cells[name].pending_bytes for name in (A, B, C)] == [0] * 3

    def test_the_cell_that_failed_goes_on(self) -> None:
        runtime, store, (_, b, _) = self.runtime()
        b.on_send = fail
        with pytest.raises(RuntimeError):
            store.commits[0].finish(None)
        b.on_send = None
        b.take()
        runtime.submit(B, b, Get(3))
        assert b.take() == [GetAck(3, b"")]
        runtime.submit(B, b, Put(4, 60, b""), Get(4))
        store.commits[-1].finish(None)
        assert b.take() == [GetAck(4, b"")]

    def test_one_reply_that_fails_takes_only_its_own_batch_along(self) -> None:
        runtime, store, (a, b, _) = self.runtime()
        runtime.submit(B, a, Get(7))
        b.on_send = fail
        with pytest.raises(RuntimeError):
            store.commits[0].finish(None)
        assert a.take() == [GetAck(1, b""), GetAck(2, b""), GetAck(7, b"")]

    @pytest.mark.parametrize("fault", [None, Fault.NOT_STORED])
    def test_every_failure_is_raised(self, fault: Fault | None) -> None:
        runtime, store, (a, b, c) = self.runtime()
        for port in (a, b):
            port.on_send = fail
        with pytest.raises(RuntimeError) as caught:
            store.commits[0].finish(fault)
        assert isinstance(caught.value.__context__, RuntimeError)
        assert len(c.take()) == (2 if fault is None else 4)
        runtime.pass_time(0)
        assert [runtime.scheduler.cells[name].pending for name in (A, B, C)] == [None] * 3

    def test_a_connection_that_cannot_be_written_to_leaves_the_others_written(self) -> None:
        for well in range(3):
            _, store, ports = self.runtime()
            for port in ports[:well] + ports[well + 1 :]:
                port.flush = lambda: fail([])  # type: ignore[method-assign]
            with pytest.raises(RuntimeError):
                store.commits[0].finish(None)
            assert ports[well].take() == [GetAck(1, b""), GetAck(2, b"")]


class _AsksOn(RecordingPort):
    """Asks again as soon as it is answered, as who pipelines does."""

    def __init__(self, number: int, runtime: RuntimeHarness) -> None:
        super().__init__(number)
        self._works = runtime
        self._left = 3

    def flush(self) -> None:
        super().flush()
        if self._left:
            self._left -= 1
            self._works.submit(A, self, Get(self._left))


def test_requests_from_within_a_flush_do_not_nest() -> None:
    store = LateStore(shares=True)
    runtime = RuntimeHarness(store=store)
    ports = [_AsksOn(number, runtime) for number in range(1, 400)]
    for port in ports:
        runtime.submit(A, port, Put(port.number, 60, b""), Get(3))
    store.commits[0].finish(None)
    for port in ports:
        assert [each.id for each in port.take() if isinstance(each, GetAck)] == [3, 2, 1, 0]


def test_all_waiting_requests_are_refused_although_some_ports_fail() -> None:
    pending: Deferred[int] = Deferred()
    received: list[int] = []

    def broken(value: int) -> None:
        raise RuntimeError(f"broken by {value}")

    for done in (received.append, broken, received.append, broken, received.append):
        pending.when_done(done)
    with pytest.raises(RuntimeError) as caught:
        pending.finish(7)
    assert received == [7, 7, 7]
    assert isinstance(caught.value.__context__, RuntimeError)
    pending.when_done(received.append)
    assert received == [7, 7, 7, 7]


class FailingStore(LateStore):
    """Writes nothing while it fails, and says so when the test says."""

    fails = False

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit:
        if not self.fails:
            return super().write(name, changes)
        self.commits.append(Commit())
        return self.commits[-1]

    def finish(self, fault: Fault | None = None) -> None:
        for commit in self.commits:
            if not commit.is_done:
                commit.finish(fault)


def test_a_cell_that_has_to_write_wakes_now_and_then_while_the_disk_fails() -> None:
    """Built anew it writes at once, which fails at once: it may not be all that the node does."""
    harness = ChannelHarness(pair(), store=(store := FailingStore()))
    producer = harness.producer()
    producer.send(Put(1, 10, b"expires"))
    store.finish()
    producer.port.take()
    store.fails, wakes, end = True, 0, harness.now + 40
    while (due := harness.scheduler.timers.next_at) <= end and wakes < 1000:
        harness.now = max(harness.now, due)
        harness.scheduler.turn(harness.now)
        store.finish(Fault.NOT_STORED)
        wakes += 1
    assert 30 < wakes < 200, "for 30 s"
    producer.send(Put(2, 10, b"refused"))
    store.finish(Fault.NOT_STORED)
    (refused,) = producer.port.take()
    assert isinstance(refused, Failed), "a request is answered at once"
    store.fails = False
    harness.advance(1)
    store.finish()
    assert harness.kept() == []
