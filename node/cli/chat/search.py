"""`millpond chat search`: messages of all conversations, or of one, by their words."""

from __future__ import annotations

import argparse

from millpond.actors.errors import Malformed, NotAllowed, UnknownPeer
from millpond.node.chat.messages import ChatSearchAnswer, FoundText
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.view import clean, local_time
from millpond.node.cli.connection import open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.probe import PROBE

WORD = "search"
LISTED_MAX = 200
LEFT_OUT = "older messages are not searched: the histories are too long"


def check_arguments(args: argparse.Namespace) -> None:
    """Raises Failure for words that make no command."""
    if not args.words:
        raise usage_error("`chat search WORD...`: words, or their beginnings, that a message has")


async def run(args: argparse.Namespace) -> int:
    """List the messages, the newest last."""
    found: list[FoundText] = []
    async with open_channel(args, PROBE, "consumer") as channel:
        client = ChatClient(channel)
        try:
            answer = await client.search(" ".join(args.words), args.only)
            found = answer.found
            while answer.more and len(found) < LISTED_MAX:
                answer = await client.search(" ".join(args.words), args.only, len(found))
                found += answer.found
        except UnknownPeer as error:
            raise Failure(f"there is no peer or group {args.only!r}", ExitCode.NOT_FOUND) from error
        except Malformed as error:
            raise Failure(f"this node does not search: {error}") from error
        except NotAllowed as error:
            raise Failure(str(error)) from error
    for each in reversed(found):
        if args.json:
            print_json(
                {
                    "peer": each.peer,
                    "id": each.id,
                    "kind": each.kind,
                    "uuid": each.uuid.hex(),
                    "sequence": each.sequence,
                    "at": each.at,
                    "text": each.text,
                    **({"by": each.by} if each.by else {}),
                }
            )
        else:
            print_line(found_line(each))
    if not args.json:
        for line in end_lines(answer, len(found)):
            print_line(line)
    return ExitCode.OK


def found_line(found: FoundText) -> str:
    """A message that was found: when, with whom, and who has written it."""
    moment = local_time(found.at)
    day = f"{moment:%Y-%m-%d %H:%M}" if moment else "----------"
    who = f"you to {found.peer}" if found.kind == "out" else found.peer
    who = f"{found.by} in {found.peer}" if found.by else who
    return f"{day}  {clean(who)}: {clean(found.text)}"


def end_lines(answer: ChatSearchAnswer, count: int) -> list[str]:
    """The lines after the messages: about those that are not shown."""
    lines = [] if count else ["no message has these words"]
    if answer.more:
        lines.append(f"the newest {count} are shown; more words find fewer")
    return [*lines, LEFT_OUT] if answer.left_out else lines
