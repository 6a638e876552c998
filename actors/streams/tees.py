"""What channels pour into a stream: each message once, in the order of its channel.

The stream notes the last id of each channel that feeds it, in one piece with the records.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import StreamFailed, TeeAppend, TeeAppended
from millpond.actors.store.changes import Change
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.messages import Append
from millpond.actors.streams.tee_notes import TeeProgress


def take(
    pour: TeeAppend,
    notes: TeeProgress,
    appender: StreamAppender,
    now_ms: int,
    changes: list[Change],
) -> TeeAppended:
    """Append what the stream has not had, all or none."""
    floor, number = notes.floor(pour.channel, pour.run), pour.number
    if floor < pour.behind:
        return TeeAppended(number, code=Code.SEQUENCE_MISMATCH)
    fresh = [body for each, body in zip(pour.ids, pour.bodies, strict=True) if each > floor]
    if not fresh:
        return TeeAppended(number, floor)
    if not notes.make_room(pour.channel, now_ms, changes):
        return TeeAppended(number, code=Code.BUFFER_FULL)
    reply = appender.append(Append(0, fresh))
    if isinstance(reply, StreamFailed):
        return TeeAppended(number, code=reply.code)
    changes.append(notes.advance(pour.channel, pour.run, number, int(pour.until * 1000)))
    return TeeAppended(number, number)
