"""Standard output of commands: raw bytes, lines, and JSON objects; never logs."""

from __future__ import annotations

import select
import sys
from typing import Any, TextIO


def print_json(value: Any) -> None:
    """One line of JSON, flushed."""
    write(json_line(value))


def json_line(value: Any) -> bytes:
    """One line of JSON."""
    import json  # few commands print any

    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def print_line(text: str) -> None:
    """One line of text, flushed."""
    write((text + "\n").encode("utf-8", "surrogateescape"))


def write(data: bytes) -> None:
    """Write and flush. Raises BrokenPipeError when the reader has gone."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def write_async(data: bytes, file: TextIO | None = None) -> None:
    """Write and flush without blocking the event loop while the reader is slow; to standard output
    if no file is given.

    A writable pipe takes PIPE_BUF bytes without blocking; more is not promised.
    """
    output = sys.stdout if file is None else file
    for start in range(0, len(data), select.PIPE_BUF):
        if not select.select([], [output], [], 0)[1]:
            import anyio  # commands without an event loop do not need it

            await anyio.wait_writable(output)
        output.buffer.write(data[start : start + select.PIPE_BUF])
        output.buffer.flush()


def counted(messages: int) -> str:
    """`1 message`, or `N messages`."""
    return "1 message" if messages == 1 else f"{messages} messages"


def size_text(number: float) -> str:
    """`120 B`, `1.5 KiB` and so on."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def data_field(data: bytes, name: str = "data") -> dict[str, str]:
    """The JSON field of some bytes: `data` for UTF-8, else `data_base64`."""
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode("ascii")}


def printable(name: str | bytes) -> str:
    """A name without control characters, which a peer may have put there."""
    text = name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def installed(package: str) -> str | None:
    """The version of an installed package, which is not imported; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # late: few commands need it

    try:
        return version(package)
    except PackageNotFoundError:
        return None
