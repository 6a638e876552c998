"""`millpond chat requests`: the message requests of unknown senders, and the answers to them."""

from __future__ import annotations

import argparse
from shlex import quote
from typing import Any

import msgspec

from millpond.actors.errors import Malformed, UnknownPeer
from millpond.node.chat.messages import MessageRequestInfo, MessageRequestsAnswer
from millpond.node.cli.chat.view import clean, clean_lines, local_time
from millpond.node.cli.connection import open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE
from millpond.node.outbox.messages import AddAnswer, PeerOperation

WORD = "requests"
INDENT = "    "
OFF = "this node keeps no message requests: it was started with --no-message-requests"
HINT = "millpond chat requests accept ID NAME, or: millpond chat requests ignore|block ID"


def check_arguments(args: argparse.Namespace) -> None:
    """Raises Failure for words that make no command."""
    match args.words:
        case [] | ["accept", _, _] | ["ignore" | "block" | "refuse", _]:
            pass
        case _:
            raise usage_error(f"`chat requests` alone lists the requests; answer with {HINT}")
    if args.block and args.words[:1] not in (["refuse"], ["ignore"]):
        raise usage_error("--block needs `requests ignore ID`")


async def run(args: argparse.Namespace) -> int:
    """List the requests, or answer one."""
    async with open_channel(args, PROBE, "consumer") as channel:
        match args.words:
            case ["accept", sender, name]:
                await _accept(channel, sender, name)
                outcome: dict[str, object] = {"id": sender, "peer": name}
                text = f"{name}: added, not verified (millpond peer verify {quote(name)})"
            case [word, sender]:
                block = args.block or word == "block"
                await _answer(channel, PeerOperation.CHAT_REFUSE, {"id": sender, "block": block})
                outcome = {"id": sender, "refused": True, "blocked": block}
                text = f"{sender}: {'blocked' if block else 'ignored'}"
            case _:
                await _list(channel, as_json=args.json)
                return ExitCode.OK
    if args.json:
        print_json(outcome)
    else:
        print_line(text)
    return ExitCode.OK


async def waiting(channel: Channel) -> int:
    """The number of message requests; 0 at a node of an earlier version."""
    try:
        answer = await channel.peers(PeerOperation.CHAT_REQUESTS, {})
    except Malformed:
        return 0
    return len(msgspec.convert(answer, MessageRequestsAnswer).requests)


async def _accept(channel: Channel, sender: str, name: str) -> None:
    answer = await _answer(channel, PeerOperation.CHAT_ACCEPT, {"id": sender, "name": name})
    error = msgspec.convert(answer, AddAnswer).error
    if error is not None:
        raise Failure(error)


async def _answer(
    channel: Channel, operation: PeerOperation, body: dict[str, Any]
) -> dict[str, Any]:
    try:
        return await channel.peers(operation, body)
    except (Malformed, UnknownPeer) as error:
        text = f"there is no message request of {body['id']!r}; `millpond chat requests` lists them"
        raise Failure(text, ExitCode.NOT_FOUND) from error


async def _list(channel: Channel, *, as_json: bool) -> None:
    answer = await channel.peers(PeerOperation.CHAT_REQUESTS, {})
    found = msgspec.convert(answer, MessageRequestsAnswer)
    for each in found.requests:
        if as_json:
            print_json(_as_json(each))
        else:
            _print(each)
    if as_json:
        return
    if found.requests:
        print_line(f"answer with {HINT}")
    else:
        print_line("there are no message requests" if found.on else OFF)


def _as_json(request: MessageRequestInfo) -> dict[str, object]:
    return {
        "id": request.id,
        "fingerprint": request.fingerprint,
        "texts": [
            {
                "uuid": each.uuid.hex(),
                "text": each.text,
                "sent_at": each.sent_at,
                "at": each.at,
            }
            for each in request.texts
        ],
    }


def _print(request: MessageRequestInfo) -> None:
    print_line(f"{request.id} (unknown, not verified)")
    for each in request.texts:
        moment = local_time(each.at)
        first, *rest = clean_lines(each.text)
        when = "" if moment is None else f"{moment:%d %b %H:%M}  "
        print_line(f"{INDENT}{when}{clean(first)}")
        for line in rest:
            print_line(f"{INDENT}{INDENT}{line}")
