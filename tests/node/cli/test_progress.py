"""Progress is shown to who sits in front of a long command, and to nobody else."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.node.cli.progress import CLEAR, Progress
from tests.node.cli.terminals import in_terminal
from tests.node.processes import serving


class Screen(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@contextmanager
def pipe_of_lines() -> Iterator[int]:
    """A pipe with one exported message."""
    reading, writing = os.pipe()
    os.write(
        writing,
        b'{"channel": "a", "id": "1", "key": "1", "ttl": 9, "expires_at": 9e9, "data": "x"}\n',
    )
    os.close(writing)
    yield reading
    os.close(reading)


def shown(
    monkeypatch: pytest.MonkeyPatch, *, err: bool, out: bool, first_s: float, beside: bool = False
) -> str:
    screen = Screen(err)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout", Screen(out))
    monkeypatch.setattr("millpond.node.cli.progress.FIRST_S", first_s)
    with Progress("read", beside_output=beside) as progress:
        progress.add(1500, 3 * 2**20)
    return screen.getvalue()


def test_it_is_shown_on_a_terminal_and_wiped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, err=True, out=False, first_s=0)
    assert text.startswith(f"{CLEAR}1,500 records read, 3.0 MiB, ") and text.endswith(CLEAR)


def test_what_is_left_is_known_of_a_number_and_of_a_file(tmp_path: Path) -> None:
    known = Progress("exported", what="message", total=10_000)
    assert known.text(0.0) == "0 messages of 10,000 exported, 0%"
    known.add(2500, 2**20)
    assert known.text(2.0) == "2,500 messages of 10,000 exported, 1.0 MiB, 1,250/s, 25%, 6 s left"
    assert known.text(300.0).endswith("25%, 15m00s left")
    known.add(7500, 0)
    assert known.text(8.0) == "10,000 messages of 10,000 exported, 1.0 MiB, 1,250/s, 100%"
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)
    fd = os.open(file, os.O_RDONLY)
    try:
        os.read(fd, 200)
        some = Progress("put", what="message", source=fd)
        os.read(fd, 200)
        some.add(1, 0)
        assert some.text(4.0) == "1 message put, 0/s, 25%, 12 s left"
    finally:
        os.close(fd)
    assert Progress("read", source=-1).text(1.0) == "0 records read, 0/s"


def test_it_fits_the_terminal_and_is_plain_without_colours() -> None:
    words = ("import", "-", "--connect", "tcp://127.0.0.1:1")
    with pipe_of_lines() as stdin, in_terminal(*words, stdin=stdin, columns=20) as shown:
        assert shown.end() == 1
    assert "no node at 127.0.0.1:1" in shown.written and CLEAR not in shown.written


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_long_command_shows_it_on_a_terminal(no_color: str) -> None:
    """`put --lines` of a pipe that stays open; its ids go to a file."""
    with serving("--ws", "off") as node:
        env = {"MILLPOND_CONNECT": node.urls["tcp"], "NO_COLOR": no_color}
        reading, writing = os.pipe()
        with (
            Path(os.devnull).open("wb") as ids,
            in_terminal(
                "put",
                "--lines",
                "logs",
                stdin=reading,
                stdout=ids.fileno(),
                variables=env,
                columns=24,
            ) as shown,
        ):
            os.close(reading)
            for number in range(600):
                os.write(writing, b"line %d\n" % number)
                if "messages put" in shown.written:
                    break
                shown.poll(0.05)
            os.close(writing)
            assert shown.end() == 0
    assert CLEAR in shown.written and "messages put" in shown.written
    assert ("\x1b[2m" in shown.written) is not bool(no_color)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.written).split(CLEAR)
    assert all(len(line) < 24 for line in lines)


def test_it_is_kept_from_files_from_output_and_from_short_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, err=False, out=False, first_s=0) == ""
    assert shown(monkeypatch, err=True, out=True, first_s=0) == ""
    assert shown(monkeypatch, err=True, out=False, first_s=60) == ""
    assert shown(monkeypatch, err=True, out=True, first_s=0, beside=True) != ""
