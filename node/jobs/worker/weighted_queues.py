"""Weighted queues: the next queue is chosen as often as its weight says, and none starves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

WEIGHT_MAX = 1000

T = TypeVar("T", bound=Hashable)


class WeightedQueues(Generic[T]):
    """Stride scheduling: the queue that was passed over longest, by weight, is next.

    A queue that was empty for a while does not catch up.
    """

    def __init__(self, weights: dict[T, int]) -> None:
        self._strides = {each: 1.0 / weight for each, weight in weights.items()}
        self._passes = dict(self._strides)
        self._now = 0.0

    def next(self, ready: Iterable[T]) -> T | None:
        """The next of the ready queues; None if none is ready."""
        chosen: T | None = None
        for each in ready:
            if chosen is None or self._at(each) < self._at(chosen):
                chosen = each
        if chosen is not None:
            self._now = self._at(chosen)
            self._passes[chosen] = self._now + self._strides[chosen]
        return chosen

    def _at(self, each: T) -> float:
        return max(self._passes[each], self._now)


def parse_queues(queues: Iterable[str]) -> dict[str, int]:
    """Weights by queue, from `NAME` or `NAME=WEIGHT`. Raises ValueError."""
    weights: dict[str, int] = {}
    for text in queues:
        name, equals, number = text.rpartition("=")
        if not equals:
            name, number = text, "1"
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= WEIGHT_MAX):
            raise ValueError(f"the weight of a queue is within 1..{WEIGHT_MAX}: {text!r}")
        if name in weights:
            raise ValueError(f"queue {name!r} is named twice")
        weights[name] = int(number)
    return weights
