"""Results to text: ratios, verdict, and the tables between the markers of
docs/internals/benchmarks.md and benchmarks-rows.md."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

TARGETS = ("floor", "goal", "p99_ms_floor", "p99_ms_goal")
BLOCKS = ("targets", "footprint", "rows", "rates", "runs")
"""The names of the blocks between markers that the pages have."""
GENERATOR_BUSY = 0.9
SPREAD_WIDE = 0.3


def cost_ratio(row: dict[str, Any]) -> float:
    """CPU time of the peer's server for a request over that of ours, of the medians: 1 is as fast
    per core, and a noisy machine moves it little. 0 where ours has none."""
    ours, peer = (float(row[side]["server_us"]) for side in ("ours", "peer"))
    return round(peer / ours, 3) if ours else 0.0


def rate_ratio(row: dict[str, Any]) -> float:
    """Median of ours over median of the peer, in the row's metric; 0 where the peer has none."""
    ours, peer = (float(row[side][row["metric"]]) for side in ("ours", "peer"))
    return round(ours / peer, 3) if peer else 0.0


def holds(row: dict[str, Any], level: str) -> bool | None:
    """Whether cost ratio and p99 reach `level` ("floor" or "goal"); None: the row has no figure."""
    targets = row["targets"]
    if level not in targets:
        return None
    p99_ms_max = targets.get(f"p99_ms_{level}")
    slow = p99_ms_max is not None and row["ours"]["p99_us"] / 1e3 > p99_ms_max
    return bool(cost_ratio(row) >= targets[level] and not slow)


def errors(row: dict[str, Any]) -> int:
    """Requests refused over all runs of both sides: such a row proves nothing."""
    return int(row["ours"]["errs"]) + int(row["peer"]["errs"])


def valid(row: dict[str, Any]) -> bool:
    """Measured, and without errors."""
    return "not_run" not in row and not errors(row)


def passed(row: dict[str, Any]) -> bool:
    """Valid, and not under its floor."""
    return valid(row) and holds(row, "floor") is not False


def verdict(row: dict[str, Any]) -> str:
    """One word or two for the table."""
    if "not_run" in row:
        return f"not run: {row['not_run']}"
    if errors(row):
        return f"invalid: {errors(row)} errors"
    match holds(row, "floor"), holds(row, "goal"):
        case None, _:
            return "no target"
        case False, _:
            return "**below the floor**"
        case True, True:
            return "goal reached"
        case _:
            return "floor holds"


def progress_line(name: str, number: int, server: str, run: dict[str, Any], metric: str) -> str:
    """One run, for the terminal."""
    text = (
        f"{name:24} {number + 1} {server:8} {run[metric]:>11,.0f}/s  p50 {_ms(run['p50_us'])} ms  "
        f"p99 {_ms(run['p99_us'])} ms  server {run['server_us']:.1f} us"
    )
    return f"{text}  {run['errs']} ERRORS, last {run['err']}" if run["errs"] else text


def verdict_line(name: str, row: dict[str, Any]) -> str:
    """One row, for the terminal."""
    if "not_run" in row:
        return f"{name:24} {verdict(row)}"
    text, wanted = verdict(row).strip("*"), _wanted(row, "floor")
    return f"{name:24} CPU {cost_ratio(row):.3f}, wanted {wanted}: {text}"


def verdicts(rows: dict[str, dict[str, Any]]) -> str:
    """The verdicts on all rows with a floor, for the terminal, and the others that failed."""
    counted: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row["targets"] or not valid(row):
            word = "not run" if "not_run" in row else verdict(row).strip("*").partition(":")[0]
            counted.setdefault(word, []).append(name)
    return "\n".join(
        f"{word + ':':24} {len(names)} ({', '.join(names)})" for word, names in counted.items()
    )


class Listed(NamedTuple):
    """A row as rows*.toml has it, measured or not."""

    name: str
    title: str
    before: str
    targets: dict[str, float]
    one_core: bool
    peer: str


def blocks(document: dict[str, Any], listed: list[Listed], plots: list[str]) -> dict[str, str]:
    """The generated parts of the pages, by the names of their markers."""
    rows = document["rows"]
    aimed = [each for each in listed if each.before]
    others = {name: row for name, row in rows.items() if name not in {each.name for each in aimed}}
    measured = [row for row in rows.values() if "not_run" not in row]
    made = {
        "targets": _table(
            ("row", "2026-11-22", "now", "floor", "goal", "verdict", "us, node / peer", "commit"),
            [_target_cells(each, document) for each in aimed],
        ),
        "rows": "\n\n".join(
            [
                _table(
                    (
                        "row",
                        "node CPU",
                        "peer CPU",
                        "ratio",
                        "floor",
                        "goal",
                        "verdict",
                        "of rates",
                    ),
                    [_result_cells(row) for row in others.values()],
                ),
                "\n".join(f"![{name}]({name})" for name in plots),
            ]
        ),
        "rates": _table(
            ("row", "node /s", "peer /s", "node ms", "peer ms", "spread", "remarks"),
            [_rate_cells(row) for row in measured],
        ),
        "runs": "\n\n".join(
            [
                _table(
                    ("date", "commit", "machine", "rounds", "load before", "data on"),
                    [_run_cells(run) for run in document["runs"].values()],
                ),
                "\n".join(_server_lines(document["runs"])),
            ]
        ),
    }
    if "footprint" in document:
        made["footprint"] = footprint_table(document["footprint"])
    return made


def footprint_table(figures: dict[str, Any]) -> str:
    """The cost of a node at rest and at its start, for each tree that was measured."""
    trees = figures["trees"]
    return _table(
        ("measure", *(f"{tree['label']} ({tree['commit']})" for tree in trees)),
        [
            (name, *(str(tree["figures"].get(name, "-")) for tree in trees))
            for name in figures["names"]
        ],
    )


def with_blocks(page: str, made: dict[str, str]) -> str:
    """The page with what stands between its markers replaced. Raises ValueError for a page without
    markers, or with one of a pair alone."""
    found = [name for name in BLOCKS if _marker(name, "begin") in page]
    if not found:
        raise ValueError("the page lacks markers")
    for name in found:
        before, _, rest = page.partition(_marker(name, "begin"))
        _, end, after = rest.partition(_marker(name, "end"))
        if not end:
            raise ValueError(f"the page lacks {_marker(name, 'end')}")
        if name in made:
            parts = (before, _marker(name, "begin"), "\n", made[name], "\n", end, after)
            page = "".join(parts)
    return page


def _marker(name: str, edge: str) -> str:
    return f"<!-- {name}: {edge} -->"


def _target_cells(each: Listed, document: dict[str, Any]) -> tuple[str, ...]:
    core = " (one core)" if each.one_core else ""
    title = f"{each.title} / {each.peer}{core}"
    row = document["rows"].get(each.name, {"not_run": "not measured yet"})
    row = {**row, "targets": each.targets}
    wanted = (_wanted(row, "floor"), _wanted(row, "goal"))
    if "not_run" in row:
        return (title, each.before, "", *wanted, verdict(row), "", "")
    costs = " / ".join(f"{row[side]['server_us']:.1f}" for side in ("ours", "peer"))
    commit = document["runs"][row["run"]]["commit"]
    ratio = f"{cost_ratio(row):.2f}"
    return (title, each.before, ratio, *wanted, verdict(row), costs, commit)


def _result_cells(row: dict[str, Any]) -> tuple[str, ...]:
    wanted = (_wanted(row, "floor"), _wanted(row, "goal"))
    if "not_run" in row:
        return (row["title"], "", "", "", *wanted, verdict(row), "")
    title = f"{row['title']} / {row['peer']['title']}" + (" (one core)" if row["one_core"] else "")
    costs = (f"{row[side]['server_us']:.1f}" for side in ("ours", "peer"))
    ratios = f"{cost_ratio(row):.2f}", f"{rate_ratio(row):.2f}"
    return (title, *costs, ratios[0], *wanted, verdict(row), ratios[1])


def _rate_cells(row: dict[str, Any]) -> tuple[str, ...]:
    ours, peer = row["ours"], row["peer"]
    return (
        row["title"],
        *(f"{side[row['metric']]:,.0f}" for side in (ours, peer)),
        *(f"{_ms(side['p50_us'])} / {_ms(side['p99_us'])}" for side in (ours, peer)),
        f"{ours['spread']:.0%}, {peer['spread']:.0%}",
        ", ".join(_remarks(ours, "node") + _remarks(peer, "peer")),
    )


def _remarks(side: dict[str, Any], who: str) -> list[str]:
    busy = [f"generator is the limit for {who}"] if side["cpu"] >= GENERATOR_BUSY else []
    return busy + ([f"{who} unsteady"] if side["spread"] >= SPREAD_WIDE else [])


def _run_cells(run: dict[str, Any]) -> tuple[str, ...]:
    machine = f"{run['cpu']}, {run['system']}"
    load = f"{run['load'][0]:g}"
    return (run["when"], run["commit"], machine, str(run["rounds"]), load, run.get("disk", "-"))


def _server_lines(runs: dict[str, Any]) -> list[str]:
    """Each server once for each version and configuration that was measured."""
    known = {
        f"- {name}: {server['version']} ({server['config']})": None
        for run in runs.values()
        for name, server in run["servers"].items()
    }
    return [
        textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False) for line in known
    ]


def _wanted(row: dict[str, Any], level: str) -> str:
    targets = row["targets"]
    if level not in targets:
        return "-"
    p99_ms_max = targets.get(f"p99_ms_{level}")
    tail = f", p99 <= {p99_ms_max:g} ms" if p99_ms_max is not None else ""
    return f"{targets[level]:g}{tail}"


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}" if us < 10_000 else f"{us / 1e3:.0f}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
