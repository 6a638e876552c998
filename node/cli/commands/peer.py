"""`millpond peer`: the peers in the address book of a node."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from millpond.actors.errors import Malformed
from millpond.node.cli.commands.address_book import (
    add_command,
    add_key_options,
    check_not_own,
    followed_by_card,
    get_peer,
    given_key,
    open_address_book,
    own_delivery_tokens,
    own_public,
    peer_fields,
    print_identity,
)
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import check_owner
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import Parser, add_alias
from millpond.node.cli.reach import warn_of_peer
from millpond.node.cli.removal import add_yes, confirm, is_asked, say_removed
from millpond.node.outbox.own_addresses import reach_of
from millpond.node.peers.address_book import (
    AddressBook,
    Peer,
    Trust,
)
from millpond.node.peers.card import decode_card, local_addresses
from millpond.node.peers.peer import (
    checked_addresses,
    checked_name,
    checked_relays,
    plain_addresses,
)
from millpond.node.peers.peer_store import PeerSummary
from millpond.node.peers.safety_number import BadSafetyNumber, safety_number
from millpond.node.peers.verification_code import OWN_CODE, NotSame, compare

GROUPS_OF_ROW = 4
TIME = "%Y-%m-%d %H:%M UTC"

EPILOG = """\
a first peer:
  millpond keys show                          your id and fingerprint, for bob
  millpond peer add bob --card 'millpond:...'     the card of bob
  millpond peer verify bob                    compare the safety number with bob
  millpond chat bob                           messages arrive when bob is online

The peers are stored in peers.toml in the data folder, which can be edited by hand. A running node
applies changes within two seconds.
"""
ADD_EPILOG = """\
examples:
  millpond peer add bob --card 'millpond:...'
  millpond peer add bob --key K --address tls://203.0.113.7:7400 --relay carol

The key is added as it was given: nothing shows yet that it is bob's. `millpond peer verify bob`
compares the safety number. An existing entry with the same key is updated.
"""
VERIFY_EPILOG = """\
examples:
  millpond peer verify bob                    print the number, then type what bob reads out
  millpond peer verify bob --number '41341 38373 ...'

Both sides see the same 60 digits, and nobody sits between them, if the number comes from the peer
by another way than this: read out by a voice that is known, or shown on a screen. The peer is
marked as verified if the digits match.
"""
RELAY_EPILOG = """\
examples:
  millpond peer relay carol --card 'millpond:...'
  millpond peer relay carol                   a peer of the book becomes a relay
  millpond serve --via carol                  messages for this node are stored there

A relay stores messages for this node and delivers them here. It has none of the rights of contacts,
and contacts are never used as relays.
"""
BLOCK_EPILOG = """\
example:
  millpond peer block bob                     reject this key and send nothing to it
"""
TOKEN_EPILOG = """\
examples:
  millpond peer token                         the delivery tokens that are good now
  millpond peer token rotate                  a new one; old cards work for 30 more days
  millpond peer token rotate --end-old        a new one; old cards work no more, from now on

The contact card has the delivery token of this node. A relay takes messages for this node from
everybody who has it. After a rotation give your new card (`keys show --card`) to your contacts. A
running node tells its relays within seconds, a stopped one when it starts.
"""
LS_EPILOG = """\
example:
  millpond peer ls --json

`version` is that of messages to a contact, `unconfirmed` the number of those without a receipt. A
running node is asked, else the data folder is read. Of an encrypted folder the version is not known
without MILLPOND_PASSPHRASE_FILE.
"""
DISCOVERED_EPILOG = """\
examples:
  millpond peer discovered                    nodes on this network, found by `serve --discover`
  millpond peer discovered --add 2 bob        add the second one of the list as bob

Each node has proved its key, and nothing shows whose node it is: compare the safety number after
`--add` (`millpond peer verify`). The first message to it is a message request there.
"""
SHOW_EPILOG = """\
example:
  millpond peer show bob                      id, fingerprint, trust, addresses and relays
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
    added = add_command(actions, "add", "Add a peer as a contact.", ADD_EPILOG, _add_peer)
    added.add_argument("name", metavar="NAME", help="name of the peer in the address book")
    add_key_options(added, required=True)
    _add_address(added)
    added.add_argument(
        "--relay",
        action="append",
        default=[],
        dest="relays",
        metavar="URL|PEER",
        help="relay of the peer: URL, PEER-ID@URL or the name of a relay; repeatable",
    )
    verified = add_command(
        actions, "verify", "Compare the safety number with a peer.", VERIFY_EPILOG, _verify
    )
    verified.add_argument("name", metavar="NAME", help="name or id of a peer")
    verified.add_argument(
        "--number",
        metavar="DIGITS",
        help="safety number that the peer sees, or its code; without it a terminal is asked",
    )
    relay = add_command(
        actions, "relay", "Add a relay, or make a peer one.", RELAY_EPILOG, _make_relay
    )
    relay.add_argument("name", metavar="NAME", help="name of the relay in the address book")
    add_key_options(relay, required=False)
    _add_address(relay)
    relay.set_defaults(relays=[])
    blocked = add_command(actions, "block", "Block a peer.", BLOCK_EPILOG, _block)
    blocked.add_argument("name", metavar="NAME", help="name or id of a peer")
    token = add_command(
        actions, "token", "Show or replace the delivery token.", TOKEN_EPILOG, _token
    )
    token.add_argument(
        "what",
        choices=("show", "rotate"),
        nargs="?",
        default="show",
        help="show when the tokens end, or replace the current one (default show)",
    )
    token.add_argument(
        "--end-old", action="store_true", help="with rotate: end all old tokens at once"
    )
    listed = add_command(actions, "ls", "List peers.", LS_EPILOG, _ls)
    add_alias(actions, "list", listed)
    found = add_command(
        actions, "discovered", "List nodes on this network.", DISCOVERED_EPILOG, _discovered
    )
    found.add_argument(
        "--add", nargs=2, metavar=("N|ID", "NAME"), help="add one of them as a contact"
    )
    shown = add_command(actions, "show", "Show a peer.", SHOW_EPILOG, _show)
    shown.add_argument("name", metavar="NAME", help="name or id of a peer")
    removed = add_command(actions, "rm", "Remove a peer.", RM_EPILOG, _rm)
    removed.add_argument("name", metavar="NAME", help="name or id of a peer")
    add_yes(removed)


def _show(folder: Path, args: argparse.Namespace) -> None:
    peer = get_peer(open_address_book(folder), args.name)
    print_identity(peer.public, peer, as_json=args.json)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="URL",
        help="address of the peer: tls://H:P; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.work(args)
    return code


def relay_texts(book: AddressBook, given: Sequence[str]) -> tuple[str, ...]:
    """Relays as address book and cards have them; the name of one stands for all its addresses.

    Raises UnknownPeer; ValueError for what is no relay.
    """
    texts: list[str] = []
    for text in given:
        if "://" in text:
            texts.append(text)
            continue
        peer = get_peer(book, text)
        if peer.trust is not Trust.RELAY:
            raise ValueError(
                f"{peer.name!r} is no relay; `millpond peer relay {quote(peer.name)}` makes it one"
            )
        if not peer.addresses:
            raise ValueError(f"no address of {peer.name!r} is known")
        texts += [f"{peer.id}@{address}" for address in peer.addresses]
    return checked_relays(texts)


def _add_peer(folder: Path, args: argparse.Namespace) -> None:
    _store(folder, args, Trust.ADDED)


def _store(folder: Path, args: argparse.Namespace, trust: Trust) -> None:
    public, card, line = given_key(args)
    assert public is not None
    check_not_own(folder, public)
    book = open_address_book(folder, to_change=True)
    try:
        name = checked_name(args.name)
        addresses = checked_addresses([*args.address, *(card.addresses if card else ())])
        relays = checked_relays([*relay_texts(book, args.relays), *(card.relays if card else ())])
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    local = args.allow_local_addresses
    new = Peer(name, public, trust, addresses, relays, time.time(), line, local)
    followed = followed_by_card(book, new, card)
    peer = book.update(new) if followed is None else followed
    print_identity(peer.public, peer, as_json=args.json)
    if peer.is_contact:
        warn_of_peer(reach_of(peer.addresses, peer.relays), peer.name)


def _verify(folder: Path, args: argparse.Namespace) -> None:
    book = open_address_book(folder, to_change=True)
    peer = get_peer(book, args.name)
    number = safety_number(own_public(folder), peer.public)
    if not args.json:
        for row in _rows(number):
            print_line(row)
    given = args.number
    if given is None and not args.json and sys.stdin is not None and sys.stdin.isatty():
        print(f"Number that {peer.name} sees: ", end="", file=sys.stderr, flush=True)
        given = sys.stdin.readline()
    if given is not None and given.strip():
        peer = _compare(book, peer, own_public(folder), given)
    if args.json:
        print_json({**peer_fields(peer), "safety_number": number})
    else:
        print_line(f"{peer.name}: {peer.trust.value}")


def _compare(book: AddressBook, peer: Peer, own: bytes, given: str) -> Peer:
    try:
        compare(own, peer.public, given)
    except BadSafetyNumber as exc:
        raise usage_error(f"{exc}; nothing was changed") from exc
    except NotSame as exc:
        if str(exc) == OWN_CODE:
            raise Failure(f"{OWN_CODE}; nothing was changed") from exc
        raise Failure(
            f"THE NUMBERS DIFFER. Either they are not of {peer.name} and this node, or somebody is"
            f" pretending to be {peer.name}. Nothing was changed."
        ) from exc
    # By its id: another process may have given the name another key meanwhile.
    return book.verify(peer.id)


def _rows(number: str) -> Iterator[str]:
    groups = number.split()
    for start in range(0, len(groups), GROUPS_OF_ROW):
        yield " ".join(groups[start : start + GROUPS_OF_ROW])


def _make_relay(folder: Path, args: argparse.Namespace) -> None:
    if args.key is not None or args.card is not None:
        _store(folder, args, Trust.RELAY)
        return
    if args.address:
        raise usage_error("--address needs --key or --card")
    book = open_address_book(folder, to_change=True)
    peer = book.make_relay(get_peer(book, args.name).id)
    print_identity(peer.public, peer, as_json=args.json)


def _block(folder: Path, args: argparse.Namespace) -> None:
    book = open_address_book(folder, to_change=True)
    peer = book.block(get_peer(book, args.name).id)
    print_identity(peer.public, peer, as_json=args.json)


def _token(folder: Path, args: argparse.Namespace) -> None:
    check_owner(folder)
    if args.end_old and args.what != "rotate":
        raise usage_error("--end-old is for `peer token rotate`")
    own_public(folder)  # a folder without one is of no node
    tokens = own_delivery_tokens(folder)
    if args.what == "rotate":
        tokens.rotate(end_old=args.end_old)
        if not args.json:
            card = "give contacts the new card (millpond keys show --card)"
            print_line(f"the delivery token is replaced: {card}")
    for each in tokens.valid():
        if args.json:
            print_json({"current": each.until is None, "until": each.until})
        elif each.until is None:
            print_line("current token  works until it is replaced")
        else:
            until = time.strftime(TIME, time.gmtime(each.until))
            print_line(f"old token      works until {until}")


def _ls(folder: Path, args: argparse.Namespace) -> None:
    from millpond.node.cli.commands.peer_status import peer_summaries  # the client takes its time

    peers = sorted(open_address_book(folder).peers, key=lambda each: each.name)
    contacts = [each.public for each in peers if each.is_contact]
    summaries = peer_summaries(folder, contacts)
    width = max((len(peer.name) for peer in peers), default=0)
    for peer in peers:
        known = summaries.get(peer.public, PeerSummary())
        version, unconfirmed = known.version, known.unconfirmed
        if args.json:
            print_json(peer_fields(peer) | {"version": version, "unconfirmed": unconfirmed})
            continue
        places = [*peer.addresses, *(f"relay={relay}" for relay in peer.relays)]
        if peer.is_contact:
            shown = "?" if version is None else version
            places = [f"version={shown}", f"unconfirmed={unconfirmed}", *places]
        print_line(" ".join((f"{peer.name:{width}}  {peer.trust.value:8}  {peer.id} ", *places)))
        for url in plain_addresses(peer) if peer.trust is not Trust.BLOCKED else ():
            text = f"{peer.name}: {url} does not say TLS; ask for a new card with tls://"
            print(f"millpond: {text}", file=sys.stderr)


def _discovered(folder: Path, args: argparse.Namespace) -> None:
    from millpond.node.cli.commands.peer_status import discovered_nodes  # the client takes its time

    try:
        nodes = discovered_nodes(folder)
    except Malformed as error:
        raise Failure("the node looks for no others: start it with --discover") from error
    if nodes is None:
        raise Failure("no node runs on this data folder, or its P2P listener does not answer")
    if args.add is not None:
        which, name = args.add
        chosen = [each for number, each in enumerate(nodes, 1) if which in (str(number), each.id)]
        if not chosen:
            raise Failure(f"no found node is {which!r}", ExitCode.NOT_FOUND)
        args.name, args.card, args.key = name, chosen[0].card, None
        args.address, args.relays = [], []
        args.allow_local_addresses = bool(local_addresses(decode_card(chosen[0].card)))
        _store(folder, args, Trust.ADDED)
        return
    for number, each in enumerate(nodes, 1):
        if args.json:
            print_json(msgspec.to_builtins(each) | {"number": number})
        else:
            print_line(f"{number}  {each.name or 'unverified'}  {each.id}  {each.address}")
    if not nodes and not args.json:
        print_line("no other node was found on this network yet")


def _rm(folder: Path, args: argparse.Namespace) -> None:
    book = open_address_book(folder, to_change=True)
    peer = get_peer(book, args.name)
    if is_asked(args):
        confirm(f"Remove the peer {peer.name!r} ({peer.trust.value}, {peer.id})?")
    book.remove(peer.id)
    if args.json:
        print_json(peer_fields(peer))
    say_removed(args, f"peer {peer.name!r} removed ({peer.id})")
