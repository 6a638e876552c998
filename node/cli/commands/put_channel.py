"""`millpond put` over a channel of the client: lines, encrypted messages, and any single message
that takes more than the plain exchange."""

from __future__ import annotations

import argparse
import os
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from millpond.actors.errors import RequestError
from millpond.node.cli import sealed_messages as sealed
from millpond.node.cli.connection import explain, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.input import STDIN, read_available, read_lines, too_large
from millpond.node.cli.options.units import U32_MAX
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.progress import Progress
from millpond.node.client.channel import Channel
from millpond.node.client.future import ReplyFuture
from millpond.node.client.in_flight import Receipt
from millpond.node.client.probe import PROBE
from millpond.node.client.single_put import DATA_BYTES_MAX

ANSWERS_MAX = 512


def run(args: argparse.Namespace) -> int:
    """Put the messages and print their ids."""
    if args.lines:
        return run_in_loop(args, partial(_send_each if args.to else _put_lines, args))
    return run_in_loop(args, partial(_put_one, args))


def put_again(args: argparse.Namespace, data: bytes, wait_s: float, elapsed_s: float) -> int:
    """Put a message that may be stored already, with the key `args.key`.

    The node may be away for `wait_s` seconds; `elapsed_s` of the timeout have passed.
    """
    return run_in_loop(args, partial(_put, args, data, wait_s), elapsed_s)


async def _data(argument: str | None) -> bytes:
    data = await _read_all() if argument is None or argument == "-" else os.fsencode(argument)
    if not data:
        raise usage_error("the message is empty: a node ignores empty messages")
    return data


async def _read_all() -> bytes:
    data = bytearray()
    while chunk := await read_available():
        data += chunk
        if len(data) > DATA_BYTES_MAX:
            raise too_large("stdin", DATA_BYTES_MAX)
    return bytes(data)


async def _put_one(args: argparse.Namespace) -> int:
    data = await _data(args.data)
    if args.to is not None:
        async with open_channel(args, PROBE, "producer", reconnect_s=args.reconnect) as channel:
            await sealed.send_message(channel, args, data)
        return ExitCode.OK
    return await _put(args, data)


async def _put(args: argparse.Namespace, data: bytes, wait_s: float = 0.0) -> int:
    async with open_channel(
        args, args.channel, "producer", reconnect_s=args.reconnect, wait_s=wait_s
    ) as channel:
        _show(await channel.put(data, ttl=args.ttl, key=args.key), args.json)
    return ExitCode.OK


async def _send_each(args: argparse.Namespace) -> int:
    """Send one message after the other, so that they stay in order."""
    async with open_channel(args, PROBE, "producer", reconnect_s=args.reconnect) as channel:
        async for line in read_lines(DATA_BYTES_MAX):
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
        with Progress("put", what="message", source=STDIN) as progress:
            await _show_answers(args, receive, progress)
    return ExitCode.OK


async def _send_lines(
    args: argparse.Namespace,
    channel: Channel,
    answers: MemoryObjectSendStream[ReplyFuture[Receipt]],
) -> None:
    """Put lines with several in flight; empty lines are skipped."""
    count = 0
    with answers:
        async for line in read_lines(DATA_BYTES_MAX):
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
    args: argparse.Namespace,
    answers: MemoryObjectReceiveStream[ReplyFuture[Receipt]],
    progress: Progress,
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
            progress.add(1, 0)


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
