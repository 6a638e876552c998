"""The operations on files of chats: those of this node's people, and those of its contacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from millpond.actors.errors import Malformed, NotAllowed, NotFound
from millpond.node.chat import file_messages as b
from millpond.node.chat.actions import Action
from millpond.node.chat.conversation_task import ConversationTask
from millpond.node.chat.files import ChatFiles, RefusedFile
from millpond.node.chat.groups.groups import Groups
from millpond.node.chat.records import COUNT_MAX, Record
from millpond.node.outbox import messages as m
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.outbox.file_store import FileStore, StoredFile
from millpond.node.outbox.messages import PeerOperation, write_body
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.envelope import UUID_BYTES
from millpond.node.peers.file_format import FILE_BYTES_MAX, File
from millpond.transports.p2p.bodies import read_body


class FileConversation(Protocol):
    """A conversation with files: with a peer, or of a group."""

    @property
    def key(self) -> bytes:
        """The key of the peer, or the id of the group."""

    def check_takes_files(self) -> None:
        """Raises NotAllowed if no file can be sent."""

    async def wait_loaded(self) -> None:
        """Wait until the history is read."""

    async def sequence_of(self, uuid: str) -> int | None:
        """The sequence of a recent message of this node."""

    async def record_at(self, sequence: int) -> Record | None:
        """The record at a sequence."""

    async def send(
        self,
        text: str,
        uuid: str,
        action: Action | None = None,
        about: str = "",
        file: File | None = None,
    ) -> int:
        """Store a message with a file, which is then sent; returns its sequence."""

    def file_transfers(self) -> Iterable[b.FileTransfer]:
        """The files that are on their way."""


class FileOperations:
    """The operations on files. `task_of` gives the conversation with a peer, or of a group, by its
    name, `find` that with the key of a peer, if there is one."""

    def __init__(
        self,
        files: ChatFiles,
        task_of: Callable[[str], FileConversation],
        find: Callable[[bytes], ConversationTask | None],
        groups: Groups,
        life_s: float,
    ) -> None:
        self._files = files
        self._task_of = task_of
        self._find = find
        self._groups = groups
        self._life_s = life_s

    def register(self, peer_requests: PeerRequests) -> None:
        """Add the handlers of operations 50 to 54."""
        peer_requests.register(PeerOperation.FILE_BEGIN, self._begin)
        peer_requests.register(PeerOperation.FILE_CHUNKS, self._add)
        peer_requests.register(PeerOperation.FILE_SEND, self._send)
        peer_requests.register(PeerOperation.FILE_READ, self._read)
        peer_requests.register(PeerOperation.FILE_TRANSFERS, self._transfers)

    # For people.

    async def _begin(self, body: bytes) -> bytes:
        request = read_body(body, b.FileBeginRequest)
        task, uuid = self._task_of(request.peer), _uuid(request.uuid)
        if not 0 <= request.size:
            raise Malformed("size is out of range")
        if await task.sequence_of(uuid) is not None:
            return write_body(b.FileBeginAnswer(next=0, is_sent=True))
        task.check_takes_files()
        try:
            size, type_ = request.size, media_type(request.type)
            at = await self._files.begin(task.key, uuid, size, request.name, type_)
        except RefusedFile as error:
            return write_body(b.FileBeginAnswer(error=str(error)))
        return write_body(b.FileBeginAnswer(next=at))

    async def _add(self, body: bytes) -> bytes:
        request = read_body(body, b.FileChunksRequest)
        task, uuid = self._task_of(request.peer), _uuid(request.uuid)
        if not 0 < len(request.chunks) <= CHUNKS_AT_ONCE or request.first < 0:
            raise Malformed(f"1 to {CHUNKS_AT_ONCE} chunks")
        at = await self._files.add(task.key, uuid, request.first, request.chunks)
        return write_body(b.FileChunksAnswer(at))

    async def _send(self, body: bytes) -> bytes:
        request = read_body(body, b.FileSendRequest)
        task, uuid = self._task_of(request.peer), _uuid(request.uuid)
        sequence = await task.sequence_of(uuid)
        if sequence is None:
            file = await self._files.finish(task.key, uuid, self._life_s)
            text = f"file: {file.name} ({size_text(file.size)})"
            sequence = await task.send(text, uuid, file=file)
            await self._files.sent(task.key, uuid)
        return write_body(b.FileSendAnswer(sequence))

    async def _read(self, body: bytes) -> bytes:
        request = read_body(body, b.FileReadRequest)
        task = self._task_of(request.peer)
        if not 0 <= request.sequence <= COUNT_MAX or not 0 <= request.first <= FILE_BYTES_MAX:
            raise Malformed("sequence or first is out of range")
        record = await task.record_at(request.sequence)
        if record is None:
            raise NotFound("there is no such message")
        count = max(1, min(request.count, CHUNKS_AT_ONCE))
        return write_body(
            b.FileReadAnswer(await self._files.read(task.key, record, request.first, count))
        )

    async def _transfers(self, body: bytes) -> bytes:
        task = self._task_of(read_body(body, b.FileTransfersRequest).peer)
        await task.wait_loaded()
        return write_body(b.FileTransfersAnswer(list(task.file_transfers())))

    # For contacts (`LocalFiles`).

    @property
    def store(self) -> FileStore:
        """The files that are stored for the chats."""
        return self._files.store

    async def offer(self, sender: bytes, offer: m.FileOffer) -> m.FileOfferAnswer:
        """Take an offer of a contact, for the conversation with it or a group that both are in.
        Raises NotAllowed for others, Malformed, and the errors of the disk."""
        answer = await self._contact(sender).transfers.offered(offer)
        for group in self._groups:
            if answer.state != "unknown":
                break
            if group.conversation is not None:
                answer = await group.files.offered(sender, offer)
        return answer

    async def put(self, sender: bytes, root: bytes, first: int, chunks: Sequence[bytes]) -> int:
        """Store chunks of a contact; the number of those that are there. Raises NotAllowed for
        others, NotFound, Malformed, and the errors of the disk."""
        transfers = self._contact(sender).transfers
        if not transfers.expects(root):
            for group in self._groups:
                if group.conversation is not None:
                    at = await group.files.put(sender, root, first, chunks)
                    if at is not None:
                        return at
        return await transfers.put(root, first, chunks)

    def sent_file(self, recipient: bytes, root: bytes) -> StoredFile | None:
        """A file that is offered to a contact, or to the members of a group."""
        task = self._find(recipient)
        if task is None:
            return None
        groups = (group.files.sent_file(recipient, root) for group in self._groups)
        sent = task.transfers.sent_file(root)
        return sent or next((each for each in groups if each is not None), None)

    def fetched(self, recipient: bytes, root: bytes, count: int) -> None:
        """A contact has fetched so many chunks of a file."""
        task = self._find(recipient)
        if task is not None:
            task.transfers.fetched(root, count)
            for group in self._groups:
                group.files.fetched(recipient, root, count)

    def _contact(self, public: bytes) -> ConversationTask:
        task = self._find(public)
        if task is None:
            raise NotAllowed("files are for contacts")
        return task


def _uuid(uuid: bytes) -> str:
    if len(uuid) != UUID_BYTES:
        raise Malformed(f"a uuid has {UUID_BYTES} bytes")
    return uuid.hex()


def media_type(text: str) -> str:
    """The media type that a client gives, without parameters; empty if it is none."""
    found = text.partition(";")[0].strip().lower()
    main, slash, sub = found.partition("/")
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789.+-")
    is_one = slash and all(0 < len(each) <= 64 and set(each) <= allowed for each in (main, sub))
    return found if is_one else ""


def size_text(size: int) -> str:
    """A size for people."""
    if size < 1000:
        return f"{size} bytes"
    if size < 999_950:
        return f"{size / 1000:.1f} kB"
    return f"{size / 1_000_000:.1f} MB"
