"""Requests to subscriptions and their replies (docs/reference/durable-streams.md).

Positions are sequences, as everywhere in the node; -1 is before the first record. Paths are names
of streams.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar

import msgspec

from millpond.actors.messages import StreamReply, StreamRequest

BEFORE_FIRST = -1
"""The position of a stream that came later than the subscription: all of its records are new."""
SHOWN_MAX = 1000
"""The streams of one delivery or claim; those with something new come first."""
PAGE_MAX = 1000
"""The links of one description."""


class SubscriptionKind(Enum):
    """The way in which a subscription wakes its workers: by a request to them, or by an event in a
    stream that they follow."""

    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"


class SubscriptionSpec(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A subscription as its client wants it. `streams` are sorted, each once; None: not given."""

    kind: SubscriptionKind
    pattern: bytes | None
    streams: tuple[bytes, ...]
    url: str | None
    wake_stream: bytes | None
    lease_ms: int
    description: str | None


class Maker(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The client that a subscription acts for: the base of the URLs by which it knows the node, and
    the streams that it may read, as patterns of access rules (None: all that are not private).

    `scope` is that of the time when it was stored. `credentials` (sealed by the node) give the one
    of today; empty: of a subscription that an older version stored.
    """

    origin: str
    scope: tuple[str, ...] | None
    credentials: bytes = b""


class SubscriptionRequest(StreamRequest, frozen=True, gc=False):
    """Base of the requests to the cell of a subscription."""


class PutSubscription(SubscriptionRequest, frozen=True, gc=False):
    """Have a subscription like this. Answered by `SubscriptionDescribed`."""

    spec: SubscriptionSpec
    maker: Maker


class DescribeSubscription(SubscriptionRequest, frozen=True, gc=False):
    """A description with a page of the links, those behind the path `after`. `is_explicit`: only
    links by name. Answered by `SubscriptionDescribed`."""

    after: bytes | None = None
    is_explicit: bool = False


class ManagingRequest(SubscriptionRequest, frozen=True, gc=False):
    """Base of the requests that need rights in the streams of the subscription.

    `revision` is that of the description in which the client's rights were checked; another one is
    refused with CHANGED. None: the node itself asks.
    """

    revision: int | None = None


class DeleteSubscription(ManagingRequest, frozen=True, gc=False):
    """Answered by `SubscriptionDone`, also if there is none."""


class ChangeMaker(ManagingRequest, frozen=True, gc=False, kw_only=True):
    """Act for this client from now on. Its `origin` is not taken: URLs stay as workers know them.
    Answered by `SubscriptionDone`."""

    maker: Maker


class LinkStreams(ManagingRequest, frozen=True, gc=False, kw_only=True):
    """Follow these streams from now on. Answered by `SubscriptionDone`."""

    streams: tuple[bytes, ...]


class UnlinkStream(ManagingRequest, frozen=True, gc=False, kw_only=True):
    """Follow this stream no longer, unless the pattern matches it. Answered by
    `SubscriptionDone`."""

    stream: bytes


class ClaimWake(ManagingRequest, frozen=True, gc=False, kw_only=True):
    """Take the lease of a pull-wake subscription. Answered by `WakeClaimed`."""

    worker: str


class WakeAction(Enum):
    """The request that a token is shown with."""

    CALLBACK = auto()
    ACK = auto()
    RELEASE = auto()


class StreamAck(msgspec.Struct, frozen=True, gc=False):
    """A position up to which a stream was handled; None: the client gave no offset."""

    stream: bytes
    position: int | None


class SettleWake(SubscriptionRequest, frozen=True, gc=False):
    """Acknowledge, extend or end a wake. Answered by `WakeSettled`. `token` None: it shows
    none."""

    action: WakeAction
    token: bytes | None
    wake_id: str
    generation: int
    acks: tuple[StreamAck, ...] = ()
    done: bool = False


class LinkView(msgspec.Struct, frozen=True, gc=False):
    """A stream of a subscription."""

    path: bytes
    is_explicit: bool
    acked: int
    tail: int
    has_pending: bool


class SubscriptionDescribed(StreamReply, frozen=True, gc=False):
    """A subscription and a page of its links. `is_failed`: its last delivery or event failed.

    `maker` has the scope of today. `revision` changes with all that a client needs rights for, but
    for links by the pattern, which are within the maker's scope. `next` is the `after` of the next
    page; None: this is the last one.
    """

    id: bytes
    spec: SubscriptionSpec
    maker: Maker
    created_ms: int
    is_failed: bool
    links: tuple[LinkView, ...]
    revision: int
    next: bytes | None = None
    is_new: bool = False


class SubscriptionDone(StreamReply, frozen=True, gc=False):
    """The change is made, as durably as the node promises."""


class WakeClaimed(StreamReply, frozen=True, gc=False):
    """The worker has the lease."""

    wake_id: str
    generation: int
    token: bytes
    links: tuple[LinkView, ...]
    lease_ms: int


class WakeSettled(StreamReply, frozen=True, gc=False):
    """Done. `next_wake`: the request led to another wake."""

    next_wake: bool


class SubscriptionRefusal(Enum):
    """The reason of a refusal, by the code that clients see."""

    INVALID_REQUEST = 400
    TOKEN_INVALID = 401
    TOKEN_EXPIRED = 4010
    SUBSCRIPTION_NOT_FOUND = 404
    SUBSCRIPTION_ALREADY_EXISTS = 4091
    FENCED = 4092
    ALREADY_CLAIMED = 4093
    NO_PENDING_WORK = 4094
    INVALID_OFFSET = 4095
    CHANGED = 4096
    """Clients do not see it: their rights are checked again."""


class SubscriptionRefused(StreamReply, frozen=True, gc=False):
    """Nothing was done. `holder` has the lease, with ALREADY_CLAIMED."""

    reason: SubscriptionRefusal
    text: str
    holder: str = ""
    generation: int = 0


# Deliveries of webhooks.


class Delivery(StreamReply, frozen=True, gc=False):
    """One request to a worker, for whoever makes requests; answered by `DeliveryFinished` to the
    cell. It takes `timeout_s` at most."""

    cell: bytes
    id: bytes
    url: str
    origin: str
    wake_id: str
    generation: int
    token: bytes
    links: tuple[LinkView, ...]
    timeout_s: float


class DeliveryOutcome(Enum):
    """The outcome of a delivery: the worker has done everything, it goes on, or it was not
    reached."""

    DONE = auto()
    ACCEPTED = auto()
    FAILED = auto()


class DeliveryFinished(SubscriptionRequest, frozen=True, gc=False):
    """The end of the delivery of this number. `error` is the reason of a failure."""

    is_answered: ClassVar[bool] = False

    outcome: DeliveryOutcome
    error: str = ""


class ContinueWork(SubscriptionRequest, frozen=True, gc=False):
    """The work of this number goes on: the cell tells itself, after others had their turn."""

    is_answered: ClassVar[bool] = False
