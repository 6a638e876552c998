"""Dead dead_letters (PS-14): what nobody took goes to the channel `<name>!dead`.

A message delays in its channel until that one has it, so it is in one of them at any time.
"""

from __future__ import annotations

import logging

from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import DeadLetter, DeadLetterStored
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Origin, StoredMessage

log = logging.getLogger(__name__)

DEAD_SUFFIX = b"!dead"
BURIAL_RETRY_S = 5.0
BURIAL_GAP_S = 0.002
"""Letters that are refused, perhaps all of a full channel, keep this distance when they come again:
at once they would hold up the node."""
EXPIRED = "expired"


def is_dead_letter_channel(name: bytes) -> bool:
    """Is this a dead-letter channel? It has none of its own."""
    return name.endswith(DEAD_SUFFIX)


def buries_expired(name: bytes, settings: ChannelSettings) -> bool:
    """Does what expires in the channel become a dead letter?"""
    return settings.dead_letter_expired and not is_dead_letter_channel(name)


def dead_letter_for(name: bytes, row: StoredMessage, attempts: int, reason: str) -> DeadLetter:
    """What the channel sends to its dead-letter channel, again and again until it has
    arrived."""
    return DeadLetter(name, row.id, attempts, reason, row.data)


def retry_at(now: float, waiting: int) -> float:
    """When to post a dead_letter again that may not arrive, while so many wait."""
    return now + BURIAL_RETRY_S + waiting * BURIAL_GAP_S


def post_again(
    dead_letter: DeadLetter, dead_letters: dict[int, DeadLetter], effects: Effects
) -> None:
    """It did not arrive. Who looks at the log is told once for all that wait."""
    if dead_letter.id == next(iter(dead_letters)):
        count = len(dead_letters)
        log.warning(
            "dead letter refused for now: channel=%r waiting=%d", dead_letter.channel, count
        )
    post(dead_letter, effects)


def post(dead_letter: DeadLetter, effects: Effects) -> None:
    """Send it on its way."""
    effects.posts += ((dead_letter.channel + DEAD_SUFFIX, dead_letter),)


def keep(
    dead_letter: DeadLetter,
    publisher: Publisher,
    keys: IdempotencyKeys,
    settings: ChannelSettings,
    now: float,
    effects: Effects,
) -> None:
    """A dead letter arrives. If there is no room it is refused for now, and comes again."""
    # The id of the dead message is its key here, so a dead_letter posted twice is kept once.
    if dead_letter.id not in keys.rows:
        publisher.quota.measure()
        origin = Origin(dead_letter.id, dead_letter.attempts, dead_letter.reason)
        if not publisher.quota.fits(len(dead_letter.data)) or not publisher.keep(
            dead_letter.id, settings.dead_ttl, dead_letter.data, now, effects, 0, origin
        ):
            return
    effects.posts += ((dead_letter.channel, DeadLetterStored(dead_letter.id)),)
