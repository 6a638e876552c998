"""The report of a job: a self-contained page of HTML with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from millpond.pipeline.state.plot import Bar, bars, steps

SAMPLES_MAX = 720
ROWS_MAX = 100
_STYLE = """
body{font:15px system-ui,sans-serif;margin:2em auto;max-width:760px;color:#222;padding:0 1em}
h2{font-size:1em;margin:1.5em 0 .3em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.15em .9em .15em 0;text-align:right}th{font-weight:600}
tr:nth-child(odd) td{background:#f6f7f9}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#555}
"""


@dataclass(frozen=True)
class Sample:
    """A batch of the report; `lag`: records left at its end; `at`: its end in seconds."""

    batch: int
    records: int
    seconds: float
    lag: int
    rejected: int
    at: float = 0.0

    @property
    def per_s(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def began(self) -> float:
        """The begin of the batch in seconds after the start."""
        return max(0.0, self.at - self.seconds)


def with_sample(samples: Sequence[Sample], new: Sample) -> list[Sample]:
    """The samples with a new one; neighbours are joined when there are too many."""
    found = [*samples, new]
    if len(found) <= SAMPLES_MAX:
        return found
    old, rest = found[: SAMPLES_MAX // 2 * 2], found[SAMPLES_MAX // 2 * 2 :]
    return [_both(old[i], old[i + 1]) for i in range(0, len(old), 2)] + rest


def _both(one: Sample, other: Sample) -> Sample:
    return replace(
        other,
        records=one.records + other.records,
        seconds=one.seconds + other.seconds,
        rejected=one.rejected + other.rejected,
    )


def report_page(title: str, samples: Sequence[Sample]) -> str:
    """The report as HTML."""
    throughput = bars(
        [Bar(each.began, each.at, each.per_s) for each in samples], "records a second"
    )
    first = [(samples[0].began, float(samples[0].records + samples[0].lag))] if samples else []
    lag = steps([*first, *((each.at, float(each.lag)) for each in samples)], "records left")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{_totals(samples)}</p>"
        f"<h2>Records a second, batch by batch</h2>{throughput}"
        f"<h2>Records left, that were in the streams and not in the table</h2>{lag}"
        "<h2>Batches</h2><table><tr><th>batch</th><th>records</th><th>seconds</th>"
        "<th>records/s</th><th>left</th><th>rejected</th></tr>"
        f"{''.join(map(_row, samples[-ROWS_MAX:]))}</table></html>\n"
    )


def _totals(samples: Sequence[Sample]) -> str:
    if not samples:
        return "There was nothing to do."
    records, busy = sum(each.records for each in samples), sum(each.seconds for each in samples)
    rejected = sum(each.rejected for each in samples)
    return (
        f"{records:,} records, {rejected:,} of them rejected, in {samples[-1].at:,.1f} s "
        f"({busy:,.1f} s of them in batches: {records / busy if busy else 0:,.0f} records/s); "
        f"{samples[-1].lag:,} left at the end."
    )


def _row(each: Sample) -> str:
    cells = (
        str(each.batch),
        f"{each.records:,}",
        f"{each.seconds:.2f}",
        f"{each.per_s:,.0f}",
        f"{each.lag:,}",
        f"{each.rejected:,}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
