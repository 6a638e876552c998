"""The interface of a protocol in which dialogues can be written, and the errors of dialogues."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class BadScript(ValueError):
    """The text is no dialogue; the error has the number of the line."""


class DialogueMismatch(AssertionError):
    """The node sent another message; the error shows the dialogue so far."""


Received = TypeVar("Received")
Captures = Mapping[str, Any]

PLACEHOLDER = re.compile(r"\{(?P<name>[a-zA-Z_]\w*)(?::(?P<size>\d+))?\}")
REST = "..."
ANYTHING = "_"
"""A placeholder of this name matches anything, and is not captured."""


class Decoder(Protocol[Received]):
    """A decoder of the node's bytes into messages."""

    def feed(self, data: bytes, /) -> list[Received]: ...


class DialogueProtocol(msgspec.Struct, Generic[Received], frozen=True):
    """A protocol as text. `write` and `match` raise ValueError for a text that is no message.

    `match` returns the captured placeholders, or None if the node's message differs.
    """

    port: int
    decoder: Callable[[], Decoder[Received]]
    write: Callable[[str, Captures], bytes]
    match: Callable[[str, Received, Captures], dict[str, Any] | None]
    show: Callable[[Received], str]


def known(captures: Captures, name: str) -> Any:
    """The value of a placeholder. Raises ValueError before it is captured."""
    if name not in captures:
        raise ValueError(f"{{{name}}} has no value yet")
    return captures[name]


def without_anything(found: Mapping[str, Any]) -> dict[str, Any]:
    """The captured values to remember."""
    return {name: value for name, value in found.items() if name != ANYTHING}
