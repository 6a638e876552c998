"""The dialogue of `millpond chat` with a node, whatever is shown and typed it on
(docs/guides/chat.md)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.chat.records import Kind, Record, conversation_stream, encode_record
from millpond.node.cli.chat import dialogue as dialogue_module
from millpond.node.cli.chat.dialogue import Dialogue, Options
from millpond.node.client.connect import connect
from millpond.node.client.events import Event, Retrying
from millpond.node.client.probe import PROBE
from millpond.node.peers.address_book import Trust
from tests.node.chat.chat_client import couple, history, say
from tests.node.chat.groups.group_nodes import accept, create, until_members
from tests.node.outbox.peer_nodes import PeerNode, until

pytestmark = pytest.mark.anyio

TALK = Options(history=20, stays=False, wait_s=0.0, as_json=False)


class FakeScreen:
    """A screen whose owner types when it is time to."""

    is_interactive = True

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.prompted = ""
        self.offered: list[str] = []
        self.taken = 0
        self.is_left = False
        self.line = ""
        self._keys, self._typed = anyio.create_memory_object_stream[str](10)

    async def show(self, lines: Sequence[str]) -> None:
        await anyio.lowlevel.checkpoint()
        self.shown += lines

    async def prompt(self, text: str) -> None:
        self.prompted = text

    async def typed(self) -> AsyncGenerator[str]:
        try:
            with self._keys, self._typed:
                async for line in self._typed:
                    self.taken += 1
                    yield line
        finally:
            self.is_left = True

    def set_completions(self, lines: Sequence[str]) -> None:
        self.offered = list(lines)

    def draft(self) -> str:
        return self.line

    async def redraw_on_signals(self) -> None:
        """There is nothing to tend."""

    def type(self, line: str) -> None:
        self._keys.send_nowait(line)

    def said(self, text: str) -> list[str]:
        return [line for line in self.shown if text in line]


class SlowScreen(FakeScreen):
    """Takes its time over the first line about the peer `name`, and tells when it does."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.is_turning = anyio.Event()
        self.goes_on = anyio.Event()
        self._name = name

    async def show(self, lines: Sequence[str]) -> None:
        if any(line.startswith(f"--- {self._name} ") for line in lines):
            self.is_turning.set()
            await self.goes_on.wait()
        await super().show(lines)


class LateScreen(FakeScreen):
    """Hears of an attempt to connect when the node has answered again already."""

    def __init__(self, notices: list[str]) -> None:
        super().__init__()
        self._notices = notices

    def set_completions(self, lines: Sequence[str]) -> None:
        super().set_completions(lines)
        if self.said("not connected") and not self.said("connected again"):
            self._notices.append("not connected (lost); trying again in 0.2 s")


async def dialogue(node: PeerNode, peer: str, screen: FakeScreen) -> None:
    """As somebody on the machine of the node, who may do everything."""
    async with connect(node.url, PROBE, role="consumer") as channel:
        await Dialogue(channel, screen, TALK, []).run(peer)


async def test_typing_goes_on_while_the_node_is_away(tmp_path: Path) -> None:
    """Lines typed during an outage are sent once, in order, and the outage is reported once."""
    alice, bob = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    screen, notices = FakeScreen(), list[str]()

    def hear(event: Event) -> None:
        if isinstance(event, Retrying):
            notices.append(f"not connected (lost); trying again in {event.delay_s:.1f} s")

    async def talk() -> None:
        async with connect(alice.url, PROBE, role="consumer", on_event=hear) as channel:
            await Dialogue(channel, screen, TALK, notices).run("bob")

    async with anyio.create_task_group() as tasks:
        async with alice.node():
            tasks.start_soon(talk)
            await until(lambda: screen.prompted == "bob> ")
        for line in ("one", "two", "/nonsense", "three"):
            screen.type(line)
        await until(lambda: screen.taken == 4)
        await until(lambda: bool(screen.said("not kept yet")))
        async with alice.node() as here:
            await until(lambda: bool(screen.said("connected again") and screen.said("you: three")))
            said = [each.text for each in await history(here, bob) if each.kind is Kind.OUT]
            assert said == ["one", "two", "three"]
            screen.type("/quit")
            await until(lambda: screen.is_left)
    assert len(screen.said("not connected")) == len(screen.said("connected again")) == 1
    assert len(screen.said("not kept yet")) == 1


async def test_a_late_notice_is_of_the_outage_that_is_over(tmp_path: Path) -> None:
    alice, _ = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    notices = list[str]()
    screen = LateScreen(notices)
    async with alice.node(), anyio.create_task_group() as tasks:
        async with connect(alice.url, PROBE, role="consumer") as channel:
            tasks.start_soon(Dialogue(channel, screen, TALK, notices).run, "bob")
            await until(lambda: screen.prompted == "bob> ")
            notices.append("not connected (lost); trying again in 0.1 s")
            await until(lambda: bool(screen.said("connected again")))
            await until(lambda: not notices)
            screen.type("/quit")
            await until(lambda: screen.is_left)
    assert screen.said("connect") == ["--- not connected (lost)", "--- connected again"]


async def test_tab_completes_commands_and_with_whom_one_may_talk(tmp_path: Path) -> None:
    alice, _ = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    carol = PeerNode(tmp_path, "carol")
    screen = FakeScreen()
    async with alice.node(), anyio.create_task_group() as tasks:
        tasks.start_soon(dialogue, alice, "bob", screen)
        await until(lambda: "/to bob" in screen.offered)
        assert {"/list", "/who", "/help", "/quit"} < set(screen.offered)
        alice.knows(carol)
        await until(lambda: "/to carol" in screen.offered)
        screen.type("/quit")


async def test_nobody_speaks_with_the_voice_of_who_is_turned_to(tmp_path: Path) -> None:
    """Bob writes while Alice turns from him to Carol: that is not shown as Carol's."""
    alice, bob = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    carol = PeerNode(tmp_path, "carol")
    alice.knows(carol)
    screen = SlowScreen("carol")
    async with alice.node(), bob.node() as bobs, anyio.create_task_group() as tasks:
        tasks.start_soon(dialogue, alice, "bob", screen)
        await say(bobs, "alice", "first")
        await until(lambda: bool(screen.said("bob: first")))
        screen.type("/to carol")
        await screen.is_turning.wait()
        await say(bobs, "alice", "while she turns")
        await anyio.sleep(0.5)
        screen.goes_on.set()
        await until(lambda: screen.prompted == "carol> ")
        screen.type("/to bob")
        await until(lambda: bool(screen.said("bob: while she turns")))
        assert not screen.said("carol: ")
        screen.type("/quit")


async def test_a_history_of_changes_alone_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer can write as many as it likes."""
    alice, bob = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    monkeypatch.setattr(dialogue_module, "UNREAD_RECORDS_MAX", 50)
    first = Record(1, Kind.IN, 1, "1" * 32, "the first", None, 1, "bbbbbbbb", 1)
    told = {"action": "react", "about": first.uuid}
    changes = (
        Record(1, Kind.IN, 1, f"{n:032x}", "ok", None, n, "bbbbbbbb", 1, **told)  # type: ignore[arg-type]
        for n in range(2, 300)
    )
    async with alice.node() as here:
        stream = here.peer_services._local_stream(conversation_stream(bob.public))
        await stream.create(2**26)
        await stream.append([encode_record(each) for each in (first, *changes)])
    for count, is_shown in ((1, False), (20, True)):
        screen = FakeScreen()
        async with alice.node(), anyio.create_task_group() as tasks:
            async with connect(alice.url, PROBE, role="consumer") as channel:
                options = msgspec.structs.replace(TALK, history=count)
                tasks.start_soon(Dialogue(channel, screen, options, []).run, "bob")
                await until(lambda: screen.prompted == "bob> ")  # noqa: B023
                screen.type("/quit")
                await until(lambda: screen.is_left)  # noqa: B023
        assert bool(screen.said("bob: the first")) is is_shown


async def test_a_file_goes_to_a_group_and_is_saved_by_a_member(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    source = tmp_path / "fish.png"
    source.write_bytes(b"fish" * 50_000)
    for each in (alice, bob):
        (each.folder / ACCESS_FILE).unlink()
    async with alice.node() as here, bob.node() as there:
        group = await create(here, "bob")
        await accept(there, group)
        await until_members(2, group, here, there)
        sending, receiving = FakeScreen(), FakeScreen()
        async with anyio.create_task_group() as tasks:
            for me, screen in ((alice, sending), (bob, receiving)):
                tasks.start_soon(dialogue, me, "pond", screen)
            sending.type(f"/file {source}")
            await until(lambda: bool(sending.said("fish.png: received by 1 of 1 member")))
            await until(lambda: bool(receiving.said("fish.png: complete: /save saves it")))
            assert receiving.said("alice: file: fish.png (200.0 kB)")
            receiving.type(f"/save {tmp_path / 'saved'}")
            await until(lambda: bool(receiving.said("--- saved:")))
            receiving.type("/search fish")
            await until(lambda: bool(receiving.said("alice in pond: file: fish.png")))
            sending.type("/quit")
            receiving.type("/quit")
    assert (tmp_path / "saved").read_bytes() == source.read_bytes()


async def test_files_are_sent_and_saved_and_nothing_is_overwritten(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    source, target = tmp_path / "cat.png", tmp_path / "saved"
    source.write_bytes(b"png" * 100_000)
    target.mkdir()
    (target / "cat.png").write_text("mine")
    for each in (alice, bob):
        (each.folder / ACCESS_FILE).unlink()
    async with alice.node(), bob.node():
        sending, receiving = FakeScreen(), FakeScreen()
        async with anyio.create_task_group() as tasks:
            for me, peer, screen in ((alice, "bob", sending), (bob, "alice", receiving)):
                tasks.start_soon(dialogue, me, peer, screen)
            sending.type(f"/file {tmp_path / 'nothing'}")
            await until(lambda: bool(sending.said("there is no such file")))
            receiving.type("/save")
            await until(lambda: bool(receiving.said("there is no such file of alice here")))
            sending.type(f"/file {source}")
            await until(lambda: bool(sending.said("cat.png: received by the peer")))
            await until(lambda: bool(receiving.said("cat.png: complete: /save saves it")))
            receiving.type(f"/save {target}")
            await until(lambda: bool(receiving.said("--- saved:")))
            receiving.type(f"/save {target / 'other'}")
            await until(lambda: len(receiving.said("--- saved:")) == 2)
            receiving.type(f"/save {target / 'no' / 'folder'}")
            await until(lambda: bool(receiving.said("not saved:")))
            sending.type("/quit")
            receiving.type("/quit")
        assert receiving.said("file: cat.png (300.0 kB)")
    assert (target / "cat.png").read_text() == "mine"
    assert (target / "cat (1).png").read_bytes() == source.read_bytes()
    assert (target / "other").read_bytes() == source.read_bytes()
    assert len(list(target.iterdir())) == 3


@pytest.mark.together("mdns")  # else they find each other
async def test_a_node_on_this_network_is_listed_and_added_by_its_number(tmp_path: Path) -> None:
    near: dict[str, Any] = {"discover": True, "discover_interfaces": ("127.0.0.1",)}
    alice = PeerNode(tmp_path, "alice")
    carol, dave = PeerNode(tmp_path, "carol", **near), PeerNode(tmp_path, "dave", **near)
    (carol.folder / ACCESS_FILE).unlink()
    carol.knows(alice)
    screen = FakeScreen()
    async with carol.node() as here, dave.node(), anyio.create_task_group() as tasks:
        tasks.start_soon(dialogue, carol, "alice", screen)
        discovery = here.peer_services.discovery
        assert discovery is not None
        await until(lambda: len(discovery.found) == 1)
        screen.type("/add 1 dave")
        await until(lambda: bool(screen.said("there is no node 1; see /discovered")))
        screen.type("/discovered")
        await until(lambda: bool(screen.said("1  unverified  ")))
        assert screen.said(dave.address)
        screen.type("/add 1 dave")
        await until(lambda: bool(screen.said("--- dave ")))
        screen.type("/discovered")
        await until(lambda: bool(screen.said("1  dave  ")))
        screen.type("/quit")
    peer = carol.book.by_name("dave")
    assert peer is not None and peer.public == dave.public and peer.trust is Trust.ADDED


async def test_a_node_that_looks_for_no_others_says_so(tmp_path: Path) -> None:
    alice, _ = couple(tmp_path)
    (alice.folder / ACCESS_FILE).unlink()
    screen = FakeScreen()
    async with alice.node(), anyio.create_task_group() as tasks:
        tasks.start_soon(dialogue, alice, "bob", screen)
        screen.type("/discovered")
        await until(lambda: bool(screen.said("start it with --discover")))
        screen.type("/quit")
