"""The bodies of operations 50 to 54 of packets 94 and 95 (docs/reference/wire-protocol.md):
MessagePack maps."""

from __future__ import annotations

import msgspec


class FileBeginRequest(msgspec.Struct):
    """A file of `size` bytes for `peer`, in a message `uuid` (16 bytes). Asked again, it goes
    on."""

    peer: str
    uuid: bytes
    size: int
    name: str
    type: str = ""


class FileBeginAnswer(msgspec.Struct):
    """The number of the first chunk that is missing; or an `error`, for people. `is_sent`: the
    message is there already."""

    next: int = 0
    error: str | None = None
    is_sent: bool = False


class FileChunksRequest(msgspec.Struct):
    """Chunks of a file, from number `first` on: 65,536 bytes each, the last one has the rest."""

    peer: str
    uuid: bytes
    first: int
    chunks: list[bytes]


class FileChunksAnswer(msgspec.Struct):
    """The number of the first chunk that is missing."""

    next: int


class FileSendRequest(msgspec.Struct):
    """The message with a file of which all chunks are there."""

    peer: str
    uuid: bytes


class FileSendAnswer(msgspec.Struct):
    """The stored message: record `sequence` of the stream of the conversation."""

    sequence: int


class FileReadRequest(msgspec.Struct):
    """Up to `count` chunks of the file of the message at `sequence`, from number `first` on."""

    peer: str
    sequence: int
    first: int
    count: int = 1


class FileReadAnswer(msgspec.Struct):
    """Chunks of a file; none behind its end."""

    chunks: list[bytes]


class FileTransfersRequest(msgspec.Struct):
    """The files that are on their way to `peer` and from it."""

    peer: str


class FileTransfer(msgspec.Struct):
    """A file on its way: that of a message of a `kind` (`out` or `in`). `done` of `chunks` are
    transferred. `stored`: all are at a relay of the peer. `problem`: why there are no more. In a
    group `by` is the peer id of its author, if that is another member; the chunks of a file that
    goes to several members are counted for each."""

    kind: str
    uuid: bytes
    done: int
    chunks: int
    stored: bool
    problem: str
    by: str = ""


class FileTransfersAnswer(msgspec.Struct):
    """The files that are on their way."""

    transfers: list[FileTransfer]
