"""kill -9 of the node, and of who follows, at any time: states lose nothing and count nothing twice
(docs/reference/state.md; rows S13, T1, T2)."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.actors.errors import OutcomeUnknown, RequestError, StreamExists
from millpond.actors.state.fold import Fold
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.state.follower import FollowSettings, StateView
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.stream import Stream
from tests.node.processes import Serving, environment, serving

pytestmark = pytest.mark.anyio

KILLS = 6
KEYS = 40
LIFE_S = 0.3, 0.9
EVENTS_MIN = 80
"""Events that are acknowledged before a kill, also where the processors are busy: more than those
after which a state is saved."""
SETTLED_S = 30.0
OFTEN = {"MILLPOND_STATE_SAVE_EVERY": "60"}
QUIET = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")


@pytest.fixture
def anyio_backend() -> str:
    """A kill hits another process: the event library of this one does not matter."""
    return "asyncio"


class Writer:
    """Appends numbered events; `acked` are those that the node acknowledged."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._number = 0
        self.acked: list[bytes] = []

    def _next(self) -> bytes:
        self._number += 1
        if self._rng.random() < 0.02:
            return json.dumps(
                {"headers": {"control": "reset", "offset": str(self._number)}}
            ).encode()
        operation = "delete" if self._rng.random() < 0.2 else "update"
        event = {"type": "n", "key": str(self._rng.randrange(KEYS)), "value": self._number}
        return json.dumps(event | {"headers": {"operation": operation}}).encode()

    async def run(self, stream: Stream) -> None:
        """Until the node is gone."""
        while True:
            events = [self._next() for _ in range(self._rng.randrange(1, 8))]
            try:
                await stream.append(events)
            except (ConnectionLost, OutcomeUnknown):
                return
            self.acked += events


async def live_and_die(node: Serving, writer: Writer, kept: Path, rng: Random) -> list[int]:
    """Write and follow until the node is killed. Gives the positions that the follower had."""
    settings = FollowSettings(checkpoint=kept, every=20)
    enough = len(writer.acked) + EVENTS_MIN
    async with connect_streams(node.urls["tcp"], reconnect=False) as streams:
        stream = streams.stream("n")
        try:
            await stream.create()
        except StreamExists:
            pass
        view = StateView(stream, None, settings)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view.run)
            tasks.start_soon(writer.run, stream)
            await anyio.sleep(rng.uniform(*LIFE_S))
            while len(writer.acked) < enough:  # noqa: ASYNC110 (it may never be enough)
                await anyio.sleep(0.02)
            try:
                found = await stream.state.info()
            except (ConnectionLost, RequestError):
                found = None
            node.process.kill()
            node.process.wait()
        # Nothing is kept at the end: the follower was killed as well.
        return [view.position, found.position if found is not None else 0]


async def test_states_after_kills_are_those_of_the_stream(tmp_path: Path) -> None:
    rng = Random(11)
    writer, kept = Writer(rng), tmp_path / "n.state"
    words = ("--data", str(tmp_path / "node"), "--durability", "disk", *QUIET)
    for _ in range(KILLS):
        with serving(*words, env=environment(**OFTEN)) as node:
            before = len(writer.acked)
            with anyio.fail_after(SETTLED_S):
                follower, in_node = await live_and_die(node, writer, kept, rng)
            assert max(follower, in_node) > 0 and len(writer.acked) > before
    assert list((tmp_path / "node" / "states").iterdir()), "the node goes on from what it wrote"
    with serving(*words, env=environment(**OFTEN)) as node, anyio.fail_after(SETTLED_S):
        await check(node, writer, kept)


async def check(node: Serving, writer: Writer, kept: Path) -> None:
    async with connect_streams(node.urls["tcp"]) as streams:
        stream = streams.stream("n")
        whole = Fold()
        bodies = []
        async for record in stream.records():
            bodies.append(record.data)
            whole.take(record.sequence, record.data)
        rest = iter(bodies)
        assert all(any(body == each for body in rest) for each in writer.acked), "acked, and lost"
        expected = dict(whole.state.get_type("n"))
        assert {row.key: row.value async for row in stream.state.rows()} == expected
        info = await stream.state.info()
        assert (info.changes, info.resets) == (whole.stats.changes, whole.stats.resets)
        for settings in (FollowSettings(checkpoint=kept), FollowSettings(from_node=True)):
            view = StateView(stream, None, settings)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(view.run)
                await view.caught_up()
                tasks.cancel_scope.cancel()
            assert dict(view.get_type("n")) == expected
            if settings.checkpoint:
                assert view.stats == whole.stats and view.stats.repeated == 0
