"""Attacks on the memory of a node: that of its whole process stays below the budget, 100 MiB,
and what each connection has that is not counted; others are served. Then it is given back."""

from __future__ import annotations

import pytest

from tests.attacks.memory import BUDGET_BYTES, CONNECTION_BYTES, MIB, SLACK_BYTES, run
from tests.attacks.table import ALL

QUICK = (
    "RustLog: 60 half frames of 10 MiB",
    "HTTP/1.1: 3,000 half heads of 72 KiB",
    "S3P over TLS: 2,500 half handshakes of 131 KB",
    "S3P over TLS: 100 times 20 unread READs of 4 MiB",
)
"""In each run; the rest in the full one."""

GIVEN_BACK = (
    "P2P: 60 half packets of 8 MiB",
    "WebSocket: 60 half messages of 8 MiB",
    "S3P over TLS: 60 half APPENDs of 8 MiB",
    "RustLog: 60 half frames of 10 MiB",
    "HTTP/1.1: 60 half bodies of 16 MiB",
    "HTTP/2: 60 times 64 stalled uploads",
)
"""The memory of these goes back to the system when the attackers are gone: one of each listener."""
KEPT_BYTES = 48 * MIB
"""Memory that is not worth giving back (32 MiB), and gaps between blocks that are in use."""
FREED_S = 60.0
"""The bytes of the attackers are read first, in turns, and refused after 5 s."""


@pytest.mark.wire
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else (pytest.mark.full,)) for each in ALL],
)
def test_an_attack_takes_no_more_memory_than_the_budget(name: str) -> None:
    is_given_back = name in GIVEN_BACK
    freed_s = FREED_S if is_given_back else 0.0
    outcome = run(ALL[name], freed_s=freed_s, kept_bytes=KEPT_BYTES)
    bound = BUDGET_BYTES + SLACK_BYTES + outcome.connections * CONNECTION_BYTES
    assert outcome.peak <= bound, f"{outcome.peak >> 20} MiB"
    if is_given_back:
        assert outcome.after <= outcome.before + KEPT_BYTES, f"{outcome.after >> 20} MiB"
