"""Sealed files that a node stores: those of its chats, or those that it keeps as a relay.

A file is a stream with a record for each chunk, so its chunks are as durable as any record, and
those that are there after a crash are the first ones. A row in `peers.db` comes before the stream
and goes after it: it has the size, which counts against the quota from the beginning, and the
leaves, once they are known.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import anyio
import msgspec

from millpond.actors.errors import BufferFull, NotFound, RequestError, UnknownStream
from millpond.actors.streams.messages import StreamDescription
from millpond.node.outbox.context import Wakeup
from millpond.node.peers.file_format import LEAF_BYTES, check_chunk, sealed_size
from millpond.node.peers.peer_store import PeerStore, Statement

log = logging.getLogger(__name__)

SWEPT_EVERY_S = 600.0
RETRY_S = 30.0
RECORD_BYTES = 256
"""The overhead of a record, at most: the stream of a file is never trimmed."""
FILES_MAX = 10_000
SHARE = 4
"""An owner has at most one of so many parts of the quota, and of the number of files."""


class ChunkStream(Protocol):
    """A stream of this node. All methods raise RequestErrors."""

    async def create(self, bytes_max: int, age_s: int | None = None) -> None: ...

    async def append(self, bodies: Sequence[bytes], at: int | None = None) -> int: ...

    async def describe(self) -> StreamDescription: ...

    def read(self, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]: ...

    async def delete(self) -> None: ...


class StoredFile(msgspec.Struct):
    """A file in a store. `stream`: the name of its stream. `owner`: the key whose share it counts
    in. `leaves` are empty as long as they are not known; `is_used`: it is referred to."""

    stream: bytes
    root: bytes
    owner: bytes
    size: int
    made_at: float
    until: float
    leaves: bytes = b""
    is_used: bool = True

    @property
    def stored_bytes(self) -> int:
        """The bytes that count against the quota."""
        return sealed_size(self.size)

    @property
    def leaf_list(self) -> Sequence[bytes]:
        """The leaves one by one."""
        row = self.leaves
        return [row[at : at + LEAF_BYTES] for at in range(0, len(row), LEAF_BYTES)]


class FileStore:
    """The files of one `kind`. `run` is its task: it removes files that are `until` now.

    An owner may use one of `share` parts of the quota, and of the number of files.
    """

    def __init__(
        self,
        kind: str,
        store: PeerStore,
        stream: Callable[[bytes], ChunkStream],
        now: Callable[[], float],
        bytes_max: int,
        share: int = SHARE,
    ) -> None:
        self._kind = kind
        self._store = store
        self._open_stream = stream
        self._now = now
        self._bytes_max = bytes_max
        self._share = share
        rows = store.query(
            "SELECT stream, root, owner, size, made_at, until, leaves, used FROM files"
            " WHERE kind = ?",
            (kind,),
        )
        self._files = {row[0]: StoredFile(*row) for row in rows}
        self._by_root = {each.root: each.stream for each in self._files.values()}
        self._locks: dict[bytes, anyio.Lock] = {}
        self._counts: dict[bytes, int] = {}
        self._streams: dict[bytes, ChunkStream] = {}
        self.wakeup = Wakeup()

    @property
    def used(self) -> int:
        """The bytes of all files, as they will be when they are complete."""
        return sum(each.stored_bytes for each in self._files.values())

    @property
    def bytes_max(self) -> int:
        """The quota."""
        return self._bytes_max

    @property
    def files(self) -> Sequence[StoredFile]:
        """All files."""
        return list(self._files.values())

    def find(self, stream: bytes) -> StoredFile | None:
        """The file in a stream."""
        return self._files.get(stream)

    def by_root(self, root: bytes) -> StoredFile | None:
        """The file with a root."""
        return self._files.get(self._by_root.get(root, b""))

    async def reserve(self, file: StoredFile) -> StoredFile:
        """Reserve room for a file, unless there is one in its stream, which is returned.

        Raises BufferFull, whose text says what is full, and OSError.
        """
        known = self._files.get(file.stream)
        if known is not None:
            return known
        refusal = self._refusal(file)
        if refusal is not None:
            raise BufferFull(refusal)
        self._files[file.stream] = file
        try:
            await self._store.write([self._row(file)])
        except BaseException:
            del self._files[file.stream]
            raise
        self._by_root[file.root] = file.stream
        return file

    def _refusal(self, file: StoredFile) -> str | None:
        if len(self._files) >= FILES_MAX:
            return f"{FILES_MAX} files are stored already"
        if self.used + file.stored_bytes > self._bytes_max:
            return f"files use {_mb(self.used)} of {_mb(self._bytes_max)}"
        sizes = [each.stored_bytes for each in self._files.values() if each.owner == file.owner]
        if len(sizes) >= FILES_MAX // self._share:
            return f"{len(sizes)} files of one peer are stored already"
        own, share = sum(sizes), self._bytes_max // self._share
        if own + file.stored_bytes > share:
            return f"files of one peer use {_mb(own)} of {_mb(share)}"
        return None

    async def replace(self, file: StoredFile) -> None:
        """Store another description of the file in the stream. Raises OSError."""
        before = self._files.get(file.stream)
        if before is None:
            return
        await self._store.write([self._row(file)])
        self._by_root.pop(before.root, None)
        self._by_root[file.root] = file.stream
        self._files[file.stream] = file

    async def count(self, file: StoredFile) -> int:
        """The number of chunks that are stored. Raises RequestErrors."""
        known = self._counts.get(file.stream)
        if known is None:
            try:
                known = (await self._stream(file).describe()).info.tail
            except UnknownStream:
                known = 0
            self._counts[file.stream] = known
        return known

    async def append(self, file: StoredFile, first: int, chunks: Sequence[bytes]) -> int:
        """Append chunks from number `first` on, those that are not there yet; returns the number of
        the next one. Raises BadFile, where the leaves are known and these are others, NotFound if
        the file was removed meanwhile, and RequestErrors."""
        async with self._locks.setdefault(file.stream, anyio.Lock()):
            if file.stream not in self._files:
                self._locks.pop(file.stream, None)
                raise NotFound("the file was removed")
            at = await self.count(file)
            new = chunks[at - first :] if first <= at else []
            if not new:
                return at
            leaves = file.leaf_list
            if leaves:
                for index, chunk in enumerate(new, at):
                    check_chunk(chunk, index, file.size, leaves)
            del self._counts[file.stream]  # unknown until the answer
            stream = self._stream(file)
            if not at:
                await stream.create(2 * file.stored_bytes + RECORD_BYTES * (len(leaves) + 64), 0)
            await stream.append(list(new), at)
            self._counts[file.stream] = at + len(new)
            return at + len(new)

    async def read(self, file: StoredFile, first: int, count: int) -> list[bytes]:
        """Up to so many chunks from number `first` on. Raises RequestErrors."""
        end = min(first + count, await self.count(file))
        return [body async for _, body in self._stream(file).read(first, end)]

    async def remove(self, stream: bytes) -> None:
        """Remove a file, if it is there. Raises RequestErrors and OSError."""
        file = self._files.get(stream)
        if file is None:
            return
        async with self._locks.setdefault(stream, anyio.Lock()):
            try:
                await self._stream(file).delete()
            except UnknownStream:
                pass
            delete: Statement = "DELETE FROM files WHERE stream = ?", (stream,)
            await self._store.write([delete])
            self._files.pop(stream, None)
            self._by_root.pop(file.root, None)
            self._counts.pop(stream, None)
            self._streams.pop(stream, None)
        self._locks.pop(stream, None)

    async def run(self) -> None:
        """Remove files whose time is over, until cancelled."""
        while True:
            wait_s = SWEPT_EVERY_S
            for each in self.files:
                if each.until <= self._now():
                    try:
                        await self.remove(each.stream)
                    except (RequestError, OSError) as error:
                        log.warning("file not removed: stream=%r: %s", each.stream, error)
                        wait_s = RETRY_S
            await self.wakeup.wait(wait_s)

    def _stream(self, file: StoredFile) -> ChunkStream:
        found = self._streams.get(file.stream)
        if found is None:
            found = self._streams[file.stream] = self._open_stream(file.stream)
        return found

    def _row(self, file: StoredFile) -> Statement:
        return (
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                file.stream,
                self._kind,
                file.root,
                file.owner,
                file.size,
                file.made_at,
                file.until,
                file.leaves,
                int(file.is_used),
            ),
        )


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
