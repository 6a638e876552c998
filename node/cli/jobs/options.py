"""Options and output of the commands for jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from millpond.actors.jobs.options import PRIORITY
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.identity import identity_options
from millpond.node.cli.options.tls import tls_context
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import printable
from millpond.node.cli.token_file import read_token
from millpond.node.client.url import parse_urls
from millpond.node.jobs.connector import ConnectionOptions
from millpond.node.jobs.payload import UNREADABLE, channel_of, decode_job
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.requests import JobInfo
from millpond.node.jobs.selection import JobFilter, WorkerInfo
from millpond.node.units import duration_s

LINE_CHARS_MAX = 60


def queue_name(text: str) -> str:
    """A queue name; its channel is `jobs/NAME`."""
    try:
        channel_of(text)
    except (ValueError, UnicodeEncodeError) as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return text


def due(text: str) -> float | datetime:
    """A due time: `90`, `1h30m`, or `2027-01-31T08:00:00+01:00`."""
    delay = duration_s(text.removeprefix("+"))
    if delay is not None:
        return delay
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no time: 90, 1h30m (from now), or 2027-01-31T08:00:00Z"
        raise argparse.ArgumentTypeError(message) from None
    return moment if moment.tzinfo else moment.astimezone()


def connection_options(args: argparse.Namespace) -> ConnectionOptions:
    """The connection options of a command. Raises Failure."""
    known = identity_options(args, _warn)
    return {
        "token": read_token(args.token_file),
        "identity": known.identity,
        "peer": known.peer,
        "on_peer": known.on_peer,
        "tls": tls_context(args, *parse_urls(args.connect)),
        "allow_plain": args.allow_plain,
    }


@asynccontextmanager
async def open_queue(args: argparse.Namespace) -> AsyncIterator[Queue]:
    """The queue `args.queue`, for the block."""
    args.channel = channel_of(args.queue)  # for those who explain what went wrong
    async with Queue(args.connect, args.queue, **connection_options(args)) as queue:
        yield queue


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add the options that select jobs by what they are."""
    parser.add_argument("--task", metavar="NAME", help="jobs of this task")
    parser.add_argument("--error", metavar="TEXT", help="dead letters with this in their reason")
    parser.add_argument(
        "--older-than", type=seconds, metavar="S", help="jobs that are older, such as 90 or 1h"
    )


def filter_of(args: argparse.Namespace) -> JobFilter | None:
    """The selection of a command; None: nothing is selected so."""
    given = JobFilter(task=args.task, error=args.error, older_than=args.older_than)
    return None if given == JobFilter() else given


def worker_fields(worker: WorkerInfo) -> dict[str, Any]:
    """The JSON fields of a worker."""
    jobs = [
        {
            "id": str(job.id),
            "attempt": job.attempt,
            "since": shown_time(job.since),
            "leased_until": shown_time(job.until),
            "begun": job.begun,
            "task": decode_job(job.data).name,
        }
        for job in worker.jobs
    ]
    return {
        "connection": worker.connection,
        "name": worker.name.decode("utf-8", "backslashreplace"),
        "identity": None if worker.identity is None else worker.identity.hex(),
        "window": worker.window,
        "takes": worker.takes,
        "held": worker.held,
        "jobs": jobs,
    }


def parsed_json(data: bytes) -> Any:
    """A JSON payload. Raises Failure for other text."""
    try:
        return msgspec.json.decode(data)
    except UNREADABLE as exc:
        advice = "quote a string twice: '\"hello\"'" if data[:1].isalpha() else str(exc)
        raise usage_error(f"the payload is not JSON ({advice})") from exc


def row_fields(row: JobInfo) -> dict[str, Any]:
    """The JSON fields of a job, without empty ones."""
    fields: dict[str, Any] = {"id": str(row.id), "state": row.state, "attempt": row.attempt}
    for name, ms in (
        ("due", row.due),
        ("leased_until", row.leased_until),
        ("expires", row.expires),
    ):
        if ms:
            fields[name] = shown_time(ms)
    fields["size"] = row.size
    if row.reason:
        fields |= {"origin": str(row.origin), "reason": row.reason}
    if row.flow:
        fields |= {"flow": str(row.flow), "step": row.step}
    return fields


def body_fields(row: JobInfo) -> dict[str, Any]:
    """The JSON fields of the body of a job."""
    if row.data is None:
        return {}
    body = decode_job(row.data)
    fields: dict[str, Any] = {"payload": jsonable(body.payload)}
    if body.name is not None:
        fields["name"] = body.name
    if body.priority != PRIORITY:
        fields["priority"] = body.priority
    if body.limit_key:
        fields["limit_key"] = body.limit_key.decode("utf-8", "backslashreplace")
    if body.start_by_ms:
        fields["start_by"] = shown_time(body.start_by_ms)
    if body.headers:
        fields["headers"] = body.headers
    if body.enqueued_ms:
        fields["enqueued"] = shown_time(body.enqueued_ms)
    return fields


def jsonable(value: Any) -> Any:
    """A value of MessagePack as JSON has it: bytes become base64, times text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def summary(row: JobInfo) -> str:
    """The start of a job on one line, without control characters."""
    if row.data is None:
        return "..."
    body = decode_job(row.data)
    if isinstance(body.payload, bytes):
        text = body.payload.decode("utf-8", "backslashreplace")
        if row.size > len(row.data) and text[:1] in ("\x84", "\x85"):
            text = "..."
    else:
        text = msgspec.json.encode(jsonable(body.payload)).decode()
    if body.name is not None:
        text = f"{body.name} {text}"
    text = printable(text)
    return text if len(text) <= LINE_CHARS_MAX else text[: LINE_CHARS_MAX - 3] + "..."


def shown_time(ms: int) -> str:
    """`2027-01-31T08:00:00Z`, to the second."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _warn(text: str) -> None:
    print(f"millpond: {text}", file=sys.stderr)
