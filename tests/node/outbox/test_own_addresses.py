"""The addresses that a node puts into its cards, and where cards lead to a node from."""

from __future__ import annotations

import pytest

from millpond.node.outbox import own_addresses
from millpond.node.outbox.own_addresses import OwnAddresses, Reach, interface_numbers, reach_of
from millpond.node.tls.pins import key_pin_of

PIN = key_pin_of(bytes(32))
NUMBERS = ["127.0.0.1", "::1", "fe80::1", "192.168.1.5", "203.0.113.7", "2606:4700::7", "10.0.0.9"]


def addresses(listener: str | None, *configured: str, numbers: list[str] = NUMBERS) -> list[str]:
    found = OwnAddresses(configured, bytes(32), lambda: listener, lambda: numbers)
    return [each.removesuffix(f"#{PIN}") for each in found()]


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        ("127.0.0.1:7400", ["tcp://127.0.0.1:7400"]),
        ("192.168.1.5:7400", ["tls://192.168.1.5:7400"]),
        ("[2606:4700::7]:7400", ["tls://[2606:4700::7]:7400"]),
        ("mill.example:7400", ["tls://mill.example:7400"]),
        (
            "[::]:7400",
            ["tls://[2606:4700::7]:7400"],
        ),
        (None, []),
    ],
)
def test_it_is_what_the_listener_has(listener: str | None, expected: list[str]) -> None:
    """Those that reach furthest come first; none of this machine or link where all are meant."""
    assert addresses(listener) == expected


def test_a_listener_of_ipv4_has_no_others() -> None:
    """A listener at `::` takes no connections of IPv4, either."""
    expected = ["tls://192.168.1.5:7400", "tls://203.0.113.7:7400", "tls://10.0.0.9:7400"]
    assert addresses("0.0.0.0:7400") == expected


def test_the_configured_ones_come_alone() -> None:
    assert addresses("0.0.0.0:7400", "tls://mill.example:7400") == ["tls://mill.example:7400"]


def test_other_machines_are_told_the_pin() -> None:
    found = OwnAddresses((), bytes(32), lambda: "192.168.1.5:7400")()
    assert found == (f"tls://192.168.1.5:7400#{PIN}",)


def test_so_many_numbers_of_interfaces() -> None:
    many = [f"10.0.0.{number}" for number in range(1, 20)]
    assert len(addresses("0.0.0.0:7400", numbers=many)) == own_addresses.FOUND_MAX


def test_the_interfaces_of_this_machine_are_found() -> None:
    assert "127.0.0.1" in interface_numbers()


@pytest.mark.parametrize(
    ("urls", "relays", "reach"),
    [
        ([], [], Reach.NOWHERE),
        (["tcp://127.0.0.1:7400"], [], Reach.MACHINE),
        (["tcp://localhost:7400", "tls://192.168.1.5:7400"], [], Reach.NETWORK),
        (["tls://[fd00::7]:7400"], [], Reach.NETWORK),
        (["tls://8.8.8.8:7400"], [], Reach.ANYWHERE),
        (["tls://mill.example:7400"], [], Reach.ANYWHERE),
        ([], [f"{'a' * 52}@tls://relay.example:7400"], Reach.ANYWHERE),
        ([], ["tcp://127.0.0.1:7400"], Reach.MACHINE),
    ],
)
def test_a_card_says_where_it_leads_from(urls: list[str], relays: list[str], reach: Reach) -> None:
    assert reach_of(urls, relays) is reach
