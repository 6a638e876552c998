"""Announcements, as anybody on the network can make them, and the bounds of what is found."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.node.discovery.announcement import (
    ADDRESSES_MAX,
    INSTANCE_CHARS_MAX,
    SERVICE,
    VERSION_CHARS_MAX,
    Announcement,
    BadAnnouncement,
    properties_of,
    read_announcement,
)
from millpond.node.discovery.found_nodes import (
    AGE_S_MAX,
    CHECK_EVERY_S,
    FAILED_MAX,
    FAILED_S,
    FOUND_MAX,
    PER_ADDRESS_MAX,
    WAITING_MAX,
    FoundNodes,
)
from millpond.node.discovery.networks import LocalNetwork, local_networks
from millpond.node.peers.identity import peer_id

LAN = LocalNetwork(IPv4Address("192.168.7.2"), 24)
DOCKER = LocalNetwork(IPv4Address("172.17.0.1"), 16)
PUBLIC = LocalNetwork(IPv4Address("203.0.113.9"), 24)
LOOPBACK = LocalNetwork(IPv4Address("127.0.0.1"), 8)
LAN6 = LocalNetwork(IPv6Address("fd12::2"), 64)
LINK6 = LocalNetwork(IPv6Address("fe80::2"), 64)
PUBLIC6 = LocalNetwork(IPv6Address("2606:4700::7"), 64)
KEY = bytes(range(32))
ADDRESSES = st.one_of(
    st.ip_addresses().map(str), st.text(max_size=40), st.sampled_from(["192.168.7.9", "127.0.0.1"])
)


@given(
    name=st.one_of(st.text(max_size=300), st.text(max_size=80).map(lambda x: f"{x}.{SERVICE}")),
    port=st.one_of(st.none(), st.integers(-1, 2**17)),
    properties=st.dictionaries(
        st.sampled_from([b"id", b"v", b"x"]),
        st.one_of(st.none(), st.binary(max_size=300), st.just(peer_id(KEY).encode())),
    ),
    addresses=st.lists(ADDRESSES, max_size=40),
)
@example(
    name=f"a.{SERVICE}",
    port=1,
    properties=properties_of(peer_id(KEY), "1"),
    addresses=["192.168.7.9"],
)
def test_hostile_records_are_refused_or_bounded(
    name: str, port: int | None, properties: dict[bytes, Any], addresses: list[str]
) -> None:
    try:
        found = read_announcement(name, port, properties, addresses, [LAN])
    except BadAnnouncement:
        return
    assert 0 < len(found.instance) <= INSTANCE_CHARS_MAX
    assert len(found.public) == 32 and 0 < found.port < 2**16
    assert len(found.version) <= VERSION_CHARS_MAX and found.version.isascii()
    assert 0 < len(found.addresses) <= ADDRESSES_MAX
    assert all(ip_address(each) in LAN.network for each in found.addresses)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "127.0.0.1", "192.168.8.1", "0.0.0.0", "224.0.0.251", "::1", "fe80::1"]
)
def test_addresses_outside_of_the_local_networks_are_left_out(address: str) -> None:
    records = f"a.{SERVICE}", 7400, properties_of(peer_id(KEY), "1")
    with pytest.raises(BadAnnouncement, match="no address"):
        read_announcement(*records, [address], [LAN])
    found = read_announcement(*records, [address, "192.168.7.9"], [LAN])
    assert found.addresses == ("192.168.7.9",)


def test_addresses_of_unique_local_networks_are_read() -> None:
    records = f"a.{SERVICE}", 7400, properties_of(peer_id(KEY), "1")
    addresses = ["fe80::9", "fd12:0:0:1::9", "2606:4700::9", "192.168.7.9", "fd12::9"]
    assert read_announcement(*records, addresses, [LAN6]).addresses == ("fd12::9",)


@pytest.mark.parametrize(
    ("host", "chosen", "networks"),
    [
        ("0.0.0.0", (), [DOCKER, LAN]),
        ("::", (), [LAN6]),
        ("fd12::2", (), [LAN6]),
        ("fe80::2", (), []),
        ("2606:4700::7", (), []),
        ("::", ("fd12::2",), [LAN6]),
        ("192.168.7.2", (), [LAN]),
        ("203.0.113.9", (), []),
        ("127.0.0.1", (), []),
        ("0.0.0.0", ("192.168.7.2",), [LAN]),
        ("127.0.0.1", ("127.0.0.1",), [LOOPBACK]),
        ("192.168.7.2", ("127.0.0.1",), []),
    ],
)
def test_nodes_are_looked_for_on_private_networks_of_the_listener(
    host: str, chosen: tuple[str, ...], networks: list[LocalNetwork]
) -> None:
    def interfaces() -> list[LocalNetwork]:
        return [PUBLIC6, LINK6, LAN6, LAN, DOCKER, PUBLIC, LOOPBACK]

    assert local_networks(host, chosen, interfaces) == tuple(networks)


def announcement(number: int, address: str = "", port: int = 7400) -> Announcement:
    return Announcement(
        f"i{number}",
        number.to_bytes(32, "big"),
        (address or f"10.0.{number // 256}.{number % 256}",),
        port,
        "1",
    )


def test_thousands_of_announcements_are_bounded() -> None:
    found = FoundNodes(KEY)
    for number in range(5000):
        found.heard(announcement(number), 0.0)
    assert found.waiting == WAITING_MAX
    for number in range(5000):
        found.verified(announcement(number), "card", 0.0)
    assert len(found.all(0.0)) == FOUND_MAX
    for number in range(5000):
        found.failed(announcement(number), 0.0)
    assert len(found._failed) == FAILED_MAX


def test_one_address_fills_no_list() -> None:
    found = FoundNodes(KEY)
    for number in range(100):
        found.heard(announcement(number, "10.0.0.1"), 0.0)
    assert found.waiting == PER_ADDRESS_MAX
    for number in range(100):
        found.verified(announcement(number, "10.0.0.1"), "card", 0.0)
    assert len(found) == PER_ADDRESS_MAX
    found.heard(announcement(200), 0.0)
    assert found.waiting == PER_ADDRESS_MAX + 1


def test_a_found_node_is_checked_again_and_dropped_when_it_is_silent() -> None:
    found, node = FoundNodes(KEY), announcement(1)
    found.heard(node, 0.0)
    assert found.next(0.0) == node
    found.verified(node, "card", 0.0)
    assert found.next(CHECK_EVERY_S - 1) is None
    assert found.next(CHECK_EVERY_S) == node
    found.failed(node, CHECK_EVERY_S)
    assert len(found.all(AGE_S_MAX - 1)) == 1
    assert found.all(AGE_S_MAX) == []


def test_a_refused_announcement_is_not_checked_again_for_a_while() -> None:
    found, node = FoundNodes(KEY), announcement(1)
    found.failed(node, 0.0)
    found.heard(node, FAILED_S - 1)
    assert found.waiting == 0
    found.heard(node, FAILED_S)
    assert found.waiting == 1


def test_a_false_announcement_of_a_found_node_leaves_it_where_it_is() -> None:
    found, node, liar = FoundNodes(KEY), announcement(1), announcement(1, "10.9.9.9")
    found.verified(node, "card", 0.0)
    found.heard(liar, 0.0)
    found.failed(liar, 0.0)
    assert [each.announcement for each in found.all(0.0)] == [node]
    found.gone("another")
    assert len(found) == 1
    found.gone("i1")
    assert len(found) == 0


def test_the_own_announcement_is_passed_over() -> None:
    found = FoundNodes((1).to_bytes(32, "big"))
    found.heard(announcement(1), 0.0)
    assert found.waiting == 0


def test_zeroconf_keeps_a_bounded_number_of_records() -> None:
    """Versions before 0.154 are not accepted: they may keep all that anybody announces."""
    zeroconf = pytest.importorskip("zeroconf", reason="an extra, `discovery`")
    cache, text, internet = zeroconf.DNSCache(), 16, 1
    for number in range(11_000):
        record = zeroconf.DNSText(f"{number}.{SERVICE}", text, internet, 2**30, b"x")
        cache.async_add_records([record])
    assert len(cache.names()) <= 10_000
