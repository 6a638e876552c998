"""The operations on files of chats: those of this node's people, and those of its contacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.errors import Malformed, NotAllowed, NotFound
from millpond.node.chat import file_messages as b
from millpond.node.chat.conversation_task import ConversationTask
from millpond.node.chat.files import ChatFiles, RefusedFile
from millpond.node.chat.records import COUNT_MAX, Kind
from millpond.node.outbox import messages as m
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from millpond.node.outbox.file_store import FileStore, StoredFile
from millpond.node.outbox.messages import PeerOperation, write_body
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.envelope import UUID_BYTES
from millpond.node.peers.file_format import FILE_BYTES_MAX
from millpond.transports.p2p.bodies import read_body


class FileOperations:
    """The operations on files. `task_of` gives the conversation with a peer by its name, `find`
    that with a key, if there is one."""

    def __init__(
        self,
        files: ChatFiles,
        task_of: Callable[[str], ConversationTask],
        find: Callable[[bytes], ConversationTask | None],
        life_s: float,
    ) -> None:
        self._files = files
        self._task_of = task_of
        self._find = find
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
        try:
            size, type_ = request.size, media_type(request.type)
            at = await self._files.begin(task.peer, uuid, size, request.name, type_)
        except RefusedFile as error:
            return write_body(b.FileBeginAnswer(error=str(error)))
        return write_body(b.FileBeginAnswer(next=at))

    async def _add(self, body: bytes) -> bytes:
        request = read_body(body, b.FileChunksRequest)
        task, uuid = self._task_of(request.peer), _uuid(request.uuid)
        if not 0 < len(request.chunks) <= CHUNKS_AT_ONCE or request.first < 0:
            raise Malformed(f"1 to {CHUNKS_AT_ONCE} chunks")
        at = await self._files.add(task.peer, uuid, request.first, request.chunks)
        return write_body(b.FileChunksAnswer(at))

    async def _send(self, body: bytes) -> bytes:
        request = read_body(body, b.FileSendRequest)
        task, uuid = self._task_of(request.peer), _uuid(request.uuid)
        sequence = await task.sequence_of(uuid)
        if sequence is None:
            file = await self._files.finish(task.peer, uuid, self._life_s)
            text = f"file: {file.name} ({size_text(file.size)})"
            sequence = await task.send(text, uuid, file=file)
            self._files.sent(task.peer, uuid)
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
            b.FileReadAnswer(await self._files.read(task.peer, record, request.first, count))
        )

    async def _transfers(self, body: bytes) -> bytes:
        task = self._task_of(read_body(body, b.FileTransfersRequest).peer)
        await task.wait_loaded()
        conversation, found = task.conversation, []
        if conversation is not None:
            for kind, pending in (
                (Kind.OUT, conversation.outgoing.files),
                (Kind.IN, conversation.incoming.files),
            ):
                for each in pending:
                    progress = task.transfers.progress_of(kind, each.uuid)
                    found.append(
                        b.FileTransfer(
                            kind.value,
                            bytes.fromhex(each.uuid),
                            progress.chunks,
                            each.file.chunks,
                            each.is_stored,
                            progress.problem,
                        )
                    )
        return write_body(b.FileTransfersAnswer(found))

    # For contacts (`LocalFiles`).

    @property
    def store(self) -> FileStore:
        """The files that are stored for the chats."""
        return self._files.store

    async def offer(self, sender: bytes, offer: m.FileOffer) -> m.FileOfferAnswer:
        """Take an offer of a contact. Raises NotAllowed for others, Malformed, and the errors of
        the disk."""
        return await self._contact(sender).transfers.offered(offer)

    async def put(self, sender: bytes, root: bytes, first: int, chunks: Sequence[bytes]) -> int:
        """Store chunks of a contact; the number of those that are there. Raises NotAllowed for
        others, NotFound, Malformed, and the errors of the disk."""
        return await self._contact(sender).transfers.put(root, first, chunks)

    def sent_file(self, recipient: bytes, root: bytes) -> StoredFile | None:
        """A file that is offered to a contact."""
        task = self._find(recipient)
        return None if task is None else task.transfers.sent_file(root)

    def fetched(self, recipient: bytes, root: bytes, count: int) -> None:
        """A contact has fetched so many chunks of a file."""
        task = self._find(recipient)
        if task is not None:
            task.transfers.fetched(root, count)

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
