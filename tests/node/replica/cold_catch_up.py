"""A catch-up from cold records beside one from warm ones: records a second, and CPU of the node.

python -m tests.node.replica.cold_catch_up --megabytes 100 --times 3
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from millpond.node.client.s3p.client import FIRST, connect_s3p
from millpond.node.client.s3p.records import RecordId
from tests.node.processes import Serving, environment, serving

STREAM = "logs"
BODY = bytes(1000)
RECORDS = 1000
LIMIT_S = 300.0
LOCAL_BYTES = 4 * 2**20


@contextmanager
def node_of(folder: Path, local_bytes: int) -> Iterator[Serving]:
    """A node whose journal is small, so that most records are in the file of the stream."""
    env = environment(
        MILLPOND_REPLICA=f"file://{folder}/replica",
        MILLPOND_STREAM_LOCAL_BYTES_MAX=str(local_bytes),
        MILLPOND_SEGMENT_BYTES=str(2**20),
        MILLPOND_JOURNAL_BYTES_MAX=str(2**21),
    )
    with serving("--data", str(folder / "data"), env=env, limit_s=LIMIT_S) as node:
        yield node


def address(node: Serving) -> str:
    return f"127.0.0.1:{node.port('s3p')}"


async def fill(node: Serving, records: int) -> None:
    async with connect_s3p(address(node)) as client:
        await client.create(STREAM)
        for first in range(0, records, RECORDS):
            await client.append(
                STREAM, [b"%08d" % each + BODY[8:] for each in range(first, first + RECORDS)]
            )


async def read_all(node: Serving) -> list[int]:
    """The numbers of all records, in order."""
    found: list[int] = []
    start = FIRST
    async with connect_s3p(address(node)) as client:
        while records := await client.read(STREAM, start, count=RECORDS):
            found += (int(each.data[:8]) for each in records)
            start = RecordId(records[-1].id.ms, records[-1].id.seq + 1)
    return found


def cpu_s(node: Serving) -> float:
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def local_bytes(folder: Path) -> int:
    files = (folder / "data" / "partitions").rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file())


def measure(folder: Path, records: int, kept: int) -> tuple[float, float]:
    """Records a second, and milliseconds of CPU for a thousand records."""
    with node_of(folder, kept) as node:
        began, cpu = time.perf_counter(), cpu_s(node)
        found = anyio.run(read_all, node)
        seconds, spent = time.perf_counter() - began, cpu_s(node) - cpu
        assert found == list(range(records))
    return records / seconds, spent * 1e6 / records


def main() -> None:
    """Fill two nodes, and read both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    records = args.megabytes * RECORDS
    with TemporaryDirectory(prefix="millpond-cold-") as folder:
        kinds = {"warm": 0, "cold": LOCAL_BYTES}
        for kind, kept in kinds.items():
            (Path(folder) / kind).mkdir()
            with node_of(Path(folder) / kind, kept) as node:
                anyio.run(fill, node, records)
                end = time.monotonic() + LIMIT_S
                while kept and local_bytes(Path(folder) / kind) > 3 * kept:
                    assert time.monotonic() < end
                    time.sleep(0.2)
            print(f"{kind}: {local_bytes(Path(folder) / kind) / 1e6:.0f} MB in files", flush=True)
        for _ in range(args.times):
            for kind, kept in kinds.items():
                rate, cpu = measure(Path(folder) / kind, records, kept)
                print(f"{kind}: {rate:,.0f} records/s, {cpu:.2f} ms of CPU a thousand", flush=True)


if __name__ == "__main__":
    main()
