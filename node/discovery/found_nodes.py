"""Found nodes: those that have proved their key at an announced address, in a bounded list.

Announcements wait here until they are checked. Nothing of an announcement is shown before, and
neither this list nor a check trusts or adds anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from millpond.node.discovery.announcement import Announcement

log = logging.getLogger(__name__)

FOUND_MAX = 64
WAITING_MAX = 64
PER_ADDRESS_MAX = 8
"""Nodes in the list with one address, and announcements of it that wait."""
CHECK_EVERY_S = 300.0
AGE_S_MAX = 900.0
"""A node whose last check is so long ago is dropped."""
FAILED_MAX = 1024
FAILED_S = 60.0
"""An announcement that was refused is not checked again for so long."""


class FoundNode(msgspec.Struct):
    """A node on the network. `card`: its contact card. Times are those of the node's clock."""

    announcement: Announcement
    card: str
    found_at: float
    checked_at: float
    tried_at: float


class FoundNodes:
    """The found nodes of one node, whose key is `own`."""

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._found: dict[bytes, FoundNode] = {}
        self._waiting: dict[tuple[bytes, tuple[str, ...], int], Announcement] = {}
        self._failed: dict[tuple[bytes, tuple[str, ...], int], float] = {}
        self._is_full = False

    def __len__(self) -> int:
        return len(self._found)

    @property
    def waiting(self) -> int:
        """The number of announcements that are to be checked."""
        return len(self._waiting)

    def heard(self, heard: Announcement, now: float) -> None:
        """An announcement came. It waits for its check, unless it was checked a moment ago."""
        if heard.public == self._own:
            return
        known = self._found.get(heard.public)
        if known is not None and _place(known.announcement) == _place(heard):
            known.announcement = heard
            return
        place = _place(heard)
        if now < self._failed.get(place, now) or place in self._waiting:
            return
        first = heard.addresses[0]
        if (
            len(self._waiting) >= WAITING_MAX
            or _count(self._waiting.values(), first) >= PER_ADDRESS_MAX
        ):
            self._warn("announcements of nodes dropped: too many wait to be checked")
            return
        self._waiting[place] = heard

    def gone(self, instance: str) -> None:
        """A goodbye came, or the announcement ended."""
        for public, each in list(self._found.items()):
            if each.announcement.instance == instance:
                del self._found[public]
        for place, waiting in list(self._waiting.items()):
            if waiting.instance == instance:
                del self._waiting[place]

    def clear(self) -> None:
        """The networks have changed: everything is found anew."""
        self._found.clear()
        self._waiting.clear()
        self._failed.clear()

    def next(self, now: float) -> Announcement | None:
        """The next announcement to check; None: there is none now."""
        for place in self._waiting:
            return self._waiting.pop(place)
        for each in self._found.values():
            if each.tried_at + CHECK_EVERY_S <= now:
                each.tried_at = now
                return each.announcement
        return None

    def verified(self, checked: Announcement, card: str, now: float) -> None:
        """The node at the announced address has proved its key, and gave its card."""
        known = self._found.get(checked.public)
        if known is not None:
            known.announcement, known.card = checked, card
            known.checked_at = known.tried_at = now
            return
        same = _count((each.announcement for each in self._found.values()), checked.addresses[0])
        if len(self._found) >= FOUND_MAX or same >= PER_ADDRESS_MAX:
            self._warn("found nodes not listed: the list is full")
            return
        self._found[checked.public] = FoundNode(checked, card, now, now, now)

    def failed(self, checked: Announcement, now: float) -> None:
        """A check failed: the announcement is not checked again for a while."""
        place = _place(checked)
        self._failed.pop(place, None)
        if len(self._failed) >= FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed[place] = now + FAILED_S

    def all(self, now: float) -> list[FoundNode]:
        """The nodes, in the order in which they were found."""
        for public, each in list(self._found.items()):
            if each.checked_at + AGE_S_MAX <= now:
                del self._found[public]
        return list(self._found.values())

    def _warn(self, text: str) -> None:
        if not self._is_full:
            self._is_full = True
            log.warning("%s", text)


def _place(announcement: Announcement) -> tuple[bytes, tuple[str, ...], int]:
    return announcement.public, announcement.addresses, announcement.port


def _count(announcements: Iterable[Announcement], address: str) -> int:
    return sum(each.addresses[0] == address for each in announcements)
