"""Input of commands: stdin or a file, read without blocking the connection."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio

from millpond.node.cli.exit_codes import Failure

STDIN = 0
CHUNK_BYTES = 65_536


async def read_available(fd: int = STDIN) -> bytes:
    """The next available bytes; empty at the end."""
    try:
        await anyio.wait_readable(fd)
    except PermissionError:
        pass  # a file is always readable, and therefore nothing to wait for
    return os.read(fd, CHUNK_BYTES)


async def read_lines(bytes_max: int, fd: int = STDIN) -> AsyncIterator[bytes]:
    """The lines without their ends. Raises Failure for a line above `bytes_max`."""
    async for lines in read_line_groups(bytes_max, fd):
        for line in lines:
            yield line


async def read_line_groups(bytes_max: int, fd: int = STDIN) -> AsyncIterator[list[bytes]]:
    """Groups of lines that arrived together. Raises Failure for a line above `bytes_max`."""
    rest = bytearray()
    while chunk := await read_available(fd):
        first, *ends = chunk.split(b"\n")
        rest += first
        if len(rest) > bytes_max:
            raise too_large("a line", bytes_max)
        if ends:
            lines = [bytes(rest), *ends[:-1]]
            rest[:] = ends[-1]
            yield lines
    if rest:
        yield [bytes(rest)]


def too_large(what: str, bytes_max: int) -> Failure:
    """The failure for an input that is larger than any message."""
    return Failure(f"{what} is larger than any message: {bytes_max} bytes at most")
