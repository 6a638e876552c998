"""`millpond topic`: topics of RustLog, over P2P."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any
from zlib import crc32

from millpond.actors.errors import StreamExists, UnknownStream
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options, add_timeout, positive
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser, action, add_alias
from millpond.node.cli.removal import (
    add_yes,
    plural,
    run_removal,
    say_removed,
    size_fields,
    size_text,
)
from millpond.node.cli.stream.append import add_records, run_records
from millpond.node.cli.stream.command import run_short
from millpond.node.cli.stream.connection import existing, open_streams
from millpond.node.cli.stream.options import add_start, partitions, sequence, topic_name
from millpond.node.cli.stream.read import add_output, run_reading
from millpond.node.cli.stream.removal import kept_records
from millpond.node.client.streams.records import StreamInfo
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams

EPILOG = """\
a first topic:
  millpond topic create orders --partitions 3
  millpond topic produce orders 'one' 'two'        prints partition and offset of each record
  millpond topic fetch orders --partition 0
  millpond topic commit orders GROUP 1             GROUP has read the offsets below 1

A topic of one partition is the stream of its name; the partitions of another are the streams
TOPIC/0, TOPIC/1 ... An offset is a sequence. Requires the right `admin`.
"""
CREATE_EPILOG = """\
example:
  millpond topic create orders --partitions 3      exit code 1 if the topic or a stream exists
"""
LS_EPILOG = """\
example:
  millpond topic ls                  all topics with their numbers of partitions
"""
DESCRIBE_EPILOG = """\
example:
  millpond topic show orders     offsets of each partition; exit code 4: not found
"""
PRODUCE_EPILOG = """\
examples:
  millpond topic produce orders 'one' 'two'          to all partitions in turn
  millpond topic produce orders --key bob 'three'    one partition for each key
  tail -f log | millpond topic produce logs --partition 0     each line is a record

The partition and offset of each record are printed when it is stored. See `millpond stream append`.
"""
FETCH_EPILOG = """\
examples:
  millpond topic fetch orders                       records of partition 0
  millpond topic fetch orders -p 1 --offset 100 -n 10
  millpond topic fetch orders --group mail          start at the committed offset
"""
COMMIT_EPILOG = """\
example:
  millpond topic commit orders mail 17      the group `mail` has read the offsets below 17
"""
OFFSET_EPILOG = """\
example:
  millpond topic offset orders mail         exit code 4: no commit yet
"""
DELETE_EPILOG = """\
example:
  millpond topic rm orders              with its records and commits
  millpond topic rm orders --yes        do not ask, on a terminal
"""


def add_parser(subparsers: Any) -> None:
    """Add `topic` to the command line."""
    parser = subparsers.add_parser(
        "topic",
        description="Manage topics: partitioned streams with consumer groups.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    create = _add(actions, "create", "Create a topic.", CREATE_EPILOG, _create)
    create.add_argument("--partitions", type=partitions, metavar="N", default=1)
    _add(actions, "ls", "List topics.", LS_EPILOG, _ls, has_topic=False)
    show = _add(actions, "show", "Show the partitions of a topic.", DESCRIBE_EPILOG, _describe)
    add_alias(actions, "describe", show)
    produce = action(actions, "produce", "Append records to a topic.", PRODUCE_EPILOG)
    produce.add_argument("name", metavar="TOPIC", type=topic_name)
    where = produce.add_mutually_exclusive_group()
    _add_partition(where, None)
    where.add_argument(
        "--key", type=os.fsencode, metavar="KEY", help="key that selects the partition"
    )
    add_records(produce)
    produce.set_defaults(work=_produce)
    fetch = action(actions, "fetch", "Read records from a partition of a topic.", FETCH_EPILOG)
    fetch.add_argument("name", metavar="TOPIC", type=topic_name)
    _add_partition(fetch, 0)
    add_start(fetch, "--offset")
    fetch.add_argument(
        "--group",
        type=os.fsencode,
        metavar="GROUP",
        help="start at the committed offset of this consumer group",
    )
    fetch.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    add_output(fetch)
    fetch.set_defaults(work=_fetch, start=0)
    commit = _add(
        actions, "commit", "Commit the offset of a consumer group.", COMMIT_EPILOG, _commit
    )
    commit.add_argument("group", metavar="GROUP", type=os.fsencode)
    commit.add_argument("offset", metavar="OFFSET", type=sequence)
    _add_partition(commit, 0)
    offset = _add(
        actions, "offset", "Show the committed offset of a consumer group.", OFFSET_EPILOG, _offset
    )
    offset.add_argument("group", metavar="GROUP", type=os.fsencode)
    _add_partition(offset, 0)
    rm = _add(actions, "rm", "Delete a topic and its records.", DELETE_EPILOG, None)
    add_yes(rm)
    rm.set_defaults(work=_run_delete)
    add_alias(actions, "delete", rm)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def _add(
    actions: Any, name: str, summary: str, epilog: str, work: Any, *, has_topic: bool = True
) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    if has_topic:
        parser.add_argument("name", metavar="TOPIC", type=topic_name)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=partial(run_short, work))
    return parser


def _add_partition(parser: Any, default: int | None) -> None:
    parser.add_argument("-p", "--partition", type=sequence, metavar="P", default=default)


async def _create(args: argparse.Namespace, streams: Streams) -> None:
    try:
        await streams.create_topic(args.name, args.partitions)
    except StreamExists as exc:
        raise Failure(await existing(streams, args.name)) from exc
    if args.json:
        print_json({"topic": args.name.decode(), "partitions": args.partitions})


async def _ls(args: argparse.Namespace, streams: Streams) -> None:
    async for name, count in streams.topics():
        if args.json:
            print_json({"topic": name.decode(), "partitions": count})
        else:
            print_line(f"{name.decode()} {count}")


async def _describe(args: argparse.Namespace, streams: Streams) -> None:
    count = await _partitions(args, streams)
    rows = [_row(number, await _info(args, streams, number)) for number in range(count)]
    if args.json:
        print_json({"topic": args.name.decode(), "partitions": rows})
        return
    print_line(f"{'partition':>9} {'start':>12} {'tail':>12} {'segments':>8}  groups")
    for row in rows:
        groups = ", ".join(f"{group}: {offset}" for group, offset in row["groups"].items())
        print_line(
            f"{row['partition']:>9} {row['log_start_offset']:>12} {row['high_watermark']:>12} "
            f"{row['segment_count']:>8}  {groups}".rstrip()
        )


async def _info(args: argparse.Namespace, streams: Streams, number: int) -> StreamInfo:
    return await (await streams.partition(args.name, number)).info()


def _row(number: int, info: StreamInfo) -> dict[str, Any]:
    return {
        "partition": number,
        "high_watermark": str(info.tail),
        "log_start_offset": str(info.trim_point),
        "segment_count": info.segments,
        "groups": {os.fsdecode(name): str(offset) for name, offset in info.groups.items()},
    }


def _produce(args: argparse.Namespace) -> int:
    return run_records(args, partial(_targets, args))


async def _targets(args: argparse.Namespace, streams: Streams) -> list[Stream]:
    count = await _partitions(args, streams)
    if args.key is not None:
        args.partition = crc32(args.key) % count
    args.partitions = list(range(count)) if args.partition is None else [args.partition]
    return [await streams.partition(args.name, number) for number in args.partitions]


def _fetch(args: argparse.Namespace) -> int:
    return run_reading(args, partial(_partition, args))


async def _partition(args: argparse.Namespace, streams: Streams) -> Stream:
    stream = await streams.partition(args.name, args.partition)
    if getattr(args, "group", None) is not None and args.action == "fetch":
        args.start = await stream.committed(args.group) or 0
    return stream


async def _commit(args: argparse.Namespace, streams: Streams) -> None:
    stream = await _partition(args, streams)
    await stream.commit(args.group, args.offset)
    if args.json:
        print_json(_partition_fields(args) | {"offset": str(args.offset)})


async def _offset(args: argparse.Namespace, streams: Streams) -> None:
    stream = await _partition(args, streams)
    offset = await stream.committed(args.group)
    if offset is None:
        text = f"group {os.fsdecode(args.group)!r} never committed an offset there"
        raise Failure(text, ExitCode.NOT_FOUND)
    if args.json:
        print_json(_partition_fields(args) | {"offset": str(offset)})
    else:
        print_line(str(offset))


def _partition_fields(args: argparse.Namespace) -> dict[str, Any]:
    group = os.fsdecode(args.group)
    return {"topic": args.name.decode(), "partition": args.partition, "group": group}


def _run_delete(args: argparse.Namespace) -> int:
    return run_removal(args, partial(_delete_question, args), partial(_delete, args))


async def _delete_question(args: argparse.Namespace) -> str:
    async with open_streams(args) as streams:
        partitions, records, bytes_ = await _topic_size(args, streams)
    size = size_text(records, bytes_)
    return f"Delete topic {args.name.decode()!r} with {plural(partitions, 'partition')}, {size}?"


async def _delete(args: argparse.Namespace) -> int:
    async with open_streams(args) as streams:
        partitions, records, bytes_ = await _topic_size(args, streams)
        await streams.delete_topic(args.name)
    if args.json:
        fields = {"deleted": True} | size_fields(records, bytes_)
        print_json({"topic": args.name.decode()} | fields)
    size = f"{plural(partitions, 'partition')}, {size_text(records, bytes_)}"
    say_removed(args, f"topic {args.name.decode()!r} deleted with {size}")
    return ExitCode.OK


async def _topic_size(args: argparse.Namespace, streams: Streams) -> tuple[int, int, int]:
    """The numbers of partitions, records and bytes of a topic."""
    count = await _partitions(args, streams)
    infos = [await _info(args, streams, number) for number in range(count)]
    return count, sum(map(kept_records, infos)), sum(info.bytes_kept for info in infos)


async def _partitions(args: argparse.Namespace, streams: Streams) -> int:
    count = await streams.partitions(args.name)
    if count is None:
        raise UnknownStream("there is no topic of this name")
    return count
