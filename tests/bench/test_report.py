"""The conclusions of scripts/bench from figures: a failed row is never a passed one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import compare, report, rounds, s2_bench, servers
from tests.bench.compare import BENCH, load_rows

DOCS = servers.ROOT / "docs" / "internals"


def run_of(commit: str) -> dict[str, Any]:
    made = {"when": "today", "commit": commit, "cpu": "a CPU", "system": "Linux", "rounds": 1}
    return made | {"load": [0.0], "servers": {}}


def side(server_us: float, p99_us: float = 1000.0, errs: int = 0) -> dict[str, Any]:
    numbers = {"rps": 50.0, "p50_us": 500.0, "p99_us": p99_us, "cpu": 0.5, "server_us": server_us}
    return {**numbers, "title": "PING", "spread": 0.1, "errs": errs}


def row(ours: dict[str, Any], targets: dict[str, float], peer_us: float = 10.0) -> dict[str, Any]:
    made = {"title": "PUT", "metric": "rps", "one_core": False, "targets": targets}
    return made | {"ours": ours, "peer": side(peer_us)}


@pytest.mark.parametrize(
    ("server_us", "verdict", "passed"),
    [
        (20.2, "**below the floor**", False),
        (20, "floor holds", True),
        (12.6, "floor holds", True),
        (12.5, "goal reached", True),
    ],
)
def test_the_cpu_of_a_request_decides_between_floor_and_goal(server_us, verdict, passed):
    """The rates do not matter: those of the two sides are equal here."""
    result = row(side(server_us), {"floor": 0.5, "goal": 0.8})
    assert (report.verdict(result), report.passed(result)) == (verdict, passed)


def test_a_slow_tail_breaks_the_floor_though_the_cost_is_fine():
    targets = {"floor": 0.4, "goal": 0.9, "p99_ms_floor": 4.0, "p99_ms_goal": 1.2}
    assert report.verdict(row(side(10.5, p99_us=4100), targets)) == "**below the floor**"
    assert report.verdict(row(side(10.5, p99_us=3900), targets)) == "floor holds"
    assert report.verdict(row(side(10.5, p99_us=1200), targets)) == "goal reached"


def test_one_refused_request_makes_a_row_invalid():
    result = row(side(100, errs=1), {"floor": 0.5, "goal": 0.8})
    assert report.verdict(result) == "invalid: 1 errors"
    assert not report.passed(result)


def test_a_row_that_did_not_run_says_why_and_has_not_passed():
    result = {"title": "PUT", "targets": {"floor": 0.5}, "not_run": "no redis-server"}
    assert report.verdict(result) == "not run: no redis-server"
    assert not report.passed(result)
    document = {"rows": {"put": result}, "runs": {}}
    assert "not run: no redis-server" in report.blocks(document, [], [])["rows"]
    listed = report.Listed("put", "PUT", "0.38", {"floor": 0.5}, False, "PING")
    assert "not run: no redis-server" in report.blocks(document, [listed], [])["targets"]


def test_the_verdicts_of_a_run_are_told_together():
    rows = {
        "put": row(side(100), {"floor": 0.5}),
        "push": row(side(10), {"floor": 0.5}),
        "s2": {"title": "S2", "targets": {"floor": 1.0}, "not_run": "no s2"},
        "ping": row(side(10), {}),
        "broken": row(side(10, errs=1), {}),
    }
    found = [" ".join(line.split()) for line in report.verdicts(rows).splitlines()]
    assert found == [
        "below the floor: 1 (put)",
        "floor holds: 1 (push)",
        "not run: 1 (s2)",
        "invalid: 1 (broken)",
    ]


def test_rows_without_a_floor_are_measured_once(monkeypatch):
    """All rows have to fit into 20 minutes."""
    measured = []
    run = dict.fromkeys((*compare.NUMBERS, "errs"), 1.0)
    monkeypatch.setattr(compare, "measure", lambda *given: measured.append(given) or run)
    monkeypatch.setattr(report, "progress_line", lambda *_: "")
    plan = compare.Plan({}, "python", Path(), rounds=3, quick=False, deadline=float("inf"))
    rows = {bool(each.targets): each for each in load_rows(BENCH)[1]}
    counts = {}
    for has_floor, each in rows.items():
        measured.clear()
        compare.measure_row(plan, each)
        counts[has_floor] = len(measured)
    assert counts == {True: 6, False: 2}


def test_the_peer_on_sqlite_comes_up(tmp_path):
    spec = load_rows(BENCH)[0]["sqlite"]
    core = min(os.sched_getaffinity(0))
    try:
        with servers.running(spec, sys.executable, core, tmp_path) as server:
            assert server.port("p2p")
    except servers.NotRun as reason:
        if "in memory" not in str(reason):
            raise
        pytest.skip(str(reason))


def test_a_row_of_the_table_that_was_never_measured_is_there_all_the_same():
    listed = report.Listed("put", "PUT", "0.38", {"floor": 0.55, "goal": 0.7}, False, "PING")
    table = report.blocks({"rows": {}, "runs": {}}, [listed], [])["targets"]
    assert "| PUT / PING | 0.38 |  | 0.55 | 0.7 | not run: not measured yet |" in table


def test_the_table_has_todays_targets_and_the_commit_of_the_measurement():
    """The targets of a row may be others than when it was measured: those of today count."""
    listed = report.Listed("put", "PUT", "0.38", {"floor": 0.6, "goal": 0.7}, True, "PING")
    rows = {"put": row(side(20), {"floor": 0.1}) | {"run": "today"}}
    document = {"rows": rows, "runs": {"today": run_of("abc1234")}}
    table = report.blocks(document, [listed], [])["targets"]
    wanted = (
        "| PUT / PING (one core) | 0.38 | 0.50 | 0.6 | 0.7 | **below the floor** | 20.0 / 10.0 "
    )
    assert f"{wanted}| abc1234 |" in table
    assert "PUT" not in report.blocks(document, [listed], [])["rows"]


def test_a_row_without_a_target_passes_but_claims_nothing():
    result = row(side(1), {})
    assert report.verdict(result) == "no target"
    assert report.passed(result)


def test_only_what_stands_between_the_markers_is_replaced():
    page = "a\n<!-- rows: begin -->\nold\n<!-- rows: end -->\nb\n<!-- runs: begin -->\nstays\n"
    page += "<!-- runs: end -->\nc\n"
    again = report.with_blocks(report.with_blocks(page, {"rows": "new"}), {"rows": "newer"})
    assert again == page.replace("old", "newer")


@pytest.mark.parametrize("page", ["a page\n", "<!-- rows: begin -->\nno end\n"])
def test_a_page_without_markers_is_refused_rather_than_overwritten(page: str):
    with pytest.raises(ValueError, match="lacks"):
        report.with_blocks(page, {"rows": "block"})


def test_the_pages_are_as_the_program_writes_them_from_the_data():
    document = json.loads((DOCS / "benchmarks.json").read_text())
    listed = compare.listed_rows(load_rows(BENCH)[1])
    made = report.blocks(document, listed, ["benchmarks-ratio.svg", "benchmarks-latency.svg"])
    for name in ("benchmarks.md", "benchmarks-rows.md"):
        page = (DOCS / name).read_text()
        assert report.with_blocks(page, made) == page
    assert (DOCS / "benchmarks.md").read_text().count("\n") < 125


def test_every_row_names_a_known_server_and_is_named_once():
    specs, rows = load_rows(BENCH)
    assert len({each.name for each in rows}) == len(rows)
    assert {name for each in rows for name in (each.ours.server, each.peer.server)} <= set(specs)


def test_the_targets_are_those_of_the_design():
    _, rows = load_rows(BENCH)
    named = {each.name: each.targets for each in rows}
    wanted = {
        "put-c50": (0.55, 0.7),
        "put-c50-p16": (0.4, 0.6),
        "push-20": (0.6, 0.8),
        "disk-put-c50-xadd": (0.65, 0.9),
        "http-append-c50": (2.5, 3.5),
        "s3p-append-c50": (0.75, 0.95),
        "s3p-append-c50-one": (0.75, 0.95),
        "s3p-append-c50-p16": (0.85, 1.1),
        "s3p-append-c50-p16-nats": (1.0, 2.0),
        "s3p-append-x100-c10": (3.0, 4.0),
        "s3p-read-x100-c10": (1.8, 2.5),
        "rustlog-append-x100-c10": (2.5, 3.0),
        "rustlog-read-x100-c10": (1.2, 1.8),
        "s3p-disk-append-c50": (0.6, 0.85),
        "s2-bench-write": (1.3, 2.0),
        "s2-bench-catchup": (1.0, 1.5),
        "s2-append-c50": (1.5, 2.0),
        "ws-put-c50-p16-tcp": (0.9, 0.95),
    }
    found = {name: (named[name]["floor"], named[name]["goal"]) for name in wanted}
    assert found == wanted
    assert {each.name for each in rows if each.before} == set(wanted)
    assert (named["push-20"]["p99_ms_floor"], named["push-20"]["p99_ms_goal"]) == (4.0, 1.2)
    assert (rounds.FLOOR, rounds.GOAL) == (2.0, 5.0)


def test_both_sides_of_a_stream_row_do_the_same_work():
    _, rows = load_rows(BENCH)
    shapes = ("-c", "-K", "-P", "-n", "-s", "-L")
    for each in rows:
        if each.name.startswith(("s3p-", "rustlog-")):
            ours, peer = (
                [word for word in side.args.split() if word.startswith(shapes)]
                for side in (each.ours, each.peer)
            )
            assert ours == peer, each.name
            assert ("-n100" in ours) == (each.metric == "recs")


def test_a_durable_stream_row_waits_for_the_disk_on_both_sides():
    specs, rows = load_rows(BENCH)
    durable = [each for each in rows if "-disk-append" in each.name]
    assert len(durable) == 9
    for each in durable:
        ours, peer = specs[each.ours.server], specs[each.peer.server]
        assert ours.durable and ours.promises == "disk"
        assert peer.durable and "always" in peer.command


def test_a_node_that_promises_less_than_the_row_says_is_not_measured(tmp_path):
    line = {"listeners": {"s3p": "127.0.0.1:1"}, "durability": "memory"}
    told = f"print({json.dumps(json.dumps(line))}); import time; time.sleep(9)"
    spec = servers.ServerSpec(
        name="node",
        command=("{python}", "-u", "-c", told),
        ready="json-line",
        version=(),
        config="",
        promises="disk",
    )
    with (
        pytest.raises(servers.NotRun, match="durability memory, not disk"),
        servers.running(spec, sys.executable, 0, tmp_path),
    ):
        pass


def test_a_peer_that_is_not_installed_is_said_to_be_missing(tmp_path):
    specs, _ = load_rows(BENCH)
    missing = dataclasses.replace(specs["nats"], command=("no-such-nats-server",))
    with (
        pytest.raises(servers.NotRun, match="no no-such-nats-server"),
        servers.running(missing, sys.executable, 0, tmp_path),
    ):
        pass


SLEEP = "import time; time.sleep(60)"
S2_TOLD = """
\x1b[1mWrite\x1b[0m: 61.50 MiB/s, 62976 records/s (515899392 bytes, 503808 records in 8.00s)
Read: 61.00 MiB/s, 62464 records/s (515899392 bytes, 503808 records in 8.07s)

Ack Latency Statistics (n=503808)               End-to-End Latency Statistics (n=503808)
min    :    1.25ms                              min    :    1.50ms
p50    :   68.00ms                              p50    :   70.00ms
p90    :   80.00ms                              p90    :   82.00ms
p99    :  950.0us                               p99    :   99.00ms
max    :     1.25s                              max    :     1.50s

Waiting 1s before catchup read...
Catchup: 130.00 MiB/s, 133120 records/s (515899392 bytes, 503808 records in 4.00s)
"""
"""Made up, in the form of `s2 bench` of s2-cli 0.43; `tests/suites/test_s2_cli.py` runs it."""


def test_figures_of_s2_bench_are_those_of_its_phases():
    seconds = iter((10.0, 10.5, 12.0))
    outcome = s2_bench.read_output(S2_TOLD.splitlines(), lambda: next(seconds))
    assert outcome.acks_us == {"p50": 68_000.0, "p99": 950.0, "max": 1_250_000.0}
    write = s2_bench.figures(outcome, "write", 0.5, 0.4)
    assert (write["recs"], write["p50_us"], write["cpu"]) == (62976.0, 68_000.0, 0.4)
    assert write["server_us"] == pytest.approx(10 * 1e6 / 503_808)
    catchup = s2_bench.figures(outcome, "catchup", 0.5, 0.4)
    assert catchup["recs"] == 125_952.0
    assert catchup["server_us"] == pytest.approx(1.5 * 1e6 / 503_808)


def test_without_the_program_s2_its_rows_say_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "s2_program", lambda: "s2-that-is-not-here")
    monkeypatch.setattr(s2_bench, "s2_program", lambda: "s2-that-is-not-here")
    monkeypatch.setitem(servers.HOW_TO_GET, "s2-that-is-not-here", servers.HOW_TO_GET["s2"])
    specs, _ = load_rows(BENCH)
    with (
        pytest.raises(servers.NotRun, match="cargo install s2-cli"),
        servers.running(specs["s2-lite"], sys.executable, 0, tmp_path),
    ):
        pass
    with pytest.raises(servers.NotRun, match="cargo install s2-cli"):
        s2_bench.measure(1, 0, [], "write", lambda: 0.0)


def test_a_server_that_cannot_be_set_up_is_not_measured(tmp_path):
    line = {"listeners": {"s3p": "127.0.0.1:1"}, "durability": "memory"}
    spec = servers.ServerSpec(
        name="server",
        command=("{python}", "-u", "-c", f"print({json.dumps(json.dumps(line))}); {SLEEP}"),
        ready="json-line",
        version=(),
        config="",
        env={"WHERE": "port {port}"},
        setup=("{python}", "-c", "import os, sys; sys.exit(os.environ['WHERE'] + ' refuses')"),
    )
    with (
        pytest.raises(servers.NotRun, match=r"port \d+ refuses"),
        servers.running(spec, sys.executable, 0, tmp_path),
    ):
        pass


def test_a_durable_row_compares_promises_of_the_same_strength():
    specs, rows = load_rows(BENCH)
    strength = {"disk": ("-D 2", {"redis-always", "sqlite"}), "os": ("-D 1", {"redis-everysec"})}
    for each in rows:
        prefix = each.name.partition("-")[0]
        if prefix in strength:
            option, peers = strength[prefix]
            assert each.ours.server == f"node-{prefix}" and option in each.ours.args
            assert each.peer.server in peers and specs[each.peer.server].durable
            assert specs[each.ours.server].durable


def test_a_durable_server_is_not_measured_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "file_system", lambda folder: "tmpfs")
    specs, _ = load_rows(BENCH)
    with (
        pytest.raises(servers.NotRun, match="in memory"),
        servers.running(specs["redis-always"], "python", 0, tmp_path),
    ):
        pass


def test_the_file_system_of_a_folder_is_that_of_the_deepest_mount():
    assert servers.file_system(Path("/proc/self")) == "proc"
