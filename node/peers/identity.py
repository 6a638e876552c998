"""The identity of a node: an Ed25519 key pair, its file, and the peer id made of its key.

The file is text, mode 0600, and is refused when anything in it is not as it should be:

    millpond identity 1
    public 52 letters, the peer id
    secret 64 hexadecimal digits, the seed

In a folder with a data key it begins with `millpond identity 2`, and the last line is `sealed` and
the seed, sealed for the location `identity.key`, in hexadecimal digits.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.node.atomic_files import UnsafeFile, read_private, replace, write_new

if TYPE_CHECKING:
    from millpond.node.peers.data_key import DataKey

KEY_BYTES = 32
ID_LETTERS = 52
FILE_NAME = "identity.key"
FILE_BYTES_MAX = 1024
PEER_IDS_MAX = 1024
"""The most peer ids that are kept: a message asks for that of its sender several times."""
_LOCATION = FILE_NAME.encode()
VERSION_LINE = "millpond identity 1"
SEALED_LINE = "millpond identity 2"

_PRIME = 2**255 - 19
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_LOW_ORDER_Y = frozenset({0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8})
"""For these points anybody can make signatures; RFC 8032 leaves it to us to refuse them."""


class BadPeerId(ValueError):
    """Text that is not a peer id, which has 52 letters a-z and digits 2-7."""


class IdentityError(Exception):
    """An unusable identity file; the text names the file and the reason, never the secret."""


class NoIdentity(IdentityError):
    """A missing identity file."""


class IdentityExists(IdentityError):
    """An existing identity file, which is never overwritten."""


class Identity:
    """A key pair. Only `seed` shows the secret; `repr` and errors do not."""

    __slots__ = ("_key", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        """From 32 bytes; ValueError for another length."""
        # To import it takes 20 ms, and most commands show no identity.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.seed = seed
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity that this seed of 32 bytes always makes."""
        return cls(seed)

    @classmethod
    def new(cls, entropy: Callable[[int], bytes]) -> Identity:
        """A new one; `entropy(32)` must be unpredictable (`os.urandom`)."""
        return cls(entropy(KEY_BYTES))

    @property
    def id(self) -> str:
        """The peer id."""
        return peer_id(self.public)

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"Identity({self.id})"


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """True if the owner of this public key has signed the data; False for an invalid key, too."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not is_key(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_key(public: bytes) -> bool:
    """True for a usable public key: 32 bytes, not of low order, and in its only spelling."""
    if len(public) != KEY_BYTES:
        return False
    y = int.from_bytes(public, "little") & (2**255 - 1)
    return y < _PRIME and y not in _LOW_ORDER_Y


@lru_cache(maxsize=PEER_IDS_MAX)
def peer_id(public: bytes) -> str:
    """32 bytes as 52 letters: lower-case base32 without padding."""
    if len(public) != KEY_BYTES:
        raise BadPeerId(f"a public key has {KEY_BYTES} bytes, not {len(public)}")
    return b32encode(public).decode("ascii").rstrip("=").lower()


def public_key_of(text: str) -> bytes:
    """The public key of a peer id. Raises BadPeerId."""
    try:
        public = b32decode(text.upper().encode("ascii") + b"====")
    except ValueError as exc:
        raise BadPeerId(_not_an_id(text)) from exc
    if len(public) != KEY_BYTES or peer_id(public) != text:
        raise BadPeerId(_not_an_id(text))
    return public


def load_identity(path: Path, key: DataKey | None = None) -> Identity:
    """The identity in a file, which is sealed with `key` if there is one.

    Raises NoIdentity, or IdentityError for a file that is unsafe, damaged, or sealed differently.
    """
    return _parsed(_read(path), path, key)


def load_public(path: Path) -> bytes:
    """The public key of the identity in a file, which may be sealed. Raises as `load_identity`."""
    text = _read(path)
    match text.split("\n"):
        case [str(version), str(public), str(sealed), ""] if version == SEALED_LINE:
            if public.startswith("public ") and sealed.startswith("sealed "):
                try:
                    return public_key_of(public.removeprefix("public "))
                except BadPeerId as exc:
                    raise IdentityError(f"{path}: damaged: {exc}") from exc
    return _parsed(text, path, None).public


def _read(path: Path) -> str:
    try:
        return read_private(path, FILE_BYTES_MAX).decode("ascii")
    except FileNotFoundError as exc:
        raise NoIdentity(f"{path}: there is no identity; `millpond keys new` makes one") from exc
    except OSError as exc:
        raise IdentityError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise IdentityError(f"{path}: damaged: not text") from exc
    except UnsafeFile as exc:
        raise IdentityError(str(exc)) from exc


def create_identity(
    path: Path, entropy: Callable[[int], bytes], key: DataKey | None = None
) -> Identity:
    """Create an identity and its file; a missing folder is made with mode 0700.

    It is on disk when this returns. Raises IdentityExists and IdentityError.
    """
    identity = Identity.new(entropy)
    beside = f".{path.name}.{entropy(8).hex()}"
    try:
        _make_folder(path.parent)
        write_new(path, _text(identity, key), beside)
    except FileExistsError as exc:
        raise IdentityExists(f"{path}: there is an identity already; it is never replaced") from exc
    except OSError as exc:
        raise IdentityError(f"{path}: {exc.strerror}") from exc
    return identity


def replace_identity(path: Path, identity: Identity, key: DataKey | None = None) -> None:
    """Put another identity into a file, for good. Raises OSError; the old one stays then."""
    replace(path, _text(identity, key))


def load_or_create(
    path: Path, entropy: Callable[[int], bytes], key: DataKey | None = None
) -> Identity:
    """The identity in a file, a new one if there is none. Raises IdentityError."""
    try:
        return load_identity(path, key)
    except NoIdentity:
        pass
    try:
        return create_identity(path, entropy, key)
    except IdentityExists:  # made in between, by somebody else
        return load_identity(path, key)


def _text(identity: Identity, key: DataKey | None) -> bytes:
    version, secret = VERSION_LINE, f"secret {identity.seed.hex()}"
    if key is not None:
        version, secret = SEALED_LINE, f"sealed {key.seal(_LOCATION, identity.seed).hex()}"
    lines = (version, f"public {identity.id}", secret, "")
    return "\n".join(lines).encode("ascii")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise IdentityError(f"{folder} is a file, and no folder") from exc


def _parsed(text: str, path: Path, key: DataKey | None) -> Identity:
    match text.split("\n"):
        case [str(version), *_] if version not in (VERSION_LINE, SEALED_LINE):
            if version.startswith("millpond identity "):
                raise IdentityError(f"{path}: of a later version; install that one")
            raise IdentityError(f"{path}: damaged: does not begin with {VERSION_LINE!r}")
        case [str(version), str(public), str(secret), ""]:
            seed = _seed(version, secret, path, key)
            identity = None if seed is None else Identity(seed)
            if identity is not None and public == f"public {identity.id}":
                return identity
    raise IdentityError(f"{path}: damaged: secret and public key do not belong together")


def _seed(version: str, line: str, path: Path, key: DataKey | None) -> bytes | None:
    """The seed in the last line; None: it is damaged. Raises IdentityError."""
    word, _, digits = line.partition(" ")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        return None
    if digits != value.hex():
        return None
    if version == VERSION_LINE:
        if key is not None:
            raise IdentityError(f"{path}: not encrypted, although the folder is")
        return value if word == "secret" and len(value) == KEY_BYTES else None
    if key is None:
        raise IdentityError(
            f"{path}: encrypted; give the file with its passphrase (MILLPOND_PASSPHRASE_FILE)"
        )
    from millpond.node.peers.data_key import CannotUnseal

    try:
        seed = key.unseal(_LOCATION, value)
    except CannotUnseal:
        return None
    return seed if word == "sealed" and len(seed) == KEY_BYTES else None


def _not_an_id(text: str) -> str:
    shown = text if len(text) <= ID_LETTERS + 8 else f"{text[:ID_LETTERS]}..."
    return f"{shown!r} is not a peer id: {ID_LETTERS} letters a-z and digits 2-7"
