"""`millpond bench store`: benchmarks of the store on disk, with verified data."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from millpond.actors.store.filesystem import OsDisk
from millpond.node.bench.own_node import (
    MEMORY_FILE_SYSTEMS,
    FolderHoldsNode,
    default_folder,
    file_system,
    scratch_folder,
)
from millpond.node.bench.payload import SIZE_MIN
from millpond.node.bench.store import LIVE_EACH, StoreBench, StoreResult
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.node import positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, print_line

MESSAGES_MAX, SIZE_MAX = 10_000_000, 65_536

EPILOG = f"""\
examples:
  millpond bench store                              beside the data of `millpond serve`
  millpond bench store --data /mnt/disk --messages 1000000
  millpond bench store --json

rows, in one process and without sockets:
  sync         write 4 KiB into reserved space of a file, and sync
  commit-N     N channels that put one durable message after the other, with group commit
  flush        write messages from memory to the files of their channels, 1000 each
  load         open the file of a channel and read its 1000 messages
  recovery     restart with --messages messages, {LIVE_EACH} per channel

Latencies are those of one sync, of one message from write to durable, of the flush of one channel,
of the load of one channel, and of the whole recovery. The written data is read back and compared;
any fault: exit code 1. `load` and `recovery` read mostly from the page cache.

The data is in a new folder in --data, which is removed at the end. Commit and recovery rows need up
to 256 MiB in addition to their messages.

--json prints an object for each row: row, count (of syncs, messages or channels), size (bytes of
one), seconds, rate (per second), p50_us, p99_us, max_us, syncs (null if not counted), faults (an
object with the count of each fault), first_fault (text) and ok.
"""

HEADER = f"{'row':14}{'count':>10}{'rate':>12}{'p50':>12}{'p99':>12}{'max':>12}{'syncs':>8}"


def add_parser(subparsers: Any) -> None:
    """Add `store` to what `bench` can measure."""
    parser = subparsers.add_parser(
        "store",
        help="the store on disk without sockets: syncs, commits, files, recovery",
        description="Measure the durable store, and verify what it returns.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="parent folder for the data")
    parser.add_argument(
        "--messages", type=positive, metavar="N", default=100_000, help="default %(default)s"
    )
    parser.add_argument(
        "--size", type=positive, metavar="N", default=100, help="bytes of one, default %(default)s"
    )
    parser.add_argument("--seconds", type=seconds, default=1.0, metavar="S", help="default 1")
    parser.add_argument("--json", action="store_true", help="one JSON object a row; see below")


def run(args: argparse.Namespace) -> int:
    """Measure all rows, one after the other."""
    if not SIZE_MIN <= args.size <= SIZE_MAX:
        raise usage_error(f"--size: {SIZE_MIN} to {SIZE_MAX} bytes")
    if not LIVE_EACH <= args.messages <= MESSAGES_MAX:
        raise usage_error(f"--messages: {LIVE_EACH} to {MESSAGES_MAX}")
    if args.seconds <= 0:
        raise usage_error("--seconds: more than 0 seconds are needed")
    with temporary_folder(args.data) as data:
        results = [_shown(result, args.json) for result in _measured(args, data)]
    bad = [result.row for result in results if not result.ok]
    if bad:
        raise Failure(f"the store failed in {', '.join(bad)}")
    return ExitCode.OK


@contextmanager
def temporary_folder(below: Path | None) -> Iterator[Path]:
    """A new folder on the disk to be measured, removed afterwards; a problem becomes one line."""
    place = default_folder() if below is None else below
    try:
        with scratch_folder(place) as data:
            yield data
    except FolderHoldsNode as exc:
        raise usage_error(f"{exc}; give --data another folder") from exc
    except BrokenPipeError:
        raise
    except OSError as exc:
        hint = "; give --data DIR" if below is None else ""
        raise Failure(f"cannot use {exc.filename or place}: {exc.strerror}{hint}") from exc


def describe_folder(place: Path | None) -> str:
    """The folder for data and its file system, in words."""
    place = default_folder() if place is None else place
    kind = file_system(place)
    note = "" if kind is None else f" ({kind})"
    warning = ", which is memory and no disk" if kind in MEMORY_FILE_SYSTEMS else ""
    return f"data below {place}{note}{warning}"


def _measured(args: argparse.Namespace, data: Path) -> Iterator[StoreResult]:
    clocks = (time.perf_counter, time.time)
    shape = {"seconds": args.seconds, "messages": args.messages, "size": args.size}
    bench = StoreBench(data, OsDisk(), *clocks, **shape)
    if not args.json:
        print_line(describe_folder(data.parent))
        print_line(HEADER)
    for measure in bench.rows():
        yield measure()


def _shown(result: StoreResult, as_json: bool) -> StoreResult:
    if as_json:
        print_json(msgspec.to_builtins(result))
        return result
    times = "".join(f"{us / 1000:>9.3f} ms" for us in (result.p50_us, result.p99_us, result.max_us))
    syncs = "-" if result.syncs is None else f"{result.syncs:,}"
    print_line(f"{result.row:14}{result.count:>10,}{result.rate:>10,.0f}/s{times}{syncs:>8}")
    if not result.ok:
        counts = ", ".join(f"{count} {fault}" for fault, count in result.faults.items())
        text = f"{counts}; first: {result.first_fault}" if counts else "nothing was stored"
        print_line(f"  FAULTS {text}")
    return result
