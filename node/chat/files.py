"""The files of a node's chats: a person sends one, reads one, and sees how far the transfers are.

A file to be sent is sealed as it comes, chunk by chunk, and its message is stored when all of it is
there. A client whose connection is lost goes on where it was. After a crash of the node it begins
again: the key was in memory alone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import ceil

import anyio
import msgspec

from millpond.actors.errors import (
    BufferFull,
    Malformed,
    NotFound,
    RequestError,
    StorageFailed,
)
from millpond.node.chat.pending_files import file_name
from millpond.node.chat.records import Kind, Record
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.outbox.file_store import ChunkStream, FileStore, StoredFile
from millpond.node.peers.file_format import (
    CHUNK_BYTES,
    KEY_BYTES,
    BadFile,
    File,
    clean_name,
    leaf_of,
    open_chunk,
    root_of,
    seal_chunk,
)
from millpond.node.peers.identity import peer_id
from millpond.node.peers.peer_store import PeerStore

log = logging.getLogger(__name__)

UPLOADS_MAX = 16
"""The most files that clients hand to the node at once."""
UPLOAD_IDLE_S = 3600.0
"""A file that a client does not finish in this time is removed."""
TRANSFERS_AT_ONCE = 4
"""The most files that are on their way at once."""
QUOTA_SHARE = 2
"""One peer, or this node itself, has at most one of so many parts of the quota."""


class FileSettings(msgspec.Struct, frozen=True):
    """The settings of files of chats: the largest one, the bytes of all, and the time for which
    they are kept."""

    file_bytes_max: int
    bytes_max: int
    age_s: float


class Upload(msgspec.Struct):
    """A file that a client is handing to the node."""

    stored: StoredFile
    key: bytes
    name: str
    type: str
    leaves: list[bytes]
    touched_at: float


class RefusedFile(Exception):
    """A file that the node does not take; the text says why."""


def stream_of(peer: bytes, kind: Kind, name: str) -> bytes:
    """The name of the stream of a file: that of the conversation, with a suffix. `peer`: its key,
    or the id of a group."""
    side = "in" if kind is Kind.IN else "out"
    return f"chat/{peer_id(peer)}!{side}!{name}".encode()


class ChatFiles:
    """The files of all chats of a node. `run` is its task."""

    def __init__(
        self,
        context: OutboxContext,
        peer_store: PeerStore,
        stream: Callable[[bytes], ChunkStream],
        settings: FileSettings,
    ) -> None:
        self.settings = settings
        self.store = FileStore(
            "chat", peer_store, stream, context.now, settings.bytes_max, QUOTA_SHARE
        )
        self.limiter = anyio.CapacityLimiter(TRANSFERS_AT_ONCE)
        self._context = context
        self._uploads: OrderedDict[bytes, Upload] = OrderedDict()
        """By the name of the stream."""

    async def run(self) -> None:
        """Remove files that are too old, and those that were never sent, until cancelled."""
        for each in self.store.files:
            if not each.is_used and not each.leaves and each.stream not in self._uploads:
                each.until = 0.0
        await self.store.run()

    def until(self) -> float:
        """The time until which a file of now is kept."""
        return self._context.now() + self.settings.age_s

    def check_size(self, size: int) -> None:
        """Raises RefusedFile for a file that is too large."""
        most = self.settings.file_bytes_max
        if size > most:
            raise RefusedFile(
                f"a file has at most {most / 2**20:.0f} MiB, this one has {size / 2**20:.1f} MiB"
            )

    # Sending.

    async def begin(self, peer: bytes, uuid: str, size: int, name: str, type_: str) -> int:
        """Begin to take a file for a peer, or go on; returns the number of the next chunk.

        Raises RefusedFile, and the errors of the disk.
        """
        self.check_size(size)
        stream, now = stream_of(peer, Kind.OUT, uuid), self._context.now()
        upload = self._uploads.get(stream)
        is_there = self.store.find(stream) is not None
        if upload is not None and upload.stored.size == size and is_there:
            upload.touched_at = now
            return len(upload.leaves)
        await self._drop_idle(now)
        self._uploads.pop(stream, None)
        await self.store.remove(stream)
        if len(self._uploads) >= UPLOADS_MAX:
            raise RefusedFile(f"{UPLOADS_MAX} files are being added already; try again later")
        own, until = self._context.identity.public, now + UPLOAD_IDLE_S
        # A root of its own: it is not known before the end.
        stored = StoredFile(
            stream, self._context.entropy(KEY_BYTES), own, size, now, until, is_used=False
        )
        key = self._context.entropy(KEY_BYTES)
        upload = Upload(stored, key, clean_name(name), type_, [], now)
        self._uploads[stream] = upload
        try:
            upload.stored = await self.store.reserve(stored)
        except BaseException as error:
            self._uploads.pop(stream, None)
            if isinstance(error, BufferFull):
                raise RefusedFile(f"{error}; delete messages with files, or wait") from error
            raise
        return 0

    async def add(self, peer: bytes, uuid: str, first: int, chunks: Sequence[bytes]) -> int:
        """Take chunks of a file, not sealed yet; returns the number of the next one.

        Raises NotFound if the file was not begun in this run of the node, Malformed, and the errors
        of the disk.
        """
        upload = self._upload(stream_of(peer, Kind.OUT, uuid))
        at, size = len(upload.leaves), upload.stored.size
        upload.touched_at = self._context.now()
        upload.stored.until = upload.touched_at + UPLOAD_IDLE_S
        if first != at:  # asked again: the answer was lost
            return at
        last = ceil(size / CHUNK_BYTES) - 1 if size else 0
        sealed = []
        for index, clear in enumerate(chunks, at):
            if index > last or len(clear) != min(CHUNK_BYTES, size - index * CHUNK_BYTES):
                raise Malformed(f"chunk {index} has another size, or is one too many")
            sealed.append(seal_chunk(upload.key, index, clear, is_last=index == last))
        stored = await self.store.append(upload.stored, at, sealed)
        if len(upload.leaves) == at:
            upload.leaves += [leaf_of(each) for each in sealed[: stored - at]]
        return len(upload.leaves)

    async def finish(self, peer: bytes, uuid: str, life_s: float) -> File:
        """The description of a file of which all chunks are there; its message is stored next, and
        then `sent` is called. Without that the file goes as one that is not finished.

        Raises NotFound and Malformed, and the errors of the disk.
        """
        upload = self._upload(stream_of(peer, Kind.OUT, uuid))
        stored = upload.stored
        try:
            root = root_of(stored.size, upload.leaves)
        except BadFile as error:
            raise Malformed(f"the file is not complete: {error}") from error
        now = self._context.now()
        changed = msgspec.structs.replace(
            stored, root=root, leaves=b"".join(upload.leaves), until=now + UPLOAD_IDLE_S
        )
        await self.store.replace(changed)
        return File(
            root.hex(),
            stored.size,
            upload.key.hex(),
            upload.name,
            upload.type,
            until=int((now + life_s) * 1000),
        )

    async def sent(self, peer: bytes, uuid: str) -> StoredFile | None:
        """The message of a file is stored: its key is there, and the file is kept. Raises
        OSError."""
        stream = stream_of(peer, Kind.OUT, uuid)
        self._uploads.pop(stream, None)
        stored = self.store.find(stream)
        if stored is not None and not stored.is_used:
            stored = msgspec.structs.replace(stored, until=self.until(), is_used=True)
            await self.store.replace(stored)
        return stored

    async def _drop_idle(self, now: float) -> None:
        for stream, upload in list(self._uploads.items()):
            if upload.touched_at + UPLOAD_IDLE_S < now:
                del self._uploads[stream]
                await self.store.remove(stream)

    def _upload(self, stream: bytes) -> Upload:
        upload = self._uploads.get(stream)
        if upload is None or self.store.find(stream) is None:
            raise NotFound(
                "this file was not begun, or was left for too long, or the node has restarted"
            )
        return upload

    # Reading.

    async def read(self, peer: bytes, record: Record, first: int, count: int) -> list[bytes]:
        """Some chunks of the file of a message, as they were before they were sealed.

        Raises NotFound if the node does not have all of it, StorageFailed if it is damaged, and
        the errors of the disk.
        """
        file = record.file
        if file is None or record.kind not in (Kind.IN, Kind.OUT):
            raise NotFound("this message brings no file")
        name = file_name(record.by, record.uuid)
        stored = self.store.find(stream_of(peer, record.kind, name))
        if stored is None:
            raise NotFound("this node has the file no more, or not yet")
        if await self.store.count(stored) < file.chunks:
            raise NotFound("the file is not complete yet")
        chunks = await self.store.read(stored, first, min(count, CHUNKS_AT_ONCE))
        try:
            return [
                open_chunk(file.key_bytes, index, each, is_last=index == file.chunks - 1)
                for index, each in enumerate(chunks, first)
            ]
        except BadFile as error:
            raise StorageFailed(f"the file is damaged: {error}") from error

    async def remove(self, peer: bytes, kind: Kind, name: str) -> None:
        """Remove the file of a message. One that cannot be removed now is removed later."""
        stream = stream_of(peer, kind, name)
        try:
            await self.store.remove(stream)
        except (RequestError, OSError) as error:
            log.warning("file not removed: stream=%r: %s", stream, error)
            stored = self.store.find(stream)
            if stored is not None:
                stored.until = 0.0
                self.store.wakeup()


def clean_reason(text: str) -> str:
    """A reason that another node gives: one printable line."""
    return "".join(each if each.isprintable() else " " for each in text)[:200].strip()
