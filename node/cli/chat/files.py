"""Files in `millpond chat`: they are given to the node, their transfer is told, and received ones
are saved."""

from __future__ import annotations

import mimetypes
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.to_thread
import msgspec

from millpond.actors.errors import NotFound
from millpond.node.chat.actions import Action, action_of
from millpond.node.chat.file_messages import FileTransfer
from millpond.node.chat.file_operations import size_text
from millpond.node.chat.messages import ChatInfo
from millpond.node.chat.pending_files import file_name
from millpond.node.chat.records import Kind, Record, Transfer
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.view import CHANGE_INDENT, clean
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.peers.file_format import CHUNK_BYTES, chunk_count, clean_name

FILES_MAX = 1000
"""The most files of a conversation that are known."""
STEP = 10
"""The progress is told each time that so many percent more are there."""
BEGUN_MAX = 5
"""A file is given to the node at most so often, if the node starts again meanwhile."""
SAVED_AS_MAX = 1000

_SENDERS = {
    Transfer.STORED: "at a relay, until the peer fetches it",
    Transfer.RECEIVED: "received by the peer",
    Transfer.REFUSED: "REFUSED",
    Transfer.EXPIRED: "NOT RECEIVED",
}
_RECIPIENTS = {
    Transfer.RECEIVED: "complete: /save saves it",
    Transfer.REFUSED: "not taken",
    Transfer.EXPIRED: "not complete",
}


class NotSent(Exception):
    """A file that is not sent; the text says why."""


class KnownFile(msgspec.Struct):
    """A file of the message at `sequence`. `told`: the progress in percent, and the problem, that
    were shown last. In a group `received` counts the members that have it."""

    sequence: int
    record: Record
    transfer: Transfer | None = None
    told: tuple[int, str] = (0, "")
    received: int = 0

    @property
    def name(self) -> str:
        """The name, safe to be shown."""
        file = self.record.file
        return "file" if file is None else clean(clean_name(file.name))


class KnownFiles:
    """The files of one conversation, from its records in their order."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[Kind, str], KnownFile] = OrderedDict()
        """By the kind of the message, and `file_name`."""

    @property
    def are_pending(self) -> bool:
        """True if one is on its way."""
        return any(_is_pending(each) for each in self._files.values())

    def received(self) -> Iterator[KnownFile]:
        """The files of the peer that can be saved, the newest first."""
        for each in reversed(self._files.values()):
            if each.record.kind is Kind.IN and each.transfer is Transfer.RECEIVED:
                yield each

    def not_taken(self, uuids: Iterable[bytes]) -> Iterator[str]:
        """The names of those of some files of this node that the peer does not have, and will not
        get."""
        for uuid in uuids:
            each = self._files.get((Kind.OUT, file_name("", uuid.hex())))
            if each is not None and each.transfer in (Transfer.REFUSED, Transfer.EXPIRED):
                yield each.name

    def learn(self, sequence: int, record: Record) -> list[str]:
        """Take a record; the lines about a new state."""
        if record.kind in (Kind.IN, Kind.OUT) and record.file is not None:
            self._files[record.kind, file_name(record.by, record.uuid)] = KnownFile(
                sequence, record
            )
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)
        if record.kind in (Kind.IN, Kind.OUT) and action_of(record) is Action.DELETE:
            self._files.pop((record.kind, file_name(record.by, record.about)), None)
        if record.kind not in (Kind.FILE_IN, Kind.FILE_OUT) or record.transfer is None:
            return []
        is_own = record.kind is Kind.FILE_OUT
        name = file_name(record.by, record.uuid)
        known = self._files.get((Kind.OUT if is_own else Kind.IN, name))
        if known is None:
            return []
        if record.members:
            return _of_members(known, record)
        known.transfer = record.transfer
        text = (_SENDERS if is_own else _RECIPIENTS).get(record.transfer, record.transfer.value)
        if known.record.members and record.transfer is Transfer.RECEIVED:
            text = f"received by {known.received} of {_members(known)}"
        why = f" ({clean(record.text)})" if record.text else ""
        return [f"{CHANGE_INDENT}{known.name}: {text}{why}"]

    def progress(self, transfers: list[FileTransfer]) -> Iterator[str]:
        """The lines about transfers that went on, or do not."""
        for each in transfers:
            known = self._files.get((Kind(each.kind), file_name(each.by, each.uuid.hex())))
            if known is None or (each.stored and not each.problem):
                continue
            percent = 100 * each.done // max(1, each.chunks) // STEP * STEP
            problem = clean(each.problem)
            if (percent, problem) != known.told and (problem or 0 < percent < 100):
                known.told = percent, problem
                why = f", {problem}" if problem else ""
                way = "sent" if each.kind == Kind.OUT.value else "received"
                yield f"{CHANGE_INDENT}{known.name}: {percent} % {way}{why}"


def _members(file: KnownFile) -> str:
    count = len(file.record.members)
    return "1 member" if count == 1 else f"{count} members"


def _of_members(file: KnownFile, record: Record) -> list[str]:
    """The lines about what members of a group say of a file."""
    if record.transfer is Transfer.RECEIVED:
        file.received += len(record.members)
        return []
    why = f" ({clean(record.text)})" if record.text else ""
    return [
        f"{CHANGE_INDENT}{file.name}: not taken by {len(record.members)} of {_members(file)}{why}"
    ]


def _is_pending(file: KnownFile) -> bool:
    return file.transfer in (None, Transfer.STORED)


def path_of(text: str) -> Path:
    """The path that somebody types; `~` is the home folder. Raises RuntimeError if there is
    none."""
    return Path(text).expanduser()


async def send_file(client: ChatClient, chat: ChatInfo, path: Path, uuid: bytes) -> int:
    """Give a file to the node, and send it; returns the sequence of its message.

    Raises NotSent, and the RequestErrors of a message.
    """
    try:
        with await anyio.to_thread.run_sync(_opened, path) as source:
            size = os.fstat(source.fileno()).st_size
            for _ in range(BEGUN_MAX):
                with suppress(NotFound):  # the node has started again
                    return await _send(client, chat, path.name, source, size, uuid)
    except OSError as error:
        raise NotSent(f"{path}: {error.strerror or error}") from error
    raise NotSent("the node starts again and again")


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():  # a pipe or a device would have no end
        raise NotSent(f"{path}: there is no such file")
    return path.open("rb")


async def _send(
    client: ChatClient, chat: ChatInfo, name: str, source: BinaryIO, size: int, uuid: bytes
) -> int:
    begun = await client.begin_file(
        chat, uuid, size, name, mimetypes.guess_type(name, strict=False)[0] or ""
    )
    if begun.error is not None:
        raise NotSent(begun.error)
    at, count = begun.next, chunk_count(size)
    while not begun.is_sent and at < count:
        chunks = await anyio.to_thread.run_sync(_chunks, source, at, size)
        at = await client.add_chunks(chat, uuid, at, chunks)
    return await client.finish_file(chat, uuid)


def _chunks(source: BinaryIO, first: int, size: int) -> list[bytes]:
    """Some chunks of a file. Raises NotSent if it was cut meanwhile."""
    source.seek(first * CHUNK_BYTES)
    data = source.read(min(CHUNKS_AT_ONCE * CHUNK_BYTES, size - first * CHUNK_BYTES))
    if len(data) < min(CHUNKS_AT_ONCE * CHUNK_BYTES, size - first * CHUNK_BYTES):
        raise NotSent("the file has become smaller meanwhile")
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)] or [b""]


async def save_file(
    client: ChatClient, chat: ChatInfo, file: KnownFile, target: Path
) -> tuple[Path, str]:
    """Save a received file in a folder, or under a new name; returns its path and size.

    Nothing is overwritten: another name is found. The file appears when all of it is there. Raises
    OSError, NotFound, and StorageFailed for a damaged file.
    """
    described = file.record.file
    assert described is not None
    is_folder = await anyio.to_thread.run_sync(target.is_dir)
    folder = target if is_folder else target.parent
    name = clean_name(described.name) if is_folder else target.name
    descriptor, partial = await anyio.to_thread.run_sync(_new_file, folder)
    try:
        with os.fdopen(descriptor, "wb") as output:
            at = 0
            while at < described.chunks:
                chunks = await client.read_file(chat, file.sequence, at)
                if not chunks:
                    raise NotFound("the file is not complete")
                await anyio.to_thread.run_sync(output.writelines, chunks)
                at += len(chunks)
        path = await anyio.to_thread.run_sync(_placed, partial, folder / name)
        return path, size_text(described.size)
    finally:
        partial.unlink(missing_ok=True)


def _new_file(folder: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(prefix=".millpond-", dir=folder)
    return descriptor, Path(name)


def _placed(partial: Path, wanted: Path) -> Path:
    """Give a file its name, or the next one that is free. Raises OSError."""
    for number in range(SAVED_AS_MAX):
        path = wanted if not number else wanted.with_stem(f"{wanted.stem} ({number})")
        try:
            os.link(partial, path)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            try:
                path.open("xb").close()
            except FileExistsError:
                continue
            partial.replace(path)
        return path
    raise FileExistsError(f"{wanted} and {SAVED_AS_MAX} names like it are taken")
