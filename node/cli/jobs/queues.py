"""`millpond jobs queues`: the queues of a node, with the numbers of their jobs and workers."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode
from millpond.node.cli.options.node import add_node_options, add_timeout, positive
from millpond.node.cli.output import print_json, print_line, printable
from millpond.node.cli.parser import action
from millpond.node.client.channels import ChannelInfo
from millpond.node.client.probe import PROBE
from millpond.node.jobs.payload import QUEUE_PREFIX, is_result_mailbox

EPILOG = """\
examples:
  millpond jobs queues               one queue per line: jobs, leased, dead, workers, name
  millpond jobs queues 'mail*' --json

A queue is listed while it has jobs, dead letters, keys of puts, settings or connections, or was
created (`millpond channel create jobs/NAME --mode queue`). It takes the right `list` in the
channel.
"""


def add_queues(actions: Any) -> None:
    """Add `queues` to `millpond jobs`."""
    parser = action(actions, "queues", "List queues.", EPILOG)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*")
    parser.add_argument("-n", dest="count", type=positive, metavar="N", help="at most N")
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=_run)


def _run(args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_print, args))


async def _print(args: argparse.Namespace) -> int:
    queues: dict[bytes, ChannelInfo | None] = {}
    dead: dict[bytes, int] = {}
    async with open_channel(args, PROBE, "consumer") as channel:
        wanted = QUEUE_PREFIX.decode() + args.pattern
        async for info in channel.channels.list(wanted, wanted + DEAD_SUFFIX.decode()):
            name = info.name.removeprefix(QUEUE_PREFIX)
            if name.endswith(DEAD_SUFFIX):
                name = name.removesuffix(DEAD_SUFFIX)
                dead[name] = info.messages
                queues.setdefault(name, None)
            elif info.mode == "queue" and not is_result_mailbox(info.name):
                queues[name] = info
    for name in sorted(queues)[: args.count]:
        _print_row(args, name, queues[name], dead.get(name, 0))
    return ExitCode.OK


def _print_row(args: argparse.Namespace, name: bytes, info: ChannelInfo | None, dead: int) -> None:
    jobs, leased, workers, is_paused = 0, 0, 0, False
    if info is not None:
        jobs, leased, workers = info.messages, info.leased, info.receivers
        is_paused = info.paused
    if args.json:
        fields = {"queue": printable(name), "jobs": jobs, "leased": leased, "dead": dead}
        print_json(fields | {"workers": workers, "paused": is_paused})
    else:
        note = "  (paused)" if is_paused else ""
        print_line(f"{jobs:>9} {leased:>7} {dead:>7} {workers:>5}  {printable(name)}{note}")
