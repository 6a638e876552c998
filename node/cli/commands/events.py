"""`millpond events`: connections, refusals, crashes, damage and takeovers of a node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio

from millpond.actors.errors import OutcomeUnknown
from millpond.node.cli.connection import EVENTS, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, until_signal
from millpond.node.cli.options.node import RECONNECT_S, add_node_options, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import json_line, print_line, printable, write_async
from millpond.node.cli.style import DIM, RED, YELLOW, has_styles, styled
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond events                        the events that the node still has
  millpond events -f                     and new ones as they come, until Ctrl-C
  millpond events -n 0 -f                only new ones
  millpond events -f --event refused     only refusals; repeatable
  millpond events -f --json | jq .fields

The node keeps its last 1000 events: connections and their ends, refusals, and what it writes to its
log from the level "info" on, such as crashes, quarantines, damage and takeovers (another writer or
worker has the place of the one before). docs/guides/monitoring.md lists the names. Where events
came faster than they were read, a line says how many are missing.
Requires the right `admin`, which every local client has if there is no token file.
"""
POLL_S = 0.25
ALL = 2**31
COLOURS = {"error": RED, "critical": RED, "warning": YELLOW}


def add_parser(subparsers: Any) -> None:
    """Add `events` to the command line."""
    parser = subparsers.add_parser(
        "events",
        description="Show the events of a node: connections, refusals, crashes, damage, takeovers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-n", dest="last", type=_count, metavar="N", help="the last N of those that there are"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with new events until Ctrl-C"
    )
    parser.add_argument(
        "--event", action="append", metavar="NAME", help="only events of this name; repeatable"
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="end after S seconds, with exit code 3"
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Show events."""
    timeout_s, args.timeout = args.timeout, None
    return run_in_loop(args, partial(_run, args, timeout_s))


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


async def _run(args: argparse.Namespace, timeout_s: float | None) -> int:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_channel(
            args, PROBE, "consumer", reconnect_s=RECONNECT_S if args.follow else 0.0
        ) as channel:
            with anyio.move_on_after(timeout_s) as limit:
                await _show(args, channel)
        tasks.cancel_scope.cancel()
        return ExitCode.TIMEOUT if limit.cancelled_caught else ExitCode.OK
    return ExitCode.OK if args.follow else ExitCode.INTERRUPTED


async def _show(args: argparse.Namespace, channel: Channel) -> None:
    kept: list[dict[str, Any]] = []
    is_new = False
    colours = has_styles()
    async with aclosing(_pages(channel)) as pages:
        async for page in pages:
            if page["is_new_run"]:
                _say(args, {"event": "restarted"}, "the node was started anew")
            if page["missed"] and (is_new or args.last is None):
                # Of a run of which nothing was seen, those before are nobody's loss.
                _say(args, {"event": "missed", "count": page["missed"]}, _missed(page["missed"]))
            events = [each for each in page["events"] if _is_wanted(args, each)]
            if is_new or args.last is None:
                await _write(args, events, colours)
            else:
                kept = (kept + events)[-args.last :] if args.last else []
            if page["more"] or is_new:
                continue
            await _write(args, kept, colours)
            is_new = True
            if not args.follow:
                return


async def _pages(channel: Channel) -> AsyncGenerator[dict[str, Any]]:
    """The events from the oldest on, a page at a time; an empty page where there are none now."""
    run, after = "", 0
    while True:
        try:
            page: dict[str, Any] = await channel.admin(EVENTS, {"after": after, "run": run})
        except OutcomeUnknown:  # the connection is lost; the next request waits for it
            continue
        page["is_new_run"] = run not in ("", page["run"])
        if not run:
            page["missed"] = 0  # they were before this command
        run = page["run"]
        if page["is_new_run"]:
            after = 0
        after = max(after, *(each["number"] for each in page["events"]), 0)
        yield page
        if not page["more"]:
            await anyio.sleep(POLL_S)


def _is_wanted(args: argparse.Namespace, event: dict[str, Any]) -> bool:
    return args.event is None or event["event"] in args.event


async def _write(args: argparse.Namespace, events: list[dict[str, Any]], colours: bool) -> None:
    lines = [json_line(_object(each)) if args.json else _line(each, colours) for each in events]
    if lines:
        await write_async(b"".join(lines))


def _object(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"at": _time(event["at"]), "number": str(event["number"])}


def _line(event: dict[str, Any], colours: bool) -> bytes:
    fields = " ".join(f"{name}={_value(value)}" for name, value in event["fields"].items())
    name = styled(
        printable(event["event"]),
        COLOURS.get(event["level"], ""),
        is_wanted=colours and event["level"] in COLOURS,
    )
    at = styled(_time(event["at"]), DIM, is_wanted=colours)
    return f"{at} {name}  {fields}".rstrip().encode("utf-8", "backslashreplace") + b"\n"


def _value(value: object) -> str:
    text = printable(str(value))
    return repr(text) if " " in text or not text else text


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _missed(count: int) -> str:
    events = "1 event" if count == 1 else f"{count} events"
    return f"{events} missed: they came faster than they were read"


def _say(args: argparse.Namespace, fields: dict[str, Any], text: str) -> None:
    """Say something about the events: an object among them with --json, else a line on stderr."""
    if args.json:
        print_line(json_line(fields).decode().rstrip("\n"))
    else:
        print(f"millpond events: {text}", file=sys.stderr)
