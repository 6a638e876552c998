"""`millpond stream`: commands that create, inspect, trim and delete streams."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime
from functools import partial
from typing import Any

from millpond.actors.errors import StreamExists, UnknownStream
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options, add_timeout, positive
from millpond.node.cli.options.units import size, some_seconds
from millpond.node.cli.output import data_field, print_json, print_line, printable, write_async
from millpond.node.cli.parser import Parser, action, add_alias
from millpond.node.cli.stream import append as stream_append
from millpond.node.cli.stream import read as stream_read
from millpond.node.cli.stream import removal
from millpond.node.cli.stream.connection import existing, open_streams
from millpond.node.cli.stream.options import content_type, stream_name
from millpond.node.client.streams.records import StreamInfo
from millpond.node.client.streams.streams import Streams

EPILOG = """\
a first stream:
  millpond stream create orders
  millpond stream append orders 'one' 'two'     prints the sequence of each record
  millpond stream read orders                   all records
  millpond stream tail orders -f                the last records, then new ones until Ctrl-C

S3P and RustLog clients use the same streams. `millpond stream COMMAND --help` has more examples.
Requires the right `admin`, which every local client has if there is no token file.
"""
CREATE_EPILOG = """\
examples:
  millpond stream create orders
  millpond stream create logs --age 604800 --bytes 10G    keep a week, and at most 10 GiB
  millpond stream create users --content-type application/json
  millpond stream create orders --if-missing              succeed if it exists
"""
LS_EPILOG = """\
examples:
  millpond stream ls                 all streams, one name per line
  millpond stream ls logs/ -l        streams with this prefix, with sizes
"""
INFO_EPILOG = """\
example:
  millpond stream show orders        exit code 4 if it does not exist
"""


def add_parser(subparsers: Any) -> None:
    """Add `stream` to the command line."""
    parser = subparsers.add_parser(
        "stream",
        description="Append to and read streams.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    _add_create(actions)
    stream_append.add_append(actions)
    stream_read.add_read(actions)
    stream_read.add_tail(actions)
    removal.add_trim(actions)
    removal.add_delete(actions)
    ls = _add(actions, "ls", "List streams.", LS_EPILOG, _ls)
    ls.add_argument("prefix", metavar="PREFIX", type=os.fsencode, nargs="?", default=b"")
    ls.add_argument(
        "-l",
        "--long",
        action="store_true",
        help="show records, bytes and the time of the last record",
    )
    ls.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    ls.add_argument("--limit", dest="count", type=positive, help=argparse.SUPPRESS)
    show = _add(actions, "show", "Show a stream.", INFO_EPILOG, _info)
    show.add_argument("name", metavar="STREAM", type=stream_name)
    add_alias(actions, "info", show)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def run_short(work: Any, args: argparse.Namespace) -> int:
    """Run a command that ends by itself."""
    return run_in_loop(args, partial(_with_streams, work, args))


async def _with_streams(work: Any, args: argparse.Namespace) -> int:
    async with open_streams(args) as streams:
        await work(args, streams)
    return ExitCode.OK


def _add(actions: Any, name: str, summary: str, epilog: str, work: Any) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=partial(run_short, work))
    return parser


def _add_create(actions: Any) -> None:
    create = _add(actions, "create", "Create a stream.", CREATE_EPILOG, _create)
    create.add_argument("name", metavar="STREAM", type=stream_name)
    create.add_argument(
        "--age",
        type=some_seconds,
        metavar="S",
        help="remove records that are older: 90, 15m, 7d",
    )
    create.add_argument(
        "--bytes",
        type=size,
        metavar="N",
        help="remove the oldest records above this size (64MiB, 1G)",
    )
    create.add_argument(
        "--content-type",
        type=content_type,
        metavar="TYPE",
        help="content type for Durable Streams (application/json: one JSON message per record)",
    )
    create.add_argument("--if-missing", action="store_true", help="succeed if the stream exists")


async def _create(args: argparse.Namespace, streams: Streams) -> None:
    stream = streams.stream(args.name)
    is_new = True
    try:
        await stream.create(age_s=args.age, bytes_max=args.bytes, content_type=args.content_type)
    except StreamExists as exc:
        if not args.if_missing:
            raise Failure(await existing(streams, args.name)) from exc
        is_new = False
    if args.json:
        print_json(data_field(args.name, "stream") | {"created": is_new})


async def _ls(args: argparse.Namespace, streams: Streams) -> None:
    left = args.count
    async for name in streams.names(args.prefix):
        fields: dict[str, Any] = data_field(name, "stream")
        text = printable(name)
        if args.long:
            try:
                info = await streams.stream(name).info()
            except UnknownStream:
                continue  # it was deleted since its name came
            fields |= info_fields(info)
            count = info.tail - info.trim_point
            last = _time(info.last_timestamp) if info.tail else "-"
            text = f"{count:>12} {info.bytes_kept:>14}  {last:24}  {text}"
        line = json.dumps(fields, ensure_ascii=False) if args.json else text
        await write_async(line.encode() + b"\n")
        if left is not None:
            left -= 1
            if left == 0:
                return


async def _info(args: argparse.Namespace, streams: Streams) -> None:
    info = await streams.stream(args.name).info()
    if args.json:
        print_json(data_field(args.name, "stream") | info_fields(info))
        return
    for row in info_rows(args.name, info):
        print_line(row)


def info_fields(info: StreamInfo) -> dict[str, Any]:
    """The JSON fields of a stream; numbers of 64 bits are strings."""
    return {
        "records": str(info.tail - info.trim_point),
        "bytes": str(info.bytes_kept),
        "trim_point": str(info.trim_point),
        "tail": str(info.tail),
        "last_id": f"{info.last_id.ms}-{info.last_id.seq}",
        "last_timestamp": str(info.last_timestamp),
        "created": str(info.created_ms),
        "age_s": info.age_s,
        "bytes_max": None if info.bytes_max is None else str(info.bytes_max),
        "content_type": None if info.content_type is None else printable(info.content_type),
        "waiting": info.waiting,
        "groups": {printable(name): str(offset) for name, offset in info.groups.items()},
        **data_field(info.fence, "fence"),
    }


def info_rows(name: bytes, info: StreamInfo) -> list[str]:
    """The lines of a stream for people."""
    kept = "for ever" if info.age_s is None else f"{info.age_s} s"
    limit = "" if info.bytes_max is None else f", {info.bytes_max} bytes at most"
    rows = {
        "stream": printable(name),
        "records": f"{info.tail - info.trim_point}, {info.bytes_kept} bytes",
        "sequences": f"{info.trim_point} to before {info.tail}",
        "last id": f"{info.last_id.ms}-{info.last_id.seq}",
        "last record": _time(info.last_timestamp) if info.tail else "none",
        "created": _time(info.created_ms),
        "kept": f"{kept}{limit}" if info.age_s or limit else "as the node is configured",
        "waiting": f"{info.waiting} reads",
    }
    if info.content_type is not None:
        rows["content type"] = printable(info.content_type)
    if info.fence:
        rows["fence"] = printable(info.fence)
    for group, offset in sorted(info.groups.items()):
        rows[f"group {printable(group)}"] = f"{offset} ({max(0, info.tail - offset)} behind)"
    return [f"{title:12} {value}" for title, value in rows.items()]


def _time(ms: int) -> str:
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
