"""Message requests: the first texts of senders that no person has accepted, and introductions.

A request waits until the operator accepts its sender, who is a contact then, or refuses it. It is
kept as it came, sealed; a message of an accepted sender goes back into the own mailbox, where the
inbound router handles it like any other. Until then the sender hears nothing and has no state.
A sender with the secret of an open invite is accepted at once (`invites`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import inf

import anyio
import msgspec

from millpond.actors.errors import KeyReused, RequestError, UnknownPeer
from millpond.actors.messages import Put
from millpond.node.chat.invites import Invites
from millpond.node.chat.payloads import (
    Introduction,
    Text,
    UnknownPayload,
    decode_payload,
)
from millpond.node.chat.records import conversation_stream
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    decode_relayed_message,
    relayed_idempotency_key,
)
from millpond.node.peers.address_book import AddressBookError
from millpond.node.peers.address_book_file import BookBusy
from millpond.node.peers.envelope import KID_BYTES, CannotOpen
from millpond.node.peers.identity import peer_id
from millpond.node.peers.lines import ReplayStatus
from millpond.node.peers.peer import NAME_CHARS_MAX, Peer, Trust
from millpond.node.peers.peer_store import Statement
from millpond.node.peers.prekeys import CLOCKS_APART_S
from millpond.node.peers.sealed_message import Content, Kind, kid_in, open_message

log = logging.getLogger(__name__)

SENDERS_MAX = 32
MESSAGES_MAX = 4
"""The most messages that are kept of one sender."""
INTRODUCED_MESSAGES_MAX = 256
"""The same of a sender that an invite has introduced, until it is in the address book: about a
second. Those that are dropped come again later, behind the next ones."""
MESSAGE_BYTES_MAX = 4096
"""The largest message that is kept, sealed."""
BYTES_MAX = 256 * 1024
"""The most bytes of all requests, sealed. Beyond it, and beyond `SENDERS_MAX`, the oldest leave."""
REFUSED_MAX = 1000
"""The number of refused senders that are remembered; the oldest are forgotten."""
CHECK_S = 1.0
RETRY_S = 5.0
KEYS_TRIED_MAX = 4
FIRST_ATTEMPT = 128
"""Not the idempotency key under which the message has arrived: it may be known still."""

_INSERT = "INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM requests WHERE sender = ?"
_DELETE_ONE = "DELETE FROM requests WHERE sender = ? AND uuid = ?"
_REFUSE = "INSERT OR REPLACE INTO refused VALUES (?, ?)"
_REFUSED = "SELECT public FROM refused"
_FORGET = "DELETE FROM refused WHERE public = ?"


class KeptMessage(msgspec.Struct):
    """A message of a request. `until`: when it leaves; `sealed`: the relayed message; `text` is
    None until it is opened, and in an introduction. Times are in seconds since 1970."""

    received_at: float
    until: float
    sealed: bytes
    text: Text | None = None
    is_opened: bool = False


class MessageRequests:
    """The message requests of a node, in `peers.db`. `run` is its task.

    Without `is_on` nothing is kept but introductions by `invites`, and what was kept before is
    removed.
    """

    def __init__(self, context: OutboxContext, invites: Invites, *, is_on: bool) -> None:
        self.is_on = is_on
        self._invites = invites
        self._context = context
        self._senders: dict[bytes, dict[bytes, KeptMessage]] = {}
        """By sender, the oldest request first, and by uuid."""
        self._refused: dict[bytes, float] = {}
        """Until when messages of a sender are dropped; the one refused first comes first."""
        self._spent: dict[bytes, None] = {}
        """The kids of messages that nobody will read: one-time prekeys are destroyed."""
        self._unstored: set[bytes] = set()
        """Refused senders that `peers.db` does not have yet."""
        self.reload()

    def __len__(self) -> int:
        return len(self._senders)

    def reload(self) -> None:
        """Read what is stored: a change was not. Refusals hold, stored or not."""
        self._invites.reload()
        query = self._context.store.query
        unstored = {each: self._refused[each] for each in self._refused if each in self._unstored}
        self._senders = {}
        text = "SELECT sender, uuid, received_at, until, sealed FROM requests ORDER BY received_at"
        for sender, uuid, *values in query(text):
            if sender not in unstored:
                self._senders.setdefault(sender, {})[uuid] = KeptMessage(*values)
        self._refused = dict(query("SELECT public, until FROM refused ORDER BY until"))
        for sender, until in unstored.items():
            self._remember_refusal(sender, until)

    # Arrival, as the inbound router tells of it.

    def receive(self, sender: bytes, content: Content, sealed: bytes) -> list[Statement] | str:
        """The statements that keep a verified message of a stranger; else the reason to drop it."""
        now, payload = self._context.now(), _payload_of(sender, content)
        is_introduced = self._invites.has_introduced(sender)
        is_kept = self.is_on or is_introduced or isinstance(payload, Introduction)
        if payload is None or not is_kept:
            return "unknown_sender"
        is_refused = self._refused.get(sender, 0.0) > now
        if is_refused and isinstance(payload, Text):
            return "refused_request"
        if content.deadline / 1000 + CLOCKS_APART_S < now:
            return "late"
        known = self._senders.get(sender, {})
        if content.uuid in known or self._was_contact(sender, content):
            return "repeated_request"
        if isinstance(payload, Introduction):
            used = self._invites.use(sender, payload)
            if isinstance(used, str):
                return used
            self._refused.pop(sender, None)
            self._unstored.discard(sender)
            return [*used, (_FORGET, (sender,)), self._keep(sender, content, sealed, None)]
        most = INTRODUCED_MESSAGES_MAX if is_introduced else MESSAGES_MAX
        if len(sealed) > MESSAGE_BYTES_MAX or len(known) >= most:
            return "request_limit"
        statements = [self._keep(sender, content, sealed, payload)]
        while len(self._senders) > SENDERS_MAX or self._size() > BYTES_MAX:
            strangers = (each for each in self._senders if not self._invites.has_introduced(each))
            oldest = next(strangers, None)
            if oldest is None:
                break
            self._spend(self._senders.pop(oldest).values())
            statements.append((_DELETE, (oldest,)))
            self._context.drop("displaced_request", f"sender={peer_id(oldest)}")
        return statements

    def _keep(self, sender: bytes, content: Content, sealed: bytes, text: Text | None) -> Statement:
        now = self._context.now()
        until = min(content.deadline / 1000, now + self._context.settings.ttl_s)
        kept = self._senders.setdefault(sender, {})
        kept[content.uuid] = KeptMessage(now, until, sealed, text, is_opened=True)
        return _INSERT, (sender, content.uuid, now, until, sealed)

    def _was_contact(self, sender: bytes, content: Content) -> bool:
        """True for a message that was accepted when its sender was a contact."""
        state = self._context.store.states.get(sender)
        return state is not None and state.lines.replay_status(content) is not ReplayStatus.NEW

    def _size(self) -> int:
        return sum(len(each.sealed) for kept in self._senders.values() for each in kept.values())

    # The decision.

    async def open(self) -> dict[bytes, dict[bytes, KeptMessage]]:
        """The requests that wait for an answer, opened, by sender and uuid. A message whose key is
        destroyed has no text."""
        unopened = [
            each for kept in self._senders.values() for each in kept.values() if not each.is_opened
        ]
        if unopened:
            await anyio.to_thread.run_sync(self._open_all, unopened)
        is_contact = self._context.book.is_contact
        return {
            each: kept
            for each, kept in self._senders.items()
            if not is_contact(each) and not self._invites.has_introduced(each)
        }

    async def accept(self, sender: bytes, name: str, relays: tuple[str, ...]) -> None:
        """Add the sender as a contact; its messages follow soon.

        Raises UnknownPeer if it has no request, and the errors of `AddressBook.update`.
        """
        if sender not in self._senders or self._context.book.is_contact(sender):
            raise UnknownPeer
        peer = Peer(name, sender, Trust.ADDED, (), relays, self._context.now())
        await anyio.to_thread.run_sync(self._context.book.update, peer)

    async def refuse(self, sender: bytes, *, block: bool = False) -> None:
        """Remove a request, and drop messages of its sender until none that it has sent by now can
        be alive; `block`: for ever.

        Raises UnknownPeer if it has no request, the errors of the address book, and OSError if this
        cannot be stored: then it holds all the same, and is stored later.
        """
        context = self._context
        is_known = sender in self._senders or sender in self._unstored
        if not is_known or context.book.is_contact(sender):
            raise UnknownPeer
        if block:
            name = f"blocked {peer_id(sender)}"[:NAME_CHARS_MAX]
            peer = Peer(name, sender, Trust.BLOCKED, (), (), context.now())
            await anyio.to_thread.run_sync(self._block, peer)
        self._unstored.add(sender)
        removed = self._senders.pop(sender, {})  # before a message that comes meanwhile
        self._spend(removed.values())
        self._remember_refusal(sender, context.now() + context.prekeys.lifetime_s)
        await self._store_refusals()

    def _remember_refusal(self, sender: bytes, until: float) -> None:
        self._refused.pop(sender, None)  # the newest is the last
        self._refused[sender] = until
        while len(self._refused) > REFUSED_MAX:
            first = next(iter(self._refused))
            del self._refused[first]
            self._unstored.discard(first)

    async def _store_refusals(self) -> None:
        """Raises OSError."""
        stored = {each: self._refused[each] for each in self._refused if each in self._unstored}
        if not stored:
            return
        store = self._context.store
        statements: list[Statement] = [(_DELETE, (each,)) for each in stored]
        statements += [(_REFUSE, each) for each in stored.items()]
        statements += [
            (_FORGET, row) for row in store.query(_REFUSED) if row[0] not in self._refused
        ]
        await store.write(statements)
        for sender, until in stored.items():
            if self._refused.get(sender) == until:
                self._unstored.discard(sender)

    def _block(self, peer: Peer) -> None:
        book = self._context.book
        if book.by_public(peer.public) is None:
            book.add(peer)
        else:
            book.block(peer.id)

    def _open_all(self, messages: list[KeptMessage]) -> None:
        for each in messages:
            try:
                each.text = self._open(each.sealed)
                each.is_opened = True
            except CannotOpen as error:
                each.until = 0.0  # nobody can read it any more
                log.warning("message request not opened: %s", error)
            except OSError as error:
                log.warning("message request not opened yet: %s", error)

    def _open(self, sealed: bytes) -> Text | None:
        """The text of a message that was verified when it came. Raises CannotOpen and OSError."""
        context = self._context

        def prekey_of(kid: bytes) -> bytes | None:
            return context.one_time.private(kid) or context.prekeys.private(kid[:KID_BYTES])

        envelope = decode_relayed_message(sealed).envelope
        opened = open_message(envelope, recipient=context.identity, prekey_of=prekey_of)
        payload = _payload_of(opened.sender, opened.content)
        return payload if isinstance(payload, Text) else None

    # Effects of the address book and of time.

    async def run(self) -> None:
        """Move messages of accepted senders to their chats, and remove what is over, until
        cancelled."""
        while True:
            wait_s = CHECK_S
            try:
                await self.settle()
            except (RequestError, OSError, BookBusy, AddressBookError) as error:
                log.warning("message requests are left for later: %s", error)
                wait_s = RETRY_S
            await anyio.sleep(wait_s)

    async def settle(self) -> None:
        """Do it once. Raises RequestErrors, OSError, BookBusy and AddressBookError."""
        await self._store_refusals()
        await self._invites.settle()
        for sender in list(self._senders):
            peer = self._context.book.by_public(sender)
            if peer is not None and peer.is_contact:
                await self._deliver(sender)
                await self._remove(sender, inf, is_delivered=True)
            elif self._invites.has_introduced(sender):
                continue
            elif not self.is_on or (peer is not None and peer.trust is not Trust.PINNED):
                await self._remove(sender, inf)
            else:
                await self._remove(sender, self._context.now())
        spent = list(self._spent)
        await self._context.one_time.destroy(spent)
        for kid in spent:
            self._spent.pop(kid, None)

    async def _deliver(self, sender: bytes) -> None:
        """Put the messages of an accepted sender into the own mailbox. Raises RequestErrors."""
        log.info("message request accepted: sender=%s", peer_id(sender))
        mailbox = mailbox_of(self._context.identity.public)
        for message in list(self._senders.get(sender, {}).values()):
            ttl = seconds_left(message.until, self._context.now())
            relayed = decode_relayed_message(message.sealed)
            for attempt in range(FIRST_ATTEMPT, FIRST_ATTEMPT + KEYS_TRIED_MAX):
                put = Put(relayed_idempotency_key(relayed, attempt), ttl, message.sealed)
                try:
                    await self._context.local.put(mailbox, put)
                except KeyReused:
                    continue
                break

    def _spend(self, messages: Iterable[KeptMessage]) -> None:
        for each in messages:
            self._spent[kid_in(decode_relayed_message(each.sealed).envelope)] = None

    async def _remove(self, sender: bytes, end: float, *, is_delivered: bool = False) -> None:
        """Remove the messages of a sender that leave at `end` or before. Raises OSError."""
        kept = self._senders.get(sender, {})
        over = [uuid for uuid, message in kept.items() if message.until <= end]
        await self._context.store.write([(_DELETE_ONE, (sender, uuid)) for uuid in over])
        removed = [kept.pop(uuid) for uuid in over if uuid in kept]
        if not is_delivered:
            self._spend(removed)
        if not kept and self._senders.get(sender) is kept:
            del self._senders[sender]


def _payload_of(sender: bytes, content: Content) -> Text | Introduction | None:
    """The text or introduction in a message to the chat with its sender; None for any other
    message."""
    if content.kind is not Kind.MESSAGE or content.channel != conversation_stream(sender):
        return None
    try:
        payload = decode_payload(content.body)
    except UnknownPayload:
        return None
    return payload if isinstance(payload, Text | Introduction) else None
