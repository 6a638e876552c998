"""The behaviour of a stream's cell: appends, reads, trims, and what goes by itself.

It keeps no records: it knows where the stream ends, and what it shows it reads from the store
(docs/streams.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from math import inf

from actors.cell import Effects
from actors.errors import Code
from actors.messages import Batch, Drain, Leave, Mail, Port, Reply, StreamRequest
from actors.store.changes import Chunk, LogSnapshot
from actors.store.seam import Fault, Pending, Seek, Where
from actors.streams import messages as m
from actors.streams.appender import Appender
from actors.streams.extent import Extent
from actors.streams.moment import Moment
from actors.streams.names import TOPICS, stream_cell
from actors.streams.notes import Properties
from actors.streams.orders import SetFence, orders_of
from actors.streams.reader import Reader
from actors.streams.records import BadChunk
from actors.streams.retention import SLICE_BYTES, Retention
from actors.streams.search import Found
from actors.streams.settings import StreamLimits, StreamShared

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 * 2**20
"""What `segments` of an outline are counted in."""
GROUP_BYTES_MAX = 256


class Stream:
    """One stream; `name` is the stream's, not its cell's."""

    __slots__ = (
        "_appender",
        "_cell",
        "_extent",
        "_limits",
        "_moment",
        "_name",
        "_properties",
        "_reader",
        "_retention",
        "_shared",
        "_sweep_at",
        "deadline",
    )

    def __init__(
        self, name: bytes, outline: LogSnapshot, limits: StreamLimits, shared: StreamShared
    ) -> None:
        self._name = name
        self._cell = stream_cell(name)
        self._shared = shared
        self._extent = extent = Extent(outline)
        self._properties = Properties(outline.notes)
        self._limits = limits
        self._moment = Moment()
        self._appender = Appender(extent, self._properties, limits, shared, self._moment)
        self._reader = Reader(self._cell, extent, self._appender, shared, self._moment)
        self._sweep_at = inf
        self._configure()
        self._tell()
        self.deadline = self._next_deadline()

    @property
    def is_empty(self) -> bool:
        return self._properties.created is None and self._reader.is_idle

    @property
    def is_settled(self) -> bool:
        return self._reader.is_idle and self._retention.search is None

    @property
    def owed(self) -> Iterable[tuple[Port, StreamRequest]]:
        return self._reader.owed()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        self._begin(now, effects)
        port, answers, append = batch.port, effects.answers, self._appender.append
        is_there = self._is_there
        if batch.ports is not None:
            self._handle_gathered(batch.ports, batch.messages, effects)
            self._finish(effects)
            return effects
        for message in batch.messages:
            if type(message) is m.Append and is_there and message.headers is None:
                answers.append(append(message))
                continue
            reply = self._answer(port, message, effects)
            is_there = self._is_there
            if reply is not None and port is not None:
                answers.append(reply)
        self._finish(effects)
        return effects

    def _handle_gathered(
        self, ports: Sequence[Port], messages: Sequence[Mail], effects: Effects
    ) -> None:
        replies = effects.replies
        for port, message in zip(ports, messages, strict=True):
            reply = (
                self._appender.append(message)
                if type(message) is m.Append and message.headers is None and self._is_there
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
        moment.now = now
        moment.now_ms = int(now * 1000)
        self._appender.is_measured = False
        if now >= self._sweep_at:
            self._look_at_oldest(effects)

    def _finish(self, effects: Effects) -> None:
        """The batch goes to the store, and who waited for what it brings gets it."""
        appender = self._appender
        if appender.has_news:
            if self._properties.created is None:
                # The first records of a topic's partition: now there is something of it.
                created = self._properties.create(self._moment.now_ms, m.Settings())
                effects.changes.append(created)
                self._tell()
            appender.flush(effects.changes)
            self._reader.answer_reached(effects)
            appender.end()
        self.deadline = self._next_deadline()
        self._reader.end()

    @property
    def _is_there(self) -> bool:
        return self._properties.created is not None or (
            self._shared.directory.is_partition(self._name)
        )

    def _tell(self) -> None:
        """What this stream is, for all who look for names."""
        properties = self._properties
        self._shared.directory.sync_stream(
            self._name,
            is_created=properties.created is not None,
            groups=len(properties.groups),
        )

    def _configure(self) -> None:
        """Follow its settings, or the node's."""
        settings, limits = self._properties.settings, self._limits
        age_s = limits.age_s if settings.age_s is None else settings.age_s
        keep = limits.keep_bytes if settings.bytes_max is None else settings.bytes_max
        self._retention = self._reader.retention = Retention(age_s * 1000, keep)
        self._appender.has_quota = not keep

    def _next_deadline(self) -> float:
        self._sweep_at = sweep_at = self._retention_at()
        waits_until = self._reader.next_at
        return waits_until if waits_until < sweep_at else sweep_at

    def _retention_at(self) -> float:
        retention = self._retention
        if not retention.age_ms and not retention.keep_bytes:
            return inf
        extent = self._extent
        return retention.next_at(extent.tail - extent.trim_point, extent.size)

    # Requests.

    def _answer(self, port: Port | None, message: Mail, effects: Effects) -> Reply | None:
        match message:
            case Found():
                self._find(message, effects)
                return None
            case Drain():
                self._reader.is_stopped = True
                self._reader.dismiss_waiting(effects)
                return None
            case Leave() if port is not None:
                self._reader.cancel(port)
                return None
            case m.Cancel() if port is not None:
                self._reader.cancel(port, message.number)
                return None
            case m.Conclude() if port is not None:
                self._reader.conclude(port, message.number, effects)
                return None
            case m.Create():
                return self._create(message, effects)
            case m.Delete():
                return self._delete(message, effects)
            case StreamRequest() if not self._is_there:
                return self._refuse(message, Code.UNKNOWN_STREAM)
            case m.Append():
                return self._append(message, effects)
            case m.Read() if port is not None:
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
        match message:
            case m.Describe():
                return self._describe(message)
            case m.Configure(settings=settings):
                self._appender.flush(effects.changes)
                effects.changes.append(self._properties.create(self._moment.now_ms, settings))
                self._configure()
                self._tell()
                return m.Done(message.number)
            case m.Commit():
                return self._commit(message, effects)
            case m.Committed(group=group):
                return m.GroupOffset(message.number, self._properties.groups.get(group))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")

    def _refuse(self, request: StreamRequest, code: Code) -> m.StreamFailed:
        return self._extent.refusal(request.number, code, self._properties.fence)

    def _create(self, request: m.Create, effects: Effects) -> Reply:
        directory = self._shared.directory
        if self._is_there or directory.has_topic(self._name) or directory.is_vacated(self._name):
            return self._refuse(request, Code.STREAM_EXISTS)
        effects.changes.append(self._properties.create(self._moment.now_ms, request.settings))
        self._configure()
        self._tell()
        return m.Done(request.number)

    def _delete(self, request: m.Delete, effects: Effects) -> Reply:
        directory = self._shared.directory
        if directory.is_partition(self._name):
            return self._refuse(request, Code.PART_OF_TOPIC)
        if directory.is_vacated(self._name):
            effects.posts += ((TOPICS, m.Vacated(0, self._name)),)
        was_there = self._properties.created is not None
        self._reader.dismiss_all(effects)
        self._retention.search = None
        if not was_there:
            return self._refuse(request, Code.UNKNOWN_STREAM)
        self._appender.drop()
        effects.changes.append(self._extent.drop())
        self._reader.is_new = True
        self._properties.forget()
        self._configure()
        self._tell()
        return m.Done(request.number)

    def _append(self, request: m.Append, effects: Effects) -> Reply:
        reply = self._appender.append(request)
        if request.headers is None or not isinstance(reply, m.Appended):
            return reply
        for order in orders_of(request.bodies, request.headers):
            self._appender.flush(effects.changes)
            if isinstance(order, SetFence):
                effects.changes.append(self._properties.set_fence(order.token))
            else:
                self._trim_to(min(order.point, reply.first + order.at + 1), effects)
        return reply

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

    def _commit(self, request: m.Commit, effects: Effects) -> Reply:
        properties, directory, limits = self._properties, self._shared.directory, self._limits
        if not 0 < len(request.group) <= GROUP_BYTES_MAX:
            return self._refuse(request, Code.MALFORMED)
        if request.group not in properties.groups and (
            len(properties.groups) >= limits.groups_max
            or directory.groups >= limits.node_groups_max
        ):
            return self._refuse(request, Code.GROUPS_FULL)
        if properties.created is None:
            effects.changes.append(properties.create(self._moment.now_ms, m.Settings()))
        effects.changes.append(properties.commit(request.group, request.offset))
        self._tell()
        return m.Done(request.number)

    def _describe(self, request: m.Describe) -> m.Described:
        extent, properties = self._extent, self._properties
        return m.Described(
            request.number,
            settings=properties.settings,
            created_ms=0 if properties.created is None else properties.created.ms,
            trim_point=extent.trim_point,
            tail=extent.tail,
            last_id=extent.last_id,
            last_timestamp=extent.last_timestamp,
            bytes=extent.size,
            segments=1 + extent.size // SEGMENT_BYTES,
            waiting=self._reader.waiters.count,
            fencing_token=properties.fence,
            groups=dict(properties.groups),
        )

    # What the store looked for.

    def _find(self, found: Found, effects: Effects) -> None:
        if found.search is self._retention.search:
            self._retention.search = None
            self._cut(found.chunks, effects)
            return
        search = self._reader.take(found.search)
        if search is None:
            return
        self._appender.flush(effects.changes)
        reply: Reply | None
        if isinstance(search.request, m.Read):
            reply = self._reader.found(search, search.request, found.chunks)
            if reply is not None:
                effects.awaited.append((search.port, search.request))
        else:
            point = self._reader.point_in(search, found.chunks)
            reply = m.Done(search.request.number) if isinstance(point, int) else point
            if isinstance(point, int):
                self._trim_to(point, effects)
        if reply is not None:
            effects.replies.append((search.port, reply))

    def _look_at_oldest(self, effects: Effects) -> None:
        seek = Seek(Where.SEQUENCE, self._extent.trim_point, bytes_max=SLICE_BYTES)
        chunks = self._shared.store.read(self._cell, seek)
        if isinstance(chunks, Pending):
            self._retention.search = search = object()
            self._reader.bring(search, chunks)
        else:
            self._cut(chunks, effects)

    def _cut(self, chunks: list[Chunk] | Fault | None, effects: Effects) -> None:
        extent, retention, now = self._extent, self._retention, self._moment.now
        if chunks is None or isinstance(chunks, Fault):
            retention.rest(now)
            return
        try:
            cut = retention.cut(
                chunks, extent.trim_point, extent.tail, extent.size, self._moment.now
            )
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._name, exc)
            retention.rest(now)
            return
        self._appender.flush(effects.changes)
        self._trim_to(cut.point, effects, cut.size)
