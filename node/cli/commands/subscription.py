"""`millpond subscription`: the subscriptions of a node, over P2P."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from millpond.node.cli.connection import (
    DELETE_SUBSCRIPTION,
    SUBSCRIPTIONS,
    open_channel,
    run_in_loop,
)
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options, add_timeout
from millpond.node.cli.output import print_json, print_line, printable
from millpond.node.cli.parser import Parser, action
from millpond.node.cli.removal import add_yes, plural, run_removal, say_removed
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond subscription ls                    state, lag and last error of each subscription
  millpond subscription show kitchen          one of them, with all its figures
  millpond subscription rm kitchen            delete it; the streams stay

Clients make subscriptions over HTTP, and delete them there as well (docs/guides/subscriptions.md).
Requires the right `admin`, which every local client has if there is no token file; `rm` is for the
operator of the node.
"""
LS_EPILOG = """\
examples:
  millpond subscription ls              all subscriptions
  millpond subscription ls --failed     those whose last call or event failed
  millpond subscription ls --json       a JSON object for each

state: idle (nothing is new), woken (a worker is called, or has to come), claimed (a worker has the
lease), unavailable (the node cannot serve it: millpond doctor). lag: records that are not
acknowledged.
"""
SHOW_EPILOG = """\
example:
  millpond subscription show kitchen        exit code 4 if it does not exist
"""
RM_EPILOG = """\
examples:
  millpond subscription rm kitchen          asks on a terminal
  millpond subscription rm kitchen --yes    exit code 4 if it does not exist

Its workers are not woken any more, and a worker that has its lease cannot acknowledge. The streams
that it follows stay as they are.
"""
TIMES = ("created_at", "lease_until", "retry_at")
COLUMNS = ("state", "type", "streams", "pending", "lag")


def add_parser(subparsers: Any) -> None:
    """Add `subscription` to the command line."""
    parser = subparsers.add_parser(
        "subscription",
        description="Show the state and lag of subscriptions, and delete them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    listed = _add(actions, "ls", "List subscriptions.", LS_EPILOG, _ls)
    listed.add_argument(
        "--failed", action="store_true", help="only those whose last call or event failed"
    )
    shown = _add(actions, "show", "Show a subscription.", SHOW_EPILOG, _show)
    shown.add_argument("id", metavar="ID", help="id of the subscription")
    removed = _add(actions, "rm", "Delete a subscription.", RM_EPILOG, _rm)
    removed.add_argument("id", metavar="ID", help="id of the subscription")
    add_yes(removed)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.action == "rm":
        return run_removal(args, partial(_question, args), partial(_with_node, args))
    return run_in_loop(args, partial(_with_node, args))


def _add(actions: Any, name: str, summary: str, epilog: str, work: Any) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    add_timeout(parser)
    add_node_options(parser)
    parser.set_defaults(work=work)
    return parser


async def _with_node(args: argparse.Namespace) -> int:
    async with open_channel(args, PROBE, "consumer") as channel:
        await args.work(args, channel)
    return ExitCode.OK


async def _ls(args: argparse.Namespace, channel: Channel) -> None:
    rows = [each async for each in _all(channel) if each["is_failed"] or not args.failed]
    if args.json:
        for row in rows:
            print_json(row)
    elif rows:
        for line in _table(rows):
            print_line(line)


async def _question(args: argparse.Namespace) -> str:
    async with open_channel(args, PROBE, "consumer") as channel:
        row = await _one(args, channel)
    followed = plural(row["streams"], "stream")
    return f"delete the subscription {args.id!r}, which follows {followed}?"


async def _rm(args: argparse.Namespace, channel: Channel) -> None:
    reply = await channel.admin(DELETE_SUBSCRIPTION, {"id": args.id.encode()})
    if not reply["deleted"]:
        raise _unknown(args)
    say_removed(args, f"deleted the subscription {args.id!r}")
    if args.json:
        print_json({"id": args.id, "deleted": True})


def _unknown(args: argparse.Namespace) -> Failure:
    return Failure(f"the node has no subscription {args.id!r}", ExitCode.NOT_FOUND)


async def _one(args: argparse.Namespace, channel: Channel) -> dict[str, Any]:
    rows = [row async for row in _all(channel, args.id.encode())]
    if not rows:
        raise _unknown(args)
    return rows[0]


async def _show(args: argparse.Namespace, channel: Channel) -> None:
    row = await _one(args, channel)
    if args.json:
        print_json(row)
        return
    for name, value in row.items():
        print_line(f"{name.replace('_', ' '):12} {_text(value)}".rstrip())


async def _all(channel: Channel, only: bytes | None = None) -> AsyncIterator[dict[str, Any]]:
    """The subscriptions by id, as they are shown; `only` this one, if there is one."""
    after, more = b"", True
    while more:
        answer: dict[str, Any] = await channel.admin(SUBSCRIPTIONS, {"id": only, "after": after})
        page = answer["page"]
        for each in page:
            yield _row(each)
        more = answer["more"] and bool(page)
        after = page[-1]["id"].encode() if page else b""


def _row(status: dict[str, Any]) -> dict[str, Any]:
    row = dict(status)
    row["type"] = row.pop("kind")
    for name in TIMES:
        row[name] = _time(row[name]) if row[name] else None
    return row


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return printable(value)
        case _:
            return str(value)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    names = [printable(row["id"]) for row in rows]
    width = max(len(name) for name in (*names, "subscription"))
    heads = "  ".join(f"{column:>11}" for column in COLUMNS)
    lines = [f"{'subscription':{width}}  {heads}  last error"]
    for name, row in zip(names, rows, strict=True):
        cells = "  ".join(f"{row[column]!s:>11}" for column in COLUMNS)
        error = printable(row["error"]) if row["is_failed"] else ""
        lines.append(f"{name:{width}}  {cells}  {error}".rstrip())
    return lines
