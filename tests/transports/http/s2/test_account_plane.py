"""Locations, what asks for encryption, methods and paths that there are not (A.2, A.6, A.9)."""

from __future__ import annotations

import pytest

from tests.transports.http.s2.account import OTHER, account, code_of

DEFAULT = {
    "name": "default",
    "is_private": False,
    "storage_classes": ["express", "standard"],
    "default_storage_class": "express",
}


async def test_a_2_there_is_one_location() -> None:
    async with account() as s2:
        assert (await s2.ask("GET", "/locations")).json() == [DEFAULT]
        assert (await s2.ask("GET", "/locations/default")).json() == DEFAULT
        got = await s2.ask("PUT", "/locations/default", "default")
        assert (got.status, got.json()) == (200, DEFAULT)
        got = await s2.ask("PUT", "/locations/default", "aws:us-east-1")
        assert code_of(got) == (422, "invalid")
        got = await s2.ask("PUT", "/locations/default", {"name": "default"})
        assert code_of(got) == (400, "bad_json")
        body = {"basin": OTHER, "location": "aws:us-east-1"}
        assert code_of(await s2.ask("POST", "/basins", body)) == (422, "invalid")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/basins", "GET, HEAD, POST"),
        ("/basins/", "GET, HEAD, POST"),
        (f"/basins/{OTHER}", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/streams", "GET, HEAD, POST"),
        ("/streams/a", "DELETE, GET, HEAD, PATCH, PUT"),
        ("/streams/a/records", "GET, HEAD, POST"),
        ("/streams/a/records/tail", "GET, HEAD"),
        ("/access-tokens", "GET, HEAD, POST"),
        ("/access-tokens/a", "DELETE"),
        ("/metrics", "GET, HEAD"),
        (f"/metrics/{OTHER}/a", "GET, HEAD"),
        ("/locations", "GET, HEAD"),
        ("/locations/default", "GET, HEAD, PUT"),
    ],
)
async def test_a_9_a_method_that_there_is_not(path: str, allow: str) -> None:
    """405 with those that there are, and with a body as every error."""
    async with account() as s2:
        await s2.fill("a")
        for method in {"DELETE", "PATCH", "PUT", "POST", "OPTIONS", "BREW"} - set(
            allow.split(", ")
        ):
            got = await s2.ask(method, path, basin=OTHER)
            assert code_of(got) == (405, "bad_path")
            assert got.headers[b"allow"].decode() == allow


@pytest.mark.parametrize(
    "path",
    [
        f"/basins/{OTHER}/",
        f"/basins/{OTHER}/streams",
        "/streams/a/",
        "/streams/a/records/",
        "/streams/a/records/tail/",
        "/streams/a/record",
        "/streams//records",
        "/access-tokens/a/",
        "/access-tokens/a/b",
        f"/metrics/{OTHER}/a/b",
        "/locations/default/",
        "/locations/elsewhere",
    ],
)
async def test_a_9_a_path_that_there_is_not(path: str) -> None:
    async with account() as s2:
        await s2.fill("a")
        for method in ("GET", "POST", "DELETE"):
            assert code_of(await s2.ask(method, path, basin=OTHER)) == (400, "bad_path")


@pytest.mark.parametrize(
    "path",
    [
        "/basins",
        "/basins/",
        f"/basins/{OTHER}",
        "/streams/",
        "/streams/a",
        "/streams/a/records?seq_num=0",
        "/streams/a/records/tail",
        "/access-tokens/",
        "/metrics?set=active-basins&start=0&end=0",
        "/locations",
    ],
)
async def test_a_9_head_is_get_without_its_body(path: str) -> None:
    async with account() as s2:
        await s2.fill("a")
        shown = await s2.ask("GET", path, basin=OTHER)
        head = await s2.ask("HEAD", path, basin=OTHER)
        assert (head.status, head.body) == (200, b"")
        for name in (b"content-type", b"content-length"):
            assert head.headers[name] == shown.headers[name]


async def test_a_9_head_begins_no_session() -> None:
    async with account() as s2:
        await s2.fill("a")
        path = "/streams/a/records?seq_num=0"
        for headers in (((b"accept", b"text/event-stream"),), ((b"content-type", b"s2s/proto"),)):
            got = await s2.ask("HEAD", path, basin=OTHER, headers=headers)
            assert (got.status, got.body) == (200, b"")
