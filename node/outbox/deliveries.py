"""Deliveries: sent messages until the receipt of the peer or their deadline, and receipts for what
peers have sent.

A message stays here, sealed for the disk of this node, until the peer says that it has it, refuses
it, or its deadline passes by the clock of this node. It is sealed and sent again when the peer
misses it, when the peer has a new prekey, and after a time without a receipt. The peer recognizes
it by its counter.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

import anyio
import msgspec

from millpond.actors.errors import BufferFull, KeyReused, NoPrekey, RequestError
from millpond.actors.messages import Put, PutAck, Reply
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import DeliveryStatus, OutboxContext, Wakeup
from millpond.node.outbox.key_exchange import KEY_LEFT_S
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    RelayedMessage,
    encode_relayed_message,
    relayed_deadline,
    relayed_idempotency_key,
)
from millpond.node.peers.envelope import UUID_BYTES, CannotOpen
from millpond.node.peers.identity import peer_id
from millpond.node.peers.lines import WINDOW
from millpond.node.peers.peer_store import Statement
from millpond.node.peers.prekeys import CLOCKS_APART_S, KEPT_BEYOND_TTL_S, ROTATED_S
from millpond.node.peers.sealed_message import (
    COUNT_MAX,
    LINE_BYTES,
    LISTED_IN_MESSAGES,
    LISTED_MAX,
    SEEN_LINES_MAX,
    Content,
    Kind,
    Seen,
    message_hash,
    seal_message,
)

log = logging.getLogger(__name__)

MESSAGES_MAX = 10_000
"""The most messages to one peer without a receipt."""
BYTES_MAX = 64 * 2**20
IN_LINE_MAX = WINDOW - 24
"""The span of counters on their way in one line, below the window of the recipient."""
RETRY_S_MIN, RETRY_S_MAX = 3600.0, 12 * 3600.0
GAP_S = 30.0
"""A missing message is sent again no earlier than this after the last time: it may be on its way
over another route."""
RECEIPT_S = 0.5
"""The time in which receipts for a peer are collected."""
REPEATED_RECEIPT_S = 5.0
"""The least time between receipts for messages that the peer, or a relay, has repeated."""
RECEIPT_TTL_S = 86_400.0
KEYS_TRIED_MAX = 4
SEALED_HERE_BYTES = 4096
"""A shorter body is sealed in the loop (0.2 ms): a thread costs more than that."""
FLOOR_MAX = COUNT_MAX // 2
"""A peer cannot ask for lines that begin so late that no message has room for the time."""
CHECK_S = 60.0
VOID_MAX = 64
"""Void entries of the schedule are removed when there are more than this, and than others."""
RETRY_FAILED_S = 30.0


class KeptMessage(msgspec.Struct):
    """A sent message without a receipt. `deadline` and `began` in ms since 1970, `tried_at` in
    seconds."""

    uuid: bytes
    line: bytes
    began: int
    counter: int
    hash: bytes
    deadline: int
    size: int
    mailbox_id: int
    attempts: int
    tried_at: float
    is_in_mailbox: bool = True
    """It may still be in the mailbox of the peer on this node."""
    due_at: float = inf
    """When it is looked at next; other entries for it are void."""
    is_settled: bool = False
    """Its final status is known: no other is reported any more."""

    @property
    def next_at(self) -> float:
        """When it is sent again without a receipt."""
        return self.tried_at + min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(self.attempts, 10))


class _OwnLine(msgspec.Struct):
    """The line of this run to one peer."""

    line: bytes
    began: int
    counter: int = 0


class _Outgoing(msgspec.Struct):
    """The messages to one peer."""

    messages: dict[bytes, KeptMessage] = {}
    counters: dict[bytes, list[int]] = {}
    """The counters of these messages by their lines, sorted."""
    size: int = 0
    line: _OwnLine | None = None
    floor: int = 0
    """Lines that began then or before are not accepted by the peer."""
    receipt_id: int = 0
    receipt_due: float = inf
    receipt_is_full: bool = False
    """The receipt says more than a message can say on the way."""
    receipt_lines: dict[bytes, None] = {}
    """The lines of the peer with something that the next receipt has to say."""
    told: frozenset[bytes] = frozenset()
    """The lines of the last receipt."""
    receipt_sent_at: float = -inf
    reporting: anyio.Lock = msgspec.field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    """The lock of reports: each listener hears them in one order."""

    def add(self, kept: KeptMessage) -> None:
        """Keep a message."""
        self.messages[kept.uuid] = kept
        self.size += kept.size
        insort(self.counters.setdefault(kept.line, []), kept.counter)

    def remove(self, uuid: bytes) -> KeptMessage | None:
        """Forget a message, if it is here."""
        kept = self.messages.pop(uuid, None)
        if kept is not None:
            self.size -= kept.size
            counters = self.counters[kept.line]
            del counters[bisect_left(counters, kept.counter)]
            if not counters:
                del self.counters[kept.line]
        return kept

    def lowest(self, line: _OwnLine) -> int:
        """The lowest counter of a line without a receipt; the last one if all have receipts."""
        counters = self.counters.get(line.line)
        return counters[0] if counters else line.counter


class ReceiptReason(Enum):
    """NEW: messages were accepted. ALL: some were refused, or came in an older line. REPEATED:
    messages came again, so the last receipt may be lost."""

    NEW = "new"
    ALL = "all"
    REPEATED = "repeated"


class Deliveries:
    """The deliveries of a node. `run` is its task; everything else is called in the same loop."""

    def __init__(self, context: OutboxContext) -> None:
        """Reads the messages that are kept. Raises OSError."""
        self._context = context
        self._by_peer: dict[bytes, _Outgoing] = {}
        self._by_mailbox_id: dict[tuple[bytes, int], bytes] = {}
        self._due: list[tuple[float, bytes, bytes]] = []
        self._due_max = VOID_MAX
        self._outcomes: deque[tuple[bytes, bytes, DeliveryStatus]] = deque()
        self._unstored: dict[tuple[bytes, bytes], None] = {}
        """Peers and uuids of messages that are forgotten, and still in `peers.db`."""
        self._locks: dict[bytes, anyio.Lock] = {}
        self._wakeup = Wakeup()
        self._receipt_wakeup = Wakeup()
        context.on_prekey.append(self._on_prekey)
        context.on_forwarded.append(self._on_forwarded)
        self._load()

    # Sending.

    def lock(self, peer: bytes) -> anyio.Lock:
        """The lock of sending to a peer, which keeps messages in order."""
        found = self._locks.get(peer)
        if found is None:
            # Short messages are sealed without a pause: those of one pass are stored together.
            found = self._locks[peer] = anyio.Lock(fast_acquire=True)
        return found

    def kept(self, peer: bytes, uuid: bytes) -> KeptMessage | None:
        """A message that was sent before and has no receipt yet."""
        return self._outgoing(peer).messages.get(uuid)

    def count(self, peer: bytes) -> int:
        """The number of messages to a peer without a receipt."""
        found = self._by_peer.get(peer)
        return 0 if found is None else len(found.messages)

    def prekey_for(self, peer: bytes, until: float, attempts: int = 0) -> bytes | None:
        """The public key to seal for: one that is good until then, else the one that is good for
        longest; None if there is none.

        The peer's key for this node comes first; after a failed attempt its published prekey does,
        as the peer may have lost its state.
        """
        context = self._context
        now = context.now()
        theirs = context.store.state(peer).their_key
        if theirs is not None and theirs.good_until / 1000 < now + KEY_LEFT_S:
            theirs = None
        published = context.prekey_cache.best(peer, now + KEY_LEFT_S, version_min=2)
        if theirs is None or (published is not None and attempts):
            return None if published is None else published.public
        if published is not None and theirs.good_until / 1000 < until <= published.good_until:
            return published.public
        return theirs.public

    def _one_time_prekey(self, peer: bytes, content: Content, attempts: int) -> bytes | None:
        """A one-time prekey for the first copy of a message to a peer that has given this node no
        key of its own; None if none is here that lives as long as the published one would."""
        context = self._context
        least = context.now() + KEY_LEFT_S
        theirs = context.store.state(peer).their_key
        has_key = theirs is not None and theirs.good_until / 1000 >= least
        published = context.prekey_cache.best(peer, least, version_min=2)
        if attempts or has_key or content.kind is not Kind.MESSAGE or published is None:
            return None
        until_s = min(content.deadline / 1000, published.good_until - ROTATED_S)
        lifetime_s = context.settings.ttl_s + KEPT_BEYOND_TTL_S
        until_ms = int(max(until_s, least) * 1000)
        return context.taken_prekeys.use(peer, until_ms, int(lifetime_s * 1000))

    async def send(
        self, peer: bytes, channel: bytes, body: bytes, deadline: float, uuid: bytes
    ) -> KeptMessage:
        """Seal a message, store it in the mailbox of the peer, and keep it until the receipt.

        Messages are sealed in the order of the calls. A message that is kept already is not sent
        again. Raises NoPrekey, BufferFull, and the errors of a PUT; OSError if it is not kept.
        """
        outgoing = self._outgoing(peer)
        async with self.lock(peer):
            if uuid in outgoing.messages:
                return outgoing.messages[uuid]
            if self.prekey_for(peer, deadline) is None:
                raise NoPrekey
            if len(outgoing.messages) >= MESSAGES_MAX or outgoing.size + len(body) > BYTES_MAX:
                raise BufferFull("too many messages to this peer have no receipt")
            content = await self._content(peer, Kind.MESSAGE, channel, deadline, uuid, body)
            # From here on its counter is in use: later messages count on its being kept.
            kept = self._keep(peer, content, 0, 0, self._context.now())
            with self._forgetting(peer, uuid):
                relayed = await self._seal(peer, content, 0)
                answer = self._put(peer, content, relayed, 0)
        with self._forgetting(peer, uuid):
            await self._stored(peer, content, relayed, answer, kept)
            await self._context.store.write([self._row(peer, content, kept)])
        if uuid not in outgoing.messages:  # the receipt was faster
            await self._remove(peer, [uuid])
        return kept

    @contextmanager
    def _forgetting(self, peer: bytes, uuid: bytes) -> Iterator[None]:
        """Forget a message that cannot be sent. Nobody knows whether its counter was used."""
        try:
            yield
        except BaseException:
            self._outgoing(peer).line = None
            self._forget(peer, uuid)
            raise

    async def _content(
        self, peer: bytes, kind: Kind, channel: bytes, deadline: float, uuid: bytes, body: bytes
    ) -> Content:
        now_ms = int(self._context.now() * 1000)
        line = _OwnLine(bytes(LINE_BYTES), 0)
        if kind is Kind.MESSAGE:
            line = self._next_in_line(peer, now_ms)
        content = Content(
            kind=kind,
            channel=channel,
            deadline=int(deadline * 1000),
            sent_at=int(self._context.latest() * 1000),
            uuid=uuid,
            line=line.line,
            began=line.began,
            counter=line.counter,
            settled=0,
            seen=(),
            floor=0,
            key=None,
            body=body,
        )
        return await self._with_news(peer, content)

    def _next_in_line(self, peer: bytes, now_ms: int) -> _OwnLine:
        """The line to a peer, with the next counter."""
        outgoing, state = self._outgoing(peer), self._context.store.state(peer)
        line = outgoing.line
        if (
            line is None
            or line.began <= outgoing.floor
            or line.counter - outgoing.lowest(line) >= IN_LINE_MAX
        ):
            began = max(now_ms, state.last_began + 1, outgoing.floor + 1)
            line = outgoing.line = _OwnLine(self._context.entropy(LINE_BYTES), began)
        line.counter += 1
        return line

    async def _with_news(self, peer: bytes, content: Content) -> Content:
        """The content with what this node has of the peer, and its newest key for the peer."""
        context, outgoing = self._context, self._outgoing(peer)
        state = context.store.state(peer)
        now_ms = int(context.now() * 1000)
        changed = False
        if state.keys.wants_new(now_ms):
            lifetime_s = context.settings.ttl_s + KEPT_BEYOND_TTL_S
            context.store.make_key(peer, now_ms, int(lifetime_s * 1000), context.entropy)
            changed = True
        if content.began > state.last_began:
            state.last_began = content.began
            changed = True
        if changed:
            await context.store.write([context.store.stored(peer)])
        is_receipt = content.kind is Kind.RECEIPT
        limit = LISTED_MAX if is_receipt else LISTED_IN_MESSAGES
        newest = state.lines.names[-1:]
        names = self._lines_to_tell(peer) if is_receipt else newest
        seen = state.lines.seen(names, context.unfinished_of(peer), limit)
        is_told = bool(seen) and seen[-1].upto == seen[-1].highest
        is_told &= not outgoing.receipt_is_full and outgoing.receipt_lines.keys() <= set(newest)
        if is_receipt or is_told:
            for name in names:
                outgoing.receipt_lines.pop(name, None)
            outgoing.receipt_is_full = bool(outgoing.receipt_lines)
            is_done = not outgoing.receipt_lines
            outgoing.receipt_due = inf if is_done else context.now() + RECEIPT_S
        settled = 0
        if not is_receipt:
            line = _OwnLine(content.line, content.began, content.counter)
            settled = outgoing.lowest(line)
        return msgspec.structs.replace(
            content,
            settled=settled,
            seen=seen,
            floor=state.lines.floor,
            key=state.keys.current(int(CLOCKS_APART_S * 1000)),
        )

    def _lines_to_tell(self, peer: bytes) -> list[bytes]:
        """The lines of the peer for a receipt: those with news, the oldest first, and the newest
        others in what room is left."""
        news = self._outgoing(peer).receipt_lines
        names = self._context.store.state(peer).lines.names
        first = [name for name in names if name in news]
        others = [name for name in reversed(names) if name not in news]
        return [*first, *others][:SEEN_LINES_MAX]

    async def _seal(self, peer: bytes, content: Content, attempts: int) -> RelayedMessage:
        context = self._context
        prekey = self._one_time_prekey(peer, content, attempts)
        prekey = prekey or self.prekey_for(peer, content.deadline / 1000, attempts)
        if prekey is None:
            raise NoPrekey
        work = partial(
            seal_message,
            content,
            sender=context.identity,
            recipient=peer,
            prekey=prekey,
            entropy=context.entropy,
        )
        is_short = len(content.body) <= SEALED_HERE_BYTES
        sealed = work() if is_short else await anyio.to_thread.run_sync(work)
        deadline = relayed_deadline(content.deadline / 1000)
        return RelayedMessage(0, deadline, peer, b"", sealed)

    def _put(
        self, peer: bytes, content: Content, relayed: RelayedMessage, attempt: int
    ) -> ReplyFuture[Reply]:
        """Put a message into the mailbox of the peer, in the order of the calls."""
        context = self._context
        data = encode_relayed_message(relayed)
        ttl = min(seconds_left(content.deadline / 1000, context.latest()), context.settings.ttl_s)
        key = relayed_idempotency_key(relayed, attempt, data)
        return context.local.put_nowait(mailbox_of(peer), Put(key, ttl, data))

    async def _stored(
        self,
        peer: bytes,
        content: Content,
        relayed: RelayedMessage,
        answer: ReplyFuture[Reply],
        kept: KeptMessage | None,
    ) -> int:
        """Wait until a message is stored in the mailbox; returns its id there."""
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            try:
                stored = await answer
            except KeyReused:
                answer = self._put(peer, content, relayed, attempt)
                continue
            assert isinstance(stored, PutAck)
            if kept is not None:
                kept.mailbox_id = stored.id
                if kept.uuid in self._outgoing(peer).messages:
                    self._by_mailbox_id[peer, stored.id] = kept.uuid
            return stored.id
        raise BufferFull("no idempotency key is left for this message")

    def _keep(
        self, peer: bytes, content: Content, mailbox_id: int, attempts: int, tried_at: float
    ) -> KeptMessage:
        """Remember a message in memory, in place of an earlier attempt."""
        context = self._context
        kept = KeptMessage(
            uuid=content.uuid,
            line=content.line,
            began=content.began,
            counter=content.counter,
            hash=message_hash(context.identity.public, peer, content),
            # No later than that of a new one: the clock may have been ahead when it was sent.
            deadline=min(content.deadline, int((context.latest() + context.settings.ttl_s) * 1000)),
            size=len(content.body),
            mailbox_id=mailbox_id,
            attempts=attempts,
            tried_at=tried_at,
        )
        outgoing = self._outgoing(peer)
        earlier = outgoing.messages.get(content.uuid)
        if earlier is not None:
            kept.is_settled = earlier.is_settled
            kept.deadline = min(kept.deadline, earlier.deadline)
        self._forget(peer, content.uuid)
        outgoing.add(kept)
        if mailbox_id:
            self._by_mailbox_id[peer, mailbox_id] = content.uuid
        self._schedule(peer, kept, min(kept.next_at, kept.deadline / 1000))
        return kept

    def _forget(self, peer: bytes, uuid: bytes) -> None:
        kept = self._outgoing(peer).remove(uuid)
        if kept is not None:
            self._by_mailbox_id.pop((peer, kept.mailbox_id), None)

    def _row(self, peer: bytes, content: Content, kept: KeptMessage) -> Statement:
        key = self._context.local_key
        clear = msgspec.msgpack.encode(msgspec.structs.replace(content, seen=(), key=None))
        sealed = key.seal(self._context.identity.public, content.uuid, clear, b"outbox/" + peer)
        values = (peer, content.uuid, kept.mailbox_id, kept.attempts, kept.tried_at, sealed)
        return "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?)", values

    def _outgoing(self, peer: bytes) -> _Outgoing:
        found = self._by_peer.get(peer)
        if found is None:
            found = self._by_peer[peer] = _Outgoing()
        return found

    def _schedule(self, peer: bytes, kept: KeptMessage, at: float) -> None:
        """Look at a message then, or earlier if that was said before."""
        if at >= kept.due_at:
            return
        kept.due_at = at
        heappush(self._due, (at, peer, kept.uuid))
        if len(self._due) > self._due_max:
            self._due = [
                (each.due_at, owner, each.uuid)
                for owner, outgoing in self._by_peer.items()
                for each in outgoing.messages.values()
            ]
            heapify(self._due)
            self._due_max = 2 * len(self._due) + VOID_MAX
        if self._due[0][2] == kept.uuid:
            self._wakeup()

    def _load(self) -> None:
        text = "SELECT peer, uuid, mailbox_id, attempts, tried_at, content FROM outbox"
        for peer, uuid, mailbox_id, attempts, tried_at, sealed in self._context.store.query(text):
            content = self._read(peer, uuid, sealed)
            if content is not None:
                self._keep(peer, content, mailbox_id, attempts, tried_at)
            else:
                self._keep_unreadable(peer, uuid, mailbox_id, tried_at)

    def _keep_unreadable(self, peer: bytes, uuid: bytes, mailbox_id: int, tried_at: float) -> None:
        """Count a message that cannot be opened until the latest deadline that it may have. It is
        not sent again, and no receipt finds it; a later run may have the right `local.key`."""
        deadline = tried_at + self._context.settings.ttl_s
        kept = KeptMessage(
            uuid=uuid,
            line=b"",
            began=COUNT_MAX,
            counter=0,
            hash=b"",
            deadline=int(deadline * 1000),
            size=0,
            mailbox_id=mailbox_id,
            attempts=0,
            tried_at=inf,
        )
        self._outgoing(peer).add(kept)
        self._by_mailbox_id[peer, mailbox_id] = uuid
        self._schedule(peer, kept, deadline)

    def _read(self, peer: bytes, uuid: bytes, sealed: bytes) -> Content | None:
        try:
            opened = self._context.local_key.open(sealed, b"outbox/" + peer)
            return msgspec.msgpack.decode(opened.plaintext, type=Content)
        except (CannotOpen, msgspec.MsgspecError) as error:
            log.error(
                "kept message unreadable: to=%s uuid=%s: %s", peer_id(peer), uuid.hex(), error
            )
            return None

    # Notices of peers.

    def on_seen(self, peer: bytes, seen: tuple[Seen, ...], floor: int) -> None:
        """Take account of what a peer has of the messages to it."""
        outgoing = self._by_peer.get(peer)
        if outgoing is None:
            return
        outgoing.floor = max(outgoing.floor, min(floor, FLOOR_MAX))
        by_line = {each.line: each for each in seen}
        now = self._context.now()
        for kept in list(outgoing.messages.values()):
            found = by_line.get(kept.line)
            if found is None:
                if kept.began <= outgoing.floor:
                    again_at = max(now, kept.tried_at + GAP_S)
                    self._schedule(peer, kept, again_at)  # in a new line
            elif kept.counter == found.highest and kept.hash != found.hash:
                log.error("peer has another message than was sent: peer=%s", peer_id(peer))
            elif kept.counter in found.refused:
                self._settle(peer, kept, DeliveryStatus.REFUSED)
            elif kept.counter in found.missing:
                if kept.counter < found.highest:
                    self._schedule(peer, kept, max(now, kept.tried_at + GAP_S))
            elif kept.counter <= found.upto:
                self._settle(peer, kept, DeliveryStatus.DELIVERED)

    def receipt_due(self, peer: bytes, reason: ReceiptReason, line: bytes) -> None:
        """Send a receipt with this line soon, unless a message to the peer brings it."""
        outgoing, now = self._outgoing(peer), self._context.now()
        if line in self._context.store.state(peer).lines.names:
            outgoing.receipt_lines[line] = None
        due = now + RECEIPT_S
        if reason is ReceiptReason.REPEATED:
            due = max(due, outgoing.receipt_sent_at + REPEATED_RECEIPT_S)
        outgoing.receipt_due = min(outgoing.receipt_due, due)
        outgoing.receipt_is_full |= reason is not ReceiptReason.NEW
        self._receipt_wakeup()

    def _on_prekey(self, peer: bytes) -> None:
        """A new published prekey: the peer may not have the key that was used before."""
        outgoing = self._by_peer.get(peer)
        for kept in [] if outgoing is None else outgoing.messages.values():
            self._schedule(peer, kept, max(self._context.now(), kept.tried_at + GAP_S))
        if outgoing is not None and outgoing.receipt_due < inf:
            self._receipt_wakeup()

    async def _on_forwarded(
        self, peer: bytes, mailbox_ids: Sequence[int], refusal: str | None
    ) -> None:
        """Messages have left their mailbox; `refusal`: the peer itself does not take them."""
        if not self._unsettled(peer, mailbox_ids):
            return
        async with self._outgoing(peer).reporting:
            forwarded = self._unsettled(peer, mailbox_ids)  # a final status may have come first
            uuids = [each.uuid for each in forwarded]
            if not uuids:
                return
            if refusal is None:
                await self._context.report_status(peer, uuids, DeliveryStatus.SENT)
                for each in forwarded:
                    each.is_in_mailbox = False
            else:
                await self._context.report_status(peer, uuids, DeliveryStatus.REFUSED)
                await self._remove(peer, uuids)

    def _unsettled(self, peer: bytes, mailbox_ids: Sequence[int]) -> list[KeptMessage]:
        """Those of some messages whose final status is not known. The others have left their
        mailbox as well."""
        messages, found = self._outgoing(peer).messages, []
        for mailbox_id in mailbox_ids:
            kept = messages.get(self._by_mailbox_id.get((peer, mailbox_id), b""))
            if kept is not None and kept.is_settled:
                kept.is_in_mailbox = False
            elif kept is not None:
                found.append(kept)
        return found

    def _settle(self, peer: bytes, kept: KeptMessage, status: DeliveryStatus) -> None:
        kept.is_settled = True
        self._outcomes.append((peer, kept.uuid, status))
        self._wakeup()

    # The tasks.

    async def run(self) -> None:
        """Report outcomes, send messages again, and send receipts, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_receipts)
            report_at = -inf
            while True:
                now = self._context.now()
                if report_at <= now:
                    report_at = await self._try_to_report()
                while self._due and self._due[0][0] <= now:
                    at, peer, uuid = heappop(self._due)
                    await self._handle_due(peer, uuid, at)
                next_at = self._due[0][0] if self._due else inf
                if self._outcomes or self._unstored:
                    next_at = min(next_at, report_at)
                await self._wakeup.wait(max(0.0, min(CHECK_S, next_at - self._context.now())))

    async def _try_to_report(self) -> float:
        """Report outcomes, and store that they are reported; returns when to do so again."""
        try:
            await self._report_outcomes()
            await self._store_removals()
        except OSError as error:
            log.warning("final statuses not stored: %s", error)
            return self._context.now() + RETRY_FAILED_S
        return -inf

    async def _report_outcomes(self) -> None:
        """Report final outcomes, those of one kind together; a message is forgotten after all
        callbacks have returned."""
        outcomes = self._outcomes
        while outcomes:
            peer, _, status = outcomes[0]
            uuids: dict[bytes, None] = {}
            while outcomes and outcomes[0][0] == peer and outcomes[0][2] is status:
                uuids[outcomes.popleft()[1]] = None
            async with self._outgoing(peer).reporting:
                left = [uuid for uuid in uuids if self.kept(peer, uuid) is not None]
                if left:
                    await self._context.report_status(peer, left, status)
                    await self._remove(peer, left)

    async def _remove(self, peer: bytes, uuids: Sequence[bytes]) -> None:
        found = [self.kept(peer, uuid) for uuid in uuids]
        ids = [kept.mailbox_id for kept in found if kept is not None and kept.is_in_mailbox]
        self._context.local.discard(mailbox_of(peer), [each for each in ids if each])
        for uuid in uuids:
            self._forget(peer, uuid)
            self._unstored[peer, uuid] = None
        await self._store_removals()

    async def _store_removals(self) -> None:
        """Remove what is forgotten from `peers.db`. Raises OSError: it is tried again later."""
        removed = [each for each in self._unstored if self.kept(*each) is None]
        self._unstored = dict.fromkeys(removed)
        text = "DELETE FROM outbox WHERE peer = ? AND uuid = ?"
        await self._context.store.write([(text, each) for each in removed])
        for each in removed:
            self._unstored.pop(each, None)

    async def _handle_due(self, peer: bytes, uuid: bytes, at: float) -> None:
        kept = self.kept(peer, uuid)
        if kept is None or kept.due_at != at:
            return
        kept.due_at = inf
        now = self._context.now()
        if kept.deadline / 1000 <= now:
            self._settle(peer, kept, DeliveryStatus.EXPIRED)
            return
        try:
            if self._context.book.is_contact(peer):
                await self._resend(peer, kept)
        except (RequestError, OSError) as error:
            log.info("message not sent again: to=%s: %s", peer_id(peer), error)
        kept = self.kept(peer, uuid)
        if kept is not None:
            later = max(kept.next_at, now + RETRY_FAILED_S)
            self._schedule(peer, kept, min(later, kept.deadline / 1000))

    async def _resend(self, peer: bytes, kept: KeptMessage) -> None:
        """Seal a message again, and replace the copy in the mailbox."""
        context, now = self._context, self._context.now()
        if now < kept.tried_at + GAP_S:
            return
        is_refused_line = kept.began <= self._outgoing(peer).floor
        async with self.lock(peer):
            content = await self._stored_content(peer, kept)
            if content is None or self.prekey_for(peer, 0.0, 1) is None:
                return
            if self.kept(peer, kept.uuid) is not kept:  # the receipt came meanwhile
                return
            if is_refused_line:
                line = self._next_in_line(peer, int(now * 1000))
                content = msgspec.structs.replace(
                    content, line=line.line, began=line.began, counter=line.counter
                )
                # Before a copy is on its way: after a crash it would be counted once more.
                was_in_mailbox = kept.is_in_mailbox
                kept = self._keep(peer, content, kept.mailbox_id, kept.attempts, kept.tried_at)
                kept.is_in_mailbox = was_in_mailbox
                await context.store.write([self._row(peer, content, kept)])
            content = await self._with_news(peer, content)
            attempts = kept.attempts + 1
            relayed = await self._seal(peer, content, attempts)
            answer = self._put(peer, content, relayed, 0)
            mailbox_id = await self._stored(peer, content, relayed, answer, None)
            if kept.is_in_mailbox:
                context.local.discard(mailbox_of(peer), [kept.mailbox_id])
            if kept.uuid not in self._outgoing(peer).messages:  # the receipt came meanwhile
                context.local.discard(mailbox_of(peer), [mailbox_id])
                return
            kept = self._keep(peer, content, mailbox_id, attempts, now)
            await context.store.write([self._row(peer, content, kept)])

    async def _stored_content(self, peer: bytes, kept: KeptMessage) -> Content | None:
        text = "SELECT content FROM outbox WHERE peer = ? AND uuid = ?"
        query = partial(self._context.store.query, text, (peer, kept.uuid))
        rows = await anyio.to_thread.run_sync(query)
        return self._read(peer, kept.uuid, rows[0][0]) if rows else None

    async def _send_receipts(self) -> None:
        while True:
            now = self._context.now()
            for peer in list(self._due_receipts(now)):
                try:
                    await self._send_receipt(peer)
                except (RequestError, OSError) as error:
                    log.info("receipt not sent: to=%s: %s", peer_id(peer), error)
                    self._by_peer[peer].receipt_due = now + RETRY_FAILED_S
            due = min((each.receipt_due for each in self._by_peer.values()), default=inf)
            await self._receipt_wakeup.wait(max(0.0, min(CHECK_S, due - self._context.now())))

    def _due_receipts(self, now: float) -> Iterator[bytes]:
        for peer, outgoing in self._by_peer.items():
            if outgoing.receipt_due <= now:
                yield peer

    async def _send_receipt(self, peer: bytes) -> None:
        context, outgoing = self._context, self._outgoing(peer)
        if not context.book.is_contact(peer):
            outgoing.receipt_due = inf
            return
        if self.prekey_for(peer, 0.0) is None:
            outgoing.receipt_due = context.now() + RETRY_FAILED_S
            return
        async with self.lock(peer):
            deadline = context.latest() + min(RECEIPT_TTL_S, context.settings.ttl_s)
            uuid = context.entropy(UUID_BYTES)
            content = await self._content(peer, Kind.RECEIPT, b"", deadline, uuid, b"")
            lines = frozenset(each.line for each in content.seen)
            try:
                relayed = await self._seal(peer, content, 0)
                answer = self._put(peer, content, relayed, 0)
                stored = await self._stored(peer, content, relayed, answer, None)
            except (RequestError, OSError):
                outgoing.receipt_lines.update(dict.fromkeys(lines))
                outgoing.receipt_is_full = True
                raise
            if outgoing.receipt_id and outgoing.told <= lines:  # the new one says all that it said
                context.local.discard(mailbox_of(peer), [outgoing.receipt_id])
            outgoing.receipt_id, outgoing.told = stored, lines
            outgoing.receipt_sent_at = context.now()
