"""`millpond stream trim` and `rm`: records that are removed, after a look at them."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from millpond.actors.errors import UnknownStream
from millpond.actors.store.changes import Position
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options, add_timeout
from millpond.node.cli.output import data_field, print_json, printable
from millpond.node.cli.parser import action, add_alias
from millpond.node.cli.removal import (
    add_yes,
    run_removal,
    say_removed,
    size_fields,
    size_text,
)
from millpond.node.cli.stream.connection import open_streams, topic_text
from millpond.node.cli.stream.options import position, stream_name
from millpond.node.client.streams.records import StreamInfo
from millpond.node.client.streams.streams import Streams

TRIM_EPILOG = """\
examples:
  millpond stream trim orders 1000                  remove the sequences 0 to 999
  millpond stream trim orders 1763683200000-0       remove the records before this id

Trimmed records are gone for every protocol. Sequences and ids of new records do not change. A
position beyond the tail is refused, as it would remove everything; --force does that. On a terminal
the command asks before it removes anything. The number of removed records is printed to stderr.
"""
DELETE_EPILOG = """\
example:
  millpond stream rm orders logs      exit code 4 if one does not exist
  millpond stream rm orders --yes     do not ask, on a terminal
"""


def add_trim(actions: Any) -> None:
    """Add `trim` to the command line."""
    parser = _add(actions, "trim", "Remove the records before a position.", TRIM_EPILOG)
    parser.add_argument("name", metavar="STREAM", type=stream_name)
    parser.add_argument("below", metavar="SEQ|MS-SEQ", type=position, help="first position to keep")
    parser.add_argument(
        "--force", action="store_true", help="trim all records where the position is beyond them"
    )
    parser.set_defaults(work=_run_trim)


def add_delete(actions: Any) -> None:
    """Add `rm` to the command line."""
    parser = _add(actions, "rm", "Delete streams and their records.", DELETE_EPILOG)
    parser.add_argument("names", metavar="STREAM", type=stream_name, nargs="+")
    parser.set_defaults(work=_run_delete)
    add_alias(actions, "delete", parser)


def _add(actions: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    add_yes(parser)
    add_timeout(parser)
    add_node_options(parser)
    return parser


# Trims.


def _run_trim(args: argparse.Namespace) -> int:
    return run_removal(args, partial(_trim_question, args), partial(_trim, args))


async def _trim_question(args: argparse.Namespace) -> str:
    async with open_streams(args) as streams:
        info = await streams.stream(args.name).info()
    _check_position(args, info)
    stream = repr(printable(args.name))
    match args.below:
        case Position(ms=ms, seq=seq):
            kept = size_text(kept_records(info), info.bytes_kept)
            return f"Remove the records before {ms}-{seq} of stream {stream}, which has {kept}?"
        case below:
            count = max(0, min(below, info.tail) - info.trim_point)
            of = size_text(kept_records(info), info.bytes_kept)
            return f"Remove {size_text(count, None)} of {of} of stream {stream}?"


async def _trim(args: argparse.Namespace) -> int:
    async with open_streams(args) as streams:
        stream = streams.stream(args.name)
        before = await stream.info()
        _check_position(args, before)
        await stream.trim(args.below)
        after = await stream.info()
    count = after.trim_point - before.trim_point
    bytes_ = before.bytes_kept - after.bytes_kept if after.tail == before.tail else None
    if args.json:
        fields = {"trim_point": str(after.trim_point)} | size_fields(count, bytes_)
        print_json(data_field(args.name, "stream") | fields)
    left = f"{kept_records(after)} left"
    name = repr(printable(args.name))
    say_removed(args, f"{size_text(count, bytes_)} of stream {name} removed, {left}")
    return ExitCode.OK


def _check_position(args: argparse.Namespace, info: StreamInfo) -> None:
    """Raise Failure for a position beyond the tail, which is a mistake more often than not."""
    match args.below:
        case Position() as below:
            last = info.last_id
            tail = f"the last id, {last.ms}-{last.seq}"
            is_beyond = below > Position(last.ms, last.seq + 1)
            text = f"{below.ms}-{below.seq}"
        case below:
            tail, is_beyond, text = f"the tail, {info.tail}", below > info.tail, str(below)
    if is_beyond and not args.force:
        name = repr(printable(args.name))
        raise Failure(
            f"{text} is beyond {tail}, of stream {name}: nothing was removed (--force removes all "
            "records)"
        )


def kept_records(info: StreamInfo) -> int:
    """The number of records that a stream has."""
    return info.tail - info.trim_point


# Deletions.


def _run_delete(args: argparse.Namespace) -> int:
    return run_removal(args, partial(_delete_question, args), partial(_delete, args))


async def _delete_question(args: argparse.Namespace) -> str:
    texts = []
    async with open_streams(args) as streams:
        for name in args.names:
            try:
                info = await streams.stream(name).info()
            except UnknownStream:
                continue
            size = size_text(kept_records(info), info.bytes_kept)
            texts.append(f"{printable(name)!r} with {size}")
        if not texts:
            raise await _unknown(streams, args.names)
    return f"Delete {'stream' if len(texts) == 1 else 'streams'} {', '.join(texts)}?"


async def _delete(args: argparse.Namespace) -> int:
    missing: list[bytes] = []
    async with open_streams(args) as streams:
        for name in args.names:
            stream = streams.stream(name)
            try:
                info = await stream.info()
                await stream.delete()
            except UnknownStream:
                missing.append(name)
                continue
            count = kept_records(info)
            if args.json:
                fields = {"deleted": True} | size_fields(count, info.bytes_kept)
                print_json(data_field(name, "stream") | fields)
            size = size_text(count, info.bytes_kept)
            say_removed(args, f"stream {printable(name)!r} deleted with {size}")
        if missing:
            raise await _unknown(streams, missing)
    return ExitCode.OK


async def _unknown(streams: Streams, names: list[bytes]) -> Failure:
    """The failure for names that no stream has; a topic among them is said to be one."""
    texts, missing = [], []
    for name in names:
        count = await streams.partitions(name)
        if count is None or count == 1:
            missing.append(repr(os.fsdecode(name)))
        else:
            texts.append(f"{topic_text(name, count)}; see millpond topic rm")
    if missing:
        texts.append(f"there is no stream {', '.join(missing)}")
    return Failure("; ".join(texts), ExitCode.NOT_FOUND)
