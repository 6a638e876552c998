"""The demonstration of the pipeline: kill -9 in the middle of a batch (scripts/demo-pipeline).

Events are written over S3P, RustLog and S2; `millpond pipeline run` makes the table.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

from millpond.sync import connect_rustlog, connect_s3p
from scripts.demo_processes import NODE, Failed, Processes, report, run_demo, wait_until

KEYS = 500
APPEND_MAX = 500
BAD = b"this is no event"
JOB = "job"
SPARK_S = 240.0
"""Time limit of a Spark job, which starts slowly on a busy machine."""


class PipelineProcesses(Processes):
    """A node with three listeners, and a pipeline job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listeners: dict[str, str] = {}

    def start_listening(self) -> None:
        ports = [
            word for each in ("s3p", "rustlog", "http") for word in (f"--{each}", "127.0.0.1:0")
        ]
        words = ("--p2p", self.address, "--ws", "off", *ports, "--json")
        node = self.start(NODE, "serve", *words)
        assert node.stdout is not None
        self.listeners = json.loads(node.stdout.readline())["listeners"]

    def start_job(self, batch: int) -> Any:
        """Start the job, with this many records in a batch."""
        http = f"http://{self.listeners['http']}"
        where = ("--table", "table", "--checkpoint", "checkpoint", "--dead-letters", "dead")
        what = ("--subscribe", "events-a,events-b,events-c", "--max-per-batch", str(batch))
        words = (*what, *where, "--once", "--json", "--report", "report.html")
        return self.start(JOB, "pipeline", "run", "--connect", http, *words)

    def is_in_batch(self) -> bool:
        """Whether a batch is under way after two that are in the table."""
        plans = (self.folder / "checkpoint" / "offsets").glob("[0-9]*")
        last = max((int(each.name) for each in plans), default=0)
        return last >= 2 and batches_in(self.folder) <= last


def batches_in(folder: Path) -> int:
    """The number of batches that the table has."""
    from millpond.pipeline.state.formats import table_in

    found = table_in(folder / "table").summary()
    return 0 if found is None else found.batch + 1


def main() -> int:
    """Run the demonstration; 0 if the table is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=60_000, metavar="N", help="how many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the folder there")
    args = parser.parse_args()
    return run_demo(lambda folder: run_pipeline(folder, max(3000, args.events)), args.keep)


def run_pipeline(folder: Path, count: int) -> str:
    """Run all steps. Raises Failed."""
    processes = PipelineProcesses(folder)
    os.environ.setdefault("XDG_CACHE_HOME", str(folder / "cache"))
    try:
        processes.start_listening()
        wanted, bad = produce(processes, count)
        kill_and_finish(processes, count)
        processes.stop()
    finally:
        processes.close()
    return compare(folder, wanted, bad)


def produce(
    processes: PipelineProcesses, count: int
) -> tuple[dict[tuple[str, str, str], Any], int]:
    """Write events to three streams, each over its protocol.

    Returns the expected state, and the number of records that are no events.
    """
    rng = Random(9)
    wanted: dict[tuple[str, str, str], Any] = {}
    bad = 0
    bodies: dict[str, list[bytes]] = {"events-a": [], "events-b": [], "events-c": []}
    for number in range(count):
        stream = rng.choice(list(bodies))
        if number % 10_000 == 9_999:
            bodies[stream].append(BAD)
            bad += 1
        elif number == count // 2:
            bodies["events-b"].append(json.dumps({"headers": {"control": "reset"}}).encode())
            wanted = {place: value for place, value in wanted.items() if place[0] != "events-b"}
        else:
            bodies[stream].append(_change(rng, stream, number, wanted))
    host, streams = processes.listeners, list(bodies)
    with connect_s3p(host["s3p"]) as s3p:
        s3p.create(streams[0])
        for piece in _appends(bodies[streams[0]]):
            s3p.append(streams[0], piece)
    with connect_rustlog(host["rustlog"]) as rustlog:
        rustlog.create_topic(streams[1])
        for piece in _appends(bodies[streams[1]]):
            rustlog.produce(streams[1], piece)
    _post(host["http"], f"/v1/streams/{streams[2]}", {}, "PUT")
    for piece in _appends(bodies[streams[2]]):
        records = [{"body": base64.b64encode(body).decode()} for body in piece]
        _post(host["http"], f"/v1/streams/{streams[2]}/records", {"records": records}, "POST")
    report(f"{count} events are written over S3P, RustLog and S2")
    return wanted, bad


def _change(
    rng: Random, stream: str, number: int, wanted: dict[tuple[str, str, str], Any]
) -> bytes:
    type_, key = rng.choice(("user", "cart")), f"k{rng.randrange(KEYS)}"
    operation = rng.choice(("insert", "update", "update", "update", "delete"))
    event: dict[str, Any] = {"type": type_, "key": key, "headers": {"operation": operation}}
    if operation == "delete":
        wanted.pop((stream, type_, key), None)
    else:
        event["value"] = wanted[stream, type_, key] = {"number": number, "name": "\u00fcber" * 3}
    return json.dumps(event).encode()


def _appends(bodies: list[bytes]) -> list[list[bytes]]:
    return [bodies[first : first + APPEND_MAX] for first in range(0, len(bodies), APPEND_MAX)]


def _post(address: str, path: str, body: Any, method: str) -> None:
    request = urllib.request.Request(
        f"http://{address}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "s2-basin": "millpond", "s2-format": "base64"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def kill_and_finish(processes: PipelineProcesses, count: int) -> None:
    """Kill the job while a batch is under way, then run it to the end."""
    processes.start_job(count // 6)
    what = "two batches are in the table, and another one is under way"
    wait_until(what, processes.is_in_batch, SPARK_S)
    processes.stop(JOB, by_force=True)
    if not processes.is_in_batch():
        report("that batch finished first")
    job = processes.start_job(count // 6)
    wait_until("the job has processed the rest", lambda: job.poll() is not None, SPARK_S)
    processes.stop(JOB)


def compare(folder: Path, wanted: dict[tuple[str, str, str], Any], bad: int) -> str:
    """Compare the table with the expected state, row by row. Raises Failed."""
    from millpond.pipeline.state.formats import table_in

    table = table_in(folder / "table")
    rows = table.read().to_pylist()
    found = {(row["topic"], row["type"], row["key"]): json.loads(row["value"]) for row in rows}
    if len(found) != len(rows):
        raise Failed("an entity is in the table twice")
    if found != wanted:
        odd = sorted(
            place for place in found.keys() | wanted.keys() if found.get(place) != wanted.get(place)
        )
        raise Failed(f"{len(odd)} of {len(wanted)} entities differ, such as {odd[0]}")
    dead_letters = [line for file in (folder / "dead").glob("*.jsonl") for line in file.open()]
    if len(dead_letters) != bad:
        raise Failed(f"{len(dead_letters)} dead letters, not {bad}")
    batches = f"after {batches_in(folder)} batches, {bad} dead letters"
    return f"{len(found)} entities are right {batches}"


if __name__ == "__main__":
    sys.exit(main())
