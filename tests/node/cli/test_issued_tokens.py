"""`millpond token issued`: the tokens of S2 clients, with their issuers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from millpond.node.admin import TOKENS_MAX
from tests.node.processes import Serving, serving
from tests.node.stream_commands import OFF, Run, objects


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving(*OFF, "--http", "127.0.0.1:0", limit_s=90.0) as ready:
        yield ready


def issue(node: Serving, id_: str, token: str = "", **more: object) -> str:
    scope = {
        "streams": {"prefix": "logs/"},
        "basins": {"prefix": ""},
        "access_tokens": {"prefix": ""},
    }
    scope["ops"] = ["read", "issue-access-token"]
    connection = http.client.HTTPConnection(dict(node.listeners)["http"], timeout=20)
    try:
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        body = json.dumps({"id": id_, "scope": scope, **more})
        connection.request("POST", "/v1/access-tokens", body, headers)
        response = connection.getresponse()
        content = response.read()
        assert response.status < 300, content
        return str(json.loads(content)["access_token"])
    finally:
        connection.close()


def test_issued_tokens(node: Serving, run: Run, scheme: str) -> None:
    first, second = f"{scheme}-a", f"{scheme}-b"
    token = issue(node, first)
    other = issue(node, second, token, expires_at="2999-01-01T00:00:00Z")
    lines = run("token", "issued").out.decode().splitlines()
    assert f"{first}  issued by an administrator" in lines
    assert any(line.startswith(f"{second}  issued by {first}  until 2999-01-01") for line in lines)
    assert token not in str(lines) and other not in str(lines)
    rows = {row["id"]: row for row in objects(run("token", "issued", "--json"))}
    assert rows[first]["issuer"] is None and rows[second]["issuer"] == first
    assert rows[second]["scope"]["ops"] == ["read", "issue-access-token"]


def test_more_than_a_page(node: Serving, run: Run, scheme: str) -> None:
    names = [f"{scheme}-many-{number:03}" for number in range(TOKENS_MAX + 1)]
    for each in names:
        issue(node, each)
    found = [row["id"] for row in objects(run("token", "issued", "--json"))]
    assert found == sorted(found) and set(names) <= set(found)
