"""Messages: requests to channels, replies, and notices between cells.

Ids are u64 snowflakes, times are seconds since the Unix epoch unless a name says otherwise, channel
names are bytes. The structs form no cycles, so the garbage collector may skip them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, IntFlag
from typing import ClassVar, Protocol

import msgspec

from millpond.actors.errors import Code
from millpond.actors.positions import Position

U64_MAX = 2**64 - 1


class Mode(IntEnum):
    """The way in which a channel divides messages among connections (tag 0e,
    docs/reference/wire-protocol.md)."""

    PAIR = 0
    FANOUT = 1
    QUEUE = 2


class Role(IntEnum):
    """The purpose of a connection (tag 04, PS-04)."""

    PRODUCER = 1
    CONSUMER = 2
    BOTH = 3
    WORKER = 4

    @property
    def produces(self) -> bool:
        return self in (Role.PRODUCER, Role.BOTH)

    @property
    def consumes(self) -> bool:
        return self is not Role.PRODUCER


class Durability(IntEnum):
    """The promise of an acknowledgement (tag 81)."""

    MEMORY = 0
    OS = 1
    DISK = 2
    REPLICATED = 3


class Rights(IntFlag):
    """Permissions of an authenticated peer in a channel."""

    NONE = 0
    PUT = 1
    GET = 2
    PUSH = 4
    ACK = 8
    LIST = 16
    ADMIN = 32
    OPERATOR = 64
    """Chats, mailboxes, and requests in the name of the node. ALL does not include it."""
    CHANNEL = PUT | GET | PUSH | ACK | LIST
    ALL = CHANNEL | ADMIN


class NackReason(Enum):
    """The reason of a consumer to give a message back (NACK on MSG,
    docs/reference/wire-protocol.md)."""

    LATER = "later"
    REJECT = "reject"
    BUSY = "busy"
    CANNOT_DECRYPT = "cannot decrypt"
    OTHER = "other"


class Message(msgspec.Struct, frozen=True, gc=False):
    """Anything that is sent to a cell. These properties are all that the runtime knows of it."""

    is_answered: ClassVar[bool] = True
    """False: the message has no reply, not even when it is refused."""

    @property
    def is_repeatable(self) -> bool:
        """True if a cell that is built anew, because changes were lost, handles it once more."""
        return False

    def bounced(self, code: Code) -> tuple[bytes, CellMessage] | None:
        """The name of the sending cell, and the notice to it when this is refused; None: none."""
        return None


class Notice(Message, frozen=True, gc=False):
    """A message that is never answered."""

    is_answered: ClassVar[bool] = False


class Put(Message, frozen=True, gc=False):
    """Keep `data` for `ttl` seconds (0: the channel's default). `key` makes a retry harmless."""

    key: int
    ttl: int
    data: bytes


class Move(Message, frozen=True, gc=False):
    """A `Put` of a message that moves here from elsewhere in the node, where it is `origin`.

    However often it comes, and however much later, it adds one message until `MovesDone`,
    `OpenMoves` without its origin, or `until` (seconds since 1970).
    """

    origin: int
    until: float
    put: Put


class FindMove(Message, frozen=True, gc=False):
    """Answered by the `PutAck` of the `Move` with this origin, or by NOT_FOUND."""

    origin: int


class Get(Message, frozen=True, gc=False):
    id: int


class List(Message, frozen=True, gc=False):
    """Ids from `start` to `end`, both inclusive; end 0 = open; start > end = newest first."""

    limit: int
    start: int
    end: int


class Ack(Message, frozen=True, gc=False):
    id: int


class Nack(Message, frozen=True, gc=False):
    """Give a pushed message back, for `delay_ms` milliseconds at least (LATER)."""

    id: int
    reason: NackReason
    delay_ms: int | None = None


class Touch(Message, frozen=True, gc=False):
    """Extend the lease on `id` to `ms` milliseconds from now."""

    id: int
    ms: int


class AttemptStarted(Message, frozen=True, gc=False):
    """Work on the message `id` begins: if its lease is lost, the attempt counts
    (`Attach.reports_start`)."""

    id: int


class Credit(Message, frozen=True, gc=False):
    count: int


class Attach(Message, frozen=True, gc=False):
    """Attach a connection to the channel; answered by `Attached`, then pushes may follow.

    `window` is in messages, None = the channel's default; `keep_alive_s` is the idle time before a
    ping; `data_max` the largest message in bytes that this connection takes in one packet;
    `resume_after` an id up to which nothing is pushed here, None = not given; `identity` is the
    public key whose holder this is, proved, None = anonymous; `reports_start`: it says
    `AttemptStarted` of each
    message that it works on, and what it did not begin was no attempt; `name`: how the client calls
    itself in lists.
    """

    role: Role = Role.BOTH
    push: bool = True
    rights: Rights = Rights.CHANNEL
    mode: Mode | None = None
    window: int | None = None
    ordered: bool = False
    keep_alive_s: float = 20.0
    data_max: int = 2**24
    resume_after: int | None = None
    cursor_lists: bool = False
    identity: bytes | None = None
    reports_start: bool = False
    name: bytes = b""


class Detach(Notice, frozen=True, gc=False):
    """The connection is gone: the messages that it holds are ready again."""

    @property
    def is_repeatable(self) -> bool:
        return True


class Writable(Message, frozen=True, gc=False):
    """The connection's outgoing queue is not full any more."""


class Drain(Message, frozen=True, gc=False):
    """The node stops: no new pushes from here on."""


class DeadLetter(Notice, frozen=True, gc=False):
    """A dead letter on its way to the dead-letter channel (PS-14). Answered by
    `DeadLetterStored`. `flow_key` is the unique key of a job of a flow."""

    channel: bytes
    id: int
    attempts: int
    reason: str
    data: bytes
    flow_key: bytes = b""


class DeadLetterStored(Notice, frozen=True, gc=False):
    """The dead letter is stored, as durably as it was before: the channel may remove it. Answered
    by `MovesDone`."""

    id: int


class MovesDone(Notice, frozen=True, gc=False):
    """Moves with these origins do not come again: the channel may forget them."""

    origins: tuple[int, ...]


class OpenMoves(Notice, frozen=True, gc=False):
    """Moves into this channel that may come again have one of these origins: the channel may forget
    all others."""

    origins: tuple[int, ...]


class ScheduledJob(Notice, frozen=True, gc=False):
    """A job of the schedule `number`, for the moment `at_ms`, from the cell `sender`. However often
    it comes, it is stored once. Answered by `ScheduledJobStored`."""

    sender: bytes
    number: int
    at_ms: int
    ttl: int
    data: bytes

    def bounced(self, code: Code) -> tuple[bytes, CellMessage]:
        return self.sender, ScheduledJobStored(self.number, self.at_ms, 0, code)


class ScheduledJobStored(Notice, frozen=True, gc=False):
    """The job of that schedule and moment is stored, as durably as its channel promises; with a
    `code` it is not."""

    number: int
    at_ms: int
    id: int
    code: Code | None = None


class FlowJob(Notice, frozen=True, gc=False):
    """The job of a step of a flow, from the cell `sender`. However often it comes, the channel has
    it once. Answered by `FlowJobStored`."""

    sender: bytes
    flow: int
    step: int
    ttl: int
    data: bytes

    def bounced(self, code: Code) -> tuple[bytes, CellMessage]:
        return self.sender, FlowJobStored(self.flow, self.step, 0, code)


class FlowJobStored(Notice, frozen=True, gc=False):
    """The job of that step is stored; with a `code` it is not."""

    flow: int
    step: int
    id: int
    code: Code | None = None


class FlowJobFailed(Notice, frozen=True, gc=False):
    """The job of a step is a dead letter, or was cancelled. Answered by `FlowJobKnown` to the
    channel `sender`."""

    sender: bytes
    flow: int
    step: int
    id: int
    reason: str


class FlowJobKnown(Notice, frozen=True, gc=False):
    """The flow has stored that its job failed: the job may leave its channel."""

    id: int


class FlowJobRequeued(Notice, frozen=True, gc=False):
    """The dead letter of a step is a job of the step again, of this id."""

    flow: int
    step: int
    id: int


class CancelFlowJob(Notice, frozen=True, gc=False):
    """Remove the job of a step, whether it is there or not. Answered by `FlowJobFailed`."""

    sender: bytes
    flow: int
    step: int


class CheckFlowJobs(Notice, frozen=True, gc=False):
    """Are the jobs of these steps in the channel? Where some are not: `FlowJobsGone`."""

    sender: bytes
    places: tuple[tuple[int, int], ...]


class FlowJobsGone(Notice, frozen=True, gc=False):
    """The jobs of these steps are not in their channel."""

    places: tuple[tuple[int, int], ...]


class DeferredRequest(Message, frozen=True, gc=False):
    """A request that a cell may answer in a later batch. `number` is the sender's own: the reply
    carries it."""

    number: int


class DeferredReply(msgspec.Struct, frozen=True, gc=False):
    """The reply to the `DeferredRequest` of that number."""

    number: int

    def refusal(self, code: Code) -> Reply:
        """The reply in place of this one, when the changes that it confirms are lost."""
        return StreamFailed(self.number, code)


class StreamRequest(DeferredRequest, frozen=True, gc=False):
    """A request to a stream; `actors.streams.messages` has them."""


class StreamReply(DeferredReply, frozen=True, gc=False):
    """The reply of a stream to the request of that number."""


class StreamFailed(StreamReply, frozen=True, gc=False):
    """A refused request: the code, the range of the stream and its last id. `is_tombstone`: the
    stream is deleted, and its name is taken as long as it has forks."""

    code: Code
    trim_point: int = 0
    tail: int = 0
    last_id: Position = Position(0, 0)
    fencing_token: bytes = b""
    is_tombstone: bool = False


class JobRequest(Message, frozen=True, gc=False):
    """A request about jobs; `actors.jobs.messages` has them. `number` is the sender's own."""

    number: int


class JobReply(msgspec.Struct, frozen=True, gc=False):
    """The reply of a channel to the request of that number."""

    number: int


class CreateChannel(Message, frozen=True, gc=False):
    """Create this channel in a mode that stays; CHANNEL_EXISTS. Answered by `ChannelChanged`."""

    mode: Mode


class ClearChannel(Message, frozen=True, gc=False):
    """Remove the messages of this channel up to the id `until` (0: the last one now).

    `is_deletion`: its keys, its subscribers that are away and its mode as well. Answered by
    `ChannelChanged`, a slice at a time.
    """

    until: int = 0
    is_deletion: bool = False


class ChannelChanged(msgspec.Struct, frozen=True, gc=False):
    """The channel was created, or cleared: so many messages were removed, of so many bytes.
    `more`: there is more to remove; ask again, with the same `until`."""

    messages: int = 0
    bytes: int = 0
    more: bool = False
    until: int = 0


class CatalogChannel(Message, frozen=True, gc=False):
    """Store that a channel was created in a mode, or deleted (None), or cleared (`keeps_mode`).
    Sent to the catalog of channels, which answers with `reply` once that is stored, and all that
    was written before it."""

    channel: bytes
    mode: Mode | None
    reply: ChannelChanged
    keeps_mode: bool = False


class ForgetSchedules(Message, frozen=True, gc=False):
    """Delete the schedules of a channel that is deleted, and pass `entry` on to the catalog of
    channels, which answers. Sent to the cell of the schedules."""

    entry: CatalogChannel


class CheckSchedules(Notice, frozen=True, gc=False):
    """The channel remembers jobs of schedules with these numbers: those that there are no more may
    be forgotten. Sent to the cell of the schedules, which answers with `MovesDone`."""

    channel: bytes
    numbers: tuple[int, ...]


class QueueSettingsChanged(Notice, frozen=True, gc=False):
    """The queue has other settings (`actors.queue_settings`), and they are stored."""


class DeadLettersRequeued(Notice, frozen=True, gc=False):
    """Dead letters are stored in their channel again: the dead-letter channel may remove them."""

    ids: tuple[int, ...]


class TeeAppend(Notice, frozen=True, gc=False):
    """Messages of a channel to append to its stream, all or none. Answered by `TeeAppended`.

    Without any the stream only says how far it got. `ids` ascend; those that the stream has had are
    passed over. `behind`: the stream has everything up to this id, or takes nothing. `node_run`:
    the run of the node that the ids belong to; 0: ids of the channel survive a restart. `until`:
    when the last of them expires.
    """

    channel: bytes
    node_run: int
    behind: int = 0
    ids: tuple[int, ...] = ()
    bodies: tuple[bytes, ...] = ()
    until: float = 0.0

    @property
    def number(self) -> int:
        """The number of its reply; 0: there was nothing to append."""
        return self.ids[-1] if self.ids else 0

    def bounced(self, code: Code) -> tuple[bytes, CellMessage]:
        return self.channel, TeeAppended(self.number, code=code)


class TeeAppended(Notice, frozen=True, gc=False):
    """The reply of a stream to a channel: everything up to `confirmed_id` is stored, as durably
    as the stream promises. With a `code` it took nothing."""

    number: int
    confirmed_id: int = 0
    code: Code | None = None


LeaseRequest = Ack | Nack | Touch | AttemptStarted
"""Requests about a message that was pushed."""
ChannelRequest = (
    Put | Move | FindMove | Get | List | LeaseRequest | Credit | Attach | Detach | Writable | Drain
)
Request = (
    ChannelRequest
    | DeferredRequest
    | JobRequest
    | CreateChannel
    | ClearChannel
    | CatalogChannel
    | ForgetSchedules
)
CellMessage = (
    Request
    | DeadLetter
    | DeadLetterStored
    | DeadLettersRequeued
    | MovesDone
    | OpenMoves
    | QueueSettingsChanged
    | CheckSchedules
    | ScheduledJob
    | ScheduledJobStored
    | FlowJob
    | FlowJobStored
    | FlowJobFailed
    | FlowJobKnown
    | FlowJobRequeued
    | CancelFlowJob
    | CheckFlowJobs
    | FlowJobsGone
    | TeeAppend
    | TeeAppended
)


class Attached(msgspec.Struct, frozen=True, gc=False):
    """The channel's mode, and the window it grants, in messages."""

    mode: Mode
    window: int


class PutAck(msgspec.Struct, frozen=True, gc=False):
    """The message is stored, as durably as the channel promises. `ttl` in seconds, as granted."""

    key: int
    ttl: int
    id: int


class Msg(msgspec.Struct, frozen=True, gc=False):
    """A push; `attempt` counts from 1."""

    id: int
    attempt: int
    data: bytes


class GetAck(msgspec.Struct, frozen=True, gc=False):
    id: int
    data: bytes


class ListAck(msgspec.Struct, frozen=True, gc=False):
    ids: list[int]


class TouchAck(msgspec.Struct, frozen=True, gc=False):
    id: int
    ms: int


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that was refused; `delay_ms` goes with BUFFER_FULL and SLOW_DOWN."""

    request: Message
    code: Code
    delay_ms: int | None = None


class Probe(msgspec.Struct, frozen=True, gc=False):
    """The connection was silent for too long: ping it."""


class Hangup(msgspec.Struct, frozen=True, gc=False):
    """The connection did not answer its pings: close it."""


ChannelReply = Attached | PutAck | Msg | GetAck | ListAck | TouchAck | Failed | Probe | Hangup
Reply = ChannelReply | StreamReply | JobReply | ChannelChanged


class Port(Protocol):
    """A channel's view of a connection. None of these block, and none of them raise."""

    __slots__ = ()

    number: int
    """Different for every connection of this run of the node; from 1."""

    received_at: float
    """The time of the last byte from the other end, in seconds since 1970."""

    @property
    def writable(self) -> bool:
        """False while its outgoing queue is full: push nothing, `Writable` follows."""

    def send(self, replies: Sequence[Reply]) -> None:
        """Take replies, in order; they leave with the next `flush`."""

    def flush(self) -> None:
        """Write what `send` took, in one piece."""


class Batch(msgspec.Struct, frozen=True):
    """Messages that arrived together, from one port. `port` is None between cells.

    `ports` has the port of each message, where they are not of one port; `port` is None then.
    """

    port: Port | None
    messages: list[CellMessage]
    size_bytes: int = 0
    ports: Sequence[Port] | None = None

    def split(self, count: int) -> tuple[Batch, Batch]:
        """The first `count` messages, and the rest, which keeps the size."""
        ports = self.ports
        first = Batch(self.port, self.messages[:count], 0, ports and ports[:count])
        rest = Batch(self.port, self.messages[count:], self.size_bytes, ports and ports[count:])
        return first, rest
