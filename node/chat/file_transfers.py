"""The transfers of the files of one conversation, in both directions.

A sender offers a file to the node of the peer, if that can be reached, and otherwise to a relay of
the peer. A recipient takes what it is offered, and after a moment looks for the file itself, at the
sender and at its own relays. So it is enough that one of both can reach the other, or a relay. The
chunks that are stored stay: a transfer that goes on begins by asking how many there are.

The chunks are checked before they are stored, by the root and by the key. The history comes last,
as everywhere: a file is *received* when all of it is as durable as a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from math import inf

import anyio
import msgspec

from millpond.actors.errors import Malformed, NotFound, RequestError
from millpond.node.chat.chunk_transfer import (
    ANSWERED_WITHIN_S,
    CHECK_S,
    DROPS_MAX,
    FETCH_AFTER_S,
    NOT_HERE,
    NOT_OFFERED,
    PROBLEMS,
    PUSHED_S,
    STORED_CHECK_S,
    TOO_MANY,
    ChunkTransfer,
    IncomingFile,
    Progress,
    TurnOver,
    problem_text,
)
from millpond.node.chat.conversation import Conversation
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.file_messages import FileTransfer
from millpond.node.chat.files import ChatFiles, RefusedFile, clean_reason, stream_of
from millpond.node.chat.payloads import REASON_CHARS_MAX, FileStatus, encode_payload
from millpond.node.chat.pending_files import PENDING_MAX, PendingFile, PendingFiles
from millpond.node.chat.records import Kind, Transfer, conversation_stream
from millpond.node.outbox import messages as m
from millpond.node.outbox.context import Wakeup
from millpond.node.outbox.file_requests import check_offer
from millpond.node.outbox.file_store import StoredFile
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.routes import RedialDelay, Route, relay_routes, routes_to
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)


class FileTransfers:
    """The transfers with one peer. `outgoing` and `incoming` wake them."""

    def __init__(
        self,
        peer: bytes,
        outbox: Outbox,
        history: ConversationLog[Conversation],
        files: ChatFiles,
        peer_knows_files: Callable[[], bool],
    ) -> None:
        """`peer_knows_files`: the peer is told that a file is at a relay."""
        self.outgoing = Wakeup()
        self.incoming = Wakeup()
        self.progress: dict[str, Progress] = {}
        """By the kind of the message and its uuid."""
        self._peer = peer
        self._outbox = outbox
        self._history = history
        self._files = files
        self._chunks = ChunkTransfer(outbox.context, files)
        self._peer_knows_files = peer_knows_files
        self._send_delay = RedialDelay(outbox.context.rng)
        self._fetch_delay = RedialDelay(outbox.context.rng)
        self._pushed_at: dict[str, float] = {}
        self._offered_at: dict[str, float] = {}
        self._to_be_dropped: list[bytes] = []

    async def run(self) -> None:
        """Send and receive files until cancelled. Raises RequestErrors of the history."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_all)
            tasks.start_soon(self._receive_all)

    def progress_of(self, kind: Kind, uuid: str) -> Progress:
        """The progress of the file of a message."""
        return self.progress.setdefault(f"{kind.value}/{uuid}", Progress())

    def transfers(self) -> Iterator[FileTransfer]:
        """The files that are on their way."""
        conversation = self._history.conversation
        if conversation is None:
            return
        for kind, files in (
            (Kind.OUT, conversation.outgoing.files),
            (Kind.IN, conversation.incoming.files),
        ):
            for each in files:
                progress = self.progress_of(kind, each.uuid)
                yield FileTransfer(
                    kind.value,
                    bytes.fromhex(each.uuid),
                    progress.chunks,
                    each.file.chunks,
                    each.is_stored,
                    progress.problem,
                )

    # Sending.

    async def _send_all(self) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            await self._remove_dropped(conversation.outgoing, Kind.OUT)
            await self._drop_at_relays()
            wait_s = CHECK_S
            for pending in conversation.outgoing.files:
                wait_s = min(wait_s, await self._send(conversation, pending))
            await self.outgoing.wait(wait_s)

    async def _send(self, conversation: Conversation, pending: PendingFile) -> float:
        """Send a file, if there is a way; returns the delay before the next attempt."""
        context = self._outbox.context
        try:
            stored = await self._files.sent(self._peer, pending.uuid)
        except OSError as error:
            self.progress_of(Kind.OUT, pending.uuid).problem = str(error)
            return self._send_delay.next_s()
        if stored is None:
            await self._record(conversation.outgoing, pending, Transfer.EXPIRED, NOT_HERE)
            return CHECK_S
        if self._is_over(pending):
            await self._record(conversation.outgoing, pending, Transfer.EXPIRED, NOT_OFFERED)
            return CHECK_S
        if pending.is_stored:
            due_s = self._offered_at.get(pending.uuid, -inf) + STORED_CHECK_S - context.now()
            if due_s > 0:
                return due_s
        peer = context.book.by_public(self._peer)
        routes = [] if peer is None else routes_to(peer, context.book, context.identity.public)
        progress = self.progress_of(Kind.OUT, pending.uuid)
        async with self._files.limiter:
            for route in routes:
                try:
                    with anyio.fail_after(ANSWERED_WITHIN_S) as limit:
                        refusal = await self._chunks.offer(
                            route, self._peer, pending.file, stored, progress, limit
                        )
                except TurnOver:
                    return 0.0
                except PROBLEMS as error:
                    progress.problem = problem_text(error, route)
                    continue
                if refusal is not None:
                    progress.problem = refusal
                    if route.is_relay:
                        continue
                    await self._record(conversation.outgoing, pending, Transfer.REFUSED, refusal)
                    return CHECK_S
                if progress.chunks < pending.file.chunks:  # the peer has no message of it yet
                    continue
                self._send_delay.reset()
                progress.problem = ""
                if not route.is_relay:
                    await self._record(conversation.outgoing, pending, Transfer.RECEIVED)
                    return CHECK_S
                self._offered_at[pending.uuid] = context.now()
                if not pending.is_stored:
                    await self._record(conversation.outgoing, pending, Transfer.STORED)
                    if self._peer_knows_files():
                        await self._tell(pending, "stored")
                return STORED_CHECK_S
        return self._send_delay.next_s()

    def fetched(self, root: bytes, count: int) -> None:
        """The peer has fetched so many chunks of a file itself."""
        conversation = self._history.conversation
        pending = None if conversation is None else conversation.outgoing.by_root(root.hex())
        if pending is not None:
            progress = self.progress_of(Kind.OUT, pending.uuid)
            progress.chunks = min(max(progress.chunks, count), pending.file.chunks)
            progress.problem = ""

    def sent_file(self, root: bytes) -> StoredFile | None:
        """A file that is offered to the peer."""
        conversation = self._history.conversation
        pending = None if conversation is None else conversation.outgoing.by_root(root.hex())
        if pending is None:
            return None
        return self._files.store.find(stream_of(self._peer, Kind.OUT, pending.uuid))

    async def told(self, status: FileStatus) -> None:
        """The peer has told the state of a file. Raises RequestErrors of the history."""
        conversation = await self._history.wait_conversation()
        if status.state == "stored":
            self._fetch_delay.reset()
            self.incoming()
            return
        pending = conversation.outgoing.find(status.of)
        if pending is None:
            return
        transfer = Transfer.RECEIVED if status.state == "received" else Transfer.REFUSED
        was_stored = pending.is_stored
        await self._record(conversation.outgoing, pending, transfer, clean_reason(status.text))
        if was_stored:
            self._to_be_dropped = [*self._to_be_dropped, pending.file.root_bytes][-DROPS_MAX:]
            self.outgoing()

    async def _drop_at_relays(self) -> None:
        """Remove the files at relays that the peer has by now, or that were deleted."""
        roots, self._to_be_dropped = self._to_be_dropped, []
        context, peer = self._outbox.context, self._outbox.context.book.by_public(self._peer)
        if not roots or peer is None:
            return
        routes = routes_to(peer, context.book, context.identity.public)
        mailbox = mailbox_of(self._peer)
        await self._chunks.drop([(each, mailbox) for each in routes if each.is_relay], roots)

    # Receiving.

    async def _receive_all(self) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            await self._remove_dropped(conversation.incoming, Kind.IN)
            wait_s = CHECK_S
            for number, pending in enumerate(conversation.incoming.files):
                wait_s = min(wait_s, await self._receive(conversation, pending, number))
            await self.incoming.wait(wait_s)

    async def _receive(
        self, conversation: Conversation, pending: PendingFile, number: int
    ) -> float:
        """Finish a file, refuse it or fetch more of it; returns the delay before the next look."""
        now, progress = self._outbox.context.now(), self.progress_of(Kind.IN, pending.uuid)
        try:
            stored = await self._reserve(pending, number)
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            return CHECK_S
        at = progress.chunks = await self._files.store.count(stored)
        if at >= pending.file.chunks:
            if await self._tell(pending, "received"):
                await self._record(conversation.incoming, pending, Transfer.RECEIVED)
                return CHECK_S
            return self._fetch_delay.next_s()
        if self._is_over(pending):
            await self._record(conversation.incoming, pending, Transfer.EXPIRED, NOT_OFFERED)
            await self._files.remove(self._peer, Kind.IN, pending.uuid)
            return CHECK_S
        pushed_s = self._pushed_at.get(pending.uuid, -inf) + PUSHED_S - now
        if pushed_s > 0:
            return pushed_s
        early_s = pending.at / 1000 + FETCH_AFTER_S - now
        if 0 < early_s <= FETCH_AFTER_S:  # its sender may be about to send it
            return early_s
        async with self._files.limiter:
            for route, channel in self._sources():
                try:
                    with anyio.fail_after(ANSWERED_WITHIN_S) as limit:
                        incoming = self._incoming(pending)
                        await self._chunks.fetch(route, channel, incoming, stored, progress, limit)
                except RefusedFile as error:
                    await self._refuse(conversation, pending, str(error))
                    return CHECK_S
                except TurnOver:
                    return 0.0
                except PROBLEMS as error:
                    progress.problem = problem_text(error, route)
                    continue
                if progress.chunks >= pending.file.chunks:
                    self._fetch_delay.reset()
                    progress.problem = ""
                    return 0.0
        return self._fetch_delay.next_s()

    def _sources(self) -> Iterator[tuple[Route, bytes]]:
        """The nodes where a file may be: routes and the channels to connect to there."""
        context = self._outbox.context
        own, peer = context.identity.public, context.book.by_public(self._peer)
        for route in () if peer is None else routes_to(peer, context.book, own):
            if not route.is_relay:
                yield route, mailbox_of(self._peer) + KEYS_SUFFIX
        for relay in context.settings.via:
            for route in relay_routes(relay, context.book, allows_local=True):
                yield route, mailbox_of(own) + KEYS_SUFFIX

    async def offered(self, offer: m.FileOffer) -> m.FileOfferAnswer:
        """Take an offer of the peer. Raises Malformed, and the errors of the disk."""
        check_offer(offer)
        conversation = await self._history.wait_conversation()
        root = offer.root.hex()
        pending = conversation.incoming.by_root(root)
        if pending is None:
            match conversation.incoming.ended(root):
                case None:
                    return m.FileOfferAnswer("unknown")
                case Transfer.RECEIVED, _:
                    return m.FileOfferAnswer("wanted", len(offer.leaves) // len(offer.root))
                case _, reason:
                    return m.FileOfferAnswer("refused", reason=reason)
        if offer.size != pending.file.size:
            raise Malformed("its message has announced another size")
        try:
            stored = await self._reserve(pending, conversation.incoming.files.index(pending))
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            return m.FileOfferAnswer("refused", reason=str(error))
        if not stored.leaves:
            stored = await self._chunks.learn_leaves(self._incoming(pending), offer.leaves)
        self._pushed_at[pending.uuid] = self._outbox.context.now()
        return m.FileOfferAnswer("wanted", await self._files.store.count(stored))

    def expects(self, root: bytes) -> bool:
        """True for a file of the peer that is on its way."""
        conversation = self._history.conversation
        return conversation is not None and conversation.incoming.by_root(root.hex()) is not None

    async def put(self, root: bytes, first: int, chunks: Sequence[bytes]) -> int:
        """Store chunks that the peer puts; returns the number of those that are there.

        Raises NotFound, Malformed, and the errors of the disk.
        """
        conversation = await self._history.wait_conversation()
        pending = conversation.incoming.by_root(root.hex())
        stored = None
        if pending is not None:
            stored = self._files.store.find(stream_of(self._peer, Kind.IN, pending.uuid))
        if pending is None or stored is None or not stored.leaves:
            raise NotFound
        try:
            at = await self._chunks.add(self._incoming(pending), stored, first, chunks)
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            raise Malformed(str(error)) from error
        self._pushed_at[pending.uuid] = self._outbox.context.now()
        progress = self.progress_of(Kind.IN, pending.uuid)
        progress.chunks, progress.problem = at, ""
        if at >= pending.file.chunks:
            self.incoming()
        return at

    async def _reserve(self, pending: PendingFile, number: int) -> StoredFile:
        """Room for a file of the peer. Raises RefusedFile, and the errors of the disk."""
        if number >= PENDING_MAX and self._files.store.find(self._incoming(pending).stream) is None:
            raise RefusedFile(TOO_MANY)
        return await self._chunks.reserve(self._incoming(pending))

    def _incoming(self, pending: PendingFile) -> IncomingFile:
        stream = stream_of(self._peer, Kind.IN, pending.uuid)
        return IncomingFile(stream, pending.file, self._peer)

    async def _refuse(self, conversation: Conversation, pending: PendingFile, why: str) -> None:
        await self._tell(pending, "refused", why)
        await self._record(conversation.incoming, pending, Transfer.REFUSED, why)
        await self._files.remove(self._peer, Kind.IN, pending.uuid)

    # Both.

    def _is_over(self, pending: PendingFile) -> bool:
        until = pending.file.until
        return bool(until) and until / 1000 <= self._outbox.context.now()

    async def _tell(self, pending: PendingFile, state: str, text: str = "") -> bool:
        """Tell the peer the state of a file; False if the message could not be sealed now. Told
        again, it is the same message."""
        status = msgspec.convert(
            {"kind": "file", "of": pending.uuid, "state": state, "text": text[:REASON_CHARS_MAX]},
            FileStatus,
        )
        context = self._outbox.context
        named = f"millpond file {state}\0{pending.file.root}".encode()
        uuid = sha256(named + self._peer).digest()[:16]
        channel = conversation_stream(context.identity.public)
        try:
            await self._outbox.send(self._peer, channel, encode_payload(status), uuid=uuid)
        except RequestError as error:
            log.info("state of a file not told: to=%s: %s", peer_id(self._peer), error)
            return False
        return True

    async def _record(
        self, files: PendingFiles, pending: PendingFile, transfer: Transfer, reason: str = ""
    ) -> None:
        """Store the new state of a file. Raises RequestErrors of the history."""
        history = self._history
        async with history.lock:
            conversation = await history.wait_conversation()
            if files not in (conversation.incoming, conversation.outgoing):
                return  # the history was read again
            if files.find(pending.uuid) is None:
                return
            record = files.record_of(pending, transfer, history.now_ms, reason)
            await history.append(conversation, [record])
        if transfer is not Transfer.STORED:
            for kind in (Kind.IN, Kind.OUT):
                self.progress.pop(f"{kind.value}/{pending.uuid}", None)
            self._pushed_at.pop(pending.uuid, None)
            self._offered_at.pop(pending.uuid, None)

    async def _remove_dropped(self, files: PendingFiles, kind: Kind) -> None:
        """Remove the files of messages that were deleted, those that were sent also at relays."""
        for uuid in files.take_dropped():
            stored = self._files.store.find(stream_of(self._peer, kind, uuid))
            if kind is Kind.OUT and stored is not None:
                self._to_be_dropped = [*self._to_be_dropped, stored.root][-DROPS_MAX:]
            await self._files.remove(self._peer, kind, uuid)
