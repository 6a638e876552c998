"""The cache of the prekeys of peers, with which messages to offline peers are sealed.

A file per owner in a folder, named by the peer id: a MessagePack array of what was published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from millpond.node.atomic_files import OTHERS_WRITE, UnsafeFile, read_private, replace
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.prekeys import (
    CLOCKS_APART_S,
    KEPT_BEYOND_TTL_S,
    PUBLISHED_BYTES_MAX,
    TTL_S_MAX,
    PublishedPrekey,
    SignedPrekey,
    check,
    from_published,
    to_published,
)

log = logging.getLogger(__name__)

OWNERS_MAX = 10_000
PREKEYS_PER_OWNER_MAX = 4

_DECODER = msgspec.msgpack.Decoder(list[PublishedPrekey])


class PrekeyCache:
    """The newest prekeys of each peer, in a file for each in the folder `path`.

    A file is read at the first request for its owner. Of more than `owners_max` the one with
    the oldest news is forgotten. A prekey that is dated more than an hour ahead of `now` is not
    believed, as it would lock out all later ones, and none is used for longer than messages live
    here (`ttl_s_max`) and two days. Any thread may call; `learn` takes as long as an fsync.
    """

    def __init__(
        self,
        path: Path | None,
        now: Callable[[], float] = time.time,
        owners_max: int = OWNERS_MAX,
        ttl_s_max: float = TTL_S_MAX,
    ) -> None:
        """OSError when the folder cannot be made or read."""
        self._now = now
        self._lifetime_s = ttl_s_max + KEPT_BEYOND_TTL_S
        self._folder = path
        self._owners_max = owners_max
        self._lock = Lock()
        self._by_owner: dict[bytes, tuple[SignedPrekey, ...] | None] = {}
        """Newest first; None: in a file that was not read yet. In the order of their last news."""
        if path is not None:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._by_owner.update(dict.fromkeys(_owners(path)))

    def learn(self, owner: bytes, prekey: SignedPrekey) -> bool:
        """Add a prekey; True if it is new."""
        if not check(prekey, owner) or self._is_ahead(prekey):
            return False
        with self._lock:
            known = self._known(owner)
            if known and _order(known[0]) >= _order(prekey):
                return False
            self._by_owner.pop(owner, None)
            self._by_owner[owner] = (prekey, *known)[:PREKEYS_PER_OWNER_MAX]
            try:
                self._save(owner)
            except OSError as exc:
                log.warning("prekey_not_kept owner=%s error=%s", peer_id(owner), exc)
        return True

    def best(
        self, owner: bytes, needed_until: float, *, version_min: int = 1
    ) -> SignedPrekey | None:
        """The newest one that is good until `needed_until` (seconds since 1970), if any is."""
        with self._lock:
            known = self._known(owner)
        return next(
            (
                each
                for each in known
                if each.version >= version_min
                and min(each.good_until, each.made_at + self._lifetime_s) >= needed_until
            ),
            None,
        )

    def _is_ahead(self, prekey: SignedPrekey) -> bool:
        return prekey.made_at > self._now() + CLOCKS_APART_S

    def _known(self, owner: bytes) -> tuple[SignedPrekey, ...]:
        known = self._by_owner.get(owner, ())
        if known is None:
            assert self._folder is not None
            found = _read(self._folder / peer_id(owner), owner)
            known = tuple(each for each in found if not self._is_ahead(each))
            self._by_owner[owner] = known
        return known

    def _save(self, owner: bytes) -> None:
        forgotten = list(self._by_owner)[: -self._owners_max]
        for each in forgotten:
            del self._by_owner[each]
        if self._folder is not None:
            published = [to_published(each) for each in self._known(owner)]
            replace(self._folder / peer_id(owner), msgspec.msgpack.encode(published))
            for each in forgotten:
                (self._folder / peer_id(each)).unlink(missing_ok=True)


def _owners(folder: Path) -> Iterator[bytes]:
    """The owners with files in the folder, the last written ones at the end."""
    written = {path: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}
    for path in sorted(written, key=written.__getitem__):
        with suppress(BadPeerId):  # a temporary file of a process that was killed
            yield public_key_of(path.name)


def _read(path: Path, owner: bytes) -> Iterable[SignedPrekey]:
    """The prekeys in a file; an unreadable file counts as empty, since its owner has them."""
    try:
        data = read_private(path, PREKEYS_PER_OWNER_MAX * PUBLISHED_BYTES_MAX, refused=OTHERS_WRITE)
        known = [from_published(each) for each in _DECODER.decode(data)]
    except (OSError, UnsafeFile, msgspec.DecodeError, UnicodeDecodeError) as exc:
        log.warning("prekeys_unreadable file=%s error=%s", path, exc)
        return ()
    valid = [each for each in known if check(each, owner)]
    return sorted(valid, key=_order, reverse=True)


def _order(prekey: SignedPrekey) -> tuple[float, int]:
    """The newest counts; of the two forms of one key that of the later version."""
    return prekey.made_at, prekey.version
