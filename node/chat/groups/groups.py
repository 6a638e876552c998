"""The groups of a node: their tasks, invitations into them, and requests about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import BufferFull, RequestError, UnknownPeer
from millpond.actors.runtime.supervisor import contain
from millpond.node.chat import messages as b
from millpond.node.chat.files import ChatFiles
from millpond.node.chat.groups.group_task import GroupTask, group_stream
from millpond.node.chat.groups.membership import Membership, MemberStatus, new_group
from millpond.node.chat.groups.signed import NONCE_BYTES, BadRecord, Change
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.payloads import GroupPayload
from millpond.node.outbox.messages import PeerOperation, write_body
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.peer import Peer
from millpond.node.peers.peer_store import Statement
from millpond.transports.p2p.bodies import read_body

log = logging.getLogger(__name__)

GROUPS_MAX = 256
"""The most groups of a node, without those that it has left."""
INVITATIONS_MAX = 32
"""The most invitations that wait for an answer."""
INVITATIONS_OF_CONTACT_MAX = 8
"""The most of them that one contact has sent."""
LEFT_MAX = 32
"""The most groups that the node has left and still knows, so that the other members hear of it, and
its history is searched."""
RETRY_S = 2.0
LOADED_S = 3.0
_INSERT = "INSERT OR IGNORE INTO groups VALUES (?, ?)"
_DELETE = "DELETE FROM groups WHERE id = ?"
_INSERT_SENDER = "INSERT OR REPLACE INTO invitations VALUES (?, ?)"
_DELETE_SENDER = "DELETE FROM invitations WHERE id = ?"
CHANGES = {
    "add": Change.ADD,
    "remove": Change.REMOVE,
    "admin": Change.ADMIN,
    "member": Change.MEMBER,
    "rename": Change.RENAME,
}


class Groups:
    """The groups of a node; `run` is their task. `stream` opens the local stream of a name."""

    def __init__(
        self, outbox: Outbox, stream: Callable[[bytes], LocalStream], files: ChatFiles
    ) -> None:
        self._outbox = outbox
        self._files = files
        self._open_stream = stream
        self._groups: dict[bytes, GroupTask] = {}
        self._lock = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._scopes: dict[bytes, anyio.CancelScope] = {}
        outbox.on_prekey(lambda _peer: self._wake())
        query = outbox.context.store.query("SELECT id FROM groups ORDER BY added_at, id")
        for (group,) in query:
            self._groups[group] = self._task(group)
        self._senders = dict[bytes, bytes](
            outbox.context.store.query("SELECT id, sender FROM invitations")
        )
        """The contacts that have sent the invitations which are not accepted."""

    def register(self, peer_requests: PeerRequests) -> None:
        """Add the handlers of operations 40 to 43."""
        peer_requests.register(PeerOperation.GROUP_CREATE, self._create)
        peer_requests.register(PeerOperation.GROUP_INFO, self._info)
        peer_requests.register(PeerOperation.GROUP_CHANGE, self._change)
        peer_requests.register(PeerOperation.GROUP_ANSWER, self._answer)

    async def run(self) -> None:
        """Run the tasks of all groups, until cancelled."""
        self._scopes.clear()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for task in self._groups.values():
                self._start(task)
            await anyio.sleep_forever()

    def _task(self, group: bytes) -> GroupTask:
        return GroupTask(group, self._outbox, self._open_stream, self._files)

    def _start(self, task: GroupTask) -> None:
        if self._tasks is not None:
            scope = self._scopes[task.group] = anyio.CancelScope()
            self._tasks.start_soon(self._run_task, task, scope)

    async def _run_task(self, task: GroupTask, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await contain(f"group/{task.id}", partial(self._run_once, task))
                await anyio.sleep(RETRY_S)

    async def _run_once(self, task: GroupTask) -> None:
        try:
            await task.run()
        except* RequestError as errors:
            log.warning("group %s is interrupted: %s", task.id, errors.exceptions[0])

    def _wake(self) -> None:
        for task in self._groups.values():
            task.wake()

    def address_book_changed(self) -> None:
        """Members may have become contacts."""
        self._wake()

    async def _add(self, group: bytes, sender: bytes | None = None) -> GroupTask:
        """The task of a group, `sender`: into which a contact invites. Raises OSError and
        BufferFull."""
        if group in self._groups:
            return self._groups[group]
        if self._is_full:
            raise BufferFull(f"a node has at most {GROUPS_MAX} groups")
        statements: list[Statement] = [(_INSERT, (group, self._outbox.context.now()))]
        if sender is not None:
            statements.append((_INSERT_SENDER, (group, sender)))
        await self._outbox.context.store.write(statements)
        task = self._groups[group] = self._task(group)
        if sender is not None:
            self._senders[group] = sender
        self._start(task)
        return task

    @property
    def _is_full(self) -> bool:
        return sum(not each.has_left for each in self._groups.values()) >= GROUPS_MAX

    async def _forget(self, task: GroupTask) -> None:
        """Raises OSError."""
        deletions = [(each, (task.group,)) for each in (_DELETE, _DELETE_SENDER)]
        await self._outbox.context.store.write(deletions)
        self._groups.pop(task.group, None)
        self._senders.pop(task.group, None)
        task.close()
        if task.group in self._scopes:
            self._scopes.pop(task.group).cancel()

    async def _forget_oldest_left(self) -> None:
        """Raises OSError."""
        left = [each for each in self._groups.values() if each.has_left]
        left.sort(key=lambda each: each.left_at)
        for each in left[: max(0, len(left) - LEFT_MAX)]:
            await self._forget(each)

    # Receiving.

    async def receive(self, peer: bytes, payload: GroupPayload) -> None:
        """Store what a contact has sent. Raises RequestErrors."""
        task = self._groups.get(payload.group)
        if task is None:
            async with self._lock:
                task = await self._invited(peer, payload)
        if task is None:
            return
        await task.wait_loaded()
        if task.is_joined:
            self._senders.pop(task.group, None)
        await task.receive(peer, payload)
        is_withdrawn = task.status is None and task.membership.state is not None
        if is_withdrawn and task.group in self._senders:
            log.info("invitation withdrawn: group=%s", task.id)
            try:
                await self._forget(task)
            except OSError as error:
                raise BufferFull(str(error)) from error

    async def _invited(self, peer: bytes, payload: GroupPayload) -> GroupTask | None:
        """The task of a new group if the payload is an invitation of a contact into it."""
        if payload.group in self._groups:
            return self._groups[payload.group]
        context = self._outbox.context
        membership = await anyio.to_thread.run_sync(_membership_in, payload, context.now())
        own = membership.status(context.identity.public)
        if own is not MemberStatus.INVITED or peer not in membership.active:
            context.drop("unknown_group", f"sender={peer_id(peer)}")
            return None
        if self._is_full or not self._takes_invitation(peer):
            context.drop("group_limit", f"sender={peer_id(peer)}")
            return None
        log.info("invited into a group: by=%s", peer_id(peer))
        try:
            return await self._add(payload.group, peer)
        except OSError as error:
            raise BufferFull(str(error)) from error

    def _takes_invitation(self, sender: bytes) -> bool:
        """False if many wait for an answer, or many of this contact."""
        waiting = []
        for group, task in self._groups.items():
            is_unread = task.status is None and group in self._senders
            if is_unread or task.status is MemberStatus.INVITED:
                waiting.append(self._senders.get(group))
        of_sender = waiting.count(sender)
        return len(waiting) < INVITATIONS_MAX and of_sender < INVITATIONS_OF_CONTACT_MAX

    # Conversations, for requests about them.

    def find(self, text: str) -> GroupTask | None:
        """The group with this id, or with this name if it is that of one group alone."""
        try:
            found = self._groups.get(public_key_of(text))
        except BadPeerId:
            named = [each for each in self.listed if self.name(each) == text]
            found = named[0] if len(named) == 1 else None
        return found

    def find_or_raise(self, text: str) -> GroupTask:
        """The same. Raises UnknownPeer."""
        found = self.find(text)
        if found is None:
            raise UnknownPeer
        return found

    def name(self, task: GroupTask) -> str:
        """The name of a group; with a part of its id if another group, or a peer, has that name."""
        state = task.membership.state
        name = task.id[:8] if state is None else state.name
        others = [each for each in self.listed if each is not task]
        is_taken = self._outbox.context.book.by_name(name) is not None or any(
            each.membership.state is not None and each.membership.state.name == name
            for each in others
        )
        return f"{name} ({task.id[:6]})" if is_taken else name

    def __iter__(self) -> Iterator[GroupTask]:
        return iter(list(self._groups.values()))

    @property
    def listed(self) -> Sequence[GroupTask]:
        """The groups that people see: without those that this node has left."""
        return [each for each in self._groups.values() if not each.has_left]

    async def chat_info(self, task: GroupTask, *, is_single: bool = False) -> b.ChatInfo:
        """The conversation of a group. `is_single`: with the names of its members."""
        with anyio.move_on_after(LOADED_S):
            await task.wait_loaded()
        conversation = task.conversation
        info = b.ChatInfo(
            name=self.name(task),
            id=task.id,
            stream=group_stream(task.group).decode(),
            trust="group",
            here=False,
            seen_at=None,
            typing=bool(task.typing),
            tail=0,
            read=0,
            unread=0,
            waiting=0,
            last=None,
            group=self._summary(task, is_single=is_single),
        )
        if conversation is not None:
            info.tail, info.read = conversation.tail, conversation.read
            info.unread, info.waiting = conversation.unread, conversation.waiting
            last = conversation.last
            if last is not None:
                by = task.name_of(public_key_of(last.by)) if last.by else ""
                text = last.text[: b.PREVIEW_CHARS]
                info.last = b.LastMessage(last.kind.value, text, last.at, by)
        return info

    def _summary(self, task: GroupTask, *, is_single: bool) -> b.GroupSummary:
        membership, own = task.membership, self._outbox.context.identity.public
        state = membership.state
        members = {} if state is None else state.members
        status = [membership.status(each) for each in members]
        by = members[own].added_by if own in members else b""
        invited_by = by if task.status is MemberStatus.INVITED else b""
        return b.GroupSummary(
            status=_status_text(task.status),
            members=len(membership.active),
            invited=status.count(MemberStatus.INVITED),
            forks=len(membership.forks),
            admin=membership.is_admin(own),
            invited_by=task.name_of(invited_by) if invited_by else "",
            names=self._names(task) if is_single else {},
            typing=task.typing,
        )

    @staticmethod
    def _names(task: GroupTask) -> dict[str, str]:
        return {peer_id(each): task.name_of(each) for each in task.membership.labels}

    # Requests.

    async def _create(self, body: bytes) -> bytes:
        request, context = read_body(body, b.GroupCreateRequest), self._outbox.context
        try:
            members = [self._member(each) for each in request.members]
            now_ms, nonce = int(context.latest() * 1000), context.entropy(NONCE_BYTES)
            group, first = new_group(context.identity, request.name, now_ms, nonce)
            task = await self._add(group)
            await task.found(first)
            if members:
                await task.change(Change.ADD, members)
        except (BadRecord, BufferFull) as error:
            return write_body(b.GroupAnswer(None, str(error)))
        return write_body(b.GroupAnswer(task.id))

    def _member(self, text: str) -> tuple[bytes, str]:
        """A contact that is to be added. Raises BadRecord."""
        peer: Peer | None = self._outbox.context.book.resolve(text)
        if peer is None or not peer.is_contact:
            raise BadRecord(f"{text!r} is no contact of yours: add it first")
        return peer.public, peer.name

    async def _info(self, body: bytes) -> bytes:
        task = self.find_or_raise(read_body(body, b.GroupInfoRequest).group)
        await task.wait_loaded()
        membership, book = task.membership, self._outbox.context.book
        own, state = self._outbox.context.identity.public, task.membership.state
        contacts = {each.public for each in book.peers if each.is_contact}
        keys = [] if state is None else list(state.members)
        _, lost = membership.next_hops(own, [each for each in keys if each != own], contacts)
        members = []
        for key in keys:
            assert state is not None
            peer, status = book.by_public(key), membership.status(key)
            members.append(
                b.GroupMember(
                    id=peer_id(key),
                    name=task.name_of(key),
                    admin=state.members[key].is_admin,
                    status=_status_text(status),
                    trust="unknown" if peer is None else peer.trust.value,
                    you=key == own,
                    reachable=key not in lost,
                )
            )
        forks = [
            b.GroupFork(each.other.hex(), task.described(each.kept), task.described(each.other))
            for each in membership.forks
        ]
        return write_body(
            b.GroupInfoAnswer(
                task.id,
                self.name(task),
                _status_text(task.status),
                0 if state is None else state.epoch,
                members,
                forks,
            )
        )

    async def _change(self, body: bytes) -> bytes:
        request = read_body(body, b.GroupChangeRequest)
        task = self.find_or_raise(request.group)
        try:
            await self._carry_out(task, request)
        except BadRecord as error:
            return write_body(b.GroupAnswer(None, str(error)))
        return write_body(b.GroupAnswer(task.id))

    async def _carry_out(self, task: GroupTask, request: b.GroupChangeRequest) -> None:
        """Raises BadRecord."""
        await task.wait_loaded()
        membership, own = task.membership, self._outbox.context.identity.public
        match request.change:
            case "leave":
                await self._leave(task)
            case "settle":
                if not membership.forks:
                    raise BadRecord("there is no fork")
                for fork in membership.forks:
                    await task.change(Change.SETTLE, other=fork.other)
            case "add":
                members = [self._member(each) for each in request.members]
                for key, label in members:
                    if membership.status(key) is MemberStatus.JOINED:
                        raise BadRecord(f"{label!r} is a member already")
                await task.change(Change.ADD, members)
            case "remove" | "admin" | "member":
                found = [(self._known_member(task, each), "") for each in request.members]
                if request.change != "admin" and [key for key, _ in found] == [own]:
                    self._check_last_admin(task)
                await task.change(CHANGES[request.change], found)
            case "rename":
                await task.change(Change.RENAME, text=request.text)
            case _:
                raise BadRecord(f"unknown change {request.change!r}")

    async def _leave(self, task: GroupTask) -> None:
        """Leave a group; one from which this node was removed is forgotten."""
        own = self._outbox.context.identity.public
        if task.status is None:
            await self._forget(task)
            return
        if task.status is MemberStatus.INVITED:
            await self._decline(task)
            return
        if task.membership.is_admin(own):
            self._check_last_admin(task)
            await task.change(Change.REMOVE, [(own, "")])
        else:
            await task.change(Change.LEAVE)
        await self._forget_oldest_left()

    def _check_last_admin(self, task: GroupTask) -> None:
        membership, own = task.membership, self._outbox.context.identity.public
        others = [each for each in membership.active if each != own]
        if others and not any(membership.is_admin(each) for each in others):
            raise BadRecord("you are the last admin: make another member an admin first")

    def _known_member(self, task: GroupTask, text: str) -> bytes:
        """The member with this name or id. Raises BadRecord."""
        keys: Sequence[bytes] = (
            [] if task.membership.state is None else list(task.membership.state.members)
        )
        own = self._outbox.context.identity.public
        found = [each for each in keys if text == peer_id(each)]
        found = found or [each for each in keys if each != own and task.name_of(each) == text]
        if len(found) != 1:
            raise BadRecord(f"{text!r} is no member of this group")
        return found[0]

    async def _answer(self, body: bytes) -> bytes:
        request = read_body(body, b.GroupAnswerRequest)
        task = self.find_or_raise(request.group)
        await task.wait_loaded()
        if task.status is MemberStatus.JOINED and request.accept:
            return write_body(b.GroupAnswer(task.id))
        if task.status is not MemberStatus.INVITED:
            return write_body(b.GroupAnswer(None, "there is no invitation into this group"))
        if not request.accept:
            await self._decline(task)
            return write_body(b.GroupAnswer(task.id))
        try:
            await task.change(Change.JOIN)
        except BadRecord as error:
            return write_body(b.GroupAnswer(None, str(error)))
        await self._outbox.context.store.write([(_DELETE_SENDER, (task.group,))])
        self._senders.pop(task.group, None)
        return write_body(b.GroupAnswer(task.id))

    async def _decline(self, task: GroupTask) -> None:
        """Tell the members, if the group has room for that, and forget the group."""
        try:
            await task.change(Change.LEAVE)
            await task.flush()
        except BadRecord as error:
            log.info("group declined without a word: group=%s: %s", task.id, error)
        await self._forget(task)


def _membership_in(payload: GroupPayload, now: float) -> Membership:
    """The membership as a payload tells of it. Signatures take a while: for a worker thread."""
    membership = Membership(payload.group)
    for signed in payload.records:
        try:
            membership.add(signed, now)
        except BadRecord:
            break
    return membership


def _status_text(status: MemberStatus | None) -> str:
    return "removed" if status is None else status.value
