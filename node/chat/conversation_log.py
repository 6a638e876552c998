"""Keeps what happens in one conversation in its history, and knows how it stands.

The history comes first, everywhere: a message is sent after it is kept there, acknowledged to the
channel after it is kept there, and what a crash interrupts is done again under the same uuid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio

from millpond.actors.errors import OutcomeUnknown, UnknownPeer, UnknownStream
from millpond.node.chat.conversation import Conversation, PendingReceipts, ReadPositions
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.records import Record, State, Unreadable, decode_record, encode_record

log = logging.getLogger(__name__)

HISTORY_BYTES_MAX = 256 * 2**20
REPLAYED_MAX = 20_000
"""At least so many of the last records are read at the start, and all that may matter still."""
GROUPS = {State.DELIVERED: b"delivered-told", State.READ: b"read-told"}
READ_GROUP = b"read"
"""What the peer was told, and what was read, is how far these groups of the stream got."""


class ConversationLog:
    """The history in `ledger`. A letter lives for less than `life_s`. `open` comes first; what else
    is asked waits for it."""

    def __init__(self, ledger: LocalStream, life_s: float, now: Callable[[], float]) -> None:
        self.now = now
        self.lock = anyio.Lock()
        """Held by who changes the conversation."""
        self._ledger = ledger
        self._life_s = life_s
        self._conversation: Conversation | None = None
        self._ready = anyio.Event()
        self._broken = anyio.Event()
        self._untold: list[tuple[str, State]] = []
        self._is_over = False

    @property
    def conversation(self) -> Conversation | None:
        """As it stands; None while the history is read."""
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
        """Until nobody knows what is in the history: it has to be read anew."""
        await self._broken.wait()

    def forget(self) -> None:
        """What is kept is known; what is not is not."""
        self._conversation = None
        if self._ready.is_set() and not self._is_over:
            self._ready = anyio.Event()
        self._untold.clear()
        self._broken.set()

    def close(self) -> None:
        """There is no more to be said: whoever waits for it hears UnknownPeer."""
        self._is_over = True
        self._ready.set()

    async def loaded(self) -> None:
        """Wait until the history was read, or there is no more to be said."""
        while self._conversation is None and not self._is_over:
            await self._ready.wait()

    async def opened(self) -> Conversation:
        """The conversation, once it is known. Raises UnknownPeer when it is over."""
        await self.loaded()
        if self._conversation is None:
            raise UnknownPeer
        return self._conversation

    async def tell(self, fates: Sequence[tuple[str, State]]) -> None:
        """Keep what became of messages of ours. Those who come while one is kept are kept together.

        Raises RequestErrors.
        """
        conversation = await self.opened()
        self._untold += fates
        async with self.lock:
            if self._conversation is not conversation:
                raise OutcomeUnknown("the history is read anew")
            told, self._untold = self._untold, []
            await self.keep(conversation, conversation.tell(told, self.now_ms))

    async def keep(self, conversation: Conversation, records: Sequence[Record]) -> None:
        """With the lock. What fails may be kept all the same: then the history is read anew."""
        if not records:
            return
        if self._conversation is not conversation:
            raise OutcomeUnknown("the history is read anew")
        is_kept = False
        try:
            if not conversation.tail:
                await self._ledger.create(HISTORY_BYTES_MAX)
            first = await self._ledger.append([encode_record(each) for each in records])
            is_kept = True
        finally:
            if not is_kept:
                self.forget()
        for sequence, record in enumerate(records, first):
            conversation.replay(sequence, record)

    async def mark_read(self, conversation: Conversation, end: int) -> None:
        """With the lock. Everything below record `end` was read."""
        await self._ledger.commit(READ_GROUP, end)
        conversation.replay_read(end)

    async def mark_told(self, conversation: Conversation, owed: PendingReceipts) -> None:
        """A receipt was sent."""
        await self._ledger.commit(GROUPS[owed.state], owed.end)
        conversation.replay_told(owed.state, owed.end)

    async def _load(self) -> Conversation:
        try:
            info = await self._ledger.describe()
        except UnknownStream:  # nothing was said yet
            return Conversation(int(self._life_s * 1000))
        recent = await self._ledger.at_time(max(0, int((self.now() - self._life_s) * 1000)))
        start = max(info.trim_point, min(recent, max(0, info.tail - REPLAYED_MAX)))
        conversation = Conversation(
            int(self._life_s * 1000),
            ReadPositions(
                read=info.groups.get(READ_GROUP, 0),
                delivered_told=info.groups.get(GROUPS[State.DELIVERED], 0),
                read_told=info.groups.get(GROUPS[State.READ], 0),
            ),
            is_whole=not start,
        )
        async for sequence, body in self._ledger.read(start, info.tail):
            try:
                conversation.replay(sequence, decode_record(body))
            except Unreadable as error:
                where = self._ledger.name
                log.warning("record passed over: %r sequence=%d: %s", where, sequence, error)
        conversation.tail = info.tail
        return conversation
