"""Invites of a node: each introduces one sender, who becomes a contact (docs/internals/peers.md).

The node keeps the digest of a secret, the name for whoever comes with it, and its end. The first
verified message with the secret uses the invite, in the commit that keeps the message; the sender
is put into the address book a moment later, and again after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import anyio
import msgspec

from millpond.actors.errors import BufferFull, StorageFailed
from millpond.node.chat.payloads import Introduction
from millpond.node.outbox.context import OutboxContext
from millpond.node.peers.address_book import (
    AddressBookError,
    DuplicatePeer,
    KeyChanged,
    PeerBlocked,
)
from millpond.node.peers.address_book_file import BookBusy
from millpond.node.peers.card import BadCard, ContactCard, decode_card, local_addresses
from millpond.node.peers.identity import peer_id
from millpond.node.peers.invite import SECRET_BYTES, introduction_digest
from millpond.node.peers.invite import Introduction as OneTimeIntroduction
from millpond.node.peers.peer import NAME_CHARS_MAX, Peer, Trust, checked_name
from millpond.node.peers.peer_store import Statement

log = logging.getLogger(__name__)

OPEN_MAX = 32
"""The most invites that are open, or whose sender is not in the address book yet."""
USED_MAX = 1000
"""The most used invites that are remembered until their end; the oldest are forgotten."""
LIFE_S = 7 * 86_400
LIFE_S_MIN = 60
NAMES_TRIED_MAX = 100

_INSERT = "INSERT OR REPLACE INTO invites VALUES (?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM invites WHERE digest = ?"


class BadInvite(ValueError):
    """A request for an invite that cannot be made; the text tells people why."""


class KeptInvite(msgspec.Struct):
    """An invite for the peer `name`. `used_by`: the key of the sender that it has introduced, whose
    `card` waits to be put into the address book. Times are in seconds since 1970."""

    digest: bytes
    name: str
    made_at: float
    until: float
    used_by: bytes | None = None
    card: str = ""


class Invites:
    """The invites of a node, in `peers.db`."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._invites: dict[bytes, KeptInvite] = {}
        self.reload()

    def reload(self) -> None:
        """Read what is stored: a change was not."""
        text = "SELECT digest, name, made_at, until, used_by, card FROM invites ORDER BY made_at"
        rows = self._context.store.query(text)
        self._invites = {row[0]: KeptInvite(*row) for row in rows}

    @property
    def open(self) -> list[KeptInvite]:
        """The invites that somebody can still use, the oldest first."""
        now = self._context.now()
        return [each for each in self._invites.values() if not each.used_by and each.until > now]

    async def make(self, name: str, life_s: float = LIFE_S) -> OneTimeIntroduction:
        """A new invite for the peer that will have this name, in place of an open one for it.

        It ends when a message for the prekey of its card can no longer be alive, if that is
        earlier. Raises BadInvite, BufferFull and StorageFailed.
        """
        context, now = self._context, self._context.now()
        try:
            name = checked_name(name)
        except ValueError as error:
            raise BadInvite(str(error)) from error
        if context.book.by_name(name) is not None:
            raise BadInvite(f"{name!r} is a peer already: choose another name")
        if not life_s >= LIFE_S_MIN:
            raise BadInvite(f"an invite is open for {LIFE_S_MIN} s at least")
        earlier = [each for each in self.open if each.name == name]
        if len(self.open) - len(earlier) + len(list(self._unsettled)) >= OPEN_MAX:
            raise BufferFull(f"{OPEN_MAX} invites are open: cancel one first")
        prekey = await anyio.to_thread.run_sync(context.prekeys.current)
        until = int(min(now + life_s, prekey.good_until))
        secret = context.entropy(SECRET_BYTES)
        kept = KeptInvite(introduction_digest(secret), name, now, until)
        await self._write([*self._removals(earlier), self._row(kept)])
        self._remove(earlier)
        self._invites[kept.digest] = kept
        return OneTimeIntroduction(secret, until)

    async def cancel(self, name: str) -> bool:
        """End the open invite for a name; False: there is none. Raises StorageFailed."""
        found = [each for each in self.open if each.name == name]
        await self._write(self._removals(found))
        self._remove(found)
        return bool(found)

    # Use, by a stranger.

    def use(self, sender: bytes, introduction: Introduction) -> list[Statement] | str:
        """The statements that use an invite for a verified sender; else the reason to drop its
        message. The caller stores them, or calls `reload`."""
        kept = self._find(introduction)
        if kept is None or (kept.used_by is None and kept.until <= self._context.now()):
            return "no_invite"
        if kept.used_by is not None:
            return "repeated_introduction" if kept.used_by == sender else "used_invite"
        card = _card_of(sender, introduction)
        if card is None:
            return "malformed_introduction"
        used = msgspec.structs.replace(kept, used_by=sender, card=introduction.card)
        self._invites[kept.digest] = used
        log.info("invite used: name=%r by=%s", kept.name, peer_id(sender))
        return [self._row(used)]

    def has_introduced(self, sender: bytes) -> bool:
        """True for a sender that is about to be put into the address book."""
        return any(each.used_by == sender for each in self._unsettled)

    async def settle(self) -> None:
        """Put introduced senders into the address book, and forget what is over. Raises OSError,
        BookBusy and StorageFailed."""
        for kept in list(self._unsettled):
            assert kept.used_by is not None
            await self._add(kept, kept.used_by)
            kept.card = ""
            await self._write([self._row(kept)])
        now = self._context.now()
        used = [each for each in self._invites.values() if each.used_by and not each.card]
        over = [each for each in self._invites.values() if each.until <= now and not each.card]
        over += used[: max(0, len(used) - USED_MAX)]
        await self._write(self._removals(over))
        self._remove(over)

    async def introduced(self, peer: bytes, introduction: Introduction) -> bool:
        """A contact uses an invite: one that has introduced it, or an open one, which is used up.

        Its card is taken over. False: neither. Raises StorageFailed.
        """
        kept = self._find(introduction)
        if kept is None or kept.used_by not in (None, peer):
            return False
        if kept.used_by is None:
            if kept.until <= self._context.now() or _card_of(peer, introduction) is None:
                return False
            used = msgspec.structs.replace(kept, used_by=peer, card=introduction.card)
            await self._write([self._row(used)])
            self._invites[kept.digest] = used
            kept = used
        if kept.card:
            try:
                await self.settle()
            except (OSError, BookBusy) as error:
                raise StorageFailed(str(error)) from error
        return True

    @property
    def _unsettled(self) -> Iterator[KeptInvite]:
        """Used invites whose sender is not in the address book yet."""
        return (each for each in self._invites.values() if each.used_by and each.card)

    async def _add(self, kept: KeptInvite, sender: bytes) -> None:
        """Raises OSError and BookBusy."""
        context = self._context
        card, allows_local = decode_card(kept.card), context.settings.is_local
        left_out = () if allows_local else local_addresses(card)
        known = context.book.by_public(sender)
        is_contact = known is not None and known.is_contact
        name = known.name if known is not None and is_contact else kept.name
        for number in range(2, NAMES_TRIED_MAX):
            peer = Peer(
                name,
                sender,
                Trust.ADDED,
                tuple(each for each in card.addresses if each not in left_out),
                tuple(each for each in card.relays if each not in left_out),
                context.now(),
                kept.card,
                allows_local=allows_local,
            )
            try:
                await anyio.to_thread.run_sync(context.book.update, peer)
            except (KeyChanged, DuplicatePeer):  # the name was taken meanwhile
                end = f" {number}"
                name = kept.name[: NAME_CHARS_MAX - len(end)].rstrip() + end
            except PeerBlocked:
                return
            except AddressBookError as error:
                log.warning("introduced peer not added: %s: %s", peer_id(sender), error)
                return
            else:
                return

    def _find(self, introduction: Introduction) -> KeptInvite | None:
        return self._invites.get(introduction_digest(bytes.fromhex(introduction.secret)))

    @staticmethod
    def _row(kept: KeptInvite) -> Statement:
        return _INSERT, msgspec.structs.astuple(kept)

    @staticmethod
    def _removals(invites: list[KeptInvite]) -> list[Statement]:
        return [(_DELETE, (each.digest,)) for each in invites]

    def _remove(self, invites: list[KeptInvite]) -> None:
        for each in invites:
            self._invites.pop(each.digest, None)

    async def _write(self, statements: list[Statement]) -> None:
        try:
            await self._context.store.write(statements)
        except OSError as error:
            raise StorageFailed(str(error)) from error


def _card_of(sender: bytes, introduction: Introduction) -> ContactCard | None:
    """The card in an introduction, if it is the sender's own."""
    try:
        card = decode_card(introduction.card)
    except BadCard:
        return None
    return card if card.public == sender else None
