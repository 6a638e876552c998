"""What Durable Streams keeps with a stream: producers, order, closing, lifetime; also over a
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
from tests.actors.streams.lake import NAME, Lake, SlowMemory, bodies_of, lake_in, read_of

TEXT = b"text/plain"


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Lake]:
    with lake_in(tmp_path / "data") as opened:
        yield opened


def establish(lake: Lake, *bodies: bytes, name: bytes = NAME, **fields: Any) -> Reply:
    founding = d.CreateSpec(
        fields.pop("content_type", TEXT),
        fields.pop("lifetime", None),
        fields.pop("closes", False),
        list(bodies),
    )
    (reply,) = lake.ask(d.DurableCreate(0, founding), name=name)
    return reply


def submit(lake: Lake, *bodies: bytes, name: bytes = NAME, **fields: Any) -> Reply:
    fields.setdefault("content_type", TEXT)
    (reply,) = lake.ask(d.DurableAppend(0, list(bodies), **fields), name=name)
    return reply


def accepted(reply: Reply) -> d.DurableAppended:
    assert isinstance(reply, d.DurableAppended), reply
    return reply


def why(reply: Reply) -> d.RefusalReason:
    assert isinstance(reply, d.DurableRefused), reply
    return reply.why


def by(seq: int, epoch: int = 0, name: bytes = b"p") -> d.Producer:
    return d.Producer(name, epoch, seq)


def test_a_stream_is_made_once_and_compared_from_then_on(lake: Lake) -> None:
    made = establish(lake, b"a", b"b")
    assert isinstance(made, d.DurableCreated) and made.is_new and made.tail == 2
    again = establish(lake, b"a", content_type=b"TEXT/plain; charset=utf-8")
    assert isinstance(again, d.DurableCreated) and not again.is_new and again.tail == 2
    assert why(establish(lake, content_type=b"application/json")) is d.RefusalReason.CONFLICT
    assert why(establish(lake, closes=True)) is d.RefusalReason.CONFLICT
    assert why(establish(lake, lifetime=d.Lifetime(5))) is d.RefusalReason.CONFLICT
    assert lake.bodies() == [b"a", b"b"]


def test_a_stream_of_another_view_is_of_octets(lake: Lake) -> None:
    lake.create()
    assert isinstance(establish(lake, content_type=d.OCTET_STREAM), d.DurableCreated)
    assert why(establish(lake)) is d.RefusalReason.CONFLICT
    assert why(submit(lake, b"x")) is d.RefusalReason.OTHER_TYPE
    assert accepted(submit(lake, b"x", content_type=d.OCTET_STREAM)).tail == 1


def test_no_room_makes_no_stream(tmp_path: Path) -> None:
    from millpond.actors.streams.settings import StreamLimits

    with lake_in(None, limits=StreamLimits(bytes_max=10)) as lake:
        reply = establish(lake, b"x" * 100)
        assert isinstance(reply, m.StreamFailed) and reply.code is Code.BUFFER_FULL
        assert lake.refused(m.Describe(0)).code is Code.UNKNOWN_STREAM


def test_nothing_can_be_appended_to_what_is_not_there(lake: Lake) -> None:
    assert why(submit(lake, b"x")) is d.RefusalReason.MISSING


def test_a_producer_is_heard_once(lake: Lake) -> None:
    establish(lake)
    assert why(submit(lake, b"x", producer=by(1))) is d.RefusalReason.GAP
    first = accepted(submit(lake, b"a", producer=by(0)))
    assert (first.is_new, first.epoch, first.seq) == (True, 0, 0)
    accepted(submit(lake, b"b", producer=by(1)))
    again = accepted(submit(lake, b"a", producer=by(0)))
    assert (again.is_new, again.seq, again.tail) == (False, 1, 2)
    gap = submit(lake, b"x", producer=by(5))
    assert isinstance(gap, d.DurableRefused) and (gap.why, gap.expected) == (d.RefusalReason.GAP, 2)
    assert why(submit(lake, b"x", producer=by(1, 3))) is d.RefusalReason.EPOCH_BEGINS_AT_ZERO
    accepted(submit(lake, b"c", producer=by(0, 3)))
    stale = submit(lake, b"x", producer=by(2))
    assert isinstance(stale, d.DurableRefused) and (stale.why, stale.epoch) == (
        d.RefusalReason.STALE_EPOCH,
        3,
    )
    assert lake.bodies() == [b"a", b"b", b"c"]


def test_what_is_kept_of_a_stream_outlives_a_restart(kept: Lake) -> None:
    establish(kept)
    accepted(submit(kept, b"a", producer=by(0), stream_seq=b"5"))
    kept.restart()
    assert not accepted(submit(kept, b"a", producer=by(0))).is_new
    assert why(submit(kept, b"b", stream_seq=b"5")) is d.RefusalReason.OUT_OF_ORDER
    closing = by(1)
    assert accepted(submit(kept, b"z", producer=closing, closes=True, stream_seq=b"6")).is_closed
    kept.restart()
    again = accepted(submit(kept, b"another", producer=closing, closes=True))
    assert (again.is_new, again.is_closed) == (False, True)
    assert why(submit(kept, b"x", producer=by(2))) is d.RefusalReason.CLOSED
    assert kept.describe().is_closed
    assert kept.bodies() == [b"a", b"z"]


def test_what_a_failed_request_says_is_forgotten(lake: Lake) -> None:
    establish(lake)
    accepted(submit(lake, b"a", stream_seq=b"5", producer=by(0)))
    assert why(submit(lake, b"b", stream_seq=b"4", producer=by(1))) is d.RefusalReason.OUT_OF_ORDER
    assert (
        why(submit(lake, b"b", content_type=b"image/png", producer=by(1)))
        is d.RefusalReason.OTHER_TYPE
    )
    assert accepted(submit(lake, b"b", stream_seq=b"6", producer=by(1))).is_new
    assert lake.bodies() == [b"a", b"b"]


def test_a_producer_whose_append_is_not_kept_appends_it_again() -> None:
    store = SlowMemory()
    lake = Lake(store=store)
    establish(lake)
    store.is_slow = store.is_doomed = True
    port = lake.port()
    lake.say(port, d.DurableAppend(0, [b"a"], TEXT, None, by(0)))
    lake.settle()
    assert port.take() == []
    store.finish(Fault.NOT_STORED)
    store.is_slow = store.is_doomed = False
    lake.settle()
    assert len(port.take()) == 1
    assert accepted(submit(lake, b"a", producer=by(0))).is_new
    assert lake.bodies() == [b"a"]


def test_the_quietest_of_too_many_producers_is_forgotten(lake: Lake) -> None:
    establish(lake)
    for each in range(PRODUCERS_MAX + 1):
        lake.advance(0.002)
        accepted(submit(lake, b"x", producer=by(0, name=b"p%d" % each)))
    assert not accepted(submit(lake, b"x", producer=by(0, name=b"p1"))).is_new
    assert why(submit(lake, b"x", producer=by(1, name=b"p0"))) is d.RefusalReason.GAP


def test_a_closed_stream_takes_nothing_from_any_view(lake: Lake) -> None:
    establish(lake, b"a")
    assert accepted(submit(lake, closes=True)).is_new
    assert not accepted(submit(lake, closes=True)).is_new
    assert why(submit(lake, b"b", closes=True)) is d.RefusalReason.CLOSED
    assert lake.refused(m.Append(0, [b"b"])).code is Code.CLOSED
    assert lake.refused(m.Append(0, [b"b"], headers=[[]])).code is Code.CLOSED
    records = lake.read(1, ends_closed=True, wait_until=lake.now + 60)
    assert records.is_closed and not records.spans


def test_who_waits_hears_of_the_last_record_before_the_close(lake: Lake) -> None:
    establish(lake)
    ends, stays = lake.port(), lake.port()
    lake.say(ends, read_of(0, wait_until=lake.now + 60, ends_closed=True))
    lake.say(stays, read_of(1, wait_until=lake.now + 60))
    lake.settle()
    accepted(submit(lake, b"last", closes=True))
    (records,) = ends.take()
    assert isinstance(records, m.Records)
    assert bodies_of(records) == [b"last"] and records.is_closed
    assert stays.take() == []


def test_a_close_ends_the_waiting_of_those_who_want_that(lake: Lake) -> None:
    establish(lake)
    ends, stays = lake.port(), lake.port()
    lake.say(ends, read_of(0, wait_until=lake.now + 60, ends_closed=True))
    lake.say(stays, read_of(0, wait_until=lake.now + 60))
    lake.settle()
    accepted(submit(lake, closes=True))
    (records,) = ends.take()
    assert isinstance(records, m.Records) and records.is_closed and not records.spans
    assert stays.take() == []
    lake.advance(60)
    assert len(stays.take()) == 1


def is_there(lake: Lake, name: bytes = NAME) -> bool:
    (reply,) = lake.ask(m.Describe(0), name=name)
    return isinstance(reply, m.StreamDescription)


def test_a_ttl_slides_with_use_and_not_with_a_look(lake: Lake) -> None:
    establish(lake, lifetime=d.Lifetime(10))
    for use in (read_of(0), m.Append(0, [b"x"]), d.DurableAppend(0, [b"y"], TEXT), read_of(99)):
        lake.advance(9)
        lake.ask(use)
    lake.advance(9)
    assert is_there(lake)
    lake.advance(1.1)
    assert not is_there(lake)
    assert NAME not in lake.directory.streams


def test_an_end_does_not_move(lake: Lake) -> None:
    establish(lake, lifetime=d.Lifetime(None, lake.now_ms + 10_000, b"whenever"))
    lake.advance(9)
    lake.bodies()
    assert is_there(lake)
    lake.advance(1.1)
    assert not is_there(lake)


def test_what_expired_begins_anew(lake: Lake) -> None:
    establish(lake, b"old", lifetime=d.Lifetime(1))
    accepted(submit(lake, b"old", producer=by(0), stream_seq=b"9"))
    lake.advance(1.1)
    made = establish(lake, b"new")
    assert isinstance(made, d.DurableCreated) and made.is_new
    assert accepted(submit(lake, b"new", producer=by(0), stream_seq=b"1")).is_new
    assert lake.bodies() == [b"new", b"new"]


def test_a_restart_ends_no_stream_too_early_and_few_too_late(kept: Lake) -> None:
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

    with lake_in(None, limits=StreamLimits(is_durable=True)) as lake:
        establish(lake, b"a", lifetime=d.Lifetime(5))
        lake.store.health.is_writable = False
        lake.advance(4)
        assert lake.bodies() == [b"a"]
        lake.advance(4)
        assert lake.bodies() == [b"a"]


def test_who_waits_for_what_expires_is_answered(lake: Lake) -> None:
    establish(lake, lifetime=d.Lifetime(5))
    port = lake.port()
    lake.say(port, read_of(0, wait_until=lake.now + 60))
    lake.advance(6)
    assert len(port.take()) == 1
