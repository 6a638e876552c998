"""scripts/demo-chat does what it says, and fails if messages do not arrive once and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo_chat as demo
from scripts import demo_processes

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120.0


class Ear(demo.Person):
    """Somebody who heard this."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name = name
        self.said = {"bob": texts}
        self._texts = texts

    def heard(self, _other: demo.Person) -> list[str]:
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
    "heard",
    [["one", "two", "two"], ["two", "one"], ["one"], ["one", "three"]],
    ids=["twice", "out of order", "lost", "altered"],
)
def test_it_fails_if_a_message_comes_in_another_way(
    monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    monkeypatch.setattr(demo_processes, "PATIENCE_S", 0.0)
    monkeypatch.setattr(demo_processes, "LOOK_S", 0.0)
    with pytest.raises(demo_processes.Failed):
        demo.hears(Ear("bob", heard), Ear("alice", ["one", "two"]))


def test_it_fails_if_a_command_does(tmp_path: Path) -> None:
    alice = demo.Person(tmp_path, "alice")
    with pytest.raises(demo_processes.Failed, match="no node at"):
        alice.do("chat", "bob", typed="hi")
