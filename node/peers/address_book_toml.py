"""The text of `peers.toml`: one `[[peer]]` table for each peer."""

from __future__ import annotations

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
format = 2
"""
FIRST_TRUST = {"trusted": Trust.ADDED, "pinned": Trust.PINNED, "revoked": Trust.BLOCKED}
"""The levels of format 1. It had one for friends and relays, whether or not a person had compared
the words."""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    key: str
    trust: str
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    added: Annotated[datetime, msgspec.Meta(tz=True)] = datetime.fromtimestamp(0, UTC)
    card: str = ""
    local: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal[1, 2] = 1
    peer: list[_Row] = []


def parse_address_book(text: str) -> list[Peer]:
    """The peers in the text of a file of format 1 or 2; an empty text has none.

    Names and addresses are not checked here: `peer.checked` does that. Raises ValueError, which
    says where the text is wrong.
    """
    if text in ("", HEADER):
        return []
    import tomllib  # a node without peers does not need it

    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    levels = FIRST_TRUST if file.format == 1 else {each.value: each for each in Trust}
    return [_peer(row, levels) for row in file.peer]


def format_address_book(peers: Iterable[Peer]) -> str:
    """The text of a file with these peers."""
    tables = [_fields(peer) for peer in peers]
    return f"{HEADER}\n{tomli_w.dumps({'peer': tables})}" if tables else HEADER


def _peer(row: _Row, levels: dict[str, Trust]) -> Peer:
    key, added_at = public_key_of(row.key), row.added.timestamp()
    trust = levels.get(row.trust)
    if trust is None:
        raise ValueError(f"{row.name!r}: trust is one of {', '.join(levels)}, not {row.trust!r}")
    return Peer(row.name, key, trust, row.addresses, row.relays, added_at, row.card, row.local)


def _fields(peer: Peer) -> dict[str, object]:
    fields: dict[str, object] = {"name": peer.name, "key": peer.id, "trust": peer.trust.value}
    if peer.addresses:
        fields["addresses"] = peer.addresses
    if peer.relays:
        fields["relays"] = peer.relays
    if peer.card:
        fields["card"] = peer.card
    if peer.allows_local:
        fields["local"] = True
    return fields | {"added": datetime.fromtimestamp(peer.added_at, UTC)}
