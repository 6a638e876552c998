"""`millpond bench`: benchmarks of a node, with verified replies."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, assert_never

import anyio
import msgspec

from millpond.node.bench.load import CONNECT_S, Clocks
from millpond.node.bench.memory import MemoryResult, measure_memory
from millpond.node.bench.own_node import NodeNotReady, OwnNode, on_disk, own_node
from millpond.node.bench.p2p_load import LoadResult, measure
from millpond.node.bench.payload import SIZE_MIN
from millpond.node.bench.scenarios import CHANNELS, PIPELINE_MAX, Load, MemoryRow, Row, rows
from millpond.node.bench.target import BenchTarget
from millpond.node.cli.bench import jobs as bench_jobs
from millpond.node.cli.bench import state as bench_state
from millpond.node.cli.bench import store as bench_store
from millpond.node.cli.bench import streams as bench_streams
from millpond.node.cli.bench.remote import add_remote_options, reached_url
from millpond.node.cli.commands.serve import raise_descriptor_limit
from millpond.node.cli.connection import explain_errors
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.node import positive
from millpond.node.cli.options.tls import tls_context
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.token_file import read_token
from millpond.node.client.url import parse_url
from millpond.node.ip import is_loopback

EPILOG = """\
examples:
  millpond bench p2p                                all rows, each on a new node; two minutes
  millpond bench p2p --rows 'push-*' --seconds 5    some rows, for longer
  millpond bench p2p --rows 'put-*' --connections 200 --pipeline 4 --size 500
  millpond bench p2p --rows 'memory-*' --json
  millpond bench p2p --rows 'put-*' --durability disk   each PUT waits for the disk
  millpond bench p2p --connect tcp://127.0.0.1:7400  a running node

rows: KIND-cCONNECTIONS-pPIPELINE-SIZE; PIPELINE is the number of messages in flight per producer
  put     PUT, receipt, delete; latency from PUT to receipt
  push    pairs of connections: PUT, push, ack; latency from PUT to push
  fanout  one producer and many subscribers; count and latency of deliveries
  memory-channel, memory-waiting, memory-connection
          growth of resident memory per idle channel, per channel with one message, and per
          idle connection with its channel

All replies are verified: receipts come once and with ascending ids, messages arrive complete, and
the messages that remain at the end are listed and read back. Any fault: exit code 1.

The load generator is written in Python and shares the machine with the node, so the rates are lower
than those of the node alone. `generator` is its share of a core: near 100 % it is the limit. `node
CPU` is the processor time of the node per counted operation. docs/internals/benchmarks.md compares
other servers.

Each row starts a new node with the default settings; memory rows passivate idle channels at once.
With --connect the memory rows require the right `admin` and an otherwise idle node. Several
addresses are separated by commas; the first that takes a connection is measured. With
--durability disk or os the node stores its data in a temporary folder, in --data or else beside the
default data folder. `millpond bench store` measures the store alone.

--json prints an object for each row. All have row, kind, faults (an object with the count of each
fault), first_fault (text) and ok. A load has connections, pipeline, size, seconds, count, rate (per
second), p50_us, p99_us, max_us, generator (share of a core), node_us (null if unknown), durability
(of the receipts) and duplicates (repeated pushes, which are allowed). A memory row has count, size,
bytes_each, and channels (the additional channels of the node).
"""

BUSY = 0.9
HEADER = f"{'row':22}{'rate':>12}{'p50':>12}{'p99':>12}{'max':>12}{'node CPU':>11}{'generator':>11}"

Result = LoadResult | MemoryResult


def add_parser(subparsers: Any) -> None:
    """Add `bench` to the command line."""
    bench = subparsers.add_parser(
        "bench", description="Run benchmarks of a node, and verify its replies."
    )
    benchmarks = bench.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_p2p(benchmarks)
    bench_streams.add_parsers(benchmarks)
    bench_store.add_parser(benchmarks)
    bench_jobs.add_parser(benchmarks)
    bench_state.add_parser(benchmarks)


def _add_p2p(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "p2p",
        help="PUT, push and fan-out over P2P, and memory of idle channels and connections",
        description="Measure PUT, push and fan-out, and verify every reply.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=_duration, default=2.0, metavar="S", help="default 2")
    parser.add_argument(
        "--rows", default="*", metavar="GLOB", help="run only the rows with these names"
    )
    count_option = {"type": positive, "metavar": "N"}
    parser.add_argument("--connections", **count_option, help="connections (default: 1 and 50)")
    parser.add_argument(
        "--pipeline",
        **count_option,
        help="messages in flight for each producer (default: 1 and 16)",
    )
    parser.add_argument("--size", **count_option, help="bytes of a message (default: 100 and 1024)")
    parser.add_argument(
        "--channels", **count_option, default=CHANNELS, help="in memory rows (default %(default)s)"
    )
    add_remote_options(parser)
    durability_option = {
        "choices": ("disk", "os", "memory"),
        "help": "durability of the benchmark's own node",
    }
    parser.add_argument("--durability", **durability_option)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="parent folder for the data of the benchmark's own node",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row; see below")


def run(args: argparse.Namespace) -> int:
    """Measure the chosen rows, one after the other."""
    if args.what == "store":
        return bench_store.run(args)
    if args.what == "jobs":
        return bench_jobs.run(args)
    if args.what == "state":
        return bench_state.run(args)
    if args.what != "p2p":
        return bench_streams.run(args)
    if args.connect is not None and (args.durability or args.data):
        raise usage_error("--connect excludes --durability and --data")
    if args.data is not None and args.durability == "memory":
        raise usage_error("--durability memory excludes --data")
    if args.size is not None and args.size < SIZE_MIN:
        raise usage_error(f"--size: at least {SIZE_MIN} bytes")
    if args.pipeline is not None and args.pipeline > PIPELINE_MAX:
        raise usage_error(f"--pipeline: at most {PIPELINE_MAX}")
    chosen = rows(
        args.rows,
        connections=args.connections,
        pipeline=args.pipeline,
        size=args.size,
        channels=args.channels,
    )
    if not chosen:
        names = ", ".join(row.name for row in rows())
        raise usage_error(f"--rows {args.rows!r} names no row; the rows are {names}")
    if args.connect is not None:
        args.connect = reached_url(args.connect)
    raise_descriptor_limit()
    return _measure_all(args, chosen)


def _duration(text: str) -> float:
    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("more than 0 seconds are needed")
    return value


def _measure_all(args: argparse.Namespace, chosen: list[Row]) -> int:
    results: list[Result] = []
    for number, row in enumerate(chosen, 1):
        with _progress(f"{row.name} ({number} of {len(chosen)})"):
            result = _measure(args, row)
        if not args.json and not results:
            if _durability(args) != "memory":
                print_line(
                    f"durability {_durability(args)}, {bench_store.describe_folder(args.data)}"
                )
            print_line(HEADER)
        results.append(result)
        _show(result, args.json)
    busy = [each for each in results if isinstance(each, LoadResult) and each.generator > BUSY]
    if busy and not args.json:
        print("* limited by the load generator: the node may be faster", file=sys.stderr)
    bad = [each.row for each in results if not each.ok]
    if bad:
        raise Failure(f"the node failed in {', '.join(bad)}")
    return ExitCode.OK


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """Show the current row on a terminal, and remove it."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _measure(args: argparse.Namespace, row: Row) -> Result:
    with _node(args, row) as node:
        where = argparse.Namespace(**vars(args) | {"connect": node.url, "timeout": CONNECT_S})
        with explain_errors(where):
            return _run_in_loop(row, node, _target(where), args.seconds)


@contextmanager
def _node(args: argparse.Namespace, row: Row) -> Iterator[OwnNode]:
    if args.connect is not None:
        yield OwnNode(args.connect, None)
        return
    settings = {"passivate_after_s": "0"} if isinstance(row, MemoryRow) else {}
    try:
        with _store(args) as store, own_node(*store, **settings) as node:
            yield node
    except NodeNotReady as exc:
        raise Failure(str(exc)) from exc


def _durability(args: argparse.Namespace) -> str:
    return args.durability or ("disk" if args.data else "memory")


@contextmanager
def _store(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The options of `serve` that choose the store, with a folder for as long as it is needed."""
    durability = _durability(args)
    if durability == "memory":
        yield ()
        return
    with bench_store.temporary_folder(args.data) as data:
        yield on_disk(data, durability)


def _target(where: argparse.Namespace) -> BenchTarget:
    token = read_token(where.token_file)
    address = parse_url(where.connect)
    is_exposed = not (address.secure or is_loopback(address.host))
    if token is not None and is_exposed and not where.allow_plain:
        raise usage_error("no token is sent to another machine without TLS; see --allow-plain")
    return BenchTarget(
        where.connect,
        address,
        prefix=b"bench/" + secrets.token_hex(6).encode(),
        token=None if token is None else token.encode(),
        tls=tls_context(where, address),
    )


def _run_in_loop(row: Row, node: OwnNode, target: BenchTarget, duration_s: float) -> Result:
    options = {"use_uvloop": find_spec("uvloop") is not None}
    match row:
        case Load():
            clocks = Clocks(time.perf_counter, time.process_time, node.cpu)
            work = partial(measure, row, target, duration_s, clocks)
            return anyio.run(work, backend_options=options)
        case MemoryRow():
            return anyio.run(measure_memory, row, target, backend_options=options)
        case _:
            assert_never(row)


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(result))
        return
    match result:
        case LoadResult():
            print_line(_load_line(result))
        case MemoryResult(row=row, count=count, bytes_each=bytes_each):
            print_line(f"{row:22}{bytes_each:>10,.0f} B each of {count:,}")
        case _:
            assert_never(result)
    if not result.ok:
        counts = ", ".join(f"{count} {fault}" for fault, count in result.faults.items())
        text = f"{counts}; first: {result.first_fault}" if counts else "nothing arrived"
        print_line(f"  FAULTS {text}")


def _load_line(result: LoadResult) -> str:
    times = "".join(f"{us / 1000:>9.3f} ms" for us in (result.p50_us, result.p99_us, result.max_us))
    work = "-" if result.node_us is None else f"{result.node_us:.1f} us"
    share = f"{result.generator:.0%}{'*' if result.generator > BUSY else ' '}"
    again = f"  {result.duplicates} pushed again" if result.duplicates else ""
    return f"{result.row:22}{result.rate:>10,.0f}/s{times}{work:>11}{share:>12}{again}"
