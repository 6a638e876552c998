"""Figures of a replica in one table: cost and lag of shipping, requests to the object store,
`replicated` appends, restoration, and reads of cold records.

    python -m tests.bench.replica                       about five minutes, a folder as object store
    python -m tests.bench.replica --store s3            a server of moto in place of the folder
    python -m tests.bench.replica --restore-gb 10       a larger restoration
    python -m tests.bench.replica --seconds 1 --rounds 1 --rest-s 2 --restore-gb 0.01 --cold-mb 30

The last one is the shortest. All data is below --folder (a disk, not memory), and is removed. The
node with a replica and one without take turns under the same load, and CPU is that of the node's
process for a message, so other work on the machine adds little; the lag is that of
`millpond_replica_lag_seconds`, read ten times a second under load. Requests are counted as objects
that are in the store afterwards: none is overwritten, and none is removed so soon.

s2-lite has a row that says why it is not measured. Take at least 30 MB for --cold-mb: 4 MiB and
what is not moved yet stay in the files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import anyio

from millpond.node.replica.object_store import open_object_store
from tests.bench.servers import s2_program
from tests.node.processes import Serving, environment, serving
from tests.node.replica.cold_catch_up import cpu_s, fill
from tests.pipeline.object_store import object_store

BUCKET = "replica"
PUTS = "put-c50-p16-100"
SESSIONS = ("session-c1-p32-x10-1024", "session-c10-p32-x100-1024")
SAMPLE_S = 0.1
WARM_UP_S = 1.0
LIMIT_S = 480.0
RECORDS_OF_GB = 1_000_000
WIDTH = 44
_METRIC = re.compile(r"^(millpond_replica_lag_seconds|millpond_replica_lag_bytes) (\S+)$", re.M)


def show(what: str, figures: str) -> None:
    """A row of the table."""
    print(f"{what:{WIDTH}} {figures}", flush=True)


@contextmanager
def node_of(folder: Path, replica: str, durability: str = "disk") -> Iterator[Serving]:
    """A node on a disk; `replica` may be empty."""
    words = ("--data", str(folder), "--http", "127.0.0.1:0", "--durability", durability)
    words += ("--replica", replica) if replica else ()
    with serving(*words, env=environment(), limit_s=LIMIT_S) as node:
        yield node


def lag(node: Serving) -> tuple[float, float]:
    """Seconds and bytes that are not in the replica yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port('http')}/metrics") as answer:
        found = dict(_METRIC.findall(answer.read().decode()))
    return (
        float(found["millpond_replica_lag_seconds"]),
        float(found["millpond_replica_lag_bytes"]),
    )


class LagSamples(threading.Thread):
    """The lag of a node, again and again until `stop`."""

    def __init__(self, node: Serving) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._ended = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.seconds.append(lag(self._node)[0])

    def stop(self) -> None:
        self._ended.set()
        self.join()


def share(values: list[float], part: float) -> float:
    """The value below which `part` of them are."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def bench(kind: str, url: str, row: str, seconds: float) -> dict[str, Any]:
    """Run one row of `millpond bench` against a node."""
    words = ("bench", kind, "--connect", url, "--rows", row, "--seconds", str(seconds), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "millpond", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert not done.returncode, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found


def objects(url: str) -> int:
    """The objects in a store."""
    return len(open_object_store(url).list(""))


def measure_shipping(folder: Path, replica: str, args: argparse.Namespace) -> None:
    """Lag, added CPU and requests at full load, and requests at rest."""
    spent: dict[str, list[float]] = {"without": [], "with": []}
    lags: list[float] = []
    made: list[float] = []
    with node_of(folder / "plain", "") as plain, node_of(folder / "shipped", replica) as shipped:
        for node in (plain, shipped):  # the first snapshot, and all that is loaded by its first use
            bench("p2p", node.urls["tcp"], PUTS, WARM_UP_S)
        drain(shipped)
        for _ in range(args.rounds):
            for name, node in (("without", plain), ("with", shipped)):
                began, before = time.monotonic(), objects(replica)
                cpu = cpu_s(node)
                samples = LagSamples(node) if name == "with" else None
                if samples is not None:
                    samples.start()
                count = bench("p2p", node.urls["tcp"], PUTS, args.seconds)["count"]
                if samples is not None:
                    samples.stop()
                    lags += samples.seconds
                    made.append((objects(replica) - before) / (time.monotonic() - began))
                    drain(node)
                spent[name].append((cpu_s(node) - cpu) / count * 1e6)
        without, shipping = median(spent["without"]), median(spent["with"])
        show("lag at full load, p50 / p99", f"{share(lags, 0.5):.3f} / {share(lags, 0.99):.3f} s")
        show(
            "CPU of a PUT without / with a replica",
            f"{without:.1f} / {shipping:.1f} us ({100 * (shipping / without - 1):+.1f} %)",
        )
        show("objects made a second, at load", f"{median(made):.1f}")
        drain(shipped)
        before, began = objects(replica), time.monotonic()
        time.sleep(args.rest_s)
        rate = (objects(replica) - before) / (time.monotonic() - began)
        show("objects made a second, at rest", f"{rate:.2f}")


def drain(node: Serving) -> None:
    """Wait until all is in the replica."""
    end = time.monotonic() + LIMIT_S
    while lag(node)[1]:
        assert time.monotonic() < end
        time.sleep(0.05)


def measure_sessions(folder: Path, replica: str, seconds: float) -> None:
    """Append sessions whose acknowledgements wait for the replica."""
    with node_of(folder / "replicated", replica, "replicated") as node:
        where = f"127.0.0.1:{node.port('http')}"
        for row in SESSIONS:
            found = bench("s2", where, row, seconds)
            figures = f"{found['rate']:,.0f} records/s, ack p50 / p99"
            ms = f"{found['p50_us'] / 1000:.1f} / {found['p99_us'] / 1000:.1f} ms"
            show(f"replicated, {row}", f"{figures} {ms}")
    there = shutil.which(s2_program())
    why = "by hand: `s2 lite` and `s2 bench`" if there else "its program s2 is not on this machine"
    show("s2-lite on the same object store", f"not measured ({why})")


def measure_restore(folder: Path, replica: str, gigabytes: float) -> None:
    """A restoration of streams of so many bytes of records."""
    records = max(int(gigabytes * RECORDS_OF_GB) // 1000, 1) * 1000
    words = ("--data", str(folder / "large"), "--http", "127.0.0.1:0", "--replica", replica)
    env = environment(MILLPOND_S3P="127.0.0.1:0", MILLPOND_STREAM_BYTES_MAX=str(2**40))
    with serving(*words, env=env, limit_s=LIMIT_S * max(gigabytes, 1)) as node:
        anyio.run(fill, node, records)
        drain(node)
    began = time.monotonic()
    restored = folder / "restored"
    subprocess.run(
        [sys.executable, "-m", "millpond", "restore", "--from", replica, "--data", str(restored)],
        env=environment(),
        capture_output=True,
        check=True,
        timeout=LIMIT_S * max(gigabytes, 1),
    )
    seconds, size = time.monotonic() - began, records * 1000
    show(f"restoration of {size / 1e9:g} GB", f"{seconds:.1f} s, {size / 1e6 / seconds:.0f} MB/s")


def measure_cold(megabytes: int, rounds: int) -> None:
    """Reads of cold records beside those of warm ones (its store is a folder)."""
    words = ("--megabytes", str(megabytes), "--times", str(rounds))
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.replica.cold_catch_up", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    for line in done.stdout.splitlines():
        kind, _, figures = line.partition(": ")
        show(f"catch-up of {megabytes} MB, {kind}", figures)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replica")
    parser.add_argument("--store", choices=("file", "s3"), default="file")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each row")
    parser.add_argument("--rest-s", type=float, default=20)
    parser.add_argument("--restore-gb", type=float, default=1)
    parser.add_argument("--cold-mb", type=int, default=50)
    args = parser.parse_args()
    store = object_store(BUCKET) if args.store == "s3" else nullcontext({})
    with (
        tempfile.TemporaryDirectory(prefix="millpond-replica-", dir=args.folder) as name,
        store as variables,
        patch.dict(os.environ, variables),
    ):
        folder = Path(name)
        base = f"s3://{BUCKET}" if args.store == "s3" else f"file://{folder}/objects"
        measure_shipping(folder, f"{base}/shipped", args)
        measure_sessions(folder, f"{base}/replicated", args.seconds)
        measure_restore(folder, f"{base}/large", args.restore_gb)
        measure_cold(args.cold_mb, min(args.rounds, 2))


if __name__ == "__main__":
    main()
