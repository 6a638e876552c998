"""Writers whose batches are added once, however often they come (docs/guides/spark.md).

Records and how far their writer got are changes of one commit, so neither is ever there without
the other.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Reply, StreamFailed
from millpond.actors.store.changes import Change
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.messages import Append, GetWriter, WriterAppend, WriterStatus
from millpond.actors.streams.metadata import StreamMetadata, WriterState
from millpond.actors.streams.moment import Moment

WRITERS_MAX = 1000
WRITER_BYTES_MAX = 64
PLAN_BYTES_MAX = 2**20
ONCE_MS = 86_400_000
"""A writer of one batch is remembered for so long: who repeats its request does so before."""


class IdempotentWriters:
    """Those of one stream."""

    __slots__ = ("_appender", "_extent", "_moment", "_properties")

    def __init__(
        self,
        appender: StreamAppender,
        properties: StreamMetadata,
        extent: StreamBounds,
        moment: Moment,
    ) -> None:
        self._appender = appender
        self._extent = extent
        self._moment = moment
        self._properties = properties

    def answer(self, request: WriterAppend | GetWriter, changes: list[Change]) -> Reply:
        """How far a writer got, after its slice if it sends one."""
        if isinstance(request, GetWriter):
            return self._tell(request.number, request.writer)
        return self._publish(request, changes)

    def _tell(self, number: int, writer: bytes) -> WriterStatus:
        found = self._properties.writers.get(writer)
        if found is None:
            return WriterStatus(number, -1, 0, b"", True)
        return WriterStatus(number, found.batch, found.rows, found.plan, found.is_done)

    def _publish(self, request: WriterAppend, changes: list[Change]) -> Reply:
        """Add a slice where it is the next one; else say what is true."""
        before = self._properties.writers.get(request.writer)
        if not _is_next(request, before):
            return self._tell(request.number, request.writer)
        if not 0 < len(request.writer) <= WRITER_BYTES_MAX or len(request.plan) > PLAN_BYTES_MAX:
            return self._refusal(request, Code.MALFORMED)
        if before is None and not self._has_room(changes):
            return self._refusal(request, Code.GROUPS_FULL)
        if request.bodies:
            append = Append(request.number, request.bodies, None, request.headers)
            reply = self._appender.append(append)
            if isinstance(reply, StreamFailed):
                return reply
            self._appender.flush(changes)
        writing = WriterState(
            request.batch,
            request.at + len(request.bodies),
            b"" if request.is_last else request.plan,
            request.is_last,
            self._moment.now_ms,
            request.once,
        )
        changes.append(self._properties.write(request.writer, writing))
        return self._tell(request.number, request.writer)

    def _refusal(self, request: WriterAppend, code: Code) -> StreamFailed:
        return self._extent.refusal(request.number, code)

    def _has_room(self, changes: list[Change]) -> bool:
        """For one more. Writers of one batch that was long ago are forgotten for it."""
        writers, until = self._properties.writers, self._moment.now_ms - ONCE_MS
        over = [name for name, each in writers.items() if each.once and each.ms < until]
        changes += map(self._properties.forget_writer, over)
        return len(writers) < WRITERS_MAX


def _is_next(request: WriterAppend, before: WriterState | None) -> bool:
    if before is not None and not before.is_done:
        is_same = request.batch == before.batch and request.plan == before.plan
        return is_same and request.at == before.rows
    return request.at == 0 and (before is None or request.batch > before.batch)
