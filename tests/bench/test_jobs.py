"""The table of job queues: medians, both phases together, and who is ahead by how much."""

from __future__ import annotations

import pytest

from tests.bench.jobs import rates, table


def told(put: float, ran: float) -> dict[str, float]:
    return {"put_rate": put, "run_rate": ran, "missing": 0}


def test_end_to_end_is_both_phases_one_after_the_other() -> None:
    assert rates(told(1000, 1000))[2] == pytest.approx(500)
    assert rates(told(3000, 6000))[2] == pytest.approx(2000)  # 3000 jobs: 1 s, then 0.5 s


def test_lost_jobs_are_no_measurement() -> None:
    for lost in ({"missing": 1}, {"faults": {"left": 2}}):
        with pytest.raises(SystemExit, match="lost"):
            rates(told(1, 1) | lost)


def test_the_table_has_medians_and_compares_a_node_with_peers_of_the_same_durability() -> None:
    lines = table(
        {
            "node, memory": [(9.0, 9.0, 4500.0), (9.0, 9.0, 6000.0), (9.0, 9.0, 9000.0)],
            "arq on Redis, memory": [(9.0, 9.0, 500.0)],
            "huey on SQLite, memory": [(9.0, 9.0, 4000.0)],
            "node, disk": [(8000.0, 8000.0, 4000.0)],
            "huey on SQLite, disk": [(2000.0, 2000.0, 1000.0)],
        }
    )
    assert lines[2] == "| node, memory | 9 | 9 | 6,000 | 12.00 | 1.50 |"
    assert lines[3] == "| arq on Redis, memory | 9 | 9 | 500 |  |  |"
    assert lines[5] == "| node, disk | 8,000 | 8,000 | 4,000 |  | 4.00 |"
    assert {line.count("|") for line in lines} == {7}
