"""The objects of a replica: their names below its prefix, and their bytes.

    format                     the node that the prefix belongs to; made once
    journal/<number>           records of the journal, in objects that are numbered without a gap
    snapshot/<epoch>-<lsn>     a manifest: the store at one moment, as a list of blobs
    blob/<hash>                a file of a snapshot, by its SHA-256; snapshots share them
    owner/<epoch>              the process that ships from some number on; made once
    beat/<epoch>-<count>       the owner was alive; old ones are removed
    standby/<run>-<ms>         a standby that takes over after so long; the owner removes it
    keys/<epoch>-<count>       the identity and keys of the node, sealed under a passphrase
    cold/<epoch>-<count>       chunks of a stream, which its node has nowhere else
    takeover/<number>          an operator's leave to go on without a history that has no snapshot

Numbers have 20 digits, so that names sort like them. An object is made if it is absent, or not at
all: whoever makes journal object n ships, and nobody else has n. Each journal object has the
SHA-256 of the header before, so that a missing or another one shows. docs/reference/replica.md has
the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256
from struct import Struct
from typing import TypeVar

import msgspec

from millpond.actors.store.journal.format import (
    HEADER_SIZE,
    Header,
    Record,
    Rewrite,
    Scan,
    encode_group,
)
from millpond.node.replica.errors import BadReplica

FORMAT_VERSION = 1
FORMAT = "format"
JOURNAL, SNAPSHOT, BLOB, OWNER, BEAT = "journal/", "snapshot/", "blob/", "owner/", "beat/"
STANDBY, TAKEOVER, KEYS, COLD = "standby/", "takeover/", "keys/", "cold/"
MANIFEST_VERSIONS = (1, 2)
"""Of the second one are manifests whose files need cold objects: earlier versions would serve these
files wrongly."""
BEAT_S = 10.0
MAGIC = b"MILLPOND REPLICA"
HEADER_BYTES_MAX = 4096
ID_BYTES = 16

_T = TypeVar("_T")
_LENGTH = Struct("<I")
_REWRITE_AT = 7
"""Where a record tells that it changes nothing (`Rewrite`)."""


class FormatObject(msgspec.Struct, frozen=True):
    """The object `format`. `node` is the random id of the node, 16 bytes."""

    version: int
    node: bytes
    made_at: float


class Owner(msgspec.Struct, frozen=True):
    """The process of an epoch: it ships from journal object `number` on. `made_at` in seconds since
    1970; `host` is for people, `url` the public address of its HTTP listener, if it has one."""

    epoch: int
    node: bytes
    run: bytes
    number: int
    made_at: float
    host: str = ""
    url: str = ""


class JournalHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a journal object: the records with an lsn above `after_lsn` and up to
    `last_lsn`, without rewrites, which change nothing.

    `history` counts the breaks: objects of two histories do not follow one another, because the
    node lost the end of its journal, or ran without a replica; a snapshot begins each history.
    `run` is the process, `salt` that of its journal's checksums, `previous` the SHA-256 of the
    header of object `number - 1` (empty: there is none), `sha256` that of the body, whose length is
    `size`. `made_at`, in seconds since 1970, is the moment at which its last record was stored;
    without records that of the claim.
    """

    version: int
    number: int
    epoch: int
    history: int
    node: bytes
    run: bytes
    made_at: float
    after_lsn: int
    last_lsn: int
    salt: int
    previous: bytes
    size: int
    sha256: bytes
    continues: bool = False
    """The claim of a node whose store was made of everything before it: its history goes on from
    there, with lsns of its own."""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the header, which the next one has."""
        return sha256(_encoder.encode(self)).digest()


class SnapshotFile(msgspec.Struct, frozen=True):
    """A file of a snapshot: its path in the data folder, its length and SHA-256 (hexadecimal)."""

    path: str
    size: int
    sha256: str


class ColdUse(msgspec.Struct, frozen=True, array_like=True):
    """A cold object, and the bytes of it that a snapshot needs."""

    epoch: int
    number: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: the store with every record up to `lsn`, and nothing after.

    Journal objects from `number` on have what follows in `history`. `program` is the version that
    made it.
    """

    version: int
    node: bytes
    epoch: int
    history: int
    lsn: int
    number: int
    made_at: float
    program: str
    messages: int
    streams: int
    files: tuple[SnapshotFile, ...]
    cold: tuple[ColdUse, ...] = ()
    """The cold objects that its files need."""
    cold_next: tuple[int, int] = (0, 0)
    """The epoch and number from which on there may be cold objects that later snapshots need."""

    @property
    def cold_bytes(self) -> int:
        """The bytes that its files need of cold objects."""
        return sum(each.bytes for each in self.cold)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.files)


class Beat(msgspec.Struct, frozen=True):
    """The owner of an epoch was alive at `at` (seconds since 1970), and had shipped `lsn`; the next
    beat comes within about `every_s` seconds."""

    epoch: int
    at: float
    lsn: int
    every_s: float = BEAT_S


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(JournalHeader)


def journal_name(number: int) -> str:
    """The name of a journal object."""
    return f"{JOURNAL}{number:020}"


def owner_name(epoch: int) -> str:
    """The name of the object that tells the owner of an epoch."""
    return f"{OWNER}{epoch:020}"


def snapshot_name(epoch: int, lsn: int) -> str:
    """The name of a manifest; the names sort by age."""
    return f"{SNAPSHOT}{epoch:020}-{lsn:020}"


def blob_name(digest: str) -> str:
    """The name of the blob with this SHA-256 (hexadecimal)."""
    return f"{BLOB}{digest[:2]}/{digest}"


def beat_name(epoch: int, count: int) -> str:
    """The name of a beat."""
    return f"{BEAT}{epoch:020}-{count:020}"


def keys_name(epoch: int, count: int) -> str:
    """The name of sealed keys; the names sort by age."""
    return f"{KEYS}{epoch:020}-{count:020}"


def cold_name(epoch: int, number: int) -> str:
    """The name of a cold object; the names sort by age."""
    return f"{COLD}{epoch:020}-{number:020}"


def cold_key(name: str) -> tuple[int, int]:
    """The epoch and the number of a cold object by its name. Raises BadReplica."""
    epoch, _, number = name.removeprefix(COLD).partition("-")
    if not (epoch.isdecimal() and number.isdecimal()):
        raise BadReplica(f"{name}: no object of a replica has this name")
    return int(epoch), int(number)


def standby_name(run: bytes, takeover_s: float) -> str:
    """The name by which a standby tells the owner of itself."""
    return f"{STANDBY}{run.hex()}-{round(takeover_s * 1000)}"


def takeover_name(number: int) -> str:
    """The name of the leave to go on without the last history, which ends at this journal object
    and has no snapshot."""
    return f"{TAKEOVER}{number:020}"


def number_of(name: str) -> int:
    """The number at the end of a name of a journal object, an owner or a beat. Raises
    BadReplica."""
    digits = name.rpartition("/")[2].rpartition("-")[2]
    if not digits.isdecimal():
        raise BadReplica(f"{name}: no object of a replica has this name")
    return int(digits)


def changes_something(record: bytes) -> bool:
    """True for a record, as the journal has it, that is no rewrite."""
    return record[_REWRITE_AT] == Rewrite.NONE


def journal_body(salt: int, records: list[bytes], after_lsn: int) -> bytes:
    """The body of a journal object: one group of the journal, or nothing."""
    return encode_group(salt, records, after_lsn + 1, 0) if records else b""


def encode_journal_object(header: JournalHeader, body: bytes) -> bytes:
    """The bytes of a journal object."""
    head = _encoder.encode(header)
    return b"".join((MAGIC, _LENGTH.pack(len(head)), head, sha256(head).digest(), body))


def decode_journal_object(data: bytes, name: str) -> tuple[JournalHeader, bytes]:
    """The header and the body of a journal object, both whole. Raises BadReplica, which names
    it."""
    header, start = _decode_header(data, name)
    body = data[start:]
    if len(body) != header.size or sha256(body).digest() != header.sha256:
        raise BadReplica(f"{name} is damaged: its content is not what was written")
    return header, body


def _decode_header(data: bytes, name: str) -> tuple[JournalHeader, int]:
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise BadReplica(f"{name} is damaged: it is no journal object")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    head, end = data[start : start + length], start + length + sha256().digest_size
    if length > HEADER_BYTES_MAX or data[start + length : end] != sha256(head).digest():
        raise BadReplica(f"{name} is damaged: its header is not what was written")
    try:
        header = _header_decoder.decode(head)
    except msgspec.MsgspecError as exc:
        raise BadReplica(f"{name}: its header is none that this version reads: {exc}") from exc
    check_version(header.version, name)
    if journal_name(header.number) != name:
        raise BadReplica(f"{name} is damaged: it is object {header.number} of the journal")
    return header, end


def records_of(header: JournalHeader, body: bytes) -> Iterator[Record]:
    """The records of a journal object, in order. Raises BadReplica."""
    if not body:
        return
    # The journal's own reader, as of a segment whose header was read already.
    as_segment = Header(header.number, header.after_lsn + 1, header.salt)
    scan = Scan(bytes(HEADER_SIZE) + body, None, as_segment)
    last = header.after_lsn
    for record in scan.records():
        if not last < record.lsn <= header.last_lsn:
            raise BadReplica(f"{journal_name(header.number)} is damaged: record {record.lsn}")
        last = record.lsn
        yield record
    if scan.gaps or scan.end != HEADER_SIZE + len(body):
        raise BadReplica(f"{journal_name(header.number)} is damaged: bytes that are no records")


def encode_json(value: msgspec.Struct) -> bytes:
    """A small object that people may read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode_format(data: bytes) -> FormatObject:
    """The object `format`. Raises BadReplica."""
    return _versioned(data, FormatObject, FORMAT)


def decode_owner(data: bytes, name: str) -> Owner:
    """Raises BadReplica."""
    return _decoded(data, Owner, name)


def decode_beat(data: bytes, name: str) -> Beat:
    """Raises BadReplica."""
    return _decoded(data, Beat, name)


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest, with the SHA-256 of its content in front."""
    content = encode_json(manifest)
    return sha256(content).hexdigest().encode() + b"\n" + content


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Raises BadReplica."""
    digest, _, content = data.partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise BadReplica(f"{name} is damaged: it is not what was written")
    return _versioned(content, Manifest, name, MANIFEST_VERSIONS)


def check_version(version: int, name: str, read: Collection[int] = (FORMAT_VERSION,)) -> None:
    """Raises BadReplica for a version that is not read."""
    if version not in read:
        raise BadReplica(f"{name}: version {version}; this program reads {max(read)}")


class _Version(msgspec.Struct):
    version: int


def _versioned(
    data: bytes, kind: type[_T], name: str, read: Collection[int] = (FORMAT_VERSION,)
) -> _T:
    check_version(_decoded(data, _Version, name).version, name, read)
    return _decoded(data, kind, name)


def _decoded(data: bytes, kind: type[_T], name: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise BadReplica(f"{name} is damaged: {exc}") from exc
