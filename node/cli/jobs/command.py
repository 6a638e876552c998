"""`millpond jobs`: commands that put, inspect, retry and cancel jobs and dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from millpond.actors.errors import NotAllowed, NotFound, NotNegotiated, RequestError
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.jobs import put as jobs_put
from millpond.node.cli.jobs.flow import add_flow
from millpond.node.cli.jobs.limits import add_limits
from millpond.node.cli.jobs.options import (
    add_filter,
    body_fields,
    filter_of,
    jsonable,
    open_queue,
    queue_name,
    row_fields,
    shown_time,
    summary,
    worker_fields,
)
from millpond.node.cli.jobs.queues import add_queues
from millpond.node.cli.jobs.result import (
    RESULT_EPILOG,
    add_options,
    progress_fields,
    show_result,
)
from millpond.node.cli.jobs.schedule import add_schedule
from millpond.node.cli.options.node import add_node_options, add_timeout, message_id, positive
from millpond.node.cli.output import print_json, print_line, printable
from millpond.node.cli.parser import Parser, action, add_alias
from millpond.node.cli.removal import add_yes, plural, run_removal, say_removed
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.history import HistoryEntry, expiry_entry, id_ms
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.requests import JobInfo, JobState
from millpond.node.jobs.selection import JobFilter

EPILOG = """\
a first job:
  millpond jobs put mail '{"to": "alice"}'      prints the id of the job
  millpond work tasks:send --queue mail         runs the function `send` of tasks.py for each job
  millpond jobs ls mail                         list jobs in all states
  millpond jobs queues                          list the queues of the node

A queue NAME is the channel `jobs/NAME`. `millpond jobs COMMAND --help` has more examples.
"""
LS_EPILOG = """\
examples:
  millpond jobs ls mail                      id, state, started attempts, start of the payload
  millpond jobs ls mail --state delayed -n 10
  millpond jobs ls mail --json | jq .due

States: ready, delayed (due later, or waiting for a retry), leased (to a worker), dead.
"""
COUNTS_EPILOG = """\
example:
  millpond jobs counts mail                  number of jobs in each state, and of workers
"""
SHOW_EPILOG = """\
example:
  millpond jobs show mail ID                 everything about a job; exit code 4: not found

The history lists failed attempts and their errors. It requires the right `admin`.
"""
RETRY_EPILOG = """\
example:
  millpond jobs retry mail ID                run a delayed job now
"""
CANCEL_EPILOG = """\
example:
  millpond jobs rm mail ID               remove a job, even a leased one
  millpond jobs rm mail ID --yes         do not ask, on a terminal

A running async handler is cancelled at once; one in a thread finds `job.cancelled` true.
"""
DEAD_EPILOG = """\
examples:
  millpond jobs dead ls mail                 dead letters with their reasons
  millpond jobs dead retry mail ID           back into the queue, with a new id and new attempts
  millpond jobs dead retry mail --all
  millpond jobs dead retry mail --error "Timeout" --older-than 1h
  millpond jobs dead retry mail --task send
  millpond jobs dead rm mail --all        delete them, and print their number; asks on a terminal
  millpond jobs dead export mail > dead.jsonl       one JSON object a line, with payloads

Filters select the dead letters that match all of them: --task by the name of the task, --error by a
part of the reason (which has the text of the last error), --older-than by the time since the job
became a dead letter.
"""
WORKERS_EPILOG = """\
examples:
  millpond jobs workers mail              a line for each worker, and one for each job that it has
  millpond jobs workers mail --json | jq .jobs

A line has the number of the connection (`millpond top` shows where it comes from), the jobs that it
holds of those that it takes, and the name of the worker (`work --name`). A job is held since it was
given to the worker; it waits there if the worker has several queues and no slot.
"""
MOVE_EPILOG = """\
examples:
  millpond jobs move mail slow 12345      a waiting job, or a dead letter
  millpond jobs move mail slow --all      all that wait; running ones stay
  millpond jobs move mail slow --task resize --older-than 1h

Jobs get new ids and attempts, and lose their unique keys. It takes the rights `list`, `get`, `push`
and `ack` in the first queue, and `put` in the second.
"""
PAUSE_EPILOG = """\
examples:
  millpond jobs pause mail        workers get no jobs; running ones finish, and puts go on
  millpond jobs resume mail

A pause outlives restarts of the node and of workers.
"""
STATES: tuple[JobState, ...] = ("ready", "delayed", "leased", "dead")

Work = Callable[[argparse.Namespace, Queue], Awaitable[None]]
Question = Callable[[argparse.Namespace, Queue], Awaitable[str]]


class _JobsParser(Parser):
    """A parser whose options may stand anywhere after the name of the command."""

    def _options_first(self, words: list[str]) -> list[str]:
        return words if self._subparsers is not None else super()._options_first(words)


def add_parser(subparsers: Any) -> None:
    """Add `jobs` to the command line."""
    parser = subparsers.add_parser(
        "jobs",
        description="Put, inspect, retry and cancel jobs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=_JobsParser
    )
    jobs_put.add_put(actions)
    ls = _add(actions, "ls", "List jobs.", LS_EPILOG, _ls)
    ls.add_argument("--state", choices=STATES, help="only jobs in this state")
    ls.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    add_queues(actions)
    add_limits(actions)
    _add(actions, "workers", "List workers and their jobs.", WORKERS_EPILOG, _workers)
    move = _add(actions, "move", "Move waiting jobs to another queue.", MOVE_EPILOG, _move)
    move.add_argument("to", metavar="TO", type=queue_name)
    _add_ids(move, "*")
    move.add_argument("--all", action="store_true", help="all waiting jobs")
    add_filter(move)
    _add(actions, "pause", "Give workers no jobs.", PAUSE_EPILOG, partial(_pause, is_paused=True))
    resume = partial(_pause, is_paused=False)
    _add(actions, "resume", "Give workers jobs again.", PAUSE_EPILOG, resume)
    _add(actions, "counts", "Count jobs by state.", COUNTS_EPILOG, _counts)
    _add_ids(_add(actions, "show", "Show a job.", SHOW_EPILOG, _show), nargs=None)
    result = _add(actions, "result", "Print the result of a job.", RESULT_EPILOG, show_result)
    _add_ids(result, nargs=None)
    add_options(result)
    _add_ids(_add(actions, "retry", "Run waiting jobs now.", RETRY_EPILOG, _retry))
    rm = _add(actions, "rm", "Remove jobs, also running ones.", CANCEL_EPILOG, _cancel)
    _add_ids(rm)
    _make_removal(rm, _cancel_question, _cancel)
    add_alias(actions, "cancel", rm)
    add_schedule(actions, _JobsParser)
    add_flow(actions, _JobsParser)
    dead = action(actions, "dead", "Inspect, retry and purge dead letters.", DEAD_EPILOG)
    dead_actions = dead.add_subparsers(
        dest="deed", metavar="COMMAND", required=True, parser_class=_JobsParser
    )
    ls = _add(dead_actions, "ls", "List dead letters.", DEAD_EPILOG, _ls)
    ls.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    ls.set_defaults(state="dead")
    _add_ids(_add(dead_actions, "show", "Show a dead letter.", DEAD_EPILOG, _show), nargs=None)
    _add_dead(
        _add(dead_actions, "retry", "Put dead letters back into the queue.", DEAD_EPILOG, _dead)
    )
    export = _add(dead_actions, "export", "Print dead letters as JSON.", DEAD_EPILOG, _export)
    add_filter(export)
    rm = _add(dead_actions, "rm", "Delete dead letters.", DEAD_EPILOG, _dead)
    _add_dead(rm)
    _make_removal(rm, _purge_question, _dead)
    add_alias(dead_actions, "purge", rm)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def _add(actions: Any, name: str, text: str, epilog: str, work: Work) -> argparse.ArgumentParser:
    parser = action(actions, name, text, epilog)
    parser.add_argument("queue", metavar="QUEUE", type=queue_name)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=partial(_run, work))
    return parser


def _make_removal(parser: argparse.ArgumentParser, question: Question, work: Work) -> None:
    """Let a command ask before it removes something."""
    add_yes(parser)
    parser.set_defaults(work=partial(_run_removal, question, work))


def _add_ids(parser: argparse.ArgumentParser, nargs: str | None = "+") -> None:
    parser.add_argument("ids", metavar="ID", type=message_id, nargs=nargs)


def _add_dead(parser: argparse.ArgumentParser) -> None:
    _add_ids(parser, "*")
    parser.add_argument("--all", action="store_true", help="all dead letters")
    add_filter(parser)


def _run(work: Work, args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_with_queue, work, args))


def _run_removal(question: Question, work: Work, args: argparse.Namespace) -> int:
    return run_removal(args, partial(_ask, question, args), partial(_with_queue, work, args))


async def _ask(question: Question, args: argparse.Namespace) -> str:
    async with open_queue(args) as queue:
        return await question(args, queue)


async def _with_queue(work: Work, args: argparse.Namespace) -> int:
    async with open_queue(args) as queue:
        await work(args, queue)
    return ExitCode.OK


async def _ls(args: argparse.Namespace, queue: Queue) -> None:
    left = args.count
    async for row in queue.jobs(*([args.state] if args.state else [])):
        if left == 0:
            return
        left = None if left is None else left - 1
        if args.json:
            print_json(row_fields(row))
        else:
            print_line(_line(row))


def _line(row: JobInfo) -> str:
    about = summary(row)
    match row.state:
        case "delayed":
            about = f"{about}  (due {shown_time(row.due)})"
        case "leased":
            about = f"{about}  (until {shown_time(row.leased_until)})"
        case "dead":
            about = f"{about}  ({row.reason})"
        case _:
            pass
    return f"{row.id}  {row.state:7}  {row.attempt:3}  {about}"


async def _counts(args: argparse.Namespace, queue: Queue) -> None:
    counts = await queue.counts()
    fields: dict[str, Any] = {state: getattr(counts, state) for state in STATES}
    fields["workers"] = counts.workers
    if counts.oldest:
        fields["oldest"] = shown_time(counts.oldest)
    fields |= {"limited": counts.limited, "paused": counts.paused}
    if args.json:
        print_json(fields)
        return
    for name, value in fields.items():
        print_line(f"{name:8} {value}")


async def _pause(args: argparse.Namespace, queue: Queue, *, is_paused: bool) -> None:
    await (queue.pause if is_paused else queue.resume)()
    if args.json:
        print_json({"queue": queue.name, "paused": is_paused})


async def _show(args: argparse.Namespace, queue: Queue) -> None:
    try:
        row = await queue.show(args.ids)
    except NotFound:
        await _show_ended(args, queue)
        return
    fields = row_fields(row) | body_fields(row) | await _progress(args, queue)
    history = [each async for each in _history(queue, row.origin or row.id)]
    if (last := expiry_entry(row)) is not None and last not in history:
        history.append(last)
    if args.json:
        print_json(fields | {"history": [_entry_fields(each) for each in history]})
        return
    for name, value in fields.items():
        shown = value if isinstance(value, str) else _compact(value)
        print_line(f"{name:12} {shown}")
    for each in history:
        when = shown_time(each.at)
        print_line(f"{when} attempt {each.attempt}: {each.what} {each.error}".rstrip())
        for line in each.traceback.splitlines():
            print_line(f"  {printable(line)}")


async def _show_ended(args: argparse.Namespace, queue: Queue) -> None:
    """A job that is not in the queue any more, and left a record."""
    progress = await queue.progress(args.ids)
    fields: dict[str, Any] = {"id": str(args.ids)} | progress_fields(progress)
    try:
        fields["result"] = jsonable(await queue.result(args.ids, 0.5))
        fields["state"] = "done"
    except (JobFailed, JobCancelled, TimeoutError) as exc:
        fields |= {"state": "cancelled" if isinstance(exc, JobCancelled) else "failed"}
        fields["error"] = str(exc)
    if args.json:
        print_json(fields)
        return
    for name, value in fields.items():
        print_line(f"{name:12} {value if isinstance(value, str) else _compact(value)}")


async def _progress(args: argparse.Namespace, queue: Queue) -> dict[str, Any]:
    """The reported progress of the job; nothing from a node that keeps no progress."""
    try:
        return progress_fields(await queue.progress(args.ids))
    except (RequestError, NotNegotiated):
        return {}


async def _history(queue: Queue, job: int) -> Any:
    try:
        async for entry in queue.history(job):
            yield entry
    except (NotAllowed, NotNegotiated):
        return


def _compact(value: Any) -> str:
    import json

    return json.dumps(jsonable(value), ensure_ascii=False)


def _entry_fields(entry: HistoryEntry) -> dict[str, Any]:
    fields = {"attempt": entry.attempt, "at": shown_time(entry.at), "what": entry.what}
    fields |= {"error": entry.error, "worker": entry.worker}
    return fields | ({"traceback": entry.traceback} if entry.traceback else {})


async def _retry(args: argparse.Namespace, queue: Queue) -> None:
    for job in args.ids:
        with _explained(job, queue):
            await queue.retry(job)
        _done(args, job, "retried")


async def _cancel(args: argparse.Namespace, queue: Queue) -> None:
    for job in args.ids:
        with _explained(job, queue):
            await queue.cancel(job)
        _done(args, job, "cancelled")
    say_removed(args, f"{plural(len(args.ids), 'job')} of queue {queue.name!r} cancelled")


async def _cancel_question(args: argparse.Namespace, queue: Queue) -> str:
    return f"Cancel {plural(len(args.ids), 'job')} of queue {queue.name!r}?"


@contextmanager
def _explained(job: int, queue: Queue) -> Iterator[None]:
    try:
        yield
    except NotFound as exc:
        text = f"there is no job {job} in queue {queue.name!r}: done, cancelled or never there"
        raise Failure(text, ExitCode.NOT_FOUND) from exc


def _done(args: argparse.Namespace, job: int, what: str) -> None:
    if args.json:
        print_json({"id": str(job), what: True})


async def _workers(args: argparse.Namespace, queue: Queue) -> None:
    async for worker in queue.workers():
        if args.json:
            print_json(worker_fields(worker))
            continue
        jobs = f"{worker.held} of {worker.window}"
        state = "" if worker.takes else "  takes no more"
        name = printable(worker.name)
        print_line(f"{worker.connection:>8}  {jobs:12}  {name}{state}".rstrip())
        for job in worker.jobs:
            what = "since" if job.begun else "waits since"
            row = JobInfo(job.id, "leased", size=len(job.data), data=job.data)
            print_line(f"          {job.id}  {what} {shown_time(job.since)}  {summary(row)}")


async def _move(args: argparse.Namespace, queue: Queue) -> None:
    _check_selection(args)
    if args.to == queue.name:
        raise usage_error("the queues are the same")
    try:
        count = await queue.move(args.to, args.ids or None, where=filter_of(args))
    except ValueError as exc:  # a job of a flow
        raise Failure(str(exc)) from exc
    if args.json:
        print_json({"count": count})
    else:
        print_line(str(count))


async def _export(args: argparse.Namespace, queue: Queue) -> None:
    async for job in queue.select(filter_of(args) or JobFilter(), "dead"):
        print_json(row_fields(job) | {"died": shown_time(id_ms(job.id))} | body_fields(job))


async def _purge_question(args: argparse.Namespace, queue: Queue) -> str:
    _check_selection(args)
    what = plural(len(args.ids), "dead letter")
    where = filter_of(args)
    if where is not None:
        what = plural(len([each async for each in queue.select(where, "dead")]), "dead letter")
    elif args.all:
        try:
            what = plural((await queue.counts()).dead, "dead letter")
        except NotAllowed:  # it needs the right `list`, and a purge does not
            what = "all dead letters"
    return f"Delete {what} of queue {queue.name!r}?"


def _check_selection(args: argparse.Namespace) -> None:
    if [args.all, bool(args.ids), filter_of(args) is not None].count(True) != 1:
        raise usage_error("give ids, --all, or filters (--task, --error, --older-than)")


async def _dead(args: argparse.Namespace, queue: Queue) -> None:
    _check_selection(args)
    change = queue.retry_dead if args.deed == "retry" else queue.purge_dead
    count = await change(args.ids or None, where=filter_of(args))
    if args.json:
        print_json({"count": count})
    else:
        print_line(str(count))
    if count < len(set(args.ids)):
        missing = len(set(args.ids)) - count
        text = f"{plural(missing, 'dead letter')} of {len(set(args.ids))} not there"
        raise Failure(text, ExitCode.NOT_FOUND, "`millpond jobs dead ls` lists them")
