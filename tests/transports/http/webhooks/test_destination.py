"""Where webhooks may go (DSS-29, DSS-30)."""

from __future__ import annotations

import pytest

from millpond.transports.http.webhooks.destination import (
    Network,
    UrlRejected,
    WebhookPolicy,
    destination_of,
    hosts_of,
    is_this_machine,
    may_connect,
)

OUTER = WebhookPolicy()
LOCAL = WebhookPolicy(is_local=True)
LISTED = WebhookPolicy(hosts=hosts_of(["Hooks.Internal.", "10.1.2.3", "[fd00::1]"]))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://worker.example/hook", ("worker.example", 443, "/hook")),
        ("https://worker.example", ("worker.example", 443, "/")),
        ("https://Worker.Example.:8443/a?b=c#d", ("worker.example", 8443, "/a?b=c")),
        ("https://8.8.8.8/x", ("8.8.8.8", 443, "/x")),
        ("https://xn--bcher-kva.example/", ("xn--bcher-kva.example", 443, "/")),
    ],
)
def test_public_hosts_by_tls(url: str, target: tuple[str, int, str]) -> None:
    for policy in (OUTER, LOCAL):
        found = destination_of(url, policy)
        assert (found.host, found.port, found.target) == target
        assert found.is_secure and found.network is Network.PUBLIC


@pytest.mark.parametrize(
    "url",
    [
        "",
        "worker.example",
        "/hook",
        "ftp://worker.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https:///hook",
        "https://user@worker.example/",
        "https://user:word@worker.example/",
        "https://worker.example:99999/",
        "https://worker.example:x/",
        "https://worker example/",
        "https://worker.example/\r\nx: y",
        "https://worker.example\\@10.0.0.1/",
        "https://bücher.example/",
        "https://a" + "b" * 2048,
        "https://[::1/",
        "https://[zz]/",
        "https://worker.example%00/",
    ],
)
def test_what_is_no_url(url: str) -> None:
    for policy in (OUTER, LOCAL, LISTED):
        with pytest.raises(UrlRejected):
            destination_of(url, policy)


PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "127.0.0.1"),
    *("127.9.9.9", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8"),
    *("192.168.1.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "255.255.255.255"),
    *("0x7f.1", "0x7f000001", "2130706433", "127.1", "017700000001", "0xa.1", "10.0.0.1."),
    *("[::1]", "[::]", "[fe80::1]", "[fd00::2]", "[2001:db8::1]", "[2606:4700::1111]"),
    *("[::ffff:10.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:8.8.8.8]"),
    *("localhost", "LOCALHOST", "localhost.", "a.localhost"),
]


@pytest.mark.parametrize("host", [each for each in PRIVATE if each != "[::ffff:8.8.8.8]"])
def test_private_hosts(host: str) -> None:
    for policy in (OUTER, LOCAL, LISTED):
        with pytest.raises(UrlRejected):
            destination_of(f"https://{host}/hook", policy)


@pytest.mark.parametrize("host", ["10.0.0.1", "worker.example", "8.8.8.8", "[::1]", "0.0.0.0"])
def test_without_tls_nothing_but_this_machine(host: str) -> None:
    for policy in (OUTER, LOCAL):
        with pytest.raises(UrlRejected):
            destination_of(f"http://{host}/hook", policy)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "LocalHost."])
def test_this_machine_is_called_by_a_local_node(host: str) -> None:
    assert destination_of(f"http://{host}:8000/", LOCAL).network is Network.LOOPBACK
    with pytest.raises(UrlRejected):
        destination_of(f"http://{host}:8000/", OUTER)


def test_listed_hosts() -> None:
    for url in (
        "http://hooks.internal/x",
        "https://HOOKS.internal:8443/",
        "http://10.1.2.3/",
        "https://[fd00::1]/",
    ):
        assert destination_of(url, LISTED).network is Network.ANY
    with pytest.raises(UrlRejected):
        destination_of("http://10.1.2.4/", LISTED)
    with pytest.raises(UrlRejected):
        destination_of("https://user@hooks.internal/", LISTED)


def test_the_host_header() -> None:
    found = destination_of("http://[fd00::1]:81/", LISTED)
    assert (found.host, found.authority) == ("fd00::1", "[fd00::1]:81")
    assert destination_of("https://worker.example:443/", OUTER).authority == "worker.example"


def test_switched_off() -> None:
    with pytest.raises(UrlRejected):
        destination_of("https://worker.example/", WebhookPolicy(is_enabled=False))


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("2606:4700::1111", True),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::10.0.0.1", False),
        ("::ffff:0:10.0.0.1", False),
        ("64:ff9b:1::a00:1", False),
        ("fec0::1", False),
        ("4000::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("2002:0a00:0001::", False),
        ("2001:0:53aa:64c::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
    ],
)
def test_addresses(address: str, is_public: bool) -> None:
    assert may_connect(address, Network.PUBLIC) is is_public
    assert may_connect(address, Network.ANY)


def test_a_local_name_is_local() -> None:
    assert may_connect("127.0.0.1", Network.LOOPBACK) and may_connect("::1", Network.LOOPBACK)
    assert not may_connect("8.8.8.8", Network.LOOPBACK)
    assert not may_connect("10.0.0.1", Network.LOOPBACK)


def test_hosts_that_name_this_machine() -> None:
    for each in (b"localhost", b"LOCALHOST:7404", b"127.0.0.1:7404", b"127.9.9.9", b"[::1]:7404"):
        assert is_this_machine(each), each
    others = (b"", b"mill.example", b"127.0.0.1.mill.example", b"10.0.0.1", b"[::2]", b"[", b"\xff")
    for each in others:
        assert not is_this_machine(each), each
