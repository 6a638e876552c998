"""The log of a conversation: its stored history, and the state that follows from it.

The history comes first, everywhere: a message is sent after it is kept there, acknowledged to the
channel after it is kept there, and what a crash interrupts is done again under the same uuid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

import anyio

from millpond.actors.errors import OutcomeUnknown, UnknownPeer, UnknownStream
from millpond.node.chat.conversation import PendingReceipts, ReadPositions
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import Record, State, Unreadable, decode_record, encode_record

log = logging.getLogger(__name__)

HISTORY_BYTES_MAX = 256 * 2**20
REPLAYED_MAX = 20_000
"""The least number of last records that are read at the start, with all that are still in use."""
RECEIPT_GROUPS = {State.DELIVERED: b"delivered-told", State.READ: b"read-told"}
READ_GROUP = b"read"
"""The positions of these groups of the stream are what was read and which receipts were sent."""


class Replayed(Protocol):
    """A state that is replayed from the records of a history."""

    tail: int
    read: int

    def replay(self, sequence: int, record: Record) -> None:
        """Apply a stored record."""

    def replay_read(self, read: int) -> None:
        """Mark the records below `read` as read."""

    def replay_receipt_sent(self, state: State, end: int) -> None:
        """Receipts were sent for all messages below record `end`."""

    def state_records(self, changes: Sequence[tuple[str, State]], now_ms: int) -> list[Record]:
        """The records of new states of messages of this node."""
        ...


ReplayedT = TypeVar("ReplayedT", bound=Replayed)


class ConversationLog(Generic[ReplayedT]):
    """The stored history of a conversation, in `stream`.

    A message is on its way for less than `life_s`. `make` makes an empty conversation of that life
    in ms, of positions, and True if the history is whole. `open` comes first; other calls wait for
    it.
    """

    def __init__(
        self,
        stream: LocalStream,
        life_s: float,
        now: Callable[[], float],
        make: Callable[[int, ReadPositions, bool], ReplayedT],
    ) -> None:
        self._make = make
        self.now = now
        self.lock = anyio.Lock()
        """The lock of changes of the conversation."""
        self._stream = stream
        self._life_s = life_s
        self._conversation: ReplayedT | None = None
        self._ready = anyio.Event()
        self._broken = anyio.Event()
        self._unsaved: list[tuple[str, State]] = []
        self._is_closed = False

    @property
    def conversation(self) -> ReplayedT | None:
        """The conversation; None while the history is read."""
        return self._conversation

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.now() * 1000)

    async def open(self) -> None:
        """Read the history. Raises RequestErrors."""
        self._broken = anyio.Event()
        self._conversation = await self._load()
        self._ready.set()

    async def until_broken(self) -> None:
        """Wait until the content of the history is unknown, so that it has to be read again."""
        await self._broken.wait()

    def reset(self) -> None:
        """Drop the state: the history has to be read again."""
        self._conversation = None
        if self._ready.is_set() and not self._is_closed:
            self._ready = anyio.Event()
        self._unsaved.clear()
        self._broken.set()

    def close(self) -> None:
        """End the conversation: waiting calls raise UnknownPeer."""
        self._is_closed = True
        self._ready.set()

    async def wait_loaded(self) -> None:
        """Wait until the history is read, or the conversation has ended."""
        while self._conversation is None and not self._is_closed:
            await self._ready.wait()

    async def wait_conversation(self) -> ReplayedT:
        """The conversation, once the history is read. Raises UnknownPeer if it has ended."""
        await self.wait_loaded()
        if self._conversation is None:
            raise UnknownPeer
        return self._conversation

    async def save_states(self, changes: Sequence[tuple[str, State]]) -> None:
        """Store new states of messages of this node; concurrent calls are stored together.

        Raises RequestErrors.
        """
        conversation = await self.wait_conversation()
        self._unsaved += changes
        async with self.lock:
            if self._conversation is not conversation:
                raise OutcomeUnknown("the history is read again")
            unsaved, self._unsaved = self._unsaved, []
            await self.append(conversation, conversation.state_records(unsaved, self.now_ms))

    async def append(self, conversation: ReplayedT, records: Sequence[Record]) -> None:
        """Append records, with the lock held.

        A failed append may be stored all the same, so the history is then read again.
        """
        if not records:
            return
        if self._conversation is not conversation:
            raise OutcomeUnknown("the history is read again")
        is_kept = False
        try:
            if not conversation.tail:
                await self._stream.create(HISTORY_BYTES_MAX)
            first = await self._stream.append([encode_record(each) for each in records])
            is_kept = True
        finally:
            if not is_kept:
                self.reset()
        for sequence, record in enumerate(records, first):
            conversation.replay(sequence, record)

    async def mark_read(self, conversation: ReplayedT, end: int) -> None:
        """Mark the records before `end` as read, with the lock held."""
        await self._stream.commit(READ_GROUP, end)
        conversation.replay_read(end)

    async def mark_receipt_sent(self, conversation: ReplayedT, pending: PendingReceipts) -> None:
        """Record that a receipt was sent."""
        await self._stream.commit(RECEIPT_GROUPS[pending.state], pending.end)
        conversation.replay_receipt_sent(pending.state, pending.end)

    async def record_at(self, sequence: int) -> Record | None:
        """The record at a sequence; None if it is trimmed, or not readable. Raises
        RequestErrors."""
        try:
            async with aclosing(self._stream.read(sequence, sequence + 1)) as records:
                async for _, body in records:
                    return decode_record(body)
        except (Unreadable, UnknownStream):
            return None
        return None

    async def _load(self) -> ReplayedT:
        try:
            info = (await self._stream.describe()).info
        except UnknownStream:  # an empty conversation
            return self._make(int(self._life_s * 1000), ReadPositions(), True)
        recent = await self._stream.at_time(max(0, int((self.now() - self._life_s) * 1000)))
        start = max(info.trim_point, min(recent, max(0, info.tail - REPLAYED_MAX)))
        conversation = self._make(
            int(self._life_s * 1000),
            ReadPositions(
                read=info.groups.get(READ_GROUP, 0),
                delivered_sent=info.groups.get(RECEIPT_GROUPS[State.DELIVERED], 0),
                read_sent=info.groups.get(RECEIPT_GROUPS[State.READ], 0),
            ),
            not start,
        )
        async for sequence, body in self._stream.read(start, info.tail):
            try:
                conversation.replay(sequence, decode_record(body))
            except Unreadable as error:
                name = self._stream.name
                log.warning("record skipped: %r sequence=%d: %s", name, sequence, error)
        conversation.tail = info.tail
        return conversation
