"""The encryption of chat histories on the disk, in a folder with a data key.

It is below the stream: who may read the stream reads clear records, and the journal, the files and
their copies have ciphertext. A chunk is sealed for its location: the sequences, times and ids of
its records, and the name of the log.
"""

from __future__ import annotations

import struct

import msgspec

from millpond.actors.store.changes import Chunk
from millpond.actors.streams.names import staged_part_of, stream_cell
from millpond.node.chat.records import PREFIX
from millpond.node.peers.data_key import CannotUnseal, DataKey

LOGS = stream_cell(PREFIX)
"""The names of all logs that are histories begin so."""

_BOUNDS = struct.Struct(">QIQQQQQQ")


def is_history(name: bytes) -> bool:
    """True for the log of a chat's history, and of what a transaction stages for one."""
    if name.startswith(LOGS):
        return True
    part = staged_part_of(name)
    return part is not None and part.target.startswith(LOGS)


class HistoryCipher:
    """Seals the chunks of histories with the data key."""

    def __init__(self, key: DataKey) -> None:
        self._key = key

    def covers(self, name: bytes) -> bool:
        """True for the log of a history."""
        return is_history(name)

    def encrypted(self, name: bytes, chunk: Chunk) -> Chunk:
        """The chunk with sealed data; one without data stays as it is."""
        if not chunk.data:
            return chunk
        return msgspec.structs.replace(
            chunk, data=self._key.seal(location(name, chunk), chunk.data)
        )

    def decrypted(self, name: bytes, chunk: Chunk) -> Chunk | None:
        """The chunk as it was; None: it was not sealed so, for this location."""
        if not chunk.data:
            return chunk
        try:
            data = self._key.unseal(location(name, chunk), chunk.data)
        except CannotUnseal:
            return None
        return msgspec.structs.replace(chunk, data=data)


def location(name: bytes, chunk: Chunk) -> bytes:
    """The location of a chunk: `chunk/`, its bounds, and the name of the log."""
    bounds = _BOUNDS.pack(
        chunk.first,
        chunk.count,
        chunk.first_timestamp,
        chunk.last_timestamp,
        chunk.first_id.ms,
        chunk.first_id.seq,
        chunk.last_id.ms,
        chunk.last_id.seq,
    )
    return b"chunk/" + bounds + name
