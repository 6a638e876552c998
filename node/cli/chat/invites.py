"""`millpond chat invite`, `invites` and `accept`: first contact by one link."""

from __future__ import annotations

import argparse
import sys
import time
from shlex import quote
from typing import Any

import msgspec

from millpond.actors.errors import Malformed, UnknownPeer
from millpond.node.chat.messages import InviteAnswer, InvitesAnswer
from millpond.node.cli.connection import open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.reach import OWN_REACH, warn, warn_of_peer
from millpond.node.cli.style import has_styles
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE
from millpond.node.outbox.messages import AddAnswer, PeerOperation
from millpond.node.outbox.own_addresses import Reach
from millpond.node.qr_code import qr_lines

INVITE, INVITES, ACCEPT = "invite", "invites", "accept"
WORDS = (INVITE, INVITES, ACCEPT)
LINK_CHARS_MAX = 16_384
TIME = "%Y-%m-%d %H:%M UTC"
BLACK_ON_WHITE, PLAIN = "\x1b[30;47m", "\x1b[0m"
EARLIER = "the node is of an earlier version: it makes and accepts no invites"


def check_arguments(args: argparse.Namespace) -> None:
    """Raises Failure for words that make no command."""
    match args.whom, args.words:
        case ("invite", [_]) | ("invites", [] | ["cancel", _]) | ("accept", [_, _]):
            pass
        case ("invite", _):
            raise usage_error("`chat invite NAME`: the name that the invited peer will have here")
        case ("accept", _):
            raise usage_error("`chat accept LINK NAME`: the name that its maker will have here")
        case _:
            raise usage_error("`chat invites` lists them, `chat invites cancel NAME` ends one")
    if args.life and args.whom != INVITE:
        raise usage_error("--for needs `chat invite NAME`")


async def run(args: argparse.Namespace) -> int:
    """Make, list, end or accept an invite."""
    async with open_channel(args, PROBE, "consumer") as channel:
        try:
            match args.whom, args.words:
                case ("invite", [name]):
                    await _invite(channel, name, args)
                case ("accept", [link, name]):
                    await _accept(channel, link, name, as_json=args.json)
                case (_, [_, name]):
                    await _cancel(channel, name, as_json=args.json)
                case _:
                    await _list(channel, as_json=args.json)
        except Malformed as error:
            raise Failure(EARLIER) from error
    return ExitCode.OK


async def _invite(channel: Channel, name: str, args: argparse.Namespace) -> None:
    body: dict[str, Any] = {"name": name, "life": args.life}
    answer = msgspec.convert(await channel.peers(PeerOperation.INVITE, body), InviteAnswer)
    if answer.link is None:
        raise Failure(str(answer.error))
    reach = Reach(answer.reach)
    if args.json:
        print_json(
            {
                "link": answer.link,
                "peer": name,
                "until": answer.until,
                "reach": answer.reach,
                "addresses": list(answer.addresses),
                "relays": list(answer.relays),
            }
        )
        return
    print_line(answer.link)
    if sys.stdout.isatty():
        for line in shown_code(answer.link):
            print_line(line)
        end = time.strftime(TIME, time.gmtime(answer.until))
        print_line(f"give this link to {name} alone: it works once, until {end};")
        print_line("the other side types: millpond chat accept LINK NAME, or opens Add in its page")
    warn(OWN_REACH.get(reach))


def shown_code(link: str) -> list[str]:
    """The QR code of a link for a terminal, dark on light where it can show that."""
    lines = qr_lines(link)
    if not has_styles():
        return lines
    return [f"{BLACK_ON_WHITE}{line}{PLAIN}" for line in lines]


async def _accept(channel: Channel, link: str, name: str, *, as_json: bool) -> None:
    text = sys.stdin.read(LINK_CHARS_MAX) if link == "-" else link
    body = {"link": text.strip(), "name": name}
    reply = await channel.peers(PeerOperation.ACCEPT_INVITE, body)
    answer = msgspec.convert(reply, AddAnswer)
    if answer.error is not None:
        raise Failure(answer.error)
    if as_json:
        print_json({"id": answer.id, "peer": name, "reach": answer.reach})
        return
    print_line(f"{name}: added, not verified (millpond peer verify {quote(name)})")
    if answer.reach:
        warn_of_peer(Reach(answer.reach), name)


async def _list(channel: Channel, *, as_json: bool) -> None:
    answer = msgspec.convert(await channel.peers(PeerOperation.INVITES, {}), InvitesAnswer)
    for each in answer.invites:
        if as_json:
            print_json({"peer": each.name, "made_at": each.made_at, "until": each.until})
        else:
            print_line(f"{each.name}  until {time.strftime(TIME, time.gmtime(each.until))}")
    if not answer.invites and not as_json:
        print_line("there are no open invites")


async def _cancel(channel: Channel, name: str, *, as_json: bool) -> None:
    try:
        await channel.peers(PeerOperation.CANCEL_INVITE, {"name": name})
    except UnknownPeer as error:
        raise Failure(f"there is no open invite for {name!r}", ExitCode.NOT_FOUND) from error
    if as_json:
        print_json({"peer": name, "cancelled": True})
    else:
        print_line(f"the invite for {name} is cancelled")
