"""`millpond list`, `get` and `ack`: the stored messages of a channel."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from millpond.node.cli.byte_output import ByteOutput, add_byte_output
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode
from millpond.node.cli.options.node import (
    add_channel,
    add_node_options,
    add_timeout,
    message_id,
    positive,
)
from millpond.node.cli.output import data_field, print_json, write
from millpond.node.client.channel import Channel

LIST_EPILOG = """\
examples:
  millpond list chat/1                      all ids, oldest first
  millpond list chat/1 --from ID            ids from ID on
  millpond list chat/1 --from 18446744073709551615 --limit 1     the newest

If --from is greater than --to the newest ids come first.
"""
GET_EPILOG = """\
examples:
  millpond get chat/1 1994170339541856256          exit code 4 if the message does not exist
  millpond get chat/1 1994170339541856256 --ack    print and remove the message
  millpond get files/1 ID --raw > photo.jpg        the bytes as they were put, without a newline
  millpond get files/1 ID -o photo.jpg             the same
"""
ACK_EPILOG = """\
example:
  millpond list chat/1 | xargs millpond ack chat/1      empty the channel

Acknowledging a message that does not exist is not an error.
"""
IDS_PER_WRITE = 1000


def add_parser(subparsers: Any) -> None:
    """Add `list`, `get` and `ack` to the command line."""
    listing = _parser(subparsers, "list", "List the ids of the messages in a channel.", LIST_EPILOG)
    listing.add_argument("--from", dest="start", type=message_id, metavar="ID", default=0)
    listing.add_argument("--to", dest="end", type=message_id, metavar="ID", default=0)
    listing.add_argument("--limit", type=positive, metavar="N", help="at most N")
    listing.set_defaults(work=_list)
    get = _parser(subparsers, "get", "Print one message without removing it.", GET_EPILOG)
    get.add_argument("id", type=message_id, metavar="ID")
    add_byte_output(get)
    get.add_argument("--ack", action="store_true", help="acknowledge the message after printing it")
    get.set_defaults(work=_get)
    ack = _parser(subparsers, "ack", "Acknowledge messages by id, which removes them.", ACK_EPILOG)
    ack.add_argument("ids", type=message_id, metavar="ID", nargs="+")
    ack.set_defaults(work=_ack)


def _parser(subparsers: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_channel(parser)
    add_timeout(parser)
    add_node_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Open the channel without pushes, and run the command."""
    return run_in_loop(args, partial(_join, args))


async def _join(args: argparse.Namespace) -> int:
    async with open_channel(args, args.channel, "consumer") as channel:
        await args.work(args, channel)
    return ExitCode.OK


async def _list(args: argparse.Namespace, channel: Channel) -> None:
    lines: list[str] = []
    left = args.limit
    async for each in channel.ids(args.start, args.end):
        lines.append(json.dumps({"id": str(each)}) if args.json else str(each))
        if len(lines) == IDS_PER_WRITE:
            _write_lines(lines)
        if left is not None:
            left -= 1
            if left == 0:
                break
    _write_lines(lines)


def _write_lines(lines: list[str]) -> None:
    write("".join(f"{line}\n" for line in lines).encode())
    lines.clear()


async def _get(args: argparse.Namespace, channel: Channel) -> None:
    with ByteOutput(args) as output:
        data = await channel.get(args.id)
        if args.json:
            fields = {"id": str(args.id)} | data_field(data)
            data = json.dumps(fields, ensure_ascii=False).encode()
        await output.write(data if output.is_raw else data + b"\n")
    if args.ack:
        await channel.ack(args.id)
        await channel.ping()


async def _ack(args: argparse.Namespace, channel: Channel) -> None:
    for each in args.ids:
        await channel.ack(each)
    # Acks have no answer, but a connection is served in order: behind the pong they are done.
    await channel.ping()
    if args.json:
        print_json({"acked": [str(each) for each in args.ids]})
