"""What a protocol has to offer so that dialogues can be written in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

Heard = TypeVar("Heard")
Captures = Mapping[str, Any]

PLACEHOLDER = re.compile(r"\{(?P<name>[a-zA-Z_]\w*)(?::(?P<size>\d+))?\}")
REST = "..."
ANYTHING = "_"
"""A placeholder of this name matches, and is not remembered."""


class Decoder(Protocol[Heard]):
    """Bytes in, what the node said out."""

    def feed(self, data: bytes, /) -> list[Heard]: ...


class DialogueProtocol(msgspec.Struct, Generic[Heard], frozen=True):
    """`write` and `match` raise ValueError for a text that is none of the language.

    `match` gives what placeholders stand for, or None where the node said something else.
    """

    port: int
    decoder: Callable[[], Decoder[Heard]]
    write: Callable[[str, Captures], bytes]
    match: Callable[[str, Heard, Captures], dict[str, Any] | None]
    show: Callable[[Heard], str]


def known(captures: Captures, name: str) -> Any:
    """What a placeholder stands for. ValueError if it stands for nothing yet."""
    if name not in captures:
        raise ValueError(f"{{{name}}} stands for nothing yet")
    return captures[name]


def without_anything(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be remembered."""
    return {name: value for name, value in found.items() if name != ANYTHING}
