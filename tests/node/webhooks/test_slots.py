"""Slots of webhooks: slow receivers, one receiver of many subscriptions, many strangers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.subscriptions.messages import Delivery
from millpond.node.webhooks.slots import DeliverySlots


def delivery(number: int, host: str, cell: bytes | None = None) -> Delivery:
    url = f"https://{host}/hook"
    return Delivery(number, cell or b"%d" % number, b"s", url, "", "w", 1, b"", (), 10.0)


def started(slots: DeliverySlots) -> list[Delivery]:
    found = []
    while (each := slots.start()) is not None:
        found.append(each)
    return found


def proven(slots: DeliverySlots, *deliveries: Delivery) -> None:
    """These subscriptions were called before, and answered at once."""
    for each in deliveries:
        slots.add(each)
        assert slots.start() is each
        slots.finish(each, 0.1, is_failed=False)


def test_silent_receivers_leave_half_of_the_slots_to_those_that_answer() -> None:
    slots = DeliverySlots(64)
    good = [delivery(number, f"good-{number}.example") for number in range(40)]
    proven(slots, *good)
    for number in range(100, 1000):
        slots.add(delivery(number, f"silent-{number}.example"))
    assert len(started(slots)) == 32
    for each in good:
        slots.add(each)
    assert started(slots) == good[:32]
    assert slots.waiting == 868 + 8


def test_a_receiver_of_many_subscriptions_leaves_as_many_slots_as_it_has() -> None:
    slots = DeliverySlots(64)
    many = [delivery(number, "many.example") for number in range(200)]
    proven(slots, *many)
    for each in many:
        slots.add(each)
    assert len(started(slots)) == 32
    few = [delivery(number, "few.example") for number in range(300, 400)]
    for each in few:
        slots.add(each)
    assert len(started(slots)) == 16  # none of them is known yet
    slots.finish(many[0], 0.1, is_failed=False)
    assert started(slots) == []  # `many` has 31 of the 17 that are free


def test_a_slow_subscription_keeps_no_others_at_its_host_waiting() -> None:
    slots = DeliverySlots(64)
    good = delivery(1, "functions.example")
    proven(slots, good)
    for number in range(100, 200):
        slots.add(delivery(number, "functions.example"))
    assert len(started(slots)) == 16
    slots.add(good)
    assert started(slots) == [good]


def test_a_receiver_is_one_in_all_notations_of_its_url() -> None:
    notations = ["h.example", "h.example:443", "H.Example", "h.example.", "H.example.:443"]
    slots = DeliverySlots(8)
    for number in range(20):
        slots.add(delivery(number, notations[number % len(notations)]))
    assert len(started(slots)) == len(started_of_one_name()) == 2
    others = ["h.example:444", "x@h.example", "[::1", "h.example:x"]
    # The second one is the same receiver.
    for number, host in enumerate(others, 100):
        slots.add(delivery(number, host))
    assert [each.number for each in started(slots)] == [100, 102]


def started_of_one_name() -> list[Delivery]:
    slots = DeliverySlots(8)
    for number in range(20):
        slots.add(delivery(number, "h.example"))
    return started(slots)


def test_receivers_take_turns() -> None:
    slots = DeliverySlots(2)
    for number in range(6):
        slots.add(delivery(number, f"{'ab'[number // 3]}.example"))
    order = []
    while (each := slots.start()) is not None:
        order.append(each.number)
        slots.finish(each, 0.1, is_failed=False)
    assert order == [0, 3, 1, 4, 2, 5]


def test_a_call_that_is_slow_or_fails_is_no_prompt_one() -> None:
    for took_s, is_failed in ((1.5, False), (0.1, True)):
        slots = DeliverySlots(4)
        first = delivery(1, "a.example")
        proven(slots, first)
        slots.add(first)
        assert slots.start() is first
        slots.finish(first, took_s, is_failed=is_failed)
        for number in (2, 3):
            slots.add(delivery(number, f"{number}.example"))
        assert len(started(slots)) == 2
        slots.add(first)
        assert slots.start() is None


def test_one_slot_is_enough_for_all() -> None:
    slots = DeliverySlots(1)
    for number in range(3):
        slots.add(delivery(number, "a.example"))
    for number in range(3):
        (each,) = started(slots)
        assert each.number == number
        slots.finish(each, 20.0, is_failed=True)
    assert slots.waiting == 0 and slots.start() is None


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans(), st.booleans())),
)
def test_every_delivery_has_its_turn(
    at_once: int, steps: list[tuple[int, int, bool, bool]]
) -> None:
    """Calls begin and end in any order: never too many, and none is left behind."""
    slots = DeliverySlots(at_once)
    latest: dict[bytes, int] = {}
    under_way: list[Delivery] = []
    for number, (cell, host, is_failed, ends) in enumerate(steps):
        each = delivery(number, f"{host}.example", cell=b"%d" % cell)
        slots.add(each)
        latest[each.cell] = number
        for made in started(slots):
            assert latest.pop(made.cell) == made.number
            under_way.append(made)
        assert len(under_way) <= at_once
        assert slots.waiting == len(latest)
        if ends and under_way:
            slots.finish(under_way.pop(0), 0.0, is_failed=is_failed)
    while slots.waiting or under_way:
        for made in started(slots):
            assert latest.pop(made.cell) == made.number
            under_way.append(made)
        assert under_way, "one waits, all slots are free, and it is not made"
        slots.finish(under_way.pop(0), 0.0, is_failed=True)
    assert not latest
