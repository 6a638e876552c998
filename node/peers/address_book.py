"""Who is known: peers by name and key, in `peers.toml` of the data folder.

People read the file and may edit it; a program that holds the book notices (`AddressBook.reload`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from millpond.node.atomic_files import UnsafeFile
from millpond.node.peers.address_book_file import AddressBookFile, InMemoryFile, Stamp
from millpond.node.peers.address_book_toml import format_address_book, parse_address_book
from millpond.node.peers.errors import (
    AddressBookError,
    BadPeer,
    BookFull,
    BookUnreadable,
    DuplicatePeer,
    KeyChanged,
    PeerRevoked,
    UnknownPeer,
)
from millpond.node.peers.identity import public_key_of
from millpond.node.peers.known_peers import Known, found, met_at, rekeyed
from millpond.node.peers.peer import (
    NAME_CHARS_MAX,
    Peer,
    Trust,
    checked,
    checked_addresses,
    endpoint,
    is_peer_id,
)

log = logging.getLogger(__name__)

FILE_NAME = "peers.toml"
LOOK_EVERY_S = 1.0

__all__ = [
    "AddressBook",
    "AddressBookError",
    "BadPeer",
    "BookFull",
    "BookUnreadable",
    "DuplicatePeer",
    "KeyChanged",
    "Peer",
    "PeerRevoked",
    "Pinned",
    "Trust",
    "UnknownPeer",
]


class Pinned(msgspec.Struct, frozen=True):
    """Whom we met, and whether for the first time."""

    peer: Peer
    is_new: bool


class _Seen(msgspec.Struct, frozen=True):
    """The file when it was looked at last. One object, for several threads look at once: whose
    reading came late is found by its stamp, and nothing is taken for newer than it is."""

    stamp: Stamp | None
    known: Known
    is_readable: bool


class AddressBook:
    """The peers, in a file or (without `path`) in memory alone.

    Questions look at the file's stamp at most once a second and read it again if it changed; a file
    that has become unreadable is logged, and the peers stay as they were. Changes read, write and
    sync the file under a lock; they raise BookUnreadable, `peer_file.BookBusy` and OSError besides
    what they name. Any thread may call. Reading takes 0.15 ms for each peer, so a loop does well to
    have `reload` run in a worker thread every half a second, and a change as well.
    """

    def __init__(self, path: Path | None = None, now: Callable[[], float] = time.time) -> None:
        """Raises BookUnreadable."""
        self._path = path
        self._file = InMemoryFile() if path is None else AddressBookFile(path)
        self._now = now
        self._seen = _Seen(None, Known(), is_readable=False)
        self._looked_at = now()
        self._callbacks: list[Callable[[], None]] = []
        self._read()

    @property
    def peers(self) -> Iterator[Peer]:
        """All of them, in the order in which they came."""
        return iter(self._current().by_name.values())

    def __len__(self) -> int:
        return len(self._current().by_name)

    def by_name(self, name: str) -> Peer | None:
        """The peer of this name, in any Unicode spelling of it."""
        return self._current().named(name)

    def by_public(self, public: bytes) -> Peer | None:
        """The peer who has this key, trusted or not."""
        return self._current().by_public.get(public)

    def resolve(self, text: str) -> Peer | None:
        """The peer that somebody means who writes a name or a peer id."""
        return self.by_public(public_key_of(text)) if is_peer_id(text) else self.by_name(text)

    def is_trusted(self, public: bytes) -> bool:
        """May it do what trusted peers may? Not when it is pinned only."""
        peer = self._current().by_public.get(public)
        return peer is not None and peer.trust is Trust.TRUSTED

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this after each change, whoever made it, in the thread that made or noticed it."""
        self._callbacks.append(callback)

    def reload(self) -> bool:
        """Read the file if it changed; did it? Raises BookUnreadable, and goes on with the old."""
        self._looked_at = self._now()
        if self._look() == self._seen.stamp:
            return False
        self._read()
        self._tell()
        return True

    def add(self, peer: Peer) -> Peer:
        """Raises BadPeer, DuplicatePeer, BookFull."""
        new = _checked(peer)
        self._change(lambda known: [*known.without(), new])
        return new

    def replace(self, who: str, peer: Peer) -> Peer:
        """Put `peer` where `who` (name or id) is. Raises UnknownPeer and what `add` does.

        It takes no revocation back, which somebody else may have made just now: PeerRevoked.
        """
        new = _checked(peer)

        def edited(known: Known) -> list[Peer]:
            old = found(known, who)
            if old.trust is Trust.REVOKED and new.trust is not Trust.REVOKED:
                raise PeerRevoked(old)
            return known.with_instead(old, new)

        self._change(edited)
        return new

    def remove(self, who: str) -> None:
        """Forget this name or key, and that it was revoked if it was. Raises UnknownPeer."""
        self._change(lambda known: known.without(found(known, who)))

    def revoke(self, who: str) -> Peer:
        """Take no more from this key, ever; it stays in the book to be known by. UnknownPeer."""
        public = b""

        def edited(known: Known) -> list[Peer]:
            nonlocal public
            old = found(known, who)
            public = old.public
            return known.with_instead(old, msgspec.structs.replace(old, trust=Trust.REVOKED))

        return self._change(edited).by_public[public]

    def trust(self, who: str, public: bytes | None = None, *, replace: bool = False) -> Peer:
        """Somebody confirmed that the peer named `who` has the key it has, or this other one.

        Only with `replace` another key is taken, or one that was revoked: else KeyChanged or
        PeerRevoked. The old key stays in the book, revoked, under a name made of the old one.
        Raises KeyChanged also when the name has got another key since the book was read;
        UnknownPeer, BadPeer, DuplicatePeer, BookFull.
        """
        seen = found(self._current(), who)
        wanted = seen.public if public is None else public
        if wanted != seen.public and not replace:
            raise KeyChanged(seen, wanted)

        def edited(known: Known) -> list[Peer]:
            old = found(known, who)
            if old.public != seen.public:  # nobody has confirmed that one
                raise KeyChanged(seen, old.public)
            if wanted == old.public:
                if old.trust is Trust.REVOKED and not replace:
                    raise PeerRevoked(old)
                new = msgspec.structs.replace(old, trust=Trust.TRUSTED)
                return known.with_instead(old, new)
            changed = {"public": wanted, "trust": Trust.TRUSTED, "card": ""}
            new = msgspec.structs.replace(old, added_at=self._now(), **changed)
            return rekeyed(known, old, _checked(new))

        return self._change(edited).by_public[wanted]

    def pin(self, public: bytes, address: str) -> Pinned:
        """This key was shown to us at `address`, which we had dialled without knowing the key.

        A stranger is put into the book as pinned, by the name `host:port`. Raises KeyChanged when
        somebody else is known by that address or name, PeerRevoked, BadPeer, BookFull.
        """
        place = _place(address)
        if (met := met_at(self._current(), public, address, place)) is not None:
            return Pinned(met, is_new=False)
        name = place[:NAME_CHARS_MAX]
        new = _checked(Peer(name, public, Trust.PINNED, (address,), (), self._now()))

        def edited(known: Known) -> list[Peer]:
            met = met_at(known, public, address, place)
            return known.without() if met is not None else [*known.without(), new]

        return Pinned(self._change(edited).by_public[public], is_new=True)

    def _change(self, edit: Callable[[Known], list[Peer]]) -> Known:
        has_news = False
        try:
            with self._file.locked():
                seen = self._seen
                if not seen.is_readable or self._look() != seen.stamp:
                    seen = self._read()  # raises: what somebody is editing is not written over
                    has_news = True
                known = Known(edit(seen.known))
                self._file.write(format_address_book(known.by_name.values()))
                self._seen = _Seen(self._file.stamp(), known, is_readable=True)
                has_news = True
        finally:
            if has_news:  # of others, if this change was refused
                self._tell()
        return known

    def _current(self) -> Known:
        # A clock that was set back must not make this blind.
        if not 0 <= self._now() - self._looked_at < LOOK_EVERY_S:
            try:
                self.reload()
            except BookUnreadable as exc:
                kept = len(self._seen.known.by_name)
                log.error("peer_book_unreadable kept=%d error=%s", kept, exc)
        return self._seen.known

    def _read(self) -> _Seen:
        stamp = self._look()  # before: a change in between is seen the next time
        try:
            known = Known(map(_checked, parse_address_book(self._file.read())))
        except (UnsafeFile, OSError, ValueError, AddressBookError) as exc:
            self._seen = _Seen(stamp, self._seen.known, is_readable=False)
            text = str(exc) if isinstance(exc, UnsafeFile) else f"{self._path}: {exc}"
            raise BookUnreadable(text) from exc
        self._seen = seen = _Seen(stamp, known, is_readable=True)
        return seen

    def _look(self) -> Stamp | None:
        try:
            return self._file.stamp()
        except OSError as exc:
            raise BookUnreadable(f"{self._path}: {exc.strerror}") from exc

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback()


def _place(address: str) -> str:
    try:
        return endpoint(checked_addresses((address,))[0])
    except ValueError as exc:
        raise BadPeer(str(exc)) from exc


def _checked(peer: Peer) -> Peer:
    try:
        return checked(peer)
    except ValueError as exc:
        raise BadPeer(f"peer {peer.name!r}: {exc}") from exc
