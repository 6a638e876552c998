"""Which streams and topics a node has, as connections see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class TopicDirectory(Protocol):
    """The topics of a node, by name; streams with a topic's name are topics of one partition."""

    def partitions(self, topic: bytes) -> int | None:
        """How many partitions the topic has; None: there is no such topic."""

    def topics(self) -> Iterable[tuple[bytes, int]]:
        """Every topic with its partitions, in the order of their names."""

    def is_created(self, name: bytes) -> bool:
        """Is there a stream of this name, apart from unused partitions of topics?"""


class StreamDirectory(TopicDirectory, Protocol):
    """The streams of a node by name, and its topics."""

    def names(self, prefix: bytes, after: bytes, limit: int) -> list[bytes]:
        """So many streams with a prefix, above a name, in the order of their names."""
