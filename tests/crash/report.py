"""The report of a run, for people: a line for each figure, a column for each kind."""

from __future__ import annotations

from collections.abc import Mapping

from tests.crash import checker
from tests.crash import stream_history as stream_history
from tests.crash.checker import CheckResult
from tests.crash.stream_checker import StreamCheckResult

FAULTS = dict.fromkeys((*checker.FAULTS, *stream_history.FAULTS))
FIELDS = dict.fromkeys((*CheckResult.__struct_fields__, *StreamCheckResult.__struct_fields__))
NAMES = (*(name for name in FIELDS if name not in FAULTS and name != "examples"), *FAULTS)


def ledger(columns: Mapping[str, CheckResult | StreamCheckResult]) -> str:
    """The figures, what must be 0 last, and an example of each fault."""
    lines = [f"{'':<12}" + "".join(f"{title:>10}" for title in columns)]
    for name in NAMES:
        figures = "".join(f"{getattr(each, name, '-'):>10}" for each in columns.values())
        lines.append(f"{name:<12}{figures}{'   must be 0' if name in FAULTS else ''}")
    return "\n".join([*lines, *(text for each in columns.values() for text in each.examples)])
