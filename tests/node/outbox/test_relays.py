"""Mail by way of relays: for nodes that are never up together, or that nobody can dial (3f)."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import HOPS_MAX, decode_relayed_message
from millpond.node.peers.peer import Trust
from tests.node.outbox.peer_nodes import (
    DEADLINE_S,
    PeerNode,
    leave,
    opened,
    read,
    remaining,
    until,
)

pytestmark = pytest.mark.anyio


class Village:
    """Alice and Bob, whom nobody can dial, and Rita, who runs a relay and knows both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alice = PeerNode(folder, "alice")
        self.bob = PeerNode(folder, "bob", via=("rita",))
        self.rita = PeerNode(folder, "rita", relay=True)
        self.alice.knows(self.bob, dials=False, relays=(self.rita.as_relay,))
        self.bob.knows(self.alice, dials=False)
        for person in (self.alice, self.bob):
            person.knows(self.rita)
            self.rita.knows(person, dials=False)


@pytest.fixture
def village(tmp_path: Path) -> Village:
    return Village(tmp_path)


async def test_two_who_are_never_up_together(village: Village) -> None:
    """Not even the key for the first message needs them to meet: it waits at the relay, too."""
    alice, bob = village.alice, village.bob
    async with village.rita.node() as relay:
        async with bob.node():
            await until(
                lambda: relay.outbox.context.local.count(mailbox_of(bob.public) + b"!keys") > 0
            )
        async with alice.node() as here:
            await until(lambda: here.outbox.can_seal(bob.public))
            for number in range(20):
                await here.outbox.send(bob.public, b"notes", b"%d" % number)
            await until(lambda: here.outbox.queued(bob.public) == 0)
        assert relay.outbox.queued(bob.public) == 20
        async with bob.node() as there:
            messages = await opened(there, b"notes", 20)
            await until(lambda: relay.outbox.queued(bob.public) == 0)
            assert await remaining(there, b"notes") == []
    assert [each.plaintext for each in messages] == [b"%d" % number for number in range(20)]
    assert {each.sender for each in messages} == {alice.public}


async def test_what_waits_at_a_relay_survives_its_restart(village: Village) -> None:
    alice, bob = village.alice, village.bob
    alice.learns_key_of(bob)
    async with village.rita.node():
        async with alice.node() as here:
            await here.outbox.send(bob.public, b"notes", b"kept")
            await until(lambda: here.outbox.queued(bob.public) == 0)
    async with village.rita.node(), bob.node() as there:
        assert await read(there, b"notes") == [b"kept"]


async def test_a_relay_carries_to_whom_it_can_dial(village: Village) -> None:
    """Bob fetches nothing: the relay brings it as soon as he is there."""
    alice, bob, rita = village.alice, village.bob, village.rita
    alice.learns_key_of(bob)
    rita.changes(bob, addresses=(bob.url,))
    async with rita.node() as relay:
        async with alice.node() as here:
            await here.outbox.send(bob.public, b"notes", b"brought")
            await until(lambda: here.outbox.queued(bob.public) == 0)
        async with bob.node(via=()) as there:
            there.outbox.context.book.remove("rita")  # so that he does not dial her either
            bob.knows(rita, dials=False)
            assert await read(there, b"notes") == [b"brought"]
            await until(lambda: relay.outbox.queued(bob.public) == 0)


async def test_the_direct_way_comes_first_and_the_next_relay_when_one_is_gone(
    village: Village,
) -> None:
    alice, bob, rita = village.alice, village.bob, village.rita
    sven = PeerNode(village.folder, "sven", relay=True)
    alice.knows(sven)
    sven.knows(alice, dials=False)
    sven.knows(bob, dials=False)
    alice.changes(bob, addresses=(bob.url,), relays=(rita.as_relay, sven.as_relay))
    alice.learns_key_of(bob)
    # Alice comes last: she looks for Bob's prekey at once, and would find him away at first.
    async with sven.node() as second, rita.node() as first, bob.node(via=()) as there:
        async with alice.node() as here:
            await here.outbox.send(bob.public, b"notes", b"directly")
            assert await read(there, b"notes") == [b"directly"]
            assert first.outbox.queued(bob.public) == second.outbox.queued(bob.public) == 0
    async with sven.node() as second, alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"by the second relay")
        await until(lambda: second.outbox.queued(bob.public) == 1)
        await until(lambda: here.outbox.queued(bob.public) == 0)


async def test_a_contact_is_not_used_as_a_relay_and_the_log_says_so(
    village: Village, caplog: pytest.LogCaptureFixture
) -> None:
    """P11: neither to leave messages with, nor to fetch them from."""
    alice, bob, rita = village.alice, village.bob, village.rita
    alice.learns_key_of(bob)
    alice.changes(rita, trust=Trust.VERIFIED)
    async with rita.node() as relay, alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"not by way of a friend")
        await until(lambda: any("millpond peer relay" in each for each in caplog.messages))
        await anyio.sleep(0.3)
        assert relay.outbox.queued(bob.public) == 0 and here.outbox.queued(bob.public) == 1
        alice.changes(rita, trust=Trust.RELAY)
        await until(lambda: relay.outbox.queued(bob.public) == 1)
    bob.changes(rita, trust=Trust.ADDED, addresses=())
    caplog.clear()
    async with rita.node() as relay, bob.node() as there:
        await until(lambda: any("rita" in each for each in caplog.messages))
        await anyio.sleep(0.3)
        assert relay.outbox.queued(bob.public) == 1
        bob.changes(rita, trust=Trust.RELAY, addresses=(rita.url,))
        assert await read(there, b"notes") == [b"not by way of a friend"]


async def test_a_relay_that_its_contacts_name_does_not_dial_itself(
    village: Village, caplog: pytest.LogCaptureFixture
) -> None:
    """Their cards say that it is their relay. Its log says nothing of that."""
    caplog.set_level("INFO", "millpond")
    rita, bob = village.rita, village.bob
    rita.changes(bob, relays=(rita.as_relay,))
    async with rita.node() as relay:
        await leave(relay, bob.public, village.alice.letter_to(bob, b"by way of rita", hops=1))
        await anyio.sleep(1.0)
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"by way of rita"]
    assert "our own key" not in caplog.text and "relay not used" not in caplog.text


async def test_a_relay_takes_mail_for_its_own_peers_and_of_them_only(village: Village) -> None:
    """It is kept by the sender meanwhile, and nobody is told that it failed."""
    alice, bob, rita = village.alice, village.bob, village.rita
    alice.learns_key_of(bob)
    rita.book.remove("bob")
    reports: list[object] = []

    async def record(*report: object) -> None:
        reports.append(report)

    async with rita.node() as relay, alice.node() as here:
        here.outbox.on_status(record)
        await here.outbox.send(bob.public, b"notes", b"for a stranger")
        await anyio.sleep(0.5)
        assert (here.outbox.queued(bob.public), relay.outbox.queued(bob.public)) == (1, 0)
        assert reports == []
        rita.knows(bob, dials=False)
        await until(lambda: relay.outbox.queued(bob.public) == 1)


async def test_who_is_no_relay_takes_no_mail_for_others(village: Village) -> None:
    alice, bob = village.alice, village.bob
    alice.learns_key_of(bob)
    async with village.rita.node(relay=False) as other, alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"x")
        await anyio.sleep(0.5)
        assert (here.outbox.queued(bob.public), other.outbox.queued(bob.public)) == (1, 0)


@pytest.mark.parametrize("hops", [HOPS_MAX - 1, HOPS_MAX])
async def test_a_message_goes_three_hops_and_is_then_only_fetched(
    village: Village, hops: int
) -> None:
    """A relay passes on what another one brought, but not for ever."""
    alice, bob, rita = village.alice, village.bob, village.rita
    sven = PeerNode(village.folder, "sven", relay=True)
    sven.knows(bob, dials=False)
    sven.knows(rita, dials=False)
    rita.knows(sven)
    rita.changes(bob, relays=(sven.as_relay,))
    async with rita.node() as first, sven.node() as second:
        await leave(first, bob.public, alice.letter_to(bob, b"far", hops=hops))
        if hops < HOPS_MAX:
            await until(lambda: second.outbox.queued(bob.public) == 1)
            await until(lambda: first.outbox.queued(bob.public) == 0)
            (kept,) = await remaining(second, mailbox_of(bob.public))
            assert decode_relayed_message(kept).hops == HOPS_MAX
        else:
            await anyio.sleep(0.5)
            assert (first.outbox.queued(bob.public), second.outbox.queued(bob.public)) == (1, 0)
            async with bob.node() as there:
                assert await read(there, b"notes") == [b"far"]


async def test_relays_that_name_each_other_do_not_forward_a_message_for_ever(
    village: Village,
) -> None:
    alice, bob, rita = village.alice, village.bob, village.rita
    sven = PeerNode(village.folder, "sven", relay=True)
    rita.knows(sven)
    sven.knows(rita)
    sven.knows(bob, dials=False, relays=(rita.as_relay,))
    rita.changes(bob, relays=(sven.as_relay,))
    async with rita.node() as first, sven.node() as second:
        await leave(first, bob.public, alice.letter_to(bob, b"far", hops=1))
        await until(lambda: second.outbox.queued(bob.public) + first.outbox.queued(bob.public) == 1)

        async def hops() -> list[int]:
            kept = await remaining(first, mailbox_of(bob.public))
            kept += await remaining(second, mailbox_of(bob.public))
            return [decode_relayed_message(each).hops for each in kept]

        with anyio.fail_after(DEADLINE_S):
            while await hops() != [HOPS_MAX]:  # noqa: ASYNC110 (nobody tells when it is forwarded)
                await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        assert await hops() == [HOPS_MAX]
        async with bob.node() as there:
            assert await read(there, b"notes") == [b"far"]


async def test_a_message_that_came_by_two_ways_is_there_once(village: Village) -> None:
    alice, bob, rita = village.alice, village.bob, village.rita
    sven = PeerNode(village.folder, "sven", relay=True)
    for one, other in ((sven, bob), (bob, sven)):
        one.knows(other, dials=other is sven)
    async with rita.node() as first, sven.node() as second:
        relayed = alice.letter_to(bob, b"far", hops=1)
        await leave(first, bob.public, relayed)
        await leave(second, bob.public, msgspec.structs.replace(relayed, hops=2))
        async with bob.node(via=("rita", "sven")) as there:
            assert await read(there, b"notes") == [b"far"]
            await until(
                lambda: first.outbox.queued(bob.public) + second.outbox.queued(bob.public) == 0
            )
            assert await remaining(there, b"notes") == []
