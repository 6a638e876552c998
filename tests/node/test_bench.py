"""`millpond bench p2p`: real runs, their JSON, and faults of a node that it finds."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millpond import Node
from millpond.actors.messages import PutAck
from millpond.node.bench import load as measuring
from millpond.node.bench.load import Clocks
from millpond.node.bench.p2p_load import LoadResult, measure
from millpond.node.bench.payload import SIZE_MIN, Payload
from millpond.node.bench.results import Latencies
from millpond.node.bench.scenarios import Kind, Load, rows
from millpond.node.bench.target import BenchTarget
from millpond.node.bench.verify import Deliveries, Fault, Faults, Receipts
from millpond.node.cli.main import main
from millpond.node.client.url import parse_url
from millpond.node.config import Config
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.packets import GET_ACK, MSG, PUT_ACK
from tests.node.processes import LIMIT_S, Serving, command, serving, started
from tests.ports import free_port


class Output(NamedTuple):
    code: int
    out: str
    err: str


Bench = Callable[..., Output]

LOAD_FIELDS = set(LoadResult.__struct_fields__)
MEMORY_FIELDS = {
    *("row", "kind", "count", "size", "bytes_each", "channels", "faults", "first_fault", "ok")
}


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--memory") as ready:
        yield ready


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str]) -> Bench:
    """Run the benchmark in this process."""

    def bench(*words: str) -> Output:
        code = main(["bench", "p2p", *words])
        return Output(code, *capfd.readouterr())

    return bench


def objects(output: Output) -> list[dict[str, Any]]:
    assert (output.code, output.err) == (0, "")
    return [json.loads(line) for line in output.out.splitlines()]


def test_each_kind_of_load_on_a_node_of_its_own(bench: Bench):
    found = objects(bench("--json", "--seconds", "0.1", "--rows", "*-c50-p16-100"))
    assert [each["kind"] for each in found] == ["put", "push", "fanout"]
    for each in found:
        assert set(each) == LOAD_FIELDS
        assert (each["connections"], each["pipeline"], each["size"]) == (50, 16, 100)
        assert each["ok"] is True and each["faults"] == {} and each["duplicates"] == 0
        assert each["count"] > 0
        assert each["rate"] == pytest.approx(each["count"] / each["seconds"], rel=0.02)
        assert 0 < each["p50_us"] <= each["p99_us"] <= each["max_us"]
        assert each["generator"] > 0
        assert (each["node_us"] is not None) == (sys.platform == "linux")


def test_memory_of_channels_where_a_message_waits(bench: Bench):
    (each,) = objects(bench("--json", "--rows", "memory-waiting", "--channels", "300"))
    assert set(each) == MEMORY_FIELDS
    assert (each["channels"], each["size"]) == (300, 100)
    assert each["bytes_each"] > 100


def test_memory_of_idle_channels_and_connections(bench: Bench, node: Serving):
    words = ("--json", "--connect", node.urls["tcp"], "--channels", "50", "--connections", "50")
    left, connected = objects(bench(*words, "--rows", "memory-c*"))
    assert left["channels"] == 0, "a channel that holds nothing is forgotten"
    assert connected["channels"] == 50
    assert set(left) == set(connected) == MEMORY_FIELDS


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_node_that_runs_already_keeps_nothing_of_the_load(
    bench: Bench, node: Serving, scheme: str
):
    shape = ("--connections", "3", "--pipeline", "2", "--size", "20")
    words = ("--json", "--connect", node.urls[scheme], "--seconds", "0.1", *shape)
    found = objects(bench(*words, "--rows", "p*-c3-p2-20"))
    assert [(each["kind"], each["node_us"]) for each in found] == [("put", None), ("push", None)]
    assert info(node)["usage"]["messages"] == 0


def test_of_several_addresses_the_first_that_is_reached_is_measured(bench: Bench, node: Serving):
    words = ("--json", "--seconds", "0.1", "--rows", "put-c1-p1-100")
    dead = f"tcp://127.0.0.1:{free_port()}"
    output = bench(*words, "--connect", f"{dead}, {node.urls['tcp']}")
    assert output.code == 0 and json.loads(output.out)["ok"] is True
    assert output.err == f"millpond: {node.urls['tcp'].removeprefix('tcp://')} is measured\n"
    (found,) = objects(bench(*words, "--connect", f"{node.urls['tcp']},{dead}"))
    assert found["ok"] is True


def test_the_table_has_a_line_a_row(bench: Bench, node: Serving):
    words = ("--seconds", "0.1", "--connect", node.urls["tcp"])
    output = bench(*words, "--rows", "put-c1-p1-1*")
    words = [line.split()[0] for line in output.out.splitlines()]
    assert words == ["row", "put-c1-p1-100", "put-c1-p1-1024"]


def test_a_node_that_dies_is_a_fault_and_exit_1():
    with serving("--memory") as victim:
        words = ("--connect", victim.urls["tcp"], "--seconds", "60", "--rows", "put-c1-p1-100")
        with started("bench", "p2p", "--json", *words) as bench:
            wait_for(lambda: info(victim)["wire"]["packets_in"] > 100)  # the load is under way
            victim.process.kill()
            out, err = bench.communicate(timeout=LIMIT_S)
        assert json.loads(out)["faults"] == {"disconnected": 1, "unacknowledged": 1}
        assert bench.returncode == 1 and b"failed in put-c1-p1-100" in err


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_no_node_behind(number: signal.Signals):
    with started("bench", "p2p", "--seconds", "60", "--rows", "put-c1-p1-100") as bench:
        wait_for(lambda: children(bench.pid) != [])
        (child,) = children(bench.pid)
        wait_for(lambda: sockets(child) > 3)  # it listens, and serves the load
        bench.send_signal(number)
        assert bench.wait(LIMIT_S) == 130
        assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--rows", "nothing"], 2, "names no row"),
        (["--size", "15"], 2, "at least 16 bytes"),
        (["--pipeline", "65536"], 2, "at most 65535"),
        (["--seconds", "0"], 2, "more than 0 seconds"),
        (["--connect", "http://x"], 2, "the scheme must be one of"),
        (["--connect", "tcp://127.0.0.1:1", "--rows", "put-c1-p1-100"], 1, "millpond serve"),
        (["--connect", "tcp://127.0.0.1:1,tcp://127.0.0.1:2"], 1, "none of 127.0.0.1:1, 127.0"),
        (["--connect", "tcp://a,tcp://a"], 2, "named twice"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    bench: Bench, words: list[str], code: int, message: str
):
    output = bench(*words)
    assert output.code == code and message in output.err


def test_a_node_that_refuses_access_is_exit_5(bench: Bench, tmp_path: Path):
    """P2P-25."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret all\n")
    tokens.chmod(0o600)
    with serving("--memory", "--token-file", str(tokens)) as guarded:
        words = ("--connect", guarded.urls["tcp"], "--seconds", "0.1", "--rows", "put-c1-p1-100")
        assert bench(*words).code == 5
        assert bench(*words, "--token-file", str(tokens)).code == 0


@pytest.mark.parametrize("durability", ["disk", "os", "memory"])
def test_a_load_says_how_durable_its_receipts_are(bench: Bench, tmp_path: Path, durability: str):
    below = ("--data", str(tmp_path)) if durability != "memory" else ()
    words = ("--json", "--seconds", "0.1", "--rows", "put-c1-p16-100", "--durability", durability)
    (each,) = objects(bench(*words, *below))
    assert each["durability"] == durability and each["ok"] is True
    assert list(tmp_path.iterdir()) == [], "the node's folder is gone"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--connect", "tcp://127.0.0.1:1", "--durability", "disk"], "--connect excludes"),
        (["--data", ".", "--durability", "memory"], "--durability memory excludes --data"),
    ],
)
def test_a_store_that_nobody_has_is_refused(bench: Bench, words: list[str], message: str):
    output = bench(*words)
    assert output.code == 2 and message in output.err


class Distorted(LengthPrefixed):
    """The framing of a connection to a node that does something wrong."""

    distort: Callable[[list[bytes]], list[bytes]]

    def feed(self, data: bytes) -> list[bytes]:
        return self.distort(super().feed(data))


class Faulty(BenchTarget, frozen=True, kw_only=True):
    """A node that treats every 100th packet of a type in a wrong way."""

    packet_type: int
    wrong: Callable[[bytes], list[bytes]]

    def framing(self, channel: bytes) -> Distorted:
        framing = Distorted(2**20)
        seen = 0

        def distort(packets: list[bytes]) -> list[bytes]:
            nonlocal seen
            out: list[bytes] = []
            for packet in packets:
                seen += packet[0] == self.packet_type
                is_hit = packet[0] == self.packet_type and seen % 100 == 1
                out += self.wrong(packet) if is_hit else [packet]
            return out

        framing.distort = distort
        return framing


def lose(packet: bytes) -> list[bytes]:
    return []


def repeat(packet: bytes) -> list[bytes]:
    return [packet, packet]


def damage(packet: bytes) -> list[bytes]:
    return [packet[:-1] + bytes((packet[-1] ^ 1,))]


@pytest.mark.parametrize(
    ("kind", "packet_type", "wrong", "fault"),
    [
        (Kind.PUT, PUT_ACK, lose, Fault.UNACKNOWLEDGED),
        (Kind.PUT, PUT_ACK, repeat, Fault.UNEXPECTED),
        (Kind.PUT, GET_ACK, damage, Fault.DAMAGED),
        (Kind.PUSH, MSG, lose, Fault.LOST),
        (Kind.PUSH, MSG, damage, Fault.DAMAGED),
        (Kind.FANOUT, MSG, lose, Fault.LOST),
    ],
)
async def test_a_node_at_fault_is_found_out(
    kind: Kind,
    packet_type: int,
    wrong: Callable[[bytes], list[bytes]],
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
):
    result = await measured(kind, packet_type, wrong, monkeypatch)
    assert fault.value in result.faults
    assert not result.ok and result.first_fault


async def test_pushes_that_come_again_are_counted_and_allowed(monkeypatch: pytest.MonkeyPatch):
    """P2P-15."""
    result = await measured(Kind.PUSH, MSG, repeat, monkeypatch)
    assert result.duplicates > 0
    assert result.ok, result.first_fault


async def measured(
    kind: Kind,
    packet_type: int,
    wrong: Callable[[bytes], list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> LoadResult:
    monkeypatch.setattr(measuring, "SETTLE_S", 0.2)
    clocks = Clocks(time.perf_counter, time.process_time)
    async with Node(
        Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    ) as node:
        url = f"tcp://{node.listeners['p2p']}"
        target = Faulty(url, parse_url(url), b"test", packet_type=packet_type, wrong=wrong)
        return await measure(Load(kind, 2, 4, 64), target, 0.1, clocks)


async def test_a_load_goes_on_until_the_first_answer():
    clocks = Clocks(time.perf_counter, time.process_time)
    async with Node(
        Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    ) as node:
        url = f"tcp://{node.listeners['p2p']}"
        target = BenchTarget(url, parse_url(url), b"test")
        result = await measure(Load(Kind.PUT, 1, 1, 64), target, 0.0, clocks)
    assert result.ok and result.count > 0, result.first_fault


def test_receipts_come_once_and_ascend():
    """P2P-06, P2P-08."""
    faults = Faults()
    receipts = Receipts(faults)
    receipts.outstanding |= {1, 2, 3, 4}
    assert receipts.settle(PutAck(1, 60, 10)) and receipts.settle(PutAck(2, 60, 11))
    receipts.close()
    assert faults.counts == {Fault.UNACKNOWLEDGED: 2}
    assert not receipts.settle(PutAck(2, 60, 11))
    assert receipts.settle(PutAck(3, 60, 11))
    receipts.outstanding.clear()
    receipts.close()
    assert faults.counts == {Fault.UNACKNOWLEDGED: 2, Fault.UNEXPECTED: 1, Fault.DISORDERED: 1}
    assert faults.first == "no receipt for key 3"


def test_deliveries_may_come_in_disorder_and_again_but_all_must_come():
    """P2P-15."""
    faults, content = Faults(), Payload(7, 40)
    deliveries = Deliveries(content, faults)
    order = [0, 2, 1, 2, 0, 5, 4]
    assert [deliveries.take(content.make(each), 6) for each in order] == [0, 2, 1, None, None, 5, 4]
    assert deliveries.duplicates == 2 and not faults
    deliveries.close(6)
    assert faults.counts == {Fault.LOST: 1}
    assert faults.first == "message 3 never came"


def test_a_message_that_nobody_put_is_damaged():
    faults, content = Faults(), Payload(7, 40)
    deliveries = Deliveries(content, faults)
    whole = content.make(0)
    flipped = [bytearray(whole) for _ in whole]
    for place, data in enumerate(flipped):
        data[place] ^= 0x10
    strange = [*map(bytes, flipped), b"", whole[:-1], whole + b"x", Payload(8, 40).make(0)]
    assert {deliveries.take(data, 1) for data in strange} == {None}
    assert deliveries.take(content.make(1), 1) is None, "not put yet"
    assert faults.counts == {Fault.DAMAGED: len(strange) + 1}
    assert deliveries.take(whole, 1) == 0


@pytest.mark.parametrize("size", [SIZE_MIN, 100, 1024])
def test_contents_have_their_size_and_their_place(size: int):
    content = Payload(3, size)
    assert [len(content.make(each)) for each in (0, 2**63)] == [size, size]
    assert [content.read(content.make(each)) for each in (0, 2**63)] == [0, 2**63]


def test_percentiles_are_exact_to_the_microsecond():
    latencies = Latencies()
    assert latencies.percentiles_us(0.5, 1.0) == [0, 0]
    for us in range(100, 0, -1):
        latencies.add(us / 1e6)
    assert latencies.percentiles_us(0.5, 0.99, 1.0) == [50, 99, 100]


def test_a_shape_replaces_the_usual_ones():
    names = [row.name for row in rows("pu*", connections=7, pipeline=3)]
    assert names == ["put-c7-p3-100", "put-c7-p3-1024", "push-c7-p3-100", "push-c7-p3-1024"]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def info(node: Serving) -> dict[str, Any]:
    output = command("info", "--connect", node.urls["tcp"], "--timeout", "60", "--json")
    answer: dict[str, Any] = json.loads(output.stdout)
    return answer


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sockets(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += str(path.readlink()).startswith("socket:")
    return count
