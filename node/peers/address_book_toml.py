"""`peers.toml` as text: a table for each peer, read strictly, written for people to edit."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from millpond.node.peers.identity import public_key_of
from millpond.node.peers.peer import Peer, Trust
from millpond.node.peers.toml_text import Value, entry

HEADER = """\
# The peers of this node. `millpond peer` and `millpond keys` write this file, so comments get
# lost; what is edited by hand counts a second later.
format = 1
"""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    key: str
    trust: Trust
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    added: Annotated[datetime, msgspec.Meta(tz=True)] = datetime.fromtimestamp(0, UTC)
    card: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal[1] = 1
    peer: list[_Row] = []


def parse_address_book(text: str) -> list[Peer]:
    """Read the file; ValueError says where it is wrong. No text is a file without peers.

    Whether names and addresses can be is `peer.checked`'s to say.
    """
    try:
        rows = msgspec.convert(tomllib.loads(text), _File).peer
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    return [_peer(row) for row in rows]


def format_address_book(peers: Iterable[Peer]) -> str:
    """The reverse. ValueError for a str that is no text (lone surrogates)."""
    return "\n".join([HEADER, *(entry("peer", _fields(peer)) for peer in peers)])


def _peer(row: _Row) -> Peer:
    key, added_at = public_key_of(row.key), row.added.timestamp()
    return Peer(row.name, key, row.trust, row.addresses, row.relays, added_at, row.card)


def _fields(peer: Peer) -> dict[str, Value]:
    fields: dict[str, Value] = {"name": peer.name, "key": peer.id, "trust": peer.trust.value}
    if peer.addresses:
        fields["addresses"] = peer.addresses
    if peer.relays:
        fields["relays"] = peer.relays
    if peer.card:
        fields["card"] = peer.card
    return fields | {"added": datetime.fromtimestamp(peer.added_at, UTC)}
