"""`millpond events`: what happened at a node, also while one looks."""

from __future__ import annotations

import http.client
import json
import logging
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond import Config, Node
from millpond.actors.runtime.supervisor import contain
from millpond.node.events import EVENTS_MAX, TEXT_MAX, EventHandler, EventLog, log_as_events
from millpond.sync import connect
from tests.conformance.packets import framed, hello
from tests.node.cli.test_completion import PROGRAM
from tests.node.folders import flip, rows, segments, stopped
from tests.node.processes import Serving, command_here, environment, serving, started

HELLO = framed(hello(b"flood"))
TRIES = 50


@pytest.fixture
def node() -> Iterator[Serving]:
    with serving("--ws", "off", "--log-level", "error", "--http", "127.0.0.1:0") as opened:
        yield opened


def url(node: Serving) -> dict[str, str]:
    return environment(MILLPOND_CONNECT=node.urls["tcp"])


def events(node: Serving, *words: str) -> list[dict[str, Any]]:
    done = command_here("events", "--json", *words, env=url(node))
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(node: Serving, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    """The status of a request of HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port("http"), timeout=20)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_connections_and_their_ends_are_told_with_their_channel(node: Serving) -> None:
    with connect(node.urls["tcp"], "orders/1", role="producer") as channel:
        channel.put(b"x")
    found: list[dict[str, Any]] = []
    for _ in range(TRIES):  # the node sees the end of a connection soon
        if len(found) == 2:
            break
        found = [each for each in events(node) if each["fields"].get("channel") == "orders/1"]
    assert [each["event"] for each in found] == ["connected", "disconnected"]
    first, last = (each["fields"] for each in found)
    assert first["connection"] == last["connection"] and first["listener"] == "p2p"
    assert last["bytes"] > 0 and last["seconds"] >= 0
    text = command_here("events", "--event", "connected", env=url(node)).stdout.decode()
    assert "Z connected  connection=" in text and "channel=orders/1" in text
    assert "\\x1b" not in text and "disconnected" not in text


def test_n_are_the_last_ones(node: Serving) -> None:
    for name in ("a", "b", "c"):
        with connect(node.urls["tcp"], name, role="producer"):
            pass
    # The last one is this command's own connection.
    told = events(node, "-n", "2", "--event", "connected")
    assert [each["fields"]["channel"] for each in told] == ["c", "millpond!probe"]
    assert events(node, "-n", "0") == []


def test_new_ones_come_while_one_follows_until_ctrl_c(node: Serving) -> None:
    words = ("events", "-f", "-n", "0", "--event", "refused", "--json")
    with started(*words, env=url(node)) as following:
        assert following.stdout is not None
        for _ in range(TRIES):  # the follower is there once it and this command are
            if len(events(node, "--event", "connected")) > 1:
                break
        # A refusal that comes before it has read what there was is none of its own.
        for _ in range(TRIES):
            if select.select([following.stdout], [], [], 1.1)[0]:
                break
            assert ask(node, "GET", "/health", {"host": "evil.example"}) == 421
        told = json.loads(following.stdout.readline())
        assert told["fields"]["reason"] == "foreign host"
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 0


def test_a_new_owner_of_a_producer_is_told(node: Serving) -> None:
    text = {"content-type": "text/plain"}
    assert ask(node, "PUT", "/v1/stream/log", text) == 201
    for epoch in ("0", "1"):
        names = {"Producer-Id": "p", "Producer-Epoch": epoch, "Producer-Seq": "0"}
        assert ask(node, "POST", "/v1/stream/log", text | names, b"x") in (200, 204)
    (found,) = events(node, "--event", "taken over")
    assert found["fields"] == {"what": "producer", "name": "log", "times": 1}


def test_damage_of_the_data_folder_is_told_also_that_of_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(b"orders", rows(29))
    [segment] = [each for each in segments(folder) if b"message 12 " in each.read_bytes()]
    flip(segment, b"message 12 ")
    with serving("--ws", "off", "--data", str(folder), "--log-level", "error") as opened:
        first = events(opened, "--event", "damaged")[0]
    assert first["level"] == "error" and first["fields"]["name"] == "orders"


async def test_a_crash_is_an_event_with_its_error_whatever_the_level_of_the_log() -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    with log_as_events() as record:
        node = Node(config)
        record(node.events)
        async with node:
            await contain("connection/p2p", _fail)
        page = node.events.after(0)
    assert [(each.event, each.level, each.fields) for each in page.events] == [
        ("actor crashed", "error", {"name": "connection/p2p", "error": "ValueError: no luck"})
    ]
    assert not any(
        isinstance(each, EventHandler) for each in logging.getLogger("millpond").handlers
    )


async def _fail() -> None:
    raise ValueError("no luck")


def test_the_last_thousand_are_kept_and_a_reader_learns_how_many_it_missed() -> None:
    log = EventLog("run", lambda: 7.0)
    for number in range(1, EVENTS_MAX + 11):
        log.record("tick", {"number": number, "text": "x" * 2 * TEXT_MAX})
    page = log.after(3)
    assert (page.missed, page.more, page.events[0].number) == (7, True, 11)
    assert len(page.events[0].fields["text"]) == TEXT_MAX  # type: ignore[arg-type]
    seen = list(page.events)
    while page.more:
        page = log.after(seen[-1].number)
        assert page.missed == 0
        seen += page.events
    assert [each.number for each in seen] == [*range(11, EVENTS_MAX + 11)]
    assert log.after(seen[-1].number) == log.after(seen[-1].number, run="run")
    other = log.after(seen[-1].number, run="an earlier run")
    assert other.events[0].number == 11


def test_a_follower_says_what_it_missed_and_that_the_node_was_started_anew(tmp_path: Path) -> None:
    with serving("--ws", "off") as opened:
        address = opened.urls["tcp"].removeprefix("tcp://")
        env = url(opened)
        following = subprocess.Popen(
            [PROGRAM, "events", "-f", "--json"], env=env, stdout=subprocess.PIPE
        )
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["event"] == "connected"
        following.send_signal(signal.SIGSTOP)
        try:
            for _ in range(EVENTS_MAX // 2 + 1):
                with socket.create_connection(("127.0.0.1", opened.port("p2p"))) as client:
                    client.sendall(HELLO)
                    client.recv(1)
        finally:
            following.send_signal(signal.SIGCONT)
        assert "missed" in until(following, "missed")
    with serving("--ws", "off", "--p2p", address):
        until(following, "restarted")
        until(following, "connected")
        following.send_signal(signal.SIGINT)
        following.stdout.read()
        assert following.wait(60) == 0
    following.stdout.close()


def until(process: subprocess.Popen[bytes], event: str) -> str:
    """Read lines up to an event."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            return line.decode()
    raise AssertionError(f"no event {event}")
