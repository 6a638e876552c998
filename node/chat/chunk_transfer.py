"""The transfer of the chunks of a file over one route: offered and put, or fetched, and checked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import anyio
import msgspec

from millpond.actors.errors import BufferFull, Malformed, NotFound, RequestError
from millpond.node.chat.files import ChatFiles, RefusedFile, clean_reason
from millpond.node.outbox import messages as m
from millpond.node.outbox.context import GONE, OutboxContext
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.outbox.file_store import StoredFile
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.routes import Route
from millpond.node.peers.file_format import (
    BadFile,
    File,
    check_chunk,
    open_chunk,
    split_leaves,
)

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel

log = logging.getLogger(__name__)

CHECK_S = 60.0
STORED_CHECK_S = 600.0
"""A file at a relay is offered there again so often, as long as nothing is heard of it."""
PUSHED_S = 10.0
"""A recipient does not fetch what it got a part of so recently."""
FETCH_AFTER_S = 2.0
TOO_MANY = "too many files are on their way already"
NOT_OFFERED = "it was not fetched in time"
ANSWERED_WITHIN_S = 60.0
TURN_S = 60.0
"""Of the transfers that go on at once, one that takes longer goes to the end of the line."""
PROBLEMS = (*GONE, RequestError, TimeoutError, msgspec.ValidationError)
"""The errors of a route that does not work now."""
DROPS_MAX = 64
"""The most files that wait to be removed at relays."""
NOT_HERE = "the sender has it no more"
WRONG_KEY = "it is not what its sender announced"

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class TurnOver(Exception):
    """A transfer that takes long lets others go first, and goes on after them."""


class Progress(msgspec.Struct):
    """How many chunks are transferred, and why there are no more (empty: nothing is in the way)."""

    chunks: int = 0
    problem: str = ""


class IncomingFile(msgspec.Struct, frozen=True):
    """A file that is received into a stream. It counts in the share of `owner`."""

    stream: bytes
    file: File
    owner: bytes


class ChunkTransfer:
    """Transfers of chunks from and to the files of the chats."""

    def __init__(self, context: OutboxContext, files: ChatFiles) -> None:
        self._context = context
        self._files = files

    # Sending.

    async def offer(
        self,
        route: Route,
        recipient: bytes,
        file: File,
        stored: StoredFile,
        progress: Progress,
        limit: anyio.CancelScope,
    ) -> str | None:
        """Offer a file over a route, and put what is wanted of it; the reason of a refusal.

        `limit` is moved on with each answer. Raises TurnOver, and what is in PROBLEMS.
        """
        root = stored.root
        async with self._context.dial(route, mailbox_of(recipient), "producer") as channel:
            body = {
                "root": root,
                "size": stored.size,
                "leaves": stored.leaves,
                "until": file.until / 1000,
            }
            answer = await _ask(channel, m.PeerOperation.FILE_OFFER, body, m.FileOfferAnswer)
            if answer.state == "refused":
                return clean_reason(answer.reason) or "it is refused"
            if answer.state != "wanted":
                progress.problem = "the peer has not got the message yet"
                progress.chunks = 0
                return None
            at = progress.chunks = min(answer.next, file.chunks)
            ends = anyio.current_time() + TURN_S
            while at < file.chunks:
                if anyio.current_time() >= ends:
                    raise TurnOver
                limit.deadline = anyio.current_time() + ANSWERED_WITHIN_S
                chunks = await self._files.store.read(stored, at, CHUNKS_AT_ONCE)
                if not chunks:
                    raise NotFound(NOT_HERE)
                put = {"root": root, "first": at, "chunks": chunks}
                next_ = (await _ask(channel, m.PeerOperation.FILE_PUT, put, m.FilePutAnswer)).next
                if next_ <= at:
                    raise Malformed("the other end stores no chunks")
                at = progress.chunks = min(next_, file.chunks)
            return None

    async def drop(self, routes: Iterable[tuple[Route, bytes]], roots: Sequence[bytes]) -> None:
        """Remove files that this node has left at relays: routes, each with the mailbox to connect
        to. A relay that cannot be reached keeps them until their end."""
        for route, mailbox in routes:
            try:
                with anyio.fail_after(ANSWERED_WITHIN_S):
                    async with self._context.dial(route, mailbox, "producer") as channel:
                        for root in roots:
                            await channel.peers(m.PeerOperation.FILE_DROP, {"root": root})
            except PROBLEMS as error:
                log.debug("files not removed: at=%s: %s", route.url, error)

    # Receiving.

    async def reserve(self, incoming: IncomingFile) -> StoredFile:
        """Room for a file of another node. Raises RefusedFile, and the errors of the disk."""
        file, store = incoming.file, self._files.store
        found = store.find(incoming.stream)
        if found is not None:
            return found
        self._files.check_size(file.size)
        now, until = self._context.now(), self._files.until()
        stored = StoredFile(incoming.stream, file.root_bytes, incoming.owner, file.size, now, until)
        try:
            return await store.reserve(stored)
        except BufferFull as error:
            raise RefusedFile(f"there is no room for it: {error}") from error

    async def fetch(
        self,
        route: Route,
        name: bytes,
        incoming: IncomingFile,
        stored: StoredFile,
        progress: Progress,
        limit: anyio.CancelScope,
    ) -> None:
        """Fetch what is missing of a file, as much as is there.

        Raises RefusedFile, TurnOver, and what is in PROBLEMS.
        """
        root, at = incoming.file.root_bytes, progress.chunks
        async with self._context.dial(route, name, "consumer") as channel:
            if not stored.leaves:
                found = await _ask(
                    channel, m.PeerOperation.FILE_LEAVES, {"root": root}, m.FileLeavesAnswer
                )
                stored = await self.learn_leaves(incoming, found.leaves)
            ends = anyio.current_time() + TURN_S
            while at < incoming.file.chunks:
                if anyio.current_time() >= ends:
                    raise TurnOver
                limit.deadline = anyio.current_time() + ANSWERED_WITHIN_S
                get = {"root": root, "first": at, "count": CHUNKS_AT_ONCE}
                answer = await _ask(channel, m.PeerOperation.FILE_GET, get, m.FileGetAnswer)
                if not answer.chunks:
                    raise NotFound("not all of it is there yet")
                before = at
                at = progress.chunks = await self.add(incoming, stored, at, answer.chunks)
                if at <= before:
                    raise Malformed("these are other chunks")

    async def learn_leaves(self, incoming: IncomingFile, leaves: bytes) -> StoredFile:
        """The stored file with its leaves. Raises Malformed, and the errors of the disk."""
        file = incoming.file
        try:
            split_leaves(leaves, file.size, file.root_bytes)
        except BadFile as error:
            raise Malformed(str(error)) from error
        stored = self._files.store.find(incoming.stream)
        if stored is None:
            raise NotFound
        changed = msgspec.structs.replace(stored, leaves=leaves)
        await self._files.store.replace(changed)
        return changed

    async def add(
        self, incoming: IncomingFile, stored: StoredFile, first: int, chunks: Sequence[bytes]
    ) -> int:
        """Store chunks that are those of the file. Raises Malformed for others, RefusedFile if the
        key of the file is not theirs, and the errors of the disk."""
        file, leaves = incoming.file, stored.leaf_list
        try:
            for index, chunk in enumerate(chunks, first):
                check_chunk(chunk, index, file.size, leaves)
        except BadFile as error:
            raise Malformed(str(error)) from error
        try:
            for index, chunk in enumerate(chunks, first):
                open_chunk(file.key_bytes, index, chunk, is_last=index == file.chunks - 1)
        except BadFile as error:
            raise RefusedFile(WRONG_KEY) from error
        return await self._files.store.append(stored, first, chunks)


async def _ask(
    channel: Channel, operation: int, body: dict[str, object], shape: type[AnswerT]
) -> AnswerT:
    return msgspec.convert(await channel.peers(operation, body), shape)


def problem_text(error: BaseException, route: Route) -> str:
    """The words about a route that does not work."""
    where = "the relay" if route.is_relay else "the peer"
    if isinstance(error, RequestError):
        return f"{where}: {error}"
    if isinstance(error, TimeoutError):
        return f"{where} does not answer"
    return f"no connection to {where}"
