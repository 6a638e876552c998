"""The published command line of S2, unmodified, against a node (docs/reference/s2.md)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.documents import matches
from tests.node.processes import serving
from tests.suites.guide import SHOWN_NODE, programs

LIMIT_S = 120.0
BASIN = "trial-basin"
GRACE_S = 1
BENCH_S, REST_S = 4, 1
RECORD_BYTES = 8192


class S2:
    """The program, and the node that it is pointed at."""

    def __init__(self, program: str, url: str, home: Path) -> None:
        self._program = program
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "S2_ACCESS_TOKEN": "ignored",
            "S2_ACCOUNT_ENDPOINT": url,
            "S2_BASIN_ENDPOINT": url,
        }

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (self._program, *words),
            input=given,
            env=self._environment,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            text=True,
        )

    def told(self, *words: str, given: str = "") -> str:
        """The output of a command that succeeds."""
        done = self.run(*words, given=given)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def records(self, stream: str, *words: str) -> list[dict[str, object]]:
        done = self.run("read", stream, *words, "--format", "json")
        assert done.returncode == 0, (words, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]


def program() -> str:
    """The program's path. Skips the test where it is not installed."""
    found = shutil.which("s2") or shutil.which(str(Path.home() / ".cargo" / "bin" / "s2"))
    if found is None:
        pytest.skip("no program s2 here (cargo install s2-cli): the command line of S2 is not run")
    return found


@pytest.fixture
def s2(tmp_path: Path) -> Iterator[S2]:
    """With a basin, and a node on disk."""
    name = program()
    settings = tmp_path / "millpond.toml"
    settings.write_text(f"s2_trim_grace_s = {GRACE_S}\n")
    quiet = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
    folder = ("--config", str(settings), "--data", str(tmp_path / "data"))
    with serving(*quiet, *folder, limit_s=LIMIT_S) as node:
        found = S2(name, f"http://{node.ready['listeners']['http']}", tmp_path)
        found.told("create-basin", BASIN)
        yield found


def numbers(records: Sequence[dict[str, object]]) -> list[object]:
    return [each["seq_num"] for each in records]


def figures(text: str, name: str) -> tuple[int, int]:
    """Bytes and records of a line of `s2 bench`."""
    found = re.findall(rf"{name}: .*\((\d+) bytes, (\d+) records in", text)
    assert found, text
    size, count = found[-1]
    return int(size), int(count)


@pytest.mark.parametrize("rate", ["1", "4"])
def test_bench_reads_what_it_writes_and_ends(s2: S2, rate: str) -> None:
    """Its records have microseconds since its start as timestamps, so they are as if from 1970
    (S2X-60); its stream is deleted once it is empty, and its catch-up is a session with `wait=0`
    (S2X-75)."""
    times = ("-d", f"{BENCH_S}s", "-w", f"{REST_S}s", "-b", str(RECORD_BYTES), "-t", rate)
    text = s2.told("bench", BASIN, *times)
    size, count = figures(text, "Write")
    assert count >= 16 and size == count * RECORD_BYTES
    assert figures(text, "Read") == figures(text, "Catchup") == (size, count)
    assert f"Ack Latency Statistics (n={count})" in text
    assert f"End-to-End Latency Statistics (n={count})" in text


def test_append_read_tail_and_conditions(s2: S2) -> None:
    stream = f"s2://{BASIN}/notes"
    s2.told("create-stream", stream)
    assert "0..3" in s2.told("append", stream, given="one\ntwo\nthree\n")
    assert s2.told("check-tail", stream).startswith("3 @ ")
    assert s2.run("read", stream, "-s", "0", "-n", "10").stdout == "one\ntwo\nthree\n"
    assert s2.run("tail", stream, "-n", "2").stdout == "two\nthree\n"
    assert "3..4" in s2.told("append", stream, "-m", "3", given="four\n")
    assert s2.run("append", stream, "-m", "3", given="five\n").returncode == 1
    s2.told("fence", stream, "mine")
    assert "fencing token mismatch" in s2.run("append", stream, "-f", "x", given="six\n").stderr
    s2.told("append", stream, "-f", "mine", given="seven\n")
    assert numbers(s2.records(stream, "-s", "0", "-n", "100")) == list(range(6))


def test_old_timestamps_trims_and_a_new_age(s2: S2) -> None:
    """S2X-60, S2X-61, S2X-72."""
    stream = f"s2://{BASIN}/old"
    s2.told("create-stream", stream, "--retention-policy", "7d")
    old = "".join(json.dumps({"timestamp": at, "body": "x"}) + "\n" for at in (1000, 2000, 3000))
    s2.told("append", stream, "--format", "json", given=old)
    assert numbers(s2.records(stream, "--timestamp", "0", "--until", "2500")) == [0, 1]
    s2.told("reconfigure-stream", stream, "--retention-policy", "1s")
    s2.told("trim", stream, "1")
    wanted: list[object] = [1, 2, 3]
    for _ in range(100):  # a trim takes effect behind its grace
        found = numbers(s2.records(stream, "-s", "0", "-n", "10"))
        if found == wanted:
            break
    assert found == wanted
    assert "1s" in s2.told("get-stream-config", stream)


def test_streams_and_basins_are_listed_and_deleted(s2: S2) -> None:
    for name in ("a", "b/c"):
        s2.told("create-stream", f"s2://{BASIN}/{name}")
    assert BASIN in s2.told("list-basins")
    listed = s2.told("list-streams", f"s2://{BASIN}")
    assert f"s2://{BASIN}/a" in listed and f"s2://{BASIN}/b/c" in listed
    s2.told("delete-stream", f"s2://{BASIN}/a")
    assert s2.run("read", f"s2://{BASIN}/a", "-s", "0", "-n", "1").returncode == 1
    s2.told("delete-basin", BASIN)
    assert "basin_not_found" in s2.run("check-tail", f"s2://{BASIN}/b/c").stderr


def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    commands, shown = programs("sh")["s2-cli"]
    folder = Path(program()).parent
    quiet = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
    with serving(*quiet, limit_s=LIMIT_S) as node:
        done = subprocess.run(
            ("sh", "-e"),
            input=commands.replace(SHOWN_NODE, node.ready["listeners"]["http"]),
            env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            text=True,
        )
    assert done.returncode == 0 and matches(done.stdout, shown), done.stdout
