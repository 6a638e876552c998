"""Colours and widths of text for a terminal.

Colours are for a terminal that knows them, and for nobody who sets NO_COLOR (https://no-color.org).
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
ELLIPSIS = "…"


def has_styles(file: TextIO | None = None) -> bool:
    """True: the file (stdout) is a terminal that shows colours, and the user wants them."""
    output = sys.stdout if file is None else file
    is_plain = os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("NO_COLOR")
    return not is_plain and output is not None and output.isatty()


def styled(text: str, style: str, *, is_wanted: bool) -> str:
    """The text in a style, where that is wanted."""
    return f"\x1b[{style}m{text}\x1b[0m" if is_wanted and text else text


def fitted(text: str, columns: int) -> str:
    """The text, cut to so many columns of a terminal."""
    if text.isascii():
        return text if len(text) <= columns else text[: max(0, columns - 1)] + ELLIPSIS[:columns]
    from millpond.node.cli.chat.line_editor import char_width, text_width

    if text_width(text) <= columns:
        return text
    kept, width = "", 0
    for char in text:
        width += char_width(char)
        if width > columns - 1:
            break
        kept += char
    return kept + ELLIPSIS[:columns]


def padded(text: str, columns: int) -> str:
    """The text, cut or filled up to so many columns."""
    from millpond.node.cli.chat.line_editor import text_width

    shown = fitted(text, columns)
    return shown + " " * (columns - text_width(shown))
