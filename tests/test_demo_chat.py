"""scripts/demo-chat does what it says, and fails if messages do not arrive once and in order."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "demo_chat.py"
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_chat", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ear:
    """Somebody who heard this."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name = name
        self.said = {"bob": texts}
        self._texts = texts

    def heard(self, _other: Ear) -> list[str]:
        return self._texts


@pytest.mark.readme
def test_the_demonstration_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--messages", "2"],
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
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    monkeypatch.setattr(demo, "PATIENCE_S", 0.0)
    monkeypatch.setattr(demo, "LOOK_S", 0.0)
    with pytest.raises(demo.Failed):
        demo.hears(Ear("bob", heard), Ear("alice", ["one", "two"]))


def test_it_fails_if_a_command_does(demo: ModuleType, tmp_path: Path) -> None:
    alice = demo.Person(tmp_path, "alice")
    with pytest.raises(demo.Failed, match="no node at"):
        alice.do("chat", "bob", typed="hi")
