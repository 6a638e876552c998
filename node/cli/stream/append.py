"""`millpond stream append` and `topic produce`: records from arguments, a file or stdin."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from millpond.actors.errors import OutcomeUnknown, RequestError
from millpond.node.cli.connection import explain, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, first_cause, until_signal, usage_error
from millpond.node.cli.input import STDIN, read_available, read_line_groups, too_large
from millpond.node.cli.jsonl import BadLine
from millpond.node.cli.options.node import add_node_options, add_reconnect, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, write_async
from millpond.node.cli.parser import action
from millpond.node.cli.progress import Progress, counted_records
from millpond.node.cli.stream.connection import open_streams
from millpond.node.cli.stream.options import header, sequence, stream_name
from millpond.node.cli.stream.record_format import read_record
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.streams.records import Appended, NewRecord
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams
from millpond.transports.p2p.streams.bodies import RECORDS_MAX

EPILOG = """\
examples:
  millpond stream append orders 'one' 'two'         append two records, all or none
  tail -f log | millpond stream append logs         append each line
  millpond stream append pictures --whole < cat.png append stdin as one record
  millpond stream read a --json | millpond stream append b --jsonl     copy records with headers
  millpond stream append orders 'three' --match 2   append only if the next sequence is 2

The sequence of each record is printed when the node has stored it with the promised durability;
--json prints an object for each append. Lines that arrive together are appended together, up to
--batch. After a failure all printed records are stored; stderr names those with unknown outcome.
"""
RECORD_BYTES = 16
"""The bytes of a record, and of each header, in a packet besides their content."""
GROUPS_AHEAD = 4
TEXT_OF_RECORD = 3
"""A line of JSON may be so many times as long as the record it stands for, and more is refused."""


def add_append(actions: Any) -> None:
    """Add `append` to the command line."""
    parser = action(actions, "append", "Append records to a stream.", EPILOG)
    parser.add_argument("name", metavar="STREAM", type=stream_name)
    add_records(parser)
    parser.add_argument("--ms", type=sequence, metavar="MS", help="first part of the ids in S3P")
    parser.add_argument(
        "--match", type=sequence, metavar="SEQ", help="append only if SEQ is the next sequence"
    )
    parser.add_argument(
        "--fence", type=os.fsencode, metavar="TOKEN", help="fencing token of the stream"
    )
    parser.add_argument(
        "--create", action="store_true", help="create the stream if it does not exist"
    )
    parser.set_defaults(work=run)


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add the options for the source of records, shared by `append` and `produce`."""
    parser.add_argument(
        "data", metavar="DATA", nargs="*", help="one record per argument; - or none: read stdin"
    )
    parser.add_argument("--file", metavar="FILE", type=Path, help="read FILE instead of stdin")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--whole", action="store_true", help="append the whole input as one record")
    source.add_argument("--jsonl", action="store_true", help="each line is a JSON object with data")
    parser.add_argument(
        "--timestamps", action="store_true", help="with --jsonl: keep the timestamps of the lines"
    )
    parser.add_argument(
        "--header",
        type=header,
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="header of every record; repeatable",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        default=RECORDS_MAX,
        help="records of one append at most (default %(default)d)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="give up after S seconds, with exit code 3"
    )
    add_reconnect(parser)
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Append to one stream."""
    return run_records(args, partial(_targets, args))


def run_records(args: argparse.Namespace, choose: Any) -> int:
    """Append records to the streams that `choose` gives, in turn."""
    check_source(args)
    with _opened(args) as fd:
        return run_in_loop(args, partial(_until_interrupted, args, choose, fd))


def check_source(args: argparse.Namespace) -> None:
    """Check the options for the source of records. Raises Failure."""
    is_given = bool(args.data) and args.data != ["-"]
    if is_given and (args.file or args.whole or args.jsonl):
        raise usage_error("give DATA or input options, not both")
    if args.timestamps and not args.jsonl:
        raise usage_error("--timestamps needs --jsonl")
    if args.batch > RECORDS_MAX:
        raise usage_error(f"--batch: an append has {RECORDS_MAX} records at most")
    if not args.data and args.file is None and sys.stdin.isatty():
        raise usage_error("nothing to append: give DATA, or - to read stdin")


async def _targets(args: argparse.Namespace, streams: Streams) -> list[Stream]:
    stream = streams.stream(args.name)
    if args.create:
        await stream.create(exist_ok=True)
    return [stream]


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[int]:
    if args.file is None:
        yield STDIN
        return
    try:
        fd = os.open(args.file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise Failure(f"cannot read {args.file}: {exc.strerror}") from exc
    try:
        yield fd
    finally:
        os.close(fd)


async def _until_interrupted(args: argparse.Namespace, choose: Any, fd: int) -> int:
    timeout_s, args.timeout = args.timeout, None
    is_done = False
    source = None if args.data and args.data != ["-"] else fd
    with Progress("appended", source=source, beside_output=args.quiet) as progress:
        appending = _Appender(args, progress)
        with anyio.move_on_after(timeout_s) as limit:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(until_signal, tasks.cancel_scope)
                    async with open_streams(args, args.reconnect) as streams:
                        await appending.run(streams, choose, fd)
                    is_done = True
                    tasks.cancel_scope.cancel()
            except (RequestError, OSError, Failure, BaseExceptionGroup) as exc:
                failure = appending.explained(first_cause(exc))
                if failure is None:
                    raise
                raise failure from exc
    if is_done:
        return ExitCode.OK
    if limit.cancelled_caught:
        raise Failure(f"timeout after {timeout_s:g} s; {appending.summary()}", ExitCode.TIMEOUT)
    print(f"millpond: interrupted; {appending.summary()}", file=sys.stderr)
    return ExitCode.INTERRUPTED


class _Appender:
    """The appends of one command, one after the other: records stay in order."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        self._args = args
        self._progress = progress
        self._match: int | None = getattr(args, "match", None)
        self._targets: list[Stream] = []
        self._turn = 0
        self._sent = 0
        """Records that are on their way."""

    async def run(self, streams: Streams, choose: Any, fd: int) -> None:
        """Append everything."""
        args = self._args
        self._targets = await choose(streams)
        size_max = streams.append_bytes_max
        if args.data and args.data != ["-"]:
            records = [NewRecord(os.fsencode(text), args.header) for text in args.data]
            if len(records) > args.batch or sum(map(_size, records)) > size_max:
                raise Failure("too many records for one append: use stdin")
            await self._append(records)
        elif args.whole:
            data = await _read_all(fd, size_max - _size(NewRecord(b"", args.header)))
            await self._append([NewRecord(data, args.header)])
        else:
            await self._append_lines(fd, size_max)

    def explained(self, error: BaseException) -> Failure | None:
        """The line that tells what was done before the error; None where nothing was."""
        failure = error if isinstance(error, Failure) else explain(error, self._args)
        is_unknown = isinstance(error, OutcomeUnknown | ConnectionLost)
        is_untouched = not self._progress.records and not (self._sent and is_unknown)
        if failure is None or is_untouched:
            return failure
        return Failure(f"{failure}; {self.summary(is_unknown=is_unknown)}", failure.code)

    def summary(self, *, is_unknown: bool = True) -> str:
        """The number of appended records, in words."""
        text = f"{counted_records(self._progress.records)} appended before"
        if is_unknown and self._sent:
            text += f", the outcome of the next {self._sent} is unknown"
        return text

    async def _append_lines(self, fd: int, size_max: int) -> None:
        send, receive = anyio.create_memory_object_stream[list[NewRecord]](GROUPS_AHEAD)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_lines, self._args, fd, size_max, send)
            async with receive:
                async for records in receive:
                    await self._append_all([*records, *_available(receive)], size_max)

    async def _append_all(self, records: list[NewRecord], size_max: int) -> None:
        batch: list[NewRecord] = []
        size = 0
        for record in records:
            if len(batch) >= self._args.batch or (batch and size + _size(record) > size_max):
                await self._append(batch)
                batch, size = [], 0
            batch.append(record)
            size += _size(record)
        await self._append(batch)

    async def _append(self, batch: list[NewRecord]) -> None:
        """To each of the streams its share, in turns."""
        count = len(self._targets)
        shares: dict[int, list[NewRecord]] = {}
        for record in batch:
            shares.setdefault(self._turn % count, []).append(record)
            self._turn += 1
        for number, share in shares.items():
            self._sent = len(share)
            stored = await self._targets[number].append(
                share,
                ms=getattr(self._args, "ms", None),
                match=self._match,
                fence=getattr(self._args, "fence", None),
            )
            self._sent = 0
            if self._match is not None:
                self._match = stored.tail
            self._progress.add(stored.count, sum(len(record.data) for record in share))
            await self._show(stored, number)

    async def _show(self, stored: Appended, number: int) -> None:
        if self._args.quiet:
            return
        partition = self._args.partitions[number] if "partitions" in self._args else None
        if self._args.json:
            print_json(
                ({} if partition is None else {"partition": partition})
                | {
                    "first": str(stored.first),
                    "count": stored.count,
                    "tail": str(stored.tail),
                    "id": f"{stored.id.ms}-{stored.id.seq}",
                    "timestamp": str(stored.timestamp),
                }
            )
            return
        prefix = "" if partition is None else f"{partition} "
        lines = "".join(f"{prefix}{each}\n" for each in range(stored.first, stored.tail))
        await write_async(lines.encode())


def _available(receive: Any) -> Iterator[NewRecord]:
    """The groups of lines that have arrived, without waiting."""
    while True:
        try:
            yield from receive.receive_nowait()
        except (anyio.WouldBlock, anyio.EndOfStream):
            return


async def _read_lines(
    args: argparse.Namespace,
    fd: int,
    size_max: int,
    records: MemoryObjectSendStream[list[NewRecord]],
) -> None:
    number = 0
    text_max = TEXT_OF_RECORD * size_max if args.jsonl else size_max
    async with records:
        async for lines in read_line_groups(text_max, fd):
            group: list[NewRecord] = []
            for line in lines:
                number += 1
                if args.jsonl and not line.strip():
                    continue
                record = _record(args, line, number)
                if _size(record) > size_max:
                    raise too_large(f"line {number}", size_max)
                group.append(record)
            if group:
                await records.send(group)


def _record(args: argparse.Namespace, line: bytes, number: int) -> NewRecord:
    if not args.jsonl:
        return NewRecord(line, args.header)
    try:
        record = read_record(line, keep_timestamp=args.timestamps)
    except BadLine as exc:
        raise Failure(f"line {number} is not a record: {exc}") from exc
    return NewRecord(record.data, [*record.headers, *args.header], record.timestamp)


def _size(record: NewRecord) -> int:
    headers = sum(len(name) + len(value) + RECORD_BYTES for name, value in record.headers)
    return RECORD_BYTES + len(record.data) + headers


async def _read_all(fd: int, bytes_max: int) -> bytes:
    data = bytearray()
    while chunk := await read_available(fd):
        data += chunk
        if len(data) > bytes_max:
            raise too_large("the input", bytes_max)
    return bytes(data)
