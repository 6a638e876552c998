"""Private slots: rows of `peers.db` with the private halves of one-time prekeys.

All rows have one size and are overwritten where they are, with zeros when a key is destroyed. Rows
that are inserted and deleted would leave copies: SQLite overwrites what it deletes
(`secure_delete`), but not what it has moved to another page before.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import msgspec

from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.node.peers.envelope import KEY_BYTES

SCHEMA = """
CREATE TABLE IF NOT EXISTS one_time_prekeys (slot INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""
INSERT = "INSERT INTO one_time_prekeys VALUES (?, ?)"
UPDATE = "UPDATE one_time_prekeys SET data = ? WHERE slot = ?"

_HEAD = struct.Struct(">B8s32sQQQQ")
_EMPTY, _CLEAR, _SEALED = range(3)
_SEALED_BYTES = KEY_BYTES + 29
_ROW_BYTES = _HEAD.size + _SEALED_BYTES
EMPTY = bytes(_ROW_BYTES)
"""A slot without a key."""


class PrivateSlot(msgspec.Struct, frozen=True):
    """The private half of a one-time prekey that was given to `relay` under a `number`.

    Times in ms since 1970. `mailbox_id`: the message in the own mailbox that was opened with it and
    accepted; 0: none was.
    """

    private: bytes
    kid: bytes
    relay: bytes
    number: int
    made_at: int
    destroyed_after: int
    mailbox_id: int = 0

    def __repr__(self) -> str:
        return f"PrivateSlot({self.number})"


def encode_slot(slot: PrivateSlot, key: DataKey | None) -> bytes:
    """The row of a slot, sealed with `key` if there is one."""
    form, private = _CLEAR, slot.private
    if key is not None:
        form, private = _SEALED, key.seal(_location(slot.kid), slot.private)
    head = _HEAD.pack(
        form,
        slot.kid,
        slot.relay,
        slot.number,
        slot.made_at,
        slot.destroyed_after,
        slot.mailbox_id,
    )
    return (head + private).ljust(_ROW_BYTES, b"\0")


def decode_slot(data: bytes, key: DataKey | None) -> PrivateSlot | None:
    """The slot in a row; None: it is empty. Raises CannotUnseal for a damaged one, and for one of
    the other form."""
    if len(data) != _ROW_BYTES or data[0] > _SEALED:
        raise CannotUnseal
    form, kid, *values = _HEAD.unpack_from(data)
    if form == _EMPTY:
        return None
    if (form == _SEALED) != (key is not None):
        raise CannotUnseal
    private = data[_HEAD.size : _HEAD.size + (KEY_BYTES if key is None else _SEALED_BYTES)]
    if key is not None:
        private = key.unseal(_location(kid), private)
    return PrivateSlot(private, kid, *values)


def rewritten(data: bytes, key: DataKey, *, is_sealing: bool) -> bytes:
    """A row brought into the sealed form, or the clear one. One that is damaged stays as it is."""
    read, write = (None, key) if is_sealing else (key, None)
    with suppress(CannotUnseal):
        slot = decode_slot(data, read)
        return data if slot is None else encode_slot(slot, write)
    return data


def _location(kid: bytes) -> bytes:
    return b"peers.db/one-time/" + kid
