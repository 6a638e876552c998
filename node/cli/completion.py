"""Completion of the command line, with names that the node has.

The shell runs `millpond` with `_ARGCOMPLETE` in its environment when the user asks for the rest of
a word; `millpond completion SHELL` prints what makes it do so. Only the module of the command in
the line is imported. Names are asked for within `NAMES_S`; where no node answers there are none.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

NAMES_S = 1.0
"""The longest wait for names."""
NAMES_MAX = 500

Names = Callable[[argparse.Namespace, str], Awaitable[list[str]]]


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that may follow, for the shell that asks, and end the process."""
    import argcomplete

    _hide_aliases(parser)
    for program, action in _arguments(parser):
        is_peer = action.metavar == "NAME" and program.startswith("millpond peer ")
        names = NAMES.get("PEER" if is_peer else str(action.metavar))
        if names is not None:
            action.completer = partial(_complete_name, names)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _hide_aliases(parser: argparse.ArgumentParser) -> None:
    """Offer commands by their names alone, unless an earlier name is in the line."""
    words = os.environ.get("COMP_LINE", "").split()
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, each in list(action.choices.items()):
                if not each.prog.endswith(f" {name}") and name not in words:
                    del action.choices[name]
                else:
                    _hide_aliases(each)


def command_in(line: str) -> str:
    """The command in a line that is being typed; "" where it is not complete."""
    words = line.split(" ")
    return words[1] if len(words) > 2 else ""


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """All arguments, each with the words before it."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to see them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                yield from _arguments(each)
        else:
            yield parser.prog, action


def _complete_name(
    names: Names, prefix: str, parsed_args: argparse.Namespace, **_: object
) -> list[str]:
    """The names that begin with a prefix. No error is shown: the user is typing."""
    import anyio
    from argcomplete.io import debug

    from millpond.node.cli.options.context import resolve

    async def ask() -> list[str]:
        if getattr(parsed_args, "uses_context", False):
            resolve(parsed_args)
        with anyio.move_on_after(NAMES_S):
            return await names(parsed_args, prefix)
        return []

    try:
        found = anyio.run(ask)
    except Exception as exc:  # a text on the terminal would stand in what the user types
        debug(f"no names: {exc!r}")  # shown where _ARC_DEBUG is set
        return []
    return [name for name in found if name.startswith(prefix)]


async def _channels(args: argparse.Namespace, prefix: str, mode: str | None = None) -> list[str]:
    from millpond.node.cli.connection import INFO, open_channel
    from millpond.node.client.probe import PROBE

    async with open_channel(args, PROBE, "consumer", notify=_say_nothing) as channel:
        request = {"channel": None, "after": _before(prefix), "limit": NAMES_MAX}
        answer: dict[str, Any] = await channel.admin(INFO, request)
    return [
        os.fsdecode(each["name"])
        for each in answer["page"]
        if b"!" not in each["name"] and mode in (None, each["mode"])
    ]


def _before(prefix: str) -> bytes:
    """A name shortly before all that begin so: pages are in the order of names."""
    name = os.fsencode(prefix)
    return name[:-1] + bytes([name[-1] - 1]) + b"\xff" if name and name[-1] else b""


async def _streams(args: argparse.Namespace, prefix: str) -> list[str]:
    from millpond.node.cli.stream.connection import open_streams

    async with open_streams(args) as streams:
        return await _first(streams.names(os.fsencode(prefix)))


async def _topics(args: argparse.Namespace, prefix: str) -> list[str]:
    from millpond.node.cli.stream.connection import open_streams

    async with open_streams(args) as streams:
        wanted = os.fsencode(prefix)
        return await _first(name async for name, _ in streams.topics() if name.startswith(wanted))


async def _first(names: AsyncIterator[bytes]) -> list[str]:
    found: list[str] = []
    async for name in names:
        found.append(os.fsdecode(name))
        if len(found) >= NAMES_MAX:
            break
    return found


async def _peers(args: argparse.Namespace, prefix: str) -> list[str]:
    from pathlib import Path

    from millpond.node.cli.commands.address_book import open_address_book
    from millpond.node.cli.options.data_folder import data_folder

    folder = Path(getattr(args, "data", None) or data_folder(os.environ))
    return [each.name for each in open_address_book(folder).peers]


def _say_nothing(text: str) -> None:
    """The user is typing."""


async def _contexts(args: argparse.Namespace, prefix: str) -> list[str]:
    from millpond.node.cli.contexts import contexts_file, read_contexts

    return list(read_contexts(contexts_file()).by_name)


NAMES: dict[str, Any] = {
    "CHANNEL": _channels,
    "CONTEXT": _contexts,
    "PEER": _peers,
    "QUEUE": partial(_channels, mode="queue"),
    "STREAM": _streams,
    "TOPIC": _topics,
}
"""The sources of the values of an argument, by its name in the usage."""
