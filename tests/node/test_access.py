"""Tokens and their rights (P2P-24): the token file, its errors, and who is from this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.messages import Rights
from node.access import Access, TokenFileError, is_loopback, is_remote, load_tokens

NEAR, FAR = "127.0.0.1", "192.0.2.7"


def load(tmp_path: Path, text: str | bytes, mode: int = 0o600) -> Access:
    path = tmp_path / "tokens"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return load_tokens(path)


def test_without_tokens_everyone_is_served_and_this_machine_administers() -> None:
    access = Access()
    assert not access.is_controlled
    for token in (None, b"", b"anything"):
        assert access.authorize(token, b"any", NEAR) == Rights.ALL
        assert access.authorize(token, b"any", "::1") == Rights.ALL
        assert access.authorize(token, b"any", FAR) == Rights.CHANNEL


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
        assert access.authorize(b"token", b"any", address) == rights


@pytest.mark.parametrize("token", [None, b"", b"Token", b"token ", b"tokentoken", b"other"])
def test_with_tokens_nobody_comes_in_without_one(tmp_path: Path, token: bytes | None) -> None:
    assert load(tmp_path, "token all\n").authorize(token, b"any", NEAR) is None


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
        assert access.authorize(b"token", channel, NEAR) == Rights.GET
    for channel in outside:
        assert access.authorize(b"token", channel, NEAR) is None


def test_comments_and_empty_lines_mean_nothing(tmp_path: Path) -> None:
    access = load(tmp_path, "\n# a comment\n   \n  one\tput\ntwo get chat/#*\n")
    assert access.authorize(b"one", b"x", NEAR) == Rights.PUT
    assert access.authorize(b"two", b"chat/#1", NEAR) == Rights.GET
    assert access.authorize(b"#", b"x", NEAR) is None


def test_a_comment_behind_a_grant_is_refused_because_it_may_be_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="tokens:1: a comment needs a line of its own"):
        load(tmp_path, "bob put #general\n")


def test_lines_of_one_token_add_up(tmp_path: Path) -> None:
    access = load(tmp_path, "carol put inbox/*\ncarol get outbox/*\n")
    assert access.authorize(b"carol", b"inbox/a", NEAR) == Rights.PUT
    assert access.authorize(b"carol", b"outbox/a", NEAR) == Rights.GET
    assert access.authorize(b"carol", b"other", NEAR) is None


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    access = load(tmp_path, "")
    assert access.is_controlled and access.authorize(None, b"a", NEAR) is None


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
    with pytest.raises(TokenFileError, match=complaint) as refused:
        load(tmp_path, text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(TokenFileError, match="chmod 600"):
        load(tmp_path, "token all\n", mode)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="nowhere"):
        load_tokens(tmp_path / "nowhere")


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
        ("", False, False),
        ("example.org", False, False),
        ("127.0.0.1.example.org", False, False),
    ],
)
def test_only_numbers_and_localhost_are_this_machine(
    host: str, loopback: bool, remote: bool
) -> None:
    assert is_loopback(host) is loopback and is_remote(host) is remote
