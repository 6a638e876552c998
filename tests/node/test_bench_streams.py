"""`millpond bench s3p|rustlog`: real runs, their JSON, and that a faulty server is seen through."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond.actors.store.changes import Position
from millpond.node.bench import load as load_engine
from millpond.node.bench.drivers.interface import Appended, Created, Records, Refused, S3pDriver
from millpond.node.bench.load import Clocks
from millpond.node.bench.scenarios import StreamKind, StreamLoad, stream_rows
from millpond.node.bench.stream_load import StreamResult, StreamTarget, measure_streams
from millpond.node.cli.main import main
from millpond.transports.io.address import parse_address
from millpond.transports.s3p.commands import AppendRecords, ReadRecords, S3pLimits
from millpond.transports.s3p.decoder import Decoder
from tests.bench import peers
from tests.bench.peers import NatsDriver, RedisDriver
from tests.node.client.scripted_server import ByteLine, byte_server
from tests.node.processes import serving
from tests.ports import free_port

FIELDS = set(StreamResult.__struct_fields__)


class Output:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def objects(self) -> list[dict[str, Any]]:
        assert (self.code, self.err) == (0, "")
        return [json.loads(line) for line in self.out.splitlines()]


Bench = Callable[..., Output]


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str]) -> Bench:
    """Run the benchmark in this process."""

    def bench(*words: str) -> Output:
        code = main(["bench", *words])
        return Output(code, *capfd.readouterr())

    return bench


@pytest.mark.parametrize("protocol", ["s3p", "rustlog"])
def test_each_kind_of_row_on_a_node_of_its_own(bench: Bench, protocol: str):
    found = bench(protocol, "--json", "--seconds", "0.1", "--rows", "*-c1-p1-100").objects
    assert [each["kind"] for each in found] == ["append", "batch", "read", "tail"]
    assert [each["batch"] for each in found] == [1, 100, 100, 1]
    for each in found:
        assert set(each) == FIELDS
        assert (each["server"], each["connections"], each["size"]) == ("node", 1, 100)
        assert each["ok"] is True and each["faults"] == {}
        assert each["rate"] == pytest.approx(each["count"] / each["seconds"], rel=0.02)
        assert 0 < each["p50_us"] <= each["p99_us"] <= each["max_us"]
        assert each["disk_each"] is None
        assert (each["checked"] > 0) == (each["kind"] != "read")


def test_a_durable_row_says_what_a_record_takes_on_the_disk(bench: Bench, tmp_path: Path):
    words = ("--json", "--seconds", "0.1", "--data", str(tmp_path))
    (each,) = bench("s3p", *words, "--rows", "batch-c1-p1-1024").objects
    assert each["disk_each"] > 1024 and each["memory_each"] is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", ["s3p", "rustlog"])
def test_a_server_that_runs_already(bench: Bench, protocol: str):
    with serving("--memory", f"--{protocol}", "127.0.0.1:0") as node:
        address = f"127.0.0.1:{node.port(protocol)}"
        shape = ("--connections", "3", "--pipeline", "2", "--size", "20")
        words = ("--json", "--seconds", "0.1", "--connect", address, *shape)
        found = bench(protocol, *words).objects
    assert len(found) == 4
    for each in found:
        assert each["server_us"] is each["memory_each"] is each["disk_each"] is None


def test_of_several_addresses_the_first_that_is_reached_is_measured(bench: Bench):
    with serving("--memory", "--s3p", "127.0.0.1:0") as node:
        address = f"127.0.0.1:{node.port('s3p')}"
        words = ("--json", "--seconds", "0.1", "--rows", "[ar]*-c1-p1-100")
        output = bench("s3p", *words, "--connect", f"127.0.0.1:{free_port()}, {address}")
    assert (output.code, output.err) == (0, f"millpond: {address} is measured\n")
    assert [json.loads(line)["ok"] for line in output.out.splitlines()] == [True, True]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no Redis")
def test_the_same_rows_on_redis(bench: Bench):
    words = ("--json", "--seconds", "0.1", "--peer", "redis", "--rows", "[rt]*-c1-p1-100")
    found = bench("s3p", *words).objects
    assert [each["server"] for each in found] == ["node", "redis"] * 2
    assert all(each["ok"] for each in found)


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="there is no NATS")
def test_appends_on_nats_whose_reads_are_not_measured(bench: Bench):
    words = ("--json", "--seconds", "0.1", "--peer", "nats", "--rows", "[br]*-c1-p1-100")
    batch, read = [each for each in bench("rustlog", *words).objects if each["server"] == "nats"]
    assert batch["ok"] and batch["count"] > 0
    assert "not measured in rows of read" in read["not_run"]


def test_a_peer_that_is_not_installed_is_said_and_is_no_failure(bench: Bench, monkeypatch):
    monkeypatch.setitem(peers.PROGRAMS, "redis", "no-such-redis")
    words = ("--json", "--seconds", "0.1", "--peer", "redis", "--rows", "append-c1-p1-100")
    _, peer = bench("s3p", *words).objects
    assert (peer["server"], peer["not_run"]) == ("redis", "no-such-redis is not installed")


def test_the_table_has_a_line_a_row(bench: Bench):
    output = bench("s3p", "--seconds", "0.1", "--rows", "append-c1-p1-1*")
    words = [line.split()[0] for line in output.out.splitlines()]
    assert words == ["row", "append-c1-p1-100", "append-c1-p1-1024"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--rows", "nothing"], 2, "names no row"),
        (["--size", "15"], 2, "bytes"),
        (["--pipeline", "1025"], 2, "at most 1024"),
        (["--seconds", "0"], 2, "more than 0 seconds"),
        (["--connect", "nowhere"], 2, "--connect"),
        (["--connect", "a:1,a:1"], 2, "named twice"),
        (["--connect", ",".join(f"a:{port}" for port in range(1, 18))], 2, "16 addresses"),
        (["--connect", "127.0.0.1:1", "--durability", "disk"], 2, "--connect excludes"),
        (
            ["--connect", "127.0.0.1:1", "--rows", "append-c1-p1-100"],
            1,
            "cannot measure 127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    bench: Bench, words: list[str], code: int, message: str
):
    output = bench("s3p", *words)
    assert output.code == code and message in output.err and output.err.count("\n") == 1


def test_a_shape_that_is_given_replaces_the_usual_ones():
    names = [load.name for load in stream_rows("[ar]*", connections=3, size=20)]
    assert names == ["append-c3-p1-20", "append-c3-p16-20", "append-c3-p64-20", "read-c3-p1-20"]


class Liar:
    """An S3P server that is at fault from its 20th append on."""

    def __init__(self, lie: str) -> None:
        self._lie = lie
        self._records: list[tuple[Position, bytes]] = []
        self._decoders: dict[ByteLine, Decoder] = {}

    def answer(self, line: ByteLine) -> None:
        decoder = self._decoders.setdefault(line, Decoder(S3pLimits()))
        received, line.input = line.input, b""
        for command in decoder.feed(received):
            match command:
                case AppendRecords(records=[body]):
                    line.say(self._append(body, line))
                case ReadRecords(count=count, min_id=min_id):
                    found = [each for each in self._records if each[0] >= min_id and each[1]]
                    line.say(_records(found[:count]))
                case _:
                    line.say(b"+OK\r\n")

    def _append(self, body: bytes, line: ByteLine) -> bytes:
        number, lie = len(self._records), self._lie if len(self._records) >= 20 else ""
        id = Position(1 if lie == "descend" else 100 + number, 0)
        kept = {"lose": b"", "damage": body[:-1] + b"!"}.get(lie, body)
        self._records.append((id, kept))
        if lie == "end":
            line.close()
        return {
            "refuse": b"-ERR_UNKNOWN_STREAM no\r\n",
            "answer": b"+OK\r\n",
            "gibberish": b"?\r\n",
            "end": b"",
        }.get(lie) or _bulk(b"%d-%d" % (id.ms, id.seq))


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _records(pairs: list[tuple[Position, bytes]]) -> bytes:
    parts = [part for id, body in pairs for part in (b"%d-%d" % (id.ms, id.seq), body)]
    return b"*%d\r\n%b" % (len(parts), b"".join(map(_bulk, parts)))


@pytest.mark.parametrize(
    ("lie", "kind", "fault"),
    [
        ("", StreamKind.APPEND, None),
        ("", StreamKind.TAIL, None),
        ("refuse", StreamKind.APPEND, "refused"),
        ("answer", StreamKind.APPEND, "unexpected"),
        ("gibberish", StreamKind.APPEND, "disconnected"),
        ("end", StreamKind.APPEND, "disconnected"),
        ("descend", StreamKind.APPEND, "disordered"),
        ("damage", StreamKind.APPEND, "damaged"),
        ("lose", StreamKind.APPEND, "lost"),
        ("damage", StreamKind.TAIL, "disordered"),
    ],
)
async def test_a_server_that_is_at_fault_is_seen_through(
    monkeypatch, lie: str, kind: StreamKind, fault: str | None
):
    monkeypatch.setattr(load_engine, "SETTLE_S", 0.2)
    async with byte_server() as server:
        server.answer = Liar(lie).answer
        host, port = parse_address(server.address)
        target = StreamTarget("node", host, port, "bench", S3pDriver)
        clocks = Clocks(time.perf_counter, time.process_time)
        result = await measure_streams(StreamLoad(kind, 1, 4, 100), target, 0.1, clocks)
    assert result.ok is (fault is None), result.first_fault
    assert fault is None or fault in result.faults
    assert result.seconds < load_engine.FIRST_S / 2, "what is at fault is not waited for"


# Peers as they are spoken to.


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_answers_of_redis_in_any_pieces(step: int):
    driver = RedisDriver()
    driver.create("s")
    driver.append("s", [b"a", b"b"])
    driver.read("s", (0, 0), 10, 1, 0)
    driver.read("s", (5, 2), 10, 1, 0)
    driver.append("s", [b"c", b"d"])
    read = b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n5-0\r\n*2\r\n$1\r\nd\r\n$1\r\na\r\n"
    message = b"+PONG\r\n$3\r\n5-0\r\n$3\r\n5-1\r\n" + read + b"*-1\r\n-ERR no\r\n$3\r\n6-0\r\n"
    found = [
        answer
        for at in range(0, len(message), step)
        for answer in driver.feed(message[at : at + step])
    ]
    assert found == [
        Created(),
        Appended((5, 0), (5, 1), 2),
        Records([((5, 0), b"a")]),
        Records([]),
        Refused("ERR no"),
    ]


@pytest.mark.parametrize(
    ("start", "word"), [((0, 0), b"0-0"), ((5, 2), b"5-1"), ((5, 0), b"4-18446744073709551615")]
)
def test_redis_is_asked_for_what_is_behind_the_id_before(start: tuple[int, int], word: bytes):
    assert RedisDriver().read("s", start, 10, 100, 0).endswith(_bulk(word))


@pytest.mark.parametrize("step", [1, 9, 1000])
def test_answers_of_nats_in_any_pieces(step: int):
    driver = NatsDriver("memory")
    assert driver.due().startswith(b"CONNECT {")
    driver.create("s")
    driver.append("s", [b"a", b"b"])
    driver.append("s", [b"c"])
    output = [b'{"config":{}}', b'{"seq":1}', b'{"seq":2}', b'{"error":{"code":503}}']
    message = b"INFO {}\r\nPING\r\n" + b"".join(
        [b"MSG _INBOX.1 1 %d\r\n%b\r\n" % (len(each), each) for each in output]
    )
    found = [
        answer
        for at in range(0, len(message), step)
        for answer in driver.feed(message[at : at + step])
    ]
    assert found == [Created(), Appended((0, 1), (0, 2), 2), Refused("{'code': 503}")]
    assert driver.due() == b"PONG\r\n"
