"""`millpond peer`: the peers in the address book of a node."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from millpond.node.cli.commands.address_book import (
    add_command,
    add_key_options,
    check_not_own,
    get_peer,
    given_key,
    open_address_book,
    peer_fields,
    print_identity,
)
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser
from millpond.node.cli.removal import add_yes, confirm, is_asked, say_removed
from millpond.node.peers.address_book import (
    AddressBook,
    DuplicatePeer,
    KeyChanged,
    Peer,
    PeerRevoked,
    Trust,
)
from millpond.node.peers.peer import checked_addresses, checked_name, checked_relays

EPILOG = """\
a first peer:
  millpond keys show                          your id and safety words, for bob
  millpond peer add bob --card 'millpond:...'     the card of bob
  millpond put --to bob chat/1 'hello'        delivered when bob is online

The peers are stored in peers.toml in the data folder, which can be edited by hand. A running node
applies changes within two seconds.
"""
ADD_EPILOG = """\
examples:
  millpond peer add bob --card 'millpond:...'
  millpond peer add bob --key K --address tcp://203.0.113.7:7400 --relay carol

Compare the printed safety words with those that bob sees in `millpond keys show`. If the words
match, nobody is intercepting the connection. An existing entry with the same key is updated.
"""
LS_EPILOG = """\
example:
  millpond peer ls --json
"""
RM_EPILOG = """\
example:
  millpond peer rm bob                        remove the name and the key; see `keys revoke`
"""


def add_parser(subparsers: Any) -> None:
    """Add `peer` to the command line."""
    parser = subparsers.add_parser(
        "peer",
        description="Manage the peers of this node.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    added = add_command(actions, "add", "Add a peer and trust its key.", ADD_EPILOG, _add_peer)
    added.add_argument("name", metavar="NAME", help="name of the peer in the address book")
    add_key_options(added, required=True)
    added.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="URL",
        help="address of the peer: tcp://H:P; repeatable",
    )
    added.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="URL|PEER",
        help="relay of the peer: URL, PEER-ID@URL or a peer's name; repeatable",
    )
    add_command(actions, "ls", "List peers.", LS_EPILOG, _ls)
    removed = add_command(actions, "rm", "Remove a peer.", RM_EPILOG, _rm)
    removed.add_argument("name", metavar="NAME", help="name or id of a peer")
    add_yes(removed)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def relay_texts(book: AddressBook, given: Sequence[str]) -> tuple[str, ...]:
    """Relays as address book and cards have them; a peer name stands for all its addresses.

    Raises UnknownPeer; ValueError for what is no relay.
    """
    texts: list[str] = []
    for text in given:
        if "://" in text:
            texts.append(text)
            continue
        peer = get_peer(book, text)
        if not peer.addresses:
            raise ValueError(f"no address of {peer.name!r} is known")
        texts += [f"{peer.id}@{address}" for address in peer.addresses]
    return checked_relays(texts)


def _add_peer(folder: Path, args: argparse.Namespace) -> None:
    public, card, line = given_key(args)
    assert public is not None
    check_not_own(folder, public)
    book = open_address_book(folder, to_change=True)
    try:
        name = checked_name(args.name)
        addresses = checked_addresses([*args.address, *(card.addresses if card else ())])
        relays = checked_relays([*relay_texts(book, args.relay), *(card.relays if card else ())])
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    new = Peer(name, public, Trust.TRUSTED, addresses, relays, time.time(), line)
    peer = _put_in(book, new)
    print_identity(peer.public, peer, as_json=args.json)


def _put_in(book: AddressBook, new: Peer) -> Peer:
    named, known = book.by_name(new.name), book.by_public(new.public)
    if named is not None and named.public != new.public:
        raise KeyChanged(named, new.public)
    if known is None:
        return book.add(new)
    if known.trust is Trust.REVOKED:
        raise PeerRevoked(known)
    if known.name != new.name and known.trust is Trust.TRUSTED:
        raise DuplicatePeer(f"that is the key of {known.name!r}, a peer already")
    merged = msgspec.structs.replace(
        new,
        addresses=new.addresses or known.addresses,
        relays=new.relays or known.relays,
        added_at=known.added_at,
        card=new.card or known.card,
    )
    return book.replace(known.id, merged)


def _ls(folder: Path, args: argparse.Namespace) -> None:
    peers = sorted(open_address_book(folder).peers, key=lambda each: each.name)
    width = max((len(peer.name) for peer in peers), default=0)
    for peer in peers:
        if args.json:
            print_json(peer_fields(peer))
            continue
        places = [*peer.addresses, *(f"relay={relay}" for relay in peer.relays)]
        print_line(" ".join((f"{peer.name:{width}}  {peer.trust.value:7}  {peer.id} ", *places)))


def _rm(folder: Path, args: argparse.Namespace) -> None:
    book = open_address_book(folder, to_change=True)
    peer = get_peer(book, args.name)
    if is_asked(args):
        confirm(f"Remove the peer {peer.name!r} ({peer.trust.value}, {peer.id})?")
    book.remove(peer.id)
    if args.json:
        print_json(peer_fields(peer))
    say_removed(args, f"peer {peer.name!r} removed ({peer.id})")
