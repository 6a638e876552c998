"""What is noted of a stream besides its records: that it was created and how, token, groups."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.store.changes import Noted
from actors.streams.messages import Settings

CREATED = b"created"
FENCE = b"fence"
_GROUP = b"group\0"


class Created(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The note `created`, as MessagePack."""

    ms: int
    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None

    @property
    def settings(self) -> Settings:
        return Settings(self.age_s, self.bytes_max, self.content_type)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Created)


class Properties:
    """The notes of a stream; what changes one gives the change for the store."""

    __slots__ = ("created", "fence", "groups")

    def __init__(self, notes: Mapping[bytes, bytes]) -> None:
        created = notes.get(CREATED)
        self.created = None if created is None else _DECODER.decode(created)
        self.fence = notes.get(FENCE, b"")
        self.groups = {
            name[len(_GROUP) :]: int.from_bytes(value)
            for name, value in notes.items()
            if name.startswith(_GROUP)
        }

    @property
    def settings(self) -> Settings:
        """Its own; nothing but the node's configuration if it was not created by anyone."""
        return Settings() if self.created is None else self.created.settings

    def forget(self) -> None:
        """The stream is deleted, and nothing of it stays."""
        self.created = None
        self.fence = b""
        self.groups = {}

    def create(self, now_ms: int, settings: Settings) -> Noted:
        """The stream is there, with these settings from now on."""
        ms = now_ms if self.created is None else self.created.ms
        created = Created(ms, settings.age_s, settings.bytes_max, settings.content_type)
        self.created = created
        return Noted(CREATED, _ENCODER.encode(created))

    def set_fence(self, token: bytes) -> Noted:
        """Appends that name a token have to name this one; b"" is that of a new stream."""
        self.fence = token
        return Noted(FENCE, token or None)

    def commit(self, group: bytes, offset: int) -> Noted:
        """A consumer group got so far."""
        self.groups[group] = offset
        return Noted(_GROUP + group, offset.to_bytes(8))
