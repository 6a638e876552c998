"""Default grants, without any rule: for this machine, for peers, for the chat page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from millpond.actors.messages import Rights
from millpond.node.access.grants import PEER_ID, Grant, Subject, SubjectKind
from millpond.node.ip import is_remote
from millpond.node.outbox.mailbox import is_prekeys, mailbox_of, owner_of
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.identity import peer_id
from millpond.node.web.login import CHANNEL as PAGE_CHANNEL
from millpond.transports.server.interface import DeliveryProof, Principal

STREAM_LISTENERS = ("s3p", "rustlog", "http")
"""Listeners that serve streams and nothing else."""
_OWN_KEYS = "mail/{id}!keys"
_OWN_CHAT = "chat/{id}"


class ProofCheck(Protocol):
    """The check of delivery proofs."""

    def accepts(self, owner: bytes, sender: bytes, delivery: DeliveryProof) -> bool:
        """True if a sender has proved that it has a token of the owner."""


class MailboxKeys(ProofCheck, Protocol):
    """The delivery keys of the mailboxes at this relay."""

    def note_without_token(self, owner: bytes, sender: bytes) -> None:
        """A sender without a token was given a right to the mailbox of the owner."""


class KnownPeers(msgspec.Struct, frozen=True):
    """The node among its peers: its public key, its address book, and whether it is a relay.

    `channels`: patterns of channels to which all contacts may send messages. `delivery_keys`: those
    of the mailboxes here. `needs_tokens`: this relay takes mail for others only with a delivery
    token. `own_keys`: those of the node's own mailbox, while strangers that have its contact card
    may send messages to it.
    """

    own: bytes
    book: AddressBook
    is_relay: bool = False
    channels: tuple[str, ...] = ()
    delivery_keys: MailboxKeys | None = None
    needs_tokens: bool = False
    own_keys: ProofCheck | None = None

    @property
    def takes_mail(self) -> bool:
        """True if contacts and relays may put mail for others here without a token."""
        return self.is_relay and not self.needs_tokens


def is_own_prekey_channel(principal: Principal, channel: bytes) -> bool:
    """True for the channel with the client's own prekeys."""
    if principal.identity is None:
        return False
    return channel == _OWN_KEYS.format(id=peer_id(principal.identity)).encode()


def _grant(
    rights: Rights, source: str, channels: tuple[str, ...] | None, streams: tuple[str, ...] | None
) -> Grant:
    return Grant(Subject(SubjectKind.RULE), rights, channels, streams, None, source)


_LOCAL = _grant(Rights.ALL, "this machine, as there is no access file", None, None)
_PUBLIC = _grant(Rights.CHANNEL, "everybody, by --insecure-public", None, ())
_PUBLIC_STREAMS = _grant(Rights.ALL, "everybody, by --insecure-public", (), None)
_CERTIFIED = _grant(Rights.CHANNEL, "certificates of our authority", None, ())
_CERTIFIED_STREAMS = _grant(Rights.ALL, "certificates of our authority", (), None)
OPERATOR_GRANT = _grant(Rights.ALL | Rights.OPERATOR, "the cookie of the operator", None, None)
CONSOLE_GRANT = _grant(Rights.ALL | Rights.OPERATOR, "a session of the console", None, None)


def default_grants(principal: Principal, is_public: bool) -> Iterator[Grant]:
    """The grants of a client as long as there is no access file."""
    serves_streams = principal.listener in STREAM_LISTENERS
    if not is_remote(principal.address):
        yield _LOCAL
        return
    if is_public:
        yield _PUBLIC_STREAMS if serves_streams else _PUBLIC
    if principal.certificate is not None:
        yield _CERTIFIED_STREAMS if serves_streams else _CERTIFIED


def default_stream_rights(principal: Principal, is_public: bool) -> Rights | None:
    """The rights that the default grants give in a stream that is not private; None: none."""
    if not is_remote(principal.address):
        return _LOCAL.rights
    if principal.listener not in STREAM_LISTENERS:
        return None
    if is_public:
        return _PUBLIC_STREAMS.rights
    return None if principal.certificate is None else _CERTIFIED_STREAMS.rights


def page_session_grants(rights: Rights | None) -> Iterator[Grant]:
    """The only grants of a session of the chat page; None: there is no such session."""
    if rights is not None:
        yield _grant(rights, "a session of the chat page", (PAGE_CHANNEL.decode(),), ())


def message_grant(peers: KnownPeers) -> Grant:
    """The channels to which every contact may send messages, with its signature alone."""
    channels = (_OWN_CHAT, *peers.channels)
    return _grant(Rights.PUT, "contacts: their messages", channels, ())


def contact_grants(peers: KnownPeers) -> Sequence[Grant]:
    """The default grants of a contact (docs/internals/peers.md)."""
    return _contact_grants(peers.own, peers.is_relay, peers.takes_mail)


def relay_grants(peers: KnownPeers) -> Sequence[Grant]:
    """The default grants of a relay: it delivers what it has stored, and nothing else."""
    return _relay_grants(peers.own, peers.takes_mail)


def delivery_rights(peers: KnownPeers, principal: Principal, channel: bytes) -> Rights:
    """The rights of a client in the mailbox of this node or of a contact at this relay, or in its
    prekeys, by the owner's delivery token."""
    owner, sender = owner_of(channel), principal.identity
    keys: ProofCheck | None = peers.own_keys if owner == peers.own else peers.delivery_keys
    if owner is None or sender is None or principal.delivery is None or keys is None:
        return Rights(0)
    if owner != peers.own and not peers.book.is_contact(owner):
        return Rights(0)
    if not keys.accepts(owner, sender, principal.delivery):
        return Rights(0)
    if is_prekeys(channel):
        return Rights.GET | Rights.LIST
    return Rights.PUT if channel == mailbox_of(owner) else Rights(0)


def takes_tokens(peers: KnownPeers, channel: bytes) -> bool:
    """True for the mailbox of a contact at this relay."""
    owner = owner_of(channel)
    if owner is None or owner == peers.own or channel != mailbox_of(owner):
        return False
    return peers.is_relay and peers.book.is_contact(owner)


def note_without_token(peers: KnownPeers, principal: Principal, channel: bytes) -> None:
    """Record that a client has the right to put messages into a channel and showed no delivery
    token."""
    owner, sender = owner_of(channel), principal.identity
    if owner is None or sender is None or peers.delivery_keys is None:
        return
    if owner not in (peers.own, sender) and channel == mailbox_of(owner):
        peers.delivery_keys.note_without_token(owner, sender)


@lru_cache(maxsize=4)
def _relay_grants(own: bytes, takes_mail: bool) -> Sequence[Grant]:
    mine, others = f"mail/{peer_id(own)}", f"mail/{PEER_ID}"
    grants = [_grant(Rights.PUT, "relays: mail for this node", (mine,), ())]
    if takes_mail:
        grants.append(_grant(Rights.PUT, "relays: mail by way of this relay", (others,), ()))
    return tuple(grants)


@lru_cache(maxsize=4)
def _contact_grants(own: bytes, is_relay: bool, takes_mail: bool) -> Sequence[Grant]:
    mine, others = f"mail/{peer_id(own)}", f"mail/{PEER_ID}"
    read = Rights.GET | Rights.LIST
    use, keep = read | Rights.PUSH | Rights.ACK, read | Rights.PUT | Rights.ACK
    grants = [
        _grant(Rights.PUT, "contacts: mail for this node", (mine,), ()),
        _grant(use, "contacts: their own mail", ("mail/{id}",), ()),
        _grant(read, "contacts: prekeys of this node", (f"{mine}!keys",), ()),
    ]
    if takes_mail:  # only a relay does
        grants.append(_grant(Rights.PUT, "contacts: mail by way of this relay", (others,), ()))
    if is_relay:
        others_keys = f"{others}!keys"
        grants.append(_grant(read, "contacts: prekeys kept by this relay", (others_keys,), ()))
        grants.append(_grant(keep, "contacts: their prekeys at this relay", (_OWN_KEYS,), ()))
    return tuple(grants)
