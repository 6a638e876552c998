"""Relayed messages: sealed messages on their way from node to node.

    e3 02 | hops u8 | deadline u32 | recipient[32] | sealed message (e2 02)
    e3 01 | hops u8 | deadline u32 | recipient[32] | channel length u16 | channel | envelope (e2 01)

`deadline` is by the clock of the sender, in hours since the Unix epoch, rounded up (version 1:
seconds): every node on the way stores the message for the time that is left. Nobody vouches for it;
the true one is sealed. Only `hops` changes on the way.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from math import ceil

import msgspec

from millpond.node.peers import sealed_message
from millpond.node.peers.envelope import CannotOpen, envelope_uuid
from millpond.transports.p2p.admission import NAME_BYTES_MAX

MAGIC = b"\xe3\x02"
MAGIC_V1 = b"\xe3\x01"
HOPS_MAX = 3
"""A message is forwarded so often; after that it can only be fetched."""
PUBLIC_BYTES = 32
HOUR_S = 3600
_HEAD = struct.Struct(f">2sBI{PUBLIC_BYTES}s")
_LENGTH = struct.Struct(">H")
OVERHEAD_BYTES = _HEAD.size
OVERHEAD_BYTES_V1 = _HEAD.size + _LENGTH.size
DEADLINE_MAX = 2**32 - 1


class MalformedRelayedMessage(ValueError):
    """Bytes that are not a relayed message."""


class RelayedMessage(msgspec.Struct, frozen=True, gc=False):
    """A sealed message for the node whose public key is `recipient`.

    `deadline` is in seconds since the Unix epoch, in version 2 in whole hours. `channel` is empty,
    except in version 1: there the envelope is for that channel of the node.
    """

    hops: int
    deadline: int
    recipient: bytes
    channel: bytes
    envelope: bytes

    @property
    def is_version_1(self) -> bool:
        """True for a message that shows its channel."""
        return bool(self.channel)


def relayed_deadline(deadline: float) -> int:
    """The deadline of a relayed message, rounded up to a full hour."""
    return ceil(deadline / HOUR_S) * HOUR_S


def encode_relayed_message(relayed: RelayedMessage) -> bytes:
    """The bytes of a relayed message, whose fields must be within their limits."""
    hops, deadline, recipient, channel = (
        relayed.hops,
        relayed.deadline,
        relayed.recipient,
        relayed.channel,
    )
    if relayed.is_version_1:
        head = _HEAD.pack(MAGIC_V1, hops, deadline, recipient) + _LENGTH.pack(len(channel))
        return head + channel + relayed.envelope
    return _HEAD.pack(MAGIC, hops, deadline // HOUR_S, recipient) + relayed.envelope


def decode_relayed_message(data: bytes) -> RelayedMessage:
    """The relayed message in some bytes. Raises MalformedRelayedMessage for all other bytes."""
    if len(data) < _HEAD.size:
        raise MalformedRelayedMessage("too short for a relayed message")
    magic, hops, deadline, recipient = _HEAD.unpack_from(data)
    if magic not in (MAGIC, MAGIC_V1):
        raise MalformedRelayedMessage("not a relayed message of a known version")
    if hops > HOPS_MAX:
        raise MalformedRelayedMessage(f"{hops} hops are more than {HOPS_MAX}")
    channel, sealed = (b"", data[_HEAD.size :]) if magic == MAGIC else _split(data)
    try:
        if magic == MAGIC:
            sealed_message.kid_in(sealed)
        else:
            envelope_uuid(sealed)
    except CannotOpen as error:
        raise MalformedRelayedMessage("it contains no sealed message") from error
    seconds = deadline * HOUR_S if magic == MAGIC else deadline
    return RelayedMessage(hops, seconds, recipient, channel, sealed)


def relayed_idempotency_key(relayed: RelayedMessage, attempt: int = 0, data: bytes = b"") -> int:
    """The idempotency key of a relayed message, the same on every node.

    If the key is taken by other data, the next `attempt` has another one. That key is made of
    everything that is put (`data`, or the sealed message), so nobody can use up the keys of a
    message by altering it.
    """
    name = envelope_uuid(relayed.envelope) if relayed.is_version_1 else _digest(relayed.envelope)
    return uuid_idempotency_key(name, attempt, data or relayed.envelope)


def uuid_idempotency_key(uuid: bytes, attempt: int = 0, data: bytes = b"") -> int:
    """The idempotency key of a message with this uuid; see `relayed_idempotency_key`."""
    if attempt == 0:
        return int.from_bytes(uuid[:4], "big")
    digest = sha256(bytes((attempt,)) + uuid + data)
    return int.from_bytes(digest.digest()[:4], "big")


def _digest(sealed: bytes) -> bytes:
    return sha256(sealed).digest()


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The channel and the envelope of a relayed message of version 1."""
    if len(data) < OVERHEAD_BYTES_V1:
        raise MalformedRelayedMessage("too short for a relayed message")
    (length,) = _LENGTH.unpack_from(data, _HEAD.size)
    channel = data[OVERHEAD_BYTES_V1 : OVERHEAD_BYTES_V1 + length]
    if not 0 < length <= NAME_BYTES_MAX or len(channel) != length:
        raise MalformedRelayedMessage("the channel name is too short or too long")
    return channel, data[OVERHEAD_BYTES_V1 + length :]
