"""The task of a conversation: it stores and sends messages, and receives those of the peer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import anyio

from millpond.actors.errors import BufferFull, DataTooLarge, EmptyData, NotFound, OutcomeUnknown
from millpond.node.chat.actions import REACTION_BYTES_MAX, Action, said_text
from millpond.node.chat.conversation import Conversation, ReadPositions
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.file_messages import FileTransfer
from millpond.node.chat.file_transfers import FileTransfers
from millpond.node.chat.files import ChatFiles
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.payloads import FILE, LINE_DIGITS, TEXT_BYTES_MAX, TYPING
from millpond.node.chat.receiver import OnGroup, OnIntroduction, Receiver
from millpond.node.chat.records import Record, State
from millpond.node.chat.sender import Sender
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.outbox import Outbox
from millpond.node.peers.file_format import File

WAITING_MAX = 10_000
DAY_S = 86_400.0
CHANGES = (Action.EDIT, Action.DELETE)
STATES = {
    DeliveryStatus.SENT: State.SENT,
    DeliveryStatus.DELIVERED: State.DELIVERED,
    DeliveryStatus.EXPIRED: State.EXPIRED,
    DeliveryStatus.REFUSED: State.REFUSED,
}


class ConversationTask:
    """The conversation with the peer whose public key is `peer`.

    `run` is its task, started again after errors. The other methods are called meanwhile, and wait
    until the history is read.
    """

    def __init__(
        self,
        peer: bytes,
        outbox: Outbox,
        stream: LocalStream,
        own_card: Callable[[], Awaitable[str]],
        on_introduction: OnIntroduction,
        on_group: OnGroup,
        files: ChatFiles,
    ) -> None:
        """`own_card` makes the card of this node."""
        self.peer = peer
        self._outbox = outbox
        life_s = outbox.context.settings.ttl_s + DAY_S
        self._history = ConversationLog(stream, life_s, outbox.context.now, _make_conversation)
        self._sender = Sender(peer, outbox, self._history, own_card)
        self.transfers = FileTransfers(peer, outbox, self._history, files, self._peer_knows_files)
        self._receiver = Receiver(
            peer,
            outbox,
            self._history,
            self._on_stored,
            on_introduction,
            on_group,
            self.transfers.told,
        )

    @property
    def conversation(self) -> Conversation | None:
        """The conversation; None while the history is read."""
        return self._history.conversation

    async def run(self) -> None:
        """Read the history, then send and receive. Raises RequestErrors of the history."""
        try:
            await self._history.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sender.send_messages)
                tasks.start_soon(self._sender.send_receipts)
                tasks.start_soon(self._receiver.run)
                tasks.start_soon(self.transfers.run)
                await self._history.until_broken()
                raise OutcomeUnknown("it is unknown whether the history has the last records")
        finally:
            self._history.reset()

    def _on_stored(self) -> None:
        self._sender.receipt_due()
        self.transfers.incoming()

    def _peer_knows_files(self) -> bool:
        return FILE in self._receiver.peer_knows or self._receiver.has_sent_files

    async def wait_loaded(self) -> None:
        """Wait until the history is read, or the conversation has ended."""
        await self._history.wait_loaded()

    def close(self) -> None:
        """End the conversation: waiting calls raise UnknownPeer."""
        self._history.close()

    def prekey_arrived(self) -> None:
        """Seal the messages that waited for a prekey."""
        self._sender.message_added()
        self._sender.receipt_due()

    async def send(
        self,
        text: str,
        uuid: str,
        action: Action | None = None,
        about: str = "",
        file: File | None = None,
    ) -> int:
        """Store a message, which is then sent; returns its sequence. An `action` is `about` the
        message with that uuid. It may bring a `file` that is stored here.

        Raises EmptyData, DataTooLarge, BufferFull, NotFound (a message that cannot be edited or
        deleted), and the errors of the stream.
        """
        text = said_text(action, text)
        if not text.strip():
            raise EmptyData("the message has no text")
        bytes_max = REACTION_BYTES_MAX if action is Action.REACT else TEXT_BYTES_MAX
        if len(text.encode("utf-8", "surrogatepass")) > bytes_max:
            raise DataTooLarge(f"it has at most {bytes_max} bytes")
        history = self._history
        conversation = await history.wait_conversation()
        async with history.lock:
            own = conversation.own_message(uuid)
            if own is None:
                if len(conversation.waiting) >= WAITING_MAX:
                    raise BufferFull(f"{WAITING_MAX} messages already wait for this peer")
                line = self._outbox.context.entropy(LINE_DIGITS // 2).hex()
                said_at = int(self._outbox.context.latest() * 1000)
                if action in CHANGES and not conversation.can_change(about, said_at):
                    raise NotFound("this message cannot be changed: it is not yours, or is too old")
                record = conversation.add_own(uuid, text, line, said_at, action, about, file)
                await history.append(conversation, [record])
                own = conversation.own_message(uuid)
        assert own is not None
        self._sender.typing_ended()
        self._sender.message_added()
        if file is not None or action is Action.DELETE:
            self.transfers.outgoing()
        return own.sequence

    @property
    def key(self) -> bytes:
        """The key of the peer, by which its files are named."""
        return self.peer

    def check_takes_files(self) -> None:
        """A file can be sent to every contact."""

    def file_transfers(self) -> Iterator[FileTransfer]:
        """The files that are on their way."""
        return self.transfers.transfers()

    async def sequence_of(self, uuid: str) -> int | None:
        """The sequence of a recent message of this node; None: there is none of this uuid."""
        own = (await self._history.wait_conversation()).own_message(uuid)
        return None if own is None else own.sequence

    async def record_at(self, sequence: int) -> Record | None:
        """The record at a sequence of the history. Raises RequestErrors."""
        return await self._history.record_at(sequence)

    @property
    def is_peer_typing(self) -> bool:
        """True while the peer writes."""
        return self._receiver.is_peer_typing

    async def send_typing(self) -> None:
        """Tell the peer that somebody writes to it, if its node is connected and understands it."""
        is_online = self._outbox.presence.last_seen(self.peer).is_online
        if is_online and TYPING in self._receiver.peer_knows:
            await self._sender.send_typing()

    async def accept_invite(self, uuid: str, secret: str) -> None:
        """Store that an invite of the peer is accepted; the peer is then told. A second call with
        the same uuid does nothing. Raises BufferFull, and the errors of the stream."""
        history = self._history
        conversation = await history.wait_conversation()
        async with history.lock:
            if conversation.own_message(uuid) is None:
                if len(conversation.waiting) >= WAITING_MAX:
                    raise BufferFull(f"{WAITING_MAX} messages already wait for this peer")
                now_ms = int(self._outbox.context.latest() * 1000)
                record = conversation.add_invite(uuid, secret, now_ms)
                await history.append(conversation, [record])
        self._sender.message_added()

    async def mark_read(self, sequence: int) -> int:
        """Mark everything up to this record as read; returns the number of unread messages."""
        conversation = await self._history.wait_conversation()
        async with self._history.lock:  # of concurrent calls the furthest counts
            end = min(sequence + 1, conversation.tail)
            if end > conversation.read:
                await self._history.mark_read(conversation, end)
                self._sender.receipt_due()
        return conversation.unread

    async def report(self, uuids: Sequence[bytes], report: DeliveryStatus) -> None:
        """Store the new status of messages. Raises RequestErrors."""
        await self._history.save_states([(uuid.hex(), STATES[report]) for uuid in uuids])
        if report is DeliveryStatus.DELIVERED:
            self.transfers.outgoing()  # the peer knows of the files that it brings


def _make_conversation(life_ms: int, positions: ReadPositions, is_whole: bool) -> Conversation:
    return Conversation(life_ms, positions, is_whole=is_whole)
