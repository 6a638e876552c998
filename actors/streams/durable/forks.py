"""How streams are made for Durable Streams, and what forks and their sources say to each other.

A source notes a fork before it is made, and hears when it is gone. Where a stop comes in between,
the note stands for nothing; so a source that is to go asks all that it noted (`Claim`).
"""

from __future__ import annotations

from millpond.actors.messages import Batch, Port, StreamReply
from millpond.actors.runtime.cell import Effects
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.durable.append import DurableAppends
from millpond.actors.streams.durable.fork_log import fork_chain
from millpond.actors.streams.durable.messages import (
    NO_EXPIRY,
    BeginFork,
    Claim,
    CreateSpec,
    DurableCreate,
    DurableCreated,
    DurableRefused,
    Fork,
    ForkParent,
    Lifetime,
    RefusalReason,
    Release,
    media_type,
)
from millpond.actors.streams.messages import Append, Appended, Settings
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.moment import Moment


class Forks:
    """The side of one stream that makes it, and its forks. `is_taken`: there is something that
    excludes a stream of this name."""

    __slots__ = ("_appender", "_cell", "_entries", "_extent", "_moment", "_name", "_properties")

    def __init__(
        self,
        name: bytes,
        cell: bytes,
        extent: StreamBounds,
        properties: StreamMetadata,
        appender: StreamAppender,
        entries: DurableAppends,
        moment: Moment,
    ) -> None:
        self._name = name
        self._cell = cell
        self._extent = extent
        self._properties = properties
        self._appender = appender
        self._entries = entries
        self._moment = moment

    # The stream itself.

    def establish(
        self, request: DurableCreate, effects: Effects, *, is_there: bool, is_taken: bool
    ) -> StreamReply:
        """Make it, or say whether it is like this."""
        number, founding = request.number, request.founding
        if is_there:
            return self._compared(number, founding)
        if is_taken:
            return DurableRefused(number, RefusalReason.CONFLICT)
        if founding.fork is not None:
            return DurableRefused(number, RefusalReason.MISSING)
        return self._make(number, founding, founding.lifetime or NO_EXPIRY, effects)

    def begin_fork(
        self, request: BeginFork, effects: Effects, *, is_there: bool, is_taken: bool
    ) -> StreamReply:
        """Make it as a fork; whatever else comes of it, the source hears that it is none."""
        parentage = request.parentage
        reply: StreamReply
        if is_there:
            reply = self._compared(request.number, request.founding)
        elif is_taken:
            reply = DurableRefused(request.number, RefusalReason.CONFLICT)
        else:
            self._extent.descend(parentage)
            lifetime = request.founding.lifetime or NO_EXPIRY
            reply = self._make(request.number, request.founding, lifetime, effects, request.prefix)
            if isinstance(reply, DurableCreated):
                effects.changes.append(self._properties.durable.descend(parentage))
                return reply
            self._extent.drop()
        effects.posts += ((parentage.cell, Release(0, self._cell, parentage.ref)),)
        return reply

    def _make(
        self,
        number: int,
        founding: CreateSpec,
        lifetime: Lifetime,
        effects: Effects,
        prefix: list[bytes] | None = None,
    ) -> StreamReply:
        changes, now_ms = effects.changes, self._moment.now_ms
        bodies = (prefix or []) + founding.bodies
        if bodies:
            reply = self._appender.append(Append(number, bodies))
            if not isinstance(reply, Appended):
                return reply
        changes.append(
            self._properties.create(now_ms, Settings(content_type=founding.content_type))
        )
        changes += self._properties.durable.begin(lifetime, now_ms)
        if founding.closes:
            self._entries.close(None, changes)
        return self._established(number, is_new=True)

    def _compared(self, number: int, founding: CreateSpec) -> StreamReply:
        """Is the stream that is there like this? What is left to the source is like anything."""
        properties, notes = self._properties, self._properties.durable
        fork, parentage = founding.fork, notes.parentage
        is_same = founding.closes == notes.is_closed and (fork is None) == (parentage is None)
        if fork is None or founding.content_type is not None:
            mine = media_type(properties.settings.content_type)
            is_same = is_same and media_type(founding.content_type) == mine
        if fork is None or founding.lifetime is not None:
            is_same = is_same and _alike(founding.lifetime or NO_EXPIRY, notes.lifetime)
        if fork is not None and parentage is not None:
            is_same = is_same and fork.source == parentage.source and fork.sub == parentage.sub
            is_same = is_same and fork.at in (None, parentage.at)
        return (
            self._established(number) if is_same else DurableRefused(number, RefusalReason.CONFLICT)
        )

    def _established(self, number: int, *, is_new: bool = False) -> DurableCreated:
        properties, notes = self._properties, self._properties.durable
        content_type = properties.settings.content_type
        tail = self._extent.tail
        return DurableCreated(number, is_new, tail, notes.is_closed, content_type, notes.lifetime)

    # Its forks.

    def fork(self, port: Port, request: Fork, effects: Effects) -> StreamReply | None:
        """Note a fork of this stream, which is there, and pass on to it what it is; it answers."""
        extent, properties = self._extent, self._properties
        notes, founding, number = properties.durable, request.founding, request.number
        if not properties.is_it(request.incarnation):
            return DurableRefused(number, RefusalReason.SOURCE_MISSING)
        mine = properties.settings.content_type
        if founding.content_type is None:
            founding = _with_type(founding, mine)
        elif media_type(founding.content_type) != media_type(mine):
            return DurableRefused(number, RefusalReason.CONFLICT)
        point = extent.tail if request.point is None else request.point
        if not extent.trim_point <= point <= extent.tail and point != 0:
            return DurableRefused(number, RefusalReason.BEYOND)
        ref = max(self._moment.now_ms, max(notes.refs, default=0) + 1)
        asked = founding.fork
        parentage = ForkParent(
            self._name,
            self._cell,
            ref,
            point if asked is None or asked.at is None else asked.at,
            0 if asked is None else asked.sub,
            point,
            extent.last_id.ms,
            extent.last_id.seq,
            extent.last_timestamp,
            self.lineage_at(point),
        )
        effects.changes.append(notes.refer(ref, request.cell))
        if founding.lifetime is None:
            founding = _with_lifetime(founding, notes.lifetime)
        begin = BeginFork(number, founding, parentage, request.prefix)
        effects.forwards += ((request.cell, Batch(port, [begin])),)
        return None

    def lineage_at(self, point: int) -> list[tuple[bytes, int]]:
        """Where the records of this stream below `point` are."""
        parentage = self._properties.durable.parentage
        above = [] if parentage is None else parentage.lineage
        return fork_chain(above, self._cell, point)

    def claim_all(self, effects: Effects) -> None:
        """Ask all forks that are noted whether they are there."""
        refs = self._properties.durable.refs
        effects.posts += tuple((cell, Claim(0, self._cell, ref)) for ref, cell in refs.items())

    def answer_claim(self, claim: Claim, effects: Effects) -> None:
        """Say so, if this is no fork of that number."""
        parentage = self._properties.durable.parentage
        is_one = parentage is not None and (parentage.cell, parentage.ref) == (
            claim.cell,
            claim.ref,
        )
        if not is_one or self._properties.created is None:
            effects.posts += ((claim.cell, Release(0, self._cell, claim.ref)),)

    def release(self, request: Release, effects: Effects) -> bool:
        """A fork is gone. Is there none left of a stream that is buried?"""
        notes = self._properties.durable
        if notes.refs.get(request.ref) == request.cell:
            effects.changes.append(notes.release(request.ref))
        return notes.is_tombstone and not notes.refs

    def part(self, effects: Effects) -> None:
        """The stream goes: its source hears of it."""
        parentage = self._properties.durable.parentage
        if parentage is not None:
            gone = Release(0, self._cell, parentage.ref)
            effects.posts += ((parentage.cell, gone),)


def _alike(asked: Lifetime, mine: Lifetime) -> bool:
    """The same time may be written in several ways."""
    return (asked.ttl_s, asked.expires_ms) == (mine.ttl_s, mine.expires_ms)


def _with_type(founding: CreateSpec, content_type: bytes | None) -> CreateSpec:
    return CreateSpec(
        content_type, founding.lifetime, founding.closes, founding.bodies, founding.fork
    )


def _with_lifetime(founding: CreateSpec, lifetime: Lifetime) -> CreateSpec:
    return CreateSpec(
        founding.content_type, lifetime, founding.closes, founding.bodies, founding.fork
    )
