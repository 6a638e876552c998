"""Groups in the dialogue of a chat: `/group` and its words."""

from __future__ import annotations

import shlex

from millpond.actors.errors import UnknownPeer
from millpond.node.chat.messages import ChatInfo, GroupAnswer, GroupInfoAnswer, GroupMember
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.view import clean

HELP = """\
/group new NAME PEER...    a group with these contacts; quote names with spaces
/group                     the members of this group, and its forks
/group add PEER...         invite contacts; remove, admin, member NAME...: for admins
/group rename NAME         another name for all
/group accept   /group decline   answer an invitation
/group leave               take part no more
/group settle              end a fork: all follow this node's branch"""
OF_NAMES = ("add", "remove", "admin", "member")
STATUS = {
    "invited": "you are invited: /group accept or /group decline",
    "left": "you have left it",
    "removed": "you are no member any more",
}


async def run_command(
    client: ChatClient, chat: ChatInfo, text: str
) -> tuple[list[str], str | None]:
    """Run a command; gives lines, and the id of a group to turn to."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        return [f"not understood: {error}"], None
    if words[:1] == ["new"] and len(words) > 1:
        answer = await client.group_create(words[1], words[2:])
        return _told(answer, "created"), answer.id
    if words[:1] == ["help"] or (words and words[0] == "new"):
        return HELP.splitlines(), None
    if chat.group is None:
        return ["this is no group; the commands are:", *HELP.splitlines()], None
    try:
        return await _about_group(client, chat, words)
    except UnknownPeer:
        return ["this group is not here any more"], None


async def _about_group(
    client: ChatClient, chat: ChatInfo, words: list[str]
) -> tuple[list[str], str | None]:
    match words:
        case []:
            return info_lines(await client.group_info(chat)), None
        case ["accept" | "decline" as word]:
            answer = await client.group_answer(chat, accept=word == "accept")
            done = "you take part now" if word == "accept" else "declined"
            return _told(answer, done), chat.id if word == "accept" else None
        case ["leave" | "settle" as word]:
            return _told(await client.group_change(chat, word), "done"), None
        case ["rename", *name] if name:
            return _told(
                await client.group_change(chat, "rename", text=" ".join(name)), "done"
            ), None
        case [word, *names] if word in OF_NAMES and names:
            return _told(await client.group_change(chat, word, names), "done"), None
        case _:
            return HELP.splitlines(), None


def _told(answer: GroupAnswer, done: str) -> list[str]:
    return [f"--- {done}" if answer.error is None else f"--- not done: {clean(answer.error)}"]


def info_lines(info: GroupInfoAnswer) -> list[str]:
    """A group and its members."""
    lines = [f"--- {clean(info.name)}   (change {info.epoch}, {info.id[:8]})"]
    lines += [f"    {_member_text(each)}" for each in info.members]
    for fork in info.forks:
        lines += [
            "--- FORK: two admins have changed the group at the same time",
            f"    followed here: {clean(fork.kept)}",
            f"    not followed:  {clean(fork.other)}",
            "    an admin decides: /group settle",
        ]
    if info.status in STATUS:
        lines.append(f"--- {STATUS[info.status]}")
    return lines


def _member_text(member: GroupMember) -> str:
    words = [clean(member.name)]
    words += ["admin"] if member.admin else []
    words += [member.status] if member.status != "joined" else []
    if not member.you:
        words += [member.trust if member.trust != "unknown" else "not your contact"]
    if not member.reachable:
        words += ["NOT REACHED from here: add it as a contact"]
    return ", ".join(words)


def describe(chat: ChatInfo) -> str:
    """The conversation of a group in one line."""
    group = chat.group
    assert group is not None
    words = [f"{chat.name}: group of {group.members}"]
    words += [f"{group.invited} invited"] if group.invited else []
    words += ["FORK: see /group"] if group.forks else []
    if group.status == "invited" and group.invited_by:
        words.append(f"{clean(group.invited_by)} invites you: /group accept or /group decline")
    elif group.status in STATUS:
        words.append(STATUS[group.status])
    words += [f"{chat.unread} unread"] if chat.unread else []
    words += [f"{chat.waiting} of yours wait for members"] if chat.waiting else []
    return ", ".join(words)
