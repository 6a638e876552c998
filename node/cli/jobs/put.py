"""`millpond jobs put`: a job from an argument or stdin, or one per line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from millpond.actors.errors import RequestError
from millpond.actors.jobs.options import LIMIT_KEY_BYTES_MAX, PRIORITY, PRIORITY_MAX
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.input import STDIN, read_available, read_lines, too_large
from millpond.node.cli.jobs.options import due, jsonable, open_queue, parsed_json, queue_name
from millpond.node.cli.options.node import add_node_options, positive
from millpond.node.cli.options.units import U32_MAX, seconds, whole_seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action
from millpond.node.client.connect import FRAME_SIZE_MAX
from millpond.node.jobs.bulk import BYTES_MAX, JOBS_MAX
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.handle import Handle
from millpond.node.jobs.payload import ATTEMPTS_MAX
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.records import KEEP_S_MAX

PUT_EPILOG = """\
examples:
  millpond jobs put mail '{"to": "alice"}'               prints the id of the job
  millpond jobs put mail --task send '{"to": "alice"}'   for the task `send`
  millpond jobs put mail --due 1h30m '"later"'           start later; also 2027-01-31T08:00:00Z
  millpond jobs put mail --priority 9 '"urgent"'          before others; 0 to 9, 4 if not given
  millpond jobs put mail --unique alice '{}'             at most one job with this key
  millpond jobs put mail --wait '[1, 2]'                 prints the result of the handler
  jq -c '.[]' users.json | millpond jobs put mail --lines
  millpond jobs put mail --task send --file jobs.jsonl   a job for each line, all or none

Payloads are JSON. --file prints the number of jobs. Each 10,000 lines of a file are stored
together, all or none of them; an error tells how many jobs were stored before. With --wait progress
goes to stderr; the exit code is 1 if the job becomes a dead letter, and 3 without a result within
--timeout.
"""
DATA_MAX = FRAME_SIZE_MAX - 4096


def add_put(actions: Any) -> None:
    """Add `put` to `millpond jobs`."""
    parser = action(actions, "put", "Put a job into a queue.", PUT_EPILOG)
    parser.add_argument("queue", metavar="QUEUE", type=queue_name)
    parser.add_argument("data", metavar="JSON", nargs="?", help="payload; - or none: read stdin")
    parser.add_argument("--task", "--name", dest="name", metavar="TASK", help="task of the job")
    parser.add_argument(
        "--due", type=due, metavar="TIME", help="earliest start: a time, or a delay such as 1h30m"
    )
    parser.add_argument(
        "--unique", metavar="TEXT", help="unique key: put nothing if a job with this key exists"
    )
    parser.add_argument(
        "--ttl",
        type=whole_seconds,
        metavar="S",
        default=0,
        help="seconds after the job is due, then it becomes a dead letter (default: as the "
        "channel's rule says, else never)",
    )
    parser.add_argument(
        "--attempts", type=positive, metavar="N", help="most attempts (default: those of the task)"
    )
    parser.add_argument(
        "--priority",
        type=int,
        choices=range(PRIORITY_MAX + 1),
        metavar="0..9",
        default=PRIORITY,
        help="higher ones start first (default %(default)s)",
    )
    parser.add_argument(
        "--limit-key", metavar="TEXT", default="", help="limits of keys hold for all jobs of it"
    )
    parser.add_argument(
        "--start-within",
        type=seconds,
        metavar="S",
        help="seconds after the job is due; if it has not started then, it becomes a dead letter",
    )
    parser.add_argument(
        "--keep",
        type=whole_seconds,
        metavar="S",
        help="seconds for which the node keeps the result (default: as the task says)",
    )
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--wait", action="store_true", help="wait for the result and print it")
    more.add_argument("--lines", action="store_true", help="put a job for each line of stdin")
    more.add_argument(
        "--file", metavar="PATH", help="put a job for each line of a file (`-`: stdin), at once"
    )
    parser.add_argument("--timeout", type=seconds, metavar="S", help="give up, exit code 3")
    add_node_options(parser)
    parser.set_defaults(work=run_put)


def run_put(args: argparse.Namespace) -> int:
    """Put the jobs and print their ids."""
    if args.lines and args.data not in (None, "-"):
        raise usage_error("--lines reads stdin; remove JSON")
    if args.file is not None and (args.data is not None or args.unique is not None):
        raise usage_error("--file has the payloads, and no unique key; remove JSON and --unique")
    if args.wait and args.unique is not None:
        raise usage_error("only the first producer of a unique job gets its result; remove --wait")
    if args.attempts is not None and args.attempts > ATTEMPTS_MAX:
        raise usage_error(f"--attempts: at most {ATTEMPTS_MAX}")
    is_alone = args.lines or args.file is not None
    if args.keep is not None and args.keep > KEEP_S_MAX:
        raise usage_error(f"--keep: at most {KEEP_S_MAX} seconds")
    if args.data is None and not is_alone and sys.stdin.isatty():
        raise usage_error("nothing to put: give JSON, or - to read stdin")
    if len(args.limit_key.encode()) > LIMIT_KEY_BYTES_MAX:
        raise usage_error(f"--limit-key: at most {LIMIT_KEY_BYTES_MAX} bytes")
    assert args.ttl <= U32_MAX
    return run_in_loop(args, partial(_put, args))


async def _put(args: argparse.Namespace) -> int:
    if args.lines:
        async with open_queue(args) as queue:
            async for line in read_lines(DATA_MAX):
                if line.strip():
                    _show(args, await _put_one(args, queue, parsed_json(line)))
        return ExitCode.OK
    if args.file is not None:
        return await _put_file(args)
    payload = parsed_json(await _data(args.data))
    async with open_queue(args) as queue:
        handle = await _put_one(args, queue, payload)
        if args.wait:
            return await _await_result(args, handle)
        _show(args, handle)
    return ExitCode.OK


async def _put_file(args: argparse.Namespace) -> int:
    count = 0
    async with open_queue(args) as queue:
        with _opened(args.file) as fd:
            async for payloads in _groups(fd):
                try:
                    ids = await _put_group(args, queue, payloads)
                except RequestError as exc:
                    raise Failure(f"{exc} (jobs that were stored before: {count})") from exc
                count += len(ids)
    if args.json:
        print_json({"count": count})
    else:
        print_line(str(count))
    return ExitCode.OK


@contextmanager
def _opened(path: str) -> Iterator[int]:
    if path == "-":
        yield STDIN
        return
    try:
        file = Path(path).open("rb", buffering=0)
    except OSError as exc:
        raise Failure(f"--file {path}: {exc.strerror}", ExitCode.NOT_FOUND) from exc
    with file:
        yield file.fileno()


async def _groups(fd: int) -> AsyncIterator[list[Any]]:
    """The payloads of the lines, as many at a time as one put takes."""
    payloads: list[Any] = []
    size = number = 0
    async for line in read_lines(DATA_MAX, fd):
        number += 1
        if not line.strip():
            continue
        if len(payloads) == JOBS_MAX or (payloads and size + len(line) > BYTES_MAX // 2):
            yield payloads
            payloads, size = [], 0
        try:
            payloads.append(parsed_json(line))
        except Failure as exc:
            raise usage_error(f"line {number}: {exc}") from exc
        size += len(line)
    if payloads:
        yield payloads


async def _put_group(args: argparse.Namespace, queue: Queue, payloads: list[Any]) -> list[int]:
    return await queue.put_many(
        payloads,
        name=args.name,
        ttl=args.ttl,
        due=args.due,
        attempts=args.attempts,
        priority=args.priority,
        limit_key=args.limit_key,
        start_within=args.start_within,
        keep=args.keep,
    )


async def _put_one(args: argparse.Namespace, queue: Queue, payload: Any) -> Handle:
    return await queue.put(
        payload,
        name=args.name,
        ttl=args.ttl,
        due=args.due,
        unique=args.unique,
        attempts=args.attempts,
        priority=args.priority,
        limit_key=args.limit_key,
        start_within=args.start_within,
        wait=args.wait,
        keep=args.keep,
    )


async def _data(argument: str | None) -> bytes:
    if argument is not None and argument != "-":
        return os.fsencode(argument)
    data = bytearray()
    while chunk := await read_available():
        data += chunk
        if len(data) > DATA_MAX:
            raise too_large("stdin", DATA_MAX)
    return bytes(data)


async def _await_result(args: argparse.Namespace, handle: Handle) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_show_progress, handle)
        try:
            result = jsonable(await handle.result())
        except (JobFailed, JobCancelled) as exc:
            raise Failure(f"job {handle.id}: {exc}") from exc
        tasks.cancel_scope.cancel()
    if args.json:
        print_json({"id": str(handle.id), "result": result})
    else:
        print_line(json.dumps(result, ensure_ascii=False))
    return ExitCode.OK


async def _show_progress(handle: Handle) -> None:
    async for value in handle.progress():
        print(json.dumps(jsonable(value), ensure_ascii=False), file=sys.stderr, flush=True)


def _show(args: argparse.Namespace, handle: Handle) -> None:
    if args.json:
        print_json({"id": str(handle.id), "ttl": handle.ttl, "existing": handle.existing})
    else:
        print_line(str(handle.id))
