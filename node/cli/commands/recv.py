"""`millpond recv`: messages to stdout or a file, each acknowledged after it is written."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from millpond.actors.errors import NotNegotiated
from millpond.actors.messages import Mode
from millpond.node.cli.byte_output import ByteOutput, add_byte_output
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, until_signal, usage_error
from millpond.node.cli.options.node import add_node_options, add_reconnect, channel_name, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import data_field
from millpond.node.cli.progress import Progress
from millpond.node.cli.sealed_messages import is_envelope, open_message
from millpond.node.client.channel import Channel, Message
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond recv chat/1                     receive one message
  millpond recv chat/1 -n 10 --timeout 5   receive ten, or fewer within five seconds (exit code 3)
  millpond recv logs --follow              receive until Ctrl-C, reconnecting
  millpond recv chat/1 --no-ack            print without acknowledging: it is pushed again
  millpond recv files/1 --raw > photo.jpg  the bytes as they were put, without a newline
  millpond recv files/1 -o photo.jpg       the same into a file
  millpond recv jobs/mail --mode queue     share the messages with other consumers
  millpond recv notes --json               print decrypted messages with their senders
  millpond recv 'orders/*' news --follow   several channels; those that are made later join

A message is acknowledged, which removes it from the node, after it is written and flushed, to the
disk with -o. If the connection is lost for good the exit code is 1, and unprinted messages stay at
the node. Messages that are encrypted for another node, or by an unknown sender, are not printed and
stay there, too.

In a name `*` is any text, `?` any character and `[ab]` one of these. With such a name, or several,
--json has the channel of each message.
"""
WINDOW = 32
WINDOW_MAX = 2**16 - 1


def add_parser(subparsers: Any) -> None:
    """Add `recv` to the command line."""
    parser = subparsers.add_parser(
        "recv",
        description="Receive messages, print each with a newline, and acknowledge them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("channels", metavar="CHANNEL", type=channel_name, nargs="+")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "-n", dest="count", type=positive, metavar="N", default=1, help="at most N (default 1)"
    )
    amount.add_argument("-f", "--follow", action="store_true", help="receive until Ctrl-C")
    parser.add_argument("--no-ack", action="store_true", help="do not acknowledge messages")
    parser.add_argument(
        "--sealed", action="store_true", help="print encrypted messages as they are"
    )
    add_byte_output(parser)
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end after S seconds, with exit code 3"
    )
    parser.add_argument(
        "--window",
        type=positive,
        metavar="N",
        help=f"most unacknowledged messages (default {WINDOW} or -n; queue: 1)",
    )
    parser.add_argument("--mode", choices=("pair", "fanout", "queue"), help="required channel mode")
    add_reconnect(parser)
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Receive until there is enough."""
    timeout_s, args.timeout = args.timeout, None
    args.channel = args.channels[0]
    args.is_pattern = len(args.channels) > 1 or any(mark in args.channel for mark in b"*?[")
    if args.is_pattern and (args.mode or args.no_ack):
        raise usage_error("--mode and --no-ack are for one channel")
    with ByteOutput(args) as output:
        return run_in_loop(args, partial(_receive, args, timeout_s, output))


async def _receive(args: argparse.Namespace, timeout_s: float | None, output: ByteOutput) -> int:
    code = ExitCode.OK
    async with anyio.create_task_group() as tasks:
        interrupted = partial(until_signal, tasks.cancel_scope)
        tasks.start_soon(interrupted)
        if args.is_pattern:
            is_over = await _receive_all(args, timeout_s, output)
            tasks.cancel_scope.cancel()
            return ExitCode.TIMEOUT if is_over else ExitCode.OK
        async with open_channel(
            args,
            args.channel,
            "consumer",
            mode=args.mode,
            window=min(args.window or 1, WINDOW_MAX),
            reconnect_s=args.reconnect,
        ) as channel:
            with anyio.move_on_after(timeout_s) as scope:
                await _widen(channel, args)
                await _write_messages(channel, args, output)
        if scope.cancelled_caught:
            code = ExitCode.TIMEOUT
        tasks.cancel_scope.cancel()
        return code
    return ExitCode.OK if args.follow else ExitCode.INTERRUPTED


async def _receive_all(
    args: argparse.Namespace, timeout_s: float | None, output: ByteOutput
) -> bool:
    """Receive from all channels that match. True: the time was over."""
    async with open_channel(args, PROBE, "consumer", reconnect_s=args.reconnect) as control:
        with anyio.move_on_after(timeout_s) as scope:
            async with control.channels.receiver(*args.channels, window=args.window) as receiver:
                left = None if args.follow else args.count
                while left is None or left > 0:
                    message = await receiver.receive()
                    data = await _output_of(message.channel, message, args, is_raw=output.is_raw)
                    if data is None:
                        await message.decline()
                        continue
                    await output.write(data)
                    await message.ack()
                    left = None if left is None else left - 1
    return scope.cancelled_caught


async def _widen(channel: Channel, args: argparse.Namespace) -> None:
    """Raise the window, unless --window is given or these are jobs for other workers."""
    wanted = WINDOW if args.follow else min(args.count, WINDOW)
    if args.window is None and channel.mode is not Mode.QUEUE and wanted > channel.window:
        with suppress(NotNegotiated):
            await channel.credit(wanted - channel.window)


async def _write_messages(channel: Channel, args: argparse.Namespace, output: ByteOutput) -> None:
    left = None if args.follow else args.count
    beside = args.file is not None
    with Progress("received", what="message", total=left, beside_output=beside) as progress:
        await _write_some(channel, args, output, left, progress)


async def _write_some(
    channel: Channel,
    args: argparse.Namespace,
    output: ByteOutput,
    left: int | None,
    progress: Progress,
) -> None:
    while left is None or left > 0:
        message = await channel.receive()
        data = await _output_of(channel, message, args, is_raw=output.is_raw)
        if data is None:
            await message.decline()
            continue
        await output.write(data)
        progress.add(1, len(data))
        if left is not None:
            left -= 1
        if not args.no_ack:
            await message.ack()
        elif left != 0:
            # A message that is never acknowledged takes a place in the window: allow one more.
            await channel.credit(1)


async def _output_of(
    channel: Channel, message: Message, args: argparse.Namespace, *, is_raw: bool
) -> bytes | None:
    """The output for a message; None for an envelope that cannot be decrypted."""
    names: dict[str, Any] = {"id": str(message.id), "attempt": message.attempt}
    name = args.channel
    if args.is_pattern:
        name = os.fsencode(channel.name)
        names = data_field(name, "channel") | names
    if args.sealed or not is_envelope(message.data):
        data, fields = message.data, data_field(message.data)
    else:
        envelope = await open_message(channel, name, message)
        if envelope is None:
            return None
        data, fields = envelope.data, envelope.fields()
    if not args.json:
        return data if is_raw else data + b"\n"
    return json.dumps(names | fields, ensure_ascii=False).encode() + b"\n"
