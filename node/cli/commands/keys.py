"""`millpond keys`: the identity of a node, and trust in the keys of peers."""

from __future__ import annotations

import argparse
import os
import time
from importlib import import_module
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
    own_identity,
    peer_fields,
    print_identity,
)
from millpond.node.cli.commands.peer import relay_texts
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.data_folder import check_owner
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser
from millpond.node.peers.address_book import Trust
from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.fingerprint import fingerprint
from millpond.node.peers.identity import FILE_NAME, create_identity
from millpond.node.peers.peer import checked_addresses
from millpond.node.peers.prekeys import Prekeys

MORE = ("millpond.node.cli.commands.keys_cert",)
"""Modules that have further commands of this family, each with `add_action(actions)`."""

PREKEYS_FOLDER = "prekeys"

EPILOG = """\
two people exchange keys:
  millpond keys show                              both read their safety words to each other
  millpond keys show --card --address tcp://alice.example:7400       alice sends this line to bob
  millpond peer add alice --card 'millpond:...'                      bob adds alice
  millpond keys show alice                        bob compares the words of alice

`serve` creates an identity if there is none. A running node applies changes within two seconds.
"""
NEW_EPILOG = """\
example:
  millpond keys new --data /srv/millpond      an existing identity is never replaced
"""
SHOW_EPILOG = """\
examples:
  millpond keys show                          id, fingerprint and safety words of this node
  millpond keys show bob                      those of a peer
  millpond keys show --card --address tcp://203.0.113.7:7400 --relay carol
"""
TRUST_EPILOG = """\
examples:
  millpond keys trust bob                     after bob has confirmed the printed words
  millpond keys trust bob --key K --replace   replace the key of bob and revoke the old one
"""
LIST_EPILOG = """\
example:
  millpond keys list                          all peers with the trust in their keys
"""
REVOKE_EPILOG = """\
example:
  millpond keys revoke bob                    reject this key and send nothing to it
"""


def add_parser(subparsers: Any) -> None:
    """Add `keys` to the command line."""
    parser = subparsers.add_parser(
        "keys",
        description="Manage the identity of this node and the keys of peers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    add_command(actions, "new", "Create the identity of this node.", NEW_EPILOG, _new)
    shown = add_command(actions, "show", "Show an identity or a contact card.", SHOW_EPILOG, _show)
    shown.add_argument("peer", metavar="PEER", nargs="?", help="name or id of a peer")
    shown.add_argument(
        "--card", action="store_true", help="print the contact card of this node: one line of text"
    )
    shown.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="URL",
        help="address in the card; repeatable",
    )
    shown.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="URL|PEER",
        help="relay in the card; repeatable",
    )
    trusted = add_command(actions, "trust", "Trust the key of a peer.", TRUST_EPILOG, _trust)
    trusted.add_argument("peer", metavar="PEER", help="name or id of a peer")
    add_key_options(trusted, required=False)
    trusted.add_argument("--replace", action="store_true", help="accept a changed or revoked key")
    add_command(actions, "list", "List all keys.", LIST_EPILOG, _list)
    revoked = add_command(actions, "revoke", "Revoke a key.", REVOKE_EPILOG, _revoke)
    revoked.add_argument("peer", metavar="PEER", help="name or id of a peer")
    for module in MORE:
        import_module(module).add_action(actions)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def _new(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    identity = create_identity(folder / FILE_NAME, os.urandom)
    print_identity(identity.public, None, as_json=args.json)


def _show(folder: Path, args: argparse.Namespace) -> None:
    if args.card:
        if args.peer is not None:
            raise usage_error("only the owner can make a card: ask the peer for it")
        _show_card(folder, args)
        return
    if args.address or args.relay:
        raise usage_error("--address and --relay need --card")
    if args.peer is not None:
        peer = get_peer(open_address_book(folder), args.peer)
        print_identity(peer.public, peer, as_json=args.json)
    else:
        print_identity(own_identity(folder).public, None, as_json=args.json)


def _show_card(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    identity = own_identity(folder)
    try:
        addresses = checked_addresses(args.address)
        relays = relay_texts(open_address_book(folder), args.relay)
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    prekeys = Prekeys(folder / PREKEYS_FOLDER, identity, time.time, os.urandom)
    card = ContactCard(identity.public, addresses, relays, prekeys.current(), time.time())
    line = encode_card(card, identity)
    if args.json:
        print_json({"card": line})
    else:
        print_line(line)


def _trust(folder: Path, args: argparse.Namespace) -> None:
    public, card, line = given_key(args)
    check_not_own(folder, public)
    book = open_address_book(folder, to_change=True)
    get_peer(book, args.peer)
    peer = book.trust(args.peer, public, replace=args.replace)
    if card is not None:
        addresses, relays = card.addresses or peer.addresses, card.relays or peer.relays
        told = msgspec.structs.replace(peer, addresses=addresses, relays=relays, card=line)
        peer = book.replace(peer.id, told)
    print_identity(peer.public, peer, as_json=args.json)


def _list(folder: Path, args: argparse.Namespace) -> None:
    peers = sorted(open_address_book(folder).peers, key=lambda each: each.name)
    if args.json:
        for peer in peers:
            print_json(peer_fields(peer))
        return
    width = max((len(peer.name) for peer in peers), default=0)
    trust_width = max(len(each.value) for each in Trust)
    for peer in peers:
        trust = f"{peer.trust.value:{trust_width}}"
        print_line(f"{peer.name:{width}}  {trust}  {peer.id}  {fingerprint(peer.public)}")


def _revoke(folder: Path, args: argparse.Namespace) -> None:
    book = open_address_book(folder, to_change=True)
    peer = book.revoke(get_peer(book, args.peer).id)
    print_identity(peer.public, peer, as_json=args.json)
