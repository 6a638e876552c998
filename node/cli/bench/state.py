"""`millpond bench state`: benchmarks of materialized states, in time and memory."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import anyio
import msgspec

from millpond.node.bench.own_node import NodeNotReady, OwnNode, own_node
from millpond.node.bench.state import StateResult, in_process, through_node
from millpond.node.cli.bench.remote import add_remote_options, remote_node
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import positive
from millpond.node.cli.output import print_json, print_line

EPILOG = """\
examples:
  millpond bench state                               200,000 events over 10,000 keys
  millpond bench state --events 1000000 --keys 50000
  millpond bench state --connect tcp://127.0.0.1:7400   a running node

state         MaterializedState: Python values from JSON in memory
fold          the same event by event, with positions, counts and policies, as in a follower
fold, schema  the same, with values checked against a msgspec struct
node's form   values as bytes with their sizes, as in a node
node          a stream of a new node, from the first query to its reply, and memory
follower      a client that follows the stream from its start

With --connect the rows `node` and `follower` are measured alone, without memory, in a stream of
their own, which is deleted at the end. That requires the right `admin`.

All values are compared at the end; on a difference the exit code is 1. `each` is the growth of
memory per value; a value has about 70 bytes, a key six. --json prints an object for each row: row,
events, keys, seconds, rate (per second), bytes_each (or null), faults.
"""
HEADER = f"{'row':16}{'events':>10}{'keys':>9}{'seconds':>10}{'rate':>14}{'each':>10}"


def add_parser(subparsers: Any) -> None:
    """Add `state` to what `bench` can measure."""
    parser = subparsers.add_parser(
        "state",
        help="materialized states: events to values",
        description="Measure the materialization of events, and verify every value.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count_option = {"type": positive, "metavar": "N"}
    parser.add_argument("--events", **count_option, default=200_000, help="default %(default)s")
    parser.add_argument("--keys", **count_option, default=10_000, help="default %(default)s")
    add_remote_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a row; see below")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    if not args.json:
        print_line(HEADER)
    is_good = True
    for result in _results(args):
        is_good = is_good and result.ok
        if args.json:
            print_json(msgspec.to_builtins(result))
        else:
            print_line(_line(result))
    if not is_good:
        raise Failure("values are wrong")
    return ExitCode.OK


def _results(args: argparse.Namespace) -> Iterator[StateResult]:
    clock = time.perf_counter
    options = {"use_uvloop": find_spec("uvloop") is not None}

    def measure(node: OwnNode, *more: Any) -> list[StateResult]:
        work = partial(through_node, node, args.events, args.keys, clock, *more)
        return anyio.run(work, backend_options=options)

    if args.connect is not None:
        name = b"bench-" + secrets.token_hex(6).encode()
        with remote_node(args) as (node, connection):
            yield from measure(node, name, connection)
        return
    try:
        # Without the shelf, or what it keeps of the reads would count as the state's memory.
        with own_node(stream_shelf_bytes_max="0") as node:
            yield from measure(node)
    except NodeNotReady as exc:
        raise Failure(str(exc)) from exc
    yield from in_process(args.events, args.keys)


def _line(result: StateResult) -> str:
    each = "-" if result.bytes_each is None else f"{result.bytes_each:,.0f} B"
    return (
        f"{result.row:16}{result.events:>10,}{result.keys:>9,}{result.seconds:>10.2f}"
        f"{result.rate:>12,.0f}/s{each:>10}"
    )
