"""The transfers of the files of one group.

The sealed bytes of a file are the same for all members, and its key is in the message alone. The
author offers it to each member that is a contact, at its node or at a relay of it. A member that
passes the message on to others offers them the file as well, once it has all of it. A recipient
takes what it is offered, and after a moment looks for the file itself: at the author, at the member
from which messages of the author come, at its own relays, and at other members that are contacts.

Files are given to active members alone, so a removed member gets no later one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from math import inf

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import Malformed, NotFound
from millpond.node.chat.chunk_transfer import (
    ANSWERED_WITHIN_S,
    CHECK_S,
    DROPS_MAX,
    FETCH_AFTER_S,
    NOT_HERE,
    NOT_OFFERED,
    PROBLEMS,
    PUSHED_S,
    STORED_CHECK_S,
    TOO_MANY,
    ChunkTransfer,
    IncomingFile,
    Progress,
    TurnOver,
    problem_text,
)
from millpond.node.chat.conversation_log import ConversationLog
from millpond.node.chat.file_messages import FileTransfer
from millpond.node.chat.files import ChatFiles, RefusedFile, clean_reason, stream_of
from millpond.node.chat.groups.conversation import GroupConversation
from millpond.node.chat.groups.membership import Membership
from millpond.node.chat.groups.shared_files import SharedFile
from millpond.node.chat.payloads import REASON_CHARS_MAX, FileStatus
from millpond.node.chat.pending_files import PENDING_MAX, PendingFile, PendingFiles
from millpond.node.chat.records import Kind, Transfer
from millpond.node.outbox import messages as m
from millpond.node.outbox.context import Wakeup
from millpond.node.outbox.file_requests import check_offer
from millpond.node.outbox.file_store import StoredFile
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.routes import RedialDelay, Route, relay_routes, routes_to
from millpond.node.peers.file_format import File
from millpond.node.peers.identity import peer_id, public_key_of

log = logging.getLogger(__name__)

ASKED_MAX = 8
"""The most other members that are asked for a file in one round."""

Tell = Callable[[bytes, FileStatus], Awaitable[None]]
"""Tells a member the state of a file."""


class _Share(msgspec.Struct):
    """A file on its way to one member; the next attempt is due at `due_at`."""

    progress: Progress
    delay: RedialDelay
    due_at: float = -inf
    is_stored: bool = False
    is_done: bool = False


class GroupFileTransfers:
    """The transfers of one group. `outgoing` and `incoming` wake them. `membership` gives the
    members as they are now."""

    def __init__(
        self,
        group: bytes,
        outbox: Outbox,
        history: ConversationLog[GroupConversation],
        files: ChatFiles,
        membership: Callable[[], Membership],
        tell: Tell,
    ) -> None:
        self.outgoing = Wakeup()
        self.incoming = Wakeup()
        self._group = group
        self._outbox = outbox
        self._own = outbox.context.identity.public
        self._history = history
        self._files = files
        self._membership = membership
        self._tell = tell
        self._chunks = ChunkTransfer(outbox.context, files)
        self._shares: dict[str, dict[bytes, _Share]] = {}
        """By the name of the file, and the member."""
        self._offered_to: set[bytes] = set()
        """The members that are offered a file now: one at a time, so that a slow one holds up
        nobody else."""
        self._to_be_dropped: list[bytes] = []
        self._received: dict[str, Progress] = {}
        self._receiving: dict[str, Wakeup] = {}
        """By the name of the file: each is received by a task of its own."""
        self._fetch_delay = RedialDelay(outbox.context.rng)
        self._pushed_at: dict[str, float] = {}

    async def run(self) -> None:
        """Send and receive files until cancelled. Raises RequestErrors of the history."""
        self._shares.clear()
        self._offered_to.clear()
        self._receiving.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_all, tasks)
            tasks.start_soon(self._receive_all, tasks)

    def transfers(self) -> Iterator[FileTransfer]:
        """The files that are on their way."""
        conversation = self._history.conversation
        if conversation is None:
            return
        for pending in conversation.files_out.files:
            shares, chunks = self._shares.get(pending.name, {}), pending.file.chunks
            done = sum(min(each.progress.chunks, chunks) for each in shares.values())
            problems = (each.progress.problem for each in shares.values() if not each.is_done)
            yield FileTransfer(
                Kind.OUT.value,
                bytes.fromhex(pending.uuid),
                done,
                chunks * max(1, len(shares)),
                bool(shares) and all(each.is_done or each.is_stored for each in shares.values()),
                next((each for each in problems if each), self._lost_text(pending)),
            )
        for pending in conversation.files_in.files:
            progress = self._received.get(pending.name, Progress())
            yield FileTransfer(
                Kind.IN.value,
                bytes.fromhex(pending.uuid),
                progress.chunks,
                pending.file.chunks,
                False,
                progress.problem,
                pending.by,
            )

    def _lost_text(self, pending: PendingFile) -> str:
        """The words about members to whom no way is known."""
        book, membership = self._outbox.context.book, self._membership()
        left = {public_key_of(each) for each in pending.members - pending.ended.keys()}
        contacts = {each for each in membership.active if book.is_contact(each)}
        _, lost = membership.next_hops(self._own, left & set(membership.active), contacts)
        members = "1 member" if len(lost) == 1 else f"{len(lost)} members"
        return f"{members} NOT REACHED from here: add them as contacts" if lost else ""

    # Sending.

    def delivered(self, member: bytes) -> None:
        """A member has got messages: it may know now what it is offered."""
        for shares in self._shares.values():
            share = shares.get(member)
            if share is not None and not share.is_done and not share.is_stored:
                share.due_at = -inf
                self.outgoing()

    async def _send_all(self, tasks: TaskGroup) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            await self._remove_dropped(conversation.files_out, Kind.OUT)
            roots, self._to_be_dropped = self._to_be_dropped, []
            if roots:
                tasks.start_soon(self._chunks.drop, list(self._relays()), roots)
            wait_s = CHECK_S
            for pending in conversation.files_out.files:
                if self._is_joined:
                    wait_s = min(wait_s, await self._send(tasks, conversation, pending))
            for shared in conversation.shared.passed_on[-PENDING_MAX:]:
                if self._is_joined:
                    wait_s = min(wait_s, await self._pass_on(tasks, shared))
            await self.outgoing.wait(wait_s)

    def _relays(self) -> Iterator[tuple[Route, bytes]]:
        """The relays of all members that are contacts, each once, with the mailbox of a member."""
        book, state, found = self._outbox.context.book, self._membership().state, set[str]()
        for member in () if state is None else state.members:
            peer = book.by_public(member) if book.is_contact(member) else None
            for route in () if peer is None else routes_to(peer, book, self._own):
                if route.is_relay and route.url not in found:
                    found.add(route.url)
                    yield route, mailbox_of(member)

    async def _send(
        self, tasks: TaskGroup, conversation: GroupConversation, pending: PendingFile
    ) -> float:
        """Send a file of this node to members; returns the delay before the next attempt."""
        files = conversation.files_out
        try:
            stored = await self._files.sent(self._group, pending.name)
        except OSError as error:
            log.warning("file not kept: group=%s: %s", peer_id(self._group), error)
            return CHECK_S
        if stored is None:
            await self._record(files, pending, Transfer.EXPIRED, NOT_HERE)
            return CHECK_S
        if self._is_over(pending.file):
            count = len(pending.members - pending.ended.keys())
            reason = f"{count} of {len(pending.members)} members did not fetch it in time"
            await self._record(files, pending, Transfer.EXPIRED, reason)
            return CHECK_S
        active = set(self._membership().active)
        wanted = {public_key_of(each) for each in pending.members - pending.ended.keys()} & active
        if not wanted:
            is_refused = pending.ended and Transfer.RECEIVED not in pending.ended.values()
            transfer = Transfer.REFUSED if is_refused else Transfer.RECEIVED
            await self._record(files, pending, transfer, "by all members" if is_refused else "")
            self._drop_later(stored.root)
            return CHECK_S

        async def ended(member: bytes, refusal: str | None) -> None:
            await self._end_for(pending, member, refusal)

        return self._offer_all(tasks, pending.name, pending.file, stored, wanted, ended)

    async def _pass_on(self, tasks: TaskGroup, shared: SharedFile) -> float:
        """Send a file of another member to those that get its message through this node."""
        stored = self._stored(shared)
        if stored is None or self._is_over(shared.file):
            self._shares.pop(shared.name, None)
            return CHECK_S
        targets = shared.targets & set(self._membership().active)
        targets -= {self._own, public_key_of(shared.by)}
        shares = self._shares.get(shared.name, {})
        wanted = {each for each in targets if each not in shares or not shares[each].is_done}
        if not wanted or await self._files.store.count(stored) < shared.file.chunks:
            return CHECK_S

        async def ended(member: bytes, refusal: str | None) -> None:
            del member, refusal  # the author hears of it, too

        return self._offer_all(tasks, shared.name, shared.file, stored, wanted, ended)

    def _offer_all(
        self,
        tasks: TaskGroup,
        name: str,
        file: File,
        stored: StoredFile,
        members: set[bytes],
        ended: Callable[[bytes, str | None], Awaitable[None]],
    ) -> float:
        """Offer a file to the members for whom that is due; returns the delay until it is due for
        another one."""
        context, wait_s = self._outbox.context, CHECK_S
        book, now = context.book, context.now()
        shares = self._shares.setdefault(name, {})
        for member in sorted(each for each in members if book.is_contact(each)):
            share = shares.setdefault(member, _Share(Progress(), RedialDelay(context.rng)))
            if share.is_done or member in self._offered_to:  # that wakes this at its end
                continue
            if share.due_at > now:
                wait_s = min(wait_s, share.due_at - now)
                continue
            self._offered_to.add(member)
            tasks.start_soon(self._offer_one, name, member, file, stored, share, ended)
        return wait_s

    async def _offer_one(
        self,
        name: str,
        member: bytes,
        file: File,
        stored: StoredFile,
        share: _Share,
        ended: Callable[[bytes, str | None], Awaitable[None]],
    ) -> None:
        try:
            async with self._files.limiter:
                if await self._offer(member, file, stored, share, ended):
                    await self._tell(member, FileStatus(name.rpartition("!")[2], "stored"))
        finally:
            self._offered_to.discard(member)
            self.outgoing()

    async def _offer(
        self,
        member: bytes,
        file: File,
        stored: StoredFile,
        share: _Share,
        ended: Callable[[bytes, str | None], Awaitable[None]],
    ) -> bool:
        """Offer a file to a member, if there is a way; True: a relay of it has the file now."""
        context, progress = self._outbox.context, share.progress
        peer = context.book.by_public(member)
        for route in () if peer is None else routes_to(peer, context.book, self._own):
            if share.is_done or member not in self._membership().active:
                return False
            try:
                with anyio.fail_after(ANSWERED_WITHIN_S) as limit:
                    refusal = await self._chunks.offer(route, member, file, stored, progress, limit)
            except TurnOver:
                share.due_at = -inf
                return False
            except PROBLEMS as error:
                progress.problem = problem_text(error, route)
                continue
            if refusal is not None:
                progress.problem = refusal
                if route.is_relay:
                    continue
                share.is_done = True
                await ended(member, refusal)
                return False
            if progress.chunks < file.chunks:  # the member has no message of it yet
                continue
            share.delay.reset()
            progress.problem = ""
            if not route.is_relay:
                share.is_done = True
                await ended(member, None)
                return False
            share.due_at = context.now() + STORED_CHECK_S
            if not share.is_stored:
                share.is_stored = True
                return True
            return False
        share.due_at = context.now() + share.delay.next_s()
        return False

    async def _end_for(self, pending: PendingFile, member: bytes, refusal: str | None) -> None:
        transfer = Transfer.RECEIVED if refusal is None else Transfer.REFUSED
        conversation = await self._history.wait_conversation()
        if peer_id(member) in pending.ended:
            return
        await self._record(
            conversation.files_out, pending, transfer, refusal or "", (peer_id(member),)
        )

    async def told(self, member: bytes, status: FileStatus) -> None:
        """A member has told the state of a file. Raises RequestErrors of the history."""
        if status.state == "stored":
            self._fetch_delay.reset()
            self.incoming()
            return
        conversation = await self._history.wait_conversation()
        pending = conversation.files_out.find(status.of)
        if pending is None or peer_id(member) not in pending.members:
            return
        share = self._shares.get(pending.name, {}).get(member)
        if share is not None:
            share.is_done = True
        refusal = clean_reason(status.text) or "it is refused"
        await self._end_for(pending, member, None if status.state == "received" else refusal)
        self.outgoing()

    def sent_file(self, recipient: bytes, root: bytes) -> StoredFile | None:
        """A file for an active member."""
        conversation = self._history.conversation
        if conversation is None or recipient not in self._membership().active:
            return None
        found = (self._stored(each) for each in conversation.shared.by_root(root.hex()))
        return next((each for each in found if each is not None), None)

    def fetched(self, recipient: bytes, root: bytes, count: int) -> None:
        """A member has fetched so many chunks of a file itself."""
        conversation = self._history.conversation
        for shared in () if conversation is None else conversation.shared.by_root(root.hex()):
            share = self._shares.get(shared.name, {}).get(recipient)
            if share is not None:
                chunks = min(count, shared.file.chunks)
                share.progress.chunks = max(share.progress.chunks, chunks)
                share.progress.problem = ""

    def _stored(self, shared: SharedFile) -> StoredFile | None:
        """The stored file, with its leaves."""
        stored = self._files.store.find(stream_of(self._group, shared.kind, shared.name))
        return stored if stored is not None and stored.leaves else None

    # Receiving.

    async def _receive_all(self, tasks: TaskGroup) -> None:
        while True:
            conversation = await self._history.wait_conversation()
            await self._remove_dropped(conversation.files_in, Kind.IN)
            for pending in conversation.files_in.files:
                wakeup = self._receiving.get(pending.name)
                if wakeup is not None:
                    wakeup()
                elif self._is_joined:  # else nobody gives it anything
                    wakeup = self._receiving[pending.name] = Wakeup()
                    tasks.start_soon(self._receive_one, pending.name, wakeup)
            await self.incoming.wait(CHECK_S)

    async def _receive_one(self, name: str, wakeup: Wakeup) -> None:
        while self._is_joined:
            conversation = await self._history.wait_conversation()
            pending = conversation.files_in.find(name)
            if pending is None:
                break
            number = conversation.files_in.files.index(pending)
            wait_s = await self._receive(conversation, pending, number)
            if conversation.files_in.find(name) is not None:
                await wakeup.wait(wait_s)
        del self._receiving[name]

    async def _receive(
        self, conversation: GroupConversation, pending: PendingFile, number: int
    ) -> float:
        """Finish a file, refuse it or fetch more of it; returns the delay before the next look."""
        now, progress = self._outbox.context.now(), self._progress_of(pending)
        try:
            stored = await self._reserve(pending, number)
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            return CHECK_S
        at = progress.chunks = await self._files.store.count(stored)
        if at >= pending.file.chunks:
            await self._tell(public_key_of(pending.by), FileStatus(pending.uuid, "received"))
            await self._record(conversation.files_in, pending, Transfer.RECEIVED)
            self.outgoing()  # to those behind this node
            return CHECK_S
        if self._is_over(pending.file):
            await self._record(conversation.files_in, pending, Transfer.EXPIRED, NOT_OFFERED)
            await self._files.remove(self._group, Kind.IN, pending.name)
            return CHECK_S
        pushed_s = self._pushed_at.get(pending.name, -inf) + PUSHED_S - now
        if pushed_s > 0:
            return pushed_s
        early_s = pending.at / 1000 + FETCH_AFTER_S - now
        if 0 < early_s <= FETCH_AFTER_S:  # its sender may be about to send it
            return early_s
        for route, channel in self._sources(pending):
            try:
                async with self._files.limiter:
                    with anyio.fail_after(ANSWERED_WITHIN_S) as limit:
                        await self._chunks.fetch(
                            route, channel, self._incoming(pending), stored, progress, limit
                        )
            except RefusedFile as error:
                await self._refuse(conversation, pending, str(error))
                return CHECK_S
            except TurnOver:
                return 0.0
            except PROBLEMS as error:
                progress.problem = problem_text(error, route)
                stored = self._files.store.find(stored.stream) or stored
                continue
            if progress.chunks >= pending.file.chunks:
                self._fetch_delay.reset()
                progress.problem = ""
                return 0.0
        return self._fetch_delay.next_s()

    def _sources(self, pending: PendingFile) -> Iterator[tuple[Route, bytes]]:
        """The nodes where a file may be: routes and the channels to connect to there."""
        context, author = self._outbox.context, public_key_of(pending.by)
        membership, book = self._membership(), context.book
        active = [each for each in membership.active if each != self._own]
        contacts = {each for each in active if book.is_contact(each)}
        ways, _ = membership.next_hops(self._own, [author], contacts)
        first = [each for each in (author, *ways) if each in contacts]
        yield from self._nodes_of(first)
        for relay in context.settings.via:
            for route in relay_routes(relay, book, allows_local=True):
                yield route, mailbox_of(self._own) + KEYS_SUFFIX
        others = (each for each in active if each in contacts and each not in first)
        yield from self._nodes_of(list(islice(others, ASKED_MAX)))

    def _nodes_of(self, members: Sequence[bytes]) -> Iterator[tuple[Route, bytes]]:
        book = self._outbox.context.book
        for member in dict.fromkeys(members):
            peer = book.by_public(member)
            for route in () if peer is None else routes_to(peer, book, self._own):
                if not route.is_relay:
                    yield route, mailbox_of(member) + KEYS_SUFFIX

    async def offered(self, sender: bytes, offer: m.FileOffer) -> m.FileOfferAnswer:
        """Take an offer of a contact. Raises Malformed, and the errors of the disk."""
        check_offer(offer)
        conversation = await self._history.wait_conversation()
        files, root = conversation.files_in, offer.root.hex()
        pending = files.by_root(root)
        if sender not in self._membership().active:
            return m.FileOfferAnswer("unknown")
        if pending is None:
            match files.ended(root):
                case None:
                    return m.FileOfferAnswer("unknown")
                case Transfer.RECEIVED, _:
                    return m.FileOfferAnswer("wanted", len(offer.leaves) // len(offer.root))
                case _, reason:
                    return m.FileOfferAnswer("refused", reason=reason)
        if offer.size != pending.file.size:
            raise Malformed("its message has announced another size")
        try:
            stored = await self._reserve(pending, files.files.index(pending))
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            return m.FileOfferAnswer("refused", reason=str(error))
        if not stored.leaves:
            stored = await self._chunks.learn_leaves(self._incoming(pending), offer.leaves)
        self._pushed_at[pending.name] = self._outbox.context.now()
        return m.FileOfferAnswer("wanted", await self._files.store.count(stored))

    async def put(
        self, sender: bytes, root: bytes, first: int, chunks: Sequence[bytes]
    ) -> int | None:
        """Store chunks that a contact puts; returns the number of those that are there. None: no
        such file is expected. Raises Malformed, and the errors of the disk."""
        conversation = await self._history.wait_conversation()
        pending = conversation.files_in.by_root(root.hex())
        if pending is None or sender not in self._membership().active:
            return None
        incoming = self._incoming(pending)
        stored = self._files.store.find(incoming.stream)
        if stored is None or not stored.leaves:
            raise NotFound
        try:
            at = await self._chunks.add(incoming, stored, first, chunks)
        except RefusedFile as error:
            await self._refuse(conversation, pending, str(error))
            raise Malformed(str(error)) from error
        self._pushed_at[pending.name] = self._outbox.context.now()
        progress = self._progress_of(pending)
        progress.chunks, progress.problem = at, ""
        if at >= pending.file.chunks:
            self.incoming()
        return at

    async def _reserve(self, pending: PendingFile, number: int) -> StoredFile:
        incoming = self._incoming(pending)
        if number >= PENDING_MAX and self._files.store.find(incoming.stream) is None:
            raise RefusedFile(TOO_MANY)
        return await self._chunks.reserve(incoming)

    def _incoming(self, pending: PendingFile) -> IncomingFile:
        """The share of the author is used, whoever brings the file."""
        stream = stream_of(self._group, Kind.IN, pending.name)
        return IncomingFile(stream, pending.file, public_key_of(pending.by))

    def _progress_of(self, pending: PendingFile) -> Progress:
        return self._received.setdefault(pending.name, Progress())

    async def _refuse(
        self, conversation: GroupConversation, pending: PendingFile, why: str
    ) -> None:
        status = FileStatus(pending.uuid, "refused", why[:REASON_CHARS_MAX])
        await self._tell(public_key_of(pending.by), status)
        await self._record(conversation.files_in, pending, Transfer.REFUSED, why)
        await self._files.remove(self._group, Kind.IN, pending.name)

    # Both.

    @property
    def _is_joined(self) -> bool:
        return self._own in self._membership().active

    def _is_over(self, file: File) -> bool:
        return bool(file.until) and file.until / 1000 <= self._outbox.context.now()

    async def _record(
        self,
        files: PendingFiles,
        pending: PendingFile,
        transfer: Transfer,
        reason: str = "",
        members: tuple[str, ...] = (),
    ) -> None:
        """Store the new state of a file. Raises RequestErrors of the history."""
        history = self._history
        async with history.lock:
            conversation = await history.wait_conversation()
            if files not in (conversation.files_in, conversation.files_out):
                return  # the history was read again
            if files.find(pending.name) is None:
                return
            record = files.record_of(pending, transfer, history.now_ms, reason, members)
            await history.append(conversation, [record])
        if not members:
            self._received.pop(pending.name, None)
            self._shares.pop(pending.name, None)
            self._pushed_at.pop(pending.name, None)

    async def _remove_dropped(self, files: PendingFiles, kind: Kind) -> None:
        """Remove the files of messages that were deleted, those that were given to others also at
        relays."""
        for name in files.take_dropped():
            stored = self._files.store.find(stream_of(self._group, kind, name))
            if stored is not None and stored.leaves:
                self._drop_later(stored.root)
            await self._files.remove(self._group, kind, name)

    def _drop_later(self, root: bytes) -> None:
        """Remove a file at relays, as a task of its own."""
        self._to_be_dropped = [*self._to_be_dropped, root][-DROPS_MAX:]
        self.outgoing()
