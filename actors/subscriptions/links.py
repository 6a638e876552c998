"""The streams of a subscription: how far each is acknowledged, and which have something new."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from millpond.actors.store.changes import MetadataSet
from millpond.actors.subscriptions.messages import SHOWN_MAX, LinkView

LINK = b"link\0"


class StoredLink(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of the key `link\\0PATH`, as MessagePack. `incarnation` 0: the stream was not there
    yet."""

    is_glob: bool
    is_explicit: bool
    acked: int
    incarnation: int


class Link:
    """A stream that a subscription follows. `tail` is as the stream told last; it is not stored."""

    __slots__ = ("acked", "incarnation", "is_explicit", "is_glob", "path", "tail")

    def __init__(self, path: bytes, stored: StoredLink) -> None:
        self.path = path
        self.is_glob = stored.is_glob
        self.is_explicit = stored.is_explicit
        self.acked = stored.acked
        self.incarnation = stored.incarnation
        self.tail = max(stored.acked, 0)

    @property
    def is_behind(self) -> bool:
        """True: the stream has records that are not acknowledged."""
        return self.tail > max(self.acked, 0)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredLink).decode


class Links:
    """The links of one subscription. A method that changes something stored gives the change.

    `own` is the stream that it appends its own events to, which never has anything new.
    """

    __slots__ = ("_links", "_own", "_pending")

    def __init__(self, metadata: Mapping[bytes, bytes], own: bytes | None) -> None:
        self._own = own
        self._links = {
            key[len(LINK) :]: Link(key[len(LINK) :], _decode(value))
            for key, value in metadata.items()
            if key.startswith(LINK)
        }
        self._pending: dict[bytes, None] = {}
        """The streams with something new; the one that has waited longest is first."""

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def get(self, path: bytes) -> Link | None:
        """The link of a stream; None: the subscription does not follow it."""
        return self._links.get(path)

    @property
    def pending(self) -> Collection[bytes]:
        """The streams with something new."""
        return self._pending.keys()

    def set(self, path: bytes, stored: StoredLink, tail: int) -> MetadataSet:
        """Follow a stream, or follow it otherwise."""
        link = self._links[path] = Link(path, stored)
        link.tail = max(tail, 0)
        self._check(link)
        return MetadataSet(LINK + path, _encode(stored))

    def remove(self, path: bytes) -> MetadataSet:
        """Follow a stream no longer."""
        del self._links[path]
        self._pending.pop(path, None)
        return MetadataSet(LINK + path, None)

    def grow(self, link: Link, tail: int) -> None:
        """The stream has records up to `tail`."""
        if tail > link.tail:
            link.tail = tail
            self._check(link)

    def change(
        self, link: Link, *, acked: int | None = None, is_explicit: bool | None = None
    ) -> MetadataSet:
        """Acknowledge, or have a link by the pattern alone."""
        if acked is not None:
            link.acked = acked
        if is_explicit is not None:
            link.is_explicit = is_explicit
        self._check(link)
        return self._stored(link)

    def rewind(self, link: Link, tail: int) -> MetadataSet:
        """The stream has lost its last records: later ones are not acknowledged."""
        link.acked = link.tail = tail
        self._check(link)
        return self._stored(link)

    def identify(self, link: Link, incarnation: int) -> MetadataSet:
        """The stream that was missing is there."""
        link.incarnation = incarnation
        return self._stored(link)

    def views(self, most: int | None = None) -> tuple[LinkView, ...]:
        """The links by path; of more than `most` those with something new first."""
        links = sorted(self._links.values(), key=_path_of)
        if most is not None and len(links) > most:
            pending = [each for each in links if each.path in self._pending]
            links = (pending + [each for each in links if each.path not in self._pending])[:most]
        return tuple(
            LinkView(each.path, each.is_explicit, each.acked, each.tail, each.path in self._pending)
            for each in links
        )

    def shown(self) -> tuple[LinkView, ...]:
        """The links that one delivery or claim shows."""
        return self.views(SHOWN_MAX)

    def _stored(self, link: Link) -> MetadataSet:
        stored = StoredLink(link.is_glob, link.is_explicit, link.acked, link.incarnation)
        return MetadataSet(LINK + link.path, _encode(stored))

    def _check(self, link: Link) -> None:
        if link.is_behind and link.path != self._own:
            self._pending.setdefault(link.path)
        else:
            self._pending.pop(link.path, None)


def _path_of(link: Link) -> bytes:
    return link.path
