"""Pictures of values over time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 10, 24
TICKS = 4
COLOUR = "#2563eb"


class Bar(NamedTuple):
    """A value over a span of time."""

    begin: float
    end: float
    value: float


class _Frame(NamedTuple):
    """The scale of a picture."""

    x_max: float
    y_max: float

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.x_max

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.y_max


def bars(values: Sequence[Bar], what: str) -> str:
    """A bar chart, with each bar as wide as its span of time."""
    frame = _frame([each.end for each in values], [each.value for each in values])
    drawn = "".join(
        f'<rect x="{frame.x(each.begin):.1f}" y="{frame.y(each.value):.1f}" '
        f'width="{max(1.0, frame.x(each.end) - frame.x(each.begin) - 1):.1f}" '
        f'height="{frame.y(0) - frame.y(each.value):.1f}" fill="{COLOUR}" opacity=".75"/>'
        for each in values
    )
    return _picture(frame, drawn, what)


def steps(values: Sequence[tuple[float, float]], what: str) -> str:
    """A step chart, with a dot at each sample."""
    frame = _frame([at for at, _ in values], [value for _, value in values])
    places = [(frame.x(at), frame.y(value)) for at, value in values]
    line = " ".join(
        f"{'H' if i else 'M'}{x:.1f}{f' V{y:.1f}' if i else f',{y:.1f}'}"
        for i, (x, y) in enumerate(places)
    )
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    drawn = f'<path d="{line}" fill="none" stroke="{COLOUR}" stroke-width="2"/>' if places else ""
    return _picture(frame, f'{drawn}<g fill="{COLOUR}">{dots}</g>', what)


def _frame(times: Sequence[float], values: Sequence[float]) -> _Frame:
    return _Frame(_step(times) * TICKS, _step(values) * TICKS)


def _step(values: Sequence[float]) -> float:
    """A round number for the distance of ticks."""
    least = max(0.0, *values, 0.0) / TICKS or 1.0
    size = 10.0 ** floor(log10(least))
    return next(size * each for each in (1, 2, 2.5, 5, 10) if size * each >= least * 0.9999)


def _picture(frame: _Frame, drawn: str, what: str) -> str:
    grid = ""
    for i in range(TICKS + 1):
        value, at = frame.y_max * i / TICKS, frame.x_max * i / TICKS
        y, x = frame.y(value), frame.x(at)
        grid += (
            f'<path d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.10g}</text>'
            f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{at:,.10g} s</text>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(what)}">'
        f"{grid}{drawn}</svg>"
    )
