"""`millpond ask` and `millpond reply`: a question to those who receive in a channel, and answers
that a program gives."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from typing import Any

import anyio

from millpond.actors.errors import NoListener
from millpond.node.cli.byte_output import ByteOutput, add_byte_output
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, until_signal, usage_error
from millpond.node.cli.input import read_available, too_large
from millpond.node.cli.options.node import add_channel, add_node_options, add_reconnect, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import data_field, print_json
from millpond.node.client.channel import Message
from millpond.node.client.errors import AskFailed
from millpond.node.client.single_put import DATA_BYTES_MAX

ASK_EPILOG = """\
examples:
  millpond ask rpc 'hello'                prints the answer
  millpond ask rpc --timeout 1m < file    stdin is the question; the answer may take a minute
  millpond ask rpc hi --json              the answer as an object

The question goes to a client that receives in the channel and replies: `millpond reply`, or a
program with Message.reply. Where none receives, nothing is put, and the exit code is 4. An answer
that says that it failed is printed on stderr, with exit code 1; no answer in time is 3.
"""
REPLY_EPILOG = """\
examples:
  millpond reply rpc -- tr a-z A-Z         the question is its stdin, and its stdout the answer
  millpond reply rpc -n 1 -- date          one question
  millpond reply rpc --mode queue -- ./work.sh    share the questions with others

The program is run for each question, one at a time; MILLPOND_CHANNEL and MILLPOND_MESSAGE_ID say
which. If it ends with another code than 0, the client that asked is told that it failed, with the
last line of its stderr. Messages that are no questions are left to others. It goes on until Ctrl-C.
"""
TIMEOUT_S, RUN_S = 10.0, 60.0
TEXT_MAX = 500


def add_parser(subparsers: Any) -> None:
    """Add `ask` and `reply` to the command line."""
    ask = _add(subparsers, "ask", "Ask a question in a channel, and print the answer.", ASK_EPILOG)
    ask.add_argument("data", metavar="DATA", nargs="?", help="question; - or none: read stdin")
    ask.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        default=TIMEOUT_S,
        help="wait for the answer at most S seconds, with exit code 3 (default %(default)g)",
    )
    add_byte_output(ask)
    reply = _add(subparsers, "reply", "Answer questions in a channel by a program.", REPLY_EPILOG)
    reply.add_argument("program", metavar="PROGRAM", nargs="+", help="program, and its arguments")
    reply.add_argument(
        "-n", dest="count", type=positive, metavar="N", help="stop after N questions"
    )
    reply.add_argument("--mode", choices=("pair", "fanout", "queue"), help="required channel mode")
    reply.add_argument(
        "--run-for",
        type=seconds,
        metavar="S",
        default=RUN_S,
        help="end a program after S seconds; the question has failed (default %(default)g)",
    )
    add_reconnect(reply)


def _add(subparsers: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_channel(parser)
    add_node_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Ask a question, or answer those that come."""
    if args.command == "reply":
        if shutil.which(args.program[0]) is None:
            raise usage_error(f"there is no program {args.program[0]!r} that can be run")
        args.timeout = None
        return run_in_loop(args, partial(_reply, args))
    if args.data is None and sys.stdin.isatty():
        raise usage_error("nothing to ask: give DATA, or - to read stdin")
    answer_s, args.timeout = args.timeout, None
    with ByteOutput(args) as output:
        return run_in_loop(args, partial(_ask, args, answer_s, output))


# Questions.


async def _ask(args: argparse.Namespace, answer_s: float, output: ByteOutput) -> int:
    question = await _stdin() if args.data in (None, "-") else os.fsencode(args.data)
    if not question:
        raise usage_error("a question has at least one byte")
    async with open_channel(args, args.channel, "producer") as channel:
        try:
            answer = await channel.ask(question, timeout_s=answer_s)
        except NoListener as exc:
            raise Failure(str(exc), ExitCode.NOT_FOUND, "see millpond reply") from exc
        except AskFailed as exc:
            raise Failure(f"the question failed: {exc}") from exc
        except TimeoutError as exc:
            raise Failure(f"no answer within {answer_s:g} s", ExitCode.TIMEOUT) from exc
    if args.json:
        answer = json.dumps(data_field(answer)).encode()
    await output.write(answer if output.is_raw else answer + b"\n")
    return ExitCode.OK


async def _stdin() -> bytes:
    data = bytearray()
    while chunk := await read_available():
        data += chunk
        if len(data) > DATA_BYTES_MAX:
            raise too_large("the question", DATA_BYTES_MAX)
    return bytes(data)


# Answers.


async def _reply(args: argparse.Namespace) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_channel(
            args, args.channel, "consumer", mode=args.mode, window=1, reconnect_s=args.reconnect
        ) as channel:
            left = args.count
            async for message in channel:
                if not message.wants_reply:
                    await message.decline()
                    continue
                await _answer(args, message)
                left = None if left is None else left - 1
                if left == 0:
                    break
        tasks.cancel_scope.cancel()
        return ExitCode.OK
    return ExitCode.INTERRUPTED if args.count else ExitCode.OK


async def _answer(args: argparse.Namespace, message: Message) -> None:
    """Run the program for a question, and reply with what it prints."""
    variables = {
        "MILLPOND_CHANNEL": os.fsdecode(args.channel),
        "MILLPOND_MESSAGE_ID": str(message.id),
    }
    try:
        with anyio.fail_after(args.run_for):
            done = await anyio.run_process(
                args.program, input=message.payload, check=False, env=os.environ | variables
            )
    except TimeoutError:
        await _fail(args, message, f"no answer within {args.run_for:g} s")
        return
    except OSError as exc:
        # Each question would fail: the one at hand is kept for a program that starts.
        raise Failure(f"cannot run {args.program[0]!r}: {exc.strerror}") from exc
    error = _error_of(done)
    if error is not None:
        await _fail(args, message, error)
        return
    await message.reply(done.stdout)
    if args.json:
        print_json({"id": str(message.id), "error": None} | data_field(done.stdout, "reply"))


async def _fail(args: argparse.Namespace, message: Message, error: str) -> None:
    await message.reply_error(error)
    if args.json:
        print_json({"id": str(message.id), "error": error})


def _error_of(done: subprocess.CompletedProcess[bytes]) -> str | None:
    """The error that a program ended with; None: it succeeded."""
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:TEXT_MAX] if lines else f"the program ended with {done.returncode}"
