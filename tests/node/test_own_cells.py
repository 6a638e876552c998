"""Cells of the node itself under rules whose patterns match every name: no rule is for them."""

from __future__ import annotations

import pytest

from millpond.actors.messages import Durability, Mode
from millpond.actors.streams.names import BASINS, CHANNELS, TOKENS, TOPICS, basin_cell, stream_cell
from millpond.node.config_rules import ChannelRule, StreamRule
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.testing.world import World

pytestmark = pytest.mark.anyio

EVERY_STREAM = StreamRule.parse("*=durability=memory,age=1,bytes=1")
EVERY_CHANNEL = ChannelRule.parse("*=queue,ttl=1,attempts=1,durability=memory")
PEER = bytes(range(32))


async def test_no_rule_for_streams_is_for_catalogs() -> None:
    """A topic is there after a restart, with the offsets of a stream whose rule keeps it."""
    rules = (StreamRule.parse("orders/*=durability=disk"), EVERY_STREAM)
    async with World() as world:
        node = await world.node("a", streams=rules)
        for cell in (TOPICS, BASINS, TOKENS, CHANNELS):
            assert node.node.services.durability(cell) is Durability.DISK
        for cell in (stream_cell(b"x"), basin_cell(b"other", b"x")):
            assert node.node.services.durability(cell) is Durability.MEMORY
        async with node.streams() as streams:
            await streams.create_topic("orders", 2)
            await streams.stream("orders/1").append(b"kept")
        await node.restart(power=True)
        async with node.streams() as streams:
            assert [each async for each in streams.topics()] == [(b"orders", 2)]
            assert (await streams.stream("orders/1").info()).tail == 1


async def test_no_rule_for_channels_is_for_mailboxes() -> None:
    """A message to a peer that is away is delivered although the node lost its power."""
    async with World() as world:
        alice = await world.node("alice", channels=(EVERY_CHANNEL,))
        bob = await world.node("bob")
        alice.add_peer(bob)
        bob.add_peer(alice, dials=False)
        await bob.stop()
        await alice.send(bob, "notes", b"hello")
        await alice.restart(power=True)
        await bob.start()
        assert (await bob.read("notes")).data == b"hello"


async def test_a_rule_for_a_channel_is_for_its_dead_letters() -> None:
    """Their promise is that of the messages that they were, whatever a later rule says."""
    rules = (ChannelRule.parse("jobs/mail=queue"), EVERY_CHANNEL)
    async with World() as world:
        node = await world.node("a", channels=rules)
        promise = node.node.services.durability
        assert promise(b"jobs/mail") is promise(b"jobs/mail!dead") is Durability.DISK
        assert promise(b"other") is promise(b"other!dead") is Durability.MEMORY


async def test_prekeys_and_mail_have_the_modes_that_the_node_gives_them() -> None:
    async with World() as world:
        node = await world.node("a", channels=(EVERY_CHANNEL,))
        for suffix in (b"", b"!dead", b"!keys"):
            settings = node.node._channel_settings(mailbox_of(PEER) + suffix)
            assert settings.mode is None and settings.delivery.attempts_max > 1
        assert node.node._channel_settings(b"mail/box").mode is Mode.QUEUE
