"""What commands print: bytes as they are, or one JSON object a line; always data, never logs."""

from __future__ import annotations

import json
import select
import sys
from typing import Any

import anyio


def print_json(value: Any) -> None:
    """One line of JSON, flushed."""
    write((json.dumps(value, ensure_ascii=False) + "\n").encode())


def print_line(text: str) -> None:
    """One line of text, flushed."""
    write((text + "\n").encode("utf-8", "surrogateescape"))


def write(data: bytes) -> None:
    """Write and flush. Raises BrokenPipeError when nobody reads any more."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def write_async(data: bytes) -> None:
    """Write and flush, letting the connection work on while the reader is slow.

    A pipe that is writable takes PIPE_BUF bytes without blocking, and promises no more.
    """
    for start in range(0, len(data), select.PIPE_BUF):
        if not select.select([], [sys.stdout], [], 0)[1]:
            await anyio.wait_writable(sys.stdout)
        write(data[start : start + select.PIPE_BUF])


def counted(messages: int) -> str:
    """The number of messages in words."""
    return "1 message" if messages == 1 else f"{messages} messages"


def data_field(data: bytes, name: str = "data") -> dict[str, str]:
    """The JSON field of bytes, a message's: `data` where it is UTF-8, else `data_base64`."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode("ascii")}


def printable(name: str | bytes) -> str:
    """A name is whatever a peer sent: keep control characters off the terminal."""
    text = name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
