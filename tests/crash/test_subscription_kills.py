"""Subscriptions of a node that is killed again and again: every record that was acknowledged to its
writer is shown to a worker, and no cursor goes back."""

from __future__ import annotations

import http.client
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Lock, Thread, Timer
from typing import Any

from tests.node.processes import serving
from tests.ports import free_port

KILLS = 4
QUIET = ("--p2p", "off", "--ws", "off")
STREAMS = ("e/1", "e/2", "e/3")


class Worker:
    """Reads what is new at each call, and answers that it has done everything; at times it is out
    of order, and at times it calls back."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = dict.fromkeys(STREAMS, 0)
        """The records of each stream that were shown, from the first one on."""
        self.wrong: list[str] = []
        self.generation = 0
        self.calls = 0
        self.lock = Lock()
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = worker.handle(json.loads(body))
                answer = b'{"done":true}'
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def handle(self, call: dict[str, Any]) -> int:
        with self.lock:
            self.calls += 1
            if call["generation"] < self.generation:
                self.wrong.append(f"generation {call['generation']} after {self.generation}")
            self.generation = call["generation"]
            if self.calls % 7 == 3:
                return 503
            for each in call["streams"]:
                acked = 0 if each["acked_offset"] == "-1" else int(each["acked_offset"][:16])
                tail = int(each["tail_offset"][:16])
                if acked > self.seen[each["path"]]:
                    self.wrong.append(f"{each} is acknowledged and was not seen")
                self.seen[each["path"]] = max(self.seen[each["path"]], tail)
        return 200


def ask(address: str, method: str, path: str, content: object = None) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        body = None if content is None else json.dumps(content)
        headers = {"content-type": "application/json"}
        connection.request(method, f"/v1/stream/{path}", body, headers)
        response = connection.getresponse()
        text = response.read()
        offset = response.getheader("stream-next-offset") or ""
        return response.status, json.loads(text) if text else None, offset
    finally:
        connection.close()


def append(address: str, rng: Random, tails: dict[str, int]) -> None:
    """Append until the node is gone; `tails` are what it acknowledged."""
    try:
        while True:
            name = rng.choice(STREAMS)
            _, _, offset = ask(address, "POST", name, [1])
            tails[name] = int(offset[:16])
            time.sleep(0.005)
    except (OSError, http.client.HTTPException):
        return


def test_no_wake_is_lost(tmp_path: Path) -> None:
    worker, rng = Worker(), Random(3)
    tails = dict.fromkeys(STREAMS, 0)
    url = f"http://127.0.0.1:{worker.server.server_port}/"
    options = (*QUIET, "--http", f"127.0.0.1:{free_port()}", "--data", str(tmp_path))
    wanted = {"type": "webhook", "pattern": "e/*", "webhook": {"url": url}, "lease_ttl_ms": 1000}
    for kill in range(KILLS + 1):
        with serving(*options) as node:
            address = node.ready["listeners"]["http"]
            status, _, _ = ask(address, "PUT", "__ds/subscriptions/s", wanted)
            assert status == (200 if kill else 201)
            for name in STREAMS:
                ask(address, "PUT", name, [])
            if kill < KILLS:
                Timer(0.3 + 0.5 * rng.random(), node.process.kill).start()
                append(address, rng, tails)
                continue
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                _, found, _ = ask(address, "GET", "__ds/subscriptions/s")
                acked = {each["path"]: int(each["acked_offset"][:16]) for each in found["streams"]}
                ends = {name: int(ask(address, "GET", name)[2][:16]) for name in STREAMS}
                if all(acked.get(name) == end for name, end in ends.items()):
                    break
                time.sleep(0.1)
            else:
                raise AssertionError(f"{found} is behind {ends}")
            assert all(ends[name] >= tail for name, tail in tails.items())
            assert worker.seen == ends
    assert not worker.wrong and sum(tails.values()) > KILLS
    worker.server.shutdown()
    worker.server.server_close()
