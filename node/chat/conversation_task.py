"""One conversation at work: what we say is kept and sent, what the peer says is heard and kept."""

from __future__ import annotations

import anyio

from millpond.actors.errors import BufferFull, DataTooLarge, EmptyData, OutcomeUnknown
from millpond.node.chat.conversation import Conversation
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.payloads import LINE_DIGITS, TEXT_BYTES_MAX
from millpond.node.chat.receiver import Receiver
from millpond.node.chat.records import State
from millpond.node.chat.sender import Sender
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.outbox import Outbox

WAITING_MAX = 10_000
DAY_S = 86_400.0
FATES = {
    DeliveryStatus.SENT: State.SENT,
    DeliveryStatus.EXPIRED: State.EXPIRED,
    DeliveryStatus.REFUSED: State.REFUSED,
}


class ConversationTask:
    """With the peer whose key is `peer`. `run` it as a task, again and again; the rest is called
    by others meanwhile, and waits until the history was read."""

    def __init__(self, peer: bytes, post: Outbox, ledger: LocalStream) -> None:
        self.peer = peer
        self._post = post
        self._keeping = ConversationLog(
            ledger, post.context.settings.ttl_s + DAY_S, post.context.now
        )
        self._speaker = Sender(peer, post, self._keeping)
        self._listener = Receiver(peer, post, self._keeping, self._speaker.something_owed)

    @property
    def conversation(self) -> Conversation | None:
        """As it stands; None while the history is read."""
        return self._keeping.conversation

    async def run(self) -> None:
        """Read the history, and go on from there. Raises RequestErrors when it cannot be kept."""
        try:
            await self._keeping.open()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._speaker.keep_speaking)
                tasks.start_soon(self._speaker.keep_telling)
                tasks.start_soon(self._listener.listen)
                await self._keeping.until_broken()
                raise OutcomeUnknown("what was written to the history may be in it, or not")
        finally:
            self._keeping.forget()

    async def loaded(self) -> None:
        """Wait until the history was read, or there is no more to be said."""
        await self._keeping.loaded()

    def close(self) -> None:
        """There is no more to be said: whoever waits for it hears UnknownPeer."""
        self._keeping.close()

    def prekey_came(self) -> None:
        """What could not be sealed can be now."""
        self._speaker.something_said()
        self._speaker.something_owed()

    async def say(self, text: str, uuid: str) -> int:
        """Keep a message of ours; it is sent from there. Gives its sequence.

        Raises EmptyData, DataTooLarge, BufferFull, and what the stream raises.
        """
        if not text.strip():
            raise EmptyData("the message has no text")
        if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
            raise DataTooLarge(f"a message has at most {TEXT_BYTES_MAX} bytes")
        keeping = self._keeping
        conversation = await keeping.opened()
        async with keeping.lock:
            ours = conversation.ours(uuid)
            if ours is None:
                if len(conversation.waiting) >= WAITING_MAX:
                    raise BufferFull(f"{WAITING_MAX} messages wait for this peer already")
                line = self._post.context.entropy(LINE_DIGITS // 2).hex()
                record = conversation.say(uuid, text, line, keeping.now_ms)
                await keeping.keep(conversation, [record])
                ours = conversation.ours(uuid)
        assert ours is not None
        self._speaker.something_said()
        return ours.sequence

    async def mark_read(self, sequence: int) -> int:
        """Everything up to this record was read; gives how many messages are not."""
        conversation = await self._keeping.opened()
        async with self._keeping.lock:  # of two at once, the one that is further stays
            end = min(sequence + 1, conversation.tail)
            if end > conversation.read:
                await self._keeping.mark_read(conversation, end)
                self._speaker.something_owed()
        return conversation.unread

    async def report(self, uuid: bytes, report: DeliveryStatus) -> None:
        """What became of a letter of ours; returns when it is kept. Raises RequestErrors."""
        await self._keeping.tell([(uuid.hex(), FATES[report])])
