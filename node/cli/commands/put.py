"""`millpond put`: a message from an argument or stdin, or one per line."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from millpond.actors.errors import RequestError
from millpond.node.cli import sealed_messages as sealed
from millpond.node.cli.connection import explain, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.input import read_available, read_lines, too_large
from millpond.node.cli.options.node import U32_MAX, add_channel, add_node_options, seconds, u32
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.channel import PUT_BYTES, Channel
from millpond.node.client.connect import FRAME_SIZE_MAX, PROBE
from millpond.node.client.future import ReplyFuture
from millpond.node.client.in_flight import Receipt

EPILOG = """\
examples:
  millpond put chat/1 'hello'               prints the id of the message
  millpond put --ttl 60 chat/1 < picture    stdin is one message, stored for a minute
  tail -f log | millpond put --lines logs   each line is a message
  millpond put --key 7 orders '{"n": 1}'    can be repeated: the message is stored once
  millpond put --to bob notes 'hello'       encrypted for bob, who receives it in `notes`

The id is printed when the node has stored the message with the promised durability (see --json).
With --to the node stores the message until the peer has it. The peer's node accepts it in a channel
that it opens to contacts (`millpond serve --peer-channel notes`), and refuses it otherwise.
"""
ANSWERS_MAX = 512
RECONNECT_S = 30.0
DATA_MAX = FRAME_SIZE_MAX - PUT_BYTES
"""Bytes of a message that no packet can exceed; most nodes take less, and say so."""


def add_parser(subparsers: Any) -> None:
    """Add `put` to the command line."""
    parser = subparsers.add_parser(
        "put",
        description="Put messages into a channel.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--to",
        metavar="PEER",
        help="encrypt the message for this peer and deliver it there",
    )
    add_channel(parser)
    parser.add_argument("data", metavar="DATA", nargs="?", help="message; - or none: read stdin")
    parser.add_argument(
        "--ttl",
        type=u32,
        metavar="S",
        default=0,
        help="time to live in seconds; 0: the default of the node",
    )
    parser.add_argument(
        "--key",
        type=u32,
        metavar="N",
        help="idempotency key; with --lines that of the first line, then counting up",
    )
    parser.add_argument("--lines", action="store_true", help="put each line of stdin as a message")
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="give up after S seconds, with exit code 3"
    )
    parser.add_argument(
        "--reconnect",
        type=seconds,
        metavar="S",
        default=RECONNECT_S,
        help="how long a lost connection may be away (default %(default)g); nothing is put twice",
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Put the messages and print their ids."""
    if args.to is not None and args.key is not None:
        raise usage_error("--key and --to exclude each other: an encrypted message has its own key")
    if args.lines:
        if args.data not in (None, "-"):
            raise usage_error("--lines reads stdin; remove DATA")
        return run_in_loop(args, partial(_send_each if args.to else _put_lines, args))
    if args.data is None and sys.stdin.isatty():
        raise usage_error("nothing to put: give DATA, or - to read stdin")
    return run_in_loop(args, partial(_put_one, args))


async def _data(argument: str | None) -> bytes:
    data = await _read_all() if argument is None or argument == "-" else os.fsencode(argument)
    if not data:
        raise usage_error("the message is empty: a node ignores empty messages")
    return data


async def _read_all() -> bytes:
    data = bytearray()
    while chunk := await read_available():
        data += chunk
        if len(data) > DATA_MAX:
            raise too_large("stdin", DATA_MAX)
    return bytes(data)


async def _put_one(args: argparse.Namespace) -> int:
    data = await _data(args.data)
    if args.to is not None:
        async with open_channel(args, PROBE, "producer", reconnect_s=args.reconnect) as channel:
            await sealed.send_message(channel, args, data)
        return ExitCode.OK
    async with open_channel(args, args.channel, "producer", reconnect_s=args.reconnect) as channel:
        _show(await channel.put(data, ttl=args.ttl, key=args.key), args.json)
    return ExitCode.OK


async def _send_each(args: argparse.Namespace) -> int:
    """Send one message after the other, so that they stay in order."""
    async with open_channel(args, PROBE, "producer", reconnect_s=args.reconnect) as channel:
        async for line in read_lines(DATA_MAX):
            if line:
                await sealed.send_message(channel, args, line)
    return ExitCode.OK


async def _put_lines(args: argparse.Namespace) -> int:
    send, receive = anyio.create_memory_object_stream[ReplyFuture[Receipt]](ANSWERS_MAX)
    async with (
        open_channel(args, args.channel, "producer", reconnect_s=args.reconnect) as channel,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_send_lines, args, channel, send)
        await _show_answers(args, receive)
    return ExitCode.OK


async def _send_lines(
    args: argparse.Namespace,
    channel: Channel,
    answers: MemoryObjectSendStream[ReplyFuture[Receipt]],
) -> None:
    """Put lines with several in flight; empty lines are skipped."""
    count = 0
    with answers:
        async for line in read_lines(DATA_MAX):
            if line:
                key = None if args.key is None else (args.key + count) % (U32_MAX + 1)
                await answers.send(await _sent(channel, line, args.ttl, key))
                count += 1


async def _sent(channel: Channel, data: bytes, ttl: int, key: int | None) -> ReplyFuture[Receipt]:
    try:
        return channel.put_nowait(data, ttl=ttl, key=key)
    except anyio.WouldBlock:
        answer: ReplyFuture[Receipt] = ReplyFuture()
        answer.resolve(await channel.put(data, ttl=ttl, key=key))
        return answer


async def _show_answers(
    args: argparse.Namespace, answers: MemoryObjectReceiveStream[ReplyFuture[Receipt]]
) -> None:
    number = 0
    with answers:
        async for answer in answers:
            number += 1
            try:
                receipt = await answer
            except RequestError as exc:
                failure = explain(exc, args)
                assert failure is not None
                raise Failure(f"message {number}: {failure}", failure.code) from exc
            _show(receipt, args.json)


def _show(receipt: Receipt, as_json: bool) -> None:
    if not as_json:
        print_line(str(receipt.id))
        return
    print_json(
        {
            "id": str(receipt.id),
            "ttl": receipt.ttl,
            "key": receipt.key,
            "durability": receipt.durability.name.lower(),
        }
    )
