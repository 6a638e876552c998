"""`millpond state`: queries of the materialized state of a stream."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import msgspec

from millpond.actors.state.events import ChangeEvent, Control, ControlEvent, Operation, decode_raw
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, until_signal
from millpond.node.cli.options.node import add_node_options, add_reconnect, add_timeout, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import data_field, print_json, printable, write_async
from millpond.node.cli.parser import Parser, action
from millpond.node.cli.stream.command import run_short
from millpond.node.cli.stream.connection import open_streams
from millpond.node.cli.stream.options import stream_name
from millpond.node.client.state.remote import Row, StateInfo
from millpond.node.client.streams.records import Record
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams

EPILOG = """\
a first state:
  millpond stream create users
  millpond stream append users '{"type": "user", "key": "u1", "value": {"name": "Ann"},
                                 "headers": {"operation": "insert"}}'
  millpond state show users             one line per value
  millpond state get users user u1      one value
  millpond state follow users           all values, then changes until Ctrl-C

Events are those of the Durable Streams State Protocol, appended by any protocol. The node reads the
stream at the first query. Records that are not events are skipped and counted (`show --counts`).
"""
GET_EPILOG = """\
example:
  millpond state get users user u1 | jq .name      exit code 4: no such value
"""
SHOW_EPILOG = """\
examples:
  millpond state show users              type, key and value, separated by tabs
  millpond state show users user         values of one type
  millpond state show users --counts     number of values and of skipped records
  millpond state show users --json       one JSON object per line
"""
FOLLOW_EPILOG = """\
examples:
  millpond state follow users            all values, then + type key value and - type key
  millpond state follow users user -n 5  five changes of one type, then exit code 0
  millpond state follow users --json     objects: {"put": ...}, {"delete": ...}, {"reset": true}

A line `= POSITION` (--json: {"live": "POSITION"}) separates values from changes. The command
reconnects after a lost connection. Exit code 3: fewer than -n changes within --timeout.
"""


def add_parser(subparsers: Any) -> None:
    """Add `state` to the command line."""
    parser = subparsers.add_parser(
        "state",
        description="Query the materialized state of a stream.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    get = action(actions, "get", "Print one value as it was written.", GET_EPILOG)
    get.add_argument("name", metavar="STREAM", type=stream_name)
    get.add_argument("kind", metavar="TYPE", type=_text)
    get.add_argument("key", metavar="KEY", type=_text)
    show = action(actions, "show", "List the values of a state.", SHOW_EPILOG)
    show.add_argument("name", metavar="STREAM", type=stream_name)
    show.add_argument("kind", metavar="TYPE", type=_text, nargs="?")
    show.add_argument("--counts", action="store_true", help="print counts in place of values")
    for each, work in ((get, _get), (show, _show)):
        add_timeout(each)
        add_node_options(each)
        each.set_defaults(work=partial(run_short, work))
    follow = action(actions, "follow", "Show a state and follow its changes.", FOLLOW_EPILOG)
    follow.add_argument("name", metavar="STREAM", type=stream_name)
    follow.add_argument("kind", metavar="TYPE", type=_text, nargs="?")
    follow.add_argument("-n", dest="count", type=positive, metavar="N", help="end after N changes")
    follow.add_argument(
        "--timeout", type=seconds, metavar="S", help="end after S seconds, with exit code 3"
    )
    add_reconnect(follow)
    add_node_options(follow)
    follow.set_defaults(work=_run_follow)


def _text(word: str) -> str:
    """A type or key, which is UTF-8 text."""
    try:
        word.encode()
    except UnicodeEncodeError as exc:
        raise argparse.ArgumentTypeError(f"{word!r} is not UTF-8") from exc
    return word


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


async def _get(args: argparse.Namespace, streams: Streams) -> None:
    row = await streams.stream(args.name).state.get(args.kind, args.key)
    if row is None:
        raise Failure(f"there is no {args.kind!r} {args.key!r}", ExitCode.NOT_FOUND)
    await write_async(_object(row) if args.json else row.written + b"\n")


async def _show(args: argparse.Namespace, streams: Streams) -> None:
    state = streams.stream(args.name).state
    if args.counts:
        _print_counts(args, await state.info())
        return
    async for _, rows in state.pages(args.kind):
        await write_async(b"".join(map(_object if args.json else _line, rows)))


def _print_counts(args: argparse.Namespace, info: StateInfo) -> None:
    fields = {
        name: str(value) if type(value) is int else value
        for name, value in msgspec.structs.asdict(info).items()
    }
    if args.json:
        print_json(data_field(args.name, "stream") | fields)
        return
    lines = [f"{name:12} {value}" for name, value in fields.items() if type(value) is str]
    lines += [f"type {printable(kind):20} {count}" for kind, count in info.types.items()]
    lines += [f"passed over: {reason:20} {count}" for reason, count in info.rejected.items()]
    sys.stdout.write("\n".join([f"stream       {printable(args.name)}", *lines]) + "\n")


def _run_follow(args: argparse.Namespace) -> int:
    timeout_s, args.timeout = args.timeout, None
    return run_in_loop(args, partial(_follow, args, timeout_s))


async def _follow(args: argparse.Namespace, timeout_s: float | None) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_streams(args, args.reconnect) as streams:
            with anyio.move_on_after(timeout_s) as limit:
                await _follow_one(args, streams.stream(args.name))
        tasks.cancel_scope.cancel()
        return ExitCode.TIMEOUT if limit.cancelled_caught else ExitCode.OK
    return ExitCode.OK


async def _follow_one(args: argparse.Namespace, stream: Stream) -> None:
    begin = position = None
    async for position, rows in stream.state.pages(args.kind):
        begin = position if begin is None else begin
        await write_async(b"".join(map(_object if args.json else _line, rows)))
    live = json.dumps({"live": str(position)}) if args.json else f"= {position}"
    await write_async(live.encode() + b"\n")
    remaining = args.count
    async for record in _events(stream, begin or 0):
        line = _event_line(args, record)
        if line is None:
            continue
        await write_async(line)
        if remaining is not None:
            remaining -= 1
            if remaining == 0:
                return


async def _events(stream: Stream, start: int) -> AsyncIterator[Record]:
    def on_gap(first: int, end: int) -> None:
        sys.stderr.write(f"records {first} to {end - 1} were trimmed before they were read\n")

    async for record in stream.follow(start, on_gap=on_gap):
        is_command = len(record.headers) == 1 and not record.headers[0][0]
        if record.data and not is_command:
            yield record


def _event_line(args: argparse.Namespace, record: Record) -> bytes | None:
    """The line of a record; None for records that are not selected."""
    event = decode_raw(record.data)
    if isinstance(event, ControlEvent) and event.headers.control is Control.RESET:
        return b'{"reset": true}\n' if args.json else b"reset\n"
    if not isinstance(event, ChangeEvent) or args.kind not in (None, event.type):
        return None
    is_gone = event.headers.operation is Operation.DELETE
    written = b"" if is_gone or not isinstance(event.value, msgspec.Raw) else bytes(event.value)
    row = Row(event.type, event.key, written)
    if not args.json:
        return (b"- %b\n" % _names(row)) if is_gone else b"+ " + _line(row)
    if is_gone:
        return json.dumps({"delete": {"type": row.type, "key": row.key}}).encode() + b"\n"
    return b'{"put": %b}\n' % _object(row).rstrip(b"\n")


def _names(row: Row) -> bytes:
    return f"{printable(row.type)}\t{printable(row.key)}".encode("utf-8", "surrogateescape")


def _line(row: Row) -> bytes:
    return b"%b\t%b\n" % (_names(row), _flat(row.written))


def _object(row: Row) -> bytes:
    fields = {"type": row.type, "key": row.key, "value": msgspec.Raw(_flat(row.written))}
    return msgspec.json.encode(fields) + b"\n"


def _flat(written: bytes) -> bytes:
    return msgspec.json.format(written, indent=-1) if b"\n" in written else written
