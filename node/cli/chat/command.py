"""`millpond chat`: a conversation in a terminal, through pipes, or in the browser."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import anyio

from millpond.node.chat.payloads import TEXT_BYTES_MAX
from millpond.node.cli.chat import invites, requests, search
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.dialogue import Dialogue, Options, describe
from millpond.node.cli.chat.screen import PipeScreen, Screen, is_terminal, terminal
from millpond.node.cli.connection import open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, until_signal, usage_error
from millpond.node.cli.options.node import add_node_options, u32
from millpond.node.cli.options.units import U32_MAX, seconds
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond chat                           list conversations with new messages
  millpond chat bob                       chat with bob; /quit ends it, /help shows commands
  echo 'back at 8' | millpond chat bob    send one message; the node delivers it
  millpond chat bob --history 50 < /dev/null      print the last 50 messages
  tail -f alarms | millpond chat bob --wait 60    exit code 3: not all messages were delivered
  millpond chat bob --follow --json < /dev/null   messages and receipts as JSON objects
  millpond chat bob --file a.pdf --wait 60        send a file, and wait until bob has it
  millpond chat bob --follow --save DIR < /dev/null     save the files that come
  millpond chat invite bob                print a link, and its QR code, for bob
  millpond chat accept LINK alice         add its maker as alice; `-` reads the link from stdin
  millpond chat invites                   list open invites; `chat invites cancel bob` ends one
  millpond chat search pond tomor         list messages with "pond" and with "tomorrow"
  millpond chat --web                     print a link that opens the chat page once
  millpond chat requests                  list first messages of unknown senders
  millpond chat requests accept ID carol  add the sender ID as the peer carol; ID is a peer id
  millpond chat requests ignore ID        remove its messages, and take none for 9 days
  millpond chat requests block ID         remove its messages, and block its key for ever

An invite works once, and adds both sides. The node stores messages for a peer until it or one of
its relays is online. In a pipe each line of stdin is a message, and each received message is a line
of stdout; an indented line continues the one above. A peer with the name `invite`, `invites`,
`accept`, `requests` or `search` is reached by its id.
"""
HISTORY = 20
PIPE_RECONNECT_S = 30.0


def add_parser(subparsers: Any) -> None:
    """Add `chat` to the command line."""
    parser = subparsers.add_parser(
        "chat",
        description="Chat with a peer through your own node.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("whom", metavar="PEER", nargs="?", help="name or id of a peer")
    parser.add_argument(
        "words",
        metavar="ARG",
        nargs="*",
        help="after `invite`, `accept`, `requests` or `search`: see below",
    )
    parser.add_argument(
        "--history",
        type=u32,
        metavar="N",
        help=f"show the last N messages first (default {HISTORY}; 0 through a pipe)",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue after the end of stdin, until Ctrl-C"
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="S",
        default=0.0,
        help="after the end of stdin, wait S seconds until all messages are delivered",
    )
    parser.add_argument(
        "--file",
        dest="files",
        metavar="PATH",
        action="append",
        default=[],
        help="send a file, before what stdin has if that is no terminal; may be repeated",
    )
    parser.add_argument(
        "--save",
        dest="save_in",
        metavar="DIR",
        type=Path,
        help="save the files of the messages that are shown, and of new ones, in this folder",
    )
    parser.add_argument(
        "--with",
        dest="only",
        metavar="PEER",
        help="with `search`: only the conversation with this peer, or this group",
    )
    parser.add_argument("--web", action="store_true", help="print a link to the chat page")
    parser.add_argument("--open", action="store_true", help="with --web: open it in the browser")
    parser.add_argument(
        "--block", action="store_true", help="with `requests ignore ID`: block the key for ever"
    )
    parser.add_argument(
        "--for",
        type=seconds,
        dest="life",
        metavar="S",
        default=0.0,
        help="with `invite NAME`: open for S seconds (default 7d)",
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Talk, or tell what there is."""
    args.timeout = None
    if args.open and not args.web:
        raise usage_error("--open needs --web")
    if args.web and args.whom is not None:
        raise usage_error("--web takes no peer: it is one page for all")
    if args.whom == requests.WORD:
        requests.check_arguments(args)
        return run_in_loop(args, partial(requests.run, args))
    if args.whom in invites.WORDS:
        invites.check_arguments(args)
        return run_in_loop(args, partial(invites.run, args))
    if args.whom == search.WORD:
        search.check_arguments(args)
        return run_in_loop(args, partial(search.run, args))
    if args.only is not None:
        raise usage_error("--with needs `chat search WORD...`")
    if args.save_in is not None and not args.save_in.is_dir():
        raise usage_error(f"--save {args.save_in}: there is no such folder")
    if args.whom is None and (args.files or args.save_in is not None):
        raise usage_error("--file and --save need a peer")
    if args.words or args.block or args.life:
        raise usage_error("`chat` takes one peer")
    if args.web:
        return run_in_loop(args, partial(_give_link, args))
    if args.whom is None:
        return run_in_loop(args, partial(_list, args))
    with _screen(args) as screen:
        return run_in_loop(args, partial(_run_dialogue, args, screen))


@contextmanager
def _screen(args: argparse.Namespace) -> Iterator[Screen]:
    if is_terminal() and not (args.json or args.files or args.save_in):
        with terminal() as screen:
            yield screen
    else:
        yield PipeScreen(TEXT_BYTES_MAX)


async def _run_dialogue(args: argparse.Namespace, screen: Screen) -> int:
    history = args.history
    if history is None:
        history = HISTORY if screen.is_interactive else 0
    is_for_files = bool(args.files or args.save_in)
    options = Options(
        min(history, U32_MAX),
        args.follow,
        args.wait,
        args.json,
        tuple(args.files),
        args.save_in,
        reads_input=not (is_for_files and sys.stdin.isatty()),
    )
    notices: list[str] = []
    reconnect_s = inf if screen.is_interactive else PIPE_RECONNECT_S
    notify = notices.append if screen.is_interactive else None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_signal, tasks.cancel_scope)
        async with open_channel(
            args, PROBE, "consumer", reconnect_s=reconnect_s, notify=notify
        ) as channel:
            code = await Dialogue(channel, screen, options, notices).run(args.whom)
        tasks.cancel_scope.cancel()
        return code
    return ExitCode.OK if screen.is_interactive or args.follow else ExitCode.INTERRUPTED


async def _list(args: argparse.Namespace) -> int:
    async with open_channel(args, PROBE, "consumer") as channel:
        chats = await ChatClient(channel).chats()
        waiting = 0 if args.json else await requests.waiting(channel)
    for chat in chats:
        if args.json:
            print_json(
                {
                    "peer": chat.name,
                    "id": chat.id,
                    "trust": chat.trust,
                    "here": chat.here,
                    "seen_at": chat.seen_at,
                    "unread": chat.unread,
                    "waiting": chat.waiting,
                    "stream": chat.stream,
                }
            )
        else:
            print_line(describe(chat))
    if not chats and not args.json:
        print_line("there are no contacts: millpond chat invite NAME makes a link for one")
    if waiting:
        print_line(f"message requests: {waiting} (millpond chat {requests.WORD})")
    return ExitCode.OK


async def _give_link(args: argparse.Namespace) -> int:
    from millpond.node.web.requests import WebOperation  # who talks in a terminal needs none of it

    async with open_channel(args, PROBE, "consumer") as channel:
        answer: dict[str, Any] = await channel.peers(WebOperation.LINK, {})
    url = answer.get("url")
    if url is None:
        raise Failure("the node has no WebSocket listener: start it without `--ws off`")
    if args.json:
        print_json({"url": url, "others": answer.get("others", [])})
    else:
        for link in (url, *answer.get("others", [])):
            print_line(str(link))
    if args.open:
        await anyio.to_thread.run_sync(webbrowser.open, url)
    return ExitCode.OK
