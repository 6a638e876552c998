"""The identity of a node: an Ed25519 key pair, its file, and the peer id made of its key.

The file is text, mode 0600, and is refused when anything in it is not as it should be:

    millpond identity 1
    public 52 letters, the peer id
    secret 64 hexadecimal digits, the seed
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from collections.abc import Callable
from pathlib import Path

from millpond.node.atomic_files import UnsafeFile, read_private, write_new

KEY_BYTES = 32
ID_LETTERS = 52
FILE_NAME = "identity.key"
FILE_BYTES_MAX = 1024
VERSION_LINE = "millpond identity 1"

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


def load_identity(path: Path) -> Identity:
    """The identity in a file. Raises NoIdentity, or IdentityError for an unsafe or damaged file."""
    try:
        text = read_private(path, FILE_BYTES_MAX).decode("ascii")
    except FileNotFoundError as exc:
        raise NoIdentity(f"{path}: there is no identity; `millpond keys new` makes one") from exc
    except OSError as exc:
        raise IdentityError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise IdentityError(f"{path}: damaged: not text") from exc
    except UnsafeFile as exc:
        raise IdentityError(str(exc)) from exc
    return _parsed(text, path)


def create_identity(path: Path, entropy: Callable[[int], bytes]) -> Identity:
    """Create an identity and its file; a missing folder is made with mode 0700.

    It is on disk when this returns. Raises IdentityExists and IdentityError.
    """
    identity = Identity.new(entropy)
    text = f"{VERSION_LINE}\npublic {identity.id}\nsecret {identity.seed.hex()}\n"
    beside = f".{path.name}.{entropy(8).hex()}"
    try:
        _make_folder(path.parent)
        write_new(path, text.encode("ascii"), beside)
    except FileExistsError as exc:
        raise IdentityExists(f"{path}: there is an identity already; it is never replaced") from exc
    except OSError as exc:
        raise IdentityError(f"{path}: {exc.strerror}") from exc
    return identity


def load_or_create(path: Path, entropy: Callable[[int], bytes]) -> Identity:
    """The identity in a file, a new one if there is none. Raises IdentityError."""
    try:
        return load_identity(path)
    except NoIdentity:
        pass
    try:
        return create_identity(path, entropy)
    except IdentityExists:  # made in between, by somebody else
        return load_identity(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise IdentityError(f"{folder} is a file, and no folder") from exc


def _parsed(text: str, path: Path) -> Identity:
    match text.split("\n"):
        case [str(version), *_] if version != VERSION_LINE:
            if version.startswith("millpond identity "):
                raise IdentityError(f"{path}: of a later version; install that one")
            raise IdentityError(f"{path}: damaged: does not begin with {VERSION_LINE!r}")
        case [_, str(public), str(secret), ""]:
            identity = _identity(secret)
            if identity is not None and public == f"public {identity.id}":
                return identity
    raise IdentityError(f"{path}: damaged: secret and public key do not belong together")


def _identity(line: str) -> Identity | None:
    word, _, digits = line.partition(" ")
    if word != "secret" or len(digits) != 2 * KEY_BYTES or digits != digits.lower():
        return None
    try:
        return Identity(bytes.fromhex(digits))
    except ValueError:
        return None


def _not_an_id(text: str) -> str:
    shown = text if len(text) <= ID_LETTERS + 8 else f"{text[:ID_LETTERS]}..."
    return f"{shown!r} is not a peer id: {ID_LETTERS} letters a-z and digits 2-7"
