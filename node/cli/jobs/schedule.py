"""`millpond jobs schedule`: schedules of a queue, made, listed, paused, run and removed."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from millpond.actors.errors import NotFound
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.jobs.options import jsonable, open_queue, parsed_json, queue_name
from millpond.node.cli.options.node import add_node_options, add_timeout, positive
from millpond.node.cli.options.units import U32_MAX, seconds, whole_seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser, action
from millpond.node.cli.removal import add_yes, run_removal, say_removed
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.schedules import ScheduleInfo, Timing, schedule_name

EPILOG = """\
examples:
  millpond jobs schedule add mail report "0 7 * * mon-fri" --tz Europe/Berlin --task send
  millpond jobs schedule add mail tidy --every 15m '{"older": 30}'
  millpond jobs schedule ls mail                     next moment, jobs so far, name, moments
  millpond jobs schedule pause mail report
  millpond jobs schedule run-now mail report         prints the id of the job

The node puts a job at each moment, once, whether a worker runs or not. A cron expression has the
fields minute, hour, day of the month, month, day of the week; with six, seconds come first.
--missed is for moments more than a minute ago, at which the node was down: `skip` puts no job,
`one` a job for the last of them (default), `all` a job for each of the last day. `add` changes a
schedule that is there. The jobs of a schedule that is removed stay.
"""
Work = Callable[[argparse.Namespace, Queue], Awaitable[None]]


def add_schedule(actions: Any, parser_class: type[Parser]) -> None:
    """Add `schedule` to `millpond jobs`."""
    schedule = action(actions, "schedule", "Put jobs at the moments of schedules.", EPILOG)
    deeds = schedule.add_subparsers(
        dest="deed", metavar="COMMAND", required=True, parser_class=parser_class
    )
    add = _add(deeds, "add", "Make or change a schedule.", _make)
    add.add_argument("cron", metavar="CRON", nargs="?", help="cron expression, unless --every")
    add.add_argument("data", metavar="JSON", nargs="?", help="payload of the jobs (default null)")
    add.add_argument("--every", type=seconds, metavar="S", help="an interval in place of CRON: 15m")
    add.add_argument("--tz", metavar="ZONE", default="UTC", help="time zone of CRON (default UTC)")
    add.add_argument(
        "--missed",
        choices=("skip", "one", "all"),
        default="one",
        help="jobs for moments at which the node was down (default one)",
    )
    add.add_argument("--task", metavar="TASK", help="task of the jobs")
    add.add_argument(
        "--ttl",
        type=whole_seconds,
        metavar="S",
        default=0,
        help="seconds, then a job becomes a dead letter (default: as the channel's rule says, else "
        "never)",
    )
    add.add_argument("--attempts", type=positive, metavar="N", help="most attempts of a job")
    ls = action(deeds, "ls", "List schedules.", EPILOG)
    _add_options(ls, _ls)
    ls.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    _add(deeds, "show", "Show a schedule.", _show)
    _add(deeds, "pause", "Put no jobs until it is resumed.", _pause)
    _add(deeds, "resume", "Go on with the next moment.", _resume)
    _add(deeds, "run-now", "Put a job now, besides those of its moments.", _run_now)
    rm = _add(deeds, "rm", "Remove a schedule.", _rm)
    add_yes(rm)
    rm.set_defaults(work=_run_removal)


def _add(deeds: Any, name: str, text: str, work: Work) -> argparse.ArgumentParser:
    parser = action(deeds, name, text, EPILOG)
    _add_options(parser, work)
    parser.add_argument("schedule", metavar="NAME", type=_name)
    return parser


def _add_options(parser: argparse.ArgumentParser, work: Work) -> None:
    parser.add_argument("queue", metavar="QUEUE", type=queue_name)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=partial(_run, work))


def _name(text: str) -> str:
    try:
        schedule_name(text)
    except (ValueError, UnicodeEncodeError) as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return text


def _run(work: Work, args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_with_queue, work, args))


def _run_removal(args: argparse.Namespace) -> int:
    return run_removal(args, partial(_question, args), partial(_with_queue, _rm, args))


async def _question(args: argparse.Namespace) -> str:
    return f"Remove the schedule {args.schedule!r} of queue {args.queue!r}?"


async def _with_queue(work: Work, args: argparse.Namespace) -> int:
    async with open_queue(args) as queue:
        try:
            await work(args, queue)
        except NotFound as exc:
            message = f"there is no schedule {args.schedule!r} of queue {queue.name!r}"
            raise Failure(message, ExitCode.NOT_FOUND) from exc
    return ExitCode.OK


async def _make(args: argparse.Namespace, queue: Queue) -> None:
    cron, data = args.cron, args.data
    if args.every is not None:
        if data is not None:
            raise usage_error("either CRON or --every")
        cron, data = None, cron
    elif cron is None:
        raise usage_error("give a cron expression, or --every")
    payload = None if data is None else parsed_json(data.encode())
    when = cron if args.every is None else timedelta(seconds=args.every)
    assert args.ttl <= U32_MAX
    try:
        following = await queue.schedule(
            args.schedule,
            when,
            payload,
            tz=args.tz,
            missed=args.missed,
            task=args.task,
            ttl=args.ttl,
            attempts=args.attempts,
        )
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    if args.json:
        print_json({"name": args.schedule, "next": _shown(following)})
    else:
        print_line(_shown(following) or "paused")


async def _ls(args: argparse.Namespace, queue: Queue) -> None:
    left = args.count
    async for each in queue.schedules():
        if left == 0:
            return
        left = None if left is None else left - 1
        if args.json:
            print_json(_fields(each))
        else:
            print_line(_line(each))


def _line(schedule: ScheduleInfo) -> str:
    following = "paused" if schedule.paused else _shown(schedule.next) or "never"
    refusal = "" if schedule.refused is None else f"  ({schedule.refused})"
    return (
        f"{following:25}  {schedule.jobs:6}  {schedule.name}  {_moments(schedule.timing)}{refusal}"
    )


def _moments(timing: Timing) -> str:
    if isinstance(timing.when, timedelta):
        return f"every {timing.when.total_seconds():g}s"
    return f"{timing.when} {timing.tz}"


async def _show(args: argparse.Namespace, queue: Queue) -> None:
    fields = _fields(await queue.show_schedule(args.schedule))
    if args.json:
        print_json(fields)
        return
    for name, value in fields.items():
        print_line(f"{name:10} {value}")


def _fields(schedule: ScheduleInfo) -> dict[str, Any]:
    timing = schedule.timing
    fields: dict[str, Any] = {"name": schedule.name}
    if isinstance(timing.when, timedelta):
        fields["every_s"] = timing.when.total_seconds()
    else:
        fields |= {"cron": timing.when, "tz": timing.tz}
    fields |= {"missed": timing.missed, "paused": schedule.paused, "next": _shown(schedule.next)}
    fields |= {"last": _shown(schedule.last), "last_job": str(schedule.last_job or "") or None}
    fields |= {"jobs": schedule.jobs, "ttl": schedule.ttl}
    if schedule.refused is not None:
        fields["refused"] = str(schedule.refused)
    if schedule.body is not None:
        fields |= {"task": schedule.body.name, "payload": jsonable(schedule.body.payload)}
    return fields


async def _pause(args: argparse.Namespace, queue: Queue) -> None:
    await queue.pause_schedule(args.schedule)
    if args.json:
        print_json({"name": args.schedule, "paused": True})


async def _resume(args: argparse.Namespace, queue: Queue) -> None:
    following = await queue.resume_schedule(args.schedule)
    if args.json:
        print_json({"name": args.schedule, "paused": False, "next": _shown(following)})
    else:
        print_line(_shown(following) or "never")


async def _run_now(args: argparse.Namespace, queue: Queue) -> None:
    handle = await queue.run_schedule(args.schedule)
    if args.json:
        print_json({"id": str(handle.id), "existing": handle.existing, "ttl": handle.ttl})
    else:
        print_line(str(handle.id))


async def _rm(args: argparse.Namespace, queue: Queue) -> None:
    await queue.delete_schedule(args.schedule)
    if args.json:
        print_json({"name": args.schedule, "removed": True})
    say_removed(args, f"schedule {args.schedule!r} of queue {queue.name!r} removed")


def _shown(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
