"""Delivery keys, to check proofs: those that the owners of mailboxes at this relay have given it,
and those of this node's own mailbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from millpond.actors.errors import Malformed, NotAllowed
from millpond.node.outbox.messages import GivenKey
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.delivery_proof import KEY_BYTES, delivery_key, is_proved
from millpond.node.peers.delivery_token import TOKENS_MAX, DeliveryToken
from millpond.node.peers.identity import peer_id
from millpond.node.peers.peer_store import PeerStore
from millpond.transports.server.interface import DeliveryProof

log = logging.getLogger(__name__)

NOTED_MAX = 10_000
"""The senders without a token that are told apart in the log."""


class DeliveryKeys:
    """The delivery keys of the owners of mailboxes, in `peers.db`. For one thread."""

    def __init__(self, store: PeerStore, book: AddressBook, now: Callable[[], float]) -> None:
        self._store = store
        self._book = book
        self._now = now
        rows = store.query("SELECT owner, keys FROM delivery_keys")
        self._keys = {
            owner: msgspec.msgpack.decode(keys, type=tuple[GivenKey, ...]) for owner, keys in rows
        }
        self._without_token: set[tuple[bytes, bytes]] = set()

    async def give(self, owner: bytes, keys: Sequence[GivenKey]) -> None:
        """Replace the keys of an owner; they are on disk when this returns.

        Raises NotAllowed if the owner is no contact, Malformed, and OSError.
        """
        if not self._book.is_contact(owner):
            raise NotAllowed("mailboxes are for contacts")
        if len(keys) > TOKENS_MAX or any(len(each.key) != KEY_BYTES for each in keys):
            raise Malformed(f"up to {TOKENS_MAX} keys of {KEY_BYTES} bytes")
        given = tuple(keys)
        if self._keys.get(owner, ()) == given:
            return
        gone = [each for each in self._keys if not self._book.is_contact(each)]
        row = (owner, msgspec.msgpack.encode(given))
        await self._store.write(
            [
                ("INSERT OR REPLACE INTO delivery_keys VALUES (?, ?)", row),
                *(("DELETE FROM delivery_keys WHERE owner = ?", (each,)) for each in gone),
            ]
        )
        self._keys[owner] = given
        for each in gone:
            self._keys.pop(each, None)

    def accepts(self, owner: bytes, sender: bytes, delivery: DeliveryProof) -> bool:
        """True if a sender has proved that it has a token of the owner that is good now."""
        now = self._now()
        good = [
            each.key for each in self._keys.get(owner, ()) if each.until is None or each.until > now
        ]
        return is_proved(good, sender, delivery.nonce, delivery.proof)

    def note_without_token(self, owner: bytes, sender: bytes) -> None:
        """Log that a sender without a token may put messages into the mailbox of an owner who has
        given keys: the 1st, 2nd, 4th, 8th such pair and so on."""
        noted, pair = self._without_token, (owner, sender)
        if owner not in self._keys or pair in noted or len(noted) >= NOTED_MAX:
            return
        noted.add(pair)
        if not len(noted) & len(noted) - 1:
            log.warning(
                "mail without a delivery token: from=%s for=%s senders=%d",
                peer_id(sender),
                peer_id(owner),
                len(noted),
            )


class OwnDeliveryKeys:
    """The delivery keys of the own mailbox, for strangers that have a card of this node. For one
    thread.

    They are good only while the node `takes_strangers`: it keeps message requests, or an invite is
    open.
    """

    def __init__(
        self, own: bytes, now: Callable[[], float], takes_strangers: Callable[[], bool]
    ) -> None:
        self._own = own
        self._now = now
        self._takes_strangers = takes_strangers
        self._keys: list[GivenKey] = []

    @property
    def are_used(self) -> bool:
        """True if a stranger with a card may leave a message now."""
        return bool(self._keys) and self._takes_strangers()

    def use(self, tokens: Sequence[DeliveryToken]) -> None:
        """Take the keys of these tokens alone."""
        own = self._own
        self._keys = [GivenKey(delivery_key(each.token, own, own), each.until) for each in tokens]

    def accepts(self, owner: bytes, sender: bytes, delivery: DeliveryProof) -> bool:
        """True if a sender has proved that it has a token of this node that is good now."""
        if owner != self._own or not self._takes_strangers():
            return False
        now = self._now()
        good = [each.key for each in self._keys if each.until is None or each.until > now]
        return is_proved(good, sender, delivery.nonce, delivery.proof)
