"""`millpond subscription`: states, lag and last errors, as text and JSON, page by page."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator

import pytest

from millpond.node.admin import SUBSCRIPTIONS_MAX
from tests.node.processes import Serving, serving
from tests.node.stream_commands import OFF, Run, objects


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving(*OFF, "--http", "127.0.0.1:0", limit_s=90.0) as ready:
        yield ready


def ask(node: Serving, method: str, path: str, content: object = None) -> None:
    connection = http.client.HTTPConnection(dict(node.listeners)["http"], timeout=20)
    try:
        headers = {"content-type": "application/json"}
        body = None if content is None else json.dumps(content)
        connection.request(method, f"/v1/stream/{path}", body, headers)
        response = connection.getresponse()
        assert response.status < 300, response.read()
    finally:
        connection.close()


def test_a_subscription_is_deleted(node: Serving, run: Run) -> None:
    ask(node, "PUT", "signals", [])
    made = {"type": "pull-wake", "pattern": "gone/**", "wake_stream": "signals"}
    ask(node, "PUT", "__ds/subscriptions/gone", made)
    told = run("subscription", "rm", "gone")
    assert told == (0, b"", "deleted the subscription 'gone'\n")
    told = run("subscription", "rm", "gone")
    assert told.code == 4 and "no subscription 'gone'" in told.err
    ask(node, "PUT", "__ds/subscriptions/gone", made)
    told = run("subscription", "rm", "gone", "--json")
    assert objects(told) == [{"id": "gone", "deleted": True}] and told.err == ""
    assert run("subscription", "ls") == (0, b"", "")


def test_subscriptions(node: Serving, run: Run, scheme: str) -> None:
    assert run("subscription", "ls") == (0, b"", "")
    told = run("subscription", "show", "pool")
    assert told.code == 4 and "no subscription 'pool'" in told.err
    ask(node, "PUT", "wakes", [])
    pool = {"type": "pull-wake", "pattern": "jobs/**", "streams": ["x"], "wake_stream": "wakes"}
    ask(node, "PUT", "__ds/subscriptions/pool", pool)
    [row] = objects(run("subscription", "ls", "--json"))
    assert (row["state"], row["streams"], row["lag"], row["error"]) == ("idle", 1, 0, "")
    ask(node, "PUT", "jobs/1", [1, 2, 3])
    [row] = objects(run("subscription", "show", "pool", "--json"))
    assert row.pop("created_at").endswith("Z")
    assert row == {
        "id": "pool",
        "state": "woken",
        "type": "pull-wake",
        "target": "wakes",
        "pattern": "jobs/**",
        "streams": 2,
        "hidden": 0,
        "pending": 1,
        "lag": 3,
        "generation": 1,
        "holder": "",
        "lease_until": None,
        "retry_at": None,
        "failures": 0,
        "is_failed": False,
        "error": "",
    }
    ask(node, "POST", "__ds/subscriptions/pool/claim", {"worker": "w\u202e1"})
    shown = run("subscription", "show", "pool").out.decode().splitlines()
    rows = dict(line.split(None, 1) for line in shown if len(line.split(None, 1)) == 2)
    assert rows["state"] == "claimed" and rows["holder"] == "w\\x202e1"

    # A receiver that does not exist.
    hook = {"type": "webhook", "pattern": "jobs/*", "webhook": {"url": "http://127.0.0.1:1/"}}
    ask(node, "PUT", "__ds/subscriptions/hook", hook)
    ask(node, "POST", "jobs/1", [4])
    limit = time.monotonic() + 60
    while not (found := objects(run("subscription", "ls", "--failed", "--json"))):
        assert time.monotonic() < limit
        time.sleep(0.05)
    [row] = found
    assert (row["id"], row["lag"], row["type"]) == ("hook", 1, "webhook") and row["failures"] >= 1
    assert row["error"]
    lines = run("subscription", "ls").out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["subscription", "hook", "pool"]
    assert lines[1].endswith(row["error"]) and lines[2].split()[1] == "claimed"
    for each in ("hook", "pool"):
        ask(node, "DELETE", f"__ds/subscriptions/{each}")
    ask(node, "DELETE", "jobs/1")
    ask(node, "DELETE", "wakes")


def test_more_than_a_page(node: Serving, run: Run) -> None:
    names = [f"s{number:03}" for number in range(SUBSCRIPTIONS_MAX + 1)]
    wanted = {"type": "pull-wake", "pattern": "none/*", "wake_stream": "wakes"}
    for each in names:
        ask(node, "PUT", f"__ds/subscriptions/{each}", wanted)
    assert [row["id"] for row in objects(run("subscription", "ls", "--json"))] == names
    for each in names:
        ask(node, "DELETE", f"__ds/subscriptions/{each}")
    assert run("subscription", "ls").out == b""
