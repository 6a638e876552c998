"""`millpond channel`: create, list, show, purge and delete channels."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from millpond.actors.errors import ChannelExists, UnknownChannel
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, first_cause
from millpond.node.cli.options.node import add_node_options, add_timeout, channel_name, positive
from millpond.node.cli.output import data_field, print_json, print_line, printable, write_async
from millpond.node.cli.parser import Parser, action
from millpond.node.cli.removal import add_yes, plural, run_removal, say_removed
from millpond.node.client.channels import ChannelInfo, Channels, pattern_of
from millpond.node.client.probe import PROBE

EPILOG = """\
a first channel:
  millpond channel create jobs/mail --mode queue    the mode stays, also while it is empty
  millpond channel ls 'jobs/*' -l
  millpond channel purge jobs/mail                  remove its messages
  millpond channel rm jobs/mail

A client that joins a channel makes it: `create` is for a mode that stays. The rights are `admin` in
the channel for create and rm, `ack` for purge, `list` for show and ls.
"""
CREATE_EPILOG = """\
examples:
  millpond channel create jobs/mail --mode queue
  millpond channel create news --mode fanout --if-missing    succeed if it was created so
"""
LS_EPILOG = """\
examples:
  millpond channel ls                 all channels, one name per line
  millpond channel ls 'orders/*' -l   those with such names, with mode, messages and connections
"""
SHOW_EPILOG = """\
example:
  millpond channel show jobs/mail     exit code 4 if there is none
"""
PURGE_EPILOG = """\
examples:
  millpond channel purge jobs/mail
  millpond channel purge 'jobs/mail!dead' --yes    do not ask, on a terminal

The messages that are there now are removed, those with consumers as well. They do not come back,
not after a crash either. A retry of one of their puts still gets its old receipt.
"""
RM_EPILOG = """\
example:
  millpond channel rm jobs/mail jobs/old    exit code 4 if one does not exist

The messages go, with the keys of their puts, subscribers that are away, and the mode. Connections
stay: for them it is a new channel.
"""


def add_parser(subparsers: Any) -> None:
    """Add `channel` to the command line."""
    parser = subparsers.add_parser(
        "channel",
        description="Create, list, show, purge and delete channels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    create = _add(actions, "create", "Create a channel.", CREATE_EPILOG)
    create.set_defaults(work=partial(_run, _create))
    create.add_argument("name", metavar="CHANNEL", type=channel_name)
    create.add_argument(
        "--mode",
        choices=("pair", "fanout", "queue"),
        default="pair",
        help="its mode, for good (default %(default)s)",
    )
    create.add_argument("--if-missing", action="store_true", help="succeed if it was created so")
    ls = _add(actions, "ls", "List channels.", LS_EPILOG)
    ls.set_defaults(work=partial(_run, _ls))
    ls.add_argument("patterns", metavar="PATTERN", type=_pattern, nargs="*")
    ls.add_argument(
        "-l", "--long", action="store_true", help="show mode, messages, bytes and connections"
    )
    ls.add_argument("--limit", type=positive, metavar="N", help="at most N")
    show = _add(actions, "show", "Show a channel.", SHOW_EPILOG)
    show.set_defaults(work=partial(_run, _show))
    show.add_argument("name", metavar="CHANNEL", type=channel_name)
    purge = _add(actions, "purge", "Remove the messages of channels.", PURGE_EPILOG)
    rm = _add(actions, "rm", "Delete channels and their messages.", RM_EPILOG)
    for each, verb in ((purge, "purge"), (rm, "delete")):
        add_yes(each)
        each.add_argument("names", metavar="CHANNEL", type=channel_name, nargs="+")
        each.set_defaults(work=partial(_run_removal, verb))


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def _add(actions: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    add_timeout(parser)
    add_node_options(parser)
    return parser


def _pattern(text: str) -> bytes:
    try:
        return pattern_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@asynccontextmanager
async def _open_channels(args: argparse.Namespace) -> AsyncIterator[Channels]:
    async with open_channel(args, PROBE, "consumer") as channel:
        try:
            yield channel.channels
        except (UnknownChannel, BaseExceptionGroup) as exc:
            if isinstance(first_cause(exc), UnknownChannel):
                raise _unknown([args.name]) from exc
            raise


def _run(work: Any, args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_with_channels, work, args))


async def _with_channels(work: Any, args: argparse.Namespace) -> int:
    async with _open_channels(args) as channels:
        await work(args, channels)
    return ExitCode.OK


async def _create(args: argparse.Namespace, channels: Channels) -> None:
    try:
        await channels.create(args.name, args.mode, exist_ok=args.if_missing)
    except ChannelExists as exc:
        try:
            found = await channels.describe(args.name)
        except UnknownChannel:  # it was deleted at this moment
            raise Failure(f"{printable(args.name)!r}: {exc}") from exc
        text = f"{printable(args.name)!r} exists, in {found.mode} mode"
        if found.mode != args.mode:
            raise Failure(f"{text}, not {args.mode}", hint="choose another name") from exc
        raise Failure(f"{text}", hint="--if-missing accepts that") from exc
    if args.json:
        print_json(data_field(args.name, "channel") | {"mode": args.mode})


async def _ls(args: argparse.Namespace, channels: Channels) -> None:
    left = args.limit
    async for info in channels.list(*args.patterns):
        text = printable(info.name)
        if args.long:
            mode = f"{info.mode}{'' if info.created else '*'}"
            sizes = f"{info.messages:>10} {info.size:>14} {info.connections:>6}"
            text = f"{mode:8} {sizes}  {text}"
        fields = _fields(info)
        line = json.dumps(fields, ensure_ascii=False) if args.json else text
        await write_async(line.encode() + b"\n")
        if left is not None:
            left -= 1
            if left == 0:
                return


async def _show(args: argparse.Namespace, channels: Channels) -> None:
    info = await channels.describe(args.name)
    if args.json:
        print_json(_fields(info))
        return
    stays = "created with it" if info.created else "while it is in use"
    rows = {
        "channel": printable(info.name),
        "mode": f"{info.mode}, {stays}",
        "messages": f"{info.messages}, {info.size} bytes",
        "leased": str(info.leased),
        "connections": f"{info.connections}, {info.receivers} of them receive",
    }
    if info.subscribers:
        rows["subscribers"] = str(info.subscribers)
    for title, value in rows.items():
        print_line(f"{title:12} {value}")


def _fields(info: ChannelInfo) -> dict[str, Any]:
    """The JSON fields of a channel; numbers of 64 bits are strings."""
    return data_field(info.name, "channel") | {
        "mode": info.mode,
        "created": info.created,
        "messages": str(info.messages),
        "bytes": str(info.size),
        "leased": info.leased,
        "connections": info.connections,
        "receivers": info.receivers,
        "subscribers": info.subscribers,
    }


# Removals.


def _run_removal(verb: str, args: argparse.Namespace) -> int:
    return run_removal(args, partial(_question, verb, args), partial(_remove, verb, args))


async def _question(verb: str, args: argparse.Namespace) -> str:
    texts = []
    async with _open_channels(args) as channels:
        for name in args.names:
            try:
                info = await channels.describe(name)
            except UnknownChannel:
                continue
            size = f"{plural(info.messages, 'message')} ({plural(info.size, 'byte')})"
            texts.append(f"{printable(name)!r} with {size}")
    if not texts:
        raise _unknown(args.names)
    what = "channel" if len(texts) == 1 else "channels"
    return f"{verb.capitalize()} {what} {', '.join(texts)}?"


async def _remove(verb: str, args: argparse.Namespace) -> int:
    missing: list[bytes] = []
    async with _open_channels(args) as channels:
        for name in args.names:
            try:
                count = await (channels.purge if verb == "purge" else channels.delete)(name)
            except UnknownChannel:
                missing.append(name)
                continue
            if args.json:
                fields = {f"{verb}d": True, "removed": str(count)}
                print_json(data_field(name, "channel") | fields)
            text = f"channel {printable(name)!r} {verb}d with {plural(count, 'message')}"
            say_removed(args, text)
    if missing:
        raise _unknown(missing)
    return ExitCode.OK


def _unknown(names: list[bytes]) -> Failure:
    text = ", ".join(repr(printable(name)) for name in names)
    return Failure(f"there is no channel {text}", ExitCode.NOT_FOUND)
