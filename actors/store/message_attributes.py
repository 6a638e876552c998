"""Attributes of messages: the time at which a message is due, and its unique key."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import assert_never

import msgspec

DUE_BYTES = 17
UNIQUE_BYTES = 10
"""The sizes of attributes in the journal, the second without the key's name."""


class DueAt(msgspec.Struct, frozen=True, gc=False):
    """The message rests until then, in seconds since 1970; 0: not any more."""

    id: int
    at: float


class UniqueKey(msgspec.Struct, frozen=True, gc=False):
    """While the message exists, no other one of this name is stored. Said once, with its row."""

    id: int
    name: bytes


AttributeChange = DueAt | UniqueKey
ATTRIBUTE_CHANGES = (DueAt, UniqueKey)


class MessageAttributes(msgspec.Struct):
    """The attributes of a partition's messages, or the changes to them in a memtable, by message
    id.

    Only a memtable has a `due` of 0, which ends that of the file or an older memtable.
    """

    due: dict[int, float] = {}
    names: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self.due or self.names)

    @property
    def size(self) -> int:
        """Bytes it takes to say it again in the journal, roughly."""
        named = sum(map(len, self.names.values()))
        return DUE_BYTES * len(self.due) + UNIQUE_BYTES * len(self.names) + named

    def fold(self, change: AttributeChange, *, is_oldest: bool) -> None:
        """Take in a change; `is_oldest`: there is no file or older memtable."""
        match change:
            case DueAt(id=message_id, at=at):
                if at or not is_oldest:
                    self.due[message_id] = at
                else:
                    self.due.pop(message_id, None)
            case UniqueKey(id=message_id, name=name):
                self.names[message_id] = name
            case _:
                assert_never(change)

    def forget(self, message_id: int) -> None:
        """The message left."""
        self.due.pop(message_id, None)
        self.names.pop(message_id, None)

    def changes(self) -> Iterator[AttributeChange]:
        """The changes that make it again."""
        for message_id, at in self.due.items():
            yield DueAt(message_id, at)
        for message_id, name in self.names.items():
            yield UniqueKey(message_id, name)

    def split(self, stays: AbstractSet[int]) -> tuple[MessageAttributes, MessageAttributes]:
        """The part to flush, and the part that stays with the messages that stay."""
        moved, left = MessageAttributes(), MessageAttributes()
        for message_id, at in self.due.items():
            (left if message_id in stays else moved).due[message_id] = at
        for message_id, name in self.names.items():
            (left if message_id in stays else moved).names[message_id] = name
        return moved, left

    def apply_to(self, older: MessageAttributes) -> MessageAttributes:
        """The attributes of an older memtable or file and of this one together; `older` may be
        changed."""
        for change in self.changes():
            older.fold(change, is_oldest=True)
        return older


def attributes_of(
    attributes: MessageAttributes, rows: AbstractSet[int]
) -> MessageAttributes | None:
    """The attributes of messages that exist, for a snapshot; None if there are none."""
    due = {message_id: at for message_id, at in attributes.due.items() if at and message_id in rows}
    names = {
        message_id: name for message_id, name in attributes.names.items() if message_id in rows
    }
    return MessageAttributes(due, names) if due or names else None
