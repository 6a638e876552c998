"""The streams of a subscription: how far each is acknowledged, and which have something new."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

import msgspec

from millpond.actors.store.changes import MetadataSet
from millpond.actors.subscriptions.messages import PAGE_MAX, SHOWN_MAX, LinkView

LINK = b"link\0"


class StoredLink(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of the key `link\\0PATH`, as MessagePack. `incarnation` 0: the stream was not there
    yet."""

    is_glob: bool
    is_explicit: bool
    acked: int
    incarnation: int


class StreamLink:
    """A stream that a subscription follows. `tail` is as the stream told last. `is_hidden`: the
    maker may not read it now; it is never new, and never shown. Neither is stored."""

    __slots__ = ("acked", "incarnation", "is_explicit", "is_glob", "is_hidden", "path", "tail")

    def __init__(self, path: bytes, stored: StoredLink) -> None:
        self.path = path
        self.is_glob = stored.is_glob
        self.is_explicit = stored.is_explicit
        self.acked = stored.acked
        self.incarnation = stored.incarnation
        self.tail = max(stored.acked, 0)
        self.is_hidden = False

    @property
    def is_behind(self) -> bool:
        """True: the stream has records that are not acknowledged."""
        return self.tail > max(self.acked, 0)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredLink).decode


class StreamLinks:
    """The links of one subscription. A method that changes something stored gives the change.

    `own` is the stream that it appends its own events to, which never has anything new.
    """

    __slots__ = ("_explicit", "_links", "_order", "_own", "_pending")

    def __init__(self, metadata: Mapping[bytes, bytes], own: bytes | None) -> None:
        self._own = own
        self._links = {
            key[len(LINK) :]: StreamLink(key[len(LINK) :], _decode(value))
            for key, value in metadata.items()
            if key.startswith(LINK)
        }
        self._order = sorted(self._links)
        self._explicit = [path for path in self._order if self._links[path].is_explicit]
        self._pending: dict[bytes, None] = {}
        """The streams with something new; the one that has waited longest is first."""

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[StreamLink]:
        return iter(self._links.values())

    def get(self, path: bytes) -> StreamLink | None:
        """The link of a stream; None: the subscription does not follow it."""
        return self._links.get(path)

    @property
    def pending(self) -> Collection[bytes]:
        """The streams with something new."""
        return self._pending.keys()

    def set(self, path: bytes, stored: StoredLink, tail: int) -> MetadataSet:
        """Follow a stream, or follow it otherwise."""
        if path not in self._links:
            insort(self._order, path)
        link = self._links[path] = StreamLink(path, stored)
        self._list_explicit(link)
        link.tail = max(tail, 0)
        self._check(link)
        return MetadataSet(LINK + path, _encode(stored))

    def remove(self, path: bytes) -> MetadataSet:
        """Follow a stream no longer."""
        link = self._links.pop(path)
        del self._order[bisect_left(self._order, path)]
        link.is_explicit = False
        self._list_explicit(link)
        self._pending.pop(path, None)
        return MetadataSet(LINK + path, None)

    def is_own(self, path: bytes) -> bool:
        """True: the subscription appends its own events to this stream."""
        return path == self._own

    def grow(self, link: StreamLink, tail: int) -> None:
        """The stream has records up to `tail`."""
        if tail > link.tail:
            link.tail = tail
            self._check(link)

    def change(
        self,
        link: StreamLink,
        *,
        acked: int | None = None,
        is_explicit: bool | None = None,
    ) -> MetadataSet:
        """Acknowledge, or have a link by its name as well, or by the pattern alone."""
        if acked is not None:
            link.acked = acked
        if is_explicit is not None:
            link.is_explicit = is_explicit
            self._list_explicit(link)
        self._check(link)
        return self._stored(link)

    def rewind(self, link: StreamLink, tail: int) -> MetadataSet:
        """The stream has lost its last records: later ones are not acknowledged."""
        link.acked = link.tail = tail
        self._check(link)
        return self._stored(link)

    def identify(self, link: StreamLink, incarnation: int) -> MetadataSet:
        """The stream that was missing is there."""
        link.incarnation = incarnation
        return self._stored(link)

    def hide(self, link: StreamLink, *, is_hidden: bool) -> None:
        """Show a link no longer, or again."""
        link.is_hidden = is_hidden
        self._check(link)

    def page(
        self, after: bytes | None = None, *, is_explicit: bool = False
    ) -> tuple[tuple[LinkView, ...], bytes | None]:
        """The next links by path, PAGE_MAX at most, and the last path if there are more behind it.
        `is_explicit`: only those that are linked by name."""
        paths = self._explicit if is_explicit else self._order
        begin = 0 if after is None else bisect_right(paths, after)
        found = paths[begin : begin + PAGE_MAX]
        has_more = begin + len(found) < len(paths)
        return self._views(found), found[-1] if has_more else None

    def shown(self) -> tuple[LinkView, ...]:
        """The links that one delivery or claim shows, by path. Of more than SHOWN_MAX those with
        something new come first, and of these the ones that have waited longest are shown."""
        if len(self._links) <= SHOWN_MAX:
            return self._views(self._order)
        paths = sorted(islice(self._pending, SHOWN_MAX))
        others = (each for each in self._order if each not in self._pending)
        paths += islice(others, SHOWN_MAX - len(paths))
        return self._views(paths)

    def _views(self, paths: list[bytes]) -> tuple[LinkView, ...]:
        links, pending = self._links, self._pending
        return tuple(
            LinkView(path, link.is_explicit, link.acked, link.tail, path in pending)
            for path in paths
            if not (link := links[path]).is_hidden
        )

    def _list_explicit(self, link: StreamLink) -> None:
        """Have the link in the list of those by name, or not."""
        at = bisect_left(self._explicit, link.path)
        is_listed = at < len(self._explicit) and self._explicit[at] == link.path
        if link.is_explicit and not is_listed:
            self._explicit.insert(at, link.path)
        elif is_listed and not link.is_explicit:
            del self._explicit[at]

    def _stored(self, link: StreamLink) -> MetadataSet:
        stored = StoredLink(link.is_glob, link.is_explicit, link.acked, link.incarnation)
        return MetadataSet(LINK + link.path, _encode(stored))

    def _check(self, link: StreamLink) -> None:
        if link.is_behind and not self.is_own(link.path) and not link.is_hidden:
            self._pending.setdefault(link.path)
        else:
            self._pending.pop(link.path, None)
