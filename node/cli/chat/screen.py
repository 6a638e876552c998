"""Input and output of a chat: a terminal with a prompt, or pipes."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, assert_never

import anyio

from millpond.node.cli.chat.line_editor import KeyCommand, LineEditor, Submitted, text_width
from millpond.node.cli.chat.view import CHANGE_INDENT, wrapped
from millpond.node.cli.input import read_available, read_lines
from millpond.node.cli.output import write_async

COLUMNS = 80
PROMPT_SHARE = 2
"""The prompt takes at most this part of the line."""
PASTES = "\x1b[?2004h", "\x1b[?2004l"
ERASE = "\r\x1b[J"
COMPLETIONS_MAX = 50
"""The number of completions that are shown."""
DIM, PLAIN = "\x1b[2m", "\x1b[22m"
IMAGE = "\x1b[30;47m", "\x1b[39;49m"


class Screen(Protocol):
    """The interface of input and output of a chat."""

    is_interactive: bool

    async def show(self, lines: Sequence[str]) -> None: ...

    async def show_image(self, rows: Sequence[str], width: int) -> bool: ...

    async def prompt(self, text: str) -> None: ...

    def set_completions(self, lines: Sequence[str]) -> None: ...

    def draft(self) -> str: ...

    def typed(self) -> AsyncGenerator[str]: ...

    async def redraw_on_signals(self) -> None: ...


class PipeScreen:
    """Lines from stdin, lines to stdout."""

    is_interactive = False

    def __init__(self, text_bytes_max: int) -> None:
        self._text_bytes_max = text_bytes_max

    async def show(self, lines: Sequence[str]) -> None:
        """Write lines. Raises BrokenPipeError when nobody reads any more."""
        if lines:
            text = "".join(f"{line}\n" for line in lines)
            await write_async(text.encode("utf-8", "backslashreplace"))

    async def show_image(self, rows: Sequence[str], width: int) -> bool:
        """Nothing: a pipe shows no images."""
        return False

    async def prompt(self, text: str) -> None:
        """Nothing: there is no prompt."""

    def set_completions(self, lines: Sequence[str]) -> None:
        """Nothing: there is no Tab."""

    def draft(self) -> str:
        """Nothing: lines are read when they are complete."""
        return ""

    async def typed(self) -> AsyncGenerator[str]:
        """The lines of stdin."""
        async for line in read_lines(self._text_bytes_max):
            yield line.decode("utf-8", "backslashreplace").rstrip("\r")

    async def redraw_on_signals(self) -> None:
        """Nothing: there is no terminal."""


class TerminalScreen:
    """A terminal: messages appear above the line that is being typed."""

    is_interactive = True

    def __init__(self, *, has_styles: bool) -> None:
        self._has_styles = has_styles
        self._editor = LineEditor()
        self._prompt = ""
        self._completions: Sequence[str] = ()
        self._column = 0
        self._lock = anyio.Lock()

    async def show(self, lines: Sequence[str]) -> None:
        """Show lines above the prompt."""
        columns = _columns()
        shown = [self._styled("\r\n".join(wrapped(line, columns))) for line in lines]
        if shown:
            await self._draw("".join(f"{line}\r\n" for line in shown))

    async def show_image(self, rows: Sequence[str], width: int) -> bool:
        """Show rows of blocks of this width, dark on light; False: the window is narrower."""
        if width > _columns():
            return False
        style = IMAGE if self._has_styles else ("", "")
        await self._draw("".join(f"{style[0]}{row}{style[1]}\r\n" for row in rows))
        return True

    async def prompt(self, text: str) -> None:
        """Set the prompt."""
        if text != self._prompt:
            self._prompt = text
            await self._draw("")

    def set_completions(self, lines: Sequence[str]) -> None:
        """Set the lines that Tab completes."""
        self._completions = sorted(lines)

    def draft(self) -> str:
        """The line that is being typed."""
        return self._editor.text

    async def typed(self) -> AsyncGenerator[str]:
        """The submitted lines, until Ctrl-D on an empty line or the end of the terminal."""
        while data := await _read():
            for command in self._editor.feed(data):
                match command:
                    case Submitted(text=text):
                        await self._draw("")
                        yield text
                    case KeyCommand.LEAVE:
                        return
                    case KeyCommand.REDRAW:
                        self._column = 0
                        await self._draw("\x1b[H\x1b[2J")
                    case KeyCommand.COMPLETE:
                        found = self._editor.complete(self._completions)
                        more = ["..."] if len(found) > COMPLETIONS_MAX else []
                        await self.show(
                            ["   ".join(found[:COMPLETIONS_MAX] + more)] if found else []
                        )
                    case _:
                        assert_never(command)
            await self._draw("")

    async def redraw_on_signals(self) -> None:
        """Draw anew when the window changes, or the program goes on after Ctrl-Z."""
        with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGCONT) as signals:
            async for number in signals:
                if number == signal.SIGCONT:
                    _set_up()
                await self._draw("")

    def _styled(self, line: str) -> str:
        return (
            f"{DIM}{line}{PLAIN}" if self._has_styles and line.startswith(CHANGE_INDENT) else line
        )

    async def _draw(self, above: str) -> None:
        async with self._lock:
            columns = _columns()
            text = self._erase(columns) + above + self._bottom(columns)
            await write_async(text.encode("utf-8", "replace"))

    def _erase(self, columns: int) -> str:
        """A window that got narrow has wrapped the line, so that it began rows above."""
        rows = 0 if "XTERM_VERSION" in os.environ else self._column // columns  # xterm cuts it off
        return (f"\x1b[{rows}A" if rows else "") + ERASE

    def _bottom(self, columns: int) -> str:
        prompt = self._prompt
        while text_width(prompt) > columns // PROMPT_SHARE:
            prompt = prompt[1:]
        shown, cursor = self._editor.window(columns - text_width(prompt))
        column = self._column = text_width(prompt) + cursor
        return f"{prompt}{shown}\r" + (f"\x1b[{column}C" if column else "")


@contextmanager
def terminal() -> Iterator[TerminalScreen]:
    """The terminal in raw mode for the block; restored afterwards."""
    before = termios.tcgetattr(sys.stdin)
    try:
        _set_up()
        has_styles = not os.environ.get("NO_COLOR")
        yield TerminalScreen(has_styles=has_styles)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        try:
            os.write(sys.stdout.fileno(), f"{ERASE}{PASTES[1]}".encode())
        except OSError:
            pass  # it was hung up: there is nothing to tidy


def is_terminal() -> bool:
    """True if stdin and stdout are a terminal."""
    is_plain = os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdin.isatty() and sys.stdout.isatty() and not is_plain


async def _read() -> bytes:
    try:
        return await read_available()
    except OSError:  # the terminal was hung up
        return b""


def _set_up() -> None:
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)  # signals and line ends stay as they are
    os.write(sys.stdout.fileno(), PASTES[0].encode())


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or COLUMNS
    except OSError:
        return COLUMNS
