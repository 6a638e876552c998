"""The table of job queues: medians, and what a peer does not have."""

from __future__ import annotations

import sys

import pytest

from tests.bench.jobs import NotMeasured, Rates, attempt, rates, run, table


def test_the_figures_of_a_node_and_of_a_peer_are_of_one_kind() -> None:
    told = {"put_rate": 3000.0, "bulk_rate": 9000.0, "run_rate": 6000.0}
    node = told | {"faults": {}, "p10_us": 500, "p50_us": 900, "worker_us": 100.0, "node_us": 20.0}
    peer = told | {"missing": 0, "p10_ms": 0.5, "p50_ms": 0.9, "cpu_us": 120.0}
    assert rates(node) == rates(peer) == Rates(3000, 9000, 6000, 0.5, 0.9, 120)


def test_lost_jobs_are_no_measurement() -> None:
    told = {"put_rate": 1.0, "run_rate": 1.0, "cpu_us": 1.0}
    for lost in ({"missing": 1}, {"faults": {"left": 2}}):
        with pytest.raises(NotMeasured, match="lost"):
            rates(told | lost)


def test_a_peer_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Rates:
        return rates(run(sys.executable, "-c", "raise SystemExit('no such broker')"))

    assert attempt("arq", fails) is None
    assert "arq is not measured" in (told := capsys.readouterr().err) and "no such broker" in told
    found = Rates(1, 2, 3, 4, 5, 6)
    assert attempt("node", lambda: found) == found


def test_the_table_has_medians() -> None:
    lines = table(
        {
            "node": [
                Rates(each, each, each, each, each, each) for each in (4500.0, 6000.0, 9000.0)
            ],
            "huey": [Rates(2000, None, 1000, None, None, 120)],
        }
    )
    assert lines[2] == "| node | 6,000 | 6,000 | 6,000 | 6000.00 ms, 6000.00 ms | 6,000 us |"
    assert lines[3] == "| huey | 2,000 | - | 1,000 | - | 120 us |"
    assert {line.count("|") for line in lines} == {7}
