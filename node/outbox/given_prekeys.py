"""Given prekeys: the one-time prekeys that their owners have left at this node to be handed out.

Each is handed out once: it is removed from `peers.db` before the sender gets it. A node has its own
here as well, for peers that reach it directly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

import anyio
import anyio.to_thread
import msgspec

from millpond.actors.errors import Malformed, NotAllowed
from millpond.node.outbox.mailbox import STRANGERS
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.one_time_prekeys import GIVEN_MAX, HELD_MAX, decode_one_time
from millpond.node.peers.peer_store import PeerStore
from millpond.node.peers.prekeys import CLOCKS_APART_S, MalformedPrekey

TAKES_PER_DAY = 8
"""The most keys of one owner that a sender gets in a day; strangers get so many together."""
SENDERS_MAX = 10_000
LEFT_MS = 3_600_000
"""The least lifetime of a key that is handed out."""
DAY_MS = 86_400_000

_ROW = "SELECT last, keys FROM given_prekeys WHERE owner = ?"
_OWNERS = "SELECT owner FROM given_prekeys"
_REMOVE = "DELETE FROM given_prekeys WHERE owner = ?"


class _Given(msgspec.Struct, array_like=True, gc=False):
    number: int
    good_until: int
    data: bytes


_decoder = msgspec.msgpack.Decoder(list[_Given])


class GivenPrekeys:
    """The one-time prekeys that this node hands out, by their owner. For one loop."""

    def __init__(
        self, store: PeerStore, book: AddressBook, own: bytes, now: Callable[[], float]
    ) -> None:
        """`own`: the public key of this node."""
        self._store = store
        self._book = book
        self._own = own
        self._now = now
        self._lock = anyio.Lock()
        self._takes: OrderedDict[tuple[bytes, bytes], tuple[int, int]] = OrderedDict()
        """By owner and sender: a day, and the keys that were handed out on it."""

    async def give(
        self, owner: bytes, known: Collection[int], keys: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """Add keys of an owner, and remove those whose numbers are not `known` to it: the numbers
        that are left, and those removed.

        A number that was given before is passed over, and one from the future, of a clock that is
        wrong: it would lock out all later ones. Raises NotAllowed if the owner is no contact,
        Malformed for other data than its one-time prekeys, and OSError.
        """
        if owner != self._own and not self._book.is_contact(owner):
            raise NotAllowed("one-time prekeys are kept for contacts")
        if len(known) > HELD_MAX or len(keys) > GIVEN_MAX:
            raise Malformed(f"up to {GIVEN_MAX} one-time prekeys")
        try:
            new = await anyio.to_thread.run_sync(_verified, owner, keys)
        except MalformedPrekey as error:
            raise Malformed(str(error)) from error
        latest = int((self._now() + CLOCKS_APART_S) * 1000)
        async with self._lock:
            last, before = await self._read(owner)
            given = [each for each in before if each.number in known]
            removed = [each.number for each in before if each.number not in known]
            if last > latest:  # the clock of this node was wrong
                last = max((each.number for each in given), default=0)
            for each in new:
                if last < each.number <= latest and len(given) < GIVEN_MAX:
                    given.append(each)
                    last = each.number
            if given != before:
                await self._write(owner, last, given)
            return [each.number for each in given], removed

    async def take(self, owner: bytes, sender: bytes, count: int) -> list[bytes]:
        """Up to so many keys of an owner for a sender (public keys); fewer, or none, if there are
        no more or the sender had its share of the day. Raises OSError."""
        now_ms = int(self._now() * 1000)
        sender = sender if self._book.is_accepted(sender) else STRANGERS
        async with self._lock:
            day, taken = self._takes.get((owner, sender), (0, 0))
            if day != now_ms // DAY_MS:
                day, taken = now_ms // DAY_MS, 0
            last, before = await self._read(owner)
            good = [each for each in before if each.good_until >= now_ms + LEFT_MS]
            count = max(0, min(count, TAKES_PER_DAY - taken))
            found, left = good[:count], good[count:]
            if left != before:
                await self._write(owner, last, left)
            if found:
                self._takes[owner, sender] = day, taken + len(found)
                self._takes.move_to_end((owner, sender))
                if len(self._takes) > SENDERS_MAX:
                    self._takes.popitem(last=False)
            return [each.data for each in found]

    async def sweep(self) -> None:
        """Remove the keys of owners that are no contacts any more. Raises OSError."""
        async with self._lock:
            rows = await anyio.to_thread.run_sync(self._store.query, _OWNERS)
            gone = [
                owner
                for (owner,) in rows
                if owner != self._own and not self._book.is_contact(owner)
            ]
            await self._store.write([(_REMOVE, (owner,)) for owner in gone])

    async def _read(self, owner: bytes) -> tuple[int, list[_Given]]:
        rows = await anyio.to_thread.run_sync(self._store.query, _ROW, (owner,))
        return (rows[0][0], _decoder.decode(rows[0][1])) if rows else (0, [])

    async def _write(self, owner: bytes, last: int, given: list[_Given]) -> None:
        row = (owner, last, msgspec.msgpack.encode(given))
        await self._store.write([("INSERT OR REPLACE INTO given_prekeys VALUES (?, ?, ?)", row)])


def _verified(owner: bytes, keys: Sequence[bytes]) -> list[_Given]:
    """Keys by their numbers, in a worker thread: a signature takes 0.1 ms. Raises
    MalformedPrekey."""
    found = [(decode_one_time(each, owner), each) for each in keys]
    given = [_Given(prekey.number, prekey.good_until, data) for prekey, data in found]
    return sorted(given, key=lambda each: each.number)
