"""`millpond work --processes --reload --queues`, as users run it against a real node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from urllib.request import urlopen

import pytest

from millpond.node.cli.jobs.source_files import SourceFiles
from millpond.node.cli.jobs.work import _queues
from tests.fork_server import ForkedCommand
from tests.node.processes import ROOT, Serving, environment
from tests.node.stream_commands import Run
from tests.ports import free_port

LIMIT_S = 300.0
POLL_S = 0.05
TASKS = """
import os
import time
from pathlib import Path

def note(payload):
    with Path("noted").open("a") as file:
        file.write(f"{os.getpid()} {payload}\\n")

def nap(seconds):
    note("begins")
    time.sleep(seconds)
    note("ended")

def meet(payload):
    note("begins")
    while Path("noted").read_text().count("begins") < 2:
        time.sleep(0.05)
    note("ended")

def die_once(payload):
    if not Path("died").exists():
        Path("died").touch()
        os._exit(9)
    note(payload)
"""


@pytest.fixture
def scheme() -> str:
    return "tcp"


class Workers:
    """The parent process of workers, in the folder of their module; stderr is in a file."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def told(self) -> str:
        return (self._folder / "stderr").read_text()

    @property
    def noted(self) -> list[list[str]]:
        file = self._folder / "noted"
        return [each.split() for each in file.read_text().splitlines()] if file.exists() else []

    def until(self, condition: Callable[[], object]) -> None:
        ends_at = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < ends_at and self.process.poll() is None, self.told
            time.sleep(POLL_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


class Folder:
    """A folder with a module, where workers are started."""

    def __init__(self, node: Serving, path: Path) -> None:
        self._node = node
        self.path = path
        (path / "tasks.py").write_text(TASKS)

    def replace(self, name: str, text: str) -> None:
        """Save a file as editors do."""
        saved = self.path / f"{name}.new"
        saved.write_text(text)
        saved.replace(self.path / name)

    @contextmanager
    def start(self, *words: str) -> Iterator[Workers]:
        variables = {"MILLPOND_CONNECT": self._node.urls["tcp"], "PYTHONPATH": str(ROOT)}
        with (
            (self.path / "stderr").open("w") as stderr,
            ForkedCommand(
                "work",
                *words,
                cwd=self.path,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            timer = Timer(LIMIT_S, process.kill)
            timer.start()
            try:
                yield Workers(process, self.path)
            finally:
                timer.cancel()
                timer.join()
                if process.poll() is None:
                    process.kill()


@pytest.fixture
def folder(node: Serving, tmp_path: Path) -> Folder:
    return Folder(node, tmp_path)


def workers_of(run: Run, queue: str) -> list[str]:
    lines = run("jobs", "workers", queue, "--json").out.splitlines()
    return sorted(json.loads(each)["name"] for each in lines)


def test_workers_share_the_jobs_and_end_with_their_parent(
    run: Run, folder: Folder, name: str
) -> None:
    port = free_port()
    shape = ("--processes", "2", "--name", "w", "--concurrency", "1", "--metrics")
    with folder.start(
        "tasks:meet", "--queues", f"{name}:3", *shape, f"127.0.0.1:{port}"
    ) as workers:
        workers.until(lambda: workers_of(run, name) == ["w-1", "w-2"])
        for _ in range(2):
            assert run("jobs", "put", name, "1").code == 0
        workers.until(lambda: len(workers.noted) >= 2)
        assert workers.end() == 0  # not before the jobs have
        assert "work 1: ready" in workers.told and "work 2: ready" in workers.told
        assert f"127.0.0.1:{port}/" in workers.told
        assert f"127.0.0.1:{port + 1}/" in workers.told
    ended = [pid for pid, what in workers.noted if what == "ended"]
    assert len(set(ended)) == len(ended) == 2
    assert str(workers.process.pid) not in ended
    for pid in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_worker_that_dies_is_started_again(run: Run, folder: Folder, name: str) -> None:
    port = free_port()
    words = ("tasks:die_once", "--queue", name, "--processes", "2", "--backoff", "0.1")
    assert run("jobs", "put", name, "1").code == 0
    with folder.start(*words, "--metrics", f"127.0.0.1:{port}") as workers:
        workers.until(lambda: workers.noted and workers.told.count(": ready") >= 3)
        workers.until(lambda: len(workers_of(run, name)) == 2)
        for number in range(2):
            with urlopen(f"http://127.0.0.1:{port + number}/metrics", timeout=30) as found:
                assert b"millpond_worker_running" in found.read()
        assert workers.end(signal.SIGINT) == 0
    ended = re.findall(r"worker process ended: number=\d how=(.*);.*again in 1 s", workers.told)
    assert ended == ["exit code 9"]


HANGS = """
from millpond.jobs import task

@task(timeout=0.3, on_hang="kill", attempts=2)
def hang(payload):
    note(payload)
    if Path("noted").read_text().count(payload) == 1:
        while True:
            time.sleep(60)

@task(timeout=0.3, attempts=1)
def fill(payload):
    time.sleep(600)
"""


def test_a_worker_whose_handler_hangs_ends_with_a_code_of_its_own_and_is_replaced(
    run: Run, folder: Folder, name: str
) -> None:
    (folder.path / "tasks.py").write_text(TASKS + HANGS)
    assert run("jobs", "put", name, '"first"').code == 0
    with folder.start("tasks:hang", "--queue", name) as workers:
        assert workers.process.wait(LIMIT_S) == 7
    assert "did not end after its time-out; the process is to be replaced" in workers.told
    assert "and the handler hung" in workers.told
    assert run("jobs", "put", name, '"second"').code == 0
    with folder.start("tasks:hang", "--queue", name, "--processes", "2") as workers:
        workers.until(lambda: len(workers.noted) == 4)
        workers.until(lambda: workers.told.count(": ready") == 3)
        assert workers.end() == 0
    assert "worker process ended, as a handler hung: number=" in workers.told
    assert sorted(word for _, word in workers.noted) == ["first"] * 2 + ["second"] * 2


def test_a_worker_whose_threads_all_hang_ends_and_does_not_wait_for_them(
    run: Run, folder: Folder, name: str
) -> None:
    (folder.path / "tasks.py").write_text(TASKS + HANGS)
    assert run("jobs", "put", name, "1").code == 0
    words = ("tasks:fill", "--queue", name, "--concurrency", "1", "--json")
    with folder.start(*words) as workers:
        assert workers.process.wait(LIMIT_S) == 7
    last = json.loads(workers.told.splitlines()[-1])
    assert (last["code"], last["exit_status"]) == ("hung", 7)


def test_ctrl_c_of_a_terminal_reaches_all_and_drains_them(
    run: Run, folder: Folder, name: str
) -> None:
    assert run("jobs", "put", name, "1").code == 0
    with folder.start("tasks:nap", "--queue", name, "--processes", "2") as workers:
        workers.until(lambda: workers.noted)
        os.kill(int(workers.noted[0][0]), signal.SIGINT)
        assert workers.end(signal.SIGINT) == 0
    assert [what for _, what in workers.noted] == ["begins", "ended"]


def test_a_second_signal_returns_the_jobs_at_once(run: Run, folder: Folder, name: str) -> None:
    assert run("jobs", "put", name, "60").code == 0
    with folder.start("tasks:nap", "--queue", name, "--processes", "2") as workers:
        workers.until(lambda: workers.noted and len(workers_of(run, name)) == 2)
        workers.process.send_signal(signal.SIGTERM)
        # One of the two has no job, and ends.
        workers.until(lambda: len(workers_of(run, name)) <= 1)
        assert workers.end() == 1
    counts = json.loads(run("jobs", "counts", name, "--json").out)
    assert (counts["ready"], counts["leased"]) == (1, 0)


def test_a_signal_to_the_whole_group_drains(run: Run, folder: Folder, name: str) -> None:
    """A service manager sends it to each process, and the parent passes it on."""
    assert run("jobs", "put", name, "2").code == 0
    with folder.start("tasks:nap", "--queue", name, "--processes", "2") as workers:
        workers.until(lambda: workers.noted and len(workers_of(run, name)) == 2)
        worker = int(workers.noted[0][0])
        os.kill(worker, signal.SIGTERM)
        workers.until(lambda: len(workers_of(run, name)) <= 1)
        assert workers.end() == 0
    assert [what for _, what in workers.noted] == ["begins", "ended"]


def test_workers_that_wait_for_the_node_end_with_their_parent(folder: Folder) -> None:
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    text = TASKS + "\nPath('pid').write_text(str(os.getpid()))\n"
    folder.replace("tasks.py", text)
    words = ("--queue", "q", "--processes", "2", "--wait", "600", "--connect", nowhere)
    with folder.start("tasks:nap", *words) as workers:
        file = folder.path / "pid"
        workers.until(lambda: file.exists() and file.read_text())
        pid = int(file.read_text())
        workers.process.kill()
        workers.process.wait(LIMIT_S)
        ends_at = time.monotonic() + 60
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < ends_at:
                os.kill(pid, 0)
                time.sleep(POLL_S)


def test_an_error_of_a_reload_is_told_once(run: Run, folder: Folder, name: str) -> None:
    words = ("--queue", name, "--reload", "--processes", "3")
    with folder.start("tasks:note", *words) as workers:
        workers.until(lambda: workers.told.count(": ready") == 3)
        folder.replace("tasks.py", TASKS + "\nbroken = \n")
        workers.until(lambda: "waits for a change" in workers.told)
        workers.until(lambda: workers_of(run, name) == [])
        folder.replace("tasks.py", TASKS)
        workers.until(lambda: workers.told.count(": ready") == 6)
        assert workers.end() == 0
    assert workers.told.count("tasks.py changed") == 1
    assert workers.told.count("SyntaxError") == 1


def test_workers_without_a_parent_drain(run: Run, folder: Folder, name: str) -> None:
    assert run("jobs", "put", name, "1").code == 0
    with folder.start("tasks:nap", "--queue", name, "--processes", "2") as workers:
        workers.until(lambda: workers.noted and len(workers_of(run, name)) == 2)
        workers.process.kill()
        workers.process.wait(LIMIT_S)
        ends_at = time.monotonic() + LIMIT_S
        while workers_of(run, name):
            assert time.monotonic() < ends_at
            time.sleep(POLL_S)
    assert [what for _, what in workers.noted] == ["begins", "ended"]


def test_a_burst_ends_when_nothing_is_due(run: Run, folder: Folder, name: str) -> None:
    for payload in "123":
        assert run("jobs", "put", name, payload).code == 0
    with folder.start("tasks:note", "--queue", name, "--processes", "2", "--burst") as workers:
        assert workers.process.wait(LIMIT_S) == 0
    assert sorted(payload for _, payload in workers.noted) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nowhere", "--processes", "3"), 2, "no module 'nowhere'"),
        (
            ("tasks:note", "--queue", "q", "--processes", "3", "--connect", "tcp://127.0.0.1:1"),
            1,
            "no node",
        ),
        (("tasks:note", "--queue", "q", "--reload", "--burst"), 2, "--burst ends"),
        (("tasks:note", "--queue", "q", "--processes", "129"), 2, "at most 128"),
        (("tasks:note", "--queues", "a:3,b:0"), 2, "weight"),
        (
            ("tasks:note", "--queue", "q", "--processes", "2", "--metrics", "127.0.0.1:65535"),
            2,
            "2 ports",
        ),
    ],
)
def test_what_keeps_workers_from_starting_is_told_once(
    folder: Folder, words: tuple[str, ...], code: int, told: str
) -> None:
    with folder.start(*words) as workers:
        assert workers.process.wait(LIMIT_S) == code
    assert workers.told.count(told) == 1


def test_changed_modules_are_loaded_again(run: Run, folder: Folder, name: str) -> None:
    (folder.path / "words.py").write_text("WORD = 'one'\n")
    (folder.path / "tasks.py").write_text(f"from words import WORD\n{TASKS}\n" + SAYS)
    with folder.start("tasks:say", "--queue", name, "--reload") as workers:
        workers.until(lambda: workers.told.count(": ready") == 1)
        assert run("jobs", "put", name, "1").code == 0
        workers.until(lambda: len(workers.noted) == 1)
        folder.replace("words.py", "WORD = \n")
        workers.until(lambda: "words.py changed" in workers.told)
        workers.until(lambda: "waits for a change" in workers.told)
        assert "SyntaxError" in workers.told
        folder.replace("words.py", "WORD = 'second'\n")
        workers.until(lambda: workers.told.count(": ready") == 2)
        assert run("jobs", "put", name, "2").code == 0
        workers.until(lambda: len(workers.noted) == 2)
        assert workers.end() == 0
    assert [word for _, word in workers.noted] == ["one", "second"]


SAYS = """
def say(payload):
    note(WORD)
"""


def test_the_first_load_with_reload_may_fail(folder: Folder, name: str) -> None:
    with folder.start("tasks:late", "--queue", name, "--reload") as workers:
        workers.until(lambda: "waits for a change" in workers.told)
        folder.replace("tasks.py", TASKS + "\ndef late(payload):\n    note(payload)\n")
        workers.until(lambda: ": ready" in workers.told)
        assert workers.end() == 0


def test_queues_with_weights() -> None:
    assert _queues("a:3,b:1,c") == ["a=3", "b=1", "c=1"]
    for wrong in ("a:", "a:b", "a:0", "a,a", ""):
        with pytest.raises(ArgumentTypeError):
            _queues(wrong)


def test_a_change_during_the_load_and_a_new_file_are_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1")
    sources = SourceFiles(tmp_path)
    module.write_text("x = 11")
    assert sources.changed() is None, "no module of this program"
    sources.failed(ValueError())
    assert sources.changed() == str(module)
    assert sources.changed() is None
    (tmp_path / "new.py").write_text("")
    assert sources.changed() == str(tmp_path / "new.py")
    module.unlink()
    assert sources.changed() is None, "an editor may be about to replace it"
