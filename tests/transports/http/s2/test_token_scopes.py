"""Permissions of tokens: each operation alone, names of basins and streams, prefixes (A.3)."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from millpond.transports.p2p.streams.operations import LISTED_MAX
from tests.transports.http.client import Client, Got
from tests.transports.http.s2.account import (
    ALL,
    OTHER,
    OWN,
    RECORD,
    REMOTE,
    Account,
    account,
    code_of,
    headers_of,
)

FENCE = {"records": [{"headers": [["", b64encode(b"fence").decode()]], "body": ""}]}
TRIM = {
    "records": [
        {"headers": [["", b64encode(b"trim").decode()]], "body": b64encode(bytes(8)).decode()}
    ]
}
BINARY = ((b"s2-format", b"base64"),)

REQUESTS: dict[str, tuple[Any, ...]] = {
    "list-basins": ("GET", "/basins"),
    "create-basin": ("POST", "/basins", {"basin": "third-basin"}),
    "reconfigure-basin": ("PATCH", f"/basins/{OTHER}", {}),
    "get-basin-config": ("GET", f"/basins/{OTHER}"),
    "list-access-tokens": ("GET", "/access-tokens"),
    "issue-access-token": (
        "POST",
        "/access-tokens",
        {"id": "made", "scope": {"ops": ["issue-access-token"]}},
    ),
    "revoke-access-token": ("DELETE", "/access-tokens/old"),
    "list-streams": ("GET", "/streams"),
    "create-stream": ("POST", "/streams", {"stream": "new"}),
    "get-stream-config": ("GET", "/streams/a"),
    "reconfigure-stream": ("PATCH", "/streams/a", {}),
    "check-tail": ("GET", "/streams/a/records/tail"),
    "append": ("POST", "/streams/a/records", RECORD),
    "read": ("GET", "/streams/a/records?seq_num=0"),
    "account-metrics": ("GET", "/metrics?set=active-basins&start=0&end=0"),
    "basin-metrics": ("GET", f"/metrics/{OTHER}?set=storage&start=0&end=0"),
    "stream-metrics": ("GET", f"/metrics/{OTHER}/a?set=storage&start=0&end=0"),
    "list-locations": ("GET", "/locations"),
    "get-default-location": ("GET", "/locations/default"),
    "set-default-location": ("PUT", "/locations/default", "default"),
    "delete-stream": ("DELETE", "/streams/a"),
    "delete-basin": ("DELETE", f"/basins/{OTHER}"),
}
GROUPS = {
    ("account", "read"): "list-basins get-basin-config list-access-tokens account-metrics "
    "list-locations get-default-location",
    ("account", "write"): "create-basin delete-basin reconfigure-basin issue-access-token "
    "revoke-access-token set-default-location",
    ("basin", "read"): "list-streams get-stream-config basin-metrics",
    ("basin", "write"): "create-stream delete-stream reconfigure-stream",
    ("stream", "read"): "check-tail read stream-metrics",
    ("stream", "write"): "append",
}
NAMES = {"basins": ALL, "streams": ALL, "access_tokens": ALL}


async def _allowed(s2: Account, token: str) -> set[str]:
    """The requests that are not refused, the harmful ones last."""
    found = set()
    for operation, (method, path, *body) in REQUESTS.items():
        got = await s2.ask(method, path, *body, token=token, basin=OTHER)
        if got.status == 403:
            assert got.json()["code"] == "permission_denied"
        else:
            assert got.status in (200, 201, 202, 204), (operation, got.body)
            found.add(operation)
    return found


@pytest.mark.parametrize("operation", REQUESTS)
async def test_a_3_an_operation_permits_itself_and_nothing_else(operation: str) -> None:
    async with account() as s2:
        await s2.fill("a")
        await s2.issue("old", {**NAMES, "ops": ["read"]})
        token = await s2.issue("new", {**NAMES, "ops": [operation]})
        assert await _allowed(s2, token) == {operation}


@pytest.mark.parametrize("group", GROUPS)
async def test_a_3_groups_are_their_operations(group: tuple[str, str]) -> None:
    async with account() as s2:
        await s2.fill("a")
        await s2.issue("old", {**NAMES, "ops": ["read"]})
        level, way = group
        token = await s2.issue("new", {**NAMES, "op_groups": {level: {way: True}}})
        assert await _allowed(s2, token) == set(GROUPS[group].split())


async def _append(s2: Account, token: str, what: object, stream: str = "a") -> Got:
    path = f"/streams/{stream}/records"
    return await s2.ask("POST", path, what, token=token, basin=OTHER, headers=BINARY)


async def test_a_6_commands_take_operations_of_their_own() -> None:
    async with account() as s2:
        await s2.fill("a")
        plain = await s2.issue("plain", {**NAMES, "ops": ["append"]})
        assert code_of(await _append(s2, plain, FENCE)) == (403, "permission_denied")
        assert code_of(await _append(s2, plain, TRIM)) == (403, "permission_denied")
        for verb, command, other in (("fence", FENCE, TRIM), ("trim", TRIM, FENCE)):
            token = await s2.issue(verb, {**NAMES, "ops": ["append", verb]})
            assert (await _append(s2, token, command)).status == 200
            assert code_of(await _append(s2, token, other)) == (403, "permission_denied")


async def test_a_6_a_stream_is_not_made_for_who_may_not_make_it() -> None:
    """create_stream_on_append and on_read make streams for those who may create them."""
    async with account() as s2:
        config = {"create_stream_on_append": True, "create_stream_on_read": True}
        assert (await s2.ask("PUT", f"/basins/{OTHER}", {"config": config})).status == 201
        plain = await s2.issue("plain", {**NAMES, "ops": ["append", "check-tail"]})
        got = await s2.ask("POST", "/streams/a/records", RECORD, token=plain, basin=OTHER)
        assert code_of(got) == (403, "permission_denied")
        got = await s2.ask("GET", "/streams/a/records/tail", token=plain, basin=OTHER)
        assert code_of(got) == (403, "permission_denied")
        maker = await s2.issue("maker", {**NAMES, "ops": ["append", "create-stream"]})
        got = await s2.ask("POST", "/streams/a/records", RECORD, token=maker, basin=OTHER)
        assert got.status == 200


async def test_a_2_who_may_create_does_not_change_what_is_there() -> None:
    async with account() as s2:
        await s2.fill("a")
        token = await s2.issue("one", {**NAMES, "ops": ["create-stream", "create-basin"]})
        config = {"retention_policy": {"age": 60}}
        same = await s2.ask("PUT", "/streams/a", {}, token=token, basin=OTHER)
        assert (same.status, same.headers[b"s2-provision-result"]) == (200, b"noop")
        got = await s2.ask("PUT", "/streams/a", config, token=token, basin=OTHER)
        assert code_of(got) == (403, "permission_denied")
        body = {"config": {"create_stream_on_read": True}}
        got = await s2.ask("PUT", f"/basins/{OTHER}", body, token=token)
        assert code_of(got) == (403, "permission_denied")
        assert (await s2.ask("PUT", f"/basins/{OTHER}", token=token)).status == 200


async def _reads(s2: Account, token: str, basin: str, stream: str) -> bool:
    path = f"/streams/{stream.replace('/', '%2F')}/records?seq_num=0"
    got = await s2.ask("GET", path, token=token, basin=basin)
    assert got.status in (200, 403)
    return got.status == 200


async def test_a_3_names_are_those_of_the_scope() -> None:
    """Exact ones and prefixes, of basins and of streams; a stream of the node's own basin that is
    called like one of another basin is another stream."""
    async with account() as s2:
        await s2.fill("a", "a/1", "b")
        await s2.fill("a", "other-basin:a", basin=OWN)
        cases: tuple[tuple[dict[str, str], dict[str, str], set[tuple[str, str]]], ...] = (
            ({"exact": OTHER}, {"exact": "a"}, {(OTHER, "a")}),
            ({"exact": OTHER}, {"prefix": "a/"}, {(OTHER, "a/1")}),
            ({"prefix": "other"}, ALL, {(OTHER, "a"), (OTHER, "a/1"), (OTHER, "b")}),
            ({"exact": OWN}, {"prefix": "a"}, {(OWN, "a")}),
            ({"exact": OWN}, ALL, {(OWN, "a"), (OWN, "other-basin:a")}),
            (ALL, {"exact": "a"}, {(OTHER, "a"), (OWN, "a")}),
            ({"exact": "other"}, ALL, set()),
            ({"exact": ""}, ALL, set()),
        )
        places = [(OTHER, "a"), (OTHER, "a/1"), (OTHER, "b"), (OWN, "a"), (OWN, "other-basin:a")]
        for number, (basins, streams, wanted) in enumerate(cases):
            ops = ["read", "list-streams", "list-basins"]
            scope = {"basins": basins, "streams": streams, "ops": ops}
            token = await s2.issue(f"{number}", scope)
            found = {each for each in places if await _reads(s2, token, *each)}
            assert found == wanted
            basin_names = {name for name, _ in wanted}
            got = await s2.ask("GET", "/basins", token=token)
            seen = {each["name"] for each in got.json()["basins"]}
            assert basin_names <= seen <= {OTHER, OWN}
            for basin in (OTHER, OWN):
                got = await s2.ask("GET", "/streams", token=token, basin=basin)
                if got.status == 200:
                    listed = {(basin, each["name"]) for each in got.json()["streams"]}
                    assert listed == {each for each in wanted if each[0] == basin}
                else:
                    assert basin not in basin_names


async def test_a_2_lists_of_many_streams_are_as_narrow_as_the_token() -> None:
    """Beyond what is looked through at once, its own streams are found all the same."""
    async with account() as s2:
        await s2.fill("z/1", "z/2")
        names = s2.node.node.services.basins.streams(OTHER.encode())
        for number in range(LISTED_MAX + 1):
            names.sync_stream(b"a/%d" % number, is_created=True)
        ops = ["list-streams", "read"]
        for number, (streams, prefix, wanted) in enumerate(
            (
                ({"prefix": "z/"}, "", ["z/1", "z/2"]),
                ({"prefix": "z/"}, "z/2", ["z/2"]),
                ({"exact": "z/1"}, "z", ["z/1"]),
                ({"exact": "z/1"}, "a", []),
                ({"prefix": "z/"}, "a/", []),
            )
        ):
            scope = {"basins": ALL, "streams": streams, "ops": ops}
            token = await s2.issue(f"{number}", scope)
            got = await s2.ask("GET", f"/streams?prefix={prefix}", token=token, basin=OTHER)
            assert [each["name"] for each in got.json()["streams"]] == wanted
            assert got.json()["has_more"] is False


async def test_a_2_who_sees_none_of_very_many_streams_is_told_so(tmp_path: Path) -> None:
    rules = tmp_path / "access.conf"
    rules.write_text("address:127.0.0.0/8 all\naddress:192.0.2.7 list stream:z/*\n")
    rules.chmod(0o600)
    async with account(rules=rules) as s2:
        names = s2.node.node.services.basins.streams(OWN.encode())
        for number in range(LISTED_MAX + 1):
            names.sync_stream(b"a/%d" % number, is_created=True)
        got = await s2.ask("GET", "/streams", host=REMOTE)
        assert code_of(got) == (403, "permission_denied")
        assert (await s2.ask("GET", "/streams?prefix=z", host=REMOTE)).json()["streams"] == []


async def test_a_3_tokens_of_some_ids() -> None:
    async with account() as s2:
        ops = ["list-access-tokens", "revoke-access-token"]
        token = await s2.issue("keeper", {"access_tokens": {"prefix": "a/"}, "ops": ops})
        for name in ("a/1", "a/2", "b"):
            await s2.issue(name, {**NAMES, "ops": ["read"]})
        got = await s2.ask("GET", "/access-tokens", token=token)
        assert [each["id"] for each in got.json()["access_tokens"]] == ["a/1", "a/2"]
        assert (await s2.ask("DELETE", "/access-tokens/a%2F1", token=token)).status == 204
        for name in ("b", "keeper"):
            got = await s2.ask("DELETE", f"/access-tokens/{name}", token=token)
            assert code_of(got) == (403, "permission_denied")


async def test_a_3_a_prefix_goes_before_names_and_is_not_shown() -> None:
    async with account() as s2:
        await s2.fill("t/1/old", "t/10/theirs", "t/1/", "t/2/old")
        scope = {
            "basins": ALL,
            "streams": {"prefix": "t/1/"},
            "op_groups": {
                "basin": {"read": True, "write": True},
                "stream": {"read": True, "write": True},
            },
        }
        token = await s2.issue("one", scope, auto_prefix_streams=True)

        async def ask(method: str, path: str, *body: object) -> Got:
            return await s2.ask(method, path, *body, token=token, basin=OTHER)

        made = await ask("POST", "/streams", {"stream": "new"})
        assert (made.status, made.json()["name"]) == (201, "new")
        assert (await ask("PUT", "/streams/new")).json()["name"] == "new"
        names = [each["name"] for each in (await ask("GET", "/streams")).json()["streams"]]
        assert names == ["new", "old"]
        page = (await ask("GET", "/streams?prefix=o&limit=1")).json()
        assert [each["name"] for each in page["streams"]] == ["old"]
        page = (await ask("GET", "/streams?start_after=new")).json()
        assert [each["name"] for each in page["streams"]] == ["old"]
        assert (await ask("POST", "/streams/new/records", RECORD)).status == 200
        assert (await ask("GET", "/streams/new/records?seq_num=0")).json()["records"]
        got = await ask("GET", f"/metrics/{OTHER}/new?set=storage&start=0&end=0")
        assert got.json()["values"][0]["gauge"]["name"] == "storage"
        for name in ("t%2F2%2Fold", "..%2F2%2Fold", "0%2Ftheirs", "t%2F1%2Fold"):
            got = await ask("GET", f"/streams/{name}/records?seq_num=0")
            assert code_of(got) == (404, "stream_not_found")
            assert "t/1/" + name.replace("%2F", "/") not in got.json()["message"]
        twice = await ask("POST", "/streams", {"stream": "new"})
        assert code_of(twice) == (409, "resource_already_exists")
        assert "t/1/" not in json.dumps(twice.json())
        too_long = await ask("POST", "/streams", {"stream": "x" * 509})
        assert code_of(too_long) == (400, "bad_json")
        assert (await ask("DELETE", "/streams/new")).status == 202
        got = await s2.ask("GET", "/streams", basin=OTHER)
        whole = [each["name"] for each in got.json()["streams"]]
        assert whole == ["t/1/", "t/1/old", "t/10/theirs", "t/2/old"]


@pytest.mark.parametrize("known", [True, False])
async def test_who_may_do_nothing_there_does_not_hear_which_basins_there_are(
    tmp_path: Path, known: bool
) -> None:
    rules = tmp_path / "access.conf"
    rights = "address:192.0.2.7 list stream:z/*\n" if known else ""
    rules.write_text("address:127.0.0.0/8 all\n" + rights)
    rules.chmod(0o600)
    async with account(rules=rules) as s2:
        await s2.fill("a")
        token = await s2.issue("some", {"basins": {"exact": "mine-only"}, "ops": ["list-basins"]})
        for secret in (None, token, "nobody-knows-it"):
            for method, path, body in (
                ("POST", "/streams", {"stream": "new"}),
                ("POST", "/streams", {"stream": ""}),
                ("PUT", "/streams/new", None),
                ("GET", "/streams", None),
                ("GET", "/streams/a", None),
                ("GET", "/streams/a/records?seq_num=0", None),
                ("POST", "/streams/a/records", RECORD),
                ("DELETE", "/streams/a", None),
            ):
                told = []
                for basin in (OTHER, "not-there-at-all"):
                    asked = {"host": REMOTE, "token": secret}
                    got = await s2.ask(method, path, body, basin=basin, **asked)
                    named = [(b"host", basin.encode() + b".localhost")]
                    by_host = await Client(s2.application, host=REMOTE).request(
                        method,
                        "/v1" + path,
                        [*named, *headers_of(secret, basin)[1:]],
                        b"" if body is None else json.dumps(body).encode(),
                    )
                    told.append([(each.status, each.body) for each in (got, by_host)])
                assert told[0] == told[1], (secret, method, path)
                assert known or told[0][0][0] == 401 or secret == token
