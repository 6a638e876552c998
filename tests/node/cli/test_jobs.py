"""`millpond jobs` and `millpond work` as users run them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.request import urlopen

import pytest

from millpond import sync
from millpond.jobs import Step, chain
from millpond.node.cli.jobs.options import due, jsonable, queue_name, summary
from millpond.node.jobs.payload import JobMessage, encode_job
from millpond.node.jobs.requests import JobInfo
from tests.fork_server import ForkedCommand
from tests.node.cli.terminals import in_terminal
from tests.node.processes import ROOT, Serving, environment
from tests.node.stream_commands import Run

LIMIT_S = 300.0
TASKS = """
import time
from contextlib import asynccontextmanager
from millpond.jobs import Job
from millpond.jobs import Reject
from millpond.jobs import task

def echo(payload, job):
    print(job.attempt, payload, flush=True)
    return payload

def reports(payload, job):
    job.log("begun")
    job.progress(0.5, "half")
    return payload

def steps(count, job):
    for number in range(count):
        job.progress(number)
    return "did " + str(count)

def fail(payload):
    raise ValueError("no such " + payload)

async def sleepy(payload):
    import anyio
    print("asleep", flush=True)
    await anyio.sleep(payload)
    print("awake", flush=True)

def stubborn(payload):
    print("deaf", flush=True)
    time.sleep(payload)

async def told(job, call):
    value = await call()
    print("told", job.state, value, flush=True)
    return value

@asynccontextmanager
async def pool():
    print("open", flush=True)
    yield "pool"
    print("closed", flush=True)

@task(queue="mail-tasks")
async def send(to: str) -> None:
    print("send", to, flush=True)

@task(queue="mail-tasks", attempts=1)
async def refuse(to: str) -> None:
    raise Reject("not today")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


class Work:
    """`millpond work` in the folder of tasks."""

    def __init__(self, node: Serving, folder: Path) -> None:
        self._node = node
        self._folder = folder

    @contextmanager
    def start(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        variables = {"MILLPOND_CONNECT": self._node.urls["tcp"], "PYTHONPATH": str(ROOT)}
        with ForkedCommand(
            "work",
            *words,
            cwd=self._folder,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            timer = Timer(LIMIT_S, process.kill)
            timer.start()
            try:
                yield process
            finally:
                timer.cancel()
                timer.join()
                if process.poll() is None:
                    process.kill()

    def run(self, *words: str) -> tuple[int, str, str]:
        with self.start(*words) as process:
            out, err = process.communicate()
            return process.returncode, out, err


@pytest.fixture
def work(node: Serving, folder: Path) -> Work:
    return Work(node, folder)


@pytest.fixture
def scheme() -> str:
    return "tcp"


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_jobs_are_put_and_worked_on(run: Run, work: Work, name: str) -> None:
    put = run("jobs", "put", name, '{"to": "alice"}')
    assert put.code == 0 and put.out.strip().isdigit()
    assert run("put", f"jobs/{name}", "plain").code == 0
    code, out, err = work.run("tasks:echo", "--queue", name, "--burst", "--concurrency", "1")
    assert code == 0 and "ready" in err
    assert out.splitlines() == ["1 {'to': 'alice'}", "1 b'plain'"]
    assert run("list", f"jobs/{name}").out == b""


def test_a_lifespan_and_middleware_of_the_module(run: Run, work: Work, name: str) -> None:
    assert run("jobs", "put", name, '"x"').code == 0
    words = ("--lifespan", "pool", "--middleware", "told", "--queue", name, "--burst")
    code, out, err = work.run("tasks:echo", *words)
    assert code == 0, err
    assert out.splitlines() == ["open", "1 x", "told pool x", "closed"]
    code, _, err = work.run("tasks:echo", "--lifespan", "nothing", "--queue", name)
    assert code == 2 and "module 'tasks' has no function 'nothing'" in err


def test_log_lines_clear_the_line_of_status(
    run: Run, node: Serving, folder: Path, name: str
) -> None:
    assert run("jobs", "put", name, '"x"').code == 0
    url, path = node.urls["tcp"], f"{folder}:{ROOT}"
    words = ("work", "tasks:fail", "--queue", name, "--attempts", "1")
    with in_terminal(*words, variables={"MILLPOND_CONNECT": url, "PYTHONPATH": path}) as terminal:
        terminal.wait_for("1 dead")
        terminal.interrupt()
    logged = [each for each in terminal.written.splitlines() if "WARNING" in each]
    assert logged
    assert all(each.rpartition("\x1b[K")[2][:4].isdigit() for each in logged), logged


def test_flows_are_shown_retried_and_cancelled(run: Run, node: Serving, name: str) -> None:
    with sync.Queue(node.urls["tcp"], name) as queue:
        flow = str(queue.put_flow(chain(Step("a", 1), Step("b"))))
    shown = run("jobs", "flow", "show", name, flow).out.decode()
    assert "state    running" in shown and "after 0" in shown
    listed = json.loads(run("jobs", "flow", "ls", name, "--json").out)
    assert (listed["id"], listed["steps"], listed["ended_steps"]) == (flow, 2, 0)
    assert run("jobs", "flow", "result", name, flow, "--timeout", "0.2").code == 3
    assert run("jobs", "flow", "cancel", name, flow).code == 0
    told = run("jobs", "flow", "result", name, flow)
    assert told.code == 1 and "cancelled" in told.err
    assert json.loads(run("jobs", "flow", "show", name, flow, "--json").out)["state"] == "cancelled"
    assert run("jobs", "flow", "retry", name, flow).code == 0
    assert "running" in run("jobs", "flow", "ls", name).out.decode()
    assert run("jobs", "flow", "show", name, "17").code == 4


def test_a_result_is_printed_by_id(run: Run, work: Work, name: str) -> None:
    job = run("jobs", "put", name, '{"to": "alice"}', "--keep", "1h").out.decode().strip()
    told = run("jobs", "result", name, job)
    assert told.code == 3 and "it is ready" in told.err
    ran = work.run("tasks:reports", "--queue", name, "--burst", "--json")
    assert ran[0] == 0 and "done" in ran[1], ran
    told = run("jobs", "result", name, job, "--wait", "--timeout", "20")
    assert (told.code, told.out) == (0, b'{"to": "alice"}\n')
    shown = json.loads(run("jobs", "show", name, job, "--json").out)
    assert (shown["state"], shown["result"]) == ("done", {"to": "alice"})
    assert (shown["progress"], shown["text"], shown["logs"]) == (0.5, "half", ["begun"])
    told = run("jobs", "result", name, "17")
    assert told.code == 4 and "no result of it is kept" in told.err


def test_a_file_has_a_job_in_each_line(run: Run, name: str, tmp_path: Path) -> None:
    lines = tmp_path / "jobs.jsonl"
    lines.write_text('{"to": "alice"}\n\n17\n')
    assert run("jobs", "put", name, "--file", str(lines), "--task", "send").out == b"2\n"
    told = run("jobs", "put", name, "--file", str(lines), "--json", "--due", "1h")
    assert told.out.decode() == '{"count": 2}\n'
    listed = run("jobs", "ls", name).out.decode().splitlines()
    assert [each.rpartition("  ")[2] for each in listed[:2]] == ['send {"to":"alice"}', "send 17"]
    lines.write_text("1\n2\nthree\n")
    told = run("jobs", "put", name, "--file", str(lines))
    assert told.code == 2 and "line 3" in told.err
    assert run("jobs", "put", name, "--file", str(lines), "--unique", "a").code == 2
    assert run("jobs", "put", name, "--file", str(tmp_path / "none")).code == 4
    counted = run("jobs", "counts", name).out.decode().split()
    assert counted[:4] == ["ready", "2", "delayed", "2"]


def test_each_line_is_a_job(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    reading, writing = os.pipe()
    os.write(writing, b'1\n\n"two"\n')
    os.close(writing)
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        told = run("jobs", "put", name, "--lines", "--json")
    finally:
        os.dup2(saved, 0)
        os.close(reading)
        os.close(saved)
    rows = [json.loads(each) for each in told.out.splitlines()]
    assert told.code == 0 and len(rows) == 2 and not rows[0]["existing"]
    assert len(run("list", f"jobs/{name}").out.split()) == 2


def test_a_result_is_printed_and_a_failure_is_exit_code_1(run: Run, work: Work, name: str) -> None:
    with work.start("tasks:steps", "--queue", name) as process:
        told = run("jobs", "put", name, "3", "--wait", "--timeout", "20")
        assert (told.code, json.loads(told.out)) == (0, "did 3")
        assert told.err.split() == ["0", "1", "2"]
        told = run("jobs", "put", name, '"x"', "--wait", "--attempts", "1", "--timeout", "20")
        assert told.code == 1 and "TypeError" in told.err
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    told = run("jobs", "put", name, "3", "--wait", "--timeout", "0.3")
    assert told.code == 3 and told.out == b""


def test_a_module_of_tasks_works_on_the_queues_they_name(run: Run, work: Work) -> None:
    run("jobs", "put", "mail-tasks", "--name", "send", '"alice"')
    run("jobs", "put", "mail-tasks", "--name", "refuse", '"bob"')
    run("jobs", "put", "mail-tasks", "--name", "send", "17")
    code, out, err = work.run("tasks", "--burst", "--json")
    rows = [json.loads(each) for each in out.splitlines() if each.startswith("{")]
    assert code == 0 and "send alice" in out
    assert sorted((row["task"], row["what"]) for row in rows) == [
        ("refuse", "rejected"),
        ("send", "done"),
        ("send", "rejected"),
    ]
    assert "not today" in err and "payload" in err


def test_a_failure_shows_where_the_handler_failed(run: Run, work: Work, name: str) -> None:
    run("jobs", "put", name, '"user"', "--attempts", "1")
    code, _, err = work.run("tasks:fail", "--queue", name, "--burst")
    assert code == 0 and "ValueError: no such user" in err and "in fail" in err
    assert "perform.py" not in err and "asyncio" not in err
    job = run("jobs", "ls", name, "--state", "dead").out.decode().split()[0]
    shown = run("jobs", "show", name, job).out.decode()
    assert "attempt 1: rejected" in shown and "  Traceback (most" in shown and "in fail" in shown
    (entry,) = json.loads(run("jobs", "show", name, job, "--json").out)["history"]
    assert entry["traceback"].endswith("ValueError: no such user")


def test_a_worker_serves_attempts_and_durations_by_task(run: Run, work: Work) -> None:
    run("jobs", "put", "mail-tasks", '"ann"', "--name", "send")
    run("jobs", "put", "mail-tasks", '"bob"', "--name", "refuse")
    with work.start("tasks", "--metrics", "127.0.0.1:0", "--no-history") as process:
        assert process.stderr is not None
        told = ""
        while "metrics at " not in told:
            told = process.stderr.readline()
            assert told
        assert line(process) == "send ann"
        url = told.split()[-1]
        wanted = {("send", "done"), ("refuse", "rejected")}
        end, seen = time.monotonic() + LIMIT_S, ""
        while time.monotonic() < end:
            with urlopen(url) as answer:
                seen = answer.read().decode()
            counted = re.findall(
                r'attempts_total{outcome="(\w+)",queue="mail-tasks",task="(\w+)"} 1\.0', seen
            )
            if {(task, outcome) for outcome, task in counted} == wanted:
                break
        else:
            raise AssertionError(seen)
        assert 'attempt_seconds_bucket{le="+Inf",queue="mail-tasks",task="send"} 1.0' in seen
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    code, _, err = work.run("tasks", "--metrics", "nowhere")
    assert code == 2 and "--metrics" in err


def test_a_signal_drains_and_a_second_one_does_not_wait(run: Run, work: Work, name: str) -> None:
    run("jobs", "put", name, "0.5")
    with work.start("tasks:sleepy", "--queue", name) as process:
        assert line(process) == "asleep"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "awake" and process.wait(10) == 0
    run("jobs", "put", name, "60")
    with work.start("tasks:stubborn", "--queue", name) as process:
        assert line(process) == "deaf"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 1
    assert len(run("list", f"jobs/{name}").out.split()) == 1


def test_a_worker_that_is_killed_loses_no_job(run: Run, work: Work, name: str) -> None:
    run("jobs", "put", name, "60")
    with work.start("tasks:sleepy", "--queue", name) as process:
        assert line(process) == "asleep"
        process.kill()
    with work.start("tasks:echo", "--queue", name) as process:
        assert line(process) == "2 60"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("work", "nowhere:f", "--queue", "q"), "no module 'nowhere'"),
        (("work", "json:nothing", "--queue", "q"), "has no 'nothing'"),
        (("work", "json", "--queue", "q"), "has no tasks"),
        (("work", "json:loads"), "needs a queue"),
        (("work", "json:loads", "--queue", "q=0"), "weight"),
        (("jobs", "put", "q", "hello"), "not JSON"),
        (("jobs", "put", "q!dead", "1"), "`!`"),
        (("jobs", "put", "q", "1", "--due", "soon"), "is no time"),
        (("jobs", "put", "q", "1", "--wait", "--unique", "x"), "--wait"),
        (("jobs", "dead", "purge", "q"), "--all"),
        (("jobs",), "COMMAND"),
    ],
)
def test_what_cannot_be_is_exit_code_2(run: Run, words: tuple[str, ...], told: str) -> None:
    answer = run(*words)
    assert answer.code == 2 and told in answer.err


def test_without_a_node_it_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("jobs", "put", "q", "1"), ("work", "json:loads", "--queue", "q")):
        answer = run(*words, "--connect", "tcp://127.0.0.1:1")
        assert answer.code == 1 and "no node at" in answer.err


def test_times() -> None:
    assert due("90") == 90 and due("1h30m") == 5400 and due("+0.5s") == 0.5
    moment: Any = due("2027-01-31T08:00:00+01:00")
    assert moment.timestamp() == 1801378800


def test_a_line_about_a_job_is_one_short_line() -> None:
    """Control characters in a producer's payload do not reach the terminal."""
    for payload in ("\x1b[2J" * 100, b"\xff\n\x00", {"a": "b" * 300}, [None, 1.5]):
        data = encode_job(JobMessage(payload, "send"))
        text = summary(JobInfo(1, "ready", size=len(data), data=data))
        assert len(text) <= 60 and text.isprintable()
    assert summary(JobInfo(1, "ready")) == "..."
    assert jsonable({"a": b"x"}) == {"a": "eA=="} and queue_name("mail") == "mail"
