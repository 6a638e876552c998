"""docs/guides/tls.md explains the reasons that a client and the log give."""

from __future__ import annotations

from pathlib import Path

from millpond.node.tls.errors import PLAIN, REASONS, VERIFY_CODES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "guides" / "tls.md").read_text("utf-8")


def test_every_reason_is_in_the_table() -> None:
    text = " ".join(PAGE.split())
    reasons = {reason for reason, _ in (*VERIFY_CODES.values(), *REASONS.values(), PLAIN)}
    assert {reason for reason in reasons if reason not in text} == set()
