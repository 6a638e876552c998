"""Idempotent producers of Durable Streams, and forks that are made and deleted meanwhile, against
a node that is killed again and again: what was acknowledged is there, and nothing is twice."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread, Timer

from tests.node.processes import Serving, serving

KILLS = 5
PRODUCERS = 3
BATCH = 7
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
PATH = "/v1/stream/orders"


class Producer:
    """Appends `[id, n]`, each until it is acknowledged, whichever node answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self.duplicates = 0
        self.wrong: list[str] = []

    def run(self, address: str) -> None:
        """Append until the connection breaks."""
        connection = http.client.HTTPConnection(address, timeout=20)
        try:
            while not self.wrong:
                self._append(connection)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _append(self, connection: http.client.HTTPConnection) -> None:
        seq = self.acknowledged
        rows = [[self.name, seq * BATCH + each] for each in range(BATCH)]
        headers = {
            "content-type": "application/json",
            "producer-id": self.name,
            "producer-epoch": "0",
            "producer-seq": str(seq),
        }
        connection.request("POST", PATH, json.dumps(rows), headers)
        response = connection.getresponse()
        text = response.read().decode()
        if response.status not in (200, 204):
            self.wrong.append(f"{seq}: {response.status} {text}")
            return
        self.duplicates += response.status == 204
        self.acknowledged += 1


@dataclass(frozen=True)
class Fork:
    """The fork `name` has the first `at + sub` messages of its source, and one of its own."""

    name: str
    source: str
    at: int
    sub: int

    @property
    def own(self) -> list[object]:
        return [self.name, 0]


class Forker:
    """Makes forks of `orders` and of forks, and deletes some; each is asked for until the node
    says that it is so, whichever node that is."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._count = 0
        self._making: Fork | None = None
        self._deleting: Fork | None = None
        self.made: dict[str, Fork] = {PATH: Fork(PATH, "", 0, 0)}
        self.deleted: set[str] = set()
        self.wrong: list[str] = []

    @property
    def there(self) -> list[Fork]:
        return [each for each in self.made.values() if each.name not in (PATH, *self.deleted)]

    def run(self, address: str) -> None:
        """Until the connection breaks."""
        connection = http.client.HTTPConnection(address, timeout=20)
        try:
            while not self.wrong:
                is_for_deletion = bool(self.there) and self._rng.random() < 0.3
                if self._deleting is None and (self._making is not None or not is_for_deletion):
                    self._make(connection)
                else:
                    self._delete(connection)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _make(self, connection: http.client.HTTPConnection) -> None:
        if self._making is None:
            self._making = self._next(connection)
        fork = self._making
        headers = {"stream-forked-from": fork.source, "stream-fork-offset": offset(fork.at)}
        if fork.sub:
            headers["stream-fork-sub-offset"] = str(fork.sub)
        status, text = say(connection, "PUT", fork.name, json.dumps([fork.own]), headers)
        if status not in (200, 201):
            self.wrong.append(f"{fork}: {status} {text}")
        self.made[fork.name] = fork
        self._making = None

    def _next(self, connection: http.client.HTTPConnection) -> Fork:
        """An offset of `orders` is one between two appends."""
        self._count += 1
        forks = self.there
        is_nested = bool(forks) and self._rng.random() < 0.4
        source = self._rng.choice(forks).name if is_nested else PATH
        connection.request("HEAD", source)
        response = connection.getresponse()
        response.read()
        tail = int((response.headers["stream-next-offset"] or "").partition("_")[0])
        name = f"/v1/stream/fork{self._count}"
        if is_nested:
            return Fork(name, source, self._rng.randint(0, tail), 0)
        at = BATCH * self._rng.randint(0, tail // BATCH)
        return Fork(name, source, at, self._rng.randint(0, BATCH) if at < tail else 0)

    def _delete(self, connection: http.client.HTTPConnection) -> None:
        """A source that has forks becomes a tombstone."""
        if self._deleting is None:
            self._deleting = self._rng.choice(self.there)
        fork = self._deleting
        status, text = say(connection, "DELETE", fork.name)
        if status not in (204, 404, 410):
            self.wrong.append(f"{fork}: {status} {text}")
        self.deleted.add(fork.name)
        self._deleting = None

    def content(self, fork: Fork, orders: list[object]) -> list[object]:
        """The records of a fork."""
        if fork.name == PATH:
            return orders
        source = self.content(self.made[fork.source], orders)
        return [*source[: fork.at + fork.sub], fork.own]

    def check(self, node: Serving, orders: list[object]) -> None:
        """Every fork that was acknowledged is whole; once all are gone, so are the tombstones."""
        assert self.wrong == []
        for fork in self.there:
            status, body = request(node, "GET", fork.name)
            if fork == self._deleting and status != 200:
                continue
            assert status == 200 and json.loads(body) == self.content(fork, orders), fork
        for fork in self.there:
            status = request(node, "DELETE", fork.name)[0]
            assert status == 204 or fork == self._deleting
        assert request(node, "DELETE", PATH)[0] == 204
        unsure = {self._making.name} if self._making is not None else set()
        for name in unsure:
            request(node, "DELETE", name)
        gone_by = time.monotonic() + 10
        for name in (*self.made, *unsure):
            while (status := request(node, "GET", name)[0]) == 410 and time.monotonic() < gone_by:
                time.sleep(0.05)
            assert status == 404, name


def offset(sequence: int) -> str:
    return f"{sequence:016d}_{0:016d}"


def say(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    return response.status, response.read().decode()


@contextmanager
def node_in(folder: Path) -> Iterator[Serving]:
    with serving("--data", str(folder), *QUIET) as node:
        yield node


def request(node: Serving, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(node.ready["listeners"]["http"], timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_producers_are_heard_once_and_forks_are_whole_whenever_the_node_dies(
    tmp_path: Path,
) -> None:
    rng = Random(8)
    forker = Forker(Random(9))
    producers = [Producer(f"p{each}") for each in range(PRODUCERS)]
    for _ in range(KILLS):
        with node_in(tmp_path) as node:
            status, _ = request(node, "PUT", PATH, **{"content-type": "application/json"})
            assert status in (200, 201)
            timer = Timer(rng.uniform(0.2, 0.9), node.process.kill)
            address = node.ready["listeners"]["http"]
            threads = [Thread(target=each.run, args=(address,)) for each in (*producers, forker)]
            for each in (*threads, timer):
                each.start()
            for each in (*threads, timer):
                each.join(30)
    assert [each.wrong for each in producers] == [[]] * PRODUCERS
    with node_in(tmp_path) as node:
        status, body = request(node, "GET", PATH)
        assert status == 200
        found = json.loads(body)
        assert len(forker.made) > KILLS and forker.deleted
        forker.check(node, found)
    for producer in producers:
        mine = [n for name, n in found if name == producer.name]
        assert mine == list(range(len(mine)))
        least = producer.acknowledged * BATCH
        assert len(mine) in (least, least + BATCH), "the last one may be kept, and not told"
        assert producer.acknowledged > KILLS


def test_what_was_closed_and_forked_is_so_after_a_kill(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        text = {"content-type": "text/plain"}
        assert request(node, "PUT", PATH, **text)[0] == 201
        fork = {"stream-forked-from": PATH}
        assert request(node, "PUT", "/v1/stream/fork", **fork)[0] == 201
        closing = {
            "stream-closed": "true",
            "producer-id": "p",
            "producer-epoch": "3",
            "producer-seq": "0",
        }
        assert request(node, "POST", PATH, **closing)[0] == 204
        assert request(node, "DELETE", PATH)[0] == 204
        node.process.kill()
    with node_in(tmp_path) as node:
        assert request(node, "GET", PATH)[0] == 410
        assert request(node, "GET", "/v1/stream/fork")[0] == 200
        assert request(node, "DELETE", "/v1/stream/fork")[0] == 204
        assert request(node, "GET", PATH)[0] == 404
