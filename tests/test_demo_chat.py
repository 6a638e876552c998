"""scripts/demo-chat: it succeeds, and fails if messages do not arrive once and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo_chat as demo
from scripts import demo_processes

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0
"""A bound against a hang; a loaded machine takes less."""


class Recipient(demo.Person):
    """A person with these received messages."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name = name
        self.sent = {"bob": texts}
        self._texts = texts

    def received(self, _other: demo.Person) -> list[str]:
        return self._texts


@pytest.mark.readme
def test_the_demonstration_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo_chat", "--messages", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: every message arrived once and in order")
    assert "kill -9" in done.stdout


@pytest.mark.parametrize(
    "received",
    [["one", "two", "two"], ["two", "one"], ["one"], ["one", "three"]],
    ids=["twice", "out of order", "lost", "altered"],
)
def test_it_fails_if_messages_arrive_otherwise(
    monkeypatch: pytest.MonkeyPatch, received: list[str]
) -> None:
    monkeypatch.setattr(demo_processes, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(demo_processes, "POLL_S", 0.0)
    with pytest.raises(demo_processes.Failed):
        demo.check_received(Recipient("bob", received), Recipient("alice", ["one", "two"]))


def test_it_fails_if_a_command_fails(tmp_path: Path) -> None:
    alice = demo.Person(tmp_path, "alice")
    with pytest.raises(demo_processes.Failed, match="no node at"):
        alice.run("chat", "bob", typed="hi")
