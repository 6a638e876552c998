"""The lines of a dialogue: `>` a client's message, `<` the node's answer, `~` seconds of silence.

A name before the mark (`bob> `) is another client with its own connection. Empty lines and lines
that begin with `#` are skipped. A line that begins with white space continues the one before.
"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Literal, cast

import msgspec

from millpond.node.testing.dialogue.protocol import BadScript

Mark = Literal[">", "<", "~"]
_LINE = re.compile(r"(?P<who>[\w-]*)(?P<mark>[<>~])(?:\s+(?P<text>.*))?")
CLOSED = "closed"


class ScriptLine(msgspec.Struct, frozen=True):
    """A line of a dialogue; `who` is empty for the client without a name."""

    number: int
    who: str
    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.who}{self.mark} {self.text}"


def read_lines(text: str) -> list[ScriptLine]:
    """The lines of a dialogue. Raises BadScript."""
    found: list[ScriptLine] = []
    for number, raw in enumerate(dedent(text).splitlines(), 1):
        line = raw.rstrip()
        if not line or line.startswith("#"):
            continue
        if line[0].isspace() and found:
            joined = f"{found[-1].text} {line.strip()}"
            found[-1] = msgspec.structs.replace(found[-1], text=joined)
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise BadScript(f"line {number}: {line!r} begins with none of >, <, ~ and NAME>")
        content = (parts["text"] or "").strip()
        found.append(ScriptLine(number, parts["who"], cast(Mark, parts["mark"]), content))
    return found
