"""Requests of `millpond chat` to the node, repeated until they are answered."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import (
    BufferFull,
    Malformed,
    NotAllowed,
    OutcomeUnknown,
    SlowDown,
    StorageFailed,
    UnknownPeer,
)
from millpond.node.chat.actions import Action
from millpond.node.chat.file_messages import (
    FileBeginAnswer,
    FileChunksAnswer,
    FileReadAnswer,
    FileSendAnswer,
    FileTransfer,
    FileTransfersAnswer,
)
from millpond.node.chat.messages import (
    ChatInfo,
    ChatsAnswer,
    ChatSearchAnswer,
    GroupAnswer,
    GroupInfoAnswer,
    InviteAnswer,
)
from millpond.node.chat.records import Record, Unreadable, decode_record
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.client.channel import Channel
from millpond.node.client.streams.records import Record as StreamRecord
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.outbox.messages import (
    AddAnswer,
    DiscoveredAnswer,
    DiscoveredNode,
    PeerInfo,
    PeerOperation,
    PeersAnswer,
    VerifyAnswer,
)

SOON_S = 0.25
RETRY_S = 0.5
UUID_BYTES = 16
PASSING = (OutcomeUnknown, BufferFull, SlowDown, StorageFailed)

Page = list[tuple[int, Record]]
"""Records with their sequences."""


class ChatClient:
    """The requests on one reconnecting connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def chats(self) -> list[ChatInfo]:
        """All conversations, by name."""
        found: list[ChatInfo] = []
        while True:
            body = {"after": found[-1].name if found else ""}
            answer = msgspec.convert(await self._request(PeerOperation.CHATS, body), ChatsAnswer)
            found += answer.chats
            if not answer.more:
                return found

    async def chat_with(self, name: str) -> ChatInfo:
        """One conversation. Raises Failure if there is no such peer."""
        try:
            answer = await self._request(PeerOperation.CHATS, {"peer": name})
        except UnknownPeer as error:
            text = f"there is no peer {name!r}; `millpond peer ls` lists them"
            raise Failure(text, ExitCode.NOT_FOUND) from error
        return msgspec.convert(answer, ChatsAnswer).chats[0]

    async def say(
        self,
        chat: ChatInfo,
        text: str,
        action: Action | None = None,
        about: str = "",
        uuid: bytes | None = None,
    ) -> int:
        """One message, however often the node has to be asked; gives its sequence once it is kept.
        An `action` is `about` the message with that uuid. `uuid`: that of the new message (16
        bytes).

        Raises RequestErrors.
        """
        body = {"peer": chat.id, "text": text, "uuid": uuid or os.urandom(UUID_BYTES)}
        if action is not None:
            body |= {"action": action.value, "about": bytes.fromhex(about)}
        sequence: int = (await self._request(PeerOperation.CHAT_SEND, body))["sequence"]
        return sequence

    async def search(
        self, query: str, peer: str | None = None, offset: int = 0
    ) -> ChatSearchAnswer:
        """Messages with the words of a query, once all that can be searched is. Raises Malformed,
        UnknownPeer, NotAllowed, EmptyData and DataTooLarge."""
        body = {"query": query, "peer": peer, "offset": offset}
        while True:
            answer = await self._request(PeerOperation.CHAT_SEARCH, body)
            found = msgspec.convert(answer, ChatSearchAnswer)
            if not found.indexing:
                return found

    async def typing(self, chat: ChatInfo) -> None:
        """Somebody writes to this peer at this moment; earlier nodes do not take it."""
        try:
            await self._request(PeerOperation.CHAT_TYPING, {"peer": chat.id})
        except (Malformed, NotAllowed, UnknownPeer):
            return

    async def begin_file(
        self, chat: ChatInfo, uuid: bytes, size: int, name: str, type_: str
    ) -> FileBeginAnswer:
        """A file is to be sent, in a message with this uuid. Raises RequestErrors."""
        body = {"peer": chat.id, "uuid": uuid, "size": size, "name": name, "type": type_}
        return msgspec.convert(await self._request(PeerOperation.FILE_BEGIN, body), FileBeginAnswer)

    async def add_chunks(
        self, chat: ChatInfo, uuid: bytes, first: int, chunks: Sequence[bytes]
    ) -> int:
        """Chunks of that file; gives the number of the next one. Raises RequestErrors."""
        body = {"peer": chat.id, "uuid": uuid, "first": first, "chunks": list(chunks)}
        answer = await self._request(PeerOperation.FILE_CHUNKS, body)
        return msgspec.convert(answer, FileChunksAnswer).next

    async def finish_file(self, chat: ChatInfo, uuid: bytes) -> int:
        """The message with that file; gives its sequence once it is kept. Raises RequestErrors."""
        answer = await self._request(PeerOperation.FILE_SEND, {"peer": chat.id, "uuid": uuid})
        return msgspec.convert(answer, FileSendAnswer).sequence

    async def read_file(self, chat: ChatInfo, sequence: int, first: int) -> list[bytes]:
        """Some chunks of the file of a message. Raises RequestErrors."""
        body = {"peer": chat.id, "sequence": sequence, "first": first, "count": CHUNKS_AT_ONCE}
        answer = await self._channel.peers(PeerOperation.FILE_READ, body)
        return msgspec.convert(answer, FileReadAnswer).chunks

    async def transfers(self, chat: ChatInfo) -> list[FileTransfer]:
        """The files that are on their way; none from a node of an earlier version."""
        try:
            answer = await self._request(PeerOperation.FILE_TRANSFERS, {"peer": chat.id})
        except (Malformed, NotAllowed, UnknownPeer):
            return []
        return msgspec.convert(answer, FileTransfersAnswer).transfers

    async def invite(self, name: str) -> InviteAnswer:
        """An invite for the peer that will have this name."""
        answer = await self._request(PeerOperation.INVITE, {"name": name})
        return msgspec.convert(answer, InviteAnswer)

    async def accept_invite(self, link: str, name: str) -> AddAnswer:
        """Add the maker of an invite."""
        body = {"link": link, "name": name}
        return msgspec.convert(await self._request(PeerOperation.ACCEPT_INVITE, body), AddAnswer)

    async def discovered(self) -> list[DiscoveredNode]:
        """The nodes on this network. Raises Malformed if the node does not look for them."""
        answer = await self._request(PeerOperation.DISCOVERED, {})
        return msgspec.convert(answer, DiscoveredAnswer).nodes

    async def add_card(self, name: str, card: str) -> AddAnswer:
        """Add the peer with a contact card."""
        answer = await self._request(PeerOperation.PEER_ADD, {"name": name, "card": card})
        return msgspec.convert(answer, AddAnswer)

    async def peer(self, chat: ChatInfo) -> PeerInfo:
        """A peer, with its safety number. Raises UnknownPeer."""
        answer = await self._request(PeerOperation.PEERS, {"peer": chat.id})
        return msgspec.convert(answer, PeersAnswer).peers[0]

    async def verify(self, chat: ChatInfo, number: str) -> VerifyAnswer:
        """Compare the safety number that the peer has told. Raises UnknownPeer."""
        body = {"peer": chat.id, "number": number}
        return msgspec.convert(await self._request(PeerOperation.PEER_VERIFY, body), VerifyAnswer)

    async def block(self, chat: ChatInfo) -> None:
        """Block the key of a peer. Raises UnknownPeer."""
        await self._request(PeerOperation.PEER_BLOCK, {"peer": chat.id})

    async def group_create(self, name: str, members: Sequence[str]) -> GroupAnswer:
        """A new group with some contacts."""
        body = {"name": name, "members": list(members)}
        return msgspec.convert(await self._request(PeerOperation.GROUP_CREATE, body), GroupAnswer)

    async def group_info(self, chat: ChatInfo) -> GroupInfoAnswer:
        """All about a group. Raises UnknownPeer."""
        answer = await self._request(PeerOperation.GROUP_INFO, {"group": chat.id})
        return msgspec.convert(answer, GroupInfoAnswer)

    async def group_change(
        self, chat: ChatInfo, change: str, members: Sequence[str] = (), text: str = ""
    ) -> GroupAnswer:
        """A change of a group. Raises UnknownPeer."""
        body = {"group": chat.id, "change": change, "members": list(members), "text": text}
        return msgspec.convert(await self._request(PeerOperation.GROUP_CHANGE, body), GroupAnswer)

    async def group_answer(self, chat: ChatInfo, *, accept: bool) -> GroupAnswer:
        """The answer to an invitation into a group. Raises UnknownPeer."""
        body = {"group": chat.id, "accept": accept}
        return msgspec.convert(await self._request(PeerOperation.GROUP_ANSWER, body), GroupAnswer)

    async def mark_read(self, chat: ChatInfo, sequence: int) -> None:
        """Everything up to this record was seen."""
        try:
            await self._request(PeerOperation.CHAT_READ, {"peer": chat.id, "sequence": sequence})
        except (NotAllowed, UnknownPeer):
            return  # the peer is no contact any more: nobody hears of it

    async def history(self, chat: ChatInfo, start: int) -> Page:
        """Records from `start` to the tail that `chat` tells of."""
        found: Page = []
        async for page in self._channel.streams.stream(chat.stream).pages(start, chat.tail):
            found += _readable(page)
        return found

    async def follow(self, chat: ChatInfo, start: int) -> AsyncGenerator[Page]:
        """Records from `start` on, for ever; those that were trimmed are passed over."""
        while not start:
            if (await self.chat_with(chat.id)).tail:
                break
            await anyio.sleep(SOON_S)  # the stream is made when something is said
        stream = self._channel.streams.stream(chat.stream)
        async with aclosing(stream.follow_pages(start, on_gap=lambda _first, _end: None)) as pages:
            async for page in pages:
                yield _readable(page)

    async def _request(self, operation: PeerOperation, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                return await self._channel.peers(operation, body)
            except PASSING as error:
                wait_s = max(RETRY_S, (error.delay_ms or 0) / 1000)
            await anyio.sleep(wait_s)


def _readable(page: Sequence[StreamRecord]) -> Page:
    found: Page = []
    for each in page:
        try:
            found.append((each.sequence, decode_record(each.data)))
        except Unreadable:
            continue  # of a later version
    return found
