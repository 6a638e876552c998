"""Tracebacks of attempts: bounded, with the frames of the handler (docs/guides/jobs.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from millpond.jobs import Job, Reject, Retry, task
from millpond.node.jobs.history import (
    BATCH_BYTES_MAX,
    WAITING_TRACEBACK_BYTES_MAX,
    History,
    HistoryEntry,
)
from millpond.node.jobs.worker.tracebacks import TRACEBACK_BYTES_MAX, traceback_text, trimmed
from tests.node.jobs.job_setup import JobSetup

pytestmark = pytest.mark.anyio


def text_of(work: Callable[[], object]) -> str:
    try:
        work()
    except BaseException as error:
        shown = trimmed(error)
        return "" if shown is None else traceback_text(shown)
    raise AssertionError("nothing was raised")


def fails(text: str = "no such address") -> None:
    raise LookupError(text)


def falls(depth: int) -> None:
    if depth == 0:
        fails("at the bottom")
    falls(depth - 1)


def test_frames_and_the_error_are_in_the_text() -> None:
    lines = text_of(fails).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any("in fails" in line for line in lines)
    assert "    raise LookupError(text)" in lines
    assert lines[-1] == "LookupError: no such address"


def test_causes_and_groups_are_in_the_text() -> None:
    def wraps() -> None:
        try:
            fails()
        except LookupError as error:
            raise ExceptionGroup("two", [ValueError("one of them")]) from error

    text = text_of(wraps)
    assert "direct cause" in text and "LookupError: no such address" in text
    assert "ValueError: one of them" in text


@pytest.mark.parametrize("text", ["x" * 100_000, "\N{WAVE DASH}" * 50_000, "\udc80" * 50_000])
def test_a_long_text_is_cut_in_the_middle(text: str) -> None:
    told = text_of(lambda: fails(f"begin {text} end"))
    assert len(told.encode()) <= TRACEBACK_BYTES_MAX
    assert "in fails" in told and "begin " in told and told.endswith(" end")


def test_a_deep_stack_has_its_first_and_last_frames() -> None:
    told = text_of(lambda: falls(300))
    assert len(told.encode()) <= TRACEBACK_BYTES_MAX
    assert "<lambda>" in told and "in fails" in told
    assert told.endswith("LookupError: at the bottom")


def test_frames_of_libraries_give_way_first() -> None:
    class Deep:
        def __init__(self, depth: int) -> None:
            self.depth = depth

        def __reduce__(self) -> Any:
            raise AssertionError

        def __iter__(self) -> Any:
            if self.depth == 0:
                fails("x" * 1500)
            yield json.JSONEncoder(default=list).encode(Deep(self.depth - 1))

    told = text_of(lambda: json.dumps(Deep(12), default=list))
    assert told.startswith("(frames of libraries are left out)")
    assert "in fails" in told and "in __iter__" in told and "encoder.py" not in told
    assert len(told.encode()) <= TRACEBACK_BYTES_MAX


def test_a_chain_of_many_errors_is_cut() -> None:
    def chain(depth: int) -> None:
        try:
            chain(depth - 1) if depth else fails()
        except LookupError as error:
            raise KeyError(depth) from error

    told = text_of(lambda: chain(50))
    assert len(told.encode()) <= TRACEBACK_BYTES_MAX and told.endswith("KeyError: 50")
    assert "KeyError: 46" in told and "KeyError: 40" not in told


def test_a_broken_error_has_a_text() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def breaks() -> None:
        raise Broken

    assert "Broken" in text_of(breaks)
    assert text_of(lambda: (_ for _ in ()).throw(Retry(1.0))) == ""
    assert traceback_text(ValueError("never raised")) == ""


async def test_the_history_has_the_traceback_from_the_handler_on(setup: JobSetup) -> None:
    @task(queue="mail", attempts=2)
    async def send(_payload: Any, job: Job) -> None:
        if job.attempt == 1:
            fails()
        try:
            fails("again")
        except LookupError as error:
            raise Reject("no address") from error

    async with setup.queue() as queue, setup.working([send], name="w1"):
        put = await queue.put()
        await setup.until(lambda: setup.outcomes.count("rejected") == 1)
        await anyio.sleep(1)
        first, last = [each async for each in queue.history(put.id)]
    assert first.error == "LookupError: no such address"
    frames = [line for line in first.traceback.splitlines() if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in frames] == ["send", "fails"]
    assert last.error == "no address: LookupError: again"
    assert last.traceback.endswith("LookupError: again") and "in send" in last.traceback


async def test_an_error_without_frames_and_a_lost_lease_have_no_traceback(setup: JobSetup) -> None:
    @task(queue="mail", attempts=1, timeout=1)
    async def send(_payload: Any) -> None:
        await anyio.sleep(60)

    async with setup.queue() as queue, setup.working([send], name="w1"):
        put = await queue.put()
        await setup.until(lambda: setup.outcomes.count("rejected") == 1)
        await anyio.sleep(1)
        (entry,) = [each async for each in queue.history(put.id)]
    assert "AttemptTimedOut" in entry.error and entry.traceback == ""


def test_earlier_workers_and_readers_are_understood() -> None:
    earlier = b'{"job":"1","attempt":1,"at":2,"what":"failed","error":"x","worker":"w"}'
    assert msgspec.json.decode(earlier, type=HistoryEntry).traceback == ""
    entry = HistoryEntry("1", 1, 2, "failed", "x", "w", "Traceback")
    assert "traceback" not in json.loads(msgspec.json.encode(HistoryEntry("1", 1, 2, "lost")))

    class Earlier(msgspec.Struct):
        job: str
        error: str = ""

    assert msgspec.json.decode(msgspec.json.encode(entry), type=Earlier) == Earlier("1", "x")


def test_what_waits_for_a_node_that_is_away_is_bounded() -> None:
    history = History(lambda: 0.0, "w")
    trace = "x" * TRACEBACK_BYTES_MAX
    for number in range(12_000):
        history.add("mail", number, 1, "failed", "an error", trace)
    waiting = [entry for _, entry in history._waiting]
    assert len(waiting) == 10_000 and waiting[-1].job == "11999"
    kept = sum(len(each.traceback) for each in waiting)
    assert kept == history._traceback_bytes <= WAITING_TRACEBACK_BYTES_MAX
    batches = 0
    while history._waiting:
        _, batch = history._batch()
        batches += 1
        assert sum(map(len, batch)) <= BATCH_BYTES_MAX
    assert history._traceback_bytes == 0 and batches >= 50


async def test_errors_of_characters_that_json_escapes_are_kept(setup: JobSetup) -> None:
    history = History(lambda: 0.0, "w")
    async with setup.queue() as queue:
        put = await queue.put()
        for attempt in range(1, 101):
            history.add("mail", put.id, attempt, "failed", "\x01" * 2000, "\x01" * 4096)
        await history.flush(lambda name: queue.channel.streams)
        kept = [each.attempt async for each in queue.history(put.id)]
    assert kept == list(range(1, 101))
