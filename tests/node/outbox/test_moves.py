"""Messages on their way from the own mailbox into a channel: in the channel once, whenever the node
is killed, and however long it is down."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import pytest

from millpond.actors.messages import Ack, Put
from millpond.actors.store.journal.writer import CommitGroup, CommitOutcome, Journal
from millpond.node.outbox.deliveries import GAP_S
from millpond.node.outbox.inbound import INSERT_RECORD, MISSING_EVERY_S
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import decode_relayed_message, encode_relayed_message
from millpond.node.peers.peer_store import CHANNELS_MAX, PeerStore, Statement
from millpond.node.peers.prekeys import KEPT_BEYOND_TTL_S
from millpond.node.peers.sealed_message import kid_in
from millpond.testing import SimNode, World
from tests.node.outbox.failing_store import failing
from tests.node.outbox.peer_nodes import QUIET_S, PeerNode
from tests.node.processes import ROOT, environment

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.usefixtures("looks_rarely")]

WEEK_S = 604_800
DOWN_S = 2 * 86_400
"""Longer than an idempotency key lives."""
YEARS_S = 10 * 365 * 86_400
CHANNEL = b"notes"
RECORD = b"\0record"
COPY_S = 40
"""The life of a copy in the mailbox, as a relay may set it."""
LETTERS, KILLS, DAYS = 300, 4, 1.5
KILLED = "the process is gone"


class Kill:
    """The end of a node's process right after one of its commits, to the journal or to `peers.db`;
    `commits` counts them. `stored` has the names of cells in the journal's, and `RECORD` if a
    message was recorded as accepted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.victim: SimNode | None = None
        self.commits = 0
        self.stored: set[bytes] = set()
        self.is_dead = False
        self.is_over: Callable[[], bool] = lambda: False
        commit, commit_states = Journal.commit, PeerStore._commit

        def counted(journal: Journal, groups: list[CommitGroup]) -> CommitOutcome:
            outcome = commit(journal, groups)
            if groups and self.victim and self.victim.folder in journal._folder.parents:
                self.stored.update(name for group in groups for name in group.names)
                self._committed()
            return outcome

        def counted_states(store: PeerStore, statements: Iterable[Statement]) -> None:
            runs = self.victim is not None and self.victim.is_running
            is_victim = runs and self.victim.node.peer_services.keyring.store is store
            if is_victim and self.is_dead:
                raise sqlite3.OperationalError(KILLED)
            commit_states(store, statements)
            if is_victim:
                if any(text == INSERT_RECORD for text, _ in statements):
                    self.stored.add(RECORD)
                self._committed()

        monkeypatch.setattr(Journal, "commit", counted)
        monkeypatch.setattr(PeerStore, "_commit", counted_states)

    def after(self, commits: int, victim: SimNode) -> None:
        self.once(lambda: self.commits == commits, victim)

    def once(self, is_over: Callable[[], bool], victim: SimNode) -> None:
        """Kill the victim after the first commit at whose end this is true."""
        self.victim, self.is_over, self.commits, self.is_dead = victim, is_over, 0, False
        self.stored.clear()

    def _committed(self) -> None:
        self.commits += 1
        if not self.is_dead and self.is_over():
            assert self.victim is not None
            self.is_dead = True
            self.victim.node.kill()


class Away:
    """Alice and Bob. A message of hers arrives in his mailbox while she is away."""

    def __init__(self, world: World, alice: SimNode, bob: SimNode) -> None:
        self.world, self.alice, self.bob = world, alice, bob

    async def sent(self, text: bytes) -> bytes:
        """A message that is on its way, and taken out of Alice's outbox."""
        (relayed,) = await self.sent_to([CHANNEL.decode()], text)
        return relayed

    async def sent_to(self, channels: Sequence[str], text: bytes) -> list[bytes]:
        """The same text to each of these channels."""
        bob, found = self.bob.public, []
        await self.bob.stop()
        for name in channels:
            await self.alice.send("bob", name, text)
        local = self.alice.node.outbox.context.local
        with local.consumer(mailbox_of(bob), len(channels)) as consumer:
            for _ in channels:
                message = await consumer.receive()
                consumer.settle(Ack(message.id))
                found.append(message.data)
        await self.bob.start()
        return found

    async def arrive(self, *relayed: bytes, ttl: int) -> None:
        mailbox = mailbox_of(self.bob.public)
        for each in relayed:
            put = Put(int.from_bytes(each[-4:], "big"), ttl, each)
            self.bob.node.outbox.context.local.put_nowait(mailbox, put)
        await self.world.clock.sleep(5)

    async def days_later(self, *, power: bool) -> None:
        await self.bob.crash(power=power)
        await self.alice.stop()
        await self.world.clock.sleep(DOWN_S)
        await self.bob.start()
        await self.alice.start()
        await self.world.clock.sleep(60)

    async def queued(self) -> int:
        """The number of messages in Bob's mailbox."""
        return len(await self.bob.node.outbox.context.local.list(mailbox_of(self.bob.public)))

    async def read(self) -> list[bytes]:
        """All messages in the channel."""
        outbox, found = self.bob.node.outbox, []
        with outbox.context.local.consumer(CHANNEL, 1000) as consumer:
            await self.world.clock.sleep(1)
            while consumer.has_messages:
                message = await consumer.receive()
                found.append((await outbox.open(CHANNEL, message.data)).plaintext)
                consumer.settle(Ack(message.id))
        return found


@pytest.mark.parametrize(
    ("power", "ttl"),
    [
        pytest.param(False, WEEK_S, id="killed-copy"),
        pytest.param(True, 60, id="without power-expired copy"),
        pytest.param(False, 60, id="killed-expired copy", marks=pytest.mark.full),
        pytest.param(True, WEEK_S, id="without power-copy", marks=pytest.mark.full),
    ],
)
async def test_a_message_is_in_its_channel_once_whenever_the_node_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch, power: bool, ttl: int
) -> None:
    """`ttl`: a relay may have set another deadline for the copy in the mailbox."""
    kill = Kill(monkeypatch)
    away = Away(world, await world.node("alice"), await world.node("bob"))
    world.link(away.alice, away.bob)
    for commits in range(1, 100):
        text = b"killed after %d commits" % commits
        relayed = await away.sent(text)
        kill.after(commits, away.bob)
        await away.arrive(relayed, ttl=ttl)
        kill.victim = None
        await away.days_later(power=power)
        assert await away.read() == [text]
        if not kill.is_dead:
            break
    assert commits > 5


@pytest.mark.parametrize(
    ("moment", "ttl"),
    [
        pytest.param("stored", 60, id="stored-expired copy"),
        pytest.param("accepted", WEEK_S, id="accepted-copy"),
        pytest.param("moved", 60, id="moved-expired copy"),
        pytest.param("stored", WEEK_S, id="stored-copy", marks=pytest.mark.full),
        pytest.param("accepted", 60, id="accepted-expired copy", marks=pytest.mark.full),
        pytest.param("moved", WEEK_S, id="moved-copy", marks=pytest.mark.full),
    ],
)
async def test_a_one_time_prekey_lives_until_its_message_is_in_the_channel(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, ttl: int
) -> None:
    """The node is killed when the message is in the mailbox, recorded, or in its channel. It is
    read once, and the private half is destroyed; of a copy that expired in the mailbox before it
    was opened, with the time of the key."""
    kill = Kill(monkeypatch)
    away = Away(world, await world.node("alice"), await world.node("bob"))
    world.link(away.alice, away.bob)
    await world.clock.sleep(3700)  # the keys of a peer are asked for every hour
    assert away.alice.node.outbox.context.taken_prekeys.count(away.bob.public)
    relayed = await away.sent(b"once")
    kid = kid_in(decode_relayed_message(relayed).envelope)
    assert away.bob.node.outbox.context.one_time.private(kid) is not None
    stored = {"stored": mailbox_of(away.bob.public), "accepted": RECORD, "moved": CHANNEL}[moment]
    kill.once(lambda: stored in kill.stored, away.bob)
    await away.arrive(relayed, ttl=ttl)
    assert kill.is_dead
    kill.victim = None
    await away.days_later(power=False)
    assert await away.read() == [b"once"]
    is_unopened = moment == "stored" and ttl < WEEK_S
    one_time = away.bob.node.outbox.context.one_time
    assert (one_time.private(kid) is not None) is is_unopened
    assert away.alice.node.outbox.unconfirmed(away.bob.public) == 0


async def test_a_channel_stays_known_while_a_message_may_be_in_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that has used as many channels as it may, and an empty one makes way: not the one
    that the message of a crash has moved into, as long as that is not settled."""
    kill = Kill(monkeypatch)
    away = Away(world, await world.node("alice"), await world.node("bob"))
    world.link(away.alice, away.bob)
    others = [f"other{number}" for number in range(CHANNELS_MAX)]
    relayed = await away.sent(b"once")
    more = await away.sent_to(others, b"another one")
    kill.once(lambda: CHANNEL in kill.stored, away.bob)
    await away.arrive(relayed, ttl=COPY_S)
    kill.victim = None
    await away.bob.crash()
    with failing(away.bob.folder):
        await away.bob.start()
        assert await away.read() == [b"once"]
        assert await away.queued() == 1
        await world.clock.sleep(COPY_S)
        assert await away.queued() == 0
    await away.arrive(*more, ttl=WEEK_S)
    await away.alice.stop()
    for name in others:
        assert (await away.bob.read(name)).data == b"another one"
    await world.clock.sleep(2 * MISSING_EVERY_S)
    await away.bob.stop()
    await world.clock.sleep(DOWN_S)
    await away.bob.start()
    await away.alice.start()
    await world.clock.sleep(10 * GAP_S)
    assert await away.read() == []


async def test_what_was_accepted_is_known_after_a_kill_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter and the record are one commit. A relay repeats the message two days later."""
    kill = Kill(monkeypatch)
    away = Away(world, await world.node("alice"), await world.node("bob"))
    world.link(away.alice, away.bob)
    relayed = await away.sent(b"once")
    await away.alice.stop()
    kill.once(lambda: RECORD in kill.stored, away.bob)
    await away.arrive(relayed, ttl=WEEK_S)
    assert kill.is_dead
    kill.victim = None
    await away.bob.restart()
    assert await away.read() == [b"once"]
    await away.bob.stop()
    await world.clock.sleep(DOWN_S)
    await away.bob.start()
    await away.arrive(relayed, ttl=WEEK_S)
    assert await away.read() == []
    assert away.bob.node.outbox.context.dropped == {"seen_counter": 1}


async def test_moves_without_a_record_are_forgotten_with_the_next_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender sets a deadline in ten years, and the node dies before the channel is told that the
    move is done."""
    kill = Kill(monkeypatch)
    alice = await world.node("alice", ttl_max_s=YEARS_S, peer_ttl_s=YEARS_S)
    away = Away(world, alice, await world.node("bob"))
    world.link(away.alice, away.bob)
    relayed, other = await away.sent(b"once"), await away.sent(b"another one")
    records: set[int] = set()

    def is_removed() -> bool:
        store = away.bob.node.outbox.context.store
        found = {row[0] for row in store.query("SELECT mailbox_id FROM unfinished")}
        records.update(found)
        return bool(records) and not found

    kill.once(is_removed, away.bob)
    await away.arrive(relayed, ttl=WEEK_S)
    assert kill.is_dead
    kill.victim = None
    await away.bob.restart()
    local, (origin,) = away.bob.node.outbox.context.local, records
    assert await local.has_moved(CHANNEL, origin)
    await away.arrive(other, ttl=WEEK_S)
    assert not await local.has_moved(CHANNEL, origin)
    assert await away.read() == [b"once", b"another one"]


async def test_what_is_known_of_a_move_ends_with_its_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is not used any more after a crash within the move."""
    kill = Kill(monkeypatch)
    away = Away(world, await world.node("alice"), await world.node("bob"))
    world.link(away.alice, away.bob)
    relayed = await away.sent(b"once")
    kill.once(lambda: CHANNEL in kill.stored, away.bob)
    await away.arrive(relayed, ttl=WEEK_S)
    kill.victim = None
    ((origin, *_),) = away.bob.node.outbox.context.store.query("SELECT * FROM unfinished")
    await away.alice.stop()
    await away.bob.crash()
    await world.clock.sleep(WEEK_S + KEPT_BEYOND_TTL_S)
    await away.bob.start()
    await world.clock.sleep(60)
    context = away.bob.node.outbox.context
    assert context.store.query("SELECT * FROM unfinished") == [] and not context.unfinished
    assert not await context.local.has_moved(CHANNEL, origin)


async def test_a_message_is_read_however_long_its_node_was_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender sets a deadline in ten years. It is accepted and not in its channel yet when the
    node is killed, and its copy in the mailbox expires, as do all keys."""
    kill = Kill(monkeypatch)
    alice = await world.node("alice", ttl_max_s=YEARS_S, peer_ttl_s=YEARS_S)
    away = Away(world, alice, await world.node("bob"))
    world.link(away.alice, away.bob)
    relayed = await away.sent(b"once")
    kill.once(lambda: RECORD in kill.stored, away.bob)
    await away.arrive(relayed, ttl=WEEK_S)
    assert kill.is_dead
    kill.victim = None
    await away.bob.crash()
    await away.alice.stop()
    await world.clock.sleep(WEEK_S + 2 * KEPT_BEYOND_TTL_S)
    await away.bob.start()
    await away.alice.start()
    await world.clock.sleep(10 * GAP_S)
    assert await away.read() == [b"once"]
    assert away.alice.node.outbox.unconfirmed(away.bob.public) == 0


async def test_a_message_lives_in_its_channel_as_long_as_its_node_permits(world: World) -> None:
    """Its sender sets a deadline in ten years, and nobody reads it."""
    alice = await world.node("alice", ttl_max_s=YEARS_S, peer_ttl_s=YEARS_S)
    away = Away(world, alice, await world.node("bob"))
    world.link(away.alice, away.bob)
    first, second = await away.sent(b"first"), await away.sent(b"second")
    await away.arrive(first, ttl=WEEK_S)
    for each in (alice, away.bob):
        await each.stop()
    await world.clock.sleep(WEEK_S - 60)
    await away.bob.start()
    await away.arrive(second, ttl=WEEK_S)
    await world.clock.sleep(120)
    assert await away.read() == [b"second"]


async def test_a_record_does_not_outlive_its_move(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the message would be missing again. The node crashes twice, a week apart."""
    kill = Kill(monkeypatch)
    alice = await world.node("alice", ttl_max_s=YEARS_S, peer_ttl_s=YEARS_S)
    away = Away(world, alice, await world.node("bob"))
    world.link(away.alice, away.bob)
    relayed = await away.sent(b"once")
    kill.once(lambda: CHANNEL in kill.stored, away.bob)
    await away.arrive(relayed, ttl=WEEK_S)
    await away.bob.crash()
    await away.alice.stop()
    await world.clock.sleep(WEEK_S - 60)
    kill.once(lambda: RECORD in kill.stored, away.bob)  # it is written again
    await away.bob.start()
    await world.clock.sleep(5)
    assert kill.is_dead
    kill.victim = None
    await away.bob.crash()
    await world.clock.sleep(KEPT_BEYOND_TTL_S + 3600)
    await away.bob.start()
    await away.alice.start()
    await world.clock.sleep(10 * GAP_S)
    assert await away.read() == []


def process_of(bob: PeerNode, days: float, letters: Path | None) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.node.outbox.moving_node", str(bob.folder), str(days)]
    if letters is not None:
        words.append(str(letters))
    return subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)


def test_messages_are_in_their_channel_once_after_processes_that_were_killed(
    tmp_path: Path,
) -> None:
    """Two days pass from one process to the next."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    bob.knows(alice, dials=False)
    texts = [b"%d" % number for number in range(LETTERS)]
    deadline = int((time.time() + WEEK_S) * 1000)
    letters = [alice.letter_to(bob, text, deadline=deadline) for text in texts]
    file = tmp_path / "letters"
    file.write_text("".join(f"{encode_relayed_message(each).hex()}\n" for each in letters))
    rng, moved = Random(1), 0
    for number in range(KILLS):
        with process_of(bob, DAYS * number, None if number else file) as process:
            assert process.stdout is not None
            wanted = moved + rng.randrange(1, LETTERS // KILLS)
            for _ in range(wanted):
                assert process.stdout.readline(), "it has ended by itself"
            process.kill()
            moved = wanted + len(process.stdout.readlines())
        (bob.folder / "clock.json").unlink()  # else two days are held to be an error of the clock
    with process_of(bob, DAYS * KILLS, None) as process:
        assert process.stdout is not None
        found = [process.stdout.readline().strip() for _ in range(LETTERS)]
        time.sleep(QUIET_S)
        process.terminate()
        found += [each.strip() for each in process.stdout]
    assert sorted(found) == sorted(texts)
