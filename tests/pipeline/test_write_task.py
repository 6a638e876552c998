"""Batches are written once, all or nothing, whoever is killed when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.client.s2_codec import encode_records
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.options import SinkOptions, sink_options
from millpond.pipeline.spark.planning import batch_ranges
from millpond.pipeline.spark.read_task import read_range
from millpond.pipeline.spark.write_task import (
    StagedPart,
    Stager,
    abandon,
    check_columns,
    path_of,
    publish,
    rows_of,
)
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess

PROTOBUF = "application/protobuf"
PARTS = 60


def sink(node: NodeProcess, **given: str) -> SinkOptions:
    return sink_options({"address": node.address, "timeoutMs": "20000", **given})


def frame(*values: bytes, **columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


def staged(
    node: NodeProcess, stream: str, writer: str, batch: int, *values: bytes
) -> list[StagedPart]:
    return Stager(sink(node, topic=stream), writer, batch).stage([frame(*values)])


def test_a_batch_is_seen_when_it_is_published_and_once(shared_node: NodeProcess) -> None:
    shared_node.make("once")
    parts = staged(shared_node, "once", "w", 0, b"a", b"b") + staged(
        shared_node, "once", "w", 0, b"c"
    )
    assert shared_node.values("once") == []
    options = sink(shared_node)
    assert publish(options, parts, once=False) == {"once": "published"}
    assert sorted(shared_node.values("once")) == [b"a", b"b", b"c"]
    assert publish(options, parts, once=False) == {"once": "duplicate"}
    again = staged(shared_node, "once", "w", 0, b"a", b"b", b"c")
    assert publish(options, again, once=False) == {"once": "duplicate"}
    later = staged(shared_node, "once", "w", 1, b"d")
    assert publish(options, later, once=False) == {"once": "published"}
    assert publish(options, staged(shared_node, "once", "w", 0, b"z"), once=False) == {
        "once": "duplicate"
    }
    other = staged(shared_node, "once", "other", 0, b"e")
    assert publish(options, other, once=True) == {"once": "published"}
    assert sorted(shared_node.values("once")) == [b"a", b"b", b"c", b"d", b"e"]


def test_rows_have_keys_headers_topics_and_partitions(shared_node: NodeProcess) -> None:
    shared_node.make("routed", "many/0", "many/1")
    batch = frame(
        b"1",
        b"2",
        b"3",
        key=["k", None, None],
        topic=["routed", "many", "many"],
        partition=pa.array([None, 0, 1], pa.int32()),
        headers=[[{"key": "h", "value": b"v"}], None, None],
    )
    parts = Stager(sink(shared_node), "w", 0).stage([batch])
    assert sorted(publish(sink(shared_node), parts, once=True)) == ["many/0", "many/1", "routed"]
    (asked,) = batch_ranges(shared_node.options(subscribe="routed", includeHeaders="true"))
    (found,) = read_range(asked)
    assert found.column("key").to_pylist() == [b"k"]
    assert found.column("headers").to_pylist()[0][1] == {"key": "h", "value": b"v"}
    assert shared_node.values("many") == [b"2", b"3"]


def test_null_values_and_keys_stay_null(shared_node: NodeProcess) -> None:
    """A tombstone is no empty value. Rows that were read are written as they are."""
    shared_node.make("tombs", "copy")
    rows = {"value": [None, b"", b"v", None], "key": [b"k", b"", None, None]}
    batch = pa.RecordBatch.from_pydict(rows, pa.schema([(n, pa.binary()) for n in rows]))
    for given, topic in (([batch], "tombs"), (None, "copy")):
        if given is None:
            (asked,) = batch_ranges(shared_node.options(subscribe="tombs", includeHeaders="true"))
            given = [each.select(["key", "value", "headers"]) for each in read_range(asked)]
        parts = Stager(sink(shared_node, topic=topic), "w", 0).stage(given)
        publish(sink(shared_node), parts, once=True)
        (asked,) = batch_ranges(shared_node.options(subscribe=topic))
        (found,) = read_range(asked)
        assert {name: found.column(name).to_pylist() for name in rows} == rows


def test_rows_of_a_topic_with_partitions_go_by_their_key(shared_node: NodeProcess) -> None:
    """As producers of RustLog and `millpond topic` choose; in turn without a key."""
    shared_node.make("bykey/0", "bykey/1", "bykey/2", "bykeyx")
    keys: list[object] = [*(b"k%d" % (number % 10) for number in range(60)), *[None] * 30]
    batch = frame(*(b"%d" % number for number in range(90)), key=pa.array(keys, pa.binary()))
    parts = Stager(sink(shared_node, topic="bykey"), "w", 0).stage([batch])
    publish(sink(shared_node), parts, once=True)
    without = []
    for asked in batch_ranges(shared_node.options(subscribe="bykey")):
        for found in read_range(asked):
            for key in found.column("key").to_pylist():
                assert key is None or crc32(key) % 3 == asked.partition
            without.append(found.column("key").null_count)
    assert sum(without) == 30 and len(shared_node.values("bykey")) == 90
    assert without == [10, 10, 10]


def test_a_repeated_request_adds_nothing(shared_node: NodeProcess) -> None:
    shared_node.make("again")
    path, body = path_of("again", "w", 0, "p"), encode_records([(b"a", [], None)] * 3)
    with shared_node.wire() as wire:
        assert [wire_rows(wire, path, at, body) for at in (0, 0, 3, 3)] == [3, 3, 6, 6]
        assert wire_rows(wire, path, 0, body) is None
        plan = json.dumps({"parts": [{"id": "p", "rows": 6}]}).encode()
        wire.request_json("POST", path_of("again", "w", 0), plan)
    assert shared_node.values("again") == [b"a"] * 6


def wire_rows(wire: NodeClient, path: str, at: int, body: bytes) -> int | None:
    try:
        answer = wire.request_bytes("POST", f"{path}?at={at}", body, media=PROTOBUF)
    except PipelineError as error:
        assert error.code == "transaction_conflict"
        return None
    rows: int = json.loads(answer)["rows"]
    return rows


def test_nothing_is_decided_for_a_batch_that_is_not_whole(shared_node: NodeProcess) -> None:
    shared_node.make("whole")
    (part,) = staged(shared_node, "whole", "w", 0, b"a", b"b")
    lacking = StagedPart("whole", "w", 0, "nowhere", 1)
    short = StagedPart("whole", "w", 0, part.part, 3)
    for parts in ([part, lacking], [short]):
        with pytest.raises(PipelineError, match="transaction_conflict"):
            publish(sink(shared_node), parts, once=False)
    assert shared_node.values("whole") == []
    assert publish(sink(shared_node), [part], once=False) == {"whole": "published"}


def test_the_parts_of_a_batch_wait_for_the_disk_together(node: NodeProcess) -> None:
    """Each wait is long on a busy machine: one to stage a part, and as many to publish a batch of
    sixty parts as of one."""
    node.make("syncs")

    def syncs() -> float:
        with node.wire() as wire:
            lines = wire.request_bytes("GET", "/metrics").decode().splitlines()
        (found,) = [each for each in lines if each.startswith("millpond_journal_syncs_total")]
        return float(found.split()[1])

    options = sink(node, topic="syncs")
    parts = []
    before = syncs()
    for number in range(PARTS):
        parts += Stager(options, "w", 1).stage([frame(b"%d" % number)])
    between = syncs()
    assert between - before <= 1.2 * PARTS
    assert publish(options, parts, once=False) == {"syncs": "published"}
    assert syncs() - between <= PARTS / 4
    assert len(node.values("syncs")) == PARTS


def test_abandoned_parts_are_gone(shared_node: NodeProcess) -> None:
    shared_node.make("left")
    parts = staged(shared_node, "left", "w", 0, b"a")
    abandon(sink(shared_node), parts)
    abandon(sink(shared_node), parts)
    with pytest.raises(PipelineError, match="transaction_conflict"):
        publish(sink(shared_node), parts, once=False)


def test_a_large_batch_keeps_its_order(shared_node: NodeProcess) -> None:
    shared_node.make("large")
    bodies = [b"%06d" % i * 100 for i in range(25_000)]
    parts = staged(shared_node, "large", "w", 0, *bodies)
    assert publish(sink(shared_node), parts, once=True) == {"large": "published"}
    assert shared_node.values("large") == bodies


def test_parts_and_what_was_published_survive_a_kill(node: NodeProcess) -> None:
    node.make("orders")
    first = staged(node, "orders", "w", 0, b"a")
    publish(sink(node), first, once=False)
    second = staged(node, "orders", "w", 1, b"b")
    node.kill()
    node.start()
    assert publish(sink(node), first, once=False) == {"orders": "duplicate"}
    assert publish(sink(node), second, once=False) == {"orders": "published"}
    assert node.values("orders") == [b"a", b"b"]


@pytest.mark.parametrize(
    "delay_s",
    [0.1, *(pytest.param(each, marks=pytest.mark.full) for each in (0.02, 0.25))],
)
def test_a_node_that_is_killed_while_it_publishes(node: NodeProcess, delay_s: float) -> None:
    """A batch is there once, whole, for a client that publishes again and for one that does not."""
    node.make("orders")
    bodies = [b"%06d" % i * 100 for i in range(30_000)]
    parts = staged(node, "orders", "w", 0, *bodies)

    def restart() -> None:
        node.kill()
        node.start()

    timer = threading.Timer(delay_s, restart)
    timer.start()
    outcome = publish(sink(node), parts, once=False)
    timer.join()
    assert outcome["orders"] in ("published", "duplicate")
    assert node.values("orders") == bodies
    assert publish(sink(node), parts, once=False) == {"orders": "duplicate"}


@pytest.mark.parametrize(
    ("timeout_ms", "is_abandoned"),
    [
        ("20", False),
        ("40", True),
        pytest.param("100", False, marks=pytest.mark.full),
        pytest.param("100", True, marks=pytest.mark.full),
    ],
)
def test_a_batch_that_was_decided_is_finished_by_the_node(
    node: NodeProcess, timeout_ms: str, is_abandoned: bool
) -> None:
    """Its writer never comes back: there is all of it in the end, or nothing."""
    node.make("orders")
    bodies = [b"%06d" % i * 100 for i in range(30_000)]
    parts = staged(node, "orders", "w", 0, *bodies)
    with suppress(PipelineError):  # node_away, unless the machine is quicker than that
        publish(sink(node, timeoutMs=timeout_ms), parts, once=False)
    if is_abandoned:  # as Spark does with a batch whose commit has failed
        abandon(sink(node), parts)
    else:
        node.kill()
        node.start()
    until = time.monotonic() + 20
    while len(found := node.values("orders")) not in (0, len(bodies)):
        assert time.monotonic() < until
    assert found in ([], bodies)
    again = staged(node, "orders", "w", 0, *bodies)
    publish(sink(node), again, once=False)
    assert node.values("orders") == bodies


def test_mistakes_are_told(shared_node: NodeProcess, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no column 'x'"):
        check_columns(["value", "x"], "t")
    with pytest.raises(BadOption, match="no topic"):
        check_columns(["value"], None)
    with pytest.raises(BadOption, match="`value` is needed"):
        check_columns(["key"], "t")
    with pytest.raises(PipelineError, match="no_stream"):
        staged(shared_node, "nowhere", "w", 0, b"a")
    shared_node.make("big")
    with pytest.raises(PipelineError, match="no stream 'big/7'"):
        Stager(sink(shared_node), "w", 0).stage([frame(b"a", topic=["big"], partition=[7])])
    with pytest.raises(PipelineError, match="row_too_large"):
        staged(shared_node, "big", "w", 0, b"x" * 2**20)
    with pytest.raises(PipelineError, match="no_topic"):
        list(rows_of(frame(b"a", topic=pa.array([None], pa.string())), None))
    with shared_node.wire() as wire, pytest.raises(PipelineError, match="invalid"):
        path = path_of("big", "w" * 65, 0, "p")
        wire.request_bytes("POST", f"{path}?at=0", b"", media=PROTOBUF)


def test_the_doctor_tells_of_parts_that_wait(node: NodeProcess) -> None:
    node.make("waiting")
    staged(node, "waiting", "w", 0, b"a")
    words = ["doctor", "--connect", f"tcp://{node.p2p}", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "millpond", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    findings = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert findings["parts"]["level"] == "ok"
    assert findings["parts"]["text"].startswith("1 parts of batches are staged and not published")
