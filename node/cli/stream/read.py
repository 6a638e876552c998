"""`millpond stream read` and `tail`, and `topic fetch`: records to stdout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, until_signal
from millpond.node.cli.options.node import add_node_options, add_reconnect, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import write_async
from millpond.node.cli.parser import action
from millpond.node.cli.progress import Progress
from millpond.node.cli.stream.connection import open_streams
from millpond.node.cli.stream.options import add_start, stream_name
from millpond.node.cli.stream.record_format import FORMATS
from millpond.node.client.streams.records import Record
from millpond.node.client.streams.stream import Start, Stream
from millpond.node.client.streams.streams import Streams

READ_EPILOG = """\
examples:
  millpond stream read orders                     all records, one per line
  millpond stream read orders --from 1000 -n 10   ten records from sequence 1000 on
  millpond stream read orders --id 1763683200000-0     start at an S3P id
  millpond stream read orders --time -10m         records of the last ten minutes
  millpond stream read orders --time 2025-11-21T10:00:00Z
  millpond stream read orders --json --follow     JSON objects, with new records until Ctrl-C

Trimmed records are skipped. --follow reconnects after a lost connection: every record is printed
once and in order. Records that were trimmed before they could be read are reported on stderr.
Exit code 4: the stream does not exist; 3: fewer than -n records within --timeout.
"""
TAIL_EPILOG = """\
examples:
  millpond stream tail orders            the last ten records
  millpond stream tail orders -n 0 -f    only new records, until Ctrl-C
"""

Choose = Callable[[Streams], Awaitable[Stream]]


def add_read(actions: Any) -> None:
    """Add `read` to the command line."""
    parser = action(actions, "read", "Read records of a stream.", READ_EPILOG)
    parser.add_argument("name", metavar="STREAM", type=stream_name)
    add_start(parser)
    parser.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    add_output(parser)
    parser.set_defaults(work=run, start=0)


def add_tail(actions: Any) -> None:
    """Add `tail` to the command line."""
    parser = action(actions, "tail", "Show the last records of a stream.", TAIL_EPILOG)
    parser.add_argument("name", metavar="STREAM", type=stream_name)
    parser.add_argument(
        "-n", dest="last", type=_count, metavar="N", default=10, help="so many (default 10)"
    )
    add_output(parser)
    parser.set_defaults(work=run, start=None, count=None)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options for the output of records, shared by `read`, `tail` and `fetch`."""
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with new records until Ctrl-C"
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="lines",
        help="lines: bodies with a newline each; raw: without; base64; json (default lines)",
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end after S seconds, with exit code 3"
    )
    add_reconnect(parser)
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Show records of one stream."""
    return run_reading(args, partial(_stream, args))


def run_reading(args: argparse.Namespace, choose: Choose) -> int:
    """Show records of the stream that `choose` gives."""
    timeout_s, args.timeout = args.timeout, None
    return run_in_loop(args, partial(_read, args, choose, timeout_s))


async def _stream(args: argparse.Namespace, streams: Streams) -> Stream:
    return streams.stream(args.name)


async def _read(args: argparse.Namespace, choose: Choose, timeout_s: float | None) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_streams(args, args.reconnect) as streams:
            with anyio.move_on_after(timeout_s) as limit:
                await _show(args, await choose(streams))
        tasks.cancel_scope.cancel()
        return ExitCode.TIMEOUT if limit.cancelled_caught else ExitCode.OK
    return ExitCode.OK if args.follow else ExitCode.INTERRUPTED


async def _show(args: argparse.Namespace, stream: Stream) -> None:
    shape = FORMATS["json" if args.json else args.format]
    remaining = args.count
    with Progress("read", total=None if args.follow else remaining) as progress:
        async with aclosing(await _pages(args, stream)) as pages:
            async for page in pages:
                records = page if remaining is None else page[:remaining]
                await write_async(b"".join(map(shape, records)))
                progress.add(len(records), sum(len(record.data) for record in records))
                if remaining is not None:
                    remaining -= len(records)
                    if remaining == 0:
                        return


async def _pages(args: argparse.Namespace, stream: Stream) -> AsyncGenerator[list[Record]]:
    start: Start
    if args.start is None:
        info = await stream.info()
        start, end = max(info.trim_point, info.tail - args.last), info.tail
    else:
        start, end = args.start, None
    if args.follow:
        return stream.follow_pages(start, on_gap=_report_gap)
    return stream.pages(start, end)


def _report_gap(first: int, end: int) -> None:
    text = f"records {first} to {end - 1} were trimmed before they could be read"
    print(f"millpond: {text}", file=sys.stderr)


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)
