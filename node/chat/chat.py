"""The chat of a node: a conversation with each contact, and requests about conversations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    EmptyData,
    Malformed,
    NotAllowed,
    RequestError,
    StorageFailed,
    UnknownPeer,
)
from millpond.actors.runtime.supervisor import contain
from millpond.node.chat import messages as b
from millpond.node.chat.actions import Action
from millpond.node.chat.conversation import LatestMessage
from millpond.node.chat.conversation_task import ConversationTask
from millpond.node.chat.file_operations import FileOperations
from millpond.node.chat.files import ChatFiles
from millpond.node.chat.groups.group_task import GroupTask, group_stream
from millpond.node.chat.groups.groups import Groups
from millpond.node.chat.invites import LIFE_S, BadInvite, Invites
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.message_requests import KeptMessage, MessageRequests
from millpond.node.chat.records import COUNT_MAX, conversation_stream
from millpond.node.chat.search import FOUND_MAX, OFFSET_MAX, QUERY_CHARS_MAX, Search
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.messages import AddAnswer, AddRequest, Nothing, PeerOperation, write_body
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.own_card import make_own_card
from millpond.node.outbox.requests import PeerRequests
from millpond.node.outbox.routes import relay_urls
from millpond.node.peers.address_book import AddressBookError, KeyChanged, Peer, Trust
from millpond.node.peers.card import BadCard
from millpond.node.peers.envelope import UUID_BYTES
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.invite import decode_invite, encode_invite, introduction_uuid
from millpond.node.peers.peer import ADDRESSES_MAX
from millpond.node.qr_code import qr_path
from millpond.transports.p2p.bodies import read_body

log = logging.getLogger(__name__)

CHECK_S = 1.0
RETRY_S = 2.0
LOADED_S = 3.0
CONVERSATIONS_MAX = 1000


class Chat:
    """The chat of a node; `run` is its task. `stream` opens the local stream of a name.
    `tells_typing`: contacts are told that somebody writes to them."""

    def __init__(
        self,
        outbox: Outbox,
        stream: Callable[[bytes], LocalStream],
        message_requests: MessageRequests,
        invites: Invites,
        files: ChatFiles,
        *,
        tells_typing: bool = True,
    ) -> None:
        self._outbox = outbox
        self._tells_typing = tells_typing
        self._invites = invites
        self._message_requests = message_requests
        self._open_stream = stream
        self._conversations: dict[bytes, ConversationTask] = {}
        self._scopes: dict[bytes, anyio.CancelScope] = {}
        self._files = files
        self._search = Search(stream, outbox.context.now)
        self._groups = Groups(outbox, stream, files)
        self.file_operations = FileOperations(
            files,
            lambda text: self._group_of(text) or self._task_of(text),
            self._contact_task,
            self._groups,
            outbox.context.settings.ttl_s,
        )
        self._has_new_book = True
        outbox.on_status(self._on_status)
        outbox.on_prekey(self._on_prekey)
        outbox.context.book.on_change(self._on_book_change)

    def register(self, peer_requests: PeerRequests) -> None:
        """Add the handlers of operations 7 to 9, 12 to 14, 24 to 27, 30, 31, and of groups."""
        self._groups.register(peer_requests)
        peer_requests.register(PeerOperation.CHAT_SEND, self._send)
        self.file_operations.register(peer_requests)
        peer_requests.register(PeerOperation.CHATS, self._chats)
        peer_requests.register(PeerOperation.CHAT_READ, self._read)
        peer_requests.register(PeerOperation.CHAT_SEARCH, self._find)
        peer_requests.register(PeerOperation.CHAT_TYPING, self._typing)
        peer_requests.register(PeerOperation.CHAT_REQUESTS, self._list_requests)
        peer_requests.register(PeerOperation.CHAT_ACCEPT, self._accept)
        peer_requests.register(PeerOperation.CHAT_REFUSE, self._refuse)
        peer_requests.register(PeerOperation.INVITE, self._invite)
        peer_requests.register(PeerOperation.INVITES, self._list_invites)
        peer_requests.register(PeerOperation.CANCEL_INVITE, self._cancel_invite)
        peer_requests.register(
            PeerOperation.ACCEPT_INVITE, partial(self._accept_invite, peer_requests)
        )

    async def run(self) -> None:
        """Run a conversation with every contact, until cancelled."""
        self._scopes.clear()
        self._has_new_book = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._message_requests.run)
            tasks.start_soon(self._groups.run)
            tasks.start_soon(self._files.run)
            while True:
                if self._has_new_book:
                    self._has_new_book = False
                    self._apply_address_book(tasks)
                await self._search.drop_idle()
                await anyio.sleep(CHECK_S)

    def _on_book_change(self) -> None:
        self._has_new_book = True  # in any thread; `run` reads it

    def _apply_address_book(self, tasks: TaskGroup) -> None:
        self._groups.address_book_changed()
        own = self._outbox.context.identity.public
        contacts = [
            each.public
            for each in self._outbox.context.book.peers
            if each.is_contact and each.public != own
        ]
        if len(contacts) > CONVERSATIONS_MAX:
            log.warning(
                "too many contacts for the chat: count=%d limit=%d",
                len(contacts),
                CONVERSATIONS_MAX,
            )
        wanted = dict.fromkeys(
            contacts[:CONVERSATIONS_MAX]
        )  # in a fixed order: a simulation can be repeated
        for public in [each for each in self._conversations if each not in wanted]:
            self._conversations.pop(public).close()
            if public in self._scopes:
                self._scopes.pop(public).cancel()
        for public in [each for each in wanted if each not in self._scopes]:
            self._scopes[public] = scope = anyio.CancelScope()
            tasks.start_soon(self._run_task, self._conversation_task(public), scope)

    def _conversation_task(self, public: bytes) -> ConversationTask:
        """The task of a conversation, also before it runs; requests wait for that."""
        task = self._conversations.get(public)
        if task is None:
            stream = self._open_stream(conversation_stream(public))
            task = self._conversations[public] = ConversationTask(
                public,
                self._outbox,
                stream,
                self._own_card,
                self._invites.introduced,
                self._groups.receive,
                self._files,
            )
        return task

    async def _own_card(self) -> str:
        """The card of this node, for an introduction. Raises StorageFailed."""
        try:
            return (await make_own_card(self._outbox.context, is_short=True)).line
        except (OSError, DeliveryTokenError) as error:
            raise StorageFailed(str(error)) from error

    async def _run_task(self, task: ConversationTask, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await contain(f"chat/{peer_id(task.peer)}", partial(self._run_once, task))
                await anyio.sleep(RETRY_S)

    async def _run_once(self, task: ConversationTask) -> None:
        try:
            await task.run()
        except* RequestError as errors:
            log.warning("chat with %s is interrupted: %s", peer_id(task.peer), errors.exceptions[0])

    # Events of the outbox.

    async def _on_status(self, peer: bytes, uuids: Sequence[bytes], report: DeliveryStatus) -> None:
        while (task := self._conversations.get(peer)) is not None:
            try:
                await task.report(uuids, report)
            except RequestError as error:
                log.warning("delivery status not stored: peer=%s: %s", peer_id(peer), error)
                await anyio.sleep(RETRY_S)
            else:
                return

    def _on_prekey(self, peer: bytes) -> None:
        if peer in self._conversations:
            self._conversations[peer].prekey_arrived()

    # Requests.

    async def _send(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatSendRequest)
        uuid = self._outbox.context.entropy(UUID_BYTES) if request.uuid is None else request.uuid
        if len(uuid) != UUID_BYTES:
            raise Malformed(f"a uuid has {UUID_BYTES} bytes")
        action = _action_of(request)
        task = self._group_of(request.peer) or self._task_of(request.peer)
        sequence = await task.send(request.text, uuid.hex(), action, request.about.hex())
        return write_body(b.ChatSendAnswer(uuid, sequence))

    async def _read(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatReadRequest)
        if not 0 <= request.sequence <= COUNT_MAX:
            raise Malformed("sequence is out of range")
        task = self._group_of(request.peer) or self._task_of(request.peer)
        unread = await task.mark_read(request.sequence)
        return write_body(b.ChatReadAnswer(unread))

    async def _typing(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatTypingRequest)
        if self._tells_typing:
            await (self._group_of(request.peer) or self._task_of(request.peer)).send_typing()
        return write_body(Nothing())

    async def _find(self, body: bytes) -> bytes:
        from millpond.node.chat.search_index import excerpt  # its patterns take time to make

        request = read_body(body, b.ChatSearchRequest)
        if not request.query.strip():
            raise EmptyData("a search needs a word")
        if len(request.query) > QUERY_CHARS_MAX:
            raise DataTooLarge(f"a search has at most {QUERY_CHARS_MAX} characters")
        if not (0 <= request.offset <= OFFSET_MAX and request.limit > 0):
            raise Malformed("limit or offset is out of range")
        limit, only = min(request.limit, FOUND_MAX), None
        if request.peer is not None:
            group = self._group_of(request.peer)
            if group is None:
                only = conversation_stream(self._task_of(request.peer).peer)
            else:
                only = group_stream(group.group)
        peers, groups = self._histories()
        streams = [*peers, *groups]
        result = await self._search.find(request.query, streams, only, limit + 1, request.offset)
        found = []
        for each in result.found[:limit]:
            peer, group = peers.get(each.conversation), groups.get(each.conversation)
            if peer is not None:
                name, id_ = peer.name, peer.id
            elif group is not None:
                name, id_ = self._groups.name(group), group.id
            else:
                continue
            by = group.name_of(public_key_of(each.author)) if group and each.author else ""
            text, uuid = excerpt(each.text, request.query), bytes.fromhex(each.uuid)
            found.append(
                b.FoundText(name, id_, each.kind.value, uuid, each.sequence, each.at, text, by)
            )
        has_more = len(result.found) > limit and request.offset + limit <= OFFSET_MAX
        return write_body(
            b.ChatSearchAnswer(found, has_more, result.is_indexing, result.has_left_out)
        )

    def _histories(self) -> tuple[dict[bytes, Peer], dict[bytes, GroupTask]]:
        """The peers and the groups that have a history here, by the names of its streams."""
        book = self._outbox.context.book
        known = [book.by_public(each) for each in self._conversations]
        peers = [each for each in known if each is not None and each.is_contact]
        return (
            {conversation_stream(each.public): each for each in peers},
            {group_stream(each.group): each for each in self._groups},
        )

    async def _chats(self, body: bytes) -> bytes:
        request = read_body(body, b.ChatsRequest)
        found: list[Peer | GroupTask]
        if request.peer is not None:
            group = self._group_of(request.peer)
            if group is not None:
                info = await self._groups.chat_info(group, is_single=True)
                return write_body(b.ChatsAnswer([info], False))
            found = [self._resolve(request.peer)]
        else:
            known = self._outbox.context.book.peers
            found = [
                each
                for each in known
                if each.trust not in (Trust.BLOCKED, Trust.RELAY) and each.name > request.after
            ]
            found += [
                each for each in self._groups.listed if self._groups.name(each) > request.after
            ]
            found.sort(key=self._name_of)
        limit = max(1, min(request.limit, b.PAGE_MAX))
        page = found[:limit]
        await self._until_loaded([each for each in page if isinstance(each, Peer)])
        chats = [
            self._info(each) if isinstance(each, Peer) else await self._groups.chat_info(each)
            for each in page
        ]
        return write_body(b.ChatsAnswer(chats, len(found) > limit))

    def _name_of(self, conversation: Peer | GroupTask) -> str:
        if isinstance(conversation, Peer):
            return conversation.name
        return self._groups.name(conversation)

    def _group_of(self, text: str) -> GroupTask | None:
        """The group with this name or id, unless a peer has it."""
        is_peer = self._outbox.context.book.resolve(text) is not None
        return None if is_peer else self._groups.find(text)

    async def _list_requests(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        requests = await self._message_requests.open()
        found = [_request_info(sender, kept) for sender, kept in requests.items()]
        return write_body(b.MessageRequestsAnswer(self._message_requests.is_on, found))

    async def _accept(self, body: bytes) -> bytes:
        request, context = read_body(body, b.AcceptRequest), self._outbox.context
        # It came by a relay of this node, which may have its mailbox, too.
        relays = relay_urls(context.settings.via, context.book)[:ADDRESSES_MAX]
        sender = _sender_of(request.id)
        try:
            await self._message_requests.accept(sender, request.name, relays)
        except KeyChanged as error:  # of the name, which somebody has typed for a new peer
            text = f"{error.peer.name!r} is another peer: choose another name"
            return write_body(AddAnswer(None, text))
        except AddressBookError as error:
            return write_body(AddAnswer(None, str(error)))
        self._outbox.scheduler.address_book_changed()
        return write_body(AddAnswer(request.id))

    async def _refuse(self, body: bytes) -> bytes:
        request = read_body(body, b.RefuseRequest)
        await self._message_requests.refuse(_sender_of(request.id), block=request.block)
        return write_body(Nothing())

    # Invites.

    async def _invite(self, body: bytes) -> bytes:
        request = read_body(body, b.InviteRequest)
        card = await make_own_card(self._outbox.context, is_short=True)
        try:
            made = await self._invites.make(request.name, request.life or LIFE_S)
        except (BadInvite, BufferFull) as error:
            return write_body(b.InviteAnswer(None, str(error)))
        link = encode_invite(card.line, made)
        size, path = await anyio.to_thread.run_sync(qr_path, link)
        return write_body(
            b.InviteAnswer(
                link,
                until=made.until,
                addresses=card.addresses,
                relays=card.relays,
                reach=card.reach.value,
                qr_size=size,
                qr_path=path,
            )
        )

    async def _list_invites(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        found = [b.OpenInvite(e.name, e.made_at, e.until) for e in self._invites.open]
        return write_body(b.InvitesAnswer(found))

    async def _cancel_invite(self, body: bytes) -> bytes:
        request = read_body(body, b.CancelInviteRequest)
        if not await self._invites.cancel(request.name):
            raise UnknownPeer
        return write_body(Nothing())

    async def _accept_invite(self, peer_requests: PeerRequests, body: bytes) -> bytes:
        """Add the maker of an invite as a contact, and have the conversation with it begin by the
        introduction. A repeated request does what is left."""
        request = read_body(body, b.AcceptInviteRequest)
        try:
            invite = decode_invite(request.link)
        except BadCard as error:
            return write_body(AddAnswer(None, str(error)))
        if invite.introduction.until <= self._outbox.context.now():
            return write_body(AddAnswer(None, "this invite has expired: ask for a new one"))
        added = await peer_requests.add_contact(AddRequest(request.name, card=invite.line))
        if added.id is not None:
            secret = invite.introduction.secret
            task = self._conversation_task(invite.card.public)
            await task.accept_invite(introduction_uuid(secret).hex(), secret.hex())
        return write_body(added)

    async def _until_loaded(self, peers: list[Peer]) -> None:
        """Wait for the histories of these peers, which a new node reads first, for a few
        seconds."""
        with anyio.move_on_after(LOADED_S):
            for peer in peers:
                task = self._conversations.get(peer.public)
                while task is None and self._has_conversation(peer):
                    await anyio.sleep(LOADED_S / 100)
                    task = self._conversations.get(peer.public)
                if task is not None:
                    await task.wait_loaded()

    def _has_conversation(self, peer: Peer) -> bool:
        own = self._outbox.context.identity.public
        has_capacity = len(self._conversations) < CONVERSATIONS_MAX
        return has_capacity and peer.is_contact and peer.public != own

    def _resolve(self, text: str) -> Peer:
        peer = self._outbox.context.book.resolve(text)
        if peer is None:
            raise UnknownPeer
        return peer

    def _task_of(self, text: str) -> ConversationTask:
        peer = self._resolve(text)
        if not peer.is_contact:
            raise NotAllowed(f"{peer.name} is {peer.trust.value}, and no contact")
        if peer.public == self._outbox.context.identity.public:
            raise UnknownPeer
        if len(self._conversations) >= CONVERSATIONS_MAX and peer.public not in self._conversations:
            raise NotAllowed(f"a node has at most {CONVERSATIONS_MAX} conversations")
        return self._conversation_task(peer.public)

    def _contact_task(self, public: bytes) -> ConversationTask | None:
        """The conversation with a key, if it is a contact's and runs."""
        is_contact = self._outbox.context.book.is_contact(public)
        return self._conversations.get(public) if is_contact else None

    def _info(self, peer: Peer) -> b.ChatInfo:
        task = self._conversations.get(peer.public)
        conversation = None if task is None else task.conversation
        seen = self._outbox.presence.last_seen(peer.public)
        info = b.ChatInfo(
            name=peer.name,
            id=peer.id,
            stream=conversation_stream(peer.public).decode(),
            trust=peer.trust.value,
            here=seen.is_online,
            seen_at=seen.seen_at,
            tail=0,
            read=0,
            unread=0,
            waiting=0,
            last=None,
            accepted=self._has_answered(peer.public),
            key_changed=self._outbox.context.book.has_changed_key(peer),
        )
        if conversation is not None:
            info.tail, info.read = conversation.tail, conversation.read
            info.unread, info.waiting = conversation.unread, len(conversation.waiting)
            info.last = _preview(conversation.last)
            info.accepted |= conversation.is_answered
        info.typing = task is not None and task.is_peer_typing
        return info

    def _has_answered(self, peer: bytes) -> bool:
        """True if a message or receipt of the peer has come: it has accepted this node."""
        state = self._outbox.context.store.states.get(peer)
        return state is not None and bool(state.their_key or state.channels)


def _action_of(request: b.ChatSendRequest) -> Action | None:
    """Raises Malformed."""
    if not request.action and not request.about:
        return None
    try:
        action = Action(request.action)
    except ValueError as error:
        raise Malformed(f"unknown action {request.action!r}") from error
    if len(request.about) != UUID_BYTES:
        raise Malformed(f"an action is about a message: {UUID_BYTES} bytes")
    return action


def _sender_of(text: str) -> bytes:
    try:
        return public_key_of(text)
    except BadPeerId as error:
        raise Malformed(str(error)) from error


def _request_info(sender: bytes, kept: dict[bytes, KeptMessage]) -> b.MessageRequestInfo:
    texts = [
        b.MessageRequestText(uuid, each.text.text, each.text.at, int(each.received_at * 1000))
        for uuid, each in kept.items()
        if each.text is not None
    ]
    return b.MessageRequestInfo(
        peer_id(sender), fingerprint(sender), fingerprint_words(sender), texts
    )


def _preview(last: LatestMessage | None) -> b.LastMessage | None:
    if last is None:
        return None
    return b.LastMessage(last.kind.value, last.text[: b.PREVIEW_CHARS], last.at)
