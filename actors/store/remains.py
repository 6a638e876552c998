"""What is left of writes when the journal fails: what nobody waits for is said again.

A write that somebody waits for is refused as a whole, and what came after it in its partition was
done upon it. But a word about a message that was kept before is true all the same: who acked it
was heard, and hears nothing of a disk.
"""

from __future__ import annotations

from collections.abc import Sequence

from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    MessageRemoved,
    StoredMessage,
    is_soft,
)
from millpond.actors.store.index import IndexEntry
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)


class UnackedWrites:
    """Takes the writes of one failure, oldest first."""

    def __init__(self) -> None:
        self._ids: dict[IndexEntry, set[int]] = {}
        self._members: dict[IndexEntry, set[int]] = {}

    @property
    def losers(self) -> list[IndexEntry]:
        """Partitions that lost something."""
        return list(self._ids)

    def part(
        self, entry: IndexEntry, changes: Sequence[Change]
    ) -> tuple[Sequence[Change], Sequence[Change]]:
        """Of one write: what stands, and what is lost."""
        is_hard = not all(map(is_soft, changes))
        if not is_hard and entry not in self._ids:
            return changes, ()
        stands = [] if is_hard else [each for each in changes if self._stands(entry, each)]
        lost = changes if is_hard else [each for each in changes if not self._stands(entry, each)]
        ids = self._ids.setdefault(entry, set())
        ids.update(each.id for each in lost if isinstance(each, StoredMessage))
        members = self._members.setdefault(entry, set())
        members.update(
            each.number
            for each in lost
            if isinstance(each, Subscriber | SubscriberTouched | SubscriberRemoved)
        )
        return stands, lost

    def _stands(self, entry: IndexEntry, change: Change) -> bool:
        match change:
            case MessageRemoved(id=message_id) | AttemptsSet(id=message_id) | DueAt(id=message_id):
                return message_id not in self._ids[entry]
            case Acked(number=number, id=message_id) | AckedUpTo(number=number, id=message_id):
                # The number may be somebody else's when the channel is built anew.
                return number not in self._members[entry] and message_id not in self._ids[entry]
            case _:
                return False
