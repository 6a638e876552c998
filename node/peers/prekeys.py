"""Prekeys: X25519 keys for which envelopes are sealed (docs/internals/peers.md), and those of this
node.

A prekey is signed by its owner twice: as the wire has it, `"p2pbuf prekey v1\\0" | key`, and with
its dates, `"p2pbuf prekey card v1\\0" | key | made_at u64 | good_until u64` (ms since 1970), so
that a relay or a peer that passes it on cannot prolong it. It is published as a MessagePack map of
`key`, `signature`, `made_at` and `good_until` (ms) and `proof`, the second signature.
`prekey_cache` has the prekeys of other peers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Annotated

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.atomic_files import UnsafeFile, read_private, replace, sync_folder
from millpond.node.peers.envelope import KEY_BYTES, is_usable, kid_of
from millpond.node.peers.identity import Identity, verify
from millpond.transports.errors import WireError

log = logging.getLogger(__name__)

DAY_S = 86_400.0
ROTATED_S = DAY_S
CLOCKS_APART_S = 3600.0
"""The error of clocks, here and at senders, that is allowed for."""
TTL_S_MAX = 7 * DAY_S

VERSION_LINE = "millpond prekey 1"
SUFFIX = ".key"
DRAFT = ".new"
FILE_BYTES_MAX = 1024
PUBLISHED_BYTES_MAX = 1024

_SIGNED = b"p2pbuf prekey v1\0"
_DATED = b"p2pbuf prekey card v1\0"
_DATES = struct.Struct(">QQ")
_FILE = re.compile(
    rb"(?P<text>%s\nprivate (?P<private>[0-9a-f]{64})\nmade (?P<made>[0-9]{1,15})\n"
    rb"until (?P<until>[0-9]{1,15})\n)check (?P<check>[0-9a-f]{64})\n" % VERSION_LINE.encode()
)
_SECONDS_MAX = 2**42
"""Up to here a float keeps milliseconds apart."""


class MalformedPrekey(WireError):
    """Published data that is not a prekey."""


class SignedPrekey(msgspec.Struct, frozen=True):
    """A signed prekey. Times are in seconds since 1970, in whole milliseconds."""

    public: bytes
    signature: bytes
    made_at: float
    good_until: float
    proof: bytes

    @property
    def kid(self) -> bytes:
        """The 4 bytes by which envelopes name it."""
        return kid_of(self.public)


def sign_prekey(owner: Identity, public: bytes, made_at: float, good_until: float) -> SignedPrekey:
    """A prekey signed by its owner; times are rounded to milliseconds."""
    made, until = _ms(made_at), _ms(good_until)
    signature = owner.sign(_SIGNED + public)
    proof = owner.sign(_DATED + public + _DATES.pack(made, until))
    return SignedPrekey(public, signature, made / 1000, until / 1000, proof)


def check(prekey: SignedPrekey, owner_public: bytes) -> bool:
    """True if this owner has signed the prekey with its dates, and it is usable."""
    made, until = prekey.made_at, prekey.good_until
    if not 0 <= made < until < _SECONDS_MAX or not is_usable(prekey.public):
        return False
    dated = _DATED + prekey.public + _DATES.pack(_ms(made), _ms(until))
    return verify(owner_public, prekey.signature, _SIGNED + prekey.public) and verify(
        owner_public, prekey.proof, dated
    )


_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
_Time = Annotated[int, msgspec.Meta(ge=0, lt=_SECONDS_MAX * 1000)]


class PublishedPrekey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The published form, on the wire and in files."""

    key: _Key
    signature: _Signature
    made_at: _Time
    good_until: _Time
    proof: _Signature


_published = msgspec.msgpack.Decoder(PublishedPrekey)


def encode_prekey(prekey: SignedPrekey) -> bytes:
    """The published bytes, for the channel `mail/<peer id>!keys`."""
    return msgspec.msgpack.encode(to_published(prekey))


def decode_prekey(data: bytes) -> SignedPrekey:
    """The prekey in published bytes, with unchecked signatures. Raises MalformedPrekey."""
    if len(data) > PUBLISHED_BYTES_MAX:
        raise MalformedPrekey(f"{len(data)} bytes are no prekey")
    try:
        return from_published(_published.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MalformedPrekey(str(exc)) from exc


def to_published(prekey: SignedPrekey) -> PublishedPrekey:
    """The published form of a prekey, with times in whole milliseconds."""
    made, until = _ms(prekey.made_at), _ms(prekey.good_until)
    return PublishedPrekey(prekey.public, prekey.signature, made, until, prekey.proof)


def from_published(published: PublishedPrekey) -> SignedPrekey:
    """The prekey in its published form."""
    made, until = published.made_at / 1000, published.good_until / 1000
    return SignedPrekey(published.key, published.signature, made, until, published.proof)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True)
class _PrekeyPair:
    private: bytes = field(repr=False)
    prekey: SignedPrekey

    @property
    def destroyed_after(self) -> float:
        return self.prekey.good_until + CLOCKS_APART_S


class Prekeys:
    """The prekeys of this node: a new one each day.

    An old prekey is destroyed when nothing that was sealed for it can still arrive.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: Identity,
        now: Callable[[], float],
        entropy: Callable[[int], bytes],
        ttl_s_max: float = TTL_S_MAX,
    ) -> None:
        """Reads what is there, and sweeps. Raises OSError."""
        self._folder = folder
        self._identity = identity
        self._now = now
        self._entropy = entropy
        self._lifetime_s = ROTATED_S + ttl_s_max + DAY_S
        self._lock = Lock()
        self._held: dict[bytes, _PrekeyPair] = {}
        if folder is not None and not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.parent)
        self.sweep(now())

    def current(self) -> SignedPrekey:
        """The prekey to publish, made within the last day. When this returns it is on the disk.

        Raises OSError: nothing has changed then, and the next call tries again.
        """
        fresh = self._fresh()
        if fresh is not None:
            return fresh
        with self._locked():
            self._load()  # another process may have made one
            return self._fresh() or self._make()

    def private(self, kid: bytes) -> bytes | None:
        """The private key (32 bytes) behind a kid; None when it is not ours or was destroyed.

        Raises OSError when the disk cannot tell.
        """
        held = self._held.get(kid)
        if held is None and self._folder is not None:
            held = self._read(_path(self._folder, kid))
        return None if held is None else held.private

    def sweep(self, now: float) -> None:
        """Destroy prekeys that are too old at `now` (seconds since 1970). Called about every hour.

        Raises OSError: what could not be unlinked is tried again the next time.
        """
        with self._locked():
            self._load()
            gone = [kid for kid, held in self._held.items() if held.destroyed_after < now]
            for kid in gone:
                if self._folder is not None:
                    _path(self._folder, kid).unlink(missing_ok=True)
                del self._held[kid]
            if gone and self._folder is not None:
                sync_folder(self._folder)

    def _fresh(self) -> SignedPrekey | None:
        """The youngest prekey of the last day. One from the future was made by a wrong clock: it is
        left out, or it would stay current too long."""
        now = self._now()
        held = (each.prekey for each in tuple(self._held.values()))
        fresh = [each for each in held if -CLOCKS_APART_S <= now - each.made_at < ROTATED_S]
        return max(fresh, key=lambda each: each.made_at, default=None)

    def _make(self) -> SignedPrekey:
        private = self._entropy(KEY_BYTES)
        made_at = self._now()
        good_until = made_at + self._lifetime_s - CLOCKS_APART_S
        prekey = sign_prekey(self._identity, _public(private), made_at, good_until)
        if prekey.kid in self._held:
            return self._make()
        if self._folder is not None:
            replace(_path(self._folder, prekey.kid), _text(private, prekey))
        self._held[prekey.kid] = _PrekeyPair(private, prekey)
        return prekey

    def _load(self) -> None:
        """Read prekeys that other processes have made. Such a process may have died before it
        synced the folder, so the folder is synced before the prekey is used."""
        if self._folder is None:
            return
        known = {f"{kid.hex()}{SUFFIX}" for kid in self._held}
        found: list[_PrekeyPair] = []
        for path in sorted(self._folder.iterdir()):
            if path.suffix == DRAFT:  # of a process that was killed, and never published
                path.unlink()
            elif path.suffix == SUFFIX and path.name not in known:
                found += filter(None, [self._read(path)])
        if found:
            sync_folder(self._folder)
            self._held.update((each.prekey.kid, each) for each in found)

    def _read(self, path: Path) -> _PrekeyPair | None:
        try:
            held = _parsed(read_private(path, FILE_BYTES_MAX), self._identity)
        except FileNotFoundError:
            return None
        except UnsafeFile as exc:
            log.error("prekey_refused error=%s", exc)
            return None
        if held is None or path.stem != held.prekey.kid.hex():
            log.error("prekey_damaged file=%s", path)
            return None
        return held

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if self._folder is None:
                yield
                return
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)


def _path(folder: Path, kid: bytes) -> Path:
    return folder / f"{kid.hex()}{SUFFIX}"


def _text(private: bytes, prekey: SignedPrekey) -> bytes:
    made, until = _ms(prekey.made_at), _ms(prekey.good_until)
    text = f"{VERSION_LINE}\nprivate {private.hex()}\nmade {made}\nuntil {until}\n".encode("ascii")
    return text + f"check {sha256(text).hexdigest()}\n".encode("ascii")


def _parsed(data: bytes, owner: Identity) -> _PrekeyPair | None:
    """None when it is damaged. The signatures are made again: an owner's are always the same."""
    found = _FILE.fullmatch(data)
    if found is None or sha256(found["text"]).hexdigest().encode("ascii") != found["check"]:
        return None
    private = bytes.fromhex(found["private"].decode("ascii"))
    made, until = int(found["made"]) / 1000, int(found["until"]) / 1000
    return _PrekeyPair(private, sign_prekey(owner, _public(private), made, until))


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
