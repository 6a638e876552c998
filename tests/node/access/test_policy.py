"""The token file (P2P-24): its lines, its errors, and who is from this machine."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path

import pytest

from millpond.actors.messages import Rights
from millpond.node.access.policy import AccessPolicy, GrantOutcome, RuleFiles
from millpond.node.access.rules_file import AccessFileError
from millpond.node.ip import is_loopback, is_remote
from millpond.transports.server.interface import Principal

NEAR, FAR = "127.0.0.1", "192.0.2.7"


def load(tmp_path: Path, text: str | bytes, mode: int = 0o600) -> AccessPolicy:
    path = tmp_path / "tokens"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return AccessPolicy(RuleFiles(token_file=path))


def test_without_tokens_this_machine_administers_and_others_only_where_that_was_said() -> None:
    access, everybody = AccessPolicy(), AccessPolicy(is_public=True)
    assert not access.is_controlled
    for token in (None, b"", b"anything"):
        assert access.authorize(Principal(token, address=NEAR), b"any") == Rights.ALL
        assert access.authorize(Principal(token, address="::1"), b"any") == Rights.ALL
        assert access.authorize(Principal(token, address=FAR), b"any") is None
        assert everybody.authorize(Principal(token, address=FAR), b"any") == Rights.CHANNEL


@pytest.mark.parametrize(
    ("words", "rights"),
    [
        ("put", Rights.PUT),
        ("put,get", Rights.PUT | Rights.GET),
        ("push,ack,list", Rights.PUSH | Rights.ACK | Rights.LIST),
        ("admin", Rights.ADMIN),
        ("all", Rights.ALL),
        ("get,get", Rights.GET),
    ],
)
def test_a_line_names_rights(tmp_path: Path, words: str, rights: Rights) -> None:
    access = load(tmp_path, f"token {words}\n")
    assert access.is_controlled
    for address in (NEAR, FAR):
        assert access.authorize(Principal(b"token", address=address), b"any") == rights


@pytest.mark.parametrize("token", [None, b"", b"Token", b"token ", b"tokentoken", b"other"])
def test_with_tokens_nobody_comes_in_without_one(tmp_path: Path, token: bytes | None) -> None:
    assert load(tmp_path, "token all\n").authorize(Principal(token, address=NEAR), b"any") is None


@pytest.mark.parametrize(
    ("patterns", "inside", "outside"),
    [
        ("", [b"a", b"\x00\xff"], []),
        ("chat/*", [b"chat/", b"chat/1", b"chat/a/b"], [b"chat", b"Chat/1", b"x/chat/1"]),
        ("a ?", [b"a", b"x"], [b"ab", b""]),
        ("[ab]1 c", [b"a1", b"b1", b"c"], [b"c1", b"ab1"]),
        ("\u2603*", ["\u2603!".encode()], [b"x"]),
        ("*", [b"\xff\xfe", b"anything"], []),
    ],
)
def test_patterns_choose_channels(
    tmp_path: Path, patterns: str, inside: list[bytes], outside: list[bytes]
) -> None:
    access = load(tmp_path, f"token get {patterns}\n")
    for channel in inside:
        assert access.authorize(Principal(b"token", address=NEAR), channel) == Rights.GET
    for channel in outside:
        assert access.authorize(Principal(b"token", address=NEAR), channel) is None


def test_comments_and_empty_lines_mean_nothing(tmp_path: Path) -> None:
    access = load(tmp_path, "\n# a comment\n   \n  one\tput\ntwo get chat/#*\n")
    assert access.authorize(Principal(b"one", address=NEAR), b"x") == Rights.PUT
    assert access.authorize(Principal(b"two", address=NEAR), b"chat/#1") == Rights.GET
    assert access.authorize(Principal(b"#", address=NEAR), b"x") is None


def test_a_comment_behind_a_grant_is_refused_because_it_may_be_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(AccessFileError, match="tokens:1: a comment needs a line of its own"):
        load(tmp_path, "bob put #general\n")


def test_lines_of_one_token_add_up(tmp_path: Path) -> None:
    access = load(tmp_path, "carol put inbox/*\ncarol get outbox/*\n")
    assert access.authorize(Principal(b"carol", address=NEAR), b"inbox/a") == Rights.PUT
    assert access.authorize(Principal(b"carol", address=NEAR), b"outbox/a") == Rights.GET
    assert access.authorize(Principal(b"carol", address=NEAR), b"other") is None


def test_of_lines_without_patterns_those_with_admin_reach_streams(tmp_path: Path) -> None:
    """As they do over P2P, where admin has access to all streams."""
    lines = "clerk put,get\nowner all\nboss admin\nlocal all jobs/*\nlogger put stream:logs\n"
    access = load(tmp_path, lines)
    for token, name, rights in (
        (b"clerk", b"logs", None),
        (b"owner", b"logs", Rights.ALL),
        (b"owner", b"", Rights.ALL),
        (b"boss", b"logs", Rights.ADMIN),
        (b"local", b"jobs/1", None),
        (b"logger", b"logs", Rights.PUT),
        (b"logger", b"", None),
    ):
        assert access.authorize_stream(Principal(token, address=NEAR), name) == rights
    assert access.authorize(Principal(b"logger", address=NEAR), b"logs") is None


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    access = load(tmp_path, "")
    assert access.is_controlled and access.authorize(Principal(None, address=NEAR), b"a") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("s3cret\n", ":1: rights are missing"),
        ("ok all\n\ns3cret put,fly\n", ":3: unknown right 'fly'"),
        ("s3cret PUT\n", ":1: unknown right 'PUT'"),
        ("s3cret put,\n", ":1: unknown right ''"),
        (b"\xff\xfe\x00", "codec"),
    ],
)
def test_a_bad_file_is_refused_without_telling_tokens(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(AccessFileError, match=complaint) as refused:
        load(tmp_path, text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(AccessFileError, match="chmod 600"):
        load(tmp_path, "token all\n", mode)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessFileError, match="nowhere"):
        AccessPolicy(RuleFiles(token_file=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("host", "loopback", "remote"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("192.0.2.7", False, True),
        ("fe80::1%eth0", False, True),
        ("::ffff:127.0.0.1", True, False),
        ("::ffff:192.0.2.7", False, True),
        ("", False, True),
        ("somebody", False, False),
        ("example.org", False, False),
        ("127.0.0.1.example.org", False, False),
    ],
)
def test_only_numbers_and_localhost_are_this_machine(
    host: str, loopback: bool, remote: bool
) -> None:
    assert is_loopback(host) is loopback and is_remote(host) is remote


@pytest.mark.parametrize("listener", ["p2p", "ws", "s3p", "rustlog", "http"])
@pytest.mark.parametrize("address", [NEAR, "::1", FAR, ""])
@pytest.mark.parametrize("certificate", [None, bytes(32)])
@pytest.mark.parametrize("is_public", [False, True])
@pytest.mark.parametrize("name", [b"", b"any", b"mail/x", b"chat/" + b"a" * 52])
def test_rights_in_streams_without_rules_are_those_of_the_grants(
    listener: str, address: str, certificate: bytes | None, is_public: bool, name: bytes
) -> None:
    """They are found without a look at each grant."""
    access = AccessPolicy(is_public=is_public)
    principal = Principal(address=address, listener=listener, certificate=certificate)
    given = [
        each.grant.rights
        for each in access.explain(principal, name, is_stream=True).reasons
        if each.outcome is GrantOutcome.GIVES
    ]
    expected = reduce(or_, given) if given else None
    assert access.authorize_stream(principal, name) == expected
