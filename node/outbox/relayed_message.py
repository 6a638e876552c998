"""Relayed messages: sealed envelopes on their way from node to node (docs/internals/peers.md).

    e3 01 | hops u8 | deadline u32 | recipient[32] | channel length u16 | channel | envelope

`deadline` is in seconds since the Unix epoch by the clock of the sender: every node on the way
stores the message for the time that is left. Only `hops` changes on the way.
"""

from __future__ import annotations

import struct
from hashlib import sha256

import msgspec

from millpond.node.peers.envelope import CannotOpen, envelope_uuid
from millpond.transports.p2p.admission import NAME_BYTES_MAX

MAGIC = b"\xe3\x01"
HOPS_MAX = 3
"""A message is forwarded so often; after that it can only be fetched."""
PUBLIC_BYTES = 32
_HEAD = struct.Struct(f">2sBI{PUBLIC_BYTES}sH")
OVERHEAD_BYTES = _HEAD.size
DEADLINE_MAX = 2**32 - 1


class MalformedRelayedMessage(ValueError):
    """Bytes that are not a relayed message."""


class RelayedMessage(msgspec.Struct, frozen=True, gc=False):
    """An envelope for the channel `channel` of the node whose public key is `recipient`."""

    hops: int
    deadline: int
    recipient: bytes
    channel: bytes
    envelope: bytes


def encode_relayed_message(relayed: RelayedMessage) -> bytes:
    """The bytes of a relayed message, whose fields must be within their limits."""
    head = _HEAD.pack(
        MAGIC, relayed.hops, relayed.deadline, relayed.recipient, len(relayed.channel)
    )
    return head + relayed.channel + relayed.envelope


def decode_relayed_message(data: bytes) -> RelayedMessage:
    """The relayed message in some bytes. Raises MalformedRelayedMessage for all other bytes."""
    if len(data) < _HEAD.size:
        raise MalformedRelayedMessage("too short for a relayed message")
    magic, hops, deadline, recipient, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MalformedRelayedMessage("not a relayed message of version 1")
    if hops > HOPS_MAX:
        raise MalformedRelayedMessage(f"{hops} hops are more than {HOPS_MAX}")
    channel = data[_HEAD.size : _HEAD.size + length]
    if not 0 < length <= NAME_BYTES_MAX or len(channel) != length:
        raise MalformedRelayedMessage("the channel name is too short or too long")
    envelope = data[_HEAD.size + length :]
    try:
        envelope_uuid(envelope)
    except CannotOpen as error:
        raise MalformedRelayedMessage("it contains no envelope") from error
    return RelayedMessage(hops, deadline, recipient, channel, envelope)


def envelope_idempotency_key(envelope: bytes, attempt: int = 0, data: bytes = b"") -> int:
    """The idempotency key of an envelope, the same on every node.

    If the key is taken by other data, the next `attempt` has another one. That key is made of
    everything that is put (`data`, or the envelope), so nobody can use up the keys of a message by
    altering it.
    """
    uuid = envelope_uuid(envelope)
    if attempt == 0:
        return int.from_bytes(uuid[:4], "big")
    digest = sha256(bytes((attempt,)) + uuid + (data or envelope))
    return int.from_bytes(digest.digest()[:4], "big")
