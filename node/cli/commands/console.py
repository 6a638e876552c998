"""`millpond console`: a link to the page that shows what a node holds."""

from __future__ import annotations

import argparse
import webbrowser
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from millpond.actors.errors import Malformed
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options, add_timeout
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.probe import PROBE
from millpond.node.console.requests import ConsoleOperation

EPILOG = """\
examples:
  millpond console             print a link that logs in to the console, once, within 10 minutes
  millpond console --open      open it in the browser
  millpond console --revoke    end all sessions of the console

A session lasts 12 hours and has the rights of the operator, whose cookie or user it takes to get a
link. Everybody else opens /millpond/ at the node's HTTP port and logs in with an access token; on
the node's own machine no login is needed as long as there is no access file.
"""


def add_parser(subparsers: Any) -> None:
    """Add `console` to the command line."""
    parser = subparsers.add_parser(
        "console",
        description="Print a link to the console, the page that shows what a node holds.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--open", action="store_true", help="open it in the browser")
    action.add_argument("--revoke", action="store_true", help="end all sessions of the console")
    add_timeout(parser)
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_in_loop(args, partial(_revoke if args.revoke else _give_link, args))


async def _ask(args: argparse.Namespace, operation: ConsoleOperation) -> dict[str, Any]:
    async with open_channel(args, PROBE, "consumer") as channel:
        try:
            return await channel.peers(operation, {})
        except Malformed as exc:
            raise Failure("the node has no console: it is of an earlier version") from exc


async def _give_link(args: argparse.Namespace) -> int:
    answer = await _ask(args, ConsoleOperation.LINK)
    url = answer.get("url")
    if url is None:
        raise Failure("the node has no HTTP listener: start it without `--http off`")
    if args.json:
        print_json({"url": url, "others": answer.get("others", [])})
    else:
        for link in (url, *answer.get("others", [])):
            print_line(str(link))
    if args.open:
        await anyio.to_thread.run_sync(webbrowser.open, url)
    return ExitCode.OK


async def _revoke(args: argparse.Namespace) -> int:
    answer = await _ask(args, ConsoleOperation.REVOKE)
    sessions = answer["sessions"]
    if args.json:
        print_json({"revoked": sessions})
    else:
        print_line(f"ended sessions: {sessions}")
    return ExitCode.OK
