"""Dead letters (PS-14): messages whose attempts are used up, kept in the channel `<name>!dead`.

A message stays in its channel until that one has stored it, so it is in one of them at any time.
That one remembers the message as a move until it is told that the message is removed, so a crash in
between leaves one dead letter, however much later the node starts again.
"""

from __future__ import annotations

import logging

from millpond.actors.messages import DeadLetter
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import StoredMessage

log = logging.getLogger(__name__)

DEAD_SUFFIX = b"!dead"
RETRY_S = 5.0
RETRY_GAP_S = 0.002
"""Refused dead letters, perhaps all of a full channel, are sent again at this distance from one
another: all at once they would hold up the node."""
EXPIRED = "expired"
NOT_STARTED = "not started"


def is_dead_letter_channel(name: bytes) -> bool:
    """Is this a dead-letter channel? It has none of its own."""
    return name.endswith(DEAD_SUFFIX)


class PendingDeadLetters(dict[int, DeadLetter]):
    """The messages of one channel on their way to its dead-letter channel, by id. Each is sent
    again and again until it is stored there."""

    __slots__ = ("_channel",)

    def __init__(self, channel: bytes) -> None:
        super().__init__()
        self._channel = channel

    def is_expired(self, message_id: int) -> bool:
        """Is it one of them because its deadline passed?"""
        dead = self.get(message_id)
        return dead is not None and dead.reason == EXPIRED

    def send(
        self,
        row: StoredMessage,
        attempts: int,
        reason: str,
        flow_key: bytes,
        now: float,
        effects: Effects,
    ) -> float:
        """Send a message to the dead-letter channel. Gives the time to send it again."""
        dead = DeadLetter(self._channel, row.id, attempts, reason, row.data, flow_key)
        self[row.id] = dead
        return self._post(dead, now, effects)

    def send_again(self, message_id: int, now: float, effects: Effects) -> float:
        """The same for one that was not stored yet. The log has one line for all that wait."""
        dead, count = self[message_id], len(self)
        if message_id == next(iter(self)):
            log.warning("dead letter refused for now: channel=%r waiting=%d", self._channel, count)
        return self._post(dead, now, effects)

    def _post(self, dead: DeadLetter, now: float, effects: Effects) -> float:
        effects.posts += ((self._channel + DEAD_SUFFIX, dead),)
        return now + RETRY_S + len(self) * RETRY_GAP_S
