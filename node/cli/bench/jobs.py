"""`millpond bench jobs`: benchmarks of puts and of a worker with an empty handler."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.node.bench.jobs import JobsResult, JobsShape, measure_jobs
from millpond.node.bench.load import Clocks
from millpond.node.bench.own_node import NodeNotReady, OwnNode, on_disk, own_node
from millpond.node.cli.bench.remote import add_remote_options, remote_node
from millpond.node.cli.bench.store import describe_folder, temporary_folder
from millpond.node.cli.commands.serve import raise_descriptor_limit
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.node import positive
from millpond.node.cli.output import print_json, print_line
from millpond.node.jobs.connector import ConnectionOptions

EPILOG = """\
examples:
  millpond bench jobs                              5000 jobs on a new node, in memory
  millpond bench jobs --durability disk            each put waits for the disk
  millpond bench jobs --jobs 20000 --concurrency 64
  millpond bench jobs --connect tcp://127.0.0.1:7400   a running node

put    16 producers on one connection, each waits for its receipt; behind 64 jobs that warm up
bulk   1000 jobs in each call
run    one worker process with an empty handler and --concurrency jobs at once, from the start of
       the worker until the last job is done
begin  from a put to the start of the handler in an idle worker; 200 jobs, one by one

If a job does not start, or remains, the exit code is 1. `again` counts jobs that started more than
once, which is allowed. Node, producers and worker share the machine. With --connect the jobs are in
queues of their own, which are deleted at the end; that requires the right `admin`.

--json prints an object: row, durability ("of the node" with --connect), jobs, concurrency,
put_rate, bulk_rate, run_rate (per second), p10_us, p50_us, p99_us, node_us, worker_us (processor
time per job; null if unknown), again, faults.
"""
JOBS, CONCURRENCY = 5000, 10
COLUMNS = {"put": 12, "bulk": 12, "run": 12, "begin p50": 12, "p99": 12}
COLUMNS |= {"node CPU": 11, "worker": 11}
HEADER = f"{'row':12}" + "".join(f"{name:>{width}}" for name, width in COLUMNS.items())


def add_parser(subparsers: Any) -> None:
    """Add `jobs` to what `bench` can measure."""
    parser = subparsers.add_parser(
        "jobs",
        help="job queues: put, run, done",
        description="Measure a job queue, and verify that each job runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count_option = {"type": positive, "metavar": "N"}
    parser.add_argument("--jobs", **count_option, default=JOBS, help="default %(default)s")
    parser.add_argument(
        "--concurrency",
        **count_option,
        default=CONCURRENCY,
        help="jobs at once (default %(default)s)",
    )
    durability_option = {
        "choices": ("disk", "os", "memory"),
        "help": "durability of the benchmark's own node",
    }
    parser.add_argument("--durability", **durability_option, default=None)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="parent folder for the data of the benchmark's own node",
    )
    add_remote_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object; see below")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    if args.connect is not None and (args.durability or args.data):
        raise usage_error("--connect excludes --durability and --data")
    raise_descriptor_limit()
    durability = args.durability or ("disk" if args.data else "memory")
    if args.connect is None:
        found: Any = _node(args, durability)
        queue, shown_durability = "bench", durability
    else:
        found = remote_node(args)
        queue, shown_durability = f"bench-{secrets.token_hex(6)}", "of the node"
    with found as (node, options):
        clocks = Clocks(time.perf_counter, time.process_time, node.cpu)
        shape = JobsShape(args.jobs, args.concurrency, queue, shown_durability)
        work = partial(measure_jobs, node.url, shape, clocks, options)
        uvloop = {"use_uvloop": find_spec("uvloop") is not None}
        result = anyio.run(work, backend_options=uvloop)
    if args.json:
        print_json(msgspec.to_builtins(result))
    else:
        if durability != "memory" and args.connect is None:
            print_line(f"durability {durability}, {describe_folder(args.data)}")
        print_line(HEADER)
        print_line(_line(result))
    if not result.ok:
        raise Failure(f"jobs were lost: {result.faults}")
    return ExitCode.OK


@contextmanager
def _node(args: argparse.Namespace, durability: str) -> Iterator[tuple[OwnNode, ConnectionOptions]]:
    try:
        if durability == "memory":
            with own_node() as node:
                yield node, {}
        else:
            with temporary_folder(args.data) as data, own_node(*on_disk(data, durability)) as node:
                yield node, {}
    except NodeNotReady as exc:
        raise Failure(str(exc)) from exc


def _line(result: JobsResult) -> str:
    node_us = "-" if result.node_us is None else f"{result.node_us:.1f} us"
    again = f"  {result.again} begun again" if result.again else ""
    return (
        f"{result.row:12}{result.put_rate:>10,.0f}/s{result.bulk_rate:>10,.0f}/s{result.run_rate:>10,.0f}/s"
        f"{result.p50_us / 1000:>9.3f} ms{result.p99_us / 1000:>9.3f} ms"
        f"{node_us:>11}{result.worker_us:>8.1f} us{again}"
    )
