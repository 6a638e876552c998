"""Which channels feed a stream, and how far each got: its notes `tee`."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from millpond.actors.store.changes import Change, MetadataSet

TEE_CHANNELS_MAX = 10_000
"""Of one stream. Beyond, those are forgotten of whose messages none can be left."""
_TEE = b"tee\0"
_FORM = struct.Struct(">QQQ")


class TeeMark(msgspec.Struct, frozen=True, gc=False):
    """How far a channel got: up to `id`. What it had until then expires before `until_ms`."""

    run: int
    id: int
    until_ms: int


class TeeProgress:
    """What changes one gives the change for the store."""

    __slots__ = ("_marks",)

    def __init__(self, notes: Mapping[bytes, bytes]) -> None:
        self._marks = {
            name[len(_TEE) :]: TeeMark(*_FORM.unpack(value))
            for name, value in notes.items()
            if name.startswith(_TEE)
        }

    def floor(self, channel: bytes, run: int) -> int:
        """The stream has everything of the channel up to this id; 0: nothing.

        Ids of a channel that a run of the node does not outlive may come again in the next one;
        those that were kept may not.
        """
        mark = self._marks.get(channel)
        return mark.id if mark is not None and mark.run in (run, 0) else 0

    def make_room(self, channel: bytes, now_ms: int, changes: list[Change]) -> bool:
        """Is there room for a mark of this channel? What means nothing any more goes."""
        marks = self._marks
        if channel in marks or len(marks) < TEE_CHANNELS_MAX:
            return True
        for name in [name for name, mark in marks.items() if mark.until_ms < now_ms]:
            del marks[name]
            changes.append(MetadataSet(_TEE + name, None))
        return len(marks) < TEE_CHANNELS_MAX

    def advance(self, channel: bytes, run: int, message_id: int, until_ms: int) -> MetadataSet:
        """The stream has the channel's messages up to this one."""
        before = self._marks.get(channel)
        latest_ms = until_ms if before is None else max(until_ms, before.until_ms)
        self._marks[channel] = mark = TeeMark(run, message_id, latest_ms)
        return MetadataSet(_TEE + channel, _FORM.pack(mark.run, mark.id, mark.until_ms))
