"""Basins as JSON over HTTP: made once, put, patched, listed, deleted (A.2, A.3)."""

from __future__ import annotations

import msgspec
import pytest

from tests.transports.http.s2.session_client import Speaker, code_of, speaker

NAME = "another-basin"
PLAIN = {
    "default_stream_config": None,
    "stream_cipher": None,
    "create_stream_on_append": False,
    "create_stream_on_read": False,
}


async def _post(s2: Speaker, content: object, token: str | None = None) -> tuple[int, str | None]:
    got = await s2.ask("POST", "/v1/basins", msgspec.json.encode(content), s2_request_token=token)
    result = got.headers.get(b"s2-provision-result")
    return got.status, None if result is None else result.decode()


async def test_a_2_a_request_token_makes_a_creation_idempotent() -> None:
    """The same token and configuration, and nothing else, is the same call."""
    made = {"basin": NAME, "config": {"create_stream_on_read": True}}
    async with speaker() as s2:
        assert await _post(s2, made, "t" * 36) == (201, "created")
        assert await _post(s2, made, "t" * 36) == (201, "noop")
        for content, token in (
            (made, "another"),
            (made, None),
            ({"basin": NAME}, "t" * 36),
        ):
            assert await _post(s2, content, token) == (409, None)
        assert await _post(s2, {"basin": "yet-another"}, "t" * 37) == (400, None)
        assert await _post(s2, {"basin": "yet-another"}, "") == (201, "created")
        assert await _post(s2, {"basin": "yet-another"}, "") == (409, None)
        config = msgspec.json.encode({"config": {"create_stream_on_append": True}})
        assert (await s2.ask("PUT", f"/v1/basins/{NAME}", config)).status == 200
        assert await _post(s2, made, "t" * 36) == (201, "noop")


async def test_a_3_a_basins_information() -> None:
    async with speaker() as s2:
        body = msgspec.json.encode({"basin": NAME, "location": "default", "config": None})
        info = (await s2.ask("POST", "/v1/basins", body)).json()
        assert list(info) == ["name", "location", "created_at", "deleted_at", "state"]
        assert (info["name"], info["deleted_at"], info["state"]) == (NAME, None, "active")
        assert info["created_at"].endswith("Z")
        listed = (await s2.ask("GET", "/v1/basins?prefix=another")).json()
        assert listed == {"basins": [info], "has_more": False}
        assert (await s2.ask("GET", f"/v1/basins/{NAME}")).json() == PLAIN


async def test_a_2_put_is_exactly_that_and_patch_is_what_it_names() -> None:
    path = f"/v1/basins/{NAME}"
    stream = {
        "storage_class": "standard",
        "retention_policy": {"infinite": {}},
        "timestamping": {"mode": "arrival", "uncapped": True},
        "delete_on_empty": {"min_age_secs": 60},
    }
    config = {**PLAIN, "default_stream_config": stream, "create_stream_on_read": True}
    async with speaker() as s2:
        got = await s2.ask("PUT", path, msgspec.json.encode({"config": config}))
        assert (got.status, got.headers[b"s2-provision-result"]) == (201, b"created")
        again = await s2.ask("PUT", path, msgspec.json.encode({"config": config}))
        assert (again.status, again.headers[b"s2-provision-result"]) == (200, b"noop")
        assert again.json() == got.json()
        assert (await s2.ask("GET", path)).json() == config
        for change, expected in (
            ({}, config),
            ({"default_stream_config": {"timestamping": {"mode": None}}}, None),
            ({"default_stream_config": None, "create_stream_on_read": None}, PLAIN),
        ):
            shown = (await s2.ask("PATCH", path, msgspec.json.encode(change))).json()
            assert shown == (await s2.ask("GET", path)).json()
            if expected is None:
                assert shown["default_stream_config"]["timestamping"] == {"uncapped": True}
            else:
                assert shown == expected
        await s2.ask("PATCH", path, b'{"create_stream_on_append":true}')
        got = await s2.ask("PUT", path)
        assert got.headers[b"s2-provision-result"] == b"updated"
        assert (await s2.ask("GET", path)).json() == PLAIN


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "bad_json")),
        (b"{", (400, "bad_json")),
        (b"[]", (400, "bad_json")),
        (b"{}", (400, "bad_json")),
        (b'{"basin":7}', (400, "bad_json")),
        (b'{"basin":"\xff"}', (400, "bad_json")),
        (b"[" * 60_000, (400, "bad_json")),
        (b'{"basin":"short"}', (400, "bad_json")),
        (b'{"basin":"good-name","location":"moon"}', (422, "invalid")),
        (b'{"basin":"good-name","config":{"create_stream_on_read":1}}', (400, "bad_json")),
        (
            b'{"basin":"good-name","config":{"default_stream_config":{"retention_policy":{"age":0}}}}',
            (422, "invalid"),
        ),
    ],
)
async def test_a_9_what_cannot_be_made(body: bytes, expected: tuple[int, str]) -> None:
    async with speaker() as s2:
        assert code_of(await s2.ask("POST", "/v1/basins", body)) == expected
        assert len((await s2.ask("GET", "/v1/basins")).json()["basins"]) == 2


@pytest.mark.parametrize("limit", ["0", "1001", "99999999999999999999"])
async def test_a_2_a_limit_outside_of_what_there_is_means_1000(limit: str) -> None:
    async with speaker() as s2:
        found = (await s2.ask("GET", f"/v1/basins?limit={limit}")).json()
        assert [each["name"] for each in found["basins"]] == ["millpond", "test-basin"]
        assert not found["has_more"]


async def test_a_2_a_basin_goes_with_its_streams_and_its_name_is_free_again() -> None:
    async with speaker("orders") as s2:
        await s2.append("x")
        assert (await s2.ask("DELETE", "/v1/basins/test-basin")).status == 202
        got = await s2.ask("GET", "/v1/streams/orders")
        assert got.json()["code"] in ("basin_deletion_pending", "basin_not_found")
        while (await s2.ask("PUT", "/v1/basins/test-basin")).status == 409:
            pass
        assert (await s2.ask("GET", "/v1/streams")).json() == {"streams": [], "has_more": False}
        assert (await s2.ask("PUT", "/v1/streams/orders")).status == 201
        assert (await s2.append("y"))["start"]["seq_num"] == 0


async def test_a_2_the_nodes_own_basin_stays() -> None:
    async with speaker() as s2:
        assert (await s2.ask("DELETE", "/v1/basins/millpond")).status == 403
        assert (await s2.ask("GET", "/v1/basins/millpond")).json() == PLAIN


async def test_a_9_a_name_that_is_no_text_is_no_basin() -> None:
    async with speaker() as s2:
        for method in ("GET", "PATCH", "DELETE"):
            got = await s2.ask(method, "/v1/basins/%FF", b"{}" if method == "PATCH" else b"")
            assert code_of(got) == (400, "bad_path")
