"""The names and origins of a node, from its configuration and its certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.node.browser_policy import browser_policy
from millpond.node.config import OFF, Config, ConfigError
from millpond.node.node import Node
from millpond.transports.browser_policy import BrowserPolicy, BrowserRefusal, is_address
from tests.node.tls.certificate_files import files_of


def is_own(policy: BrowserPolicy, host: str) -> bool:
    refusal = policy.check([host.encode()], [], None)
    assert refusal in (None, BrowserRefusal.HOST)
    return refusal is None


def test_names_that_the_operator_gave_anywhere_are_names_of_the_node() -> None:
    config = Config(
        http="0.0.0.0:7404",
        ws="pond.lan:7401",
        addresses=("wss://Home.example:7401", "tcp://203.0.113.7"),
        host_names=("Mill.lan.", "*.s2.lan"),
        origins=("https://Proxy.example/", "http://other.example:8080", "chrome-extension://abc"),
    )
    policy = browser_policy(config, ("cert.example", "*.cert.example", "192.0.2.1"))
    own = ("pond.lan:1", "home.example", "mill.lan", "a.s2.lan:7404", "proxy.example")
    for host in (*own, "other.example:8080", "cert.example", "a.cert.example", "203.0.113.7"):
        assert is_own(policy, host), host
    foreign = ("s2.lan", "other.example", "proxy.example:7404", "abc", "0.0.0.0.example")
    for host in (*foreign, "acert.example", "lan", "*.s2.lan.example"):
        assert not is_own(policy, host), host


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(("127.0.0.1", True), ("[::1]", True), ("[fe80::1%eth0]", True), ("0.0.0.0", True)),
        *(("127.1", False), ("0x7f.0.0.1", False), ("2130706433", False), ("0177.0.0.1", False)),
        *(("::1", False), ("[127.0.0.1]", False), ("[::1", False), ("", False), ("[]", False)),
    ],
)
def test_an_address_is_one_as_browsers_write_it(name: str, is_one: bool) -> None:
    assert is_address(name) == is_one


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(
            ("host_names", each)
            for each in ("", "a b", "*", "a.*", "http://a", "a:7404", "ü", "a..b")
        ),
        *(
            ("origins", each)
            for each in ("null", "*", "app.example", "https://*.example", "https://")
        ),
        ("origins", "https://app.example/path"),
    ],
)
def test_what_is_no_name_or_origin_is_refused_at_the_start(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        Config(**{setting: (value,)})  # type: ignore[arg-type]


async def test_the_names_of_a_certificate_are_names_of_the_node(tmp_path: Path) -> None:
    files = files_of(tmp_path, name="mill")
    listeners = dict.fromkeys(("p2p", "ws", "s3p", "rustlog", "http"), OFF)
    config = Config(**listeners, tls_cert=files.cert, tls_key=files.key)  # type: ignore[arg-type]
    async with Node(config) as node:
        assert is_own(node.browser_policy, "mill:7404")
        assert not is_own(node.browser_policy, "weir:7404")
