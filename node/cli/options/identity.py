"""The options `--identity` and `--peer`: authentication of both ends of a connection."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from millpond.node.cli.exit_codes import Failure, usage_error

if TYPE_CHECKING:
    from millpond.node.client.errors import PeerMismatch
    from millpond.node.peers.address_book import AddressBook
    from millpond.transports.p2p.handshake import Signer


class IdentityOptions(NamedTuple):
    """Arguments for `millpond.node.client.connect.connect`."""

    identity: Signer | None = None
    peer: bytes | None = None
    on_peer: Callable[[bytes], None] | None = None


def add_identity_options(parser: argparse.ArgumentParser) -> None:
    """Add `--identity` and `--peer`."""
    parser.add_argument(
        "--identity",
        metavar="PATH",
        help="authenticate with this identity key: a file, or a data folder (or MILLPOND_IDENTITY)",
    )
    parser.add_argument(
        "--peer",
        metavar="PEER",
        help="expected peer: an id, or a name in the address book of that data folder;"
        " without it the key of an unknown node is pinned",
    )


def identity_options(args: argparse.Namespace, notify: Callable[[str], None]) -> IdentityOptions:
    """The identity and the expected peer of a command.

    `notify` gets a line about a node whose key is not confirmed. Raises Failure for unusable files
    and peers.
    """
    if not args.identity:
        if args.peer is not None:
            raise usage_error(
                "--peer needs --identity: a node authenticates only to clients that do"
            )
        return IdentityOptions()
    from pathlib import Path

    from millpond.node.cli.commands.address_book import open_address_book
    from millpond.node.peers.data_key import DataKeyError, open_folder
    from millpond.node.peers.errors import AddressBookError
    from millpond.node.peers.identity import FILE_NAME, IdentityError, load_identity

    path = Path(args.identity)
    folder = path if path.is_dir() else None
    try:
        file = path if folder is None else folder / FILE_NAME
        key = open_folder(file.parent, os.environ.get("MILLPOND_PASSPHRASE_FILE"))
        identity = load_identity(file, key)
    except (IdentityError, DataKeyError) as exc:
        raise usage_error(f"--identity: {exc}") from exc
    try:
        book = None if folder is None else open_address_book(folder, to_change=args.peer is None)
    except AddressBookError as exc:
        raise Failure(str(exc)) from exc
    expected = None if args.peer is None else _key_of(args.peer, book)
    return IdentityOptions(identity, expected, _PeerCheck(args.connect, expected, book, notify))


def explain_mismatch(error: PeerMismatch, where: str) -> Failure:
    """The failure for a node with another key than expected."""
    import shlex

    from millpond.node.cli.commands.address_book import key_changed_text
    from millpond.node.client.errors import SelfConnection
    from millpond.node.peers.errors import KeyChanged, PeerBlocked

    match error.__cause__:
        case KeyChanged() as changed:
            return Failure(key_changed_text(changed))
        case PeerBlocked(peer=peer):
            again = f"millpond keys trust {shlex.quote(peer.name)} --replace"
            return Failure(f"{where}: {error}; to accept it again: {again}")
        case _:
            pass
    if isinstance(error, SelfConnection):
        return Failure(f"{where}: the node has this identity itself; remove --identity")
    return Failure(f"{where}: {error}")


def _key_of(text: str, book: AddressBook | None) -> bytes:
    from millpond.node.peers.identity import public_key_of
    from millpond.node.peers.peer import is_peer_id

    if is_peer_id(text):
        return public_key_of(text)
    if book is None:
        raise usage_error(
            f"--peer: {text!r} is not a peer id; names need an --identity with a data folder"
        )
    peer = book.by_name(text)
    if peer is None:
        raise usage_error(f"--peer: there is no peer {text!r}; `millpond peer ls` lists them")
    return peer.public


class _PeerCheck:
    """The check of the key that a node has proved, on every connection."""

    def __init__(
        self,
        url: str,
        expected: bytes | None,
        book: AddressBook | None,
        notify: Callable[[str], None],
    ) -> None:
        self._url = url
        self._expected = expected
        self._book = book
        self._on_notice = notify
        self._has_notified = False

    def __call__(self, public: bytes) -> None:
        from millpond.node.client.errors import PeerMismatch
        from millpond.node.peers.address_book_file import BookBusy

        try:
            self._check(public)
        except BookBusy as exc:
            raise PeerMismatch(str(exc), public) from exc

    def _check(self, public: bytes) -> None:
        from millpond.node.peers.errors import PeerBlocked
        from millpond.node.peers.identity import peer_id
        from millpond.node.peers.peer import Trust

        if self._book is None:
            if self._expected is None:
                self._notify(f"the node is {peer_id(public)}; --peer makes sure of that")
        elif self._expected is None:
            pinned = self._book.pin(public, self._url)
            if pinned.is_new:
                name = pinned.peer.name
                self._notify(f"the node is {peer_id(public)}, not seen before: pinned as {name!r}")
        else:
            peer = self._book.by_public(public)
            if peer is not None and peer.trust is Trust.BLOCKED:
                raise PeerBlocked(peer)

    def _notify(self, text: str) -> None:
        if not self._has_notified:
            self._has_notified = True
            self._on_notice(text)
