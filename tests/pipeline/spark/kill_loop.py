"""Kill the pipeline again and again, and see what is left:

    python -m tests.pipeline.spark.kill_loop [--kills N] [--seed S] [--minutes M] [--folder DIR]

A producer appends records all the time. Three queries of one Spark read them: a stream is copied
into another one by the sink, and the state job keeps a table, with a change feed, in each format.
SIGKILL comes to the driver, its Java, a Python process of Spark or the node, in a random order, and
to the node inside a publication, by itself. After each kill every query has to go on. After
`--minutes` no more kills come. In the end the copy has each record once, and tables and folded
feeds are what a pass over the stream gives.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.formats import FORMATS, existing_feed, table_in
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess
from tests.pipeline.spark.publishing_node import KILL_AT

INSIDE = "node inside a publication"
VICTIMS = ("driver", "java", "python", "python", "node", "node", INSIDE, INSIDE)
"""Those who start quickly die twice as often."""
STEPS_MAX = 40
KEYS = 300
ROWS = 100
APPEND_EVERY_S = 0.5
WAIT_MAX_S = 1.5
PATIENCE_S = 600.0
POLL_S = 0.3


class Stuck(Exception):
    """Something did not go on in time."""


class Wrong(Exception):
    """Something is lost, doubled or invented."""


class Producer(threading.Thread):
    """A producer of records; what it has appended for sure is in `appended`."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._rng = Random(seed)
        self._ended = threading.Event()
        self.appended = 0

    def run(self) -> None:
        """Append until `end`, also over an unreachable node."""
        while not self._ended.wait(APPEND_EVERY_S):
            numbers = range(self.appended, self.appended + ROWS)
            with suppress(PipelineError):
                self._node.fill("in", [b"%d" % number for number in numbers])
                self._node.fill("state", [self._event(number) for number in numbers])
                self.appended += ROWS

    def _event(self, number: int) -> bytes:
        draw = self._rng.random()
        if draw < 0.002:
            return b'{"headers":{"control":"reset"}}'
        if draw < 0.004:
            return b"no event"
        operation = "delete" if draw < 0.15 else "update"
        key = f"k{self._rng.randrange(KEYS)}"
        event = {"type": "n", "key": key, "value": number, "headers": {"operation": operation}}
        return json.dumps(event).encode()

    def end(self) -> None:
        """End it, and wait."""
        self._ended.set()
        self.join()


class Driver:
    """The driver of the queries, which is started again whenever it has ended."""

    def __init__(self, node: NodeProcess, folder: Path) -> None:
        words = [node.address, str(folder)]
        self._command = [sys.executable, "-m", "tests.pipeline.spark.killed_queries", *words]
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._old: list[int] = []
        self.starts = 0

    def ensure(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, cwd=ROOT, stdout=log, stderr=log
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def java(self) -> int | None:
        """The process of its Java, once there is one."""
        found = [pid for pid in descendants(self.pid) if "java" in command_of(pid)[:1]]
        return found[0] if found else None

    def pythons(self) -> list[int]:
        """Python processes of Spark."""
        java = self.java()
        if java is None:
            return []
        return [each for each in descendants(java) if "python" in " ".join(command_of(each)[:1])]

    def kill(self, victim: str, rng: Random) -> bool:
        """Kill a process of it; False: there is none at this moment."""
        java = self.java()
        match victim:
            case "driver":
                pids = [self.pid]
            case "java":
                pids = [] if java is None else [java]
            case _:
                pids = self.pythons()
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(rng.choice(pids), signal.SIGKILL)
            if victim == "driver" and java is not None:
                self._old.append(java)
        return True

    def old_javas(self) -> list[int]:
        """Processes of Java whose driver is gone, and that have not ended."""
        self._old = [each for each in self._old if "java" in command_of(each)[:1]]
        return self._old

    def wait(self) -> int:
        """Wait for the end. Raises Stuck."""
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Stuck("the driver does not end") from None

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            for each in [*descendants(self.pid), self.pid]:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            self._process.wait()


def command_of(pid: int) -> list[str]:
    """The words of a process, its program without a path first; empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []
    return [Path(words[0]).name, *words[1:]]


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those of these."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(each.name))
    left = children.get(pid, [])
    while left:
        found = left.pop()
        yield found
        left += children.get(found, [])


def progress(node: NodeProcess, folder: Path) -> dict[str, int]:
    """How far each query has got, as others see it."""
    with node.wire() as wire:
        tail = json.loads(wire.request_bytes("GET", "/v1/streams/out/records/tail"))
    found = {"copy": int(tail["tail"]["seq_num"])}
    for format in FORMATS:
        summary = table_in(folder / format / "table").summary()
        found[format] = -1 if summary is None else summary.batch
    return found


def wait_for_all(node: NodeProcess, driver: Driver, folder: Path) -> float:
    """Wait until each query has got further; the seconds it took. Raises Stuck."""
    began = time.monotonic()
    before: dict[str, int] | None = None
    while time.monotonic() < began + PATIENCE_S:
        driver.ensure()
        if node.has_ended():
            node.kill()
            node.start()
        with suppress(PipelineError):
            now = progress(node, folder)
            before = before or now
            if all(now[name] > before[name] for name in now) and not driver.old_javas():
                return time.monotonic() - began
        time.sleep(POLL_S)
    raise Stuck(f"before {before}, now {progress(node, folder)}")


def run(
    folder: Path,
    kills: int,
    seed: int,
    minutes: float = inf,
    tell: Callable[[str], None] = print,
) -> str:
    """Run the loop; a line about it. Raises Stuck or Wrong."""
    rng = Random(seed)
    counts: Counter[str] = Counter()
    waits = []
    began = time.monotonic()
    module = "tests.pipeline.spark.publishing_node"
    with NodeProcess(folder / "pond", module=module) as node:
        node.make("in", "out", "state")
        producer, driver = Producer(node, seed), Driver(node, folder)
        producer.start()
        try:
            wait_for_all(node, driver, folder)
            order = [VICTIMS[i % len(VICTIMS)] for i in range(kills)]
            rng.shuffle(order)
            for number, victim in enumerate(order):
                if time.monotonic() > began + 60 * minutes:
                    break
                time.sleep(rng.uniform(0, WAIT_MAX_S))
                kill(victim, node, driver, rng)
                counts[victim] += 1
                waits.append(wait_for_all(node, driver, folder))
                tell(f"{number + 1}/{kills} {victim}: all goes on after {waits[-1]:.1f} s")
            producer.end()
            (folder / "stop").touch()
            finish(node, driver)
        finally:
            driver.close()
        records = check(node, folder, producer.appended)
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    slowest = max(waits, default=0.0)
    return (
        f"{counts.total()} kills ({told}), {driver.starts} starts of the driver, "
        f"{records} records, {time.monotonic() - began:.0f} s, slowest recovery {slowest:.0f} s: "
        "0 lost, 0 doubled, 0 stuck"
    )


def kill(victim: str, node: NodeProcess, driver: Driver, rng: Random) -> None:
    """Kill a process of this kind, as soon as there is one. Raises Stuck."""
    until = time.monotonic() + PATIENCE_S
    if victim == "node":
        node.kill()
        node.start()
        return
    if victim == INSIDE:
        node.kill()
        node.settings = {KILL_AT: str(rng.randint(1, STEPS_MAX))}
        node.start()
        while not node.has_ended() and time.monotonic() < until:
            driver.ensure()
            time.sleep(POLL_S / 3)
        if not node.has_ended():
            raise Stuck("nothing is published")
        node.settings = {}
        return
    while not driver.kill(victim, rng):
        if time.monotonic() > until:
            raise Stuck(f"no process to kill: {victim}")
        driver.ensure()
        time.sleep(POLL_S / 3)


def finish(node: NodeProcess, driver: Driver) -> None:
    """Let the queries process all that is left. Raises Stuck."""
    for _ in range(5):
        driver.ensure()
        if driver.wait() == 0:
            return
    raise Stuck("the driver fails again and again")


def check(node: NodeProcess, folder: Path, appended: int) -> int:
    """Compare; the number of records. Raises Wrong."""
    source, copied = Counter(node.values("in")), Counter(node.values("out"))
    if source != copied:
        lost, doubled = (source - copied).total(), (copied - source).total()
        raise Wrong(f"the copy: {lost} lost, {doubled} too many of {source.total()}")
    if any(b"%d" % number not in source for number in range(appended)):
        raise Wrong("an appended record is not in its stream")
    bodies = node.values("state")
    expected, bad = straight(bodies)
    for format in FORMATS:
        rows = table_in(folder / format / "table").read().to_pylist()
        state = {row["key"]: json.loads(row["value"]) for row in rows}
        if len(rows) != len(state) or state != expected:
            raise Wrong(f"the table in {format}: {len(rows)} rows of {len(expected)}")
        if folded(folder / format / "changes") != expected:
            raise Wrong(f"the change feed in {format}")
        letters = [
            json.loads(line)["offset"]
            for file in sorted((folder / format / "dead").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        if sorted(letters) != bad:
            raise Wrong(f"dead letters in {format}: {len(letters)}, not {len(bad)}")
    return source.total() + len(bodies)


def straight(bodies: list[bytes]) -> tuple[dict[str, int], list[int]]:
    """The state by a pass over all events, and the offsets of those that are none."""
    state: dict[str, int] = {}
    bad = []
    for offset, body in enumerate(bodies):
        try:
            event = json.loads(body)
        except ValueError:
            bad.append(offset)
            continue
        if "control" in event["headers"]:
            state = {}
        elif event["headers"]["operation"] == "delete":
            state.pop(event["key"], None)
        else:
            state[event["key"]] = event["value"]
    return state, bad


def folded(place: Path) -> dict[str, int]:
    """The state that a reader of a feed has. Raises Wrong if a change does not fit it."""
    state: dict[str, int] = {}
    for batch, rows in existing_feed(place).batches():
        for row in rows.to_pylist():
            before, after = (row[name] and json.loads(row[name]) for name in ("before", "after"))
            if state.pop(row["key"], None) != before:
                raise Wrong(f"batch {batch} of {place}: {row['key']} was something else")
            if after is not None:
                state[row["key"]] = after
    return state


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=inf)
    parser.add_argument("--folder", type=Path, help="an empty one, which stays")
    args = parser.parse_args()

    def tell(line: str) -> None:
        print(line, flush=True)

    def perform(folder: Any) -> int:
        try:
            tell(run(Path(folder), args.kills, args.seed, args.minutes, tell))
        except (Stuck, Wrong) as error:
            tell(f"{type(error).__name__}: {error}")
            return 1
        return 0

    if args.folder is not None:
        args.folder.mkdir(parents=True)
        return perform(args.folder.resolve())
    with TemporaryDirectory() as name:
        return perform(name)


if __name__ == "__main__":
    sys.exit(main())
