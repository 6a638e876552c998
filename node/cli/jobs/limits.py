"""`millpond jobs limits`: show and set the limits of a queue."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, usage_error
from millpond.node.cli.jobs.options import open_queue, queue_name
from millpond.node.cli.options.node import add_node_options, add_timeout
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action
from millpond.node.jobs.limits import Limits, QueueState, RateLimit

EPILOG = """\
examples:
  millpond jobs limits mail                            show the limits
  millpond jobs limits mail --rate 100/m --burst 10    100 starts a minute, 10 of them at once
  millpond jobs limits mail --concurrency 20           20 jobs at once, of all workers
  millpond jobs limits mail --key-concurrency 1        of each limit key one at a time
  millpond jobs limits mail --rate 0                   no rate any more
  millpond jobs limits mail --clear

What is not given stays. Rates are 5/s, 100/m, 1000/h or 10/30s. Jobs that a limit holds back wait;
none is lost. A job has a limit key where it was put with one (`--limit-key`, `limit_key=`).
"""


def add_limits(actions: Any) -> None:
    """Add `limits` to `millpond jobs`."""
    parser = action(actions, "limits", "Show and set limits of a queue.", EPILOG)
    parser.add_argument("queue", metavar="QUEUE", type=queue_name)
    parser.add_argument("--concurrency", type=_count, metavar="N", help="most running jobs")
    parser.add_argument("--rate", metavar="RATE", help="starts of jobs in a time")
    parser.add_argument("--burst", type=_count, metavar="N", help="starts at once (with --rate)")
    parser.add_argument(
        "--key-concurrency", type=_count, metavar="N", help="most running jobs of a limit key"
    )
    parser.add_argument("--key-rate", metavar="RATE", help="starts of jobs of a limit key")
    parser.add_argument(
        "--key-burst", type=_count, metavar="N", help="starts at once (with --key-rate)"
    )
    parser.add_argument(
        "--ageing",
        type=seconds,
        metavar="S",
        help="waiting time that counts as one priority (60); 0: priorities are strict",
    )
    parser.add_argument("--clear", action="store_true", help="no limits any more")
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=_run)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    if args.clear:
        given = Limits(concurrency=0, rate=0, key_concurrency=0, key_rate=0, ageing=60.0)
    else:
        try:
            given = Limits(
                concurrency=args.concurrency,
                rate=_rate(args.rate, args.burst),
                key_concurrency=args.key_concurrency,
                key_rate=_rate(args.key_rate, args.key_burst),
                ageing=args.ageing,
            )
        except ValueError as exc:
            raise usage_error(str(exc)) from exc
    return run_in_loop(args, partial(_limit, args, given))


def _rate(text: str | None, burst: int | None) -> RateLimit | int | None:
    if text is None:
        if burst is not None:
            raise ValueError("a burst needs a rate: --rate, --key-rate")
        return None
    return 0 if text == "0" else RateLimit.parse(text, burst or 0)


async def _limit(args: argparse.Namespace, given: Limits) -> int:
    async with open_queue(args) as queue:
        state = await (queue.set_limits(given) if given.fields() else queue.state())
    if args.json:
        print_json({"queue": args.queue} | state_fields(state))
    else:
        for name, value in state_fields(state).items():
            print_line(f"{name:16} {_shown(name, value)}")
    return ExitCode.OK


def state_fields(state: QueueState) -> dict[str, Any]:
    """The JSON fields of the settings of a queue."""
    return {
        "paused": state.paused,
        "concurrency": state.concurrency or None,
        "rate": _rate_text(state.rate),
        "key_concurrency": state.key_concurrency or None,
        "key_rate": _rate_text(state.key_rate),
        "ageing_s": state.ageing,
    }


def _rate_text(rate: RateLimit | None) -> str | None:
    return None if rate is None else str(rate)


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
