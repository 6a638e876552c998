"""Prekeys: X25519 keys for which envelopes are sealed (docs/internals/peers.md), and those of this
node.

A prekey is signed by its owner with its dates, so that a relay or a peer that passes it on cannot
prolong it: `"millpond prekey v2\\0" | key | made_at u64 | good_until u64` (ms since 1970). It is
published as a MessagePack map of `version` (2), `key`, `made_at`, `good_until` (ms) and
`signature`. Of two prekeys of an owner the one that was made later counts.

Version 1 has no `version`, and two signatures: `signature` of `"p2pbuf prekey v1\\0" | key`, and
`proof` of `"p2pbuf prekey card v1\\0"` with the same key and dates. A node publishes its key in
both forms; a sender that reads version 2 seals messages of version 2. `prekey_cache` has the
prekeys of other peers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.atomic_files import UnsafeFile, read_private, replace, sync_folder
from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.node.peers.envelope import KEY_BYTES, is_usable, kid_of
from millpond.node.peers.identity import Identity, verify
from millpond.transports.errors import WireError

log = logging.getLogger(__name__)

DAY_S = 86_400.0
ROTATED_S = DAY_S
CLOCKS_APART_S = 3600.0
"""The error of clocks, here and at senders, that is allowed for."""
KEPT_BEYOND_TTL_S = 2 * DAY_S
"""A prekey lives this much longer than the messages that are sealed for it."""
TTL_S_MAX = 7 * DAY_S

VERSION_LINE = "millpond prekey 1"
SUFFIX = ".key"
DRAFT = ".new"
FILE_BYTES_MAX = 1024
PUBLISHED_BYTES_MAX = 1024

_SIGNED = b"p2pbuf prekey v1\0"
_DATED = b"p2pbuf prekey card v1\0"
_SIGNED_V2 = b"millpond prekey v2\0"
_DATES = struct.Struct(">QQ")
SEALED_LINE = "millpond prekey 2"
_FILE = re.compile(
    rb"(?P<text>(?P<version>%s|%s)\n(?:private|sealed) (?P<private>[0-9a-f]{64}(?:[0-9a-f]{58})?)\n"
    rb"made (?P<made>[0-9]{1,15})\nuntil (?P<until>[0-9]{1,15})\n)check (?P<check>[0-9a-f]{64})\n"
    % (VERSION_LINE.encode(), SEALED_LINE.encode())
)
_SECONDS_MAX = 2**42
"""Up to here a float keeps milliseconds apart."""


class MalformedPrekey(WireError):
    """Published data that is not a prekey."""


class SignedPrekey(msgspec.Struct, frozen=True):
    """A signed prekey. Times are in seconds since 1970, in whole milliseconds.

    `version`: the version of messages that its owner reads. `proof` is empty in version 2.
    """

    public: bytes
    signature: bytes
    made_at: float
    good_until: float
    proof: bytes
    version: int = 1

    @property
    def kid(self) -> bytes:
        """The 4 bytes by which envelopes name it."""
        return kid_of(self.public)


def sign_prekey(
    owner: Identity, public: bytes, made_at: float, good_until: float, version: int = 2
) -> SignedPrekey:
    """A prekey signed by its owner; times are rounded to milliseconds."""
    made, until = _ms(made_at), _ms(good_until)
    dated = public + _DATES.pack(made, until)
    if version == 1:
        signature, proof = owner.sign(_SIGNED + public), owner.sign(_DATED + dated)
    else:
        signature, proof = owner.sign(_SIGNED_V2 + dated), b""
    return SignedPrekey(public, signature, made / 1000, until / 1000, proof, version)


def check(prekey: SignedPrekey, owner_public: bytes) -> bool:
    """True if this owner has signed the prekey with its dates, and it is usable."""
    made, until = prekey.made_at, prekey.good_until
    if not 0 <= made < until < _SECONDS_MAX or not is_usable(prekey.public):
        return False
    dated = prekey.public + _DATES.pack(_ms(made), _ms(until))
    if prekey.version != 1:
        return verify(owner_public, prekey.signature, _SIGNED_V2 + dated)
    return verify(owner_public, prekey.signature, _SIGNED + prekey.public) and verify(
        owner_public, prekey.proof, _DATED + dated
    )


_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
_Time = Annotated[int, msgspec.Meta(ge=0, lt=_SECONDS_MAX * 1000)]


class PublishedPrekey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The published form, on the wire and in files."""

    key: _Key
    signature: _Signature
    made_at: _Time
    good_until: _Time
    proof: _Signature | None = None
    version: Literal[1, 2] = 1


_published = msgspec.msgpack.Decoder(PublishedPrekey)


def encode_prekey(prekey: SignedPrekey) -> bytes:
    """The published bytes, for the channel `mail/<peer id>!keys`."""
    return msgspec.msgpack.encode(to_published(prekey))


def decode_prekey(data: bytes) -> SignedPrekey:
    """The prekey in published bytes, with unchecked signatures. Raises MalformedPrekey."""
    if len(data) > PUBLISHED_BYTES_MAX:
        raise MalformedPrekey(f"{len(data)} bytes are no prekey")
    try:
        published = _published.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MalformedPrekey(str(exc)) from exc
    if (published.version == 1) != (published.proof is not None):
        raise MalformedPrekey("version 1 has a proof, and no other")
    return from_published(published)


def to_published(prekey: SignedPrekey) -> PublishedPrekey:
    """The published form of a prekey, with times in whole milliseconds."""
    made, until = _ms(prekey.made_at), _ms(prekey.good_until)
    version: Literal[1, 2] = 1 if prekey.version == 1 else 2
    proof = prekey.proof or None
    return PublishedPrekey(prekey.public, prekey.signature, made, until, proof, version)


def from_published(published: PublishedPrekey) -> SignedPrekey:
    """The prekey in its published form."""
    made, until = published.made_at / 1000, published.good_until / 1000
    proof, version = published.proof or b"", published.version
    return SignedPrekey(published.key, published.signature, made, until, proof, version)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class _PrekeyPair(msgspec.Struct, frozen=True):
    private: bytes
    prekey: SignedPrekey

    def __repr__(self) -> str:
        """Without the private key: this may end up in a log."""
        return f"_PrekeyPair(prekey={self.prekey!r})"

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
        key: DataKey | None = None,
    ) -> None:
        """Reads what is there, and sweeps. Files are sealed with `key` if there is one. Raises
        OSError."""
        self._folder = folder
        self._key = key
        self._identity = identity
        self._now = now
        self._entropy = entropy
        self._lifetime_s = ttl_s_max + KEPT_BEYOND_TTL_S
        self._lock = Lock()
        self._held: dict[bytes, _PrekeyPair] = {}
        if folder is not None and not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(folder.parent)
        self.sweep(now())

    @property
    def is_empty(self) -> bool:
        """True if there are none, as far as this process knows."""
        return not self._held

    @property
    def lifetime_s(self) -> float:
        """The longest life of a prekey in the folder: commands make them as well, without the
        configuration of the node."""
        return max(self._lifetime_s, TTL_S_MAX + KEPT_BEYOND_TTL_S)

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

    def as_version_1(self, prekey: SignedPrekey) -> SignedPrekey:
        """A prekey of this node in the form that nodes of version 1 read."""
        return sign_prekey(
            self._identity, prekey.public, prekey.made_at, prekey.good_until, version=1
        )

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
            self._correct_dates(now)
            gone = [kid for kid, held in self._held.items() if held.destroyed_after < now]
            for kid in gone:
                if self._folder is not None:
                    _path(self._folder, kid).unlink(missing_ok=True)
                del self._held[kid]
            if gone and self._folder is not None:
                sync_folder(self._folder)

    def _correct_dates(self, now: float) -> None:
        """Date keys from the future as made now, or they would be kept for as long.

        A wrong clock made them, unless the clock is wrong now: a key that is a day old tells.
        """
        held = list(self._held.values())
        if not any(ROTATED_S <= now - each.prekey.made_at <= self._lifetime_s for each in held):
            return
        for each in held:
            if each.prekey.made_at > now + CLOCKS_APART_S:
                self._keep(each.private, now - CLOCKS_APART_S)

    def _fresh(self) -> SignedPrekey | None:
        """The youngest prekey of the last day. One from the future was made by a wrong clock: it is
        left out, or it would stay current too long."""
        now = self._now()
        held = (each.prekey for each in tuple(self._held.values()))
        fresh = [each for each in held if -CLOCKS_APART_S <= now - each.made_at < ROTATED_S]
        return max(fresh, key=lambda each: each.made_at, default=None)

    def _make(self) -> SignedPrekey:
        private = self._entropy(KEY_BYTES)
        if kid_of(_public(private)) in self._held:
            return self._make()
        return self._keep(private, self._now())

    def _keep(self, private: bytes, made_at: float) -> SignedPrekey:
        good_until = made_at + self._lifetime_s - CLOCKS_APART_S
        prekey = sign_prekey(self._identity, _public(private), made_at, good_until)
        if self._folder is not None:
            replace(_path(self._folder, prekey.kid), _text(private, prekey, self._key))
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
            held = _parsed(path, read_private(path, FILE_BYTES_MAX), self._identity, self._key)
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


def rewrite_prekeys(
    folder: Path, owner: Identity, read: DataKey | None, write: DataKey | None
) -> None:
    """Write the files that are sealed with `read` (None: that are clear) anew, sealed with `write`.
    Other files stay as they are. Raises OSError."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix == DRAFT:
            path.unlink(missing_ok=True)  # the file it was for may have been written meanwhile
        elif path.suffix == SUFFIX:
            try:
                held = _parsed(path, read_private(path, FILE_BYTES_MAX), owner, read)
            except UnsafeFile:
                continue
            if held is not None and path == _path(folder, held.prekey.kid):
                replace(path, _text(held.private, held.prekey, write))


def _text(private: bytes, prekey: SignedPrekey, key: DataKey | None) -> bytes:
    made, until = _ms(prekey.made_at), _ms(prekey.good_until)
    head = f"{VERSION_LINE}\nprivate {private.hex()}"
    if key is not None:
        sealed = key.seal(_location(prekey.kid, made, until), private)
        head = f"{SEALED_LINE}\nsealed {sealed.hex()}"
    text = f"{head}\nmade {made}\nuntil {until}\n".encode("ascii")
    return text + f"check {sha256(text).hexdigest()}\n".encode("ascii")


def _location(kid: bytes, made: int, until: int) -> bytes:
    return f"prekeys/{kid.hex()} {made} {until}".encode("ascii")


def _parsed(path: Path, data: bytes, owner: Identity, key: DataKey | None) -> _PrekeyPair | None:
    """None when it is damaged. The signatures are made again: an owner's are always the same."""
    found = _FILE.fullmatch(data)
    if found is None or sha256(found["text"]).hexdigest().encode("ascii") != found["check"]:
        return None
    private = bytes.fromhex(found["private"].decode("ascii"))
    made, until = int(found["made"]), int(found["until"])
    if (found["version"] == SEALED_LINE.encode()) != (key is not None):
        return None
    try:
        if key is not None:
            private = key.unseal(_location(bytes.fromhex(path.stem), made, until), private)
    except (CannotUnseal, ValueError):
        return None
    if len(private) != KEY_BYTES:
        return None
    return _PrekeyPair(private, sign_prekey(owner, _public(private), made / 1000, until / 1000))


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
