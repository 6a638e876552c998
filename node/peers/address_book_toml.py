"""The text of `peers.toml`: one `[[peer]]` table for each peer."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
import tomli_w

from millpond.node.peers.identity import public_key_of
from millpond.node.peers.peer import Peer, Trust

HEADER = """\
# The peers of this node. `millpond peer` and `millpond keys` rewrite this file and drop comments.
# The node reads changes made by hand within a second.
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
    """The peers in the text of a file; an empty text has none.

    Names and addresses are not checked here: `peer.checked` does that. Raises ValueError, which
    says where the text is wrong.
    """
    try:
        rows = msgspec.convert(tomllib.loads(text), _File).peer
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    return [_peer(row) for row in rows]


def format_address_book(peers: Iterable[Peer]) -> str:
    """The text of a file with these peers."""
    tables = [_fields(peer) for peer in peers]
    return f"{HEADER}\n{tomli_w.dumps({'peer': tables})}" if tables else HEADER


def _peer(row: _Row) -> Peer:
    key, added_at = public_key_of(row.key), row.added.timestamp()
    return Peer(row.name, key, row.trust, row.addresses, row.relays, added_at, row.card)


def _fields(peer: Peer) -> dict[str, object]:
    fields: dict[str, object] = {"name": peer.name, "key": peer.id, "trust": peer.trust.value}
    if peer.addresses:
        fields["addresses"] = peer.addresses
    if peer.relays:
        fields["relays"] = peer.relays
    if peer.card:
        fields["card"] = peer.card
    return fields | {"added": datetime.fromtimestamp(peer.added_at, UTC)}
