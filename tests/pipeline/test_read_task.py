"""Ranges of a real node's streams: planned, read, and missed where they are gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.client.s2_codec import encode_records
from millpond.pipeline.errors import DataLost, PipelineError
from millpond.pipeline.options import SourceOptions, sink_options, source_options
from millpond.pipeline.spark.discovery import TAILS_AGE_MAX_S, Discovery
from millpond.pipeline.spark.offsets import TopicPartition, from_nested, identities_of
from millpond.pipeline.spark.planning import Bounds, Range, StreamPlan, batch_ranges, split
from millpond.pipeline.spark.read_task import read_range
from millpond.pipeline.spark.write_task import Stager
from tests.pipeline.pipeline_nodes import NodeProcess

ORDERS = TopicPartition("orders", 0)


def rows(options: SourceOptions, bounds: Bounds = Bounds()) -> list[tuple[str, int, int, bytes]]:  # noqa: B008
    found = []
    for each in batch_ranges(options, bounds):
        for batch in read_range(each):
            columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
            found += list(zip(*columns, batch.column("value").to_pylist(), strict=True))
    return found


Plan = Callable[..., StreamPlan]


@pytest.fixture
def plan() -> Iterator[Plan]:
    """Plans of streaming queries, let go at the end."""
    made: list[StreamPlan] = []

    def make(node: NodeProcess, **given: str) -> StreamPlan:
        told = {"address": node.address, "timeoutMs": "9000", **given}
        made.append(StreamPlan(source_options(told, is_streaming=True)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def count(
    plan: StreamPlan, start: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> int:
    return sum(batch.num_rows for each in plan.ranges(start, end) for batch in read_range(each))


def test_tails_that_took_long_are_soon_asked_for_again(shared_node: NodeProcess) -> None:
    """As from a node that was away: a query does not keep them for a multiple of that time."""
    shared_node.make("again")
    given = {"address": shared_node.address, "subscribe": "again"}
    options = source_options(given, is_streaming=True)
    moments = [0.0, 4.0, 4.0]  # as the first answer is asked for and comes
    discovery = Discovery(options.nodes, options.subscription, lambda: moments.pop(0))
    with closing(discovery):
        assert list(discovery.tails().values()) == [0]
        shared_node.fill("again", [b"x"])
        moments += [4.0 + TAILS_AGE_MAX_S] * 3
        assert list(discovery.tails().values()) == [1]


def test_a_batch_reads_everything_once(shared_node: NodeProcess) -> None:
    shared_node.make("all")
    bodies = [b"%d" % i for i in range(2500)]
    shared_node.fill("all", bodies)
    options = shared_node.options(subscribe="all", fetchRows="700")
    assert rows(options) == [("all", 0, i, body) for i, body in enumerate(bodies)]


def test_partitions_and_patterns(shared_node: NodeProcess) -> None:
    shared_node.make("t1/0", "t1/3", "t1/x", "t2", "t2/0")
    for each in ("t1/0", "t1/3", "t1/x", "t2", "t2/0"):
        shared_node.fill(each, [each.encode()])
    named = rows(shared_node.options(subscribe="t1,t2"))
    assert named == [("t1", 0, 0, b"t1/0"), ("t1", 3, 0, b"t1/3"), ("t2", 0, 0, b"t2")]
    assert rows(shared_node.options(assign='{"t1":[3]}')) == [("t1", 3, 0, b"t1/3")]
    matched = rows(shared_node.options(subscribePattern="t[12]"))
    assert matched == named
    assert rows(shared_node.options(subscribePattern="t1/.*"))[0] == ("t1/0", 0, 0, b"t1/0")


def test_from_and_to_offsets_and_times(shared_node: NodeProcess) -> None:
    shared_node.make("part")
    shared_node.fill("part", [b"a", b"b"])
    time.sleep(0.01)
    middle = int(time.time() * 1000)
    shared_node.fill("part", [b"c", b"d"])

    def bodies(**given: str) -> bytes:
        found = rows(shared_node.options(subscribe="part", **given))
        return b"".join(body for *_, body in found)

    assert bodies(startingOffsets='{"part":{"0":1}}', endingOffsets='{"part":{"0":3}}') == b"bc"
    assert bodies(startingTimestamp=str(middle)) == b"cd"
    assert bodies(endingTimestamp=str(middle)) == b"ab"
    assert bodies(startingOffsetsByTimestamp=f'{{"part":{{"0":{middle}}}}}') == b"cd"
    with pytest.raises(PipelineError, match="no_such_time"):
        bodies(startingTimestamp=str(middle + 10**9))
    far = {"startingTimestamp": str(middle + 10**9), "startingOffsetsByTimestampStrategy": "latest"}
    assert bodies(**far) == b""
    with pytest.raises(PipelineError, match="exactly the existing partitions"):
        bodies(startingOffsets='{"part":{"0":1,"1":1}}')
    with pytest.raises(PipelineError, match=r"bad_option.*ends at 4"):
        bodies(endingOffsets='{"part":{"0":5}}')
    with pytest.raises(PipelineError, match=r"bad_option.*ends at 4"):
        bodies(startingOffsets='{"part":{"0":5}}')


def test_filters_narrow_what_is_read(shared_node: NodeProcess) -> None:
    shared_node.make("few/0", "few/1")
    for each in ("few/0", "few/1"):
        shared_node.fill(each, [b"x"] * 20)
    bounds = Bounds(partitions=frozenset((1,))).narrowed(Bounds(offset_min=5, offset_end=8))
    found = rows(shared_node.options(subscribe="few"), bounds)
    assert [(partition, offset) for _, partition, offset, _ in found] == [(1, 5), (1, 6), (1, 7)]


def test_filters_on_the_timestamp_narrow_what_is_read(shared_node: NodeProcess) -> None:
    """Exactly to the millisecond, which is all that a record has."""
    source = pytest.importorskip("millpond.pipeline.spark.source")
    filters = pytest.importorskip("pyspark.sql.datasource")
    shared_node.make("times")
    with shared_node.wire() as wire:
        at = int(time.time() * 1000) - 50_000
        records = [(b"%d" % ms, [], at + ms) for ms in (0, 0, 7, 7, 8, 20)]
        path = "/v1/streams/times/records"
        wire.request_bytes("POST", path, encode_records(records), media="application/protobuf")

    def found(kind: str, us: int) -> bytes:
        value = source.EPOCH + timedelta(microseconds=at * 1000 + us)
        bounds = source.times_of(getattr(filters, kind)(("timestamp",), value))
        return b" ".join(body for *_, body in rows(shared_node.options(subscribe="times"), bounds))

    assert found("EqualTo", 7000) == b"7 7"
    assert found("EqualTo", 7001) == b""
    assert found("GreaterThan", 7000) == found("GreaterThan", 7001) == b"8 20"
    assert found("GreaterThanOrEqual", 7000) == b"7 7 8 20"
    assert found("GreaterThanOrEqual", 7001) == b"8 20"
    assert found("LessThan", 7000) == b"0 0"
    assert found("LessThan", 7001) == found("LessThanOrEqual", 7000) == b"0 0 7 7"
    assert found("LessThanOrEqual", 21_000) == b"0 0 7 7 8 20"
    assert found("GreaterThan", 20_000) == b""


def test_ranges_are_cut_where_more_tasks_are_wanted(shared_node: NodeProcess) -> None:
    shared_node.make("cut/0", "cut/1")
    shared_node.fill("cut/0", [b"x"] * 90)
    shared_node.fill("cut/1", [b"x"] * 10)
    options = shared_node.options(subscribe="cut", minPartitions="10")
    ranges = batch_ranges(options)
    assert len(ranges) == 10
    assert [(each.start, each.end) for each in ranges[:2]] == [(0, 10), (10, 20)]
    assert len(rows(options)) == 100
    assert split([], 5) == []


def test_two_nodes_in_one_query(shared_node: NodeProcess, tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as other:
        for node, body in ((shared_node, b"here"), (other, b"there")):
            node.make("both")
            node.fill("both", [body])
        address = f"{shared_node.address},{other.address}"
        options = source_options({"address": address, "subscribe": "both"}, is_streaming=False)
        assert rows(options) == [("both", 0, 0, b"here"), ("both", 1000, 0, b"there")]


def test_command_records_are_not_rows(shared_node: NodeProcess) -> None:
    shared_node.make("orders-cut")
    shared_node.fill("orders-cut", [b"a", b"b", b"c"])
    shared_node.trim("orders-cut", 1)
    shared_node.fill("orders-cut", [b"d"])
    found = rows(shared_node.options(subscribe="orders-cut"))
    assert [(offset, body) for *_, offset, body in found] == [(1, b"b"), (2, b"c"), (4, b"d")]


def test_trimmed_records_are_a_loss(shared_node: NodeProcess) -> None:
    shared_node.make("loss")
    shared_node.fill("loss", [b"x"] * 10)
    shared_node.trim("loss", 5)
    asked = {"subscribe": "loss", "startingOffsets": '{"loss":{"0":2}}'}
    with pytest.raises(DataLost, match="records 2 to 4"):
        rows(shared_node.options(**asked))
    lenient = rows(shared_node.options(**asked, failOnDataLoss="false"))
    assert [offset for _, _, offset, _ in lenient] == [5, 6, 7, 8, 9]


def test_large_records_are_rows_like_others(shared_node: NodeProcess) -> None:
    """Other protocols append records of more than 1 MiB, up to 16 MiB; also as the first one."""
    sizes = 2**20 + 1, 3, 2**24, 1, 5 * 2**20
    bodies = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    with shared_node.wire() as wire:
        binary = "application/octet-stream"
        wire.request_bytes("PUT", "/v1/stream/large", b"", media=binary)
        for body in bodies:
            wire.request_bytes("POST", "/v1/stream/large", body, media=binary)
        assert wire.earliest("large") == 0
        assert wire.at_time("large", 1) == 0
    for given in ({}, {"minPartitions": "5"}):
        found = rows(shared_node.options(subscribe="large", **given))
        assert [(offset, body) for *_, offset, body in found] == list(enumerate(bodies))


def test_what_is_not_there_is_told(shared_node: NodeProcess) -> None:
    with pytest.raises(PipelineError, match="no stream nix"):
        rows(shared_node.options(subscribe="nix"))


def test_triggers_take_their_share(shared_node: NodeProcess, plan: Plan) -> None:
    shared_node.make("share/0", "share/1")
    shared_node.fill("share/0", [b"x"] * 300)
    shared_node.fill("share/1", [b"x"] * 100)
    stream = plan(shared_node, subscribe="share", startingOffsets="earliest")
    start = stream.initial()
    stream.prepare_available_now()
    shared_node.fill("share/1", [b"late"] * 100)
    sizes = []
    while (end := stream.latest(start, 150)) != start:
        sizes.append(count(stream, start, end))
        start = end
    assert sizes == [149, 149, 102]  # 3 in 4 of the first, and never less than whole records


def test_a_trigger_waits_for_enough(shared_node: NodeProcess, plan: Plan) -> None:
    shared_node.make("few-rows")
    given = {"subscribe": "few-rows", "startingOffsets": "earliest"}
    stream = plan(shared_node, **given, minOffsetsPerTrigger="10", maxTriggerDelay="300ms")
    start = stream.initial()
    shared_node.fill("few-rows", [b"x"] * 3)
    time.sleep(0.12)  # what it was told before is good for so long
    assert stream.latest(start, None) == start
    time.sleep(0.3)
    assert stream.latest(start, None) != start


def test_new_partitions_are_read_from_their_beginning(shared_node: NodeProcess, plan: Plan) -> None:
    shared_node.make("grow/0")
    shared_node.fill("grow/0", [b"x"] * 5)
    stream = plan(shared_node, subscribe="grow")
    start = stream.initial()
    assert start == {TopicPartition("grow", 0): 5}
    shared_node.make("grow/1")
    shared_node.fill("grow/1", [b"y"] * 7)
    again = plan(shared_node, subscribe="grow")
    end = again.latest(start, None)
    assert count(again, start, end) == 7
    assert count(again, start, end) == 7  # a replay reads the same


def test_a_stream_made_anew_is_a_loss(node: NodeProcess, plan: Plan) -> None:
    node.make("orders")
    node.fill("orders", [b"old"] * 9)
    start = plan(node, subscribe="orders").initial()
    node.delete("orders")
    node.make("orders")
    node.fill("orders", [b"new"] * 2)
    with pytest.raises(DataLost, match="read up to 9, and ends at 2"):
        plan(node, subscribe="orders").latest(start, None)
    lenient = plan(node, subscribe="orders", failOnDataLoss="false")
    end = lenient.latest(start, None)
    assert (end, count(lenient, start, end)) == ({ORDERS: 2}, 2)


def test_a_stream_made_anew_is_noticed_however_long_it_is(node: NodeProcess, plan: Plan) -> None:
    """By its identity, which the checkpoint has; also that of another node's stream."""
    node.make("orders")
    node.fill("orders", [b"old"] * 3)
    start = plan(node, subscribe="orders", startingOffsets="latest").begin()
    assert json.loads(json.dumps(start))["orders"] == {"0": 3}
    node.kill()
    node.start()
    assert plan(node, subscribe="orders").advance(start, None, None) == start, "the same one"
    node.fill("orders", [b"more"])
    same = plan(node, subscribe="orders").advance(start, None, None)
    assert identities_of(same) == identities_of(start) and from_nested(same) == {ORDERS: 4}
    (range_,) = plan(node, subscribe="orders").ranges(
        from_nested(start), from_nested(same), identities_of(start), identities_of(same)
    )
    assert sum(batch.num_rows for batch in read_range(range_)) == 1
    node.delete("orders")
    node.make("orders")
    node.fill("orders", [b"new"] * 5)
    with pytest.raises(DataLost, match="read up to 3, and is another stream now"):
        plan(node, subscribe="orders").advance(start, None, None)
    with pytest.raises(DataLost, match="or the stream was deleted"):
        list(read_range(range_))
    lenient = plan(node, subscribe="orders", failOnDataLoss="false")
    end = lenient.advance(start, None, None)
    (whole,) = lenient.ranges(
        from_nested(start), from_nested(end), identities_of(start), identities_of(end)
    )
    assert sum(batch.num_rows for batch in read_range(whole)) == 5
    old = {"orders": {"0": 2}}  # of a version without identities
    assert from_nested(plan(node, subscribe="orders").advance(old, None, None)) == {ORDERS: 5}


def test_a_trigger_is_limited_by_bytes(shared_node: NodeProcess, plan: Plan) -> None:
    shared_node.make("small-records", "long-records")
    shared_node.fill("small-records", [b"x"] * 100)
    shared_node.fill("long-records", [bytes(10_000)] * 100)
    given = {"subscribe": "small-records,long-records", "startingOffsets": "earliest"}
    stream = plan(shared_node, **given)
    start, sizes = stream.begin(), []
    while (end := stream.advance(start, None, 300_000)) != start:
        ranges = stream.ranges(from_nested(start), from_nested(end))
        sizes.append(sum(len(b) for each in ranges for b in bodies_of(each)))
        start = end
    assert sum(sizes) == 100 * 10_001 and max(sizes) < 310_000 and len(sizes) <= 5


def bodies_of(range_: Range) -> list[bytes]:
    return [body for batch in read_range(range_) for body in batch.column("value").to_pylist()]


def test_a_node_that_is_killed_in_the_middle_of_a_range(node: NodeProcess) -> None:
    """Nothing is lost or doubled: the range goes on where it was."""
    node.make("orders")
    bodies = [b"%06d" % i * 100 for i in range(20_000)]
    node.fill("orders", bodies)
    options = node.options(subscribe="orders", fetchRows="1000", timeoutMs="20000")
    (asked,) = batch_ranges(options)
    found: list[bytes] = []
    for batch in read_range(asked):
        if not found:
            node.kill()
            threading.Timer(0.3, node.start).start()
        found += batch.column("value").to_pylist()
    assert found == bodies


def test_a_node_that_stays_away_is_an_error_in_time(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as gone:
        gone.make("orders")
        options = gone.options(subscribe="orders", timeoutMs="300")
        gone.kill()
        started = time.monotonic()
        with pytest.raises(PipelineError, match="node_away"):
            batch_ranges(options)
        assert time.monotonic() - started < 5


def test_an_access_token_is_shown_and_its_limits_are_told(shared_node: NodeProcess) -> None:
    shared_node.make("tok/0", "other")
    shared_node.fill("tok/0", [b"a"])
    scope = {
        "basins": {"exact": "millpond"},
        "streams": {"prefix": "tok"},
        "ops": ["read", "check-tail", "list-streams"],
    }
    with shared_node.wire() as wire:
        asked = json.dumps({"id": "reader", "scope": scope}).encode()
        token = wire.request_json("POST", "/v1/access-tokens", asked)["access_token"]
    assert rows(shared_node.options(subscribe="tok", token=token)) == [("tok", 0, 0, b"a")]
    with pytest.raises(PipelineError, match="no_stream"):
        rows(shared_node.options(subscribe="other", token=token))
    with pytest.raises(PipelineError, match=r"(authn|permission_denied).*token"):
        rows(shared_node.options(subscribe="tok", token=f"{token[:-3]}zzz"))
    told = {"address": shared_node.address, "token": token, "topic": "tok/0", "timeoutMs": "3000"}
    stager = Stager(sink_options(told), "w", 0)
    with pytest.raises(PipelineError, match="permission_denied"):
        stager.stage([pa.RecordBatch.from_pydict({"value": [b"x"]})])


def test_a_new_partition_that_was_trimmed_is_no_loss(shared_node: NodeProcess, plan: Plan) -> None:
    """Wherever it begins by then, and whether it is cut for more tasks or not."""
    shared_node.make("aged/0")
    start = plan(shared_node, subscribe="aged").initial()
    shared_node.make("aged/1", "aged/2")
    for stream in ("aged/1", "aged/2"):
        shared_node.fill(stream, [b"x"] * 11)
        shared_node.trim(stream, 12)
    shared_node.fill("aged/2", [b"y"] * 8)
    for pieces in ("1", "9"):
        again = plan(shared_node, subscribe="aged", minPartitions=pieces)
        end = again.latest(start, None)
        assert end == {TopicPartition("aged", i): n for i, n in enumerate((0, 12, 20))}
        assert count(again, start, end) == 8


def test_a_page_of_streams_that_go_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        "": (["a", "b"], "2026-01-01T00:00:00Z", True),
        "b": (["c"], None, False),
    }

    def request_json(path: str) -> dict[str, object]:
        (after,) = parse_qs(urlsplit(path).query, keep_blank_values=True)["start_after"]
        names, deleted, has_more = pages.pop(after)
        streams = [{"name": name, "deleted_at": deleted} for name in names]
        return {"streams": streams, "has_more": has_more}

    wire = NodeClient(sink_options({}).nodes, 0)
    monkeypatch.setattr(wire, "request_json", lambda method, path: request_json(path))
    assert wire.names() == ["c"]
