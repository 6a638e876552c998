"""Commands to Redis, as words or as they are sent. Sans-I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PackedCommand(NamedTuple):
    """A command with one of its keys, as it is sent."""

    key: str
    data: bytes


Words = tuple[str | bytes | int, ...]
Command = Words | PackedCommand


def packed_words(words: Sequence[str | bytes | int]) -> bytes:
    """Words of a command, each behind its length."""
    parts: list[bytes] = []
    for each in words:
        word = each if isinstance(each, bytes) else str(each).encode()
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)


def packed(command: Command) -> bytes:
    """A command, as it is sent."""
    if isinstance(command, PackedCommand):
        return command.data
    return b"*%d\r\n%b" % (len(command), packed_words(command))


def key_of(command: Command) -> str | bytes | int:
    """A key of a command, by which its server is known."""
    if isinstance(command, PackedCommand):
        return command.key
    return command[3] if command[0] == "EVALSHA" else command[1]
