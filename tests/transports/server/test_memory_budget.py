"""The memory budget by itself, in virtual time: shares, waiting, closing, and no deadlock."""

from __future__ import annotations

from random import Random

import pytest

from millpond.transports.server.memory_budget import (
    CONNECTION_BYTES,
    FAVOURED_AFTER_S,
    FAVOURED_S,
    HANDSHAKE_BYTES,
    READ_BYTES,
    REFUSED_AFTER_S,
    STALLED_S,
    TICK_S,
    TRIM_BYTES,
    TRIM_S,
    MemoryAccount,
    MemoryBudget,
    MemorySettings,
)

MIB = 2**20
SETTINGS = MemorySettings(16 * MIB, 8 * MIB, 12 * MIB, 4 * MIB)


class Room:
    """A budget with its clock; `pass_time` wakes it as the node does."""

    def __init__(self, settings: MemorySettings = SETTINGS) -> None:
        self.now = 100.0
        self.trims = 0
        self.budget = MemoryBudget(settings, self._arm, self._trim)

    def _arm(self, budget: MemoryBudget, when: float) -> None:
        budget.deadline = min(when, budget.deadline)

    def _trim(self) -> None:
        self.trims += 1

    def pass_time(self, seconds: float) -> None:
        ends_at = self.now + seconds
        while self.budget.deadline <= ends_at:
            self.now, self.budget.deadline = max(self.now, self.budget.deadline), float("inf")
            self.budget.wake(self.now)
        self.now = ends_at


class Client:
    """A connection whose holdings the test sets."""

    def __init__(self, room: Room, held_bytes: int = 0, principal: str | None = None) -> None:
        self.room = room
        self.held_bytes = held_bytes
        self.moved_bytes = 0
        self.waits_for_client = True
        self.is_closed = False
        self.account: MemoryAccount = room.budget.open(self, principal, room.now)
        self.account.measure(room.now)

    def close_for_memory(self) -> None:
        self.is_closed = True
        self.held_bytes = 0
        self.account.close(self.room.now)

    def hold(self, held_bytes: int, *, moved: int = MIB) -> None:
        self.held_bytes = held_bytes
        self.moved_bytes += moved
        self.account.measure(self.room.now)


def test_what_fits_is_let_in_and_what_does_not_waits_for_others_to_finish() -> None:
    room = Room()
    first, second = Client(room, 8 * MIB), Client(room, 6 * MIB - READ_BYTES)
    third = Client(room)  # one of the others may read once more meanwhile
    assert third.account.has_room(2 * MIB, room.now)
    assert not third.account.has_room(3 * MIB, room.now)
    granted: list[float] = []
    third.account.wait(3 * MIB, room.now, lambda: granted.append(room.now))
    second.hold(0)
    assert granted == [room.now] and not first.is_closed


def test_a_connection_and_a_principal_have_shares() -> None:
    room = Room()
    one, other = Client(room, 7 * MIB, "a"), Client(room, 4 * MIB, "a")
    assert not one.account.has_room(2 * MIB, room.now), "the connection's share"
    assert not other.account.has_room(2 * MIB, room.now), "the principal's share"
    assert Client(room, 0, "b").account.has_room(4 * MIB, room.now)


def test_the_largest_connection_that_does_not_move_is_closed_first() -> None:
    room = Room()
    small, large, busy = Client(room, 4 * MIB), Client(room, 5 * MIB), Client(room, 7 * MIB)
    late = Client(room)
    granted: list[str] = []
    late.account.wait(5 * MIB, room.now, lambda: granted.append("late"))
    while room.now < 100.0 + STALLED_S + TICK_S:
        busy.moved_bytes += MIB
        room.pass_time(TICK_S)
    assert granted and large.is_closed and not small.is_closed and not busy.is_closed


def test_a_connection_that_waits_for_the_node_is_not_stalled() -> None:
    room = Room()
    working = Client(room, 16 * MIB)
    working.waits_for_client = False
    Client(room).account.wait(MIB, room.now, lambda: None)
    room.pass_time(10 * STALLED_S)
    assert not working.is_closed


def refused(outcome: list[str]) -> bool:
    outcome.append("refused")
    return True


def test_work_that_waits_too_long_is_refused_if_it_can_be() -> None:
    room = Room()
    working = Client(room, 20 * MIB)
    working.waits_for_client = False
    outcome: list[str] = []
    for _ in range(2):
        Client(room).account.wait(
            4 * MIB, room.now, lambda: outcome.append("in"), lambda: refused(outcome)
        )
    room.pass_time(REFUSED_AFTER_S + 1)
    assert outcome == ["refused", "refused"] and room.budget.stats.refused == 2


def test_the_one_that_waited_longest_may_go_beyond_the_budget_to_finish() -> None:
    """Everyone has half a request, and nobody can finish: one at a time does."""
    room = Room()
    clients = [Client(room, 4 * MIB) for _ in range(4)]
    finished: list[Client] = []

    def read_on(client: Client) -> None:
        client.hold(client.held_bytes + MIB)
        if client.held_bytes >= 7 * MIB:
            client.hold(0)
            finished.append(client)
        else:
            ask(client)

    def ask(client: Client) -> None:
        if client.account.has_room(READ_BYTES, room.now):
            read_on(client)
        else:
            client.account.wait(READ_BYTES, room.now, lambda: read_on(client))

    for client in clients:
        client.waits_for_client = False
        ask(client)
    room.pass_time(FAVOURED_AFTER_S * 8)
    assert sorted(map(id, finished)) == sorted(map(id, clients))
    assert not any(client.is_closed for client in clients)


def test_all_work_of_the_favoured_connection_goes_on() -> None:
    """A connection of HTTP waits to read on, and each of its requests for what it has read."""
    room = Room()
    working = Client(room, 16 * MIB)
    working.waits_for_client = False
    client, other = Client(room, MIB), Client(room, MIB)
    granted: list[str] = []
    for each in (client, other, client):
        name = "its own" if each is client else "another's"
        each.account.wait(READ_BYTES, room.now, lambda name=name: granted.append(name))  # type: ignore[misc]
    room.pass_time(FAVOURED_AFTER_S + TICK_S)
    assert granted == ["its own", "its own"]


def test_room_for_one_lets_one_in_at_a_time() -> None:
    """A connection that is let in reads a moment later."""
    room = Room()
    working = Client(room, 16 * MIB)
    let_in: list[float] = []
    for _ in range(20):
        half = Client(room, READ_BYTES // 2)
        half.account.wait(READ_BYTES, room.now, lambda: let_in.append(room.now))
    working.hold(13 * MIB)
    assert len(let_in) == 2
    room.pass_time(TICK_S)
    assert len(let_in) == 2, "they may still read, and their room is kept"
    working.hold(12 * MIB)
    assert len(let_in) == 6


def test_connections_that_read_on_together_stay_within_the_budget() -> None:
    """Memory above it is for the favoured one."""
    room = Room()
    reading = [Client(room, READ_BYTES) for _ in range(7)]
    while reading:
        for client in tuple(reading):
            client.hold(client.held_bytes + READ_BYTES)
            if not client.account.has_room(READ_BYTES, room.now):
                client.account.wait(READ_BYTES, room.now, lambda: None)
                reading.remove(client)
    assert 14 * MIB <= room.budget.used_bytes <= 16 * MIB
    assert room.budget.waiting == 7


def test_many_stalled_clients_do_not_make_others_wait_for_each_of_them() -> None:
    room = Room()
    for _ in range(40):
        client = Client(room)
        client.waits_for_client = True
        client.account.wait(MIB, room.now, lambda client=client: client.hold(4 * MIB))  # type: ignore[misc]
    for each in tuple(room.budget._waiters):
        assert each.refused is None
    room.pass_time(30.0)
    assert room.budget.waiting == 0, "each was let in, and closed as it did not move"


def test_above_the_overrun_connections_are_closed_at_once() -> None:
    room = Room()
    clients = [Client(room, 6 * MIB) for _ in range(10)]
    assert sum(client.held_bytes for client in clients) <= 20 * MIB
    assert room.budget.used_bytes <= 20 * MIB
    assert room.budget.stats.closed == 7


def test_freed_memory_goes_back_to_the_system_once_it_is_worth_it() -> None:
    room = Room(MemorySettings(4 * TRIM_BYTES, 4 * TRIM_BYTES, 4 * TRIM_BYTES, MIB))
    client = Client(room, 2 * TRIM_BYTES)
    client.hold(0)
    room.pass_time(TRIM_S + TICK_S)
    assert room.trims == 1
    room.pass_time(60.0)
    assert room.trims == 1 and room.budget.deadline == float("inf"), "nothing is left to do"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_clients_do_the_bound_holds_and_nothing_waits_for_ever(seed: int) -> None:
    rng = Random(seed)
    room = Room()
    clients: list[Client] = []
    outcomes: dict[int, str] = {}
    asked = 0

    def ask(client: Client) -> None:
        nonlocal asked
        number, asked = asked, asked + 1
        size = rng.randrange(1, 6 * MIB)

        def granted() -> None:
            outcomes[number] = "granted"
            client.held_bytes += size

        may_refuse = rng.random() < 0.5

        def refused() -> bool:
            can_refuse = rng.random() < 0.8
            if can_refuse:
                outcomes[number] = "refused"
            return can_refuse

        client.account.wait(size, room.now, granted, refused if may_refuse else None)

    for _ in range(300):
        clients = [each for each in clients if not each.is_closed]
        step = rng.random()
        if step < 0.3 or not clients:
            clients.append(Client(room, rng.randrange(2 * MIB), rng.choice([None, "a", "b"])))
        elif step < 0.5:
            rng.choice(clients).hold(rng.randrange(4 * MIB))
        elif step < 0.7:
            ask(rng.choice(clients))
        elif step < 0.8:
            rng.choice(clients).close_for_memory()
        else:
            room.pass_time(rng.random())
        used = sum(each.held_bytes for each in clients if not each.is_closed)
        assert used <= SETTINGS.bytes_max + SETTINGS.overrun_bytes_max + 16384 * len(clients)
    for client in clients:
        client.waits_for_client = True
    room.pass_time(600.0)
    assert room.budget.waiting == 0
    for client in clients:
        if not client.is_closed:
            client.close_for_memory()
    assert room.budget.used_bytes == 0 and not room.budget._by_principal


def test_work_that_cannot_be_refused_keeps_its_turn() -> None:
    room = Room()
    turns: list[int] = []
    room.budget.promised_bytes = SETTINGS.bytes_max
    for number in range(3):

        def granted(number: int = number) -> None:
            turns.append(number)

        client = Client(room, 100_000)
        client.waits_for_client = False
        client.account.wait(READ_BYTES, room.now, granted, lambda: False)
        room.pass_time(TICK_S)
    room.pass_time(FAVOURED_AFTER_S)
    assert turns == [0]
    room.pass_time(FAVOURED_S + 2 * TICK_S)
    assert turns == [0, 1]


def test_an_answer_that_was_granted_counts_once() -> None:
    room = Room()
    budget, client = room.budget, Client(room)
    budget.promised_bytes = SETTINGS.bytes_max

    def granted() -> None:
        budget.promised_bytes += MIB

    client.account.wait(MIB, room.now, granted)
    budget.promised_bytes = 0
    Client(room, 100_000).account.close(room.now)
    assert budget.promised_bytes == MIB


def test_connections_count_by_themselves_up_to_half_of_the_budget() -> None:
    room = Room()
    budget, client = room.budget, Client(room)
    for _ in range(64):
        budget.connection_opened()
    assert budget.connections_bytes == 64 * CONNECTION_BYTES == MIB
    assert budget.promise(15 * MIB) and not budget.promise(1)
    budget.keep_promise(15 * MIB)
    for _ in range(10_000):
        budget.connection_opened()
    assert budget.connections_bytes == 8 * MIB
    assert client.account.has_room(8 * MIB, room.now), "the other half is for their work"
    assert not client.account.has_room(8 * MIB + 1, room.now)
    for _ in range(10_064):
        budget.connection_ended(room.now)
    assert budget.connections_bytes == 0


def test_work_that_needs_more_than_the_whole_budget_has_its_turn() -> None:
    room = Room()
    working = Client(room, 10 * MIB)
    working.waits_for_client = False
    granted: list[float] = []
    Client(room).account.wait(100 * MIB, room.now, lambda: granted.append(room.now))
    room.pass_time(TICK_S)
    assert granted == []
    working.hold(0)
    assert granted == [room.now]


def test_failed_handshakes_give_their_memory_back_to_the_system() -> None:
    room = Room()
    for _ in range(TRIM_BYTES // HANDSHAKE_BYTES + 1):
        room.budget.handshake_failed(room.now)
    room.pass_time(TRIM_S + TICK_S)
    assert room.trims == 1 and room.budget.deadline == float("inf")
