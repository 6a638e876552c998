"""Clients in children of `fork`: with os.fork, multiprocessing, and gunicorn's preload."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from millpond.node.config import Config
from millpond.node.node import Node

LONG_S = 60
PROGRAM = Path(__file__).with_name("forking.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture
def listeners() -> Iterator[dict[str, str]]:
    local = "127.0.0.1:0"
    config = Config(p2p=local, ws="off", s3p=local, rustlog="off", http="off", drain_timeout_s=0.5)

    async def serve() -> Node:
        return Node(config)

    with start_blocking_portal() as portal:
        node = portal.call(serve)
        with portal.wrap_async_context_manager(node):
            yield node.listeners


def run(program: str, listeners: dict[str, str]) -> str:
    command = [sys.executable, str(PROGRAM), program]
    command += [f"tcp://{listeners['p2p']}", listeners["s3p"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_blocking_client_connects_anew_in_each_child(listeners: dict[str, str]) -> None:
    assert run("blocking", listeners) == (
        "put 2 3\nstreams 1\ns3p 1\nqueue 0\nstream ClientForked\nnext 4\nclose None\n"
        "parent 4 1 1\nclosed ClientForked\n"
    )


def test_a_child_leaves_the_block_of_its_parent(listeners: dict[str, str]) -> None:
    assert run("with_block", listeners) == "7\n2\n"


def test_multiprocessing_forks(listeners: dict[str, str]) -> None:
    assert run("processes", listeners) == "[0, 0, 0] 3\n"


def test_an_async_client_raises_at_once_and_opens_in_the_child(listeners: dict[str, str]) -> None:
    assert run("asynchronous", listeners) == (
        "use asyncio 8 of 8 raise\nuse trio 8 of 8 raise\n"
        "reopen asyncio 2 1\nreopen trio 3 2\n"
        "close asyncio closed\nclose trio closed\n"
        "parent 3 b'of a child'\n"
    )


def test_a_handshake_that_is_under_way_is_not_kept_open_by_a_child(
    listeners: dict[str, str],
) -> None:
    assert run("handshake", listeners) == "rest b''\n"


APPLICATION = """
from millpond import sync

channel = sync.connect({url!r}, "hits").open()
channel.put(b"of the master")


def app(environ, start_response):
    channel.put(b"of a worker")
    start_response("200 OK", [("content-type", "text/plain")])
    return [str(len(channel.list())).encode()]
"""


def test_gunicorn_loads_the_application_before_it_forks(
    listeners: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("gunicorn")
    url = f"tcp://{listeners['p2p']}"
    (tmp_path / "application.py").write_text(APPLICATION.format(url=url))
    log = tmp_path / "log"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
    command += ["--bind", "127.0.0.1:0", "--log-file", str(log), "application:app"]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        port = _port(server, log)
        answers = [_get(port) for _ in range(6)]
    finally:
        server.terminate()
        server.wait(LONG_S)
    assert answers == [str(hit) for hit in range(2, 8)]


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    """The port that it listens on, once it does."""
    for _ in range(LONG_S * 20):
        found = (
            re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", log.read_text("utf-8"))
            if (log.exists())
            else None
        )
        if found:
            return int(found[1])
        try:
            server.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text("utf-8") if log.exists() else "gunicorn did not start")


def _get(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_S)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text
    finally:
        connection.close()
