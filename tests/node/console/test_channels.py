"""Requests of the console about channels: rows by name, consumers, messages without their data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from millpond import Config, Node, connect
from millpond.actors.errors import Malformed, NotAllowed, UnknownChannel
from millpond.actors.messages import Mode
from millpond.node.client.probe import PROBE
from millpond.node.config import LISTENERS, ChannelRule
from millpond.node.peers.identity import Identity

EXPORT, LIST, MEMBERS, RIGHTS = 2, 6, 18, 25
OFF = {**dict.fromkeys(LISTENERS, "off"), "p2p": "127.0.0.1:0", "drain_timeout_s": 0.2}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node(Config(channels=(ChannelRule("news", Mode.FANOUT),), **OFF)) as running:  # type: ignore[arg-type]
        yield running


def url(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def test_rows_by_name_have_what_rates_are_made_of(node: Node) -> None:
    async with connect(url(node), "b") as channel, connect(url(node), PROBE, window=0) as probe:
        first = await channel.put(b"x")
        await channel.put(b"y")
        asked = {"names": [b"b", b"nothing", b"a" * 250]}
        (row,) = (await probe.admin(LIST, asked))["page"]
        by_page = await probe.admin(LIST, {"names": [b"b"], "after": b"b"})
    assert (row["name"], row["kept"], row["acked"], row["oldest"]) == (b"b", 2, 0, first.id)
    assert by_page["page"] == [] and not by_page["more"]


async def test_pages_of_matching_names_are_in_order_and_whole(node: Node) -> None:
    async with connect(url(node), PROBE, window=0) as probe:
        for number in range(25):
            async with connect(url(node), f"box/{number:02}", role="producer") as box:
                await box.put(b"x")
        seen, after, more = list[bytes](), b"", True
        while more:
            asked = {"patterns": [b"*ox/?[0-4]"], "after": after, "limit": 3}
            page = await probe.admin(LIST, asked)
            seen += [row["name"] for row in page["page"]]
            after, more = seen[-1], page["more"]
    assert seen == [b"box/%02d" % number for number in range(25) if number % 10 < 5]


async def test_exports_cut_data_to_a_preview_and_count_messages(node: Node) -> None:
    async with connect(url(node), "b", window=0) as channel:
        for number in range(5):
            await channel.put(b"%d" % number * 1000)
        asked = {"channel": b"b", "limit": 2, "preview": 3}
        page = await channel.admin(EXPORT, asked)
        rest = await channel.admin(
            EXPORT, asked | {"after": page["messages"][-1]["id"], "limit": 9}
        )
    assert [(each["data"], each["size"]) for each in page["messages"]] == [
        (b"000", 1000),
        (b"111", 1000),
    ]
    assert page["more"] and not rest["more"] and len(rest["messages"]) == 3


async def test_members_are_consumers_and_subscribers_with_their_lag(node: Node) -> None:
    identity = Identity(bytes(range(32)))
    async with connect(url(node), PROBE, window=0) as probe:
        async with connect(url(node), "news", identity=identity, role="consumer", window=4):
            pass  # a subscriber that is away
        async with (
            connect(url(node), "news", role="consumer", window=2) as reader,
            connect(url(node), "news", role="producer") as writer,
        ):
            for number in range(3):
                await writer.put(b"%d" % number)
            message = await anext(aiter(reader))
            await message.ack()
            members = await probe.admin(MEMBERS, {"channel": b"news"})
            with anyio.fail_after(20):  # the ack came by another connection
                while members["consumers"][0]["lag"] != 2:
                    await anyio.sleep(0.01)
                    members = await probe.admin(MEMBERS, {"channel": b"news"})
        with pytest.raises(UnknownChannel):
            await probe.admin(MEMBERS, {"channel": b"nothing"})
    receiving, putting = members["consumers"]
    assert (receiving["role"], receiving["receives"], receiving["window"]) == ("consumer", True, 2)
    assert receiving["peer"].startswith("127.0.0.1:")
    assert (putting["role"], putting["receives"], putting["lag"]) == ("producer", False, 0)
    (away,) = members["subscribers"]
    assert (away["identity"], away["connections"], away["lag"]) == (identity.public, 0, 3)
    assert not members["more"]


async def test_channels_that_a_token_may_not_list_are_not_there(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("some-token-of-somebody all box/1*\n")
    tokens.chmod(0o600)
    config = Config(token_file=str(tokens), **OFF)  # type: ignore[arg-type]
    async with Node(config) as running:
        node_url, token = url(running), "some-token-of-somebody"
        cookie = running.console.login.exchange(running.console.login.new_link())
        for number in range(30):
            name = f"box/{number}"
            async with connect(node_url, name, role="producer", token=cookie) as box:
                await box.put(b"x")
        async with connect(node_url, "box/1", window=0, token=token) as channel:
            page = await channel.admin(LIST, {"patterns": [b"*"], "limit": 10})
            rest = await channel.admin(
                LIST, {"patterns": [b"*"], "after": page["page"][-1]["name"]}
            )
            with pytest.raises(NotAllowed):
                await channel.admin(MEMBERS, {"channel": b"box/2"})
    names = [row["name"] for row in (*page["page"], *rest["page"])]
    assert names == sorted([b"box/1", *(b"box/%d" % number for number in range(10, 20))])
    assert page["more"] and not rest["more"]


RULES = """\
anyone put,get allowed/*
anyone list
key:{id} admin,operator mine
"""


async def test_a_client_is_told_its_rights_in_each_channel(tmp_path: Path) -> None:
    identity = Identity(bytes(range(32)))
    rules = tmp_path / "access.conf"
    rules.write_text(RULES.format(id=identity.id))
    rules.chmod(0o600)
    asked = {"channels": [b"allowed/1", b"other", b"mine"]}
    async with Node(Config(access_file=str(rules), **OFF)) as running:  # type: ignore[arg-type]
        async with connect(url(running), PROBE, window=0) as probe:
            anyone = (await probe.admin(RIGHTS, asked))["rights"]
            with pytest.raises(Malformed):
                await probe.admin(RIGHTS, {"channels": [b"x"] * 101})
        async with connect(url(running), PROBE, window=0, identity=identity) as probe:
            known = (await probe.admin(RIGHTS, asked))["rights"]
    assert anyone == [["put", "get", "list"], ["list"], ["list"]]
    assert known == [["put", "get", "list"], ["list"], ["list", "admin", "operator"]]
