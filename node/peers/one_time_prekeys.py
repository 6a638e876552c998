"""One-time prekeys: prekeys for one message each, which a relay hands out while their owner is
away (docs/internals/threat-model.md).

A published one is a MessagePack array of version (1), key, number, `made_at`, `good_until` (ms
since 1970) and the owner's signature of `"millpond one-time prekey v1\\0" | key | number u64 |
made_at u64 | good_until u64`. The number is larger than those before it, so that a relay takes none
for a second time. The published prekey (`prekeys`) is the last resort where none is to be had.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Literal

import anyio
import anyio.to_thread
import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.peers import private_slots
from millpond.node.peers.data_key import CannotUnseal
from millpond.node.peers.envelope import KEY_BYTES, is_usable
from millpond.node.peers.identity import Identity, verify
from millpond.node.peers.peer_store import PeerStore, Statement
from millpond.node.peers.prekeys import CLOCKS_APART_S, ROTATED_S, MalformedPrekey
from millpond.node.peers.private_slots import PrivateSlot
from millpond.node.peers.sealed_message import Count, Key, kid_of

log = logging.getLogger(__name__)

GIVEN_MAX = 32
"""The most one-time prekeys of an owner that wait at a relay."""
HELD_MAX = 128
"""The most private halves for one relay: of keys that wait there, and of those handed out."""
TAKEN_MAX = 4
"""The most unused one-time prekeys of a peer that this node has."""
OWNERS_MAX = 10_000
PUBLISHED_BYTES_MAX = 256

_SIGNED = b"millpond one-time prekey v1\0"
_NUMBERS = struct.Struct(">QQQ")


class OneTimePrekey(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A published one-time prekey. Times in ms since 1970."""

    version: Literal[1]
    public: Key
    number: Count
    made_at: Count
    good_until: Count
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


_decoder = msgspec.msgpack.Decoder(OneTimePrekey)


def sign_one_time(
    owner: Identity, public: bytes, number: int, made_at: int, good_until: int
) -> OneTimePrekey:
    """A one-time prekey signed by its owner; times in ms."""
    signature = owner.sign(_SIGNED + public + _NUMBERS.pack(number, made_at, good_until))
    return OneTimePrekey(1, public, number, made_at, good_until, signature)


def encode_one_time(prekey: OneTimePrekey) -> bytes:
    """The published bytes."""
    return msgspec.msgpack.encode(prekey)


def decode_one_time(data: bytes, owner: bytes) -> OneTimePrekey:
    """The one-time prekey of an owner (public key) in published bytes, verified and usable.

    Raises MalformedPrekey.
    """
    if len(data) > PUBLISHED_BYTES_MAX:
        raise MalformedPrekey(f"{len(data)} bytes are no one-time prekey")
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPrekey(str(error)) from error
    signed = _SIGNED + found.public + _NUMBERS.pack(found.number, found.made_at, found.good_until)
    if not is_usable(found.public) or not verify(owner, found.signature, signed):
        raise MalformedPrekey("the one-time prekey is not signed by its owner")
    return found


class OneTimePrekeys:
    """The one-time prekeys of this node: their private halves, in `peers.db`.

    A half is destroyed when a message that was sealed for it is in its channel or is refused, and
    at the end of its time. `private` is for any thread, all else for the loop.
    """

    def __init__(
        self, store: PeerStore, identity: Identity, entropy: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._identity = identity
        self._entropy = entropy
        self._slots: dict[bytes, tuple[int, PrivateSlot]] = {}
        """By kid, with the number of the row."""
        self._free: list[int] = []
        self._rows = 0
        self._last_number = 0
        self._waiting: Counter[bytes] = Counter()
        """By relay: how many it could hand out when it was asked last."""
        self._lock = anyio.Lock()
        self.erase_wanted = False
        """Destroyed halves are still in the write-ahead log."""
        self._load()

    def _load(self) -> None:
        for row, data in self._store.query("SELECT slot, data FROM one_time_prekeys"):
            self._rows = max(self._rows, row)
            try:
                slot = private_slots.decode_slot(data, self._store.key)
            except CannotUnseal:
                log.error("one-time prekey damaged: slot=%d", row)
                slot = None
            if slot is None:
                self._free.append(row)
            else:
                self._slots[slot.kid] = row, slot
                self._last_number = max(self._last_number, slot.number)
                if not slot.mailbox_id:
                    self._waiting[slot.relay] += 1

    def private(self, kid: bytes) -> bytes | None:
        """The private half (32 bytes) behind a kid of 8 bytes; None when it is not here."""
        found = self._slots.get(kid)
        return None if found is None else found[1].private

    @property
    def is_empty(self) -> bool:
        """True if there are no private halves."""
        return not self._slots

    @property
    def waiting(self) -> int:
        """The number of keys that this node and its relays can hand out, as they said last; after a
        start at most so many."""
        return self._waiting.total()

    def current(self, relay: bytes, now_ms: int) -> list[int]:
        """The numbers of the keys that a relay may hand out; older ones are to be replaced."""
        oldest = now_ms - int(ROTATED_S * 1000)
        return [
            slot.number
            for _, slot in self._slots.values()
            if slot.relay == relay and not slot.mailbox_id and slot.made_at > oldest
        ]

    async def left(self, relay: bytes, left: Collection[int], removed: Collection[int]) -> None:
        """A relay can hand out the keys with the numbers `left`, and has handed out none of those
        in `removed`, which are destroyed. Raises OSError."""
        own = {
            slot.number: kid
            for kid, (_, slot) in self._slots.items()
            if slot.relay == relay and not slot.mailbox_id
        }
        self._waiting[relay] = len(own.keys() & left)
        await self.destroy([own[each] for each in own.keys() & removed])

    async def make(self, relay: bytes, now_ms: int, lifetime_ms: int) -> list[OneTimePrekey]:
        """Make as many keys for a relay as it lacks; their halves are on the disk when this
        returns. Raises OSError."""
        async with self._lock:
            held = sum(slot.relay == relay for _, slot in self._slots.values())
            count = min(GIVEN_MAX - self._waiting[relay], HELD_MAX - held)
            if count <= 0:
                return []
            until = now_ms + lifetime_ms
            made = await anyio.to_thread.run_sync(self._pairs, relay, count, now_ms, until)
            missing = range(self._rows + 1, self._rows + 1 + count - len(self._free))
            rows = [*self._free, *missing][:count]
            # Empty rows are made first, so that no row with a key is ever moved.
            await self._store.write(
                [
                    *((private_slots.INSERT, (row, private_slots.EMPTY)) for row in missing),
                    *(self._row(row, slot) for row, (slot, _) in zip(rows, made, strict=True)),
                ]
            )
            self._rows += len(missing)
            del self._free[: count - len(missing)]
            self._slots.update(
                (slot.kid, (row, slot)) for row, (slot, _) in zip(rows, made, strict=True)
            )
            return [prekey for _, prekey in made]

    def _pairs(
        self, relay: bytes, count: int, now_ms: int, until: int
    ) -> list[tuple[PrivateSlot, OneTimePrekey]]:
        found = []
        for _ in range(count):
            self._last_number = number = max(self._last_number + 1, now_ms)
            private = self._entropy(KEY_BYTES)
            public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            slot = PrivateSlot(private, kid_of(public), relay, number, now_ms, until)
            good_until = until - int(CLOCKS_APART_S * 1000)
            found.append((slot, sign_one_time(self._identity, public, number, now_ms, good_until)))
        return found

    def _row(self, row: int, slot: PrivateSlot) -> Statement:
        return private_slots.UPDATE, (private_slots.encode_slot(slot, self._store.key), row)

    # Use and destruction.

    def used_by(self, kid: bytes, mailbox_id: int) -> list[Statement]:
        """The statements by which the half behind a kid, if there is one, belongs to a message of
        the own mailbox that is accepted and not in its channel yet."""
        found = self._slots.get(kid)
        if found is None:
            return []
        row, slot = found[0], msgspec.structs.replace(found[1], mailbox_id=mailbox_id)
        self._slots[kid] = row, slot
        return [self._row(row, slot)]

    def spent_by(self, kid: bytes, mailbox_id: int) -> list[bytes]:
        """The kid of the half that is of no use after a message of the own mailbox is dropped.

        None if the half belongs to another message: a relay has repeated one that is accepted and
        not in its channel yet.
        """
        found = self._slots.get(kid)
        if found is None or found[1].mailbox_id not in (0, mailbox_id):
            return []
        return [kid]

    def kids_of(self, mailbox_ids: Iterable[int]) -> list[bytes]:
        """The kids of the halves that belong to these messages."""
        wanted = set(mailbox_ids)
        if not wanted or not self._slots:
            return []
        return [kid for kid, (_, slot) in self._slots.items() if slot.mailbox_id in wanted]

    def removals(self, kids: Iterable[bytes]) -> list[Statement]:
        """The statements that overwrite the halves behind kids; `removed` follows their commit."""
        rows = [self._slots[kid][0] for kid in kids if kid in self._slots]
        return [(private_slots.UPDATE, (private_slots.EMPTY, row)) for row in rows]

    def removed(self, kids: Iterable[bytes]) -> None:
        """Halves are overwritten on the disk: forget them."""
        for kid in kids:
            found = self._slots.pop(kid, None)
            if found is not None:
                self._free.append(found[0])
                self.erase_wanted = True

    async def destroy(self, kids: Sequence[bytes]) -> None:
        """Overwrite the halves behind kids, and forget them. Raises OSError."""
        await self._store.write(self.removals(kids))
        self.removed(kids)

    async def sweep(self, now_ms: int) -> None:
        """Destroy the halves whose time is over, and those from the future: a clock that was wrong
        made them. Raises OSError."""
        latest = now_ms + int(CLOCKS_APART_S * 1000)
        await self.destroy(
            [
                kid
                for kid, (_, slot) in self._slots.items()
                if slot.destroyed_after < now_ms or slot.made_at > latest
            ]
        )
        if self._last_number > latest:  # it is of such a clock, and relays take none like it
            self._last_number = max((slot.number for _, slot in self._slots.values()), default=0)

    async def erase(self) -> None:
        """Empty the write-ahead log if it has destroyed halves; a reader may be in the way, then it
        is to be called again. Raises OSError, after which it is to be called again as well."""
        if self.erase_wanted:
            self.erase_wanted, is_erased = False, False
            try:
                is_erased = await anyio.to_thread.run_sync(self._store.erase)
            finally:  # others may be destroyed meanwhile
                self.erase_wanted |= not is_erased


class TakenPrekeys:
    """The one-time prekeys of peers that this node has taken and not used, in memory alone: no
    restored or crashed node uses one for a second time."""

    def __init__(self) -> None:
        self._by_owner: OrderedDict[bytes, list[OneTimePrekey]] = OrderedDict()
        self.requested: set[bytes] = set()
        """The peers whose keys are being requested, by one connection at a time."""

    def count(self, owner: bytes) -> int:
        """The number of unused keys of a peer."""
        return len(self._by_owner.get(owner, ()))

    def add(self, owner: bytes, prekey: OneTimePrekey, now_ms: int) -> bool:
        """Keep a verified key; False for one that is over, from the future, or known."""
        known = self._by_owner.setdefault(owner, [])
        is_ahead = prekey.made_at > now_ms + CLOCKS_APART_S * 1000
        if is_ahead or prekey.good_until <= now_ms or prekey in known or len(known) >= TAKEN_MAX:
            return False
        known.append(prekey)
        self._by_owner.move_to_end(owner)
        if len(self._by_owner) > OWNERS_MAX:
            self._by_owner.popitem(last=False)
        return True

    def use(self, owner: bytes, needed_until: int, lifetime_ms: int) -> bytes | None:
        """The public key of one that is good until a time (ms), which is forgotten with those
        before it; None if there is none. `lifetime_ms`: none is used for longer."""
        known = self._by_owner.get(owner, [])
        while known:
            prekey = known.pop(0)
            if min(prekey.good_until, prekey.made_at + lifetime_ms) >= needed_until:
                return prekey.public
        self._by_owner.pop(owner, None)
        return None
