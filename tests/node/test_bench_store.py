"""`millpond bench store`: that it measures, checks, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from millpond.actors.store.changes import Snapshot, StoredMessage
from millpond.actors.store.interface import Fault as StoreFault
from millpond.node.bench.own_node import NODE_FILES
from millpond.node.bench.store import StoreResult, StoreRun
from millpond.node.bench.verify import Fault
from millpond.node.cli.main import main
from tests.node.processes import LIMIT_S, started


class Output(NamedTuple):
    code: int
    out: str
    err: str


Bench = Callable[..., Output]


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str]) -> Bench:
    """Run `millpond bench` in this process."""

    def bench(*words: str) -> Output:
        code = main(["bench", *words])
        return Output(code, *capfd.readouterr())

    return bench


STORE_ROWS = [
    *("sync", "commit-1", "commit-16", "commit-100", "commit-1000", "flush", "load", "recovery")
]


def test_the_store_gives_back_what_was_put_and_leaves_nothing(bench: Bench, tmp_path: Path):
    words = ("--json", "--seconds", "0.1", "--messages", "2000", "--data", str(tmp_path))
    output = bench("store", *words)
    assert (output.code, output.err) == (0, "")
    found = [json.loads(line) for line in output.out.splitlines()]
    assert [each["row"] for each in found] == STORE_ROWS
    for each in found:
        assert set(each) == set(StoreResult.__struct_fields__)
        assert each["ok"] is True and each["faults"] == {} and each["count"] > 0
        assert 0 < each["p50_us"] <= each["p99_us"] <= each["max_us"]
        assert each["rate"] == pytest.approx(each["count"] / each["seconds"], rel=0.05)
    rows = {each["row"]: each for each in found}
    assert rows["recovery"]["count"] == 2000
    assert rows["commit-1000"]["syncs"] < rows["commit-1000"]["count"] / 10
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_the_store_says_what_it_measured(bench: Bench, tmp_path: Path):
    # Less time than a disk takes to keep a thousand writes: it is measured until it has kept some.
    words = ("--seconds", "0.0001", "--messages", "100", "--size", "16", "--data", str(tmp_path))
    output = bench("store", *words)
    where, head, *lines = output.out.splitlines()
    assert where.startswith(f"data below {tmp_path}") and head.split()[0] == "row"
    assert [line.split()[0] for line in lines] == STORE_ROWS


@pytest.mark.parametrize("name", NODE_FILES)
def test_a_folder_of_a_node_is_not_touched(bench: Bench, tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    for what in ("store", "p2p"):
        output = bench(what, "--data", str(tmp_path))
        assert output.code == 2 and "holds a node's data" in output.err
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "/nowhere"], 1, "cannot use /nowhere"),
        (["--size", "15"], 2, "16 to 65536"),
        (["--messages", "99"], 2, "100 to 10000000"),
        (["--seconds", "0"], 2, "more than 0 seconds"),
    ],
)
def test_a_store_that_cannot_be_measured_is_said_in_a_line(
    bench: Bench, words: list[str], code: int, message: str
):
    output = bench("store", *words)
    assert output.code == code and message in output.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_no_data_behind(tmp_path: Path, number: signal.Signals):
    with started("bench", "store", "--seconds", "60", "--data", str(tmp_path)) as bench:
        wait_for(lambda: list(tmp_path.rglob("sync")) != [])
        bench.send_signal(number)
        assert bench.wait(LIMIT_S) == 130
    assert list(tmp_path.iterdir()) == []


def snapshot(*contents: bytes) -> Snapshot:
    return Snapshot(
        rows=[StoredMessage(1 + at, at, 60, 1.0, data) for at, data in enumerate(contents)]
    )


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (snapshot(b"a", b"b"), {}),
        (snapshot(b"a"), {Fault.LOST: 1}),
        (snapshot(b"a", b"c"), {Fault.DAMAGED: 1}),
        (snapshot(b"a", b"b", b"b"), {Fault.DAMAGED: 1}),
        (StoreFault.DAMAGED, {Fault.LOST: 2}),
    ],
)
def test_a_store_at_fault_is_found_out(found: Snapshot | StoreFault, faults: dict[Fault, int]):
    run = StoreRun(time.perf_counter, "load", 1)
    run.add(time.perf_counter())
    run.check(found, [b"a", b"b"], b"name")
    assert run.faults.counts == faults
    assert run.result().ok is not bool(faults)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
