"""`millpond keys`: a node's own identity, and which keys of others are trusted."""

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
    found,
    given_key,
    not_own,
    opened,
    own_identity,
    peer_object,
    show,
)
from millpond.node.cli.commands.peer import relay_texts
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.data_folder import as_owner
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
how two people get to know each other:
  millpond keys show                              on each side; read the words to each other
  millpond keys show --card --address tcp://alice.example:7400       a line to send to bob
  millpond peer add alice --card 'millpond:...'                      what bob does with it
  millpond keys show alice                        the words that alice must have read to him

`serve` makes an identity if there is none. A running node notices a change within a second or two.
"""
NEW_EPILOG = """\
example:
  millpond keys new --data /srv/millpond      an identity that is there is never replaced
"""
SHOW_EPILOG = """\
examples:
  millpond keys show                          this node's id, fingerprint and words
  millpond keys show bob                      a peer's
  millpond keys show --card --address tcp://203.0.113.7:7400 --relay carol
"""
TRUST_EPILOG = """\
examples:
  millpond keys trust bob                     the words that it prints are those bob has read out
  millpond keys trust bob --key K --replace   bob has a new key; the old one is revoked
"""
LIST_EPILOG = """\
example:
  millpond keys list                          everybody's key by name, with how far it is trusted
"""
REVOKE_EPILOG = """\
example:
  millpond keys revoke bob                    nothing is taken from this key, or sent to it
"""


def add_parser(subparsers: Any) -> None:
    """Add `keys` to the command line."""
    parser = subparsers.add_parser(
        "keys",
        description="The identity of a node, and which keys of others are trusted.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    add_command(actions, "new", "Make this node's identity.", NEW_EPILOG, _new)
    shown = add_command(
        actions, "show", "Show an identity, or a card to give away.", SHOW_EPILOG, _show
    )
    shown.add_argument("peer", metavar="PEER", nargs="?", help="a peer's name or id")
    shown.add_argument("--card", action="store_true", help="one line to be written to by")
    shown.add_argument("--address", action="append", default=[], metavar="URL", help="for --card")
    shown.add_argument("--relay", action="append", default=[], metavar="URL|PEER", help="likewise")
    trusted = add_command(actions, "trust", "Confirm that a key is a peer's.", TRUST_EPILOG, _trust)
    trusted.add_argument("peer", metavar="PEER", help="a name or id")
    add_key_options(trusted, required=False)
    trusted.add_argument(
        "--replace", action="store_true", help="another key than the known one, or a revoked one"
    )
    add_command(actions, "list", "List all keys.", LIST_EPILOG, _list)
    revoked = add_command(actions, "revoke", "Trust a key no more.", REVOKE_EPILOG, _revoke)
    revoked.add_argument("peer", metavar="PEER", help="a name or id")
    for module in MORE:
        import_module(module).add_action(actions)


def run(args: argparse.Namespace) -> int:
    """Do the one thing."""
    code: int = args.work(args)
    return code


def _new(folder: Path, args: argparse.Namespace) -> None:
    as_owner(folder)
    identity = create_identity(folder / FILE_NAME, os.urandom)
    show(identity.public, None, as_json=args.json)


def _show(folder: Path, args: argparse.Namespace) -> None:
    if args.card:
        if args.peer is not None:
            raise usage_error("a card is signed by its owner: ask the peer for it")
        _show_card(folder, args)
        return
    if args.address or args.relay:
        raise usage_error("--address and --relay are for --card")
    if args.peer is not None:
        peer = found(opened(folder), args.peer)
        show(peer.public, peer, as_json=args.json)
    else:
        show(own_identity(folder).public, None, as_json=args.json)


def _show_card(folder: Path, args: argparse.Namespace) -> None:
    as_owner(folder)
    identity = own_identity(folder)
    try:
        addresses = checked_addresses(args.address)
        relays = relay_texts(opened(folder), args.relay)
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
    not_own(folder, public)
    book = opened(folder, to_change=True)
    found(book, args.peer)
    peer = book.trust(args.peer, public, replace=args.replace)
    if card is not None:
        addresses, relays = card.addresses or peer.addresses, card.relays or peer.relays
        told = msgspec.structs.replace(peer, addresses=addresses, relays=relays, card=line)
        peer = book.replace(peer.id, told)
    show(peer.public, peer, as_json=args.json)


def _list(folder: Path, args: argparse.Namespace) -> None:
    peers = sorted(opened(folder).peers, key=lambda each: each.name)
    if args.json:
        for peer in peers:
            print_json(peer_object(peer))
        return
    width = max((len(peer.name) for peer in peers), default=0)
    trust_width = max(len(each.value) for each in Trust)
    for peer in peers:
        trust = f"{peer.trust.value:{trust_width}}"
        print_line(f"{peer.name:{width}}  {trust}  {peer.id}  {fingerprint(peer.public)}")


def _revoke(folder: Path, args: argparse.Namespace) -> None:
    book = opened(folder, to_change=True)
    peer = book.revoke(found(book, args.peer).id)
    show(peer.public, peer, as_json=args.json)
