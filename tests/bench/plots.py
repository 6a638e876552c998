"""Two plots beside the tables of docs/internals/benchmarks.md, when matplotlib is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench import report

RATIO, LATENCY = "benchmarks-ratio.svg", "benchmarks-latency.svg"


def draw(docs: Path, rows: dict[str, Any]) -> list[str]:
    """Draw what was measured; the files' names, none without matplotlib or without results."""
    try:
        import matplotlib
    except ImportError:
        return []
    measured = [row for row in reversed(rows.values()) if report.valid(row)]
    if not measured:
        return []
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"  # the same data gives the same file
    _ratios(docs / RATIO, measured)
    _latencies(docs / LATENCY, measured)
    return [RATIO, LATENCY]


def _ratios(path: Path, rows: list[dict[str, Any]]) -> None:
    figure, axes = _axes(rows)
    axes.barh(
        range(len(rows)), [report.cost_ratio(row) for row in rows], color="#4878a8", height=0.6
    )
    for level, colour in (("floor", "#c03030"), ("goal", "#309030")):
        at = [(row["targets"][level], y) for y, row in enumerate(rows) if level in row["targets"]]
        if at:
            axes.scatter(*zip(*at, strict=True), marker="|", s=220, color=colour, label=level)
    axes.set_xlabel("server CPU per request, peer / node")
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def _latencies(path: Path, rows: list[dict[str, Any]]) -> None:
    figure, axes = _axes(rows)
    for side, label, colour, shift in (
        ("ours", "node", "#4878a8", 0.15),
        ("peer", "peer", "#d08030", -0.15),
    ):
        spots = [y + shift for y in range(len(rows))]
        p50, p99 = ([row[side][q] / 1e3 for row in rows] for q in ("p50_us", "p99_us"))
        axes.hlines(spots, p50, p99, color=colour, linewidth=4, label=label)
        axes.scatter(p50, spots, color=colour, s=36)
    axes.set_xscale("log")
    axes.set_xlabel("ms, from p50 (dot) to p99")
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def _axes(rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    axes.grid(axis="x", alpha=0.3)
    return figure, axes
