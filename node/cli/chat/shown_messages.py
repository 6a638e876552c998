"""The messages of a conversation as they are now: edited, deleted, and with their reactions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.node.chat.actions import Action, ChangeOrder, action_of, is_shown_alone
from millpond.node.chat.records import Kind, Record

MESSAGES_MAX = 10_000
"""The most messages of a conversation that are known, and the most changes of unknown ones."""
MESSAGES = (Kind.IN, Kind.OUT)


Author = tuple[Kind, str]
"""The author of a message: the side of the conversation, and in a group the peer id."""


class ShownMessage(msgspec.Struct):
    """A message; `reactions` by whose they are. A deleted one has no text. `by`: the peer id of its
    author, in a group."""

    kind: Kind
    uuid: str
    at: int
    text: str
    is_edited: bool = False
    is_deleted: bool = False
    reactions: dict[Author, str] = msgspec.field(default_factory=dict)
    edit: ChangeOrder | None = None
    reacted: dict[Author, ChangeOrder] = msgspec.field(default_factory=dict)
    by: str = ""


class ShownMessages:
    """The messages of one conversation, from its records in their order."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Kind, str, str], ShownMessage] = {}
        self._authors: dict[str, str] = {}
        """The author of the first message of others with a uuid."""
        self._early: dict[str, list[tuple[int, Record]]] = {}
        self._early_count = 0
        self._count = 0

    def get(self, kind: Kind, uuid: str, by: str = "") -> ShownMessage | None:
        """A message of one side, in a group of the author `by`; None: it is not known, or was
        forgotten."""
        return self._messages.get((kind, by, uuid))

    def target(self, record: Record) -> ShownMessage | None:
        """The known message that a record is about: one of its author, where it has to be."""
        action = action_of(record)
        if action in (Action.EDIT, Action.DELETE):
            return self.get(record.kind, record.about, record.by)
        return None if action is None else self._named(record.about)

    def _named(self, uuid: str) -> ShownMessage | None:
        """The message with this uuid. A peer chooses those of its own messages, so one of the user
        comes first."""
        return self.get(Kind.OUT, uuid) or self.get(Kind.IN, uuid, self._authors.get(uuid, ""))

    def changed_by(self, record: Record) -> ShownMessage | None:
        """The known message that a record changes."""
        return None if is_shown_alone(record) else self.target(record)

    def latest(self, kind: Kind) -> Iterator[ShownMessage]:
        """The messages of one side that are not deleted, the last one first."""
        for message in reversed(self._messages.values()):
            if message.kind is kind and not message.is_deleted:
                yield message

    def learn(self, record: Record) -> bool:
        """Apply a record. False: it changes nothing, as a later change has come before it."""
        if record.kind not in MESSAGES:
            return True
        self._count += 1
        if not is_shown_alone(record):
            if self._named(record.about) is not None:
                return self._change(self._count, record)
            if self._early_count < MESSAGES_MAX:
                self._early.setdefault(record.about, []).append((self._count, record))
                self._early_count += 1
            return True
        message = ShownMessage(record.kind, record.uuid, record.at, record.text, by=record.by)
        self._messages[record.kind, record.by, record.uuid] = message
        if record.by:
            self._authors.setdefault(record.uuid, record.by)
        if len(self._messages) > MESSAGES_MAX:
            first = next(iter(self._messages))
            self._messages.pop(first)
            self._authors.pop(first[2], None)
        for place, change in self._early.pop(record.uuid, []):
            self._early_count -= 1
            self._change(place, change)
        return True

    def _change(self, place: int, record: Record) -> bool:
        message = self.changed_by(record)
        if message is None:
            return True
        action, order = action_of(record), ChangeOrder.of(record, place)
        known = (
            message.edit if action is Action.EDIT else message.reacted.get((record.kind, record.by))
        )
        if action is Action.DELETE:
            message.text, message.is_deleted = "", True
            message.reactions.clear()
            return True
        if message.is_deleted or not order.is_later(known):
            return False
        if action is Action.EDIT:
            message.text, message.is_edited, message.edit = record.text, True, order
            return True
        author = (record.kind, record.by)
        message.reacted[author] = order
        message.reactions.pop(author, None)
        if action is Action.REACT:
            message.reactions[author] = record.text
        return True
