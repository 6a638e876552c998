"""Requests of other nodes about files: a sender offers one and puts its chunks, a recipient gets
them.

Files for this node itself go to its chat. A relay keeps files for others, as it keeps messages for
them: for whom it takes mail of the sender it takes files. It checks each chunk by the root, so that
nobody fills the place of a file with something else, and sees nothing but the size. A file is kept
once for all who know its root, and counts in the share of the node that has left it here.
"""

from __future__ import annotations

import logging
from typing import Protocol

import anyio
import msgspec

from millpond.actors.errors import BufferFull, Malformed, NotAllowed, NotFound
from millpond.node.outbox import messages as b
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.file_store import FileStore, StoredFile
from millpond.node.outbox.mailbox import STRANGERS, is_prekeys, mailbox_of, owner_of
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.file_format import ROOT_BYTES, BadFile, chunk_count, split_leaves
from millpond.transports.p2p.bodies import read_body

log = logging.getLogger(__name__)

CHUNKS_AT_ONCE = 4
"""The most chunks in one packet."""
HANDLED_AT_ONCE = 8
"""The most requests about files that are carried out at once; others wait."""
FILE_SUFFIX = b"!file!"
UNFINISHED_S = 86_400.0
"""A relay keeps a file that is not complete for so long."""


class LocalFiles(Protocol):
    """The files of the node's own chats."""

    async def offer(self, sender: bytes, offer: b.FileOffer) -> b.FileOfferAnswer:
        """Take an offer of a contact. Raises Malformed, and the errors of the disk."""

    async def put(self, sender: bytes, root: bytes, first: int, chunks: list[bytes]) -> int:
        """Store chunks of a contact; the number of those that are there. Raises NotFound,
        Malformed, and the errors of the disk."""

    def sent_file(self, recipient: bytes, root: bytes) -> StoredFile | None:
        """A file that is offered to a contact."""

    def fetched(self, recipient: bytes, root: bytes, count: int) -> None:
        """A contact has fetched so many chunks of a file."""

    @property
    def store(self) -> FileStore:
        """The files that are stored for the chats."""


class FileRequests:
    """The requests about files of one node. `relayed`: those that it keeps for others; None: it is
    no relay."""

    def __init__(
        self, context: OutboxContext, local: LocalFiles, relayed: FileStore | None
    ) -> None:
        self._context = context
        self._local = local
        self._relayed = relayed
        self._limiter = anyio.CapacityLimiter(HANDLED_AT_ONCE)

    def register(self, peer_requests: PeerRequests) -> None:
        """Add the handlers of operations 55 to 59."""
        peer_requests.register_for_peers(b.PeerOperation.FILE_OFFER, self._offer)
        peer_requests.register_for_peers(b.PeerOperation.FILE_PUT, self._put)
        peer_requests.register_for_peers(b.PeerOperation.FILE_GET, self._get)
        peer_requests.register_for_peers(b.PeerOperation.FILE_LEAVES, self._leaves)
        peer_requests.register_for_peers(b.PeerOperation.FILE_DROP, self._drop)

    async def _offer(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        sender, owner = self._sender(client, channel)
        offer = read_body(body, b.FileOffer)
        async with self._limiter:
            if owner == self._context.identity.public:
                return b.write_body(await self._local.offer(sender, offer))
            return b.write_body(await self._offer_to_relay(sender, offer))

    async def _offer_to_relay(self, sender: bytes, offer: b.FileOffer) -> b.FileOfferAnswer:
        relayed, context = self._relay(), self._context
        check_offer(offer)
        now = context.now()
        found = relayed.by_root(offer.root)
        if found is None:
            name = mailbox_of(sender) + FILE_SUFFIX + offer.root.hex().encode()
            owner = sender if context.book.is_accepted(sender) else STRANGERS
            until = min(max(offer.until, now), now + UNFINISHED_S)
            file = StoredFile(name, offer.root, owner, offer.size, now, until, leaves=offer.leaves)
            try:
                found = await relayed.reserve(file)
            except BufferFull as error:
                return b.FileOfferAnswer("refused", reason=f"the relay is full: {error}")
        return b.FileOfferAnswer("wanted", await relayed.count(found))

    async def _put(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        sender, owner = self._sender(client, channel)
        put = read_body(body, b.FilePut)
        if not 0 < len(put.chunks) <= CHUNKS_AT_ONCE or put.first < 0:
            raise Malformed(f"1 to {CHUNKS_AT_ONCE} chunks")
        async with self._limiter:
            if owner == self._context.identity.public:
                at = await self._local.put(sender, put.root, put.first, put.chunks)
                return b.write_body(b.FilePutAnswer(at))
            relayed = self._relay()
            found = relayed.by_root(put.root)
            if found is None:
                raise NotFound
            try:
                at = await relayed.append(found, put.first, put.chunks)
            except BadFile as error:
                raise Malformed(str(error)) from error
            if at == chunk_count(found.size):
                await self._keep_complete(relayed, found)
            return b.write_body(b.FilePutAnswer(at))

    async def _keep_complete(self, relayed: FileStore, file: StoredFile) -> None:
        """Keep a complete file as long as a message. Raises OSError."""
        until = file.made_at + self._context.settings.ttl_s
        if file.until < until:
            await relayed.replace(msgspec.structs.replace(file, until=until))

    async def _get(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        reader, request = self._reader(client, channel), read_body(body, b.FileGet)
        if not 0 < request.count <= CHUNKS_AT_ONCE or request.first < 0:
            raise Malformed(f"1 to {CHUNKS_AT_ONCE} chunks")
        async with self._limiter:
            store, file = self._find(reader, request.root)
            chunks = await store.read(file, request.first, request.count)
        if chunks and store is self._local.store:
            self._local.fetched(reader, request.root, request.first + len(chunks))
        return b.write_body(b.FileGetAnswer(chunks))

    async def _leaves(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        reader, request = self._reader(client, channel), read_body(body, b.FileRoot)
        async with self._limiter:
            store, file = self._find(reader, request.root)
            count = await store.count(file)
        return b.write_body(b.FileLeavesAnswer(file.size, file.leaves, count))

    async def _drop(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        """Remove a file that the client has left at this relay: all have it."""
        sender, _ = self._sender(client, channel)
        root, relayed = read_body(body, b.FileRoot).root, self._relay()
        found = relayed.by_root(root)
        if found is not None and found.stream.startswith(mailbox_of(sender) + FILE_SUFFIX):
            await relayed.remove(found.stream)
        return b.write_body(b.Nothing())

    def _sender(self, client: bytes | None, channel: bytes) -> tuple[bytes, bytes]:
        """The client, and the owner of the mailbox that it is connected to. Raises NotAllowed."""
        owner = owner_of(channel)
        if client is None or owner is None or channel != mailbox_of(owner):
            raise NotAllowed("files are for the owner of a mailbox")
        return client, owner

    def _reader(self, client: bytes | None, channel: bytes) -> bytes:
        if client is None or not is_prekeys(channel):
            raise NotAllowed("files are fetched by peers")
        return client

    def _relay(self) -> FileStore:
        if self._relayed is None:
            raise NotAllowed("this node is no relay")
        return self._relayed

    def _find(self, reader: bytes, root: bytes) -> tuple[FileStore, StoredFile]:
        """Raises NotFound."""
        sent = self._local.sent_file(reader, root)
        if sent is not None:
            return self._local.store, sent
        kept = None if self._relayed is None else self._relayed.by_root(root)
        if kept is None or self._relayed is None:
            raise NotFound
        return self._relayed, kept


def check_offer(offer: b.FileOffer) -> None:
    """Raises Malformed unless the leaves of an offer are those of the root."""
    try:
        if len(offer.root) != ROOT_BYTES:
            raise BadFile(f"a root has {ROOT_BYTES} bytes")
        split_leaves(offer.leaves, offer.size, offer.root)
    except BadFile as error:
        raise Malformed(str(error)) from error
