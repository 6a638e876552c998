"""Encryption of records at rest (docs/reference/s2.md, "Encryption").

The key comes with each request. The node encrypts before it stores and decrypts before it answers;
it keeps no key, and cannot read what it has stored. Command records are stored in clear, as fences
and trims have to work without a key.

The body of a stored record, which has no headers:

    form u8 (1 aegis-256, 2 aes-256-gcm), metered size u32, nonce, ciphertext, tag

The clear text is MessagePack, `[headers, body]`. The associated data are the identity of the stream
and the bytes before the nonce, so a record that is copied into another stream does not open.
"""

from __future__ import annotations

import os
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

import anyio.to_thread
import msgspec

from millpond.actors.errors import Code
from millpond.actors.streams import messages as m
from millpond.transports.http.s2.codecs.config import Cipher
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    bad_header,
    coded_error,
    invalid,
)
from millpond.transports.http.s2.metadata import stream_metadata
from millpond.transports.http.s2.model import RECORD_BYTES, AppendInput, metered
from millpond.transports.http.s2.read_limits import ReadBudget, part_of

KEY_BYTES = 32
HEADER_BYTES_MAX = 44
"""32 bytes as Base64."""
THREAD_BYTES = 2**16
"""More than this is encrypted in a worker thread."""
GCM_RECORDS_MAX = 2**32
"""The random nonces of AES-256-GCM are too short for more under one key (NIST SP 800-38D, 8.3)."""

_HEAD = struct.Struct(">BI")
_CONTEXT = b"millpond s2 record\0"
_FRAMING_BYTES = 8
"""Bytes that MessagePack puts around the headers and the body."""
_FORMS = {Cipher.AEGIS_256: 1, Cipher.AES_256_GCM: 2}
_ARRAY = b"\xdd%b%b"
"""A list of 32 bits length in MessagePack."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[m.Headers, bytes]).decode
_decode_bodies = msgspec.msgpack.Decoder(list[bytes]).decode

T = TypeVar("T")
Entropy = Callable[[int], bytes]


class Aead(Protocol):
    """An algorithm with its key. `tag_bytes` are appended to the ciphertext."""

    nonce_bytes: int
    tag_bytes: int

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        """The ciphertext and its tag."""

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        """The clear text. Raises DecryptionFailed."""


class DecryptionFailed(Exception):
    """the key is another one, or the data are damaged"""


class AesGcm:
    """AES-256-GCM, of `cryptography`."""

    nonce_bytes, tag_bytes = 12, 16

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._algorithm, self._invalid = AESGCM(key), InvalidTag

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        return self._algorithm.encrypt(nonce, data, associated)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        try:
            return self._algorithm.decrypt(nonce, data, associated)
        except self._invalid:
            raise DecryptionFailed from None


class Aegis:
    """AEGIS-256, of libsodium. Raises ImportError where PyNaCl is not installed."""

    nonce_bytes, tag_bytes = 32, 32

    def __init__(self, key: bytes) -> None:
        from nacl import bindings
        from nacl.exceptions import CryptoError

        self._key, self._invalid = key, CryptoError
        self._encrypt = bindings.crypto_aead_aegis256_encrypt
        self._decrypt = bindings.crypto_aead_aegis256_decrypt

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        return self._encrypt(data, associated, nonce, self._key)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        try:
            return self._decrypt(data, associated, nonce, self._key)
        except self._invalid:
            raise DecryptionFailed from None


def check_cipher(cipher: Cipher | None) -> None:
    """Raises CodedError (501) for a cipher that this installation does not have."""
    if cipher is Cipher.AEGIS_256:
        _aead(cipher, bytes(KEY_BYTES))


def has_cipher(cipher: Cipher | None) -> bool:
    """True if this installation has the cipher; None: nothing is needed."""
    try:
        check_cipher(cipher)
    except CodedError:
        return False
    return True


def _aead(cipher: Cipher, key: bytes) -> Aead:
    if cipher is Cipher.AES_256_GCM:
        return AesGcm(key)
    try:
        return Aegis(key)
    except (ImportError, AttributeError):
        text = f"stream_cipher: {cipher.value!r} takes the package PyNaCl, which is not installed"
        raise CodedError(ErrorCode.NOT_IMPLEMENTED, text) from None


class EncryptionKey:
    """The key of a request, as its header has it; perhaps none. It shows itself nowhere."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes | None) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"<EncryptionKey {'-' if self._text is None else '...'}>"

    @classmethod
    def of_header(cls, value: bytes | None) -> EncryptionKey:
        """The header's key. Raises CodedError (bad_header) for a length that no key has."""
        text = None if value is None else value.strip()
        if text is not None and not 0 < len(text) <= HEADER_BYTES_MAX:
            raise bad_header(f"s2-encryption-key: expected {KEY_BYTES} bytes as Base64")
        return cls(text)

    def for_cipher(self, cipher: Cipher) -> Aead:
        """The algorithm with this key. Raises CodedError (bad_header), which names the cipher."""
        name = f"stream cipher {cipher.value!r}"
        if self._text is None:
            raise bad_header(f"missing encryption key for {name}")
        try:
            key = b64decode(self._text, validate=True)
        except ValueError:
            raise bad_header(f"invalid encryption key for {name}: invalid base64") from None
        if len(key) != KEY_BYTES:
            raise bad_header(f"invalid encryption key length for {name}: {len(key)}")
        return _aead(cipher, key)

    def for_stream(self, cell: bytes, found: m.StreamDescription) -> RecordCipher | None:
        """The cipher of a stream with this key; None: it has none, and the key does not count.
        Raises CodedError (bad_header)."""
        cipher = stream_metadata(found.settings).cipher
        if cipher is None:
            return None
        return RecordCipher(cipher, self.for_cipher(cipher), cell, found)


class RecordCipher:
    """The records of one incarnation of a stream, under one key."""

    __slots__ = ("_aead", "_cipher", "_entropy", "_form", "_identity", "_tail", "incarnation")

    def __init__(
        self,
        cipher: Cipher,
        aead: Aead,
        cell: bytes,
        found: m.StreamDescription,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._cipher = cipher
        self._aead = aead
        self._form = _FORMS[cipher]
        self._entropy = entropy
        self._tail = found.info.tail
        self.incarnation = found.incarnation
        self._identity = b"%b%b%b" % (_CONTEXT, found.incarnation.to_bytes(16, "big"), cell)

    # Appends.

    async def encrypted(self, given: AppendInput) -> AppendInput:
        """The append with its records as they are stored. Raises CodedError (422) where the stream
        is full for its cipher."""
        self._tail += len(given.bodies)
        if self._cipher is Cipher.AES_256_GCM and self._tail > GCM_RECORDS_MAX:
            raise invalid(f"a stream of {self._cipher.value} has 2^32 records at most")
        bodies = _bodies_of(given.bodies)
        run = partial(self._encrypt_all, bodies, given.headers)
        sealed = await _in_thread(run, sum(map(len, bodies)))
        headers = None if given.headers is None else [_kept(each) for each in given.headers]
        return msgspec.structs.replace(given, bodies=sealed, headers=headers)

    def _encrypt_all(self, bodies: list[bytes], headers: list[m.Headers] | None) -> list[bytes]:
        if headers is None:
            return [self.encrypt([], body) for body in bodies]
        return [
            body if _is_command(pairs) else self.encrypt(pairs, body)
            for pairs, body in zip(headers, bodies, strict=True)
        ]

    def encrypt(self, headers: m.Headers, body: bytes) -> bytes:
        """The stored body of a record."""
        head = _HEAD.pack(self._form, metered(body, headers))
        nonce = self._entropy(self._aead.nonce_bytes)
        sealed = self._aead.encrypt(nonce, _encode((headers, body)), self._identity + head)
        return head + nonce + sealed

    # Reads.

    def stored_bytes(self, count: int, metered_bytes: int) -> int:
        """The bytes that so many records take as they are stored, of so many metered ones without
        headers: a limit that counts those in clear reads as far as it does on other streams."""
        return metered_bytes + min(count, metered_bytes // RECORD_BYTES) * (
            _HEAD.size + self._aead.nonce_bytes + self._aead.tag_bytes + _FRAMING_BYTES
        )

    async def decrypted(self, records: m.Records, budget: ReadBudget) -> m.Records:
        """The records in clear, as far as the budget shows them. Those behind stay as they are:
        larger than in clear, so that the budget does not show them either.

        Raises CodedError: decryption_failed if one that is shown does not open; storage.
        """
        left = budget.admitted(self._sizes(records.spans))
        spans: list[m.RecordColumns] = []
        shown: list[m.RecordColumns] = []
        for span in records.spans:
            count = len(span.bodies)
            if left >= count:
                shown.append(span)
            elif left:
                shown.append(part_of(span, 0, left))
                spans.append(part_of(span, left, count))
            else:
                spans.append(span)
            left = max(0, left - count)
        size = sum([sum(map(len, span.bodies)) for span in shown])
        clear = await _in_thread(partial(self._decrypt_all, shown), size)
        return msgspec.structs.replace(records, spans=[*clear, *spans], slices=())

    def _sizes(self, spans: Sequence[m.RecordColumns]) -> Iterator[tuple[int, int]]:
        """The timestamp and the metered size of each record. Raises CodedError (storage)."""
        for span in spans:
            for at, body in enumerate(span.bodies):
                stamp = span.timestamp if span.timestamps is None else span.timestamps[at]
                pairs = span.headers[at] if span.headers is not None else []
                yield stamp, metered(body, pairs) if pairs else self._size(body)

    def _size(self, body: bytes) -> int:
        overhead = _HEAD.size + self._aead.nonce_bytes + self._aead.tag_bytes
        if len(body) <= overhead or body[0] != self._form:
            raise coded_error(Code.STORAGE_FAILED)
        size: int = _HEAD.unpack_from(body)[1]
        if not RECORD_BYTES <= size <= len(body):  # it is always larger than in clear
            raise coded_error(Code.STORAGE_FAILED)
        return size

    def _decrypt_all(self, spans: Sequence[m.RecordColumns]) -> list[m.RecordColumns]:
        return list(map(self._decrypt_span, spans))

    def _decrypt_span(self, span: m.RecordColumns) -> m.RecordColumns:
        bodies: list[bytes] = []
        headers: list[m.Headers] = []
        for at, stored in enumerate(span.bodies):
            pairs = span.headers[at] if span.headers is not None else []
            pairs, body = (pairs, stored) if pairs else self.decrypt(stored)
            headers.append(pairs)
            bodies.append(body)
        columns = headers if any(headers) else None
        return msgspec.structs.replace(span, bodies=bodies, headers=columns)

    def decrypt(self, stored: bytes) -> tuple[m.Headers, bytes]:
        """The headers and body of a record. Raises CodedError: decryption_failed, storage."""
        at = _HEAD.size + self._aead.nonce_bytes
        associated = self._identity + stored[: _HEAD.size]
        try:
            clear = self._aead.decrypt(stored[_HEAD.size : at], stored[at:], associated)
            return _decode(clear)
        except DecryptionFailed:
            text = "record decryption failed"
            raise CodedError(ErrorCode.DECRYPTION_FAILED, text) from None
        except msgspec.MsgspecError:
            raise coded_error(Code.STORAGE_FAILED) from None


def _is_command(pairs: m.Headers) -> bool:
    return bool(pairs) and not pairs[0][0]


def _kept(pairs: m.Headers) -> m.Headers:
    """The headers that are stored in clear."""
    return pairs if _is_command(pairs) else []


def _bodies_of(bodies: list[bytes] | m.PackedBodies) -> list[bytes]:
    if isinstance(bodies, list):
        return bodies
    return _decode_bodies(_ARRAY % (bodies.count.to_bytes(4, "big"), bodies.data))


async def _in_thread(run: Callable[[], T], size: int) -> T:
    """The result of `run`, which runs in a worker thread where it takes long."""
    return run() if size <= THREAD_BYTES else await anyio.to_thread.run_sync(run)
