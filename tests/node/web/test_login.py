"""Links that log in once, and the sessions of the chat page."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from millpond.actors.messages import Rights
from millpond.node.access.policy import AccessPolicy, RuleFiles
from millpond.node.web.login import (
    CHANNEL,
    FILE_NAME,
    LINK_S,
    LINKS_MAX,
    SESSION_S,
    SESSIONS_MAX,
    WebLogin,
)
from millpond.transports.server.interface import Principal


class Time:
    now = 1_763_683_200.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def login(time: Time) -> WebLogin:
    return WebLogin(None, time, os.urandom)


def token_of(login: WebLogin) -> bytes:
    token = login.exchange(login.new_link())
    assert token is not None
    return token.encode()


def test_a_link_logs_in_once(login: WebLogin) -> None:
    link = login.new_link()
    token = login.exchange(link)
    assert token is not None and token != link
    assert login.rights(token.encode()) == Rights.ADMIN
    assert login.exchange(link) is None


def test_a_link_is_no_token_and_a_token_no_link(login: WebLogin) -> None:
    link = login.new_link()
    assert login.rights(link.encode()) is None
    token = login.exchange(link)
    assert token is not None and login.exchange(token) is None


def test_a_link_ends(login: WebLogin, time: Time) -> None:
    link = login.new_link()
    time.now += LINK_S
    assert login.exchange(link) is None


@pytest.mark.parametrize("secret", ["", "mpw1.", "mpw1.AAAA", "\x00", "é" * 100])
def test_guesses_open_nothing(login: WebLogin, secret: str) -> None:
    login.new_link()
    assert login.exchange(secret) is None
    assert login.rights(secret.encode()) is None


def test_a_session_ends(login: WebLogin, time: Time) -> None:
    token = token_of(login)
    time.now += SESSION_S - 1
    assert login.rights(token) == Rights.ADMIN
    time.now += 1
    assert login.rights(token) is None
    assert login.sessions == 0


def test_who_takes_links_without_end_loses_the_oldest(login: WebLogin, time: Time) -> None:
    links = []
    for _ in range(LINKS_MAX + 1):
        links.append(login.new_link())
        time.now += 1
    assert login.exchange(links[0]) is None
    assert all(login.exchange(link) for link in links[1:])


def test_sessions_are_bounded(login: WebLogin, time: Time) -> None:
    tokens = []
    for _ in range(SESSIONS_MAX + 1):
        tokens.append(token_of(login))
        time.now += 1
    assert login.rights(tokens[0]) is None
    assert login.sessions == SESSIONS_MAX
    assert login.rights(tokens[-1]) == Rights.ADMIN


def test_sessions_outlive_the_node_and_the_disk_shows_no_token(tmp_path: Path, time: Time) -> None:
    path = tmp_path / FILE_NAME
    login = WebLogin(path, time, os.urandom)
    kept, revoked = token_of(login), token_of(login)
    assert login.revoke(revoked)
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept[5:] not in path.read_bytes()
    again = WebLogin(path, time, os.urandom)
    assert again.rights(kept) == Rights.ADMIN
    assert again.rights(revoked) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"v":1}', b"\xff", b"[" * 10_000])
def test_a_damaged_file_costs_new_logins_and_nothing_else(
    tmp_path: Path, time: Time, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        login = WebLogin(path, time, os.urandom)
    assert "forgotten" in caplog.text
    assert login.rights(token_of(login)) == Rights.ADMIN


def test_revoking_is_heard_at_once(login: WebLogin) -> None:
    told: list[str] = []
    login.on_revoked.append(lambda: told.append("revoked"))
    one, other, link = token_of(login), token_of(login), login.new_link()
    assert login.revoke(one)
    assert not login.revoke(one)
    assert told == ["revoked"]
    assert login.rights(other) == Rights.ADMIN
    assert login.revoke_all() == 1
    assert told == ["revoked", "revoked"]
    assert login.rights(other) is None
    assert login.exchange(link) is None


def principal(token: bytes | None, address: str = "127.0.0.1") -> Principal:
    return Principal(token=token, address=address, listener="ws")


@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
def test_a_session_reaches_the_page_alone(login: WebLogin, time: Time, address: str) -> None:
    access = AccessPolicy(now=time)
    access.accept_page_sessions(login.rights)
    who = principal(token_of(login), address)
    assert access.authorize(who, CHANNEL) == Rights.ADMIN
    assert access.authorize(who, b"chat/1") is None
    assert access.authorize_stream(who, b"chat/1") is None


def test_a_session_that_ended_has_nothing_even_where_others_have_all(login: WebLogin) -> None:
    """Clients on this machine may do everything as long as no file says otherwise."""
    access = AccessPolicy(RuleFiles())
    access.accept_page_sessions(login.rights)
    who = principal(token_of(login))
    assert access.authorize(principal(None), CHANNEL) is not None
    login.revoke_all()
    assert access.authorize(who, CHANNEL) is None
    assert access.explain(who, CHANNEL).rights is None


def test_an_access_file_does_not_shut_the_page_out(
    login: WebLogin, time: Time, tmp_path: Path
) -> None:
    path = tmp_path / "access.conf"
    path.write_text("")
    path.chmod(0o600)
    access = AccessPolicy(RuleFiles(path), now=time)
    access.accept_page_sessions(login.rights)
    assert access.authorize(principal(None), CHANNEL) is None
    assert access.authorize(principal(token_of(login)), CHANNEL) == Rights.ADMIN
