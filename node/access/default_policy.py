"""Default grants, without any rule: for this machine, for trusted peers, for the chat page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from millpond.actors.messages import Rights
from millpond.node.access.grants import PEER_ID, Grant, Subject, SubjectKind
from millpond.node.ip import is_remote
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.identity import peer_id
from millpond.node.web.login import CHANNEL as PAGE_CHANNEL
from millpond.transports.server.interface import Principal

STREAM_LISTENERS = ("s3p", "rustlog", "http")
"""Listeners that serve streams and nothing else."""
_OWN_KEYS = "mail/{id}!keys"


class TrustedPeers(msgspec.Struct, frozen=True):
    """The node among its peers: its public key, its address book, and whether it is a relay."""

    own: bytes
    book: AddressBook
    is_relay: bool = False


def is_channel_owner(principal: Principal, channel: bytes) -> bool:
    """True for the channel with the client's own prekeys."""
    if principal.identity is None:
        return False
    return channel == _OWN_KEYS.format(id=peer_id(principal.identity)).encode()


def _rule(
    rights: Rights, source: str, channels: tuple[str, ...] | None, streams: tuple[str, ...] | None
) -> Grant:
    return Grant(Subject(SubjectKind.RULE), rights, channels, streams, None, source)


_HERE = _rule(Rights.ALL, "this machine, as there is no access file", None, None)
_PUBLIC = _rule(Rights.CHANNEL, "everybody, by --insecure-public", None, ())
_PUBLIC_STREAMS = _rule(Rights.ALL, "everybody, by --insecure-public", (), None)
_CERTIFIED = _rule(Rights.CHANNEL, "certificates of our authority", None, ())
_CERTIFIED_STREAMS = _rule(Rights.ALL, "certificates of our authority", (), None)


def default_grants(principal: Principal, is_public: bool) -> Iterator[Grant]:
    """The grants of a client as long as there is no access file."""
    serves_streams = principal.listener in STREAM_LISTENERS
    if not is_remote(principal.address):
        yield _HERE
        return
    if is_public:
        yield _PUBLIC_STREAMS if serves_streams else _PUBLIC
    if principal.certificate is not None:
        yield _CERTIFIED_STREAMS if serves_streams else _CERTIFIED


def page_session_grants(rights: Rights | None) -> Iterator[Grant]:
    """The only grants of a session of the chat page; None: there is no such session."""
    if rights is not None:
        yield _rule(rights, "a session of the chat page", (PAGE_CHANNEL.decode(),), ())


def peer_grants(peers: TrustedPeers) -> Sequence[Grant]:
    """The default grants of a trusted peer (docs/internals/peers.md)."""
    return _of_peers(peers.own, peers.is_relay)


@lru_cache(maxsize=4)
def _of_peers(own: bytes, is_relay: bool) -> Sequence[Grant]:
    return tuple(_made_of_peers(own, is_relay))


def _made_of_peers(own: bytes, is_relay: bool) -> Iterator[Grant]:
    mine = f"mail/{peer_id(own)}"
    read = Rights.GET | Rights.LIST
    role = "trusted peers"
    yield _rule(Rights.PUT, f"{role}: mail for this node", (mine,), ())
    yield _rule(read | Rights.PUSH | Rights.ACK, f"{role}: their own mail", ("mail/{id}",), ())
    yield _rule(read, f"{role}: prekeys of this node", (f"{mine}!keys",), ())
    if is_relay:
        others = f"mail/{PEER_ID}"
        yield _rule(Rights.PUT, f"{role}: mail by way of this relay", (others,), ())
        yield _rule(read, f"{role}: prekeys kept by this relay", (f"{others}!keys",), ())
        keep = read | Rights.PUT | Rights.ACK
        yield _rule(keep, f"{role}: their prekeys at this relay", (_OWN_KEYS,), ())
