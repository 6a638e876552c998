"""Appends of sessions: behind one that was not done, nothing of its session is done."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Port, StreamFailed
from millpond.actors.streams.messages import Appended, SessionAppend


class AppendSessions:
    """How far each session got: its latest append by number, or why nothing of it is done any more.

    A stream that is built anew, as after a failed commit, knows none of them: then only those go on
    that had heard of all their appends.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[Port, int | Code] = {}

    def refusal(self, port: Port, request: SessionAppend) -> Code | None:
        """Why this append is not done; None: nothing that it stands behind is in its way."""
        latest = self._latest.get(port)
        if isinstance(latest, Code):
            return latest
        if request.behind is not None and request.behind != latest:
            return Code.STORAGE_FAILED
        return None

    def note(self, port: Port, reply: Appended | StreamFailed) -> None:
        """What became of an append that is the session's latest now."""
        self._latest[port] = reply.code if isinstance(reply, StreamFailed) else reply.number

    def forget(self, port: Port) -> None:
        """The session is over."""
        self._latest.pop(port, None)
