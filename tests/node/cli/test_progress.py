"""Progress is shown to who sits in front of a long command, and to nobody else."""

from __future__ import annotations

import io

import pytest

from millpond.node.cli.progress import CLEAR, Progress


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def shown(
    monkeypatch: pytest.MonkeyPatch, *, err: bool, out: bool, first_s: float, beside: bool = False
) -> str:
    screen = Screen(err)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", Screen(out))
    monkeypatch.setattr("millpond.node.cli.progress.FIRST_S", first_s)
    with Progress("read", beside_output=beside) as progress:
        progress.add(1500, 3 * 2**20)
    return screen.getvalue()


def test_it_is_shown_on_a_terminal_and_wiped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, err=True, out=False, first_s=0)
    assert text.startswith(f"{CLEAR}1,500 records read, 3.0 MiB, ") and text.endswith(CLEAR)


def test_it_is_kept_from_files_from_output_and_from_short_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, err=False, out=False, first_s=0) == ""
    assert shown(monkeypatch, err=True, out=True, first_s=0) == ""
    assert shown(monkeypatch, err=True, out=False, first_s=60) == ""
    assert shown(monkeypatch, err=True, out=True, first_s=0, beside=True) != ""
