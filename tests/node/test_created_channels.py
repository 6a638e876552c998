"""Created channels: after a loss of power, a kill, and damage; and the limit of their catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond import sync
from millpond.actors.errors import ChannelExists, Code, UnknownChannel
from millpond.actors.messages import CatalogChannel, ChannelChanged, Failed, Mode
from millpond.actors.queue_settings import QueueTable
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams.catalogs.channels import CHANNELS_MAX, ChannelCatalog
from millpond.node.testing.world import World
from tests.node.processes import serving


@pytest.mark.anyio
async def test_what_was_created_purged_and_deleted_stays_so_without_power() -> None:
    """No caller waits for the removal of one message, but for that of all."""
    async with World() as world:
        node = await world.node("a")
        async with node.connect("work") as channel:
            channels = channel.channels
            await channels.create("work", "pair")
            await channels.create("other", "fanout")
            for name in ("kept", "purged", "deleted"):
                async with node.connect(name, role="producer") as sender:
                    await sender.put(b"x")
            await channels.create("deleted", "pair")
            assert await channels.purge("purged") == 1
            assert await channels.delete("deleted") == 1
            await node.crash(power=True)
        await node.start()
        async with node.connect("work") as channel:
            channels = channel.channels
            assert (await channels.describe("other")).mode == "fanout"
            assert (await channels.describe("kept")).messages == 1
            assert (await channels.describe("purged")).messages == 0
            with pytest.raises(UnknownChannel):
                await channels.describe("deleted")
            with pytest.raises(ChannelExists):
                await channels.create("other", "fanout")


def test_what_was_created_and_purged_stays_so_after_a_kill(tmp_path: Path) -> None:
    words = ("--data", str(tmp_path / "data"))
    with serving(*words) as node:
        with sync.connect_channels(node.urls["tcp"]) as channels:
            channels.create("jobs", "queue")
            channels.create("news", "fanout")
            with sync.connect(node.urls["tcp"], "jobs", role="producer") as sender:
                for _ in range(10):
                    sender.put(b"x")
            assert channels.purge("jobs") == 10
            node.process.kill()
            node.process.wait()
    with serving(*words) as node, sync.connect_channels(node.urls["tcp"]) as channels:
        found = {each.name: each for each in channels.list()}
        assert (found[b"jobs"].mode, found[b"jobs"].created) == ("queue", True)
        assert (found[b"news"].mode, found[b"news"].created) == ("fanout", True)
        assert found[b"jobs"].messages == 0


def test_a_catalog_has_an_entry_for_10_000_channels() -> None:
    created: dict[bytes, Mode] = {}
    catalog = ChannelCatalog(LogSnapshot(), created, QueueTable())
    for number in range(CHANNELS_MAX):
        entry = CatalogChannel(b"c%d" % number, Mode.QUEUE, ChannelChanged())
        assert catalog.answer(None, entry, 0.0, Effects()) is entry.reply
    effects = Effects()
    more = CatalogChannel(b"more", Mode.QUEUE, ChannelChanged())
    assert catalog.answer(None, more, 0.0, effects) == Failed(more, Code.BUFFER_FULL)
    again = CatalogChannel(b"c7", Mode.QUEUE, ChannelChanged())
    assert catalog.answer(None, again, 0.0, effects) == Failed(again, Code.CHANNEL_EXISTS)
    assert not effects.changes and len(created) == CHANNELS_MAX
    removed = CatalogChannel(b"c7", None, ChannelChanged())
    assert catalog.answer(None, removed, 0.0, effects) is removed.reply
    assert catalog.answer(None, more, 0.0, effects) is more.reply
    assert len(effects.changes) == 2
