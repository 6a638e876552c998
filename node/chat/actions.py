"""Actions of messages: replies, edits, deletions and reactions.

Each is an ordinary text with an `action` and the uuid of the message that it is `about`: it is
numbered, ordered, kept and receipted like any other. A node that does not know the action shows the
text, so the text says something sensible there.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from millpond.node.chat.payloads import Text
from millpond.node.chat.records import Record

DELETED_TEXT = "deleted a message"
UNREACTED_TEXT = "took back a reaction"
REACTION_BYTES_MAX = 64
"""The largest reaction in bytes of UTF-8."""


class Action(Enum):
    """The actions of a message about another one.

    REPLY: an answer to it. EDIT: its new text, by its author. DELETE: it is gone for both, by its
    author. REACT: a reaction in place of an earlier one of the same person. UNREACT: none any more.
    """

    REPLY = "reply"
    EDIT = "edit"
    DELETE = "delete"
    REACT = "react"
    UNREACT = "unreact"


class ChangeOrder(NamedTuple):
    """The place of a change among those of the same message by the same author: the later one
    counts. Within a line of messages the number `n` decides, as some arrive late; else the record.
    """

    line: str
    n: int
    sequence: int

    @classmethod
    def of(cls, record: Record, sequence: int) -> ChangeOrder:
        """The place of a stored record."""
        return cls(record.line, record.n, sequence)

    def is_later(self, than: ChangeOrder | None) -> bool:
        """True if this change counts, and the other one no more."""
        if than is None:
            return True
        if self.line == than.line and self.n != than.n:
            return self.n > than.n
        return self.sequence > than.sequence


_ACTIONS = {action.value: action for action in Action}
_FIXED_TEXTS = {Action.DELETE: DELETED_TEXT, Action.UNREACT: UNREACTED_TEXT}


def action_of(message: Text | Record) -> Action | None:
    """The action of a message; None for a plain text, for an action of a later version, and for a
    reaction that is too long to be one."""
    action = _ACTIONS.get(message.action) if message.about else None
    if action is Action.REACT and len(message.text.encode()) > REACTION_BYTES_MAX:
        return None
    return action


def is_shown_alone(message: Text | Record) -> bool:
    """True for a message of its own; False for a change of another one."""
    return action_of(message) in (None, Action.REPLY)


def said_text(action: Action | None, text: str) -> str:
    """The text of a message with this action, as nodes that do not know the action show it."""
    return text if action is None else _FIXED_TEXTS.get(action, text)
