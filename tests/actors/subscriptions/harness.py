"""Subscriptions over real streams, on a clock that the test moves; the test is the worker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from millpond.actors.clock_jump import ClockJump
from millpond.actors.messages import Attach, Port, Reply
from millpond.actors.runtime.cell import Behaviour, CellSnapshot
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.names import subscription_cell, subscription_of
from millpond.actors.subscriptions import messages as s
from millpond.actors.subscriptions.context import (
    SubscriptionContext,
    SubscriptionCounters,
    SubscriptionLimits,
)
from millpond.actors.subscriptions.status import SubscriptionStatus
from millpond.actors.subscriptions.subscription import Subscription
from millpond.actors.subscriptions.tokens import LeaseTokens
from millpond.node.access.grants import is_in_scope
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import StreamHarness, bodies_of, read_of

SUB = b"sub"
MAKER = s.Maker("http://node", None)
R = TypeVar("R", bound=Reply)


def spec(
    kind: s.SubscriptionKind = s.SubscriptionKind.WEBHOOK,
    pattern: bytes | None = b"events/*",
    streams: Sequence[bytes] = (),
    lease_ms: int = 30_000,
    description: str | None = None,
    wake_stream: bytes = b"wake",
) -> s.SubscriptionSpec:
    """A subscription that a client may ask for."""
    is_webhook = kind is s.SubscriptionKind.WEBHOOK
    return s.SubscriptionSpec(
        kind,
        pattern,
        tuple(sorted(streams)),
        "https://worker.example/hook" if is_webhook else None,
        None if is_webhook else wake_stream,
        lease_ms,
        description,
    )


PULL = spec(s.SubscriptionKind.PULL_WAKE)
HOOK = spec()


class SubscriptionHarness(StreamHarness):
    """A node's streams and subscriptions."""

    def __init__(
        self, folder: Path | None = None, limits: SubscriptionLimits | None = None, **options: Any
    ) -> None:
        self.subscription_limits = limits or SubscriptionLimits()
        self.scopes: dict[bytes, tuple[str, ...] | None] = {}
        """The scopes of makers by their credentials."""
        self.linkable: Callable[[tuple[str, ...] | None, bytes], bool] = is_in_scope
        """Asked whether a maker of this scope may read a stream."""
        self.entropy = (number.to_bytes(32) for number in itertools.count(1))
        super().__init__(folder, **options)

    def open(self) -> None:
        self.webhooks = RecordingPort(-1)
        self.counts = SubscriptionCounters()
        self.random = Random(1)
        self.jump = ClockJump()
        self.statuses: dict[bytes, Callable[[], SubscriptionStatus]] = {}
        self.numbers = itertools.count(1)
        super().open()
        for cell in self.store.logs():
            if subscription_of(cell) is not None:
                self.shared.subscriptions.cells.add(cell)
                self.scheduler.adopt(cell, self.now)
        self.settle()

    def _spawn(self, cell: bytes, kept: CellSnapshot, attachments: dict[Port, Attach]) -> Behaviour:
        id_ = subscription_of(cell)
        if id_ is None:
            return super()._spawn(cell, kept, attachments)
        assert isinstance(kept, LogSnapshot)
        context = SubscriptionContext(
            self.post,
            self.post_later,
            self.directory,
            self.shared.subscriptions,
            self.subscription_limits,
            self.counts,
            lambda: LeaseTokens(b"k" * 32),
            self.webhooks,
            lambda size: next(self.entropy)[-size:],
            self.random,
            lambda scope, path: self.linkable(scope, path),
            self.statuses,
            lambda maker: self.scopes.get(maker.credentials, maker.scope),
            self.numbers,
        )
        return Subscription(id_, kept, context)

    # Streams.

    def put(self, name: bytes, *bodies: bytes, kind: bytes = b"application/json") -> None:
        """Make a stream, perhaps with content."""
        self.one(
            d.DurableCreate(0, d.CreateSpec(kind, None, False, list(bodies))),
            d.DurableCreated,
            name,
        )

    def post_to(self, name: bytes, *bodies: bytes) -> int:
        """Append; gives the tail."""
        append = d.DurableAppend(0, list(bodies), b"application/json")
        return self.one(append, d.DurableAppended, name).tail

    def events(self, name: bytes = b"wake") -> list[dict[str, Any]]:
        """The events in a wake stream."""
        found = self.one(read_of(0), m.Records, name)
        return [json.loads(each) for each in bodies_of(found)]

    # Subscriptions.

    def tell(self, request: s.SubscriptionRequest, kind: type[R], id_: bytes = SUB) -> R:
        """The reply of a subscription."""
        reply = self.ask_cell(subscription_cell(id_), request)
        assert isinstance(reply, kind), reply
        return reply

    def refusal(self, request: s.SubscriptionRequest, id_: bytes = SUB) -> s.SubscriptionRefusal:
        return self.tell(request, s.SubscriptionRefused, id_).reason

    def subscribe(
        self, wanted: s.SubscriptionSpec = HOOK, id_: bytes = SUB, maker: s.Maker = MAKER
    ) -> s.SubscriptionDescribed:
        return self.tell(s.PutSubscription(0, wanted, maker), s.SubscriptionDescribed, id_)

    def found(self, id_: bytes = SUB) -> s.SubscriptionDescribed:
        """The subscription, with all its links."""
        found = self.tell(s.DescribeSubscription(0), s.SubscriptionDescribed, id_)
        links, after = found.links, found.next
        while after is not None:
            page = self.tell(s.DescribeSubscription(0, after), s.SubscriptionDescribed, id_)
            links, after = links + page.links, page.next
        return msgspec.structs.replace(found, links=links, next=None)

    def cursors(self, id_: bytes = SUB) -> dict[bytes, int]:
        """The acknowledged position of each stream."""
        return {each.path: each.acked for each in self.found(id_).links}

    def delivery(self) -> s.Delivery:
        """The one delivery that was made since the last time."""
        (delivery,) = self.deliveries()
        return delivery

    def deliveries(self) -> list[s.Delivery]:
        self.settle()
        taken = self.webhooks.take()
        # Others are refusals of those that were never made.
        return [each for each in taken if isinstance(each, s.Delivery)]

    def finish(
        self,
        delivery: s.Delivery,
        outcome: s.DeliveryOutcome = s.DeliveryOutcome.ACCEPTED,
        error: str = "",
    ) -> None:
        """The worker answers, or does not."""
        self.post(delivery.cell, s.DeliveryFinished(delivery.number, outcome, error))
        self.settle()

    def claim(self, worker: str = "w", id_: bytes = SUB) -> s.WakeClaimed:
        return self.tell(s.ClaimWake(0, worker=worker), s.WakeClaimed, id_)


def settling(
    wake: s.Delivery | s.WakeClaimed,
    action: s.WakeAction | None = None,
    *acks: tuple[bytes, int | None],
    done: bool = False,
    **changes: Any,
) -> s.SettleWake:
    """A request with the token of a wake."""
    is_delivery = isinstance(wake, s.Delivery)
    action = action or (s.WakeAction.CALLBACK if is_delivery else s.WakeAction.ACK)
    given = tuple(s.StreamAck(*each) for each in acks)
    request = s.SettleWake(0, action, wake.token, wake.wake_id, wake.generation, given, done)
    return msgspec.structs.replace(request, **changes)


@contextmanager
def subscriptions(folder: Path | None = None, **options: Any) -> Iterator[SubscriptionHarness]:
    node = SubscriptionHarness(folder, **options)
    try:
        yield node
    finally:
        node.close()
