"""The creation of streams for Durable Streams, and the messages between forks and their sources.

A source stores the number of a fork before the fork is created, and is told when the fork is gone.
After a stop in between, the number stands for nothing; so a source that is to go asks all forks it
knows of (`CheckFork`).
"""

from __future__ import annotations

from msgspec.structs import replace

from millpond.actors.messages import Batch, Port, StreamReply
from millpond.actors.runtime.cell import Effects
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.durable.append import DurableAppends
from millpond.actors.streams.durable.fork_log import fork_chain
from millpond.actors.streams.durable.messages import (
    NO_EXPIRY,
    CheckFork,
    CreateFork,
    CreateSpec,
    DurableCreate,
    DurableCreated,
    DurableRefused,
    Fork,
    ForkParent,
    Lifetime,
    RefusalReason,
    ReleaseFork,
    media_type,
)
from millpond.actors.streams.messages import Append, Appended, Settings
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.registration import Registration


class Forks:
    """The creation of one stream, as a fork or not, and the forks of it."""

    __slots__ = ("_appender", "_appends", "_bounds", "_cell", "_metadata", "_registration")

    def __init__(
        self,
        registration: Registration,
        cell: bytes,
        bounds: StreamBounds,
        metadata: StreamMetadata,
        appender: StreamAppender,
        appends: DurableAppends,
    ) -> None:
        self._registration = registration
        self._cell = cell
        self._bounds = bounds
        self._metadata = metadata
        self._appender = appender
        self._appends = appends

    # The stream itself.

    def create(self, request: DurableCreate, now_ms: int, effects: Effects) -> StreamReply:
        """Create the stream, or say whether the one that exists is the same."""
        number, spec = request.number, request.spec
        if self._registration.exists:
            return self._compare(number, spec)
        if self._registration.is_taken:
            return DurableRefused(number, RefusalReason.CONFLICT)
        if spec.fork is not None:
            return DurableRefused(number, RefusalReason.MISSING)
        return self._create(number, spec, now_ms, effects)

    def create_fork(self, request: CreateFork, now_ms: int, effects: Effects) -> StreamReply:
        """Create the stream as a fork; if it is not created, the source is told."""
        parent = request.parent
        reply: StreamReply
        if self._registration.exists:
            reply = self._compare(request.number, request.spec)
        elif self._registration.is_taken:
            reply = DurableRefused(request.number, RefusalReason.CONFLICT)
        else:
            first = self._bounds.tail
            parent = replace(parent, above=first if first > parent.point else 0)
            self._bounds.begin_at(0)
            self._bounds.start_at_fork(parent)
            reply = self._create(request.number, request.spec, now_ms, effects, request.prefix)
            if isinstance(reply, DurableCreated):
                effects.changes.append(self._metadata.durable.set_parent(parent))
                return reply
            self._bounds.begin_at(first)
        effects.posts += ((parent.cell, ReleaseFork(0, self._cell, parent.ref)),)
        return reply

    def _create(
        self,
        number: int,
        spec: CreateSpec,
        now_ms: int,
        effects: Effects,
        prefix: list[bytes] | None = None,
    ) -> StreamReply:
        changes, metadata = effects.changes, self._metadata
        bodies = (prefix or []) + spec.bodies
        if bodies:
            reply = self._appender.append(Append(number, bodies))
            if not isinstance(reply, Appended):
                return reply
        changes.append(metadata.create(now_ms, Settings(content_type=spec.content_type)))
        changes += metadata.durable.create(spec.lifetime or NO_EXPIRY, now_ms)
        if spec.closes:
            self._appends.close(None, changes)
        return self._created(number, is_new=True)

    def _compare(self, number: int, spec: CreateSpec) -> StreamReply:
        """The reply to a request to create a stream that exists. A field that a fork's request
        leaves to its source counts as equal."""
        metadata, durable = self._metadata, self._metadata.durable
        fork, parent = spec.fork, durable.parent
        is_same = spec.closes == durable.is_closed and (fork is None) == (parent is None)
        if fork is None or spec.content_type is not None:
            content_type = media_type(metadata.settings.content_type)
            is_same = is_same and media_type(spec.content_type) == content_type
        if fork is None or spec.lifetime is not None:
            lifetime = spec.lifetime or NO_EXPIRY
            is_same = is_same and _is_same_lifetime(lifetime, durable.lifetime)
        if fork is not None and parent is not None:
            is_same = is_same and fork.source == parent.source and fork.sub == parent.sub
            is_same = is_same and fork.at in (None, parent.at)
        return self._created(number) if is_same else DurableRefused(number, RefusalReason.CONFLICT)

    def _created(self, number: int, *, is_new: bool = False) -> DurableCreated:
        durable, content_type = self._metadata.durable, self._metadata.settings.content_type
        tail = self._bounds.tail
        return DurableCreated(
            number, is_new, tail, durable.is_closed, content_type, durable.lifetime
        )

    # Its forks.

    def fork(
        self, port: Port, request: Fork, now_ms: int, effects: Effects
    ) -> DurableRefused | None:
        """Store the number of a new fork, and forward the request to the fork, which replies."""
        bounds, metadata, durable = self._bounds, self._metadata, self._metadata.durable
        spec, number = request.spec, request.number
        if not metadata.matches(request.incarnation):
            return DurableRefused(number, RefusalReason.SOURCE_MISSING)
        content_type = metadata.settings.content_type
        if spec.content_type is None:
            spec = replace(spec, content_type=content_type)
        elif media_type(spec.content_type) != media_type(content_type):
            return DurableRefused(number, RefusalReason.CONFLICT)
        point = bounds.tail if request.point is None else request.point
        if not bounds.trim_point <= point <= bounds.tail and point != 0:
            return DurableRefused(number, RefusalReason.BEYOND_SOURCE)
        ref = max(now_ms, max(durable.forks, default=0) + 1)
        source = spec.fork
        chain = [] if durable.parent is None else durable.parent.chain
        parent = ForkParent(
            self._registration.name,
            self._cell,
            ref,
            point if source is None or source.at is None else source.at,
            0 if source is None else source.sub,
            point,
            bounds.last_id.ms,
            bounds.last_id.seq,
            bounds.last_timestamp,
            fork_chain(chain, self._cell, point),
        )
        effects.changes.append(durable.add_fork(ref, request.cell))
        if spec.lifetime is None:
            spec = replace(spec, lifetime=durable.lifetime)
        create = CreateFork(number, spec, parent, request.prefix)
        effects.forwards += ((request.cell, Batch(port, [create])),)
        return None

    def check_all(self, effects: Effects) -> None:
        """Ask all forks whether they exist."""
        forks = self._metadata.durable.forks
        checks = ((cell, CheckFork(0, self._cell, ref)) for ref, cell in forks.items())
        effects.posts += tuple(checks)

    def reply_check(self, check: CheckFork, effects: Effects) -> None:
        """Tell the source if this stream is no fork of that number."""
        parent = self._metadata.durable.parent
        is_fork = parent is not None and (parent.cell, parent.ref) == (check.cell, check.ref)
        if not is_fork or self._metadata.created is None:
            effects.posts += ((check.cell, ReleaseFork(0, self._cell, check.ref)),)

    def release(self, request: ReleaseFork, effects: Effects) -> bool:
        """Remove a fork that is gone. True: the stream is a tombstone without forks now."""
        durable = self._metadata.durable
        if durable.forks.get(request.ref) == request.cell:
            effects.changes.append(durable.remove_fork(request.ref))
        return durable.is_tombstone and not durable.forks

    def leave_parent(self, effects: Effects) -> None:
        """The stream is deleted: tell its source."""
        parent = self._metadata.durable.parent
        if parent is not None:
            effects.posts += ((parent.cell, ReleaseFork(0, self._cell, parent.ref)),)


def _is_same_lifetime(one: Lifetime, other: Lifetime) -> bool:
    """The same time may be written in several ways."""
    return (one.ttl_s, one.expires_ms) == (other.ttl_s, other.expires_ms)
