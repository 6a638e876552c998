"""`millpond keys`: the identity of a node, and trust in the keys of peers."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from millpond.node.cli.commands.address_book import (
    add_command,
    add_key_options,
    check_not_own,
    data_key,
    followed_by_card,
    get_peer,
    given_key,
    open_address_book,
    own_delivery_tokens,
    own_identity,
    own_public,
    passphrase_file,
    peer_fields,
    print_identity,
)
from millpond.node.cli.commands.peer import relay_texts
from millpond.node.cli.exit_codes import usage_error
from millpond.node.cli.options.data_folder import check_owner
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser, add_alias
from millpond.node.cli.reach import CARD_REACH, warn
from millpond.node.client.url import parse_url, pinned
from millpond.node.data_folder import FolderLock, has_no_secrets
from millpond.node.outbox.own_addresses import reach_of
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.data_key import open_or_begin
from millpond.node.peers.fingerprint import fingerprint
from millpond.node.peers.identity import FILE_NAME, create_identity, peer_id
from millpond.node.peers.peer import checked_addresses
from millpond.node.peers.prekeys import Prekeys
from millpond.node.peers.succession import read_successions, rotate_identity

MORE = (
    "millpond.node.cli.commands.keys_cert",
    "millpond.node.cli.commands.keys_passphrase",
    "millpond.node.cli.commands.keys_tls",
)
"""Modules that have further commands of this family, each with `add_action(actions)`."""

PREKEYS_FOLDER = "prekeys"

EPILOG = """\
two people exchange keys:
  millpond keys show --card --address tls://alice.example:7400       alice sends this line to bob
  millpond peer add alice --card 'millpond:...'                      bob adds alice
  millpond peer verify alice                      both see the same safety number

`serve` creates an identity if there is none. A running node applies changes within two seconds.
"""
NEW_EPILOG = """\
example:
  millpond keys new --data /srv/millpond      an existing identity is never replaced

With MILLPOND_PASSPHRASE_FILE a new folder is encrypted from the start.
"""
ROTATE_EPILOG = """\
examples:
  millpond keys rotate                        a new key, signed by the old one; the node is stopped
  millpond keys show --card                   the new card, which proves it to contacts

Contacts and relays that add the new card see that the old key has signed the new one, and follow
it; the peer is no longer verified. Everybody else sees another key. The old key is destroyed, and
what was sealed for it cannot be opened any more. Rotate a key before it is lost: somebody who has
stolen it can sign a key of their own, so after a theft tell your contacts to block it.
"""
SHOW_EPILOG = """\
examples:
  millpond keys show                          id and fingerprint of this node
  millpond keys show bob                      those of a peer
  millpond keys show --card --address tls://203.0.113.7:7400 --relay carol
"""
TRUST_EPILOG = """\
examples:
  millpond keys trust bob                     a pinned key becomes that of a contact
  millpond keys trust bob --key K --replace   replace the key of bob and block the old one
"""
LIST_EPILOG = """\
example:
  millpond keys ls                          all peers with the trust in their keys
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
    summary = "Replace the identity of this node."
    add_command(actions, "rotate", summary, ROTATE_EPILOG, _rotate, may_run=False)
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
    trusted = add_command(actions, "trust", "Accept the key of a peer.", TRUST_EPILOG, _trust)
    trusted.add_argument("peer", metavar="PEER", help="name or id of a peer")
    add_key_options(trusted, required=False)
    trusted.add_argument("--replace", action="store_true", help="accept a changed or blocked key")
    add_alias(actions, "list", add_command(actions, "ls", "List all keys.", LIST_EPILOG, _list))
    revoked = add_command(
        actions, "revoke", "Block a key, as `peer block`.", REVOKE_EPILOG, _revoke
    )
    revoked.add_argument("peer", metavar="PEER", help="name or id of a peer")
    for module in MORE:
        import_module(module).add_action(actions)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def _new(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    key = open_or_begin(folder, passphrase_file(), os.urandom, has_no_secrets)
    identity = create_identity(folder / FILE_NAME, os.urandom, key)
    print_identity(identity.public, None, as_json=args.json)


def _rotate(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    old = own_public(folder)
    key = data_key(folder)
    lock = FolderLock(folder)
    try:
        identity = rotate_identity(folder, time.time(), os.urandom, key)
        # They were signed by the old key, and nothing is sealed for them any more.
        shutil.rmtree(folder / PREKEYS_FOLDER, ignore_errors=True)
    finally:
        lock.release()
    if not args.json:
        print_line(f"{peer_id(old)} is replaced; give your new card to all contacts and relays:")
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
        print_identity(own_public(folder), None, as_json=args.json)


def _show_card(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    key = data_key(folder)
    identity = own_identity(folder, key)
    try:
        addresses = checked_addresses(_pinned(folder, args.address))
        relays = relay_texts(open_address_book(folder), args.relay)
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    prekeys = Prekeys(folder / PREKEYS_FOLDER, identity, time.time, os.urandom, key=key)
    successions = read_successions(folder, identity.public)
    prekey, now = prekeys.current(), time.time()
    token = own_delivery_tokens(folder).current()
    card = ContactCard(identity.public, addresses, relays, prekey, now, successions, token)
    line = encode_card(card, identity)
    warn(CARD_REACH.get(reach_of(addresses, relays)))
    if args.json:
        print_json({"card": line})
    else:
        print_line(line)


def _pinned(folder: Path, urls: Sequence[str]) -> list[str]:
    """The addresses, those with TLS with the pin of the key that the node shows."""
    if not any(parse_url(url).secure for url in urls):
        return list(urls)
    from millpond.node.tls.own_certificate import shown_key_hash

    key_hash = shown_key_hash(folder)
    if key_hash is None:
        text = "the card has no pin: no certificate of the node's own (start it, or see `keys tls`)"
        print(f"millpond: {text}", file=sys.stderr)
    return [pinned(url, key_hash) for url in urls]


def _trust(folder: Path, args: argparse.Namespace) -> None:
    public, card, line = given_key(args)
    check_not_own(folder, public)
    book = open_address_book(folder, to_change=True)
    known, local = get_peer(book, args.peer), args.allow_local_addresses
    if card is not None:
        addresses, relays = card.addresses, card.relays
        now = time.time()
        new = Peer(known.name, card.public, known.trust, addresses, relays, now, line, local)
        followed = followed_by_card(book, new, card)
        if followed is not None:
            print_identity(followed.public, followed, as_json=args.json)
            return
    peer = book.accept(args.peer, public, replace=args.replace)
    if card is not None:
        addresses, relays = card.addresses or peer.addresses, card.relays or peer.relays
        changed = msgspec.structs.replace(
            peer, addresses=addresses, relays=relays, card=line, allows_local=local
        )
        peer = book.update(changed)
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
    peer = book.block(get_peer(book, args.peer).id)
    print_identity(peer.public, peer, as_json=args.json)
