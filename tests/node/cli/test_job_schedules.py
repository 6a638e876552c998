"""`millpond jobs schedule` and `millpond jobs queues` as users run them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.node.stream_commands import Run


@pytest.fixture
def scheme() -> str:
    return "tcp"


def schedules(run: Run, queue: str) -> list[dict[str, Any]]:
    told = run("jobs", "schedule", "ls", queue, "--json")
    assert told.code == 0, told.err
    return [json.loads(each) for each in told.out.splitlines()]


def test_a_schedule_is_made_shown_paused_run_and_removed(run: Run, name: str) -> None:
    made = run(
        *("jobs", "schedule", "add", name, "report", "0 7 1 1 *", '{"to": "alice"}'),
        *("--tz", "Europe/Berlin", "--task", "send", "--missed", "all", "--attempts", "3"),
    )
    assert made.code == 0 and made.out.decode().endswith("-01-01T06:00:00+00:00\n")
    assert run("jobs", "schedule", "add", name, "tidy", "--every", "1h30m").code == 0
    report, tidy = schedules(run, name)
    assert report | {"next": None} == {
        "name": "report",
        "cron": "0 7 1 1 *",
        "tz": "Europe/Berlin",
        "missed": "all",
        "paused": False,
        "next": None,
        "last": None,
        "last_job": None,
        "jobs": 0,
        "ttl": 0,
        "task": "send",
        "payload": {"to": "alice"},
    }
    assert (tidy["every_s"], tidy["missed"], tidy["task"]) == (5400.0, "one", None)
    job = run("jobs", "schedule", "run-now", name, "report")
    assert job.code == 0
    shown = run("jobs", "show", name, job.out.decode().strip(), "--json")
    fields = json.loads(shown.out)
    assert (fields["name"], fields["payload"], fields["headers"]["schedule"]) == (
        "send",
        {"to": "alice"},
        "report",
    )
    assert run("jobs", "schedule", "pause", name, "tidy").code == 0
    assert b"paused" in run("jobs", "schedule", "ls", name).out
    assert run("jobs", "schedule", "resume", name, "tidy").code == 0
    assert run("jobs", "schedule", "rm", name, "tidy", "--yes").code == 0
    assert [each["name"] for each in schedules(run, name)] == ["report"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["add", "Q", "bad", "0 7 * *"], 2, "not a cron expression"),
        (["add", "Q", "bad", "0 7 * * *", "--tz", "Mars"], 2, "no such time zone: 'Mars'"),
        (["add", "Q", "bad"], 2, "give a cron expression, or --every"),
        (["add", "Q", "bad", "0 7 * * *", "{}", "--every", "5m"], 2, "either CRON or --every"),
        (["add", "Q", "bad", "--every", "10ms"], 2, "shortest interval"),
        (["show", "Q", "none"], 4, "there is no schedule 'none' of queue"),
        (["rm", "Q", "none", "--yes"], 4, "there is no schedule 'none' of queue"),
        (["run-now", "Q", "none"], 4, "there is no schedule 'none' of queue"),
    ],
)
def test_a_mistake_is_told(run: Run, name: str, words: list[str], code: int, told: str) -> None:
    result = run("jobs", "schedule", *(name if each == "Q" else each for each in words))
    assert result.code == code
    assert told in result.err


def test_queues_are_listed_with_their_jobs_and_dead_letters(run: Run, name: str) -> None:
    assert run("jobs", "put", name, "1").code == 0
    assert run("jobs", "put", name, "2", "--due", "1h").code == 0
    assert run("put", "no-queue", "x").code == 0
    told = run("jobs", "queues", f"{name}*", "--json")
    assert [json.loads(each) for each in told.out.splitlines()] == [
        {"queue": name, "jobs": 2, "leased": 0, "dead": 0, "workers": 0, "paused": False}
    ]
    assert run("jobs", "queues", f"{name}*").out.split() == [*b"2 0 0 0".split(), name.encode()]
    assert run("jobs", "queues", "nothing-is-called-so").out == b""
