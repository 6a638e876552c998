"""`millpond jobs limits`, `pause` and `resume`, and the options of `put`, as users run them."""

from __future__ import annotations

import json

import pytest

from tests.node.stream_commands import Run


@pytest.fixture
def scheme() -> str:
    return "tcp"


def test_limits_are_set_shown_and_cleared(run: Run, name: str) -> None:
    given = ("--rate", "100/m", "--burst", "10", "--key-concurrency", "1", "--ageing", "5m")
    told = run("jobs", "limits", name, *given, "--json")
    assert told.code == 0, told.err
    assert json.loads(told.out) == {
        "queue": name,
        "paused": False,
        "concurrency": None,
        "rate": "100/m, up to 10 at once",
        "key_concurrency": 1,
        "key_rate": None,
        "ageing_s": 300.0,
    }
    more = run("jobs", "limits", name, "--concurrency", "20", "--rate", "0")
    lines = dict(line.split() for line in more.out.decode().splitlines())
    assert (lines["concurrency"], lines["rate"], lines["key_concurrency"]) == ("20", "-", "1")
    cleared = json.loads(run("jobs", "limits", name, "--clear", "--json").out)
    assert not any(cleared[each] for each in ("concurrency", "rate", "key_concurrency", "key_rate"))
    for wrong in (("--rate", "5"), ("--burst", "3"), ("--concurrency", "x")):
        assert run("jobs", "limits", name, *wrong).code == 2


def test_a_paused_queue_is_told_as_such(run: Run, name: str) -> None:
    assert run("jobs", "pause", name).code == 0
    job = run("jobs", "put", name, "--priority", "9", "--limit-key", "alice", '"x"')
    listed = run("jobs", "queues", name)
    assert listed.out.decode().split() == ["1", "0", "0", "0", name, "(paused)"]
    counts = json.loads(run("jobs", "counts", name, "--json").out)
    assert (counts["ready"], counts["limited"], counts["paused"]) == (1, 0, True)
    shown = json.loads(run("jobs", "show", name, job.out.decode().strip(), "--json").out)
    assert (shown["priority"], shown["limit_key"]) == (9, "alice")
    assert json.loads(run("jobs", "resume", name, "--json").out) == {"queue": name, "paused": False}
    assert not json.loads(run("jobs", "queues", name, "--json").out)["paused"]
    assert run("jobs", "put", name, "--priority", "10", "1").code == 2


def test_a_job_that_does_not_start_in_time(run: Run, name: str) -> None:
    assert run("jobs", "put", name, "--start-within", "0.01", "1").code == 0
    run("jobs", "ls", name)
    while not (dead := run("jobs", "dead", "ls", name, "--json").out):
        pass
    assert json.loads(dead)["reason"] == "not started"


def test_jobs_move_and_dead_letters_are_selected_and_exported(run: Run, name: str) -> None:
    other = name + "2"
    for payload in ("1", '"x"'):
        assert run("jobs", "put", name, "--name", "send", payload).code == 0
    job = run("jobs", "put", name, "--name", "sign", "2").out.decode().strip()
    assert run("jobs", "move", name, other).code == 2
    assert run("jobs", "move", name, name, "--all").code == 2
    assert run("jobs", "move", name, other, "--task", "send").out == b"2\n"
    assert run("jobs", "move", name, other, job, "--json").out == b'{"count": 1}\n'
    assert json.loads(run("jobs", "counts", other, "--json").out)["ready"] == 3
    assert run("jobs", "put", name, "--name", "late", "--start-within", "0.01", "3").code == 0
    while not (exported := run("jobs", "dead", "export", name).out):
        pass
    dead = json.loads(exported)
    assert (dead["name"], dead["payload"], dead["reason"]) == ("late", 3, "not started")
    assert dead["died"]
    assert run("jobs", "dead", "export", name, "--older-than", "1h").out == b""
    assert run("jobs", "dead", "retry", name, "--error", "other").out == b"0\n"
    assert run("jobs", "dead", "rm", name, "--task", "late", "--all").code == 2
    assert run("jobs", "dead", "rm", name, "--task", "late", "--yes").out == b"1\n"
    assert run("jobs", "workers", name).out == b""
