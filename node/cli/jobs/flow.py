"""`millpond jobs flow`: commands that show, retry and cancel flows of jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from millpond.actors.errors import NotFound
from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.jobs.options import jsonable, open_queue, queue_name, shown_time
from millpond.node.cli.options.node import add_node_options, add_timeout, message_id, positive
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action
from millpond.node.jobs.errors import JobCancelled, JobFailed
from millpond.node.jobs.flow import FlowInfo
from millpond.node.jobs.queue import Queue

EPILOG = """\
examples:
  millpond jobs flow ls mail             flows that were put in the queue: id, state, steps
  millpond jobs flow show mail ID        every step with its queue, state, job and reason
  millpond jobs flow result mail ID      wait for the result of the last step, and print it
  millpond jobs flow retry mail ID       put failed steps again
  millpond jobs flow cancel mail ID      cancel its jobs, and skip what waits

Programs put flows (docs/guides/jobs.md).
"""

Work = Callable[[argparse.Namespace, Queue], Awaitable[None]]


def add_flow(actions: Any, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add `flow` to `millpond jobs`."""
    flow = action(actions, "flow", "Show, retry and cancel flows.", EPILOG)
    deeds = flow.add_subparsers(
        dest="deed", metavar="COMMAND", required=True, parser_class=parser_class
    )
    ls = _add(deeds, "ls", "List flows.", _ls)
    ls.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    for name, text, work in (
        ("show", "Show a flow.", _show),
        ("result", "Wait for the result of a flow.", _result),
        ("retry", "Put failed steps again.", _retry),
        ("cancel", "Cancel a flow.", _cancel),
    ):
        _add(deeds, name, text, work).add_argument("flow", metavar="ID", type=message_id)


def _add(deeds: Any, name: str, text: str, work: Work) -> argparse.ArgumentParser:
    parser = action(deeds, name, text, EPILOG)
    parser.add_argument("queue", metavar="QUEUE", type=queue_name)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=partial(_run, work))
    return parser


def _run(work: Work, args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_with_queue, work, args))


async def _with_queue(work: Work, args: argparse.Namespace) -> int:
    async with open_queue(args) as queue:
        try:
            await work(args, queue)
        except NotFound as exc:
            message = f"there is no flow {args.flow} of queue {queue.name!r}"
            raise Failure(message, ExitCode.NOT_FOUND) from exc
    return ExitCode.OK


async def _ls(args: argparse.Namespace, queue: Queue) -> None:
    left = args.count
    async for each in queue.flows():
        if left == 0:
            return
        left = None if left is None else left - 1
        created = shown_time(each.created)
        if args.json:
            fields = {"id": str(each.id), "state": each.state, "steps": each.steps}
            print_json(fields | {"ended_steps": each.ended, "created": created})
        else:
            print_line(f"{each.id}  {each.state:9}  {each.ended}/{each.steps}  {created}")


async def _show(args: argparse.Namespace, queue: Queue) -> None:
    flow = await queue.flow(args.flow)
    if args.json:
        print_json(_fields(flow))
        return
    print_line(f"id       {flow.id}")
    print_line(f"state    {flow.state}")
    print_line(f"created  {shown_time(flow.created)}")
    if flow.ended:
        print_line(f"ended    {shown_time(flow.ended)}")
    for at, step in enumerate(flow.steps):
        after = f"  after {','.join(map(str, step.after))}" if step.after else ""
        reason = f"  ({step.reason})" if step.reason else ""
        print_line(f"step {at:4}  {step.state:8}  {step.queue}  {step.job or '-'}{after}{reason}")


def _fields(flow: FlowInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": str(flow.id), "state": flow.state}
    fields["created"] = shown_time(flow.created)
    if flow.ended:
        fields["ended"] = shown_time(flow.ended)
    steps: list[dict[str, Any]] = []
    for step in flow.steps:
        found: dict[str, Any] = {"queue": step.queue, "state": step.state, "after": step.after}
        if step.job:
            found["job"] = str(step.job)
        if step.reason:
            found["reason"] = step.reason
        steps.append(found)
    return fields | {"steps": steps}


async def _result(args: argparse.Namespace, queue: Queue) -> None:
    try:
        result = jsonable(await queue.flow_result(args.flow))
    except (JobFailed, JobCancelled) as exc:
        raise Failure(f"flow {args.flow}: {exc}") from exc
    if args.json:
        print_json({"id": str(args.flow), "result": result})
    else:
        print_line(json.dumps(result, ensure_ascii=False))


async def _retry(args: argparse.Namespace, queue: Queue) -> None:
    await queue.retry_flow(args.flow)
    if args.json:
        print_json({"id": str(args.flow), "retried": True})


async def _cancel(args: argparse.Namespace, queue: Queue) -> None:
    await queue.cancel_flow(args.flow)
    if args.json:
        print_json({"id": str(args.flow), "cancelled": True})
