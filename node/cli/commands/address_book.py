"""Common parts of `keys` and `peer`: data folder, output of peers, errors."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import (
    DATA_DEFAULT,
    check_owner,
    data_folder,
    explain_folder,
)
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action
from millpond.node.data_folder import FolderInUse
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import (
    AddressBook,
    AddressBookError,
    BadPeer,
    KeyChanged,
    Peer,
    PeerBlocked,
    PeerNotFound,
)
from millpond.node.peers.address_book_file import BookBusy
from millpond.node.peers.card import BadCard, ContactCard, decode_card, local_addresses
from millpond.node.peers.data_key import DataKey, DataKeyError, open_folder
from millpond.node.peers.delivery_token import FILE_NAME as TOKENS_FILE
from millpond.node.peers.delivery_token import DeliveryTokens
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.peers.identity import (
    BadPeerId,
    Identity,
    IdentityError,
    NoIdentity,
    load_identity,
    load_public,
    peer_id,
    public_key_of,
)
from millpond.node.peers.peer_store import PeerStoreError

Work = Callable[[Path, argparse.Namespace], None]
"""The work of a command on the data folder."""


def add_command(
    actions: Any, name: str, summary: str, epilog: str, work: Work, *, may_run: bool = True
) -> argparse.ArgumentParser:
    """Add a command for the data folder, with `--data`, `--json` and its errors. `may_run`: the
    node may be running."""
    parser = action(actions, name, summary, epilog)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        default=os.environ.get("MILLPOND_DATA") or None,
        help=f"the node's data folder (MILLPOND_DATA; default {DATA_DEFAULT}); "
        + ("it may be running" if may_run else "the node is stopped"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(work=partial(_run, work))
    return parser


def add_key_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add `--key` and `--card`."""
    given = parser.add_mutually_exclusive_group(required=required)
    given.add_argument("--key", metavar="K", help="public key: an id from `keys show`")
    given.add_argument(
        "--card",
        metavar="CARD",
        help="contact card from `keys show --card`; -: read stdin",
    )
    parser.add_argument(
        "--allow-local-addresses",
        action="store_true",
        help="accept addresses and names that lead to this machine or link, such as 127.0.0.1",
    )


def own_identity(folder: Path, key: DataKey | None) -> Identity:
    """The identity in a data folder. `key`: its data key, if it has one."""
    return load_identity(folder / IDENTITY_FILE, key)


def own_public(folder: Path) -> bytes:
    """The public key of the identity in a data folder, which needs no passphrase."""
    return load_public(folder / IDENTITY_FILE)


def data_key(folder: Path) -> DataKey | None:
    """The data key of a folder whose keys are encrypted; its passphrase is in the file that
    MILLPOND_PASSPHRASE_FILE names. Raises DataKeyError."""
    return open_folder(folder, passphrase_file())


def passphrase_file() -> str | None:
    """The passphrase file of the environment."""
    return os.environ.get("MILLPOND_PASSPHRASE_FILE") or None


def own_delivery_tokens(folder: Path) -> DeliveryTokens:
    """The delivery tokens in a data folder."""
    return DeliveryTokens(folder / TOKENS_FILE, time.time, os.urandom)


def check_not_own(folder: Path, public: bytes | None) -> None:
    """Check that a key is not that of the node itself. Raises Failure."""
    try:
        own = own_public(folder)
    except NoIdentity:
        return
    if public == own:
        raise usage_error("this is the key of this node")


def open_address_book(folder: Path, *, to_change: bool = False) -> AddressBook:
    """The address book in a data folder. Raises Failure without write access."""
    if to_change:
        check_owner(folder)
    return AddressBook(folder / BOOK_FILE, time.time)


def get_peer(book: AddressBook, text: str) -> Peer:
    """The peer of this name or id. Raises PeerNotFound."""
    peer = book.resolve(text)
    if peer is None:
        raise PeerNotFound(f"there is no peer {text!r}; `millpond peer ls` lists them")
    return peer


def given_key(args: argparse.Namespace) -> tuple[bytes | None, ContactCard | None, str]:
    """The key of `--key` or `--card`, and the card with its line."""
    if args.key is not None:
        return public_key_of(args.key), None, ""
    if args.card is None:
        return None, None, ""
    line = "".join((sys.stdin.read() if args.card == "-" else args.card).split())
    card = decode_card(line)
    local = () if args.allow_local_addresses else local_addresses(card)
    if local:
        raise usage_error(
            f"the card has addresses of this machine or link ({', '.join(local)}), where another"
            " node cannot be; for nodes on one machine use --allow-local-addresses"
        )
    return card.public, card, line


def followed_by_card(book: AddressBook, new: Peer, card: ContactCard | None) -> Peer | None:
    """The peer whose new key a card shows, signed by the known one; None: it shows none.

    The book follows it, and stderr says so.
    """
    earlier = [] if card is None else card.predecessors
    old = book.predecessor(new.public, earlier)
    if old is None:
        return None
    peer = book.follow(earlier, new)
    print(
        f"{peer.name} has a new key, which the old one ({old.id}) has signed. It is not verified:"
        f" millpond peer verify {quote(peer.name)}",
        file=sys.stderr,
    )
    return peer


def print_identity(public: bytes, peer: Peer | None, *, as_json: bool) -> None:
    """Print the identity of this node (without `peer`) or of a peer."""
    if as_json:
        print_json(identity_fields(public) if peer is None else peer_fields(peer))
        return
    if peer is not None:
        print_line(f"{peer.name}: {peer.trust.value}")
    for line in _identity_lines(public):
        print_line(line)
    if peer is not None:
        for address in peer.addresses:
            print_line(f"address      {address}")
        for relay in peer.relays:
            print_line(f"relay        {relay}")


def identity_fields(public: bytes) -> dict[str, object]:
    """An identity in JSON."""
    return {
        "id": peer_id(public),
        "fingerprint": fingerprint(public),
        "words": fingerprint_words(public),
    }


def peer_fields(peer: Peer) -> dict[str, object]:
    """A peer in JSON."""
    return {
        "name": peer.name,
        "trust": peer.trust.value,
        **identity_fields(peer.public),
        "addresses": list(peer.addresses),
        "relays": list(peer.relays),
        "added_at": peer.added_at,
    }


def key_changed_text(error: KeyChanged) -> str:
    """The warning about a changed key."""
    name = error.peer.name
    where = f" at {error.address}" if error.address else ""
    return "\n".join(
        (
            f"THE KEY OF {name!r}{where} HAS CHANGED.",
            f"Either {name} has a new key, or somebody is pretending to be {name}.",
            "known until now:",
            *(f"  {line}" for line in _identity_lines(error.peer.public)),
            "shown now:",
            *(f"  {line}" for line in _identity_lines(error.public)),
            "Nothing was changed. Compare the fingerprints by another way; if the new one",
            f"is right: millpond keys trust {quote(name)} --key {peer_id(error.public)} --replace",
        )
    )


def _run(work: Work, args: argparse.Namespace) -> int:
    folder = Path(args.data or data_folder(os.environ))
    with _explained(folder):
        work(folder, args)
    return ExitCode.OK


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyChanged as exc:
        raise Failure(key_changed_text(exc)) from exc
    except PeerBlocked as exc:
        text = f"{exc}; to accept it again: millpond keys trust {quote(exc.peer.name)} --replace"
        raise Failure(text) from exc
    except (PeerNotFound, NoIdentity) as exc:
        raise Failure(str(exc), ExitCode.NOT_FOUND) from exc
    except (BadPeer, BadCard, BadPeerId, DataKeyError) as exc:
        raise usage_error(str(exc)) from exc
    except (
        AddressBookError,
        IdentityError,
        DeliveryTokenError,
        PeerStoreError,
        BookBusy,
        FolderInUse,
    ) as exc:
        raise Failure(str(exc)) from exc
    except OSError as exc:
        raise explain_folder(exc, folder) or exc from exc


def _identity_lines(public: bytes) -> list[str]:
    return [
        f"id           {peer_id(public)}",
        f"fingerprint  {fingerprint(public)}",
        f"words        {fingerprint_words(public)}",
    ]
