"""A terminal that wraps lines anew when its window changes, as most do."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PIECE = re.compile("\x1b\\[([0-9;?]*)([a-zA-Z])|.", re.DOTALL)


class WrappingTerminal:
    """`lines` are as they were written, however many rows each takes; so is the cursor in one."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._lines = [""]
        self._line = self._column = 0

    def resize(self, columns: int) -> None:
        """The window is so wide now."""
        self.columns = columns

    def rows(self) -> list[str]:
        """The visible text."""
        return [row for line in self._lines for row in self._rows_of(line)]

    def feed(self, data: bytes) -> None:
        """The output of a program."""
        for found in _PIECE.finditer(data.decode()):
            if found[2] is not None:
                self._obey(found[2], int(found[1]) if found[1].isdigit() else 1)
            elif found[0] == "\r":
                self._column -= self._column % self.columns
            elif found[0] == "\n":
                self._down()
            else:
                line = self._lines[self._line].ljust(self._column)
                rest = line[self._column + 1 :]
                self._lines[self._line] = line[: self._column] + found[0] + rest
                self._column += 1

    def _obey(self, command: str, count: int) -> None:
        match command:
            case "A":
                for _ in range(count):
                    self._up()
            case "C":
                self._column += count
            case "J":
                self._lines[self._line] = self._lines[self._line][: self._column]
                del self._lines[self._line + 1 :]
            case "h" | "l" | "m":
                pass
            case _:
                raise AssertionError(f"this terminal does not know {command!r}")

    def _up(self) -> None:
        if self._column >= self.columns:
            self._column -= self.columns
        elif self._line:
            self._line -= 1
            rows = len(list(self._rows_of(self._lines[self._line])))
            self._column += (rows - 1) * self.columns

    def _down(self) -> None:
        if self._column + self.columns < len(self._lines[self._line]):
            self._column += self.columns
            return
        self._line += 1
        self._column %= self.columns
        if self._line == len(self._lines):
            self._lines.append("")

    def _rows_of(self, line: str) -> Iterator[str]:
        for start in range(0, max(1, len(line)), self.columns):
            yield line[start : start + self.columns]
