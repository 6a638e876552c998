"""Notifications: the body of a delivery, and what a receiver's answer means (DSS-23)."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import msgspec

from millpond.actors.streams.names import stream_path
from millpond.actors.subscriptions.messages import (
    BEFORE_FIRST,
    Delivery,
    DeliveryOutcome,
    LinkView,
)
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.webhooks.post import Answer

SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions/"
JWKS = "/v1/stream/__ds/jwks.json"


def shown_link(link: LinkView) -> dict[str, object]:
    """A stream of a subscription, as clients see it."""
    return {
        "path": stream_path(link.path),
        "link_type": "explicit" if link.is_explicit else "glob",
        "acked_offset": shown_offset(link.acked),
    }


def pending_link(link: LinkView) -> dict[str, object]:
    """The same for a worker, with the tail."""
    return {
        **shown_link(link),
        "tail_offset": shown_offset(link.tail),
        "has_pending": link.has_pending,
    }


def shown_offset(position: int) -> str:
    """The offset of a position."""
    return "-1" if position == BEFORE_FIRST else offset_of(position).decode()


def callback_url(origin: str, id_: bytes) -> str:
    """The URL at which a worker acknowledges."""
    return f"{origin}{SUBSCRIPTIONS}{quote_from_bytes(id_, safe='')}/callback"


def notification(delivery: Delivery) -> bytes:
    """The body of a delivery."""
    return msgspec.json.encode(
        {
            "subscription_id": delivery.id.decode(),
            "wake_id": delivery.wake_id,
            "generation": delivery.generation,
            "streams": [pending_link(each) for each in delivery.links],
            "callback_url": callback_url(delivery.origin, delivery.id),
            "callback_token": delivery.token.decode(),
        }
    )


def outcome_of(answer: Answer) -> DeliveryOutcome:
    """The meaning of an answer: a redirect is a failure like any other."""
    if not 200 <= answer.status < 300:
        return DeliveryOutcome.FAILED
    try:
        content = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return DeliveryOutcome.ACCEPTED
    is_done = isinstance(content, dict) and content.get("done") is True
    return DeliveryOutcome.DONE if is_done else DeliveryOutcome.ACCEPTED
