"""The table of the results of many seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.sim.nodes.runner import Outcome

COLUMNS = (
    *("world", "seeds", "virtual h", "messages", "again", "jobs", "records", "mail"),
    *("faults", "findings", "s"),
)
PUTS, JOBS, RECORDS, MAIL = "receipt", "jobbegins", "appended", "mailread"


class Row:
    """The row of one kind of world, or of all."""

    def __init__(self) -> None:
        self.seeds = 0
        self.findings = 0
        self.virtual_s = self.real_s = 0.0
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.findings += bool(outcome.findings)
        self.virtual_s += outcome.virtual_s
        self.real_s += outcome.real_s
        self.counts += outcome.counts
        self.injected += outcome.injected

    def cells(self, name: str) -> tuple[str, ...]:
        """As text."""
        counts = [self.counts[each] for each in (PUTS, "again", JOBS, RECORDS, MAIL)]
        return (
            name,
            f"{self.seeds:,}",
            f"{self.virtual_s / 3600:,.1f}",
            *(f"{count:,}" for count in counts),
            f"{self.injected.total():,}",
            str(self.findings),
            f"{self.real_s:,.1f}",
        )


class Table:
    """Filled seed by seed."""

    def __init__(self) -> None:
        self.all = Row()
        self._kinds: dict[str, Row] = {}

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.all.add(outcome)
        self._kinds.setdefault(outcome.kind, Row()).add(outcome)

    def text(self) -> str:
        """The table, and how often each fault was injected."""
        rows = [COLUMNS, *(self._kinds[kind].cells(kind) for kind in sorted(self._kinds))]
        injected = ", ".join(f"{name} {count:,}" for name, count in self.all.injected.most_common())
        return f"{aligned([*rows, self.all.cells('all')])}\n\nfaults: {injected or 'none'}"


def aligned(rows: Iterable[tuple[str, ...]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    rows = list(rows)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
