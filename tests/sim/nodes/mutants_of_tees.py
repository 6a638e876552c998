"""Mistakes in how channels feed streams; found by the seeds of such worlds (feeding.py)."""

from __future__ import annotations

from tests.sim.nodes.mutants import Mutant

TEE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "store hears at once",
        "tees",
        "actors/channels/tee.py",
        "            if type(change) is MessageRemoved and change.id in self._rows:",
        "            if type(change) is MessageRemoved and change.id in self._withheld:",
    ),
    Mutant(
        "mark not written",
        "tees",
        "actors/streams/stream.py",
        "        effects.changes.append(mark)",
        "        pass",
    ),
    Mutant(
        "what it has taken again",
        "tees",
        "actors/streams/stream.py",
        "        fresh = [body for each, body in pairs if each > confirmed_id]",
        "        fresh = [body for each, body in pairs if each > request.behind]",
    ),
    Mutant(
        "what was held not poured",
        "tees",
        "actors/channels/tee.py",
        "        self.add(rows)\n        self._is_synced",
        "        self._is_synced",
    ),
    Mutant(
        "refused for good",
        "tees",
        "actors/channels/tee.py",
        "        self._in_flight_bytes = 0\n        self._unsent = deque(self._rows.values())",
        "        self._in_flight_bytes = 0\n        self._unsent = deque()",
    ),
    Mutant(
        "a gap taken",
        "tees",
        "actors/streams/stream.py",
        "        if confirmed_id < request.behind:",
        "        if confirmed_id < 0:",
    ),
    Mutant(
        "no patience",
        "tees",
        "actors/channels/tee.py",
        "now - self._refused_at >= GIVE_UP_AFTER_S",
        "now - self._refused_at >= 0.0",
    ),
    Mutant(
        "a slice half poured",
        "tees",
        "actors/channels/tee.py",
        "        bodies = tuple(row.data for row in rows)",
        "        bodies = tuple(row.data for row in rows[:1])\n        ids = ids[-1:]",
    ),
)
