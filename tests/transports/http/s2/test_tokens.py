"""Access tokens from their issue to their end, and who may have any (A.2, A.3)."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from millpond.actors.messages import Rights
from millpond.transports.http.s2.codecs.info import time_text
from millpond.transports.server.interface import Principal
from tests.transports.http.s2.account import (
    ALL,
    BEGAN_AT,
    OTHER,
    OWN,
    RECORD,
    REMOTE,
    Hands,
    account,
    code_of,
)

READS = {"basins": ALL, "streams": ALL, "ops": ["read"]}


async def test_a_3_a_token_is_told_once_listed_without_itself_and_revoked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with account() as s2:
        scope = {
            "basins": {"exact": OTHER},
            "streams": {"prefix": "a/"},
            "access_tokens": {"exact": ""},
            "op_groups": {"stream": {"read": True, "write": False}},
            "ops": ["list-streams"],
        }
        end = "2030-01-31T12:00:00.000Z"
        token = await s2.issue("team/é 1", scope, expires_at=end)
        assert token.startswith("mpi1.")
        assert len(token) > 40
        got = await s2.ask("GET", "/access-tokens")
        assert got.status == 200
        assert got.json() == {
            "access_tokens": [
                {
                    "id": "team/é 1",
                    "expires_at": end,
                    "auto_prefix_streams": False,
                    "scope": {
                        **scope,
                        "access_tokens": None,
                        "op_groups": {
                            "account": {"read": False, "write": False},
                            "basin": {"read": False, "write": False},
                            "stream": {"read": True, "write": False},
                        },
                    },
                }
            ],
            "has_more": False,
        }
        body = {"id": "team/é 1", "scope": scope}
        again = await s2.ask("POST", "/access-tokens", body)
        assert code_of(again) == (409, "resource_already_exists")
        gone = await s2.ask("DELETE", "/access-tokens/team%2F%C3%A9%201")
        assert (gone.status, gone.body) == (204, b"")
        assert gone.headers[b"content-length"] == b"0"
        assert b"content-type" not in gone.headers
        missing = await s2.ask("DELETE", "/access-tokens/team%2F%C3%A9%201")
        assert code_of(missing) == (404, "access_token_not_found")
        assert (await s2.ask("GET", "/access-tokens")).json()["access_tokens"] == []
        assert await s2.issue("team/é 1", scope) != token
    assert token.removeprefix("mpi1.") not in caplog.text


async def test_a_2_tokens_are_listed_in_pages() -> None:
    async with account() as s2:
        for name in ("b", "a/2", "a/1", "a/3"):
            await s2.issue(name, READS)
        got = (await s2.ask("GET", "/access-tokens?prefix=a/&start_after=a/1&limit=1")).json()
        assert [each["id"] for each in got["access_tokens"]] == ["a/2"]
        assert got["has_more"]
        got = (await s2.ask("GET", "/access-tokens?limit=0")).json()
        assert [each["id"] for each in got["access_tokens"]] == ["a/1", "a/2", "a/3", "b"]


async def test_only_who_administers_everything_issues_tokens(tmp_path: Path) -> None:
    rules = tmp_path / "access.conf"
    rules.write_text(
        "address:127.0.0.0/8 all\n"
        "address:192.0.2.7 put,get,list,push,ack\n"
        "address:192.0.2.8 all stream:a*\n"
        "address:192.0.2.9 admin\n"
    )
    rules.chmod(0o600)
    async with account(rules=rules) as s2:
        token = await s2.issue(
            "all", {**READS, "access_tokens": ALL, "ops": ["revoke-access-token"]}
        )
        body = {"id": "one", "scope": READS}
        for host, wanted in (
            ("192.0.2.7", (403, "permission_denied")),
            ("192.0.2.8", (403, "permission_denied")),
            ("192.0.2.10", (401, "authn")),
        ):
            got = await s2.ask("POST", "/access-tokens", body, host=host)
            assert code_of(got) == wanted
            assert code_of(await s2.ask("GET", "/access-tokens", host=host)) == wanted
            assert code_of(await s2.ask("DELETE", "/access-tokens/all", host=host)) == wanted
        assert (await s2.ask("POST", "/access-tokens", body, host="192.0.2.9")).status == 201
        got = await s2.ask("POST", "/access-tokens", {"id": "two", "scope": READS}, token=token)
        assert code_of(got) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "a", "scope": {"ops": []}}, "invalid"),
        ({"id": "a", "scope": {**READS, "ops": ["rule"]}}, "bad_json"),
        ({"id": "a", "scope": {**READS, "basins": {"exact": "a", "prefix": "a"}}}, "bad_json"),
        ({"id": "a", "scope": {**READS, "basins": {"prefix": "b" * 49}}}, "invalid"),
        ({"id": "a", "scope": {**READS, "streams": {"exact": "é" * 257}}}, "invalid"),
        ({"id": "a", "scope": {**READS, "access_tokens": {"exact": "a" * 97}}}, "invalid"),
        (
            {
                "id": "a",
                "scope": {**READS, "streams": {"exact": "a"}},
                "auto_prefix_streams": True,
            },
            "invalid",
        ),
        ({"id": "a", "scope": READS, "expires_at": "2023-01-01T00:00:00Z"}, "invalid"),
        ({"id": "a", "scope": READS, "expires_at": "tomorrow"}, "bad_json"),
        ({"id": "", "scope": READS}, "bad_json"),
        ({"id": "a" * 97, "scope": READS}, "bad_json"),
        ({"id": "a"}, "bad_json"),
        ([], "bad_json"),
    ],
)
async def test_a_3_what_cannot_be_a_token_is_refused(body: object, code: str) -> None:
    async with account() as s2:
        got = await s2.ask("POST", "/access-tokens", body)
        assert code_of(got) == ({"invalid": 422, "bad_json": 400}[code], code)
        assert (await s2.ask("GET", "/access-tokens")).json()["access_tokens"] == []


async def test_a_token_ends_by_the_clock_of_the_node() -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        end = time_text(int((BEGAN_AT + 10) * 1000))
        token = await s2.issue("short", READS, expires_at=end)
        path = "/streams/a/records?seq_num=0"
        assert (await s2.ask("GET", path, token=token, basin=OTHER)).status == 200
        hands.at_s = 9.999
        assert (await s2.ask("GET", path, token=token, basin=OTHER)).status == 200
        hands.at_s = 10.0
        got = await s2.ask("GET", path, token=token, basin=OTHER)
        assert code_of(got) == (401, "authn")
        assert (await s2.ask("GET", "/access-tokens")).json()["access_tokens"] == []
        gone = await s2.ask("DELETE", "/access-tokens/short")
        assert code_of(gone) == (404, "access_token_not_found")
        assert await s2.issue("short", READS) != token


async def test_an_open_session_ends_when_its_token_is_revoked() -> None:
    """And nobody else's does; a token that was revoked gives nothing, on this machine neither."""
    async with account() as s2:
        await s2.fill("a")
        first, second = await s2.issue("first", READS), await s2.issue("second", READS)
        path = "/streams/a/records?seq_num=0"
        async with (
            s2.session(path, first, OTHER) as cut,
            s2.session(path, second, OTHER) as left,
        ):
            for each in (cut, left):
                assert b"event: batch" in (await each.piece() or b"")
                assert b"event: ping" in (await each.piece() or b"")
            assert (await s2.ask("DELETE", "/access-tokens/first")).status == 204
            with anyio.fail_after(60):
                last = await cut.piece()
                assert last is not None
                assert b"event: error" in last
                assert b"permission_denied" in last
                assert await cut.piece() is None
            await s2.ask("POST", "/streams/a/records", RECORD, basin=OTHER)
            with anyio.fail_after(60):
                assert b"event: batch" in (await left.piece() or b"")
        for token in (first, "mpi1.never", "mpi1."):
            got = await s2.ask("GET", path, token=token, basin=OTHER)
            assert code_of(got) == (401, "authn")
            got = await s2.ask("GET", "/basins", token=token)
            assert code_of(got) == (401, "authn")


async def test_an_open_session_ends_when_rights_are_judged_after_its_token_has_ended() -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        end = time_text(int((BEGAN_AT + 10) * 1000))
        token = await s2.issue("short", READS, expires_at=end)
        async with s2.session("/streams/a/records?seq_num=0", token, OTHER) as session:
            assert b"event: batch" in (await session.piece() or b"")
            assert b"event: ping" in (await session.piece() or b"")
            hands.at_s = 10.0
            s2.node.services.reauthorize()
            with anyio.fail_after(60):
                assert b"permission_denied" in (await session.piece() or b"")


async def test_an_operation_that_is_named_often_is_kept_once() -> None:
    async with account() as s2:
        await s2.issue("one", {**READS, "ops": ["read", "check-tail"] * 2000})
        (info,) = (await s2.ask("GET", "/access-tokens")).json()["access_tokens"]
        assert info["scope"]["ops"] == ["read", "check-tail"]


async def test_a_token_narrows_who_could_do_everything_without_it() -> None:
    async with account() as s2:
        token = await s2.issue("one", READS)
        assert (await s2.ask("POST", "/streams", {"stream": "a"})).status == 201
        got = await s2.ask("POST", "/streams", {"stream": "b"}, token=token)
        assert code_of(got) == (403, "permission_denied")
        assert (await s2.ask("GET", "/basins", token="any other")).status == 200


async def test_other_listeners_know_no_such_token() -> None:
    """At P2P and WebSocket it is refused like an unknown one; other APIs of HTTP give rights where
    the token permits all that a right stands for."""
    everything = {
        "basins": ALL,
        "streams": {"prefix": "a*{id}[b]"},
        "op_groups": {
            "basin": {"read": True, "write": True},
            "stream": {"read": True, "write": True},
        },
    }
    async with account() as s2:
        token = (await s2.issue("all", everything)).encode()
        access = s2.node.access
        for listener in ("p2p", "ws", "s3p", "rustlog"):
            principal = Principal(token, None, "127.0.0.1", listener)
            assert access.authorize(principal, b"any") is None
            assert access.authorize_stream(principal, b"a*{id}[b]c") is None
        principal = Principal(token, None, REMOTE, "http")
        rights = Rights.PUT | Rights.GET | Rights.LIST | Rights.ADMIN
        assert access.authorize_stream(principal, b"a*{id}[b]c") == rights
        assert access.authorize_stream(principal, b"a*{id}[b]") == rights
        for name in (b"", b"a", b"aa{id}[b]c", b"a*{id}bc", b"b", b"other-basin:a*{id}[b]"):
            assert access.authorize_stream(principal, name) is None
        assert access.authorize(principal, b"any") is None


@pytest.mark.parametrize(
    ("ops", "rights"),
    [
        (["append"], None),
        (["append", "create-stream", "fence"], Rights.PUT),
        (["read", "check-tail"], None),
        (["read", "check-tail", "get-stream-config"], Rights.GET),
        (["list-streams", "check-tail", "get-stream-config"], Rights.LIST),
        (["trim", "delete-stream", "reconfigure-stream"], None),
    ],
)
async def test_a_right_elsewhere_takes_all_that_it_stands_for(
    ops: list[str], rights: Rights | None
) -> None:
    async with account() as s2:
        scope = {"basins": {"exact": OWN}, "streams": ALL, "ops": ops}
        token = (await s2.issue("one", scope)).encode()
        principal = Principal(token, None, REMOTE, "http")
        assert s2.node.access.authorize_stream(principal, b"any") == rights
        elsewhere = {**scope, "basins": {"exact": OTHER}}
        token = (await s2.issue("two", elsewhere)).encode()
        principal = Principal(token, None, REMOTE, "http")
        assert s2.node.access.authorize_stream(principal, b"any") is None
