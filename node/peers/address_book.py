"""The address book of a node: its peers by name and by key, kept in `peers.toml`.

People read the file and may edit it; a running program notices that (`AddressBook.reload`).
"""

from __future__ import annotations

import logging
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from millpond.node.atomic_files import UnsafeFile
from millpond.node.peers.address_book_file import AddressBookFile, InMemoryFile, Stamp
from millpond.node.peers.address_book_toml import format_address_book, parse_address_book
from millpond.node.peers.card import BadCard, decode_card
from millpond.node.peers.errors import (
    AddressBookError,
    BadPeer,
    BookFull,
    BookUnreadable,
    DuplicatePeer,
    KeyChanged,
    PeerBlocked,
    PeerNotFound,
    StaleCard,
)
from millpond.node.peers.identity import public_key_of
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
PEERS_MAX = 10_000
UNACCEPTED = frozenset({Trust.PINNED, Trust.BLOCKED})
"""The levels of keys that no person has accepted."""
CHECK_EVERY_S = 1.0
AHEAD_S_MAX = 3600.0
"""A card is made at most so long ahead: a later one would keep all genuine ones out."""

__all__ = [
    "AddressBook",
    "AddressBookError",
    "BadPeer",
    "BookFull",
    "BookUnreadable",
    "DuplicatePeer",
    "KeyChanged",
    "Peer",
    "PeerBlocked",
    "PeerNotFound",
    "Pinned",
    "StaleCard",
    "Trust",
]


class Pinned(msgspec.Struct, frozen=True):
    """The peer behind a key that was shown, and whether it was pinned just now."""

    peer: Peer
    is_new: bool


class _Peers:
    """The peers of a book at one moment. It never changes, so any thread may read it."""

    __slots__ = ("by_name", "by_public")

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        """Raises DuplicatePeer and BookFull."""
        self.by_name: dict[str, Peer] = {}
        self.by_public: dict[bytes, Peer] = {}
        for peer in peers:
            if peer.name in self.by_name:
                raise DuplicatePeer(f"peer {peer.name!r} already exists")
            if peer.public in self.by_public:
                raise DuplicatePeer(
                    f"the key of {peer.name!r} is that of {self.by_public[peer.public].name!r}"
                )
            self.by_name[peer.name] = self.by_public[peer.public] = peer
        if len(self.by_name) > PEERS_MAX:
            raise BookFull(f"an address book holds at most {PEERS_MAX} peers")

    def named(self, name: str) -> Peer | None:
        """The peer of this name, in any Unicode spelling of it."""
        return self.by_name.get(unicodedata.normalize("NFC", name))

    def get(self, who: str) -> Peer:
        """The peer of this name or id. Raises PeerNotFound."""
        peer = self.by_public.get(public_key_of(who)) if is_peer_id(who) else self.named(who)
        if peer is None:
            raise PeerNotFound(f"there is no peer {who!r}")
        return peer

    def accepted(self, publics: Iterable[bytes]) -> Peer:
        """The first contact or relay with one of these keys. Raises PeerNotFound, PeerBlocked."""
        known = [self.by_public[each] for each in publics if each in self.by_public]
        for peer in known:
            if peer.trust not in UNACCEPTED:
                return peer
        if known and known[0].trust is Trust.BLOCKED:
            raise PeerBlocked(known[0])
        raise PeerNotFound("no earlier key of this peer is known")

    def met_at(self, public: bytes, address: str, host_port: str) -> Peer | None:
        """The peer that shows the key `public` at `address`; None for a stranger.

        Raises KeyChanged when another peer is known by that address, and PeerBlocked.
        """
        expected = self._at(host_port)
        if expected is not None and expected.public != public:
            raise KeyChanged(expected, public, address)
        peer = self.by_public.get(public)
        if peer is not None and peer.trust is Trust.BLOCKED:
            raise PeerBlocked(peer)
        return peer

    def _at(self, host_port: str) -> Peer | None:
        """The peer with this address, or with the name that a stranger there would get."""
        for peer in self.by_name.values():
            if any(endpoint(each) == host_port for each in peer.addresses):
                return peer
        return self.by_name.get(host_port[:NAME_CHARS_MAX])

    def without(self, peer: Peer | None = None) -> list[Peer]:
        """All peers except this one."""
        return [each for each in self.by_name.values() if each is not peer]

    def replaced(self, old: Peer, new: Peer) -> list[Peer]:
        """All peers, with `new` in place of `old`."""
        return [new if each is old else each for each in self.by_name.values()]

    def rekeyed(self, old: Peer, new: Peer) -> list[Peer]:
        """All peers, with `new` in place of `old`, which stays in the book as blocked.

        A pinned or blocked entry with the new key was the same peer, and goes.
        """
        same = self.by_public.get(new.public)
        if same is not None and same.trust not in UNACCEPTED:
            raise DuplicatePeer(f"that is the key of {same.name!r}")
        names = (_old_name(old.name, number) for number in range(1, PEERS_MAX + 2))
        name = next(each for each in names if each not in self.by_name)
        kept = Peer(name, old.public, Trust.BLOCKED, (), (), old.added_at)
        return [*(new if each is old else each for each in self.without(same)), kept]


class _Loaded(msgspec.Struct, frozen=True):
    """The file as it was read last, with its stamp.

    It is one object because several threads read at once: a late reading is found by its stamp.
    """

    stamp: Stamp | None
    peers: _Peers
    is_readable: bool


class AddressBook:
    """The peers of a node, in a file or (without `path`) in memory.

    Queries check the stamp of the file at most once a second and read it again if it changed. An
    unreadable file is logged, and the peers stay as they were. Changes read, write and sync the
    file under a lock; besides the errors that they name they raise BookUnreadable,
    `address_book_file.BookBusy` and OSError. Any thread may call. Reading takes 0.15 ms for each
    peer, so an event loop runs `reload`, and every change, in a worker thread.
    """

    def __init__(self, path: Path | None = None, now: Callable[[], float] = time.time) -> None:
        """Raises BookUnreadable."""
        self._path = path
        self._file = InMemoryFile() if path is None else AddressBookFile(path)
        self._now = now
        self._loaded = _Loaded(None, _Peers(), is_readable=False)
        self._checked_at = now()
        self._callbacks: list[Callable[[], None]] = []
        self._read()

    @property
    def peers(self) -> Iterator[Peer]:
        """All peers, in the order in which they were added."""
        return iter(self._current().by_name.values())

    def __len__(self) -> int:
        return len(self._current().by_name)

    def by_name(self, name: str) -> Peer | None:
        """The peer of this name, in any Unicode spelling of it."""
        return self._current().named(name)

    def by_public(self, public: bytes) -> Peer | None:
        """The peer with this key, at any level of trust."""
        return self._current().by_public.get(public)

    def resolve(self, text: str) -> Peer | None:
        """The peer with this name or peer id."""
        return self.by_public(public_key_of(text)) if is_peer_id(text) else self.by_name(text)

    def is_contact(self, public: bytes) -> bool:
        """True for the key of an added or verified peer."""
        peer = self._current().by_public.get(public)
        return peer is not None and peer.is_contact

    def is_relay(self, public: bytes) -> bool:
        """True for the key of a relay."""
        peer = self._current().by_public.get(public)
        return peer is not None and peer.trust is Trust.RELAY

    def is_accepted(self, public: bytes) -> bool:
        """True for the key of a contact or a relay."""
        peer = self._current().by_public.get(public)
        return peer is not None and peer.trust not in UNACCEPTED

    def has_changed_key(self, peer: Peer) -> bool:
        """True if the key of an added peer took the place of another one, which stays in the book
        as blocked under a name made of its own, and was not verified since."""
        if peer.trust is not Trust.ADDED:
            return False
        old = self._current().by_name.get(_old_name(peer.name, 1))
        return old is not None and old.trust is Trust.BLOCKED

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change, in the thread that made or noticed the change."""
        self._callbacks.append(callback)

    def reload(self) -> bool:
        """Read the file if it changed; True if it did.

        Raises BookUnreadable; the peers then stay as they were.
        """
        self._checked_at = self._now()
        if self._stamp() == self._loaded.stamp:
            return False
        self._read()
        self._notify()
        return True

    def add(self, peer: Peer) -> Peer:
        """Add a peer. Raises BadPeer, DuplicatePeer, BookFull."""
        new = _checked(peer)
        self._change(lambda peers: [*peers.without(), new])
        return new

    def update(self, peer: Peer) -> Peer:
        """Add a peer, or update the one with its key; what `peer` leaves empty stays.

        A verified key stays verified when it is added again. Raises KeyChanged when the name has
        another key, PeerBlocked, DuplicatePeer when an accepted key has another name, StaleCard,
        and the errors of `add`. The card has to be valid.
        """
        new = _checked(peer)
        if new.card and _made_at(new) > self._now() + AHEAD_S_MAX:
            raise StaleCard(f"the card of {new.name!r} was made in the future: is a clock wrong?")

        def edited(peers: _Peers) -> list[Peer]:
            named, known = peers.named(new.name), peers.by_public.get(new.public)
            if named is not None and named.public != new.public:
                raise KeyChanged(named, new.public)
            if known is None:
                return [*peers.without(), new]
            if known.trust is Trust.BLOCKED:
                raise PeerBlocked(known)
            if known.name != new.name and known.trust is not Trust.PINNED:
                raise DuplicatePeer(f"that is the key of {known.name!r}, a peer already")
            if new.card and known.card and _made_at(new) < _made_at(known):
                raise StaleCard(f"a newer card of {known.name!r} is known")
            return peers.replaced(known, _merged(known, new))

        return self._change(edited).by_public[new.public]

    def follow(self, predecessors: Sequence[bytes], peer: Peer) -> Peer:
        """Put the new key of `peer` in the place of an earlier key of the same node.

        `predecessors` are its keys that have signed for the next one. The peer keeps its name, and
        is an added contact, or a relay if it was one; the old key stays in the book as blocked.
        Raises PeerNotFound if none of the keys is that of a contact or a relay, PeerBlocked, and
        the errors of `add`.
        """
        new = _checked(peer)

        def edited(peers: _Peers) -> list[Peer]:
            old = peers.accepted(predecessors)
            merged = msgspec.structs.replace(
                new,
                name=old.name,
                trust=Trust.RELAY if old.trust is Trust.RELAY else Trust.ADDED,
                addresses=new.addresses or old.addresses,
                relays=new.relays or old.relays,
                allows_local=new.allows_local or old.allows_local,
            )
            return peers.rekeyed(old, merged)

        return self._change(edited).by_public[new.public]

    def predecessor(self, public: bytes, predecessors: Sequence[bytes]) -> Peer | None:
        """The contact or relay that an unknown key takes the place of, by its statements."""
        peers = self._current()
        if public in peers.by_public and peers.by_public[public].trust not in UNACCEPTED:
            return None
        found = (peers.by_public.get(each) for each in predecessors)
        return next((each for each in found if each and each.trust not in UNACCEPTED), None)

    def replace(self, who: str, peer: Peer) -> Peer:
        """Replace the peer `who` (a name or id) by `peer`.

        Raises PeerNotFound, PeerBlocked (another process may have blocked the key just now), and
        the errors of `add`.
        """
        new = _checked(peer)

        def edited(peers: _Peers) -> list[Peer]:
            old = peers.get(who)
            if old.trust is Trust.BLOCKED and new.trust is not Trust.BLOCKED:
                raise PeerBlocked(old)
            return peers.replaced(old, new)

        self._change(edited)
        return new

    def remove(self, who: str) -> None:
        """Remove a peer by name or id, even a blocked one. Raises PeerNotFound."""
        self._change(lambda peers: peers.without(peers.get(who)))

    def block(self, who: str) -> Peer:
        """Block a key; it stays in the book. Raises PeerNotFound."""
        return self._set_trust(who, Trust.BLOCKED)

    def verify(self, who: str) -> Peer:
        """Mark the key of a contact as compared by a person.

        Name it by its id, so that no other key is meant than the one that was compared. Raises
        PeerNotFound, PeerBlocked, and BadPeer for a peer that is no contact.
        """
        return self._set_trust(who, Trust.VERIFIED)

    def make_relay(self, who: str) -> Peer:
        """Make a peer a relay; it is no contact then. Raises PeerNotFound and PeerBlocked."""
        return self._set_trust(who, Trust.RELAY)

    def _set_trust(self, who: str, trust: Trust) -> Peer:
        public = b""

        def edited(peers: _Peers) -> list[Peer]:
            nonlocal public
            old = peers.get(who)
            public = old.public
            if old.trust is Trust.BLOCKED and trust is not Trust.BLOCKED:
                raise PeerBlocked(old)
            if trust is Trust.VERIFIED and not old.is_contact:
                raise BadPeer(f"{old.name!r} is {old.trust.value}; only contacts are verified")
            return peers.replaced(old, msgspec.structs.replace(old, trust=trust))

        return self._change(edited).by_public[public]

    def accept(self, who: str, public: bytes | None = None, *, replace: bool = False) -> Peer:
        """Accept the key of the peer `who`, or `public` as its new key.

        A relay stays a relay, and a verified key verified; any other is added. `replace` allows
        another key, or one that is blocked; without it these raise KeyChanged and PeerBlocked. The
        old key stays in the book as blocked, under a name made of the old one.
        Raises KeyChanged also when the peer got another key since the book was read, and
        PeerNotFound, BadPeer, DuplicatePeer, BookFull.
        """
        seen = self._current().get(who)
        wanted = seen.public if public is None else public
        if wanted != seen.public and not replace:
            raise KeyChanged(seen, wanted)

        def edited(peers: _Peers) -> list[Peer]:
            old = peers.get(who)
            if old.public != seen.public:
                raise KeyChanged(seen, old.public)
            if wanted == old.public:
                if old.trust is Trust.BLOCKED and not replace:
                    raise PeerBlocked(old)
                trust = Trust.ADDED if old.trust in UNACCEPTED else old.trust
                return peers.replaced(old, msgspec.structs.replace(old, trust=trust))
            trust = Trust.RELAY if old.trust is Trust.RELAY else Trust.ADDED
            changed = {"public": wanted, "trust": trust, "card": ""}
            new = msgspec.structs.replace(old, added_at=self._now(), **changed)
            return peers.rekeyed(old, _checked(new))

        return self._change(edited).by_public[wanted]

    def pin(self, public: bytes, address: str) -> Pinned:
        """Record the key that a node at `address` has proved, which was dialled without a key.

        A stranger is added as pinned, with the name `host:port`. Raises KeyChanged when another
        peer has that address or name, PeerBlocked, BadPeer, BookFull.
        """
        host_port = _host_port(address)
        if (met := self._current().met_at(public, address, host_port)) is not None:
            return Pinned(met, is_new=False)
        name = host_port[:NAME_CHARS_MAX]
        new = _checked(Peer(name, public, Trust.PINNED, (address,), (), self._now()))

        def edited(peers: _Peers) -> list[Peer]:
            met = peers.met_at(public, address, host_port)
            return peers.without() if met is not None else [*peers.without(), new]

        return Pinned(self._change(edited).by_public[public], is_new=True)

    def _change(self, edit: Callable[[_Peers], list[Peer]]) -> _Peers:
        has_changed = False
        try:
            with self._file.locked():
                loaded = self._loaded
                if not loaded.is_readable or self._stamp() != loaded.stamp:
                    # Raises: a file that is being edited is not overwritten.
                    loaded = self._read()
                    has_changed = True
                peers = _Peers(edit(loaded.peers))
                self._file.write(format_address_book(peers.by_name.values()))
                self._loaded = _Loaded(self._file.stamp(), peers, is_readable=True)
                has_changed = True
        finally:
            if has_changed:  # by others, if this change was refused
                self._notify()
        return peers

    def _current(self) -> _Peers:
        # The clock may have been set back.
        if not 0 <= self._now() - self._checked_at < CHECK_EVERY_S:
            try:
                self.reload()
            except BookUnreadable as exc:
                kept = len(self._loaded.peers.by_name)
                log.error("peer_book_unreadable kept=%d error=%s", kept, exc)
        return self._loaded.peers

    def _read(self) -> _Loaded:
        stamp = self._stamp()  # first: a change during the reading is seen next time
        try:
            peers = _Peers(map(_checked, parse_address_book(self._file.read())))
        except (UnsafeFile, OSError, ValueError, AddressBookError) as exc:
            self._loaded = _Loaded(stamp, self._loaded.peers, is_readable=False)
            text = str(exc) if isinstance(exc, UnsafeFile) else f"{self._path}: {exc}"
            raise BookUnreadable(text) from exc
        self._loaded = loaded = _Loaded(stamp, peers, is_readable=True)
        return loaded

    def _stamp(self) -> Stamp | None:
        try:
            return self._file.stamp()
        except OSError as exc:
            raise BookUnreadable(f"{self._path}: {exc.strerror}") from exc

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()


def _old_name(name: str, number: int) -> str:
    """The name of a key that a peer had before."""
    end = f" (old {number})"
    return name[: NAME_CHARS_MAX - len(end)].rstrip() + end


def _made_at(peer: Peer) -> float:
    """The time of a peer's card; 0 for one that the file has and that cannot be read."""
    try:
        return decode_card(peer.card).made_at
    except BadCard:
        return 0.0


def _merged(known: Peer, new: Peer) -> Peer:
    was_verified = known.trust is Trust.VERIFIED and new.trust is Trust.ADDED
    return msgspec.structs.replace(
        new,
        trust=Trust.VERIFIED if was_verified else new.trust,
        addresses=new.addresses or known.addresses,
        relays=new.relays or known.relays,
        added_at=known.added_at,
        card=new.card or known.card,
        allows_local=new.allows_local or known.allows_local,
    )


def _host_port(address: str) -> str:
    try:
        return endpoint(checked_addresses((address,))[0])
    except ValueError as exc:
        raise BadPeer(str(exc)) from exc


def _checked(peer: Peer) -> Peer:
    try:
        return checked(peer)
    except ValueError as exc:
        raise BadPeer(f"peer {peer.name!r}: {exc}") from exc
