"""Attacks on the memory of a node: its memory stays within the budget, and others are served."""

from __future__ import annotations

import pytest

from tests.attacks.memory import ATTACKS, BUDGET_BYTES, SLACK_BYTES, run

QUICK = (
    "RustLog: 60 half frames of 10 MiB",
    "HTTP/1.1: 100 times five unread GETs of 4 MiB",
    "HTTP/2: 3 times 100 GETs of 4 MiB, window 0",
)
"""In each run; the rest in the full one."""


@pytest.mark.wire
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else (pytest.mark.full,)) for each in ATTACKS],
)
def test_an_attack_takes_no_more_memory_than_the_budget(name: str) -> None:
    outcome = run(ATTACKS[name])
    grown = outcome.peak - outcome.before
    assert grown <= BUDGET_BYTES + SLACK_BYTES, f"{grown >> 20} MiB"
