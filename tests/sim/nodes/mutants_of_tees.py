"""Mistakes in how channels feed streams; found by the seeds of such worlds (feeding.py)."""

from __future__ import annotations

from tests.sim.nodes.mutants import Mutant

TEE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "store hears at once",
        "tees",
        "actors/channels/tee.py",
        "            if type(change) is Gone and change.id in self._rows:",
        "            if type(change) is Gone and change.id in self._gone:",
    ),
    Mutant(
        "mark not written",
        "tees",
        "actors/streams/tees.py",
        "    changes.append(notes.advance(pour.channel, pour.run, number, int(pour.until * 1000)))",
        "    notes.advance(pour.channel, pour.run, number, int(pour.until * 1000))",
    ),
    Mutant(
        "what it has taken again",
        "tees",
        "actors/streams/tees.py",
        "zip(pour.ids, pour.bodies, strict=True) if each > floor]",
        "zip(pour.ids, pour.bodies, strict=True) if each > pour.behind]",
    ),
    Mutant(
        "what was held not poured",
        "tees",
        "actors/channels/tee.py",
        "        self.add(rows)\n        self._is_sure",
        "        self._is_sure",
    ),
    Mutant(
        "refused for good",
        "tees",
        "actors/channels/tee.py",
        "        self._flying_bytes = 0\n        self._waiting = deque(self._rows.values())",
        "        self._flying_bytes = 0\n        self._waiting = deque()",
    ),
    Mutant(
        "a gap taken",
        "tees",
        "actors/streams/tees.py",
        "    if floor < pour.behind:",
        "    if floor < 0:",
    ),
    Mutant(
        "no patience",
        "tees",
        "actors/channels/tee.py",
        "now - self._refused_at >= PATIENCE_S",
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
