"""The membership of a group: signed records in a hash chain, and what members say of themselves.

Sans-I/O. Records may come in any order, and again. Two records with one predecessor are a fork: it
is shown, and never merged. The branch that came first is followed until an admin settles it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import Enum

import msgspec

from millpond.node.chat.groups.signed import (
    MEMBERS_MAX,
    NONCE_BYTES,
    STATEMENTS,
    VERSION,
    BadRecord,
    Change,
    GroupMessage,
    GroupRecord,
    read_record,
    record_hash,
    sign,
)
from millpond.node.peers.identity import Identity, is_key
from millpond.node.peers.peer import checked_name

RECORDS_MAX = 1000
"""The most records of a branch."""
BYTES_MAX = 512 * 1024
"""The most bytes of records and statements."""
OTHERS_MAX = 16
"""The most records of branches that are not followed."""
WAITING_MAX = 64
"""The most records that are kept until their predecessors come."""
STATEMENTS_MAX = 2 * RECORDS_MAX
REMOVALS_MAX = MEMBERS_MAX + 2 * OTHERS_MAX
"""The last of the records are for removals and for the ends of forks, so that an admin who fills
the group can be removed. Nobody is added there, so they are enough to remove all, one by one."""
LEAVES_MAX = MEMBERS_MAX
"""The last of the statements are for members who leave."""
SPARED_BYTES = 208 * 1024
"""The last of the bytes are for both."""
GRACE_S = 600.0
"""A message that a member has written before its removal is accepted for so long after it."""


class MemberStatus(Enum):
    """INVITED: added, and has not answered. JOINED: takes part. LEFT: has left, or has refused."""

    INVITED = "invited"
    JOINED = "joined"
    LEFT = "left"


class Member(msgspec.Struct, frozen=True):
    """A member: the name that the admin has for it, and the record that has added it."""

    label: str
    added: bytes
    added_by: bytes
    is_admin: bool = False


class GroupState(msgspec.Struct, frozen=True):
    """The state of a group after the record `head`, the `epoch`-th of its chain."""

    epoch: int
    head: bytes
    name: str
    members: dict[bytes, Member]


class Added(Enum):
    """The outcome for a record."""

    KNOWN = "known"
    WAITING = "waiting"
    FOLLOWED = "followed"
    FORKED = "forked"
    STATEMENT = "statement"


class Verdict(Enum):
    """The fate of a message: HOLD until its record is known."""

    ACCEPT = "accept"
    HOLD = "hold"
    REFUSE = "refuse"


class Fork(msgspec.Struct, frozen=True):
    """Two records with one predecessor: `kept` is followed here, `other` is not."""

    kept: bytes
    other: bytes


class Statement(msgspec.Struct, frozen=True):
    """A statement of a member, and its signed bytes."""

    record: GroupRecord
    signed: bytes


class Departure(msgspec.Struct, frozen=True):
    """The removal of a member, or its leaving (`is_own`): in an epoch, at a time (ms), heard of
    here at `heard_at` (seconds)."""

    epoch: int
    at: int
    heard_at: float
    is_own: bool = True


def applied(state: GroupState | None, record: GroupRecord, head: bytes) -> GroupState:
    """The state after one more record, whose hash is `head`. Raises BadRecord."""
    if record.change is Change.CREATE:
        if state is not None or record.epoch or record.group or record.previous or record.members:
            raise BadRecord("not the first record of a group")
        if len(record.other) != NONCE_BYTES:
            raise BadRecord("a group begins with a random number")
        founder = Member("", head, record.by, is_admin=True)
        return GroupState(0, head, _checked(record.text), {record.by: founder})
    if state is None or record.previous != state.head or record.epoch != state.epoch + 1:
        raise BadRecord("not the next record")
    author = state.members.get(record.by)
    if author is None or not author.is_admin:
        raise BadRecord("its author is no admin")
    members, name, about = dict(state.members), state.name, [key for key, _ in record.members]
    if len(set(about)) != len(about):
        raise BadRecord("a member is named twice")
    if bool(about) == (record.change in (Change.RENAME, Change.SETTLE)):
        raise BadRecord("the members do not fit the change")
    match record.change:
        case Change.ADD:
            for key, label in record.members:
                if key == record.by or not is_key(key):
                    raise BadRecord("this key cannot be added")
                members[key] = Member(_checked(label) if label else "", head, record.by)
            if len(members) > MEMBERS_MAX:
                raise BadRecord(f"a group has at most {MEMBERS_MAX} members")
        case Change.REMOVE | Change.ADMIN | Change.MEMBER:
            for key in about:
                if key not in members:
                    raise BadRecord("no member")
                if record.change is Change.REMOVE:
                    del members[key]
                else:
                    is_admin = record.change is Change.ADMIN
                    members[key] = msgspec.structs.replace(members[key], is_admin=is_admin)
        case Change.RENAME:
            name = _checked(record.text)
        case Change.SETTLE:
            if not record.other:
                raise BadRecord("nothing is settled")
        case _:
            raise BadRecord("no change of the chain")
    return GroupState(record.epoch, head, name, members)


def _checked(name: str) -> str:
    try:
        if checked_name(name) == name:
            return name
    except ValueError as error:
        raise BadRecord(str(error)) from error
    raise BadRecord("a name is not in NFC")


class Membership:
    """The membership of the group with the id `group`."""

    def __init__(self, group: bytes) -> None:
        self.group = group
        self.state: GroupState | None = None
        """The followed state; None before the first record came."""
        self._records: dict[bytes, GroupRecord] = {}
        self._signed: dict[bytes, bytes] = {}
        self._path: dict[bytes, None] = {}
        """The followed branch."""
        self._waiting: dict[bytes, list[tuple[bytes, GroupRecord]]] = {}
        self._waiting_count = 0
        self._statements: dict[tuple[bytes, bytes], dict[Change, Statement]] = {}
        """Statements, by their member and the record that has added it."""
        self._statement_count = 0
        self._taken: set[bytes] = set()
        self._labels: dict[bytes, str] = {}
        self._bytes = 0
        self._gone: dict[bytes, Departure] = {}

    # Records.

    def add(
        self,
        signed: bytes,
        now: float,
        *,
        is_stored: bool = False,
        record: GroupRecord | None = None,
    ) -> list[tuple[GroupRecord, Added]]:
        """Add a signed record or statement, at `now` in seconds; gives the outcome for it, and for
        those that waited for it.

        Nothing for one that is known. Raises BadRecord. All that is neither WAITING nor KNOWN has
        to be stored. `is_stored`: it is read again, and was heard of when it was written. `record`:
        that of the signed bytes, if they are verified already.
        """
        if signed in self._taken:
            return []
        done: list[tuple[GroupRecord, Added]] = []
        todo = deque([(signed, record or read_record(signed))])
        while todo:
            signed, record = todo.popleft()
            try:
                heard_at = min(now, record.at / 1000) if is_stored else now
                outcome = self._add(record, signed, heard_at, is_stored=is_stored)
            except BadRecord:
                if not done:
                    raise
                continue  # it waited, and nobody vouched for it
            done.append((record, outcome))
            if outcome not in (Added.KNOWN, Added.WAITING):
                self._taken.add(signed)
                released = self._waiting.pop(record_hash(record), [])
                self._waiting_count -= len(released)
                todo.extend(released)
        return done

    def _add(self, record: GroupRecord, signed: bytes, now: float, *, is_stored: bool) -> Added:
        digest = record_hash(record)
        if record.change is Change.CREATE:
            if digest != self.group:
                raise BadRecord("of another group")
        elif record.group != self.group:
            raise BadRecord("of another group")
        if digest in self._records or self._has_statement(record):
            return Added.KNOWN
        if record.change is not Change.CREATE and record.previous not in self._records:
            self._check_bytes(len(signed), BYTES_MAX)
            return self._wait(record, signed)
        if record.change in STATEMENTS:
            return self._add_statement(record, signed, now, is_stored=is_stored)
        self._check_room(record, len(signed), is_stored=is_stored)
        is_next = self.state is None or record.previous == self.state.head
        if not is_next and len(self._records) - len(self._path) >= OTHERS_MAX:
            raise BadRecord("too many records of other branches")
        state = applied(self._state_after(record.previous), record, digest)
        self._records[digest], self._signed[digest] = record, signed
        self._bytes += len(signed)
        self._labels.setdefault(record.by, "")
        for key, label in record.members:
            if label or key not in self._labels:
                self._labels[key] = label
        if is_next:
            self._follow(record, state, now)
            return Added.FOLLOWED
        if self._settles(record):
            self._switch_to(digest, state, now)
            return Added.FOLLOWED
        return Added.FORKED

    def _has_statement(self, record: GroupRecord) -> bool:
        found = self._statements.get((record.by, record.previous), {}).get(record.change)
        return found is not None and found.record == record

    def _check_bytes(self, size: int, most: int) -> None:
        if self._bytes + size > most:
            raise BadRecord("the group has too many records")

    def _check_room(self, record: GroupRecord, size: int, *, is_stored: bool = False) -> None:
        """Raises BadRecord if there is no room for a record, or for a statement."""
        takes_all = is_stored or self._makes_smaller(record)
        self._check_bytes(size, BYTES_MAX if takes_all else BYTES_MAX - SPARED_BYTES)
        if record.change in STATEMENTS:
            if self._statement_count >= STATEMENTS_MAX - (0 if takes_all else LEAVES_MAX):
                raise BadRecord("the group has too many statements")
        elif record.epoch >= RECORDS_MAX - (0 if takes_all else REMOVALS_MAX):
            raise BadRecord("the group has too many records")

    def _makes_smaller(self, record: GroupRecord) -> bool:
        """True if a record removes members, ends a fork, or says that a member leaves, and nothing
        else: there is an end of such records."""
        if record.change is Change.REMOVE:
            return not record.text and not record.other and not any(dict(record.members).values())
        if record.change is Change.SETTLE:
            ends = any(record.other in (each.kept, each.other) for each in self.forks)
            return ends and not record.text
        member = None if self.state is None else self.state.members.get(record.by)
        is_current = member is not None and member.added == record.previous
        is_leave = record.change is Change.LEAVE and is_current
        return is_leave and self.status(record.by) is MemberStatus.JOINED

    def _wait(self, record: GroupRecord, signed: bytes) -> Added:
        waiting = self._waiting.setdefault(record.previous, [])
        if (signed, record) in waiting:
            return Added.KNOWN
        if self._waiting_count >= WAITING_MAX:
            first = next(iter(self._waiting))
            self._waiting_count -= len(self._waiting.pop(first))
            waiting = self._waiting.setdefault(record.previous, [])
        waiting.append((signed, record))
        self._waiting_count += 1
        return Added.WAITING

    def _add_statement(
        self, record: GroupRecord, signed: bytes, now: float, *, is_stored: bool
    ) -> Added:
        added = self._records[record.previous]
        is_founder = added.change is Change.CREATE and added.by == record.by
        is_added = added.change is Change.ADD and record.by in (key for key, _ in added.members)
        if not (is_founder or is_added) or record.epoch != added.epoch:
            raise BadRecord("its author was not added so")
        if not is_stored and (record.members or record.text or record.other):
            raise BadRecord("a statement has no more than its change")
        statements = self._statements.setdefault((record.by, record.previous), {})
        if record.change in statements:
            return Added.KNOWN
        self._check_room(record, len(signed), is_stored=is_stored)
        statements[record.change] = Statement(record, signed)
        self._statement_count += 1
        self._bytes += len(signed)
        if record.change is Change.LEAVE:
            self._leave(record, now)
        return Added.STATEMENT

    def _leave(self, record: GroupRecord, now: float) -> None:
        """A member has left. One that was removed before gets no more time by saying so, and one
        that was added again is here."""
        assert self.state is not None
        member, gone = self.state.members.get(record.by), self._gone.get(record.by)
        if member is None and gone is not None:
            self._gone[record.by] = msgspec.structs.replace(gone, is_own=True)
        elif member is not None and member.added == record.previous:
            self._gone[record.by] = Departure(self.state.epoch + 1, record.at, now)

    def _state_after(self, head: bytes) -> GroupState | None:
        if not head:
            return None
        if self.state is not None and head == self.state.head:
            return self.state
        chain: list[bytes] = []
        while head:
            chain.append(head)
            head = self._records[head].previous
        state: GroupState | None = None
        for digest in reversed(chain):
            state = applied(state, self._records[digest], digest)
        return state

    def _follow(self, record: GroupRecord, state: GroupState, now: float) -> None:
        if self.state is not None:
            for key in self.state.members.keys() - state.members.keys():
                is_own = key == record.by or self.has_left(key)
                self._gone[key] = Departure(record.epoch, record.at, now, is_own)
        for key, _ in record.members if record.change is Change.ADD else ():
            self._gone.pop(key, None)
        self.state = state
        self._path[state.head] = None

    def _branch(self, head: bytes) -> list[bytes]:
        """The records from `head` back to the followed branch, the oldest first."""
        found: list[bytes] = []
        while head and head not in self._path:
            found.append(head)
            head = self._records[head].previous
        return found[::-1]

    def _settles(self, record: GroupRecord) -> bool:
        """True if an admin of this branch drops it for the branch of the record."""
        if record.change is not Change.SETTLE or self.state is None:
            return False
        author = self.state.members.get(record.by)
        if author is None or not author.is_admin:
            return False
        root = self._branch(record_hash(record))[0]
        return record.other == self._next_on_path(self._records[root].previous)

    def _next_on_path(self, digest: bytes) -> bytes:
        """The record after `digest` on the followed branch; none after the last."""
        path = iter(self._path)
        for each in path:
            if each == digest:
                return next(path, b"")
        return b""

    def _switch_to(self, head: bytes, state: GroupState, now: float) -> None:
        chain: list[bytes] = []
        digest = head
        while digest:
            chain.append(digest)
            digest = self._records[digest].previous
        before = self.state
        self._path = dict.fromkeys(reversed(chain))
        self.state = state
        if before is not None:
            for key in before.members.keys() - state.members.keys():
                at, is_own = self._records[head].at, self.has_left(key)
                self._gone[key] = Departure(state.epoch, at, now, is_own)
        for key in state.members:
            if self.status(key) is not MemberStatus.LEFT:
                self._gone.pop(key, None)

    # The state.

    @property
    def forks(self) -> list[Fork]:
        """The forks that no admin has settled."""
        settled = {
            self._records[each].other
            for each in self._path
            if self._records[each].change is Change.SETTLE
        }
        found = []
        for digest, record in self._records.items():
            if digest not in self._path and digest not in settled and record.previous in self._path:
                found.append(Fork(self._next_on_path(record.previous), digest))
        return found

    def record(self, digest: bytes) -> GroupRecord:
        """A known record of the chain."""
        return self._records[digest]

    def has(self, signed: bytes) -> bool:
        """True for the signed bytes of a record or statement that is stored."""
        return signed in self._taken

    def knows(self, digest: bytes) -> bool:
        """True for the hash of a known record."""
        return digest in self._records

    def status(self, key: bytes) -> MemberStatus | None:
        """The status of a member; None for others."""
        member = None if self.state is None else self.state.members.get(key)
        if member is None:
            return None
        statements = self._statements.get((key, member.added), {})
        if Change.LEAVE in statements:
            return MemberStatus.LEFT
        is_founder = self._records[member.added].change is Change.CREATE
        return (
            MemberStatus.JOINED if is_founder or Change.JOIN in statements else MemberStatus.INVITED
        )

    def has_left(self, key: bytes) -> bool:
        """True for a member that has left or has declined, by its own word."""
        status, gone = self.status(key), self._gone.get(key)
        return status is MemberStatus.LEFT or (status is None and gone is not None and gone.is_own)

    def left_at(self, key: bytes) -> float:
        """The time at which it was heard here that a member is gone; 0: it is not."""
        gone = self._gone.get(key)
        return 0.0 if gone is None else gone.heard_at

    def is_admin(self, key: bytes) -> bool:
        """True for an admin that takes part."""
        member = None if self.state is None else self.state.members.get(key)
        return member is not None and member.is_admin and self.status(key) is MemberStatus.JOINED

    @property
    def excluded(self) -> Set[bytes]:
        """The members that an admin has removed in a branch that is not followed: they get nothing
        until it is settled."""
        found: set[bytes] = set()
        for fork in self.forks:
            record = self._records[fork.other]
            if record.change is Change.REMOVE and self.is_admin(record.by):
                found |= {key for key, _ in record.members}
        return found

    @property
    def active(self) -> list[bytes]:
        """The members that take part, in the order of their adding."""
        if self.state is None:
            return []
        excluded = self.excluded
        return [
            key
            for key in self.state.members
            if key not in excluded and self.status(key) is MemberStatus.JOINED
        ]

    @property
    def labels(self) -> dict[bytes, str]:
        """The names that admins have given to all members there ever were."""
        return self._labels

    @property
    def statement_count(self) -> int:
        """The number of statements of members."""
        return self._statement_count

    def signed_since(self, epoch: int) -> Iterator[bytes]:
        """The signed records of all branches from an epoch on, then all statements."""
        for digest, record in self._records.items():
            if record.epoch >= epoch:
                yield self._signed[digest]
        for statements in self._statements.values():
            yield from (each.signed for each in statements.values())

    def stored(self, record: GroupRecord) -> bytes:
        """The signed bytes of a known record or statement."""
        if record.change in STATEMENTS:
            return self._statements[record.by, record.previous][record.change].signed
        return self._signed[record_hash(record)]

    def own_records(self, own: bytes) -> list[tuple[GroupRecord, bytes]]:
        """The records of the followed branch and the statements by the key `own`."""
        found = [
            (self._records[each], self._signed[each])
            for each in self._path
            if self._records[each].by == own
        ]
        for (by, _), statements in self._statements.items():
            if by == own:
                found += [(each.record, each.signed) for each in statements.values()]
        return found

    def verdict(self, message: GroupMessage, sent_at: int, now: float) -> Verdict:
        """The verdict on a message that its author has written at `sent_at` (ms)."""
        if message.group != self.group:
            return Verdict.REFUSE
        if self.state is None or message.head not in self._records:
            return Verdict.HOLD
        status = self.status(message.by)
        if status is MemberStatus.JOINED:
            return Verdict.ACCEPT
        gone = self._gone.get(message.by)
        if gone is not None:
            is_before = message.epoch < gone.epoch and sent_at <= gone.at
            is_early = is_before and now <= gone.heard_at + GRACE_S
            return Verdict.ACCEPT if is_early else Verdict.REFUSE
        return Verdict.HOLD if status is MemberStatus.INVITED else Verdict.REFUSE

    # New records.

    def make(
        self,
        identity: Identity,
        change: Change,
        now_ms: int,
        *,
        members: Sequence[tuple[bytes, str]] = (),
        text: str = "",
        other: bytes = b"",
    ) -> bytes:
        """A signed record or statement of this node. Raises BadRecord if others would refuse it."""
        state = self.state
        assert state is not None
        if change in STATEMENTS:
            member = state.members.get(identity.public)
            if member is None:
                raise BadRecord("this node is no member")
            epoch, previous = self._records[member.added].epoch, member.added
        else:
            epoch, previous = state.epoch + 1, state.head
            if not self.is_admin(identity.public):
                raise BadRecord("only admins may do this")
        record = GroupRecord(
            VERSION,
            self.group,
            epoch,
            previous,
            identity.public,
            now_ms,
            change,
            tuple(members),
            text,
            other,
        )
        if change not in STATEMENTS:
            applied(state, record, record_hash(record))
        signed = sign(record, identity)
        self._check_room(record, len(signed))
        return signed

    def next_hops(
        self, own: bytes, targets: Iterable[bytes], contacts: Set[bytes]
    ) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
        """The contacts to which a message for `targets` goes, each with the other members to whom
        it passes that on; and the members to whom no way is known.

        A member and the one who has added it are contacts of each other.
        """
        if self.state is None:
            return {}, list(targets)
        members, active = self.state.members, set(self.active)
        edges: dict[bytes, list[bytes]] = {}
        for key, member in members.items():
            by = member.added_by
            if by != key and by in active:
                edges.setdefault(by, []).append(key)
                edges.setdefault(key, []).append(by)
        first: dict[bytes, bytes] = {key: key for key in members if key in contacts and key != own}
        queue = deque(key for key in first if key in active)
        while queue:
            key = queue.popleft()
            for neighbour in edges.get(key, ()):
                if neighbour != own and neighbour not in first:
                    first[neighbour] = first[key]
                    if neighbour in active:
                        queue.append(neighbour)
        hops: dict[bytes, list[bytes]] = {}
        lost: list[bytes] = []
        for target in targets:
            hop = target if target in contacts else first.get(target)
            if hop is None:
                lost.append(target)
                continue
            passed = hops.setdefault(hop, [])
            if hop != target:
                passed.append(target)
        return hops, lost


def new_group(identity: Identity, name: str, now_ms: int, nonce: bytes) -> tuple[bytes, bytes]:
    """The id and the first record of a new group. Raises BadRecord."""
    record = GroupRecord(
        VERSION, b"", 0, b"", identity.public, now_ms, Change.CREATE, (), name, nonce
    )
    digest = record_hash(record)
    applied(None, record, digest)
    return digest, sign(record, identity)
