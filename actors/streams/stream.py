"""Streams: the behaviour of a stream's cell, which appends, reads, trims and expires records.

A stream holds no records in memory: it knows its bounds and its metadata, and reads from the store
(docs/internals/streams.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Port,
    Reply,
    StreamFailed,
    StreamRequest,
    TeeAppend,
    TeeAppended,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams import messages as m
from millpond.actors.streams.append import AppendSessions, StreamAppender
from millpond.actors.streams.bounds import StreamBounds, beginning
from millpond.actors.streams.command_records import SetFence, command_records_of
from millpond.actors.streams.consumer_groups import commit_offset
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.durable.append import DurableAppends
from millpond.actors.streams.durable.forks import Forks
from millpond.actors.streams.expiry import Expiry
from millpond.actors.streams.idempotent_writers import IdempotentWriters
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.names import TOPICS
from millpond.actors.streams.read import StreamReader
from millpond.actors.streams.read_scan import ChunksLoaded
from millpond.actors.streams.registration import Registration
from millpond.actors.streams.retention import RETRY_S, TrimPlan
from millpond.actors.streams.settings import StreamContext, StreamLimits
from millpond.actors.streams.trim_grace import TrimGrace

SEGMENT_BYTES = 16 * 2**20
"""The unit in which the `segments` of a description are counted."""


class Stream:
    """One stream; `name` is the stream's, not its cell's."""

    __slots__ = (
        "_appender",
        "_bounds",
        "_cell",
        "_context",
        "_durable_appends",
        "_expiry",
        "_expiry_at",
        "_first_sequence",
        "_forks",
        "_is_encrypted",
        "_limits",
        "_metadata",
        "_now",
        "_now_ms",
        "_paused_until",
        "_reader",
        "_registration",
        "_sessions",
        "_subscribers",
        "_subscribers_version",
        "_tail_before",
        "_trim_grace",
        "_writers",
        "deadline",
    )

    def __init__(
        self, name: bytes, snapshot: LogSnapshot, limits: StreamLimits, context: StreamContext
    ) -> None:
        self._cell = cell = context.directory.cell_of(name)
        self._context = context
        self._limits = limits
        self._now = 0.0
        self._now_ms = 0
        self._bounds = bounds = StreamBounds(snapshot)
        self._metadata = metadata = StreamMetadata(snapshot.metadata, context.serials)
        self._registration = Registration(name, metadata, bounds, context.directory)
        self._appender = appender = StreamAppender(bounds, metadata, limits, context)
        self._sessions = AppendSessions()
        self._writers = IdempotentWriters(appender, metadata, bounds)
        self._reader = StreamReader(cell, bounds, appender, context)
        self._expiry = Expiry(name, bounds, metadata, self._reader, limits, context)
        self._first_sequence = bounds.tail if metadata.created is None else 0
        """The sequence at which the log begins, where it is not made yet."""
        self._trim_grace = TrimGrace(limits.trim_grace_s, metadata.trim_point)
        self._durable_appends = DurableAppends(name, bounds, metadata, appender, context.takeovers)
        self._forks = Forks(
            self._registration, cell, bounds, metadata, appender, self._durable_appends
        )
        if metadata.durable.parent is not None:
            bounds.start_at_fork(metadata.durable.parent, snapshot.trim_point)
        self._tail_before = bounds.tail
        self._subscribers: tuple[bytes, ...] = ()
        self._subscribers_version = 0
        """The version of the index of subscriptions that has these; 0: there were none."""
        self._is_encrypted = False
        """Only S2 reads and appends."""
        self._configure()
        self._registration.sync()
        self._expiry_at = inf
        self._paused_until = -inf
        """Before this time nothing is removed by itself: the store takes no changes."""
        self.deadline = self._next_deadline()

    @property
    def is_empty(self) -> bool:
        return self._metadata.created is None and self._reader.is_idle

    @property
    def can_passivate(self) -> bool:
        is_idle = self._reader.is_idle and not self._trim_grace
        return is_idle and not self._expiry.is_scanning

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return self._reader.unanswered()

    # Figures, for operators.

    @property
    def appended(self) -> int:
        """Records that were appended since this behaviour was made."""
        return max(0, self._bounds.tail - self._tail_before)

    @property
    def reads(self) -> int:
        """Reads that got records since this behaviour was made."""
        return self._reader.found

    @property
    def records(self) -> int:
        """Records that the stream has."""
        return self._bounds.tail - self._bounds.trim_point

    @property
    def bytes_kept(self) -> int:
        """About the bytes that they take."""
        return self._bounds.size

    @property
    def waiting(self) -> int:
        """Reads that wait for records."""
        return self._reader.waiting

    @property
    def lags(self) -> list[int]:
        """The records that each consumer group has not committed yet."""
        offsets = {**self._early_offsets, **self._metadata.groups}
        return [max(self._bounds.tail - offset, 0) for offset in offsets.values()]

    # Batches.

    @property
    def tail(self) -> int:
        """The sequence of the next record."""
        return self._bounds.tail

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        self._begin(now, effects)
        port, messages, replies = batch.port, batch.messages, effects.batch_replies
        done = 0
        if messages and type(messages[0]) is m.Append and self._registration.exists:
            is_awaited = self._reader.waiters.count > 0
            done = self._appender.append_run(messages, replies, is_awaited=is_awaited)
        if batch.ports is not None:
            effects.batch_replies = []
            effects.port_replies += zip(batch.ports, replies, strict=False)
            if done < len(messages):
                self._handle_ports(batch.ports[done:], messages[done:], effects)
        elif done < len(messages):
            for message in messages[done:]:
                reply = self._handle_message(port, message, effects)
                if reply is not None and port is not None:
                    replies.append(reply)
        self._finish(effects)
        return effects

    def _handle_ports(
        self, ports: Sequence[Port], messages: Sequence[CellMessage], effects: Effects
    ) -> None:
        """Handle a batch whose messages come from a port each."""
        replies = effects.port_replies
        for port, message in zip(ports, messages, strict=True):
            reply = self._handle_message(port, message, effects)
            if reply is not None:
                replies.append((port, reply))

    def _handle_message(
        self, port: Port | None, message: CellMessage, effects: Effects
    ) -> Reply | None:
        if self._registration.exists:
            if type(message) is m.Append and message.headers is None:
                return self._appender.append(message)
            if type(message) is d.DurableAppend:
                return self._append_durable(message, effects)
        return self._answer(port, message, effects)

    def wake(self, now: float) -> Effects:
        """Reply to reads that waited long enough; remove records that are too old or too many."""
        effects = Effects()
        self._begin(now, effects)
        self._reader.expire(now, effects)
        self.deadline = self._next_deadline()
        self._reader.end()
        return effects

    def _begin(self, now: float, effects: Effects) -> None:
        # Records stored now are as old as they would be if a jump of the clock is confirmed.
        self._now, self._now_ms = now, int((now + self._context.jump.seconds) * 1000)
        self._appender.begin(self._now_ms)
        if now >= self._expiry_at:
            self._expire(effects)

    def _finish(self, effects: Effects) -> None:
        """Give the batch to the store, and reply to the reads that waited for its records."""
        appender, reader = self._appender, self._reader
        if appender.has_appended:
            if self._metadata.created is None:
                # The first records of a topic's partition create it.
                effects.changes.append(self._metadata.create(self._now_ms, m.Settings()))
                self._registration.sync()
            if reader.waiters.count:
                appender.flush(effects.changes)
                reader.wake(effects)
                appender.end()
            else:
                appender.hand_over(effects.changes)
            self._metadata.progress.tail = self._bounds.tail
            if self._metadata.durable.lifetime.ttl_s is not None:
                self._expiry.use(self._now_ms, effects.changes)
            if self._context.subscriptions.version != self._subscribers_version:
                self._find_subscribers()
            if self._subscribers:
                self._tell_subscribers(effects)
        if self._first_sequence and self._metadata.created is not None:
            if self._metadata.durable.parent is None:
                effects.changes[:0] = beginning(self._first_sequence)
            self._first_sequence = 0
        if self._durable_appends.was_closed:
            self._durable_appends.was_closed = False
            reader.close(effects)
        self.deadline = self._next_deadline()
        reader.end()

    def _find_subscribers(self) -> None:
        """Look for the subscriptions that follow this stream."""
        index = self._context.subscriptions
        self._subscribers_version = index.version
        self._subscribers = index.cells_of(self._registration.name)

    def _tell_subscribers(self, effects: Effects) -> None:
        """Subscriptions hear of records once they are stored."""
        name, incarnation = self._registration.name, self._metadata.incarnation
        self._notify(m.StreamGrew(0, name, incarnation, self._bounds.tail), effects)

    def _notify(self, notice: m.StreamGrew | m.StreamGone, effects: Effects) -> None:
        tell = m.TellSubscriptions(0, self._subscribers, notice)
        effects.port_replies.append((self._context.subscriptions.notices, tell))

    def _next_deadline(self) -> float:
        expiry_at = self._expiry.next_at if self._expiry.has_limits else inf
        if self._trim_grace.waiting:
            expiry_at = min(expiry_at, self._trim_grace.next_at(self._now))
        self._expiry_at = expiry_at = max(expiry_at, self._paused_until)
        waiters = self._reader.waiters
        return min(waiters.next_at, expiry_at) if waiters.count else expiry_at

    def _configure(self) -> None:
        """Have all parts follow the stream's settings, or the node's."""
        durable = self._metadata.durable
        options = self._metadata.settings.options or m.DEFAULT_OPTIONS
        self._is_encrypted = options.is_encrypted
        retention = self._expiry.configure()
        has_quota = not retention.keep_bytes
        self._bounds.set_closed(is_closed=durable.is_closed)
        self._appender.configure(options, has_quota=has_quota, is_closed=durable.is_closed)
        self._reader.configure(retention, durable.parent)

    # Requests.

    def _answer(self, port: Port | None, message: CellMessage, effects: Effects) -> Reply | None:
        # Those of every day by their types: each class of the patterns costs a third of a
        # microsecond before its turn comes.
        if type(message) is m.Read and port is not None and self._registration.exists:
            return self._read(port, message, effects)
        if type(message) is d.DurableAppend:
            return self._append_durably_if_there(message, effects)
        if type(message) is m.SessionAppend and port is not None:
            return self._append_in_session(port, message, effects)
        match message:
            case m.EncryptedSessionAppend() if port is not None:
                return self._append_in_session(port, message, effects)
            case ChunksLoaded():
                self._resume(message, effects)
                return None
            case TeeAppend():
                effects.posts += ((message.channel, self._append_tee(message, effects)),)
                return None
            case Drain():
                self._reader.drain(effects)
                return None
            case Detach() if port is not None:
                self._sessions.end(port)
                self._reader.cancel(port)
                return None
            case m.CancelRead() if port is not None:
                self._reader.cancel(port, message.number)
                return None
            case m.FinishRead() if port is not None:
                self._reader.finish(port, message.number, effects)
                return None
            case m.Create():
                return self._create(message, effects)
            case m.Delete():
                return self._delete(message, effects)
            case d.DurableRequest():
                return self._answer_durable(port, message, effects)
            case StreamRequest() if not self._registration.exists:
                return self._failure(message, Code.UNKNOWN_STREAM)
            case m.WriterAppend():
                return self._writers.append(message, self._now_ms, effects.changes)
            case m.GetWriter():
                return self._writers.status(message)
            case m.EncryptedRead() if port is not None:
                return self._read(port, message, effects)
            case m.EncryptedAppend() if not self._metadata.matches(message.incarnation):
                return self._failure(message, Code.UNKNOWN_STREAM)
            case m.Append():
                return self._append(message, effects)
            case m.Trim() if port is not None:
                return self._trim(port, message, effects)
            case m.Describe():
                return self._describe(message)
            case m.GetGroupOffset():
                return m.GroupOffset(message.number, self._group_offset(message.group))
            case m.Configure():
                return self._change_settings(message, effects)
            case m.CommitOffset():
                return self._commit_offset(message, effects)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")

    def _failure(self, request: StreamRequest, code: Code) -> StreamFailed:
        failed = self._bounds.failure(request.number, code, self._metadata.fence)
        is_tombstone = code is Code.UNKNOWN_STREAM and self._metadata.durable.is_tombstone
        return replace(failed, is_tombstone=True) if is_tombstone else failed

    def _read(self, port: Port, request: m.Read, effects: Effects) -> Reply | None:
        if not self._metadata.matches(request.incarnation):
            return self._failure(request, Code.UNKNOWN_STREAM)
        if request.is_encrypted is not self._is_encrypted:
            return self._failure(request, Code.ENCRYPTED)
        self._expiry.use(self._now_ms, effects.changes)
        self._appender.flush(effects.changes)
        return self._reader.read(port, request, self._now)

    def _describe(self, request: m.Describe) -> m.StreamDescription:
        metadata, bounds = self._metadata, self._bounds
        created, settings = metadata.created, metadata.settings
        info = m.StreamInfo(
            age_s=settings.age_s,
            bytes_max=settings.bytes_max,
            content_type=settings.content_type,
            created_ms=0 if created is None else created.ms,
            trim_point=bounds.trim_point,
            tail=bounds.tail,
            last_id=bounds.last_id,
            last_timestamp=bounds.last_timestamp,
            bytes_kept=bounds.size,
            segments=1 + bounds.size // SEGMENT_BYTES,
            waiting=self._reader.waiting,
            fence=metadata.fence,
            groups={**self._early_offsets, **metadata.groups},
        )
        return m.StreamDescription(
            request.number,
            info,
            settings.options,
            metadata.incarnation,
            metadata.durable.is_closed,
            metadata.durable.lifetime,
        )

    def _change_settings(self, request: m.Configure, effects: Effects) -> Reply:
        if request.expected not in (None, self._metadata.settings):
            return self._failure(request, Code.SEQUENCE_MISMATCH)
        self._appender.flush(effects.changes)
        ages = self._expiry.change_age(request.settings.age_s, is_for_all=request.is_for_all)
        if ages is not None:
            effects.changes.append(ages)
        effects.changes.append(self._metadata.create(self._now_ms, request.settings))
        self._expiry.check_empty(self._now_ms, effects.changes)
        self._configure()
        self._registration.sync()
        return m.Done(request.number)

    def _commit_offset(self, request: m.CommitOffset, effects: Effects) -> Reply:
        metadata, directory = self._metadata, self._context.directory
        code = commit_offset(
            request, metadata, directory, self._limits, self._now_ms, effects.changes
        )
        if code is None and request.group in self._early_offsets:
            self._forget_early_offsets(request.group, effects)
        self._registration.sync()
        return m.Done(request.number) if code is None else self._failure(request, code)

    def _group_offset(self, group: bytes) -> int | None:
        offset = self._metadata.groups.get(group)
        return self._early_offsets.get(group) if offset is None else offset

    @property
    def _early_offsets(self) -> Mapping[bytes, int]:
        """Offsets that groups committed before this stream existed."""
        return self._context.directory.early_offsets_of(self._registration.name)

    def _forget_early_offsets(self, group: bytes | None, effects: Effects) -> None:
        topic, partition = self._context.directory.topic_partition_of(self._registration.name)
        effects.posts += ((TOPICS, m.ForgetEarlyOffsets(0, topic, partition, group)),)

    # Creation and deletion.

    def _create(self, request: m.Create, effects: Effects) -> Reply:
        if self._registration.exists or self._registration.is_taken:
            return self._failure(request, Code.STREAM_EXISTS)
        effects.changes.append(self._metadata.create(self._now_ms, request.settings))
        self._configure()
        self._registration.sync()
        return m.Done(request.number)

    def _delete(self, request: m.Delete, effects: Effects) -> Reply:
        directory, name = self._context.directory, self._registration.name
        if directory.is_partition(name):
            return self._failure(request, Code.PART_OF_TOPIC)
        if directory.is_being_deleted(name):
            effects.posts += (directory.deletion_notice(name),)
        if not self._remove(effects):
            return self._failure(request, Code.UNKNOWN_STREAM)
        return m.Done(request.number)

    def _remove(self, effects: Effects) -> bool:
        """Delete the stream; one with forks becomes a tombstone. False: there is no stream."""
        durable = self._metadata.durable
        if durable.is_tombstone:
            return False
        if self._metadata.created is not None:
            self._find_subscribers()
            if self._subscribers:
                name, incarnation = self._registration.name, self._metadata.incarnation
                self._notify(m.StreamGone(0, name, incarnation), effects)
        if not durable.forks:
            return self._erase(effects)
        self._appender.flush(effects.changes)
        self._reader.dismiss_all(effects)
        effects.changes.append(durable.set_tombstone())
        self._forks.check_all(effects)
        self._registration.sync()
        return True

    def _erase(self, effects: Effects) -> bool:
        was_created = self._metadata.created is not None
        self._reader.dismiss_all(effects)
        if self._early_offsets:
            self._forget_early_offsets(None, effects)
        if was_created:
            self._forks.leave_parent(effects)
            self._appender.discard()
            effects.changes.append(self._bounds.delete())
            self._first_sequence = 0
            self._reader.deleted()
            self._metadata.clear()
            self._trim_grace.clear()
            self._expiry.restart(self._now_ms)
            self._configure()
            self._registration.sync()
        return was_created

    # Appends.

    def _append(self, request: m.Append, effects: Effects) -> m.Appended | StreamFailed:
        """Append, and follow the command records."""
        reply = self._appender.append(request)
        bodies, headers = request.bodies, request.headers
        if headers is None or type(bodies) is m.PackedBodies or not isinstance(reply, m.Appended):
            return reply
        for command in command_records_of(bodies, headers):
            self._appender.flush(effects.changes)
            if isinstance(command, SetFence):
                if self._metadata.fence and command.token != self._metadata.fence:
                    name = self._registration.name
                    self._context.takeovers.record("fencing token", name, self._now)
                effects.changes.append(self._metadata.set_fence(command.token))
            else:
                self._trim_later(min(command.point, reply.first + command.at + 1), effects)
        return reply

    def _append_in_session(self, port: Port, request: m.SessionAppend, effects: Effects) -> Reply:
        code = self._sessions.check(port, request)
        if not self._registration.exists or not self._metadata.matches(request.incarnation):
            code = code or Code.UNKNOWN_STREAM
        reply = self._append(request, effects) if code is None else self._failure(request, code)
        self._sessions.record(port, reply)
        return reply

    def _append_tee(self, request: TeeAppend, effects: Effects) -> TeeAppended:
        """Append the messages of a channel that the stream has not had, all or none. The first of
        them create the stream."""
        number, progress = request.number, self._metadata.tee_progress
        if not self._registration.exists and request.ids:
            created = self._create(m.Create(0), effects)
            if isinstance(created, StreamFailed):
                return TeeAppended(number, code=created.code)
        confirmed_id = progress.confirmed_id(request.channel, request.node_run)
        if confirmed_id < request.behind:
            return TeeAppended(number, code=Code.SEQUENCE_MISMATCH)
        pairs = zip(request.ids, request.bodies, strict=True)
        fresh = [body for each, body in pairs if each > confirmed_id]
        if not fresh:
            return TeeAppended(number, confirmed_id)
        if not progress.reserve(request.channel, int(self._now * 1000), effects.changes):
            return TeeAppended(number, code=Code.BUFFER_FULL)
        reply = self._appender.append(m.Append(0, fresh))
        if isinstance(reply, StreamFailed):
            return TeeAppended(number, code=reply.code)
        until_ms = int(request.until * 1000)
        mark = progress.advance(request.channel, request.node_run, number, until_ms)
        effects.changes.append(mark)
        return TeeAppended(number, number)

    # Durable Streams.

    def _append_durably_if_there(self, request: d.DurableAppend, effects: Effects) -> Reply:
        if self._registration.exists:
            return self._append_durable(request, effects)
        is_tombstone = self._metadata.durable.is_tombstone
        reason = d.RefusalReason.DELETED if is_tombstone else d.RefusalReason.MISSING
        return d.DurableRefused(request.number, reason)

    def _append_durable(self, request: d.DurableAppend, effects: Effects) -> Reply:
        """Append to a stream that exists."""
        if self._metadata.durable.lifetime.ttl_s is not None:
            self._expiry.use(self._now_ms, effects.changes)
        return self._durable_appends.append(request, self._now_ms, effects.changes)

    def _answer_durable(
        self, port: Port | None, message: d.DurableRequest, effects: Effects
    ) -> Reply | None:
        forks, now_ms = self._forks, self._now_ms
        reply: Reply | None = None
        match message:
            case d.DurableCreate():
                reply = forks.create(message, now_ms, effects)
            case d.CreateFork():
                reply = forks.create_fork(message, now_ms, effects)
            case d.Fork():
                if not self._registration.exists or port is None:
                    is_tombstone = self._metadata.durable.is_tombstone
                    reason = d.RefusalReason.SOURCE_MISSING
                    if is_tombstone:
                        reason = d.RefusalReason.SOURCE_DELETED
                    return d.DurableRefused(message.number, reason)
                if self._is_encrypted:
                    return self._failure(message, Code.ENCRYPTED)
                self._appender.flush(effects.changes)
                return forks.fork(port, message, now_ms, effects)
            case d.CheckFork():
                forks.reply_check(message, effects)
            case d.ReleaseFork():
                if forks.release(message, effects):
                    self._erase(effects)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")
        if isinstance(reply, d.DurableCreated) and reply.is_new:
            self._expiry.restart(now_ms)
            self._configure()
            self._registration.sync()
            if reply.tail and not self._appender.has_appended:
                # A fork has the records of its source.
                self._find_subscribers()
                self._tell_subscribers(effects)
        return reply

    # Reads and trims.

    def _resume(self, loaded: ChunksLoaded, effects: Effects) -> None:
        """Go on with what waited for the store: expiry, a read or a trim."""
        if self._expiry.end_scan(loaded.scan):
            self._apply_trim(self._expiry.resume_trim(loaded.chunks, self._now), effects)
            return
        scan = self._reader.take_scan(loaded.scan)
        if scan is None:
            return
        self._appender.flush(effects.changes)
        reply: Reply | None
        if isinstance(scan.request, m.Read):
            reply = self._reader.resume(scan, scan.request, loaded.chunks, self._now)
            if reply is not None:
                effects.deferred.append((scan.port, scan.request))
        else:
            point = self._reader.trim_point_in(scan, loaded.chunks)
            reply = m.Done(scan.request.number) if isinstance(point, int) else point
            if isinstance(point, int):
                self._trim_to(point, effects)
        if reply is not None:
            effects.port_replies.append((scan.port, reply))

    def _trim(self, port: Port, request: m.Trim, effects: Effects) -> Reply | None:
        self._appender.flush(effects.changes)
        point = self._reader.trim_point(port, request)
        if not isinstance(point, int):
            return point
        self._trim_to(point, effects)
        return m.Done(request.number)

    def _trim_to(self, point: int, effects: Effects, size: int | None = None) -> None:
        change = self._bounds.trim(point, size)
        if change is not None:
            self._context.counters.trims += 1
            self._context.counters.trimmed_bytes += change.size
            effects.changes.append(change)
            self._expiry.check_empty(self._now_ms, effects.changes)

    def _trim_later(self, point: int, effects: Effects) -> None:
        """Trim once the grace is over."""
        if not self._limits.trim_grace_s:
            self._trim_to(point, effects)
        elif point > max(self._bounds.trim_point, self._metadata.trim_point):
            effects.changes.append(self._metadata.set_trim_point(point))
            self._trim_grace.add(point, self._now)

    def _end_grace(self, effects: Effects) -> None:
        """Trim what command records told, some time ago."""
        point = self._trim_grace.take_due(self._now)
        if point:
            self._trim_to(point, effects)
            if not self._trim_grace:
                effects.changes.append(self._metadata.set_trim_point(0))

    def _expire(self, effects: Effects) -> None:
        """Remove what is due."""
        expiry = self._expiry
        if self._limits.is_durable and not self._context.health.is_writable:
            # Appends that are refused now would be due again at once.
            self._paused_until = self._now + RETRY_S
            return
        self._end_grace(effects)
        if self._now < expiry.next_at:
            return
        if expiry.take_fork_check():
            self._forks.check_all(effects)
        elif self._now >= expiry.deleted_at:
            self._remove(effects)
        else:
            self._apply_trim(expiry.plan_trim(self._now), effects)

    def _apply_trim(self, plan: TrimPlan | None, effects: Effects) -> None:
        if plan is not None:
            self._appender.flush(effects.changes)
            self._trim_to(plan.point, effects, plan.size)
