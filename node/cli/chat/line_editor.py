"""A line editor, driven by the bytes that a terminal sends.

Bytes go in at `feed`, and `window` gives what fits on the screen. A line break that was pasted
stays in the text.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

import msgspec

TEXT_CHARS_MAX = 32_769
"""One more than a message may have: what was cut off is refused, and not sent without its end."""
LINES_KEPT_MAX = 200
ESCAPE = "\x1b"
SEQUENCE_CHARS_MAX = 32
BREAK = "\u23ce"
"""Stands for a line break inside the line."""

BESIDE_THE_PRINTABLE = "\u200c\u200d\u200e\u200f"
"""Joiners of letters and emoji, and the marks of direction that act as a letter does."""

_SEQUENCE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|[^\\[O])")


class Submitted(msgspec.Struct, frozen=True):
    """A text that was submitted with Enter."""

    text: str


class KeyCommand(Enum):
    """Commands of keys other than editing."""

    COMPLETE = "complete"
    LEAVE = "leave"
    REDRAW = "redraw"


def is_shown(char: str) -> bool:
    """True for a visible character or a space, which does nothing else to a terminal.

    These include every space of Unicode, and emoji that are newer than this Python.
    """
    is_known = char.isprintable() or unicodedata.category(char) == "Zs"
    return is_known or char in BESIDE_THE_PRINTABLE or _is_new_emoji(char)


def _is_new_emoji(char: str) -> bool:
    return "\U0001f300" <= char <= "\U0001faff" and unicodedata.category(char) == "Cn"


def char_width(char: str) -> int:
    """The width of a character in columns."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" or _is_new_emoji(char) else 1


def text_width(text: str) -> int:
    """The width of a text without control characters."""
    return sum(map(char_width, text))


def _beginning(lines: Sequence[str]) -> str:
    """The common prefix of some lines."""
    first, last = min(lines, default=""), max(lines, default="")
    end = 0
    while end < min(len(first), len(last)) and first[end] == last[end]:
        end += 1
    return first[:end]


class LineEditor:
    """The edited line: `text`, and the position of the cursor."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._is_pasting = False
        self._history: list[str] = []
        self._recalled: int | None = None
        self._draft = ""
        self._keys: dict[str, Callable[[], None]] = {
            **dict.fromkeys(("\x01", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), self._home),
            **dict.fromkeys(("\x05", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), self._end),
            **dict.fromkeys(("\x02", "\x1b[D", "\x1bOD"), self._left),
            **dict.fromkeys(("\x06", "\x1b[C", "\x1bOC"), self._right),
            **dict.fromkeys(("\x10", "\x1b[A", "\x1bOA"), self._previous_line),
            **dict.fromkeys(("\x0e", "\x1b[B", "\x1bOB"), self._next_line),
            **dict.fromkeys(("\x7f", "\x08"), self._backspace),
            **dict.fromkeys(("\x1b\r", "\x1b\n"), self._break),
            "\x1b[3~": self._delete,
            "\x0b": self._cut_end,
            "\x15": self._cut_start,
            "\x17": self._cut_word,
            "\x1b[200~": self._begin_paste,
        }

    def feed(self, data: bytes) -> Iterator[Submitted | KeyCommand]:
        """Take what was typed; however it is split, the same comes of it."""
        for key in self._keys_of(self._decoder.decode(data)):
            if self._is_pasting:
                self._paste(key)
            elif key in ("\r", "\n"):
                yield self._submit()
            elif key == "\x04":
                if not self.text:
                    yield KeyCommand.LEAVE
                self._delete()
            elif key == "\x0c":
                yield KeyCommand.REDRAW
            elif key == "\t":
                yield KeyCommand.COMPLETE
            elif key in self._keys:
                self._keys[key]()
            elif len(key) == 1:
                self._insert(key)

    def complete(self, lines: Sequence[str]) -> list[str]:
        """Go on as all those `lines` do that begin like the text. Gives them if they part here."""
        if not self.text or self.cursor < len(self.text):
            return []
        found = [each for each in lines if each.startswith(self.text)]
        common = _beginning(found)
        if len(common) > len(self.text):
            self._replace(common)
            return []
        return found if len(found) > 1 else []

    def window(self, columns: int) -> tuple[str, int]:
        """The visible part of the line in so many columns, and the column of the cursor."""
        shown = self.text.replace("\n", BREAK)
        start = self.cursor
        width = 1  # the cursor's own place, at the end of the text
        while start > 0 and width + char_width(shown[start - 1]) <= columns:
            start -= 1
            width += char_width(shown[start])
        end, cursor_column = start, text_width(shown[start : self.cursor])
        width = 0
        while end < len(shown) and width + char_width(shown[end]) < columns:
            width += char_width(shown[end])
            end += 1
        return shown[start:end], cursor_column

    def _keys_of(self, text: str) -> Iterator[str]:
        self._pending += text
        while self._pending:
            if self._pending[0] != ESCAPE:
                key, self._pending = self._pending[0], self._pending[1:]
                yield key
                continue
            found = _SEQUENCE.match(self._pending)
            if found is None:
                if len(self._pending) > SEQUENCE_CHARS_MAX:
                    self._pending = ""
                return
            self._pending = self._pending[found.end() :]
            yield found[0]

    def _submit(self) -> Submitted:
        text = self.text
        if text.strip() and self._history[-1:] != [text]:
            self._history = [*self._history[1 - LINES_KEPT_MAX :], text]
        self._recalled, self._draft = None, ""
        self._replace("")
        return Submitted(text)

    def _replace(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _insert(self, text: str) -> None:
        wanted = "".join(each for each in text if each == "\n" or is_shown(each))
        if len(self.text) + len(wanted) <= TEXT_CHARS_MAX:
            self.text = self.text[: self.cursor] + wanted + self.text[self.cursor :]
            self.cursor += len(wanted)

    def _begin_paste(self) -> None:
        self._is_pasting = True

    def _paste(self, key: str) -> None:
        if key == "\x1b[201~":
            self._is_pasting = False
        elif len(key) == 1:
            self._insert({"\r": "\n", "\t": " "}.get(key, key))

    def _break(self) -> None:
        self._insert("\n")

    def _home(self) -> None:
        self.cursor = 0

    def _end(self) -> None:
        self.cursor = len(self.text)

    def _left(self) -> None:
        while self.cursor > 0:
            self.cursor -= 1
            if char_width(self.text[self.cursor]):
                return

    def _right(self) -> None:
        while self.cursor < len(self.text):
            self.cursor += 1
            if self.cursor == len(self.text) or char_width(self.text[self.cursor]):
                return

    def _backspace(self) -> None:
        end = self.cursor
        self._left()
        self.text = self.text[: self.cursor] + self.text[end:]

    def _delete(self) -> None:
        start = self.cursor
        self._right()
        self.text = self.text[:start] + self.text[self.cursor :]
        self.cursor = start

    def _cut_end(self) -> None:
        self.text = self.text[: self.cursor]

    def _cut_start(self) -> None:
        self.text, self.cursor = self.text[self.cursor :], 0

    def _cut_word(self) -> None:
        head = self.text[: self.cursor].rstrip()
        start = len(head) - len(re.split(r"\s", head)[-1]) if head else 0
        self.text, self.cursor = self.text[:start] + self.text[self.cursor :], start

    def _previous_line(self) -> None:
        place = len(self._history) if self._recalled is None else self._recalled
        if place == 0:
            return
        if self._recalled is None:
            self._draft = self.text
        self._recalled = place - 1
        self._replace(self._history[self._recalled])

    def _next_line(self) -> None:
        if self._recalled is None:
            return
        self._recalled += 1
        if self._recalled == len(self._history):
            self._recalled = None
            self._replace(self._draft)
        else:
            self._replace(self._history[self._recalled])
