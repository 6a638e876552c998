"""Findings of checks, and their output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millpond.node.cli.exit_codes import ExitCode
from millpond.node.cli.output import print_json, print_line


class Finding(NamedTuple):
    """A finding: `level` is ok, warn or fail; `text` says what to do about warnings and
    failures."""

    check: str
    level: str
    text: str


def print_findings(findings: Iterable[Finding], *, as_json: bool) -> ExitCode:
    """Print each finding as it comes; FAILURE if a check failed."""
    worst = ExitCode.OK
    for finding in findings:
        if as_json:
            print_json(finding._asdict())
        else:
            print_line(f"{finding.level:5} {finding.check:14} {finding.text}")
        if finding.level == "fail":
            worst = ExitCode.FAILURE
    return worst
