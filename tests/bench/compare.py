"""Measures the rows of rows*.toml, ours and peer in turn, and writes docs/internals/benchmarks*."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from millpond.node.bench.own_node import cpu_of, file_system
from tests.bench import plots, report, s2_bench
from tests.bench.servers import ROOT, NotRun, Running, ServerSpec, running, version_of

BENCH = ROOT / "tests" / "bench"
SECONDS, WARM_S = 3.0, 0.5
UNAIMED_SECONDS = 2.0
"""Of rows without a floor, which are measured once: all rows together take 20 minutes."""
QUICK_SECONDS, QUICK_WARM_S = 0.8, 0.2
S2_S, QUICK_S2_S = 8, 1
"""Seconds for which `s2 bench` writes; its catch-up takes as long as it takes."""
GENERATOR_SLACK_S = 30.0
NUMBERS = ("rps", "recs", "p50_us", "p99_us", "p999_us", "max_us", "cpu", "server_cpu", "server_us")


@dataclass(frozen=True)
class Side:
    """One server of a row and what the generator does to it: `loadgen`, or a phase of `s2 bench`
    (`s2 write`, `s2 catchup`)."""

    server: str
    listener: str
    title: str
    args: str
    generator: str = "loadgen"


@dataclass(frozen=True)
class Row:
    """A comparison; `targets` holds those of report.TARGETS that it has. `before`: the ratio at the
    beginning of the work on speed, for the rows of its table."""

    name: str
    title: str
    metric: str
    one_core: bool
    seconds: float
    targets: dict[str, float]
    ours: Side
    peer: Side
    before: str = ""


@dataclass(frozen=True)
class Plan:
    """The parameters of one run of the load generator."""

    servers: dict[str, ServerSpec]
    python: str
    disk: Path
    rounds: int
    quick: bool
    deadline: float


def load_rows(folder: Path) -> tuple[dict[str, ServerSpec], list[Row]]:
    """All servers and rows of a folder; an unknown field raises TypeError or KeyError."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(folder.glob("rows*.toml"))]
    specs = {name: spec for table in tables for name, spec in table["server"].items()}
    servers = {name: _server(name, _like(specs, spec)) for name, spec in specs.items()}
    return servers, [_row(row) for table in tables for row in table["row"]]


def _like(specs: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """A server's settings, with those of the server that it is `like` as defaults."""
    model = _like(specs, specs[spec["like"]]) if "like" in spec else {}
    return {name: value for name, value in {**model, **spec}.items() if name != "like"}


def _server(name: str, spec: dict[str, Any]) -> ServerSpec:
    words = {each: tuple(spec.get(each, ())) for each in ("command", "version", "setup")}
    return ServerSpec(name=name, **{**spec, **words})


def _row(row: dict[str, Any]) -> Row:
    sides = {side: {"listener": "tcp", "title": "", **row.pop(side)} for side in ("ours", "peer")}
    targets = {name: float(row.pop(name)) for name in report.TARGETS if name in row}
    seconds = SECONDS if targets else UNAIMED_SECONDS
    defaults = {"metric": "rps", "one_core": False, "seconds": seconds}
    return Row(
        **{**defaults, **row},
        targets=targets,
        ours=Side(**sides["ours"]),
        peer=Side(**sides["peer"]),
    )


def measure(plan: Plan, row: Row, side: Side, key: str) -> dict[str, Any]:
    """One run against a fresh server: the generator's JSON. Raises NotRun."""
    cores = sorted(os.sched_getaffinity(0))
    generator_core = cores[0] if row.one_core else cores[min(1, len(cores) - 1)]
    seconds, warm_s = (QUICK_SECONDS, QUICK_WARM_S) if plan.quick else (row.seconds, WARM_S)
    with running(plan.servers[side.server], plan.python, cores[0], plan.disk) as server:
        if side.generator != "loadgen":
            return _measure_s2(plan, side, server, generator_core)
        command = [
            *("taskset", "-c", str(generator_core), str(BENCH / "loadgen")),
            *("-t", str(server.port(side.listener)), "-S", str(server.pid), "-k", key),
            *("-d", str(seconds), "-w", str(warm_s), *shlex.split(side.args)),
        ]
        limit_s = seconds + warm_s + GENERATOR_SLACK_S
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as exc:
            raise NotRun(f"the generator did not end within {limit_s:.0f} s") from exc
    if told.returncode not in (0, 3):  # 3: it ran, and counted errors
        raise NotRun(f"{side.server}: {told.stderr.strip() or told.returncode}")
    run: dict[str, Any] = json.loads(told.stdout)
    if run["rps"] == 0 and not run["errs"]:
        raise NotRun(f"{side.server}: no request was answered")
    return {**run, "load": round(os.getloadavg()[0], 2)}


def _measure_s2(plan: Plan, side: Side, server: Running, core: int) -> dict[str, Any]:
    cpu_s = cpu_of(server.pid)
    if cpu_s is None:
        raise NotRun("the CPU time of a process is not to be had here")
    length = f"-d {QUICK_S2_S if plan.quick else S2_S}s -w 1s"
    args = shlex.split(f"{length} {side.args}")
    phase = side.generator.removeprefix("s2 ")
    return s2_bench.measure(server.port(side.listener), core, args, phase, cpu_s) | {
        "load": round(os.getloadavg()[0], 2)
    }


def measure_row(plan: Plan, row: Row) -> dict[str, Any]:
    """All rounds of a row, A B A B, with medians and the verdict's inputs. A row without a floor
    has one."""
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    result: dict[str, Any] = {"title": row.title, "metric": row.metric, "one_core": row.one_core}
    result |= {"targets": row.targets}
    try:
        for number in range(plan.rounds if row.targets else 1):
            for name, side in (("ours", row.ours), ("peer", row.peer)):
                if time.monotonic() > plan.deadline:
                    raise NotRun("time limit reached")
                run = measure(plan, row, side, f"bench{number}x")
                runs[name].append(run)
                line = report.progress_line(row.name, number, side.server, run, row.metric)
                print(line, flush=True)
    except NotRun as exc:
        return result | {"not_run": str(exc)}
    for name, side in (("ours", row.ours), ("peer", row.peer)):
        result[name] = _summary(side, runs[name], row.metric)
    return result


def _summary(side: Side, runs: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    medians = {number: median(run[number] for run in runs) for number in NUMBERS}
    values = [run[metric] for run in runs]
    return {
        "server": side.server,
        "title": side.title,
        "args": side.args,
        **medians,
        "errs": sum(run["errs"] for run in runs),
        "spread": round((max(values) - min(values)) / (medians[metric] or 1), 3),
        "runs": runs,
    }


def describe_run(plan: Plan) -> dict[str, Any]:
    """A description of the run for the text under the tables."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in cpuinfo if line.startswith("model name")]
    cores = sorted(os.sched_getaffinity(0))
    return {
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "commit": _commit(),
        "cpu": f"{models[0] if models else platform.machine()}, {len(cores)} cores",
        "system": f"Linux {platform.release()}",
        "pinning": "server and generator on cores of their own" if len(cores) > 1 else "ONE core",
        "rounds": plan.rounds,
        "disk": file_system(plan.disk) or "unknown",
        "load": [round(load, 2) for load in os.getloadavg()],
        "servers": {
            name: {"version": version_of(spec, plan.python), "config": spec.config}
            for name, spec in plan.servers.items()
        },
    }


def _commit() -> str:
    packages = ("node", "actors", "transports", "millpond")
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", *packages], cwd=ROOT, capture_output=True, text=True
    )
    return (head.stdout.strip() or "unknown") + (" with local changes" if status.stdout else "")


def write(docs: Path, run: dict[str, Any] | None, results: dict[str, Any], rows: list[Row]) -> None:
    """Merge these results of a run into benchmarks.json, and write the tables and plots of the
    pages again from all that is there. None: nothing was measured."""
    data = docs / "benchmarks.json"
    old = json.loads(data.read_text()) if data.exists() else {"runs": {}, "rows": {}}
    merged, runs = dict(old["rows"]), dict(old["runs"])
    if run is not None:
        merged |= {name: row | {"run": run["when"]} for name, row in results.items()}
        runs[run["when"]] = run
    kept = {row.name: merged[row.name] for row in rows if row.name in merged}
    stamps = {row["run"] for row in kept.values()}
    document = {**old, "runs": {when: runs[when] for when in sorted(stamps)}, "rows": kept}
    data.write_text(json.dumps(document, indent=1) + "\n")
    drawn = plots.draw(docs, kept)
    blocks = report.blocks(document, listed_rows(rows), drawn)
    for page in (docs / "benchmarks.md", docs / "benchmarks-rows.md"):
        page.write_text(report.with_blocks(page.read_text(), blocks))
    print(f"wrote {data} and the tables of its pages" + ("" if drawn else "; no plots: matplotlib"))


def listed_rows(rows: list[Row]) -> list[report.Listed]:
    """The rows as the tables list them."""
    return [
        report.Listed(row.name, row.title, row.before, row.targets, row.one_core, row.peer.title)
        for row in rows
    ]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The options of scripts/bench."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; writes nothing")
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing; write the pages again"
    )
    parser.add_argument("--rows", default="*", metavar="GLOB", help="only these, e.g. 'push-*'")
    parser.add_argument("--node-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--rounds", type=int, default=3, help="of a row with a floor: 3")
    parser.add_argument("--time-limit", type=float, default=2400.0, metavar="S")
    parser.add_argument(
        "--disk", type=Path, default=Path("/var/tmp"), metavar="DIR", help="where servers keep data"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "internals", metavar="DIR")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Exit 0 when every row ran without errors and every floor holds, 1 if not, 2 on usage."""
    options = parse_arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so the server is stopped
    servers, rows = load_rows(BENCH)
    if options.tables:
        write(options.docs, None, {}, rows)
        return 0
    chosen = [row for row in rows if fnmatch.fnmatch(row.name, options.rows)]
    chosen.sort(key=lambda row: not row.targets)  # a run that is cut off has the verdicts
    if not chosen or options.rounds < 1:
        print(f"no row matches {options.rows!r}" if not chosen else "--rounds must be positive")
        return 2
    deadline = time.monotonic() + options.time_limit
    rounds = 1 if options.quick else options.rounds
    python, disk = options.node_python, options.disk
    plan = Plan(servers, python, disk, rounds, options.quick, deadline)
    run, results = describe_run(plan), {}
    for row in chosen:
        results[row.name] = measure_row(plan, row)
        print(report.verdict_line(row.name, results[row.name]), flush=True)
    print(report.verdicts(results), flush=True)
    if not options.quick:
        write(options.docs, run, results, rows)
    return 0 if all(report.passed(row) for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
