"""Streams as JSON over HTTP: made once, put, patched, listed, deleted (A.2, A.3, A.6)."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellClient
from tests.transports.http.s2.session_client import BASIN, Speaker, code_of, speaker

DEFAULTS = {
    "storage_class": "express",
    "retention_policy": {"age": 604_800},
    "timestamping": {"mode": "client-prefer", "uncapped": False},
    "delete_on_empty": {"min_age_secs": 0},
}
PATH = "/v1/streams/orders"


async def _post(s2: Speaker, content: object, token: str | None = None) -> tuple[int, str | None]:
    got = await s2.ask("POST", "/v1/streams", msgspec.json.encode(content), s2_request_token=token)
    result = got.headers.get(b"s2-provision-result")
    return got.status, None if result is None else result.decode()


async def _shown(s2: Speaker) -> Any:
    return (await s2.ask("GET", PATH)).json()


async def test_a_2_a_request_token_makes_a_creation_idempotent() -> None:
    made = {"stream": "orders", "config": {"storage_class": "standard"}}
    async with speaker() as s2:
        assert await _post(s2, made, "once") == (201, "created")
        first = (await s2.ask("GET", "/v1/streams")).json()["streams"][0]
        await s2.append("x")
        assert await _post(s2, made, "once") == (201, "noop")
        assert (await s2.ask("GET", "/v1/streams")).json()["streams"][0] == first
        assert await _post(s2, made, "other") == (409, None)
        assert await _post(s2, {"stream": "orders"}, "once") == (409, None)
        assert await _post(s2, made) == (409, None)
        assert (await s2.ask("PUT", PATH)).headers[b"s2-provision-result"] == b"updated"
        assert await _post(s2, made, "once") == (201, "noop")
        assert (await s2.ask("DELETE", PATH)).status == 202
        assert (await _post(s2, made, "once"))[0] in (201, 409)


async def test_a_3_a_streams_information() -> None:
    async with speaker() as s2:
        body = msgspec.json.encode({"stream": "orders"})
        info = (await s2.ask("POST", "/v1/streams", body)).json()
        assert list(info) == ["name", "created_at", "deleted_at", "cipher"]
        assert (info["name"], info["deleted_at"], info["cipher"]) == ("orders", None, None)
        listed = (await s2.ask("GET", "/v1/streams")).json()
        assert listed == {"streams": [info], "has_more": False}


async def test_a_3_all_fields_are_shown_and_null_is_the_default() -> None:
    async with speaker("orders") as s2:
        assert await _shown(s2) == DEFAULTS
        told = {
            "storage_class": "standard",
            "retention_policy": {"infinite": {}},
            "timestamping": {"mode": "arrival", "uncapped": True},
            "delete_on_empty": {"min_age_secs": 9},
        }
        got = await s2.ask("PUT", PATH, msgspec.json.encode(told))
        assert (got.status, got.headers[b"s2-provision-result"]) == (200, b"updated")
        assert await _shown(s2) == told
        for change, field, expected in (
            (
                {"timestamping": {"mode": None}},
                "timestamping",
                {"mode": "client-prefer", "uncapped": True},
            ),
            ({"timestamping": None}, "timestamping", DEFAULTS["timestamping"]),
            ({"retention_policy": None}, "retention_policy", DEFAULTS["retention_policy"]),
            ({"delete_on_empty": {"min_age_secs": None}}, "delete_on_empty", {"min_age_secs": 0}),
            ({"storage_class": None}, "storage_class", "express"),
        ):
            got = await s2.ask("PATCH", PATH, msgspec.json.encode(change))
            assert got.json()[field] == expected
            assert got.json() == await _shown(s2)
        assert await _shown(s2) == DEFAULTS


async def test_a_2_null_goes_back_to_what_the_basin_says() -> None:
    async with speaker() as s2:
        config = {"default_stream_config": {"retention_policy": {"age": 99}}}
        await s2.ask("PATCH", f"/v1/basins/{BASIN}", msgspec.json.encode(config))
        await s2.ask("PUT", PATH, b'{"retention_policy":{"age":5}}')
        assert (await _shown(s2))["retention_policy"] == {"age": 5}
        await s2.ask("PATCH", PATH, b'{"retention_policy":null}')
        assert (await _shown(s2))["retention_policy"] == {"age": 99}
        await s2.ask("PATCH", f"/v1/basins/{BASIN}", b'{"default_stream_config":null}')
        assert (await _shown(s2))["retention_policy"] == {"age": 99}
        got = await s2.ask("PUT", PATH)
        assert got.headers[b"s2-provision-result"] == b"updated"
        assert await _shown(s2) == DEFAULTS


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/streams", b"{}", (400, "bad_json")),
        ("POST", "/v1/streams", b'{"stream":""}', (400, "bad_json")),
        ("POST", "/v1/streams", b'{"stream":"."}', (400, "bad_json")),
        ("POST", "/v1/streams", b'{"stream":"a\\u0000"}', (400, "bad_json")),
        ("POST", "/v1/streams", b'{"stream":"%s"}' % (b"x" * 513), (400, "bad_json")),
        ("POST", "/v1/streams", b'{"stream":"\\ud800"}', (400, "bad_json")),
        ("PUT", PATH, b'{"retention_policy":{"age":0}}', (422, "invalid")),
        ("PUT", PATH, b'{"retention_policy":{"age":-1}}', (400, "bad_json")),
        ("PUT", PATH, b'{"retention_policy":{}}', (400, "bad_json")),
        ("PUT", PATH, b'{"retention_policy":{"age":1,"infinite":{}}}', (400, "bad_json")),
        ("PUT", PATH, b'{"storage_class":"tape"}', (400, "bad_json")),
        ("PUT", PATH, b'{"timestamping":{"mode":"never"}}', (400, "bad_json")),
        ("PATCH", PATH, b"", (400, "bad_json")),
        ("PATCH", PATH, b"null", (400, "bad_json")),
        ("PATCH", "/v1/streams/nothing", b"{}", (404, "stream_not_found")),
    ],
)
async def test_a_9_what_cannot_be(
    method: str, path: str, body: bytes, expected: tuple[int, str]
) -> None:
    async with speaker("orders") as s2:
        assert code_of(await s2.ask(method, path, body)) == expected
        assert await _shown(s2) == DEFAULTS
        assert len((await s2.ask("GET", "/v1/streams")).json()["streams"]) == 1


async def test_a_6_a_deleted_stream_begins_anew() -> None:
    async with speaker("orders") as s2:
        await s2.append("a", "b")
        assert (await s2.ask("DELETE", PATH)).status == 202
        assert (await s2.ask("DELETE", PATH)).status in (202, 404)
        while (await s2.ask("PUT", PATH)).status == 409:
            pass
        assert (await s2.append("c"))["start"]["seq_num"] == 0


async def test_a_streams_list_knows_only_its_basin() -> None:
    async with speaker("orders") as s2:
        await s2.ask("PUT", "/v1/basins/another-basin")
        await s2.ask("PUT", PATH, s2_basin="another-basin")
        await s2.ask("PUT", "/v1/streams/more", s2_basin="another-basin")
        await s2.append("mine")
        got = await s2.ask("GET", f"{PATH}/records/tail", s2_basin="another-basin")
        assert got.json()["tail"]["seq_num"] == 0
        found = (await s2.ask("GET", "/v1/streams", s2_basin="another-basin")).json()
        assert [each["name"] for each in found["streams"]] == ["more", "orders"]
        await s2.ask("DELETE", "/v1/basins/another-basin")
        got = await s2.ask("GET", f"{PATH}/records/tail")
        assert got.json()["tail"]["seq_num"] == 1


async def test_a_2_names_that_s2_cannot_spell_are_not_there() -> None:
    """Other views make them: a list goes past them, and ends."""
    async with speaker("orders") as s2:
        with CellClient(s2.node.services) as cells:
            assert await cells.request(stream_cell(b"\xff"), m.Create) == m.Done(0)
        got = await s2.ask("GET", "/v1/streams?limit=1", s2_basin="millpond")
        assert got.json() == {"streams": [], "has_more": False}


async def test_a_2_changes_under_way_at_once_are_all_made() -> None:
    changes = [
        {"storage_class": "standard"},
        {"timestamping": {"uncapped": True}},
        {"delete_on_empty": {"min_age_secs": 77}},
    ]
    async with speaker("orders") as s2:
        async with anyio.create_task_group() as tasks:
            for change in changes:
                body = msgspec.json.encode(change)
                tasks.start_soon(s2.ask, "PATCH", "/v1/streams/orders", body)
        config = (await s2.ask("GET", "/v1/streams/orders")).json()
        assert config["storage_class"] == "standard"
        assert config["timestamping"]["uncapped"] is True
        assert config["delete_on_empty"] == {"min_age_secs": 77}
