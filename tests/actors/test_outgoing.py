"""What waits for a commit and what does not; a failure on the way out is nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millpond.actors.messages import (
    Attach,
    Attached,
    Get,
    GetAck,
    Hangup,
    Msg,
    Probe,
    Put,
    PutAck,
    Reply,
)
from millpond.actors.store.interface import Deferred, Fault
from tests.actors.cells import LateStore, Works
from tests.actors.pond import NAME, Pond, pair
from tests.actors.ports import RecordingPort

A, B, C = b"a", b"b", b"c"


def fail(replies: Sequence[Reply]) -> None:
    raise RuntimeError("this connection cannot be told anything")


class TestVerdicts:
    """PA-28: a disk that stalls is no reason to take longer over who is still there."""

    def test_pa_28_pings_and_hang_ups_do_not_wait_for_the_disk(self) -> None:
        pond = Pond(pair(ack_timeout_s=300), store=(store := LateStore()))
        silent, producer = pond.join(keep_alive_s=20), pond.producer()
        producer.say(Put(1, 3600, b"one"), Put(2, 3600, b"two"))
        heard: list[tuple[float, Reply]] = []
        for second in range(1, 41):
            pond.advance(1)
            heard += [(second, each) for each in silent.port.take()]
        assert heard == [(20, Probe()), (30, Probe()), (40, Hangup())]
        assert producer.port.take() == []
        for commit in store.commits:
            commit.finish(None)
        assert [each.data for each in silent.pushed()] == [b"one", b"two"]
        assert [type(each) for each in producer.port.take()] == [PutAck, PutAck]

    def test_what_the_disk_refuses_takes_no_ping_with_it(self) -> None:
        pond = Pond(store=(store := LateStore()))
        silent, producer = pond.join(keep_alive_s=20), pond.producer()
        producer.say(Put(1, 3600, b"one"))
        pond.advance(20)
        store.commits[0].finish(Fault.NOT_STORED)
        assert silent.port.take() == [Probe()]

    def test_who_is_not_welcomed_yet_is_not_pinged_before(self) -> None:
        pond = Pond(store=(store := LateStore()))
        producer, newcomer = pond.producer(), pond.port()
        producer.say(Put(1, 3600, b"one"))
        pond.scheduler.attach(NAME, newcomer, Attach(keep_alive_s=20), pond.now)
        pond.advance(25)
        assert newcomer.take() == []
        for commit in store.commits:
            commit.finish(None)
        assert [type(each) for each in newcomer.take()] == [Attached, Msg, Probe]


class TestFailures:
    def works(self) -> tuple[Works, LateStore, list[RecordingPort]]:
        """Three cells whose requests wait for one commit, each with a connection of its own."""
        store = LateStore(shares=True)
        works = Works(store=store)
        ports = [RecordingPort(number) for number in (1, 2, 3)]
        for name, port in zip((A, B, C), ports, strict=True):
            for number in (1, 2):
                works.submit(name, port, Put(number, 60, b""), Get(number))
        assert len(store.commits) == 1
        return works, store, ports

    def test_one_cell_that_fails_holds_up_no_other_of_its_commit(self) -> None:
        works, store, (a, b, c) = self.works()
        b.on_send = fail
        with pytest.raises(RuntimeError, match="cannot be told"):
            store.commits[0].finish(None)
        assert a.take() == c.take() == [GetAck(1, b""), GetAck(2, b"")]
        assert [works.scheduler.cells[name].pending for name in (A, B, C)] == [None] * 3
        assert [works.scheduler.cells[name].pending_bytes for name in (A, B, C)] == [0] * 3

    def test_the_cell_that_failed_goes_on(self) -> None:
        works, store, (_, b, _) = self.works()
        b.on_send = fail
        with pytest.raises(RuntimeError):
            store.commits[0].finish(None)
        b.on_send = None
        b.take()
        works.submit(B, b, Get(3))
        assert b.take() == [GetAck(3, b"")]
        works.submit(B, b, Put(4, 60, b""), Get(4))
        store.commits[-1].finish(None)
        assert b.take() == [GetAck(4, b"")]

    def test_one_reply_that_fails_takes_only_its_own_batch_along(self) -> None:
        works, store, (a, b, _) = self.works()
        works.submit(B, a, Get(7))
        b.on_send = fail
        with pytest.raises(RuntimeError):
            store.commits[0].finish(None)
        assert a.take() == [GetAck(1, b""), GetAck(2, b""), GetAck(7, b"")]

    @pytest.mark.parametrize("fault", [None, Fault.NOT_STORED])
    def test_every_failure_is_told(self, fault: Fault | None) -> None:
        works, store, (a, b, c) = self.works()
        for port in (a, b):
            port.on_send = fail
        with pytest.raises(RuntimeError) as caught:
            store.commits[0].finish(fault)
        assert isinstance(caught.value.__context__, RuntimeError)
        assert len(c.take()) == (2 if fault is None else 4)
        works.pass_time(0)
        assert [works.scheduler.cells[name].pending for name in (A, B, C)] == [None] * 3

    def test_a_connection_that_cannot_be_written_to_leaves_the_others_written(self) -> None:
        for well in range(3):
            _, store, ports = self.works()
            for port in ports[:well] + ports[well + 1 :]:
                port.flush = lambda: fail([])  # type: ignore[method-assign]
            with pytest.raises(RuntimeError):
                store.commits[0].finish(None)
            assert ports[well].take() == [GetAck(1, b""), GetAck(2, b"")]


class _AsksOn(RecordingPort):
    """Asks again as soon as it is answered, as who pipelines does."""

    def __init__(self, number: int, works: Works) -> None:
        super().__init__(number)
        self._works = works
        self._left = 3

    def flush(self) -> None:
        super().flush()
        if self._left:
            self._left -= 1
            self._works.submit(A, self, Get(self._left))


def test_many_who_ask_on_when_they_are_answered_are_no_levels() -> None:
    store = LateStore(shares=True)
    works = Works(store=store)
    ports = [_AsksOn(number, works) for number in range(1, 400)]
    for port in ports:
        works.submit(A, port, Put(port.number, 60, b""), Get(3))
    store.commits[0].finish(None)
    for port in ports:
        assert [each.id for each in port.take() if isinstance(each, GetAck)] == [3, 2, 1, 0]


def test_everybody_who_waits_hears_of_it_although_some_fail() -> None:
    pending: Deferred[int] = Deferred()
    heard: list[int] = []

    def broken(value: int) -> None:
        raise RuntimeError(f"broken by {value}")

    for done in (heard.append, broken, heard.append, broken, heard.append):
        pending.when_done(done)
    with pytest.raises(RuntimeError) as caught:
        pending.finish(7)
    assert heard == [7, 7, 7]
    assert isinstance(caught.value.__context__, RuntimeError)
    pending.when_done(heard.append)
    assert heard == [7, 7, 7, 7]
