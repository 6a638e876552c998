"""The rights of tokens at every API of the HTTP listener, by either file of access rules
(docs/guides/access.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from millpond.actors.errors import NotAllowed
from millpond.node.client.streams.connect import connect_streams
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from tests.node.http.clients import Http1

pytestmark = pytest.mark.http

JSON = "application/json"
EVENT = b'{"type":"t","key":"k","headers":{"operation":"upsert"},"value":1}'
READS = (
    "/v1/streams/logs/records?seq_num=0",
    "/v1/stream/logs?offset=-1",
    "/millpond/state/logs",
)
APPENDS = (
    ("/v1/streams/logs/records", b'{"records":[{"body":"x"}]}'),
    ("/v1/stream/logs", EVENT),
    ("/millpond/state/logs", EVENT),
    ("/millpond/v1/transactions/logs/w/1", b'{"parts":[]}'),
)
FILES = ("/millpond/v1/replica-files", b'{"streams":["logs"]}')
ACCOUNT = ("/metrics", "/v1/access-tokens")


class Standing(NamedTuple):
    """A token, the rest of its line, and the answers to it; 200 stands for any success."""

    token: str
    rule: str
    read: int
    append: int
    account: int


EITHER = (
    Standing("owner", "all", 200, 200, 200),
    Standing("boss", "admin", 403, 403, 200),
    Standing("local", "all jobs/*", 403, 403, 403),
    Standing("writer", "put stream:logs", 403, 200, 403),
    Standing("reader", "get jobs/* stream:logs", 200, 403, 403),
    Standing("former", "all until=2020-01-01T00:00Z", 401, 401, 401),
    Standing("stranger", "", 401, 401, 401),
)
ANSWERS = {
    "token_file": (*EITHER, Standing("clerk", "put,get,push,ack,list", 403, 403, 403)),
    "access_file": (*EITHER, Standing("clerk", "put,get,push,ack,list", 200, 200, 403)),
}


def line(form: str, standing: Standing) -> str:
    if not standing.rule:
        return ""
    if form == "token_file":
        return f"{standing.token} {standing.rule}\n"
    return f"token:{sha256(standing.token.encode()).hexdigest()} {standing.rule}\n"


@pytest.fixture
def path(form: str, tmp_path: Path) -> Path:
    """The file with the rules."""
    found = tmp_path / form
    found.write_text("".join(line(form, each) for each in ANSWERS[form]))
    found.chmod(0o600)
    return found


@asynccontextmanager
async def guarded(path: Path, form: str) -> AsyncIterator[Node]:
    """A node with the stream `logs`, with these rules alone."""
    listeners = {"p2p": "127.0.0.1:0", "http": "127.0.0.1:0"}
    off = dict.fromkeys(("ws", "s3p", "rustlog"), OFF)
    config = Config(drain_timeout_s=0.2, **listeners, **off, **{form: str(path)})  # type: ignore[arg-type]
    async with Node(config) as node:
        assert await status(node, "owner", "PUT", "/v1/stream/logs") == 201
        yield node


async def status(node: Node, token: str, method: str, path: str, body: bytes = b"") -> int:
    headers = [("content-type", JSON), ("s2-basin", "millpond")]
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    client = Http1(node.listeners["http"])
    return (await client.send(method, path, "localhost", headers, body)).status


def is_as(wanted: int, found: int) -> bool:
    return found // 100 == 2 if wanted == 200 else found == wanted


@pytest.mark.parametrize("form", ANSWERS)
async def test_one_rule_holds_at_every_api(form: str, path: Path) -> None:
    """A token that opens `/metrics` opens the streams; 401 is for clients without any right."""
    async with guarded(path, form) as node:
        for each in (*ANSWERS[form], Standing("", "", 401, 401, 401)):
            for path, body in APPENDS:
                found = await status(node, each.token, "POST", path, body)
                assert is_as(each.append, found), (each, path, found)
            for path in READS:
                found = await status(node, each.token, "GET", path)
                assert is_as(each.read, found), (each, path, found)
            found = await status(node, each.token, "POST", *FILES)
            assert is_as(each.read, found), (each, FILES, found)
            for path in ACCOUNT:
                found = await status(node, each.token, "GET", path)
                assert is_as(each.account, found), (each, path, found)


@pytest.mark.parametrize("form", ANSWERS)
async def test_a_token_that_has_all_rights_has_them_by_p2p_too(form: str, path: Path) -> None:
    async with guarded(path, form) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with connect_streams(url, token="owner") as streams:
            await streams.stream("logs").append(b"x")
        if form == "token_file":
            async with connect_streams(url, token="clerk") as streams:
                with pytest.raises(NotAllowed):
                    await streams.stream("logs").read()
