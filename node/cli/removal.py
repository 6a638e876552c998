"""Commands that remove something: the question on a terminal, and what they say afterwards.

A program has no terminal, and is not asked: a script, a pipe or a timer goes on as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from millpond.node.cli.connection import run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`."""
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask; without a terminal nothing is asked"
    )


def is_asked(args: argparse.Namespace) -> bool:
    """Is there somebody at a terminal, who was not told to be left alone?"""
    return not args.yes and sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, otherwise: str = "nothing was removed") -> None:
    """Ask on stderr; anything but `y` or `yes` raises Failure, with the text `otherwise`."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure(otherwise)


def run_removal(
    args: argparse.Namespace,
    question: Callable[[], Awaitable[str]],
    remove: Callable[[], Awaitable[int]],
) -> int:
    """Remove, after a question where somebody is asked. `question` looks at what would be removed.

    Each is a connection of its own, so that no connection and no timeout waits for the answer.
    """
    if is_asked(args):
        texts: list[str] = []
        run_in_loop(args, partial(_look, question, texts))
        confirm(texts[0])
    return run_in_loop(args, remove)


async def _look(question: Callable[[], Awaitable[str]], texts: list[str]) -> int:
    texts.append(await question())
    return ExitCode.OK


def say_removed(args: argparse.Namespace, text: str) -> None:
    """Say on stderr what was removed; with --json that is in the object."""
    if not args.json:
        print(text, file=sys.stderr)


def plural(count: int, what: str) -> str:
    """`1 record`, or `N records`."""
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def size_fields(records: int, bytes_: int | None) -> dict[str, Any]:
    """The JSON fields of what was removed; numbers of 64 bits are strings. `bytes_` None: not
    known, as others appended meanwhile."""
    return {"removed": str(records)} | ({} if bytes_ is None else {"removed_bytes": str(bytes_)})


def size_text(records: int, bytes_: int | None) -> str:
    """`3 records (120 bytes)`."""
    return plural(records, "record") + ("" if bytes_ is None else f" ({plural(bytes_, 'byte')})")
