"""Any Host and Origin: only the node's own names, addresses and listed origins pass."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from hypothesis import assume, example, given
from hypothesis import strategies as st

from millpond.transports.browser_policy import BrowserPolicy, BrowserRefusal, origin_of

LISTED = "https://app.example"
POLICY = BrowserPolicy(["mill.lan", "*.s2.lan"], [LISTED])
NAMES = ("mill.lan", "localhost", "app.example")
PIECES = (
    *("mill", "lan", "s2", "localhost", "app", "example", "evil", "127.0.0.1", "::1", "fe80::1"),
    *(
        ".",
        ":",
        "[",
        "]",
        "%",
        "@",
        "/",
        "80",
        "443",
        "7404",
        "-",
        " ",
        "\0",
        "*",
        ",",
        "#",
        "\u0131",
    ),
)
HOSTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=8).map("".join)


def is_ours(host: str) -> bool:
    """True for what a URL with this host and port leads to by its own name or by address."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        ipaddress.ip_address(name)
    except ValueError:
        pass
    else:
        return True
    return name in NAMES or name.endswith((".localhost", ".s2.lan"))


@given(HOSTS)
@example("localhost:evil.example")
@example("evil.example:localhost")
@example("[::1].evil.example")
@example("[::1]evil.example:80")
@example("127.0.0.1:80.evil.example")
@example("mill.lan:")
@example("evil.example#.localhost")
@example("evil.example/.localhost")
@example("evil.example@mill.lan")
@example("LOCALHOST.:7404")
def test_a_host_that_passes_is_ours(host: str) -> None:
    data = host.encode()
    assume(data.strip(b" \t"))
    if POLICY.check([data], [], None) is None:
        assert is_ours(host)


@given(HOSTS, st.sampled_from(["http://", "https://", "", "null", "HTTP://", "ftp://"]))
@example("127.0.0.1:7404.evil.example", "http://")
@example("127.0.0.1:74040", "http://")
@example("127.0.0.1:7404@evil.example", "http://")
def test_an_origin_that_passes_is_that_of_the_host_or_listed(host: str, scheme: str) -> None:
    origin = (scheme + host).encode()
    refusal = POLICY.check([b"127.0.0.1:7404"], [origin], None)
    if refusal is None:
        own = {b"http://127.0.0.1:7404", b"https://127.0.0.1:7404"}
        assert origin.lower() in own | {LISTED.encode()}
    else:
        assert refusal is BrowserRefusal.ORIGIN


@given(HOSTS)
def test_what_is_listed_is_compared_as_browsers_send_it(host: str) -> None:
    try:
        origin = origin_of(f"https://{host}")
    except ValueError:
        return
    assert origin == origin.lower() == origin_of(origin) and not origin.endswith("/")
    policy = BrowserPolicy(origins=[origin])
    assert policy.check([b"10.0.0.1"], [origin.encode()], b"cross-site") is None
