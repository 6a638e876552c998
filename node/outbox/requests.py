"""Requests about peers, in packets 94: the address book, sealed messages and envelopes
(docs/reference/wire-protocol.md 3g)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import (
    Malformed,
    NotAllowed,
    OutcomeUnknown,
    RequestError,
    StorageFailed,
    UnknownPeer,
)
from millpond.actors.runtime.supervisor import contain
from millpond.node.outbox import messages as b
from millpond.node.outbox.mailbox import is_prekeys, owner_of
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.own_addresses import reach_of
from millpond.node.outbox.own_card import make_own_card
from millpond.node.peers.address_book import AddressBookError, Peer, Trust
from millpond.node.peers.address_book_file import BookBusy
from millpond.node.peers.card import BadCard, decode_card, local_addresses
from millpond.node.peers.envelope import UUID_BYTES, CannotOpen, envelope_uuid
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.local_envelope import is_local, local_uuid
from millpond.node.peers.safety_number import BadSafetyNumber, safety_number
from millpond.node.peers.verification_code import NotSame, compare, verification_code
from millpond.node.qr_code import qr_path
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.interface import PeersCallback

log = logging.getLogger(__name__)


Handler = Callable[[bytes], Awaitable[bytes]]
"""The implementation of an operation: the body of the request to that of the reply. Raises
RequestErrors."""


ClientHandler = Callable[[bytes | None, bytes, bytes], Awaitable[bytes]]
"""As `Handler`, for an operation that peers may use: the proved key of the client, or None, and its
channel come first."""


class PeerRequests:
    """The requests about peers of one node; they are carried out in `tasks`."""

    def __init__(self, outbox: Outbox, tasks: TaskGroup) -> None:
        self._outbox = outbox
        self._tasks = tasks
        self._accepted: deque[tuple[str, Callable[[], Awaitable[None]]]] = deque()
        self._has_requests = anyio.Event()
        tasks.start_soon(self._start_tasks)
        self._client_handlers: dict[int, ClientHandler] = {}
        self._handlers: dict[int, Handler] = {
            b.PeerOperation.WHO: self._who,
            b.PeerOperation.PEERS: self._peers,
            b.PeerOperation.PEER_ADD: self._add,
            b.PeerOperation.PEER_REMOVE: self._remove,
            b.PeerOperation.PEER_BLOCK: self._block,
            b.PeerOperation.PEER_VERIFY: self._verify,
            b.PeerOperation.SEND: self._send,
            b.PeerOperation.OPEN: self._open,
        }

    def register(self, operation: int, handler: Handler) -> None:
        """Add the handler of an operation."""
        assert operation not in self._handlers
        self._handlers[operation] = handler

    def register_for_peers(self, operation: int, handler: ClientHandler) -> None:
        """Add the handler of an operation that peers may use."""
        self._client_handlers[operation] = handler

    def ask(
        self,
        operation: int,
        body: bytes,
        answer: PeersCallback,
        /,
        client: bytes | None = None,
        channel: bytes = b"",
    ) -> None:
        """Start an operation; `answer` is called once with its outcome. See `AskPeers`."""
        handler = self._handlers.get(operation)
        match operation:
            case b.PeerOperation.DELIVERY_KEYS:
                handler = partial(self._take_delivery_keys, client)
            case b.PeerOperation.GIVE_PREKEYS:
                handler = partial(self._take_in_prekeys, client)
            case b.PeerOperation.TAKE_PREKEYS:
                handler = partial(self._hand_out_prekeys, client, channel)
        for_peers = self._client_handlers.get(operation)
        if for_peers is not None:
            handler = partial(for_peers, client, channel)
        if handler is None:
            answer(Malformed(f"unknown operation {operation}"))
            return
        work = partial(self._handle, handler, body, answer)
        self._accepted.append((f"peer_requests/{operation}", work))
        self._has_requests.set()

    async def _start_tasks(self) -> None:
        """Start the tasks: `ask` is called outside of any task."""
        while True:
            await self._has_requests.wait()
            self._has_requests = anyio.Event()
            while self._accepted:
                self._tasks.start_soon(contain, *self._accepted.popleft())

    async def _handle(self, handler: Handler, body: bytes, answer: PeersCallback) -> None:
        outcome: bytes | RequestError = OutcomeUnknown()
        try:
            outcome = await handler(body)
        except RequestError as error:
            outcome = error
        except (OSError, AddressBookError, BookBusy, DeliveryTokenError) as error:
            log.warning("request about peers failed: %s", error)
            outcome = StorageFailed(str(error))
        finally:
            answer(outcome)

    # This node and its peers.

    async def _who(self, body: bytes) -> bytes:
        read_body(body, b.Nothing)
        context = self._outbox.context
        identity, card = context.identity, await make_own_card(context)
        return b.write_body(
            b.WhoAnswer(
                id=identity.id,
                key=identity.public,
                fingerprint=fingerprint(identity.public),
                words=fingerprint_words(identity.public),
                addresses=card.addresses,
                relays=card.relays,
                card=card.line,
                reach=card.reach.value,
            )
        )

    async def _peers(self, body: bytes) -> bytes:
        request = read_body(body, b.PeersRequest)
        book = self._outbox.context.book
        if request.peer is not None:
            found = [self._resolve(request.peer)]
        else:
            found = [each for each in book.peers if each.name > request.after]
            found.sort(key=lambda each: each.name)
        limit = max(1, min(request.limit, b.PAGE_MAX))
        page = [self._info(each) for each in found[:limit]]
        if request.peer is not None:
            own = self._outbox.context.identity.public
            await anyio.to_thread.run_sync(_fill_verification, page[0], own, found[0].public)
        return b.write_body(b.PeersAnswer(page, len(found) > limit))

    def _info(self, peer: Peer) -> b.PeerInfo:
        seen = self._outbox.presence.last_seen(peer.public)
        return b.PeerInfo(
            name=peer.name,
            id=peer.id,
            key=peer.public,
            trust=peer.trust.value,
            fingerprint=fingerprint(peer.public),
            words=fingerprint_words(peer.public),
            addresses=peer.addresses,
            relays=peer.relays,
            here=seen.is_online,
            seen_at=seen.seen_at,
            queued=self._outbox.queued(peer.public),
            can_seal=self._outbox.can_seal(peer.public),
            version=self._outbox.version(peer.public),
            unconfirmed=self._outbox.unconfirmed(peer.public),
            key_changed=self._outbox.context.book.has_changed_key(peer),
        )

    async def _add(self, body: bytes) -> bytes:
        return b.write_body(await self.add_contact(read_body(body, b.AddRequest)))

    async def add_contact(self, request: b.AddRequest) -> b.AddAnswer:
        """Add a contact, or update the one with this key. Raises OSError and BookBusy."""
        try:
            peer = self._peer_of(request)
            # In a worker thread: the file is written and synced.
            await anyio.to_thread.run_sync(self._store, peer)
        except (AddressBookError, BadCard, BadPeerId, ValueError) as error:
            return b.AddAnswer(None, str(error))
        self._outbox.scheduler.address_book_changed()
        reach = reach_of(peer.addresses, peer.relays)
        return b.AddAnswer(peer.id, reach=reach.value)

    def _peer_of(self, request: b.AddRequest) -> Peer:
        card = None if request.card is None else decode_card(request.card)
        local: tuple[str, ...] = ()
        if card is None and request.key is None:
            raise BadCard("give a card or a key")
        public = public_key_of(request.key) if request.key is not None else b""
        if card is not None:
            if public not in (b"", card.public):
                raise BadCard("the card belongs to another key")
            local = local_addresses(card)
            if local and not self._outbox.context.settings.is_local:
                found = f"the card has addresses of this machine or link: {', '.join(local)}"
                raise BadCard(f"{found}; ask for one made with `--via RELAY` or `--address`")
            public = card.public
        if public == self._outbox.context.identity.public:
            raise BadPeerId("this is the key of this node")
        addresses = (*request.addresses, *(card.addresses if card else ()))
        relays = (*request.relays, *(card.relays if card else ()))
        now, line = self._outbox.context.now(), request.card or ""
        return Peer(
            request.name,
            public,
            Trust.ADDED,
            addresses,
            relays,
            now,
            line,
            allows_local=bool(local),
        )

    def _store(self, peer: Peer) -> None:
        book = self._outbox.context.book
        earlier = decode_card(peer.card).predecessors if peer.card else []
        if book.predecessor(peer.public, earlier) is None:
            book.update(peer)
        else:
            book.follow(earlier, peer)

    async def _remove(self, body: bytes) -> bytes:
        peer = self._resolve(read_body(body, b.RemoveRequest).peer)
        await anyio.to_thread.run_sync(self._outbox.context.book.remove, peer.name)
        self._outbox.scheduler.address_book_changed()
        return b.write_body(b.Nothing())

    async def _block(self, body: bytes) -> bytes:
        peer = self._resolve(read_body(body, b.BlockRequest).peer)
        await anyio.to_thread.run_sync(self._outbox.context.book.block, peer.id)
        self._outbox.scheduler.address_book_changed()
        return b.write_body(b.Nothing())

    async def _verify(self, body: bytes) -> bytes:
        """Compare the safety number that a person gives, and mark the peer as verified."""
        request = read_body(body, b.VerifyRequest)
        peer, context = self._resolve(request.peer), self._outbox.context
        compared = partial(compare, context.identity.public, peer.public, request.number)
        try:
            await anyio.to_thread.run_sync(compared)
            peer = await anyio.to_thread.run_sync(context.book.verify, peer.id)
        except (BadSafetyNumber, NotSame, AddressBookError) as error:
            return b.write_body(b.VerifyAnswer(peer.trust.value, str(error)))
        return b.write_body(b.VerifyAnswer(peer.trust.value))

    async def _take_delivery_keys(self, owner: bytes | None, body: bytes) -> bytes:
        """Replace the delivery keys of the mailbox of a contact at this relay."""
        request = read_body(body, b.DeliveryKeysRequest)
        delivery_keys = self._outbox.context.delivery_keys
        if owner is None or delivery_keys is None:
            raise NotAllowed("this node is no relay for this client")
        await delivery_keys.give(owner, request.keys)
        return b.write_body(b.Nothing())

    async def _take_in_prekeys(self, owner: bytes | None, body: bytes) -> bytes:
        """Keep one-time prekeys of a contact of this relay."""
        request = read_body(body, b.GivePrekeysRequest)
        context = self._outbox.context
        if owner is None or context.delivery_keys is None:
            raise NotAllowed("this node is no relay for this client")
        answer = await context.given_prekeys.give(owner, request.known, request.keys)
        return b.write_body(b.GivePrekeysAnswer(*answer))

    async def _hand_out_prekeys(self, sender: bytes | None, channel: bytes, body: bytes) -> bytes:
        """Hand out one-time prekeys of a contact, or of this node."""
        request = read_body(body, b.TakePrekeysRequest)
        owner = owner_of(channel) if is_prekeys(channel) else None
        if sender is None or owner is None:
            raise NotAllowed("this is no channel with prekeys")
        given = self._outbox.context.given_prekeys
        return b.write_body(b.TakePrekeysAnswer(await given.take(owner, sender, request.count)))

    # Messages.

    async def _send(self, body: bytes) -> bytes:
        request = read_body(body, b.SendRequest)
        if request.uuid is not None and len(request.uuid) != UUID_BYTES:
            raise Malformed(f"a uuid has {UUID_BYTES} bytes")
        if not 0.0 <= request.ttl < float("inf"):
            raise Malformed("ttl must be 0 or more")
        public = self._resolve(request.peer).public
        queued = await self._outbox.send(
            public, request.channel, request.data, request.ttl, request.uuid
        )
        return b.write_body(b.SendAnswer(queued.uuid, queued.id, queued.ttl))

    async def _open(self, body: bytes) -> bytes:
        request = read_body(body, b.OpenRequest)
        try:
            uuid = _uuid_of(request.envelope)
        except CannotOpen as error:
            raise Malformed("not an envelope") from error
        try:
            opened = await self._outbox.open(request.channel, request.envelope)
        except CannotOpen as error:
            return b.write_body(b.OpenAnswer(uuid, reason=str(error)))
        peer = self._outbox.context.book.by_public(opened.sender)
        answer = b.OpenAnswer(uuid, sender=peer_id(opened.sender))
        if peer is None:
            answer.reason = f"the sender is not a known peer: {answer.sender}"
            return b.write_body(answer)
        answer.name, answer.trust = peer.name, peer.trust.value
        if peer.trust is Trust.BLOCKED:
            answer.reason = f"the key of {peer.name!r} is blocked"
        elif peer.trust is Trust.RELAY:
            answer.reason = f"{peer.name!r} is a relay, and no contact"
        else:
            answer.data = opened.plaintext
        return b.write_body(answer)

    def _resolve(self, text: str) -> Peer:
        peer = self._outbox.context.book.resolve(text)
        if peer is None:
            raise UnknownPeer
        return peer


def _uuid_of(envelope: bytes) -> bytes:
    return local_uuid(envelope) if is_local(envelope) else envelope_uuid(envelope)


def _fill_verification(info: b.PeerInfo, own: bytes, peer: bytes) -> None:
    info.safety_number = safety_number(own, peer)
    info.code = verification_code(own, peer)
    info.qr_size, info.qr_path = qr_path(info.code)
