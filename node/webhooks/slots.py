"""Slots of webhooks: the deliveries that are made at once, and those that wait for their turn.

Receivers are strangers, and a silent one holds its slot until the time of the call is over. It must
not hold those of others:

- Receivers (host and port) take turns, and one has fewer calls under way than there are free slots:
  it gets half of all slots, two get a third each.
- Subscriptions whose last call was slow or failed, or that were not called yet, share half of the
  slots by the same rule. The other half is for those that were answered promptly.
"""

from __future__ import annotations

from collections import Counter

from millpond.actors.subscriptions.messages import Delivery
from millpond.transports.http.webhooks.destination import receiver_of

PROMPT_S = 1.0
"""A call that takes at most so long is prompt."""
_PROMPT_MAX = 10_000
"""Subscriptions that are known as prompt: many times those that a node has."""


class DeliverySlots:
    """The order of deliveries; `at_once` is the most under way."""

    __slots__ = (
        *("_at_once", "_prompt", "_queues", "_receivers", "_unproven", "_unproven_max"),
        *("_unproven_receivers", "_waiting_at"),
    )

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._unproven_max = (at_once + 1) // 2
        self._queues: dict[str, dict[bytes, Delivery]] = {}
        """The latest delivery of each cell that waits, by receiver; the next turn is first."""
        self._waiting_at: dict[bytes, str] = {}
        """The receivers of cells whose deliveries wait."""
        self._receivers: Counter[str] = Counter()
        """Calls under way."""
        self._unproven_receivers: Counter[str] = Counter()
        """Those of them whose subscriptions are not known as prompt."""
        self._unproven: set[int] = set()
        """The numbers of these."""
        self._prompt: dict[bytes, None] = {}
        """The cells of subscriptions whose last call was prompt; the one called last is last."""

    @property
    def waiting(self) -> int:
        """Deliveries that wait."""
        return len(self._waiting_at)

    def add(self, delivery: Delivery) -> None:
        """Have a delivery made. One of its subscription that still waits is outdated."""
        before = self._waiting_at.pop(delivery.cell, None)
        if before is not None:
            self._drop(before, delivery.cell)
        receiver = receiver_of(delivery.url)
        self._queues.setdefault(receiver, {})[delivery.cell] = delivery
        self._waiting_at[delivery.cell] = receiver

    def start(self) -> Delivery | None:
        """The next delivery, which has a slot from now on; None: none may be made now."""
        free = self._at_once - self._receivers.total()
        free_unproven = self._unproven_max - len(self._unproven)
        for receiver, queue in self._queues.items():
            if self._receivers[receiver] >= free:
                continue
            may_be_unproven = self._unproven_receivers[receiver] < free_unproven
            for cell, delivery in queue.items():
                if may_be_unproven or cell in self._prompt:
                    self._take(receiver, delivery)
                    return delivery
        return None

    def finish(self, delivery: Delivery, took_s: float, *, is_failed: bool) -> None:
        """Free the slot of a delivery."""
        receiver = receiver_of(delivery.url)
        _count_down(self._receivers, receiver)
        if delivery.number in self._unproven:
            self._unproven.discard(delivery.number)
            _count_down(self._unproven_receivers, receiver)
        self._prompt.pop(delivery.cell, None)
        if not is_failed and took_s <= PROMPT_S:
            self._prompt[delivery.cell] = None
            if len(self._prompt) > _PROMPT_MAX:
                del self._prompt[next(iter(self._prompt))]

    def _take(self, receiver: str, delivery: Delivery) -> None:
        del self._waiting_at[delivery.cell]
        self._drop(receiver, delivery.cell)
        queue = self._queues.pop(receiver, None)
        if queue is not None:
            self._queues[receiver] = queue  # the next turn is another's
        self._receivers[receiver] += 1
        if delivery.cell not in self._prompt:
            self._unproven.add(delivery.number)
            self._unproven_receivers[receiver] += 1

    def _drop(self, receiver: str, cell: bytes) -> None:
        queue = self._queues[receiver]
        del queue[cell]
        if not queue:
            del self._queues[receiver]


def _count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
