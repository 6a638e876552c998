"""All conversations of a node: one with each trusted peer, and answers to who asks about them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import Malformed, NotAllowed, RequestError, UnknownPeer
from millpond.actors.runtime.supervisor import contain
from millpond.node.chat import messages as b
from millpond.node.chat.conversation import LatestMessage
from millpond.node.chat.conversation_task import ConversationTask
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import COUNT_MAX, conversation_stream
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.messages import PeerOperation, write_body
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.peers.envelope import UUID_BYTES
from millpond.node.peers.identity import peer_id
from millpond.transports.p2p.bodies import read_body

log = logging.getLogger(__name__)

LOOK_S = 1.0
RETRY_S = 2.0
LOADED_S = 3.0
TALKS_MAX = 1000


class Chat:
    """One per node. `run` it as a task. `ledger` gives the stream of a name."""

    def __init__(self, post: Outbox, ledger: Callable[[bytes], LocalStream]) -> None:
        self._post = post
        self._ledger = ledger
        self._talks: dict[bytes, ConversationTask] = {}
        self._scopes: dict[bytes, anyio.CancelScope] = {}
        self._is_book_new = True
        post.on_status(self._report)
        post.on_prekey(self._prekey_came)
        post.context.book.on_change(self._note_change)

    def register(self, desk: PeerRequests) -> None:
        """Answer operations 7 to 9."""
        desk.register(PeerOperation.CHAT_SEND, self._send)
        desk.register(PeerOperation.CHATS, self._chats)
        desk.register(PeerOperation.CHAT_READ, self._read)

    async def run(self) -> None:
        """Talk with everybody who is trusted, until cancelled."""
        self._scopes.clear()
        self._is_book_new = True
        async with anyio.create_task_group() as tasks:
            while True:
                if self._is_book_new:
                    self._is_book_new = False
                    self._look(tasks)
                await anyio.sleep(LOOK_S)

    def _note_change(self) -> None:
        self._is_book_new = True  # in any thread; `run` acts on it

    def _look(self, tasks: TaskGroup) -> None:
        own = self._post.context.identity.public
        trusted = [
            each.public
            for each in self._post.context.book.peers
            if each.trust is Trust.TRUSTED and each.public != own
        ]
        if len(trusted) > TALKS_MAX:
            log.warning("no chat with some peers: trusted=%d most=%d", len(trusted), TALKS_MAX)
        wanted = dict.fromkeys(trusted[:TALKS_MAX])  # in order, so that a world can be repeated
        for public in [each for each in self._talks if each not in wanted]:
            self._talks.pop(public).close()
            if public in self._scopes:
                self._scopes.pop(public).cancel()
        for public in [each for each in wanted if each not in self._scopes]:
            self._scopes[public] = scope = anyio.CancelScope()
            tasks.start_soon(self._tend, self._talk(public), scope)

    def _talk(self, public: bytes) -> ConversationTask:
        """Also before its task is under way; what is asked of it waits for that."""
        talk = self._talks.get(public)
        if talk is None:
            ledger = self._ledger(conversation_stream(public))
            talk = self._talks[public] = ConversationTask(public, self._post, ledger)
        return talk

    async def _tend(self, talk: ConversationTask, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await contain(f"chat/{peer_id(talk.peer)}", partial(self._attempt, talk))
                await anyio.sleep(RETRY_S)

    async def _attempt(self, talk: ConversationTask) -> None:
        try:
            await talk.run()
        except* RequestError as errors:
            log.warning("chat with %s rests: %s", peer_id(talk.peer), errors.exceptions[0])

    # What the post tells.

    async def _report(self, peer: bytes, uuid: bytes, report: DeliveryStatus) -> None:
        while (talk := self._talks.get(peer)) is not None:
            try:
                await talk.report(uuid, report)
            except RequestError as error:
                log.warning("report not kept: peer=%s: %s", peer_id(peer), error)
                await anyio.sleep(RETRY_S)
            else:
                return

    def _prekey_came(self, peer: bytes) -> None:
        if peer in self._talks:
            self._talks[peer].prekey_came()

    # What is asked of the desk.

    async def _send(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatSendRequest)
        uuid = self._post.context.entropy(UUID_BYTES) if request.uuid is None else request.uuid
        if len(uuid) != UUID_BYTES:
            raise Malformed(f"a uuid has {UUID_BYTES} bytes")
        talk = self._talk_with(request.peer)
        return write_body(b.ChatSendAnswer(uuid, await talk.say(request.text, uuid.hex())))

    async def _read(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatReadRequest)
        if not 0 <= request.sequence <= COUNT_MAX:
            raise Malformed("sequence is out of range")
        unread = await self._talk_with(request.peer).mark_read(request.sequence)
        return write_body(b.ChatReadAnswer(unread))

    async def _chats(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatsRequest)
        if request.peer is not None:
            found = [self._found(request.peer)]
        else:
            known = self._post.context.book.peers
            found = [
                each
                for each in known
                if each.trust is not Trust.REVOKED and each.name > request.after
            ]
            found.sort(key=lambda each: each.name)
        limit = max(1, min(request.limit, b.PAGE_MAX))
        page = found[:limit]
        await self._until_loaded(page)
        return write_body(b.ChatsAnswer([self._info(each) for each in page], len(found) > limit))

    async def _until_loaded(self, peers: list[Peer]) -> None:
        """A node that has just started reads its histories first; not for ever."""
        with anyio.move_on_after(LOADED_S):
            for peer in peers:
                talk = self._talks.get(peer.public)
                while talk is None and self._is_wanted(peer):
                    await anyio.sleep(LOADED_S / 100)
                    talk = self._talks.get(peer.public)
                if talk is not None:
                    await talk.loaded()

    def _is_wanted(self, peer: Peer) -> bool:
        own = self._post.context.identity.public
        is_room = len(self._talks) < TALKS_MAX
        return is_room and peer.trust is Trust.TRUSTED and peer.public != own

    def _found(self, text: str) -> Peer:
        peer = self._post.context.book.resolve(text)
        if peer is None:
            raise UnknownPeer
        return peer

    def _talk_with(self, text: str) -> ConversationTask:
        peer = self._found(text)
        if peer.trust is not Trust.TRUSTED:
            raise NotAllowed(f"{peer.name} is {peer.trust.value}, and not trusted")
        if peer.public == self._post.context.identity.public:
            raise UnknownPeer
        if len(self._talks) >= TALKS_MAX and peer.public not in self._talks:
            raise NotAllowed(f"this node talks with {TALKS_MAX} peers at most")
        return self._talk(peer.public)

    def _info(self, peer: Peer) -> b.ChatInfo:
        talk = self._talks.get(peer.public)
        conversation = None if talk is None else talk.conversation
        sighting = self._post.presence.last_seen(peer.public)
        info = b.ChatInfo(
            name=peer.name,
            id=peer.id,
            stream=conversation_stream(peer.public).decode(),
            trust=peer.trust.value,
            here=sighting.is_online,
            seen_at=sighting.seen_at,
            tail=0,
            read=0,
            unread=0,
            waiting=0,
            last=None,
        )
        if conversation is not None:
            info.tail, info.read = conversation.tail, conversation.read
            info.unread, info.waiting = conversation.unread, len(conversation.waiting)
            info.last = _preview(conversation.last)
        return info


def _preview(last: LatestMessage | None) -> b.LastMessage | None:
    if last is None:
        return None
    return b.LastMessage(last.kind.value, last.text[: b.PREVIEW_CHARS], last.at)
