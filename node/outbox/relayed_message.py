"""A letter: a sealed envelope on its way from node to node (docs/internals/peers.md).

    e3 01 | hops u8 | deadline u32 | recipient[32] | channel length u16 | channel | envelope

`deadline` is in seconds since the Unix epoch, as the sender had it: whoever carries the letter
keeps it for what is left, however long it was under way. Only `hops` changes on the way.
"""

from __future__ import annotations

import struct
from hashlib import sha256

import msgspec

from millpond.node.peers.envelope import CannotOpen, envelope_uuid
from millpond.transports.p2p.admission import NAME_BYTES_MAX

MAGIC = b"\xe3\x01"
HOPS_MAX = 3
"""A letter is carried so often, and then only fetched."""
PUBLIC_BYTES = 32
_HEAD = struct.Struct(f">2sBI{PUBLIC_BYTES}sH")
OVERHEAD_BYTES = _HEAD.size
DEADLINE_MAX = 2**32 - 1


class MalformedRelayedMessage(ValueError):
    """These bytes are no letter."""


class RelayedMessage(msgspec.Struct, frozen=True, gc=False):
    """An envelope for the channel `channel` of the node whose public key is `recipient`."""

    hops: int
    deadline: int
    recipient: bytes
    channel: bytes
    envelope: bytes


def encode_relayed_message(letter: RelayedMessage) -> bytes:
    """The bytes of a letter; its fields must be within their limits."""
    head = _HEAD.pack(MAGIC, letter.hops, letter.deadline, letter.recipient, len(letter.channel))
    return head + letter.channel + letter.envelope


def decode_relayed_message(data: bytes) -> RelayedMessage:
    """Raises MalformedLetter for anything that `encode_relayed_message` would not have written."""
    if len(data) < _HEAD.size:
        raise MalformedRelayedMessage("a letter is longer than this")
    magic, hops, deadline, recipient, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MalformedRelayedMessage("not a letter of version 1")
    if hops > HOPS_MAX:
        raise MalformedRelayedMessage(f"{hops} hops are more than {HOPS_MAX}")
    channel = data[_HEAD.size : _HEAD.size + length]
    if not 0 < length <= NAME_BYTES_MAX or len(channel) != length:
        raise MalformedRelayedMessage("the channel's name is too short or too long")
    envelope = data[_HEAD.size + length :]
    try:
        envelope_uuid(envelope)
    except CannotOpen as error:
        raise MalformedRelayedMessage("there is no envelope in it") from error
    return RelayedMessage(hops, deadline, recipient, channel, envelope)


def envelope_idempotency_key(envelope: bytes, attempt: int = 0, data: bytes = b"") -> int:
    """The idempotency key under which an envelope is put: the same one wherever that happens.

    Where the key was used for something else, the next `attempt` has another one. That is made of
    all that is put (`data`, or the envelope), so nobody can use up the keys of a letter by altering
    it: he would have to find data with the same ones.
    """
    uuid = envelope_uuid(envelope)
    if attempt == 0:
        return int.from_bytes(uuid[:4], "big")
    digest = sha256(bytes((attempt,)) + uuid + (data or envelope))
    return int.from_bytes(digest.digest()[:4], "big")
