"""The demonstration of the pipeline: kill -9 in the middle of a batch; see scripts/demo-pipeline.

Events come by S3P, RustLog and S2, the table by `millpond pipeline run`.
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
from scripts.demo_processes import NODE, Failed, Processes, perform, tell, until

KEYS = 500
AT_ONCE = 500
BAD = b"this is no event"
JOB = "job"
SPARK_S = 240.0
"""It starts slowly, and more slowly beside others."""


class Office(Processes):
    """A node with three listeners, and a job."""

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
        """Start the job; `batch` records at once."""
        http = f"http://{self.listeners['http']}"
        where = ("--table", "table", "--checkpoint", "checkpoint", "--dead-letters", "dead")
        what = ("--subscribe", "events-a,events-b,events-c", "--max-per-batch", str(batch))
        words = (*what, *where, "--once", "--json", "--report", "report.html")
        return self.start(JOB, "pipeline", "run", "--connect", http, *words)

    def versions(self) -> int:
        """How many versions the table ever had."""
        current = self.folder / "table" / "_current"
        return int(current.read_text().partition(".")[0]) if current.exists() else 0

    def is_in_batch(self) -> bool:
        """Is a batch on its way, with two of them in the table?"""
        batch = self.versions()
        return batch >= 2 and (self.folder / "checkpoint" / "offsets" / str(batch)).exists()


def main() -> int:
    """Run it; 0 if the table is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=60_000, metavar="N", help="how many")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the folder there")
    args = parser.parse_args()
    return perform(lambda folder: play(folder, max(3000, args.events)), args.keep)


def play(folder: Path, count: int) -> str:
    """The whole piece. Raises Failed."""
    office = Office(folder)
    os.environ.setdefault("XDG_CACHE_HOME", str(folder / "cache"))
    try:
        office.start_listening()
        wanted, bad = produce(office, count)
        act(office, count)
        office.stop()
    finally:
        office.close()
    return compare(folder, wanted, bad)


def produce(office: Office, count: int) -> tuple[dict[tuple[str, str, str], Any], int]:
    """Events for three streams, each by its protocol; the state that they come to, and how many
    of them are none."""
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
    host, streams = office.listeners, list(bodies)
    with connect_s3p(host["s3p"]) as s3p:
        s3p.create(streams[0])
        for piece in _pieces(bodies[streams[0]]):
            s3p.append(streams[0], piece)
    with connect_rustlog(host["rustlog"]) as rustlog:
        rustlog.create_topic(streams[1])
        for piece in _pieces(bodies[streams[1]]):
            rustlog.produce(streams[1], piece)
    _post(host["http"], f"/v1/streams/{streams[2]}", {}, "PUT")
    for piece in _pieces(bodies[streams[2]]):
        records = [{"body": base64.b64encode(body).decode()} for body in piece]
        _post(host["http"], f"/v1/streams/{streams[2]}/records", {"records": records}, "POST")
    tell(f"{count} events are there, by S3P, RustLog and S2")
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


def _pieces(bodies: list[bytes]) -> list[list[bytes]]:
    return [bodies[first : first + AT_ONCE] for first in range(0, len(bodies), AT_ONCE)]


def _post(address: str, path: str, body: Any, method: str) -> None:
    request = urllib.request.Request(
        f"http://{address}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "s2-basin": "millpond", "s2-format": "base64"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def act(office: Office, count: int) -> None:
    """The job is killed while a batch is on its way, and runs again to the end."""
    office.start_job(count // 6)
    what = "two batches are in the table, and another one is on its way"
    until(what, office.is_in_batch, SPARK_S)
    office.stop(JOB, by_force=True)
    if not office.is_in_batch():
        tell("that one came to its end before")
    job = office.start_job(count // 6)
    until("the job went through the rest", lambda: job.poll() is not None, SPARK_S)
    office.stop(JOB)


def compare(folder: Path, wanted: dict[tuple[str, str, str], Any], bad: int) -> str:
    """The table against the straight pass, row by row. Raises Failed."""
    from millpond.pipeline.state.table import Table

    table = Table(folder / "table")
    rows = table.read().to_pylist()
    found = {(row["topic"], row["type"], row["key"]): json.loads(row["value"]) for row in rows}
    if len(found) != len(rows):
        raise Failed("an entity is in the table twice")
    if found != wanted:
        odd = sorted(
            place for place in found.keys() | wanted.keys() if found.get(place) != wanted.get(place)
        )
        raise Failed(f"{len(odd)} of {len(wanted)} entities are not right, such as {odd[0]}")
    letters = [line for file in (folder / "dead").glob("*.jsonl") for line in file.open()]
    if len(letters) != bad:
        raise Failed(f"{len(letters)} dead letters, not {bad}")
    version = table.current()
    assert version is not None
    batches = f"after {version.number} batches, {bad} dead letters"
    return f"{len(found)} entities as they have to be {batches}"


if __name__ == "__main__":
    sys.exit(main())
