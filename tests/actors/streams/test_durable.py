"""Metadata of Durable Streams: producers, order, closing, lifetime; also over a
restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Reply
from millpond.actors.store.interface import Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.producers import PRODUCERS_MAX
from tests.actors.streams.harness import (
    NAME,
    SlowMemory,
    StreamHarness,
    bodies_of,
    read_of,
    streams_in,
)

TEXT = b"text/plain"


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(tmp_path / "data") as opened:
        yield opened


def establish(streams: StreamHarness, *bodies: bytes, name: bytes = NAME, **fields: Any) -> Reply:
    spec = d.CreateSpec(
        fields.pop("content_type", TEXT),
        fields.pop("lifetime", None),
        fields.pop("closes", False),
        list(bodies),
    )
    (reply,) = streams.ask(d.DurableCreate(0, spec), name=name)
    return reply


def submit(streams: StreamHarness, *bodies: bytes, name: bytes = NAME, **fields: Any) -> Reply:
    fields.setdefault("content_type", TEXT)
    (reply,) = streams.ask(d.DurableAppend(0, list(bodies), **fields), name=name)
    return reply


def accepted(reply: Reply) -> d.DurableAppended:
    assert isinstance(reply, d.DurableAppended), reply
    return reply


def reason(reply: Reply) -> d.RefusalReason:
    assert isinstance(reply, d.DurableRefused), reply
    return reply.reason


def by(seq: int, epoch: int = 0, name: bytes = b"p") -> d.Producer:
    return d.Producer(name, epoch, seq)


def test_a_stream_is_made_once_and_compared_from_then_on(streams: StreamHarness) -> None:
    made = establish(streams, b"a", b"b")
    assert isinstance(made, d.DurableCreated) and made.is_new and made.tail == 2
    again = establish(streams, b"a", content_type=b"TEXT/plain; charset=utf-8")
    assert isinstance(again, d.DurableCreated) and not again.is_new and again.tail == 2
    assert reason(establish(streams, content_type=b"application/json")) is d.RefusalReason.CONFLICT
    assert reason(establish(streams, closes=True)) is d.RefusalReason.CONFLICT
    assert reason(establish(streams, lifetime=d.Lifetime(5))) is d.RefusalReason.CONFLICT
    assert streams.bodies() == [b"a", b"b"]


def test_a_stream_of_another_view_is_of_octets(streams: StreamHarness) -> None:
    streams.create()
    assert isinstance(establish(streams, content_type=d.OCTET_STREAM), d.DurableCreated)
    assert reason(establish(streams)) is d.RefusalReason.CONFLICT
    assert reason(submit(streams, b"x")) is d.RefusalReason.CONTENT_TYPE_MISMATCH
    assert accepted(submit(streams, b"x", content_type=d.OCTET_STREAM)).tail == 1


def test_no_room_makes_no_stream(tmp_path: Path) -> None:
    from millpond.actors.streams.settings import StreamLimits

    with streams_in(None, limits=StreamLimits(bytes_max=10)) as streams:
        reply = establish(streams, b"x" * 100)
        assert isinstance(reply, m.StreamFailed) and reply.code is Code.BUFFER_FULL
        assert streams.refused(m.Describe(0)).code is Code.UNKNOWN_STREAM


def test_nothing_can_be_appended_to_what_is_not_there(streams: StreamHarness) -> None:
    assert reason(submit(streams, b"x")) is d.RefusalReason.MISSING


def test_a_producer_is_heard_once(streams: StreamHarness) -> None:
    establish(streams)
    assert reason(submit(streams, b"x", producer=by(1))) is d.RefusalReason.GAP
    first = accepted(submit(streams, b"a", producer=by(0)))
    assert (first.is_new, first.epoch, first.seq) == (True, 0, 0)
    accepted(submit(streams, b"b", producer=by(1)))
    again = accepted(submit(streams, b"a", producer=by(0)))
    assert (again.is_new, again.seq, again.tail) == (False, 1, 2)
    gap = submit(streams, b"x", producer=by(5))
    assert isinstance(gap, d.DurableRefused) and (gap.reason, gap.expected) == (
        d.RefusalReason.GAP,
        2,
    )
    assert reason(submit(streams, b"x", producer=by(1, 3))) is d.RefusalReason.EPOCH_BEGINS_AT_ZERO
    accepted(submit(streams, b"c", producer=by(0, 3)))
    stale = submit(streams, b"x", producer=by(2))
    assert isinstance(stale, d.DurableRefused) and (stale.reason, stale.epoch) == (
        d.RefusalReason.STALE_EPOCH,
        3,
    )
    assert streams.bodies() == [b"a", b"b", b"c"]


def test_what_is_kept_of_a_stream_outlives_a_restart(kept: StreamHarness) -> None:
    establish(kept)
    accepted(submit(kept, b"a", producer=by(0), stream_seq=b"5"))
    kept.restart()
    assert not accepted(submit(kept, b"a", producer=by(0))).is_new
    assert reason(submit(kept, b"b", stream_seq=b"5")) is d.RefusalReason.OUT_OF_ORDER
    closing = by(1)
    assert accepted(submit(kept, b"z", producer=closing, closes=True, stream_seq=b"6")).is_closed
    kept.restart()
    again = accepted(submit(kept, b"another", producer=closing, closes=True))
    assert (again.is_new, again.is_closed) == (False, True)
    assert reason(submit(kept, b"x", producer=by(2))) is d.RefusalReason.CLOSED
    assert kept.describe().is_closed
    assert kept.bodies() == [b"a", b"z"]


def test_what_a_failed_request_says_is_forgotten(streams: StreamHarness) -> None:
    establish(streams)
    accepted(submit(streams, b"a", stream_seq=b"5", producer=by(0)))
    assert (
        reason(submit(streams, b"b", stream_seq=b"4", producer=by(1)))
        is d.RefusalReason.OUT_OF_ORDER
    )
    assert (
        reason(submit(streams, b"b", content_type=b"image/png", producer=by(1)))
        is d.RefusalReason.CONTENT_TYPE_MISMATCH
    )
    assert accepted(submit(streams, b"b", stream_seq=b"6", producer=by(1))).is_new
    assert streams.bodies() == [b"a", b"b"]


def test_a_producer_whose_append_is_not_kept_appends_it_again() -> None:
    store = SlowMemory()
    streams = StreamHarness(store=store)
    establish(streams)
    store.is_slow = store.is_doomed = True
    port = streams.port()
    streams.say(port, d.DurableAppend(0, [b"a"], TEXT, None, by(0)))
    streams.settle()
    assert port.take() == []
    store.finish(Fault.NOT_STORED)
    store.is_slow = store.is_doomed = False
    streams.settle()
    assert len(port.take()) == 1
    assert accepted(submit(streams, b"a", producer=by(0))).is_new
    assert streams.bodies() == [b"a"]


def test_the_quietest_of_too_many_producers_is_forgotten(streams: StreamHarness) -> None:
    establish(streams)
    for each in range(PRODUCERS_MAX + 1):
        streams.advance(0.002)
        accepted(submit(streams, b"x", producer=by(0, name=b"p%d" % each)))
    assert not accepted(submit(streams, b"x", producer=by(0, name=b"p1"))).is_new
    assert reason(submit(streams, b"x", producer=by(1, name=b"p0"))) is d.RefusalReason.GAP


def test_a_closed_stream_takes_nothing_from_any_view(streams: StreamHarness) -> None:
    establish(streams, b"a")
    assert accepted(submit(streams, closes=True)).is_new
    assert not accepted(submit(streams, closes=True)).is_new
    assert reason(submit(streams, b"b", closes=True)) is d.RefusalReason.CLOSED
    assert streams.refused(m.Append(0, [b"b"])).code is Code.CLOSED
    assert streams.refused(m.Append(0, [b"b"], headers=[[]])).code is Code.CLOSED
    records = streams.read(1, ends_closed=True, wait_until=streams.now + 60)
    assert records.is_closed and not records.spans


def test_who_waits_hears_of_the_last_record_before_the_close(streams: StreamHarness) -> None:
    establish(streams)
    ends, stays = streams.port(), streams.port()
    streams.say(ends, read_of(0, wait_until=streams.now + 60, ends_closed=True))
    streams.say(stays, read_of(1, wait_until=streams.now + 60))
    streams.settle()
    accepted(submit(streams, b"last", closes=True))
    (records,) = ends.take()
    assert isinstance(records, m.Records)
    assert bodies_of(records) == [b"last"] and records.is_closed
    assert stays.take() == []


def test_a_close_ends_the_waiting_of_those_who_want_that(streams: StreamHarness) -> None:
    establish(streams)
    ends, stays = streams.port(), streams.port()
    streams.say(ends, read_of(0, wait_until=streams.now + 60, ends_closed=True))
    streams.say(stays, read_of(0, wait_until=streams.now + 60))
    streams.settle()
    accepted(submit(streams, closes=True))
    (records,) = ends.take()
    assert isinstance(records, m.Records) and records.is_closed and not records.spans
    assert stays.take() == []
    streams.advance(60)
    assert len(stays.take()) == 1


def is_there(streams: StreamHarness, name: bytes = NAME) -> bool:
    (reply,) = streams.ask(m.Describe(0), name=name)
    return isinstance(reply, m.StreamDescription)


def test_a_ttl_slides_with_use_and_not_with_a_look(streams: StreamHarness) -> None:
    establish(streams, lifetime=d.Lifetime(10))
    for use in (read_of(0), m.Append(0, [b"x"]), d.DurableAppend(0, [b"y"], TEXT), read_of(99)):
        streams.advance(9)
        streams.ask(use)
    streams.advance(9)
    assert is_there(streams)
    streams.advance(1.1)
    assert not is_there(streams)
    assert NAME not in streams.directory.streams


def test_an_end_does_not_move(streams: StreamHarness) -> None:
    establish(streams, lifetime=d.Lifetime(None, streams.now_ms + 10_000, b"whenever"))
    streams.advance(9)
    streams.bodies()
    assert is_there(streams)
    streams.advance(1.1)
    assert not is_there(streams)


def test_what_expired_begins_anew(streams: StreamHarness) -> None:
    establish(streams, b"old", lifetime=d.Lifetime(1))
    accepted(submit(streams, b"old", producer=by(0), stream_seq=b"9"))
    streams.advance(1.1)
    made = establish(streams, b"new")
    assert isinstance(made, d.DurableCreated) and made.is_new
    assert accepted(submit(streams, b"new", producer=by(0), stream_seq=b"1")).is_new
    assert streams.bodies() == [b"new", b"new"]


def test_a_restart_ends_no_stream_too_early_and_few_too_late(kept: StreamHarness) -> None:
    establish(kept, lifetime=d.Lifetime(160))
    kept.advance(100)
    kept.bodies()
    kept.advance(9)
    kept.bodies()
    kept.restart()
    kept.advance(159)
    assert is_there(kept)
    kept.advance(12)
    assert not is_there(kept)


def test_reads_of_a_full_disk_still_are_answered(tmp_path: Path) -> None:
    from millpond.actors.streams.settings import StreamLimits

    with streams_in(None, limits=StreamLimits(is_durable=True)) as streams:
        establish(streams, b"a", lifetime=d.Lifetime(5))
        streams.store.health.is_writable = False
        streams.advance(4)
        assert streams.bodies() == [b"a"]
        streams.advance(4)
        assert streams.bodies() == [b"a"]


def test_who_waits_for_what_expires_is_answered(streams: StreamHarness) -> None:
    establish(streams, lifetime=d.Lifetime(5))
    port = streams.port()
    streams.say(port, read_of(0, wait_until=streams.now + 60))
    streams.advance(6)
    assert len(port.take()) == 1
