"""Batches of writers: added once, slice after slice, and remembered as long as the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.streams import idempotent_writers as authors
from millpond.actors.streams import messages as m
from tests.actors.streams.harness import StreamHarness, streams_in


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        opened.create()
        yield opened


def publish(
    bodies: list[bytes], batch: int, at: int = 0, *, plan: bytes = b"p", last: bool = True
) -> m.WriterAppend:
    return m.WriterAppend(0, bodies, writer=b"w", batch=batch, at=at, plan=plan, is_last=last)


def author(streams: StreamHarness, request: m.StreamRequest) -> tuple[int, int, bool]:
    answer = streams.one(request, m.WriterStatus)
    return answer.batch, answer.rows, answer.is_done


def there(streams: StreamHarness) -> list[bytes]:
    return streams.bodies()


def test_a_batch_is_added_once_and_batches_go_up(streams: StreamHarness) -> None:
    assert author(streams, m.GetWriter(0, b"w")) == (-1, 0, True)
    assert author(streams, publish([b"a", b"b"], 3)) == (3, 2, True)
    assert author(streams, publish([b"a", b"b"], 3)) == (3, 2, True)
    assert author(streams, publish([b"z"], 2)) == (3, 2, True)
    assert author(streams, publish([b"c"], 5)) == (5, 1, True)
    assert there(streams) == [b"a", b"b", b"c"]


def test_a_batch_in_slices_goes_on_where_it_was_after_a_restart(streams: StreamHarness) -> None:
    assert author(streams, publish([b"a"], 0, last=False)) == (0, 1, False)
    if streams.folder is not None:
        streams.restart()
    assert streams.one(m.GetWriter(0, b"w"), m.WriterStatus).plan == b"p"
    assert author(streams, publish([b"a"], 0, last=False)) == (0, 1, False)  # it was there
    assert author(streams, publish([b"x"], 0, 1, plan=b"another")) == (0, 1, False)
    assert author(streams, publish([b"x"], 1)) == (0, 1, False)  # the one before is not done
    assert author(streams, publish([b"x"], 0, 2)) == (0, 1, False)  # there is one between
    assert author(streams, publish([b"b"], 0, 1)) == (0, 2, True)
    assert there(streams) == [b"a", b"b"]
    assert streams.one(m.GetWriter(0, b"w"), m.WriterStatus).plan == b""


def test_an_empty_batch_counts(streams: StreamHarness) -> None:
    assert author(streams, publish([], 7)) == (7, 0, True)
    assert author(streams, publish([b"a"], 7)) == (7, 0, True)


def test_a_deleted_stream_knows_no_writers(streams: StreamHarness) -> None:
    streams.ask(publish([b"a"], 1))
    streams.ask(m.Delete(0))
    streams.create()
    assert author(streams, m.GetWriter(0, b"w")) == (-1, 0, True)


def test_writers_have_a_limit_and_those_of_one_batch_are_forgotten(
    streams: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authors, "WRITERS_MAX", 2)
    streams.ask(publish([b"a"], 0))
    streams.ask(m.WriterAppend(0, [b"b"], writer=b"one", once=True))
    refused = streams.refused(m.WriterAppend(0, [b"c"], writer=b"third"))
    assert refused.code is Code.GROUPS_FULL
    streams.clock.now += 86_401.0
    assert author(streams, m.WriterAppend(0, [b"c"], writer=b"third")) == (0, 1, True)
    assert author(streams, m.GetWriter(0, b"one")) == (-1, 0, True)
    assert author(streams, m.GetWriter(0, b"w")) == (0, 1, True)
    assert there(streams) == [b"a", b"b", b"c"]
    streams.clock.now += 30 * 86_400.0
    assert author(streams, m.WriterAppend(0, [b"d"], writer=b"fourth")) == (0, 1, True)
    assert author(streams, m.GetWriter(0, b"w")) == (-1, 0, True), "unused for a month"


def test_unnamed_writers_take_no_place(
    streams: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest are remembered, for a request that is repeated; others make way, and leave."""
    monkeypatch.setattr(authors, "UNNAMED_MAX", 3)
    monkeypatch.setattr(authors, "WRITERS_MAX", 6)
    streams.ask(publish([b"a"], 0))
    for number in range(50):
        streams.clock.now += 1.0
        request = m.WriterAppend(0, [b"r"], writer=b"r%d" % number, once=True, unnamed=True)
        assert author(streams, request) == (0, 1, True)
        assert author(streams, request) == (0, 1, True)
    assert len(there(streams)) == 51
    if streams.folder is not None:
        streams.restart()
    known = [author(streams, m.GetWriter(0, b"r%d" % number))[0] == 0 for number in range(50)]
    assert known == [False] * 47 + [True] * 3
    assert author(streams, m.GetWriter(0, b"w")) == (0, 1, True)
    streams.clock.now += 601.0
    streams.ask(m.WriterAppend(0, [b"r"], writer=b"late", once=True, unnamed=True))
    assert author(streams, m.GetWriter(0, b"r49"))[0] == -1
