"""Direct reads: settled records from the replica's objects are the same rows as the node's own, and
an object that is wrong costs nothing but a line of the log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from millpond.pipeline.client.s2_codec import Headers, encode_records
from millpond.pipeline.errors import BadOption, DataLost, PipelineError
from millpond.pipeline.options import source_options
from millpond.pipeline.spark import direct
from millpond.pipeline.spark.direct import DirectFile
from millpond.pipeline.spark.planning import Range, StreamPlan, batch_ranges
from millpond.pipeline.spark.read_task import read_range
from tests.pipeline.object_store import object_store
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.replicas import replicated_node, settle

RECORDS = 600
SETTLED_TRIES = 20
COLD_S = 60.0
BINARY = "application/octet-stream"


def numbered(count: int, begin: bytes = b"") -> list[bytes]:
    """Records of 100 bytes: of less than 64 KiB none goes to the file of its stream."""
    return [b"%b%06d" % (begin, number) + b"." * 94 for number in range(count)]


@pytest.fixture(autouse=True)
def _a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of stores and files that other tests read."""
    for name in ("_stores", "_away_until", "_tails", "_told"):
        monkeypatch.setattr(direct, name, {})


class Pond:
    """A node with a replica in a folder."""

    def __init__(self, node: NodeProcess, replica: Path) -> None:
        self.node, self.replica = node, replica

    def rows(self, stream: str, **given: str) -> pa.Table:
        return table(self.ranges(stream, **given))

    def ranges(self, stream: str, **given: str) -> list[Range]:
        return batch_ranges(self.node.options(subscribe=stream, includeHeaders="true", **given))

    def settled(self, stream: str, bodies: list[bytes]) -> Range:
        """The range of a new stream whose records are all in a snapshot."""
        self.node.make(stream)
        self.node.fill(stream, bodies)
        for _ in range(SETTLED_TRIES):
            settle(self.node)
            (found,) = self.ranges(stream, mode="direct")
            if found.direct is not None:
                read = direct.read_direct(found.direct, 0, len(bodies))
                if sum(len(each.sequences) for each in read) == len(bodies):
                    return found
        raise AssertionError("the records were never settled")


def table(ranges: list[Range]) -> pa.Table:
    found = [batch for each in ranges for batch in read_range(each)]
    return pa.Table.from_batches(found).combine_chunks() if found else None


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    folder = tmp_path_factory.mktemp("direct")
    with replicated_node(folder / "pond", f"file://{folder}/replica") as node:
        yield Pond(node, folder / "replica")


def append_anything(node: NodeProcess, stream: str, rng: Random, count: int) -> None:
    """Records of any size, some with headers, keys, null values and times of their own, in appends
    of any length."""
    path, left, ms = f"/v1/streams/{stream}/records", count, 10**12
    with node.wire() as wire:
        while left:
            records: list[tuple[bytes, Headers, int | None]] = []
            has_headers, has_times = rng.random() < 0.5, rng.random() < 0.3
            for _ in range(min(left, rng.choice((1, 3, 90)))):
                size = rng.choice((0, 1, 20, 300, 5000)) if rng.random() < 0.999 else 300_000
                headers: Headers = []
                if has_headers and rng.random() < 0.5:
                    headers = [(b"h%d" % at, rng.randbytes(at)) for at in range(rng.randrange(3))]
                    headers += [(b"key", rng.randbytes(4))] if rng.random() < 0.5 else []
                    if rng.random() < 0.2:
                        headers, size = [*headers, (b"tombstone", b"")], 0
                ms += rng.randrange(3)
                records.append((rng.randbytes(size), headers, ms if has_times else None))
            left -= len(records)
            body = encode_records(records)
            wire.request_bytes("POST", path, body, media="application/protobuf")


def test_rows_are_those_of_the_node(pond: Pond) -> None:
    """Of streams of any records, in any range: what is settled, what came later, what is
    trimmed."""
    rng = Random(20261128)
    streams = [f"any-{number}" for number in range(4)]
    pond.node.make(*streams)
    for each in streams:
        append_anything(pond.node, each, rng, RECORDS)
    settle(pond.node)
    read: list[str] = []
    for number, each in enumerate(streams):
        append_anything(pond.node, each, rng, 40)
        if number % 2:
            pond.node.trim(each, rng.randrange(RECORDS // 2))
        assert pond.rows(each, mode="direct") == pond.rows(each), each
        first = pond.rows(each).column("offset")[0].as_py()
        for _ in range(4):
            begin, end = sorted(rng.sample(range(first, RECORDS + 40), 2))
            given = {
                "startingOffsets": json.dumps({each: {"0": begin}}),
                "endingOffsets": json.dumps({each: {"0": end}}),
                "minPartitions": str(rng.choice((1, 3))),
                "fetchRows": str(rng.choice((7, 10_000))),
            }
            ranges = pond.ranges(each, mode="direct", **given)
            read += [part.direct.name for part in ranges if part.direct is not None]
            assert table(ranges) == pond.rows(each, **given), given
    assert set(read) == set(direct._tails), "the files were not read"
    assert all(direct._tails[name] > RECORDS // 2 for name in read)


def test_settled_records_are_read_while_the_node_is_dead(tmp_path: Path) -> None:
    with replicated_node(tmp_path / "pond", f"file://{tmp_path}/replica") as node:
        own = Pond(node, tmp_path / "replica")
        bodies = numbered(3000)
        own.settled("s", bodies)
        ranges = own.ranges("s", mode="direct", minPartitions="4")
        assert len(ranges) == 4
        node.kill()
        assert table(ranges).column("value").to_pylist() == bodies


def test_an_object_that_is_gone_leaves_its_records_to_the_node(
    pond: Pond, caplog: pytest.LogCaptureFixture
) -> None:
    found = pond.settled("gone", numbered(2000))
    assert found.direct is not None
    (pond.replica / found.direct.name).unlink()
    for _ in range(2):
        assert table([found]) == pond.rows("gone")
    (line,) = [each.getMessage() for each in caplog.records]
    assert found.direct.name in line and "not there any more" in line


def test_a_damaged_object_is_named_and_the_node_is_read(
    pond: Pond, caplog: pytest.LogCaptureFixture
) -> None:
    """A byte of a record in the middle: what comes before it is read from the file."""
    bodies = numbered(5000)
    found = pond.settled("damaged", bodies)
    assert found.direct is not None
    path = pond.replica / found.direct.name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"002500", b"002501"))
    assert table([found]) == pond.rows("damaged")
    (line,) = [each.getMessage() for each in caplog.records]
    assert found.direct.name in line and "chunk 2000" in line and "crc" in line


@pytest.fixture(scope="module")
def harmed(pond: Pond) -> tuple[Range, pa.Table]:
    """A range whose file may be damaged, and its rows."""
    return pond.settled("harmed", numbered(3000)), pond.rows("harmed")


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_of_a_file_gives_other_rows(
    pond: Pond, harmed: tuple[Range, pa.Table], seed: int
) -> None:
    """Bytes anywhere in it, or an end that is missing."""
    (found, rows), rng = harmed, Random(seed)
    assert found.direct is not None
    path = pond.replica / found.direct.name
    whole = path.read_bytes()
    try:
        for _ in range(30):
            data = bytearray(whole)
            if rng.random() < 0.2:
                del data[rng.randrange(len(data)) :]
            else:
                begin = rng.choice((0, rng.randrange(len(data) // 4096) * 4096))
                for _ in range(rng.choice((1, 4))):
                    data[begin + rng.randrange(rng.choice((40, 4096)))] = rng.randrange(256)
            path.write_bytes(data)
            direct._tails.clear()
            assert table([found]) == rows
    finally:
        path.write_bytes(whole)


def test_trimmed_records_are_the_same_loss(pond: Pond) -> None:
    """The snapshot has them still."""
    pond.settled("trimmed", numbered(2000))
    pond.node.trim("trimmed", 700)
    given = {"startingOffsets": '{"trimmed":{"0":10}}'}
    lost = []
    for mode in ("node", "direct"):
        with pytest.raises(DataLost) as found:
            pond.rows("trimmed", mode=mode, **given)
        lost.append(str(found.value))
        skipped = pond.rows("trimmed", mode=mode, failOnDataLoss="false", **given)
        assert skipped.column("offset")[0].as_py() == 700
    assert lost[0] == lost[1]


def test_a_stream_that_is_made_anew_is_not_read_from_the_file_of_the_one_before(
    pond: Pond,
) -> None:
    before = pond.settled("anew", numbered(2000, b"old"))
    pond.node.delete("anew")
    pond.node.make("anew")
    pond.node.fill("anew", [b"new"])
    (after,) = pond.ranges("anew", mode="direct")
    assert after.identity != before.identity
    assert table([after]).column("value").to_pylist() == [b"new"]


def test_a_fork_has_the_records_of_its_source(pond: Pond) -> None:
    """They are in the file of the source, so the node gives them."""
    with pond.node.wire() as wire:
        wire.request_bytes("PUT", "/v1/stream/source", b"", media=BINARY)
        pond.node.fill("source", numbered(20, b"source"))
        forked = {"stream-forked-from": "/v1/stream/source"}
        status, _ = wire._request("PUT", "/v1/stream/fork", forked, None)
        assert status < 300
    for _ in range(SETTLED_TRIES):
        pond.node.fill("fork", numbered(1000, b"fork"))
        settle(pond.node)
        (found,) = pond.ranges("fork", mode="direct")
        if found.direct is not None and any(True for _ in direct.read_direct(found.direct, 20, 99)):
            break
    assert found.direct is not None
    rows = table([found])
    assert rows.column("value").to_pylist()[:20] == numbered(20, b"source")
    assert rows == pond.rows("fork")


def test_a_query_goes_on_across_snapshots(pond: Pond) -> None:
    """Its checkpoint is that of a query that reads the node."""
    pond.node.make("long")
    given = {"subscribe": "long", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "900"}
    options = source_options({**pond.node.given, **given, "mode": "direct"}, is_streaming=True)
    plan, bodies = StreamPlan(options), numbered(4000)
    try:
        at, values = plan.begin(), []
        for step in range(2):
            pond.node.fill("long", bodies[step * 2000 : (step + 1) * 2000])
            settle(pond.node)
            while (end := plan.advance(at, 900, None)) != at:
                ranges = plan.ranges(*(_offsets(each) for each in (at, end)), {}, _identities(end))
                values += table(ranges).column("value").to_pylist()
                at = end
    finally:
        plan.close()
    assert values == bodies


def _offsets(told: dict[str, object]) -> dict[object, int]:
    from millpond.pipeline.spark.offsets import from_nested

    return from_nested(told)  # type: ignore[return-value]


def _identities(told: dict[str, object]) -> dict[object, str]:
    from millpond.pipeline.spark.offsets import identities_of

    return identities_of(told)  # type: ignore[return-value]


def test_a_store_that_is_away_is_asked_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that is not mounted; the manifest was read before."""
    with replicated_node(tmp_path / "pond", f"file://{tmp_path}/replica") as node:
        own = Pond(node, tmp_path / "replica")
        found = own.settled("s", numbered(2000))
        own.replica.rename(tmp_path / "elsewhere")
        for _ in range(2):
            assert table([found]).num_rows == 2000
        lines = [each.getMessage() for each in caplog.records]
        assert "is it mounted?" in lines[0] and len(lines) == 2  # the second says: is away


@contextmanager
def refusing_store() -> Iterator[str]:
    """A server that refuses all credentials."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no</Message></Error>"
            self.send_response(403)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_wrong_credentials_are_an_error() -> None:
    with refusing_store() as endpoint:
        options = {"aws_endpoint_url": endpoint, "aws_allow_http": "true", "aws_region": "x"}
        options |= {"aws_access_key_id": "wrong", "aws_secret_access_key": "secret-word"}
        file = DirectFile("s3://pond/r", options, "blob/aa/aa", 4096, "partitions/aa/aa", 0, "1")
        assert "secret-word" not in repr(file)
        with pytest.raises(PipelineError) as found:
            list(direct.read_direct(file, 0, 10))
    assert found.value.code == "bad_store" and "storeOptions" in str(found.value)
    assert "secret-word" not in str(found.value)


def test_no_replica_and_wrong_options_are_told(node: NodeProcess) -> None:
    node.make("plain")
    node.fill("plain", [b"x"])
    with pytest.raises(BadOption, match=r"mode: http.* has no replica"):
        batch_ranges(node.options(subscribe="plain", mode="direct"))
    with pytest.raises(BadOption, match="mode: node or direct"):
        node.options(subscribe="plain", mode="fast")
    with pytest.raises(BadOption, match="storeOptions") as found:
        node.options(subscribe="plain", mode="direct", storeOptions='{"aws_secret":1}')
    assert "aws_secret" not in str(found.value)


def test_a_bucket_is_read_like_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bodies = numbered(4000)
    with object_store("pond") as access:
        with replicated_node(tmp_path / "pond", "s3://pond/replica", access) as node:
            node.make("s")
            node.fill("s", bodies)
            settle(node)
            options = json.dumps({name.lower(): value for name, value in access.items()})
            given = {"subscribe": "s", "mode": "direct", "storeOptions": options}
            (found,) = batch_ranges(node.options(**given))
            assert found.direct is not None
            assert table([found]).column("value").to_pylist() == bodies
            assert direct._tails[found.direct.name] > 2000
            assert not caplog.records


def test_cold_records_are_read_from_their_objects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that the node itself has in the replica alone: the file of their stream tells the
    objects. One that is damaged is named."""
    small = {"MILLPOND_STREAM_LOCAL_BYTES_MAX": "65536"}
    with replicated_node(tmp_path / "pond", f"file://{tmp_path}/replica", small) as node:
        own = Pond(node, tmp_path / "replica")
        bodies = numbered(12_000)
        own.settled("logs", bodies)
        cold = own.replica / "cold"
        until = time.monotonic() + COLD_S
        while not cold.is_dir() or not any(cold.iterdir()):
            assert time.monotonic() < until, "no record became cold"
            time.sleep(0.1)
        settle(node)
        ranges = own.ranges("logs", mode="direct", minPartitions="2")
        assert table(ranges) == own.rows("logs")
        assert not caplog.records
        node.kill()
        assert table(ranges[:1]).column("value").to_pylist() == bodies[: ranges[0].end]
        for path in cold.iterdir():
            data = path.read_bytes()
            path.write_bytes(data.replace(bodies[1000], bodies[1001]))
        found = ranges[0].direct
        assert found is not None
        assert list(direct.read_direct(found, 0, 10)) == []
        assert "cold/" in caplog.records[0].getMessage()
