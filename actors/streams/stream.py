"""The behaviour of a stream's cell: appends, reads, trims, and what goes by itself.

It keeps no records: it knows the stream's end, and reads what it shows (docs/internals/streams.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    StreamRequest,
    TeeAppend,
    TeeAppended,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams import messages as m
from millpond.actors.streams import tees
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.chains import AppendSessions
from millpond.actors.streams.command_records import SetFence, command_records_of
from millpond.actors.streams.consumer_groups import commit_offset
from millpond.actors.streams.described import tell
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.durable.requests import DurableRequests
from millpond.actors.streams.expiry import Expiry
from millpond.actors.streams.idempotent_writers import IdempotentWriters
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.read import StreamReader
from millpond.actors.streams.read_scan import ChunksLoaded
from millpond.actors.streams.registration import Registration
from millpond.actors.streams.retention import TrimPlan
from millpond.actors.streams.settings import StreamContext, StreamLimits


class Stream:
    """One stream; `name` is the stream's, not its cell's."""

    __slots__ = (
        "_appender",
        "_authors",
        "_cell",
        "_chains",
        "_durable",
        "_extent",
        "_limits",
        "_moment",
        "_presence",
        "_properties",
        "_reader",
        "_shared",
        "_sweep_at",
        "_upkeep",
        "deadline",
    )

    def __init__(
        self, name: bytes, outline: LogSnapshot, limits: StreamLimits, shared: StreamContext
    ) -> None:
        self._cell = shared.directory.cell_of(name)
        self._shared = shared
        self._extent = extent = StreamBounds(outline)
        self._properties = properties = StreamMetadata(outline.metadata, shared.serials)
        self._presence = Registration(name, properties, extent, shared.directory)
        self._limits = limits
        self._moment = moment = Moment()
        self._appender = StreamAppender(extent, properties, limits, shared, moment)
        self._authors = IdempotentWriters(self._appender, properties, extent, moment)
        self._reader = reader = StreamReader(self._cell, extent, self._appender, shared, moment)
        self._upkeep = Expiry(name, extent, properties, reader, moment, limits, shared)
        self._durable = DurableRequests(
            self._presence, self._cell, extent, properties, self._appender, moment
        )
        self._chains = AppendSessions()
        self._sweep_at = inf
        if properties.durable.parentage is not None:
            extent.descend(properties.durable.parentage, outline.trim_point)
        self._configure()
        self._presence.tell()
        self.deadline = self._next_deadline()

    @property
    def is_empty(self) -> bool:
        return self._properties.created is None and self._reader.is_idle

    @property
    def is_settled(self) -> bool:
        return self._reader.is_idle and self._reader.retention.search is None

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return self._reader.unanswered()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        self._begin(now, effects)
        port, answers, append = batch.port, effects.answers, self._appender.append
        is_there = self._presence.is_there
        messages = batch.messages
        if batch.ports is not None:
            self._handle_gathered(batch.ports, messages, effects)
            messages = []
        for message in messages:
            if type(message) is m.Append and is_there and message.headers is None:
                answers.append(append(message))
                continue
            reply = self._answer(port, message, effects)
            is_there = self._presence.is_there
            if reply is not None and port is not None:
                answers.append(reply)
        self._finish(effects)
        return effects

    def _handle_gathered(
        self, ports: Sequence[Port], messages: Sequence[CellMessage], effects: Effects
    ) -> None:
        replies = effects.replies
        for port, message in zip(ports, messages, strict=True):
            reply = (
                self._appender.append(message)
                if type(message) is m.Append and message.headers is None and self._presence.is_there
                else self._answer(port, message, effects)
            )
            if reply is not None:
                replies.append((port, reply))

    def wake(self, now: float) -> Effects:
        """Reads that waited long enough, and records that are too old or too many."""
        effects = Effects()
        self._begin(now, effects)
        self._reader.expire(now, effects)
        self.deadline = self._next_deadline()
        self._reader.end()
        return effects

    def _begin(self, now: float, effects: Effects) -> None:
        moment = self._moment
        moment.now, moment.now_ms = now, int(now * 1000)
        self._appender.is_measured = False
        if now >= self._sweep_at:
            self._do_what_is_due(effects)

    def _finish(self, effects: Effects) -> None:
        """The batch goes to the store, and who waited for what it brings gets it."""
        appender = self._appender
        if appender.has_news:
            if self._properties.created is None:
                # The first records of a topic's partition: now there is something of it.
                effects.changes.append(self._properties.create(self._moment.now_ms, m.Settings()))
                self._presence.tell()
            appender.flush(effects.changes)
            self._reader.answer_reached(effects)
            appender.end()
            self._properties.progress.tail = self._extent.tail
            self._upkeep.use(effects.changes)
        if self._durable.take_closing():
            self._reader.dismiss_waiting(effects, is_closed=True)
        self.deadline = self._next_deadline()
        self._reader.end()

    def _configure(self) -> None:
        """Follow its settings, or the node's."""
        settings = self._properties.settings
        self._appender.has_quota = not self._upkeep.configure()
        self._appender.traits = traits = settings.traits or m.DEFAULT_OPTIONS
        notes = self._properties.durable
        self._extent.is_closed = notes.is_closed
        self._appender.has_terms = traits is not m.DEFAULT_OPTIONS or notes.is_closed
        self._reader.descend(notes.parentage)

    def _next_deadline(self) -> float:
        self._sweep_at = sweep_at = self._upkeep.next_at
        waits_until = self._reader.next_at
        return waits_until if waits_until < sweep_at else sweep_at

    def _answer(self, port: Port | None, message: CellMessage, effects: Effects) -> Reply | None:
        match message:
            case ChunksLoaded():
                self._find(message, effects)
                return None
            case TeeAppend():
                effects.posts += ((message.channel, self._take(message, effects)),)
                return None
            case Drain():
                self._reader.is_stopped = True
                self._reader.dismiss_waiting(effects)
                return None
            case Detach() if port is not None:
                self._chains.forget(port)
                self._reader.cancel(port)
                return None
            case m.CancelRead() if port is not None:
                self._reader.cancel(port, message.number)
                return None
            case m.FinishRead() if port is not None:
                self._reader.conclude(port, message.number, effects)
                return None
            case m.Create():
                return self._create(message, effects)
            case m.Delete():
                return self._delete(message, effects)
            case m.SessionAppend() if port is not None:
                return self._append_chained(port, message, effects)
            case d.DurableRequest():
                return self._answer_durable(port, message, effects)
            case StreamRequest() if not self._presence.is_there:
                return self._refuse(message, Code.UNKNOWN_STREAM)
            case m.WriterAppend() | m.GetWriter():
                return self._authors.answer(message, effects.changes)
            case m.Append():
                return self._append(message, effects)
            case m.Read() if port is not None:
                if not self._properties.is_it(message.incarnation):
                    return self._refuse(message, Code.UNKNOWN_STREAM)
                self._upkeep.use(effects.changes)
                self._appender.flush(effects.changes)
                return self._reader.read(port, message)
            case m.Trim() if port is not None:
                return self._trim(port, message, effects)
            case StreamRequest():
                return self._manage(message, effects)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")

    def _manage(self, message: StreamRequest, effects: Effects) -> Reply:
        """Requests that are about the stream, not about its records."""
        properties = self._properties
        match message:
            case m.Describe() | m.GetGroupOffset():
                return tell(message, self._extent, properties, self._reader.waiters.count)
            case m.Configure(settings=settings, expected=expected):
                if expected not in (None, self._properties.settings):
                    return self._refuse(message, Code.SEQUENCE_MISMATCH)
                self._appender.flush(effects.changes)
                now_ms = self._moment.now_ms
                effects.changes.append(self._properties.create(now_ms, settings))
                self._upkeep.vacancy.note(now_ms, effects.changes)
                self._configure()
                self._presence.tell()
                return m.Done(message.number)
            case m.CommitOffset():
                now_ms, directory = self._moment.now_ms, self._shared.directory
                code = commit_offset(
                    message, properties, directory, self._limits, now_ms, effects.changes
                )
                self._presence.tell()
                return m.Done(message.number) if code is None else self._refuse(message, code)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")

    def _refuse(self, request: StreamRequest, code: Code) -> m.StreamFailed:
        failed = self._extent.refusal(request.number, code, self._properties.fence)
        is_buried = code is Code.UNKNOWN_STREAM and self._properties.durable.is_tombstone
        return replace(failed, is_tombstone=True) if is_buried else failed

    def _answer_durable(
        self, port: Port | None, message: d.DurableRequest, effects: Effects
    ) -> Reply | None:
        desk = self._durable
        if isinstance(message, d.DurableAppend) and self._presence.is_there:
            self._upkeep.use(effects.changes)
        reply = desk.answer(port, message, effects)
        if isinstance(reply, d.DurableCreated) and reply.is_new:
            self._upkeep.begin()
            self._configure()
            self._presence.tell()
        if desk.is_vacant:
            desk.is_vacant = False
            self._erase(effects)
        return reply

    def _create(self, request: m.Create, effects: Effects) -> Reply:
        if self._presence.is_there or self._presence.is_taken:
            return self._refuse(request, Code.STREAM_EXISTS)
        effects.changes.append(self._properties.create(self._moment.now_ms, request.settings))
        self._configure()
        self._presence.tell()
        return m.Done(request.number)

    def _delete(self, request: m.Delete, effects: Effects) -> Reply:
        directory = self._shared.directory
        if directory.is_partition(self._presence.name):
            return self._refuse(request, Code.PART_OF_TOPIC)
        if directory.is_vacated(self._presence.name):
            effects.posts += (directory.vacated(self._presence.name),)
        if not self._remove(effects):
            return self._refuse(request, Code.UNKNOWN_STREAM)
        return m.Done(request.number)

    def _remove(self, effects: Effects) -> bool:
        """Nothing stays of the stream, unless it has forks. False: there was nothing."""
        notes = self._properties.durable
        if notes.is_tombstone:
            return False
        if not notes.refs:
            return self._erase(effects)
        self._appender.flush(effects.changes)
        self._reader.dismiss_all(effects)
        effects.changes.append(notes.bury())
        self._durable.claim_all(effects)
        self._presence.tell()
        return True

    def _erase(self, effects: Effects) -> bool:
        was_there = self._properties.created is not None
        self._reader.dismiss_all(effects)
        if was_there:
            self._durable.part(effects)
            self._appender.drop()
            effects.changes.append(self._extent.drop())
            self._reader.is_new = True
            self._properties.forget()
            self._upkeep.begin()
            self._configure()
            self._presence.tell()
        return was_there

    def _append(self, request: m.Append, effects: Effects) -> Reply:
        reply = self._appender.append(request)
        if request.headers is None or not isinstance(reply, m.Appended):
            return reply
        for order in command_records_of(request.bodies, request.headers):
            self._appender.flush(effects.changes)
            if isinstance(order, SetFence):
                effects.changes.append(self._properties.set_fence(order.token))
            else:
                self._trim_to(min(order.point, reply.first + order.at + 1), effects)
        return reply

    def _append_chained(self, port: Port, request: m.SessionAppend, effects: Effects) -> Reply:
        code = self._chains.refusal(port, request)
        if not self._presence.is_there or not self._properties.is_it(request.incarnation):
            code = code or Code.UNKNOWN_STREAM
        reply = self._append(request, effects) if code is None else self._refuse(request, code)
        assert isinstance(reply, m.Appended | m.StreamFailed), "nothing else answers an append"
        self._chains.note(port, reply)
        return reply

    def _take(self, pour: TeeAppend, effects: Effects) -> TeeAppended:
        """What a channel is teed with; the first of it makes the stream."""
        if not self._presence.is_there and pour.ids:
            reply = self._create(m.Create(0), effects)
            if isinstance(reply, m.StreamFailed):
                return TeeAppended(pour.number, code=reply.code)
        now_ms = self._moment.now_ms
        return tees.take(pour, self._properties.tees, self._appender, now_ms, effects.changes)

    def _trim(self, port: Port, request: m.Trim, effects: Effects) -> Reply | None:
        self._appender.flush(effects.changes)
        point = self._reader.trim_point(port, request)
        if not isinstance(point, int):
            return point
        self._trim_to(point, effects)
        return m.Done(request.number)

    def _trim_to(self, point: int, effects: Effects, size: int | None = None) -> None:
        change = self._extent.trim(point, size)
        if change is not None:
            self._shared.counters.trims += 1
            self._shared.counters.trimmed_bytes += change.size
            effects.changes.append(change)
            self._upkeep.vacancy.note(self._moment.now_ms, effects.changes)

    def _find(self, found: ChunksLoaded, effects: Effects) -> None:
        if self._upkeep.take(found.search):
            self._cut(self._upkeep.cut(found.chunks), effects)
            return
        search = self._reader.take(found.search)
        if search is None:
            return
        self._appender.flush(effects.changes)
        reply: Reply | None
        if isinstance(search.request, m.Read):
            reply = self._reader.found(search, search.request, found.chunks)
            if reply is not None:
                effects.deferred.append((search.port, search.request))
        else:
            point = self._reader.point_in(search, found.chunks)
            reply = m.Done(search.request.number) if isinstance(point, int) else point
            if isinstance(point, int):
                self._trim_to(point, effects)
        if reply is not None:
            effects.replies.append((search.port, reply))

    def _do_what_is_due(self, effects: Effects) -> None:
        """What goes by itself, now that something is due."""
        upkeep = self._upkeep
        if upkeep.is_claiming:
            upkeep.is_claiming = False
            self._durable.claim_all(effects)
        elif self._moment.now >= upkeep.ends_at:
            self._remove(effects)
        else:
            self._cut(upkeep.look(), effects)

    def _cut(self, cut: TrimPlan | None, effects: Effects) -> None:
        if cut is not None:
            self._appender.flush(effects.changes)
            self._trim_to(cut.point, effects, cut.size)
