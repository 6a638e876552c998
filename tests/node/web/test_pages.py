"""The chat page as a node serves it, on a socket: files, login, links, revocation."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import anyio
import msgspec
import pytest

from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.node.web.pages import CONTENT_SECURITY_POLICY, FILES, LOGIN, LOGOUT
from millpond.node.web.requests import LinkAnswer, RevokeAnswer, WebOperation, reachable

LIMIT_S = 60.0
LINK = re.compile(r"http://127\.0\.0\.1:[0-9]+/chat#(mpw1\.[A-Za-z0-9_-]{43})")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    config = Config(
        p2p=OFF, ws="127.0.0.1:0", s3p=OFF, rustlog=OFF, http=OFF, data=str(tmp_path / "node")
    )
    async with Node(config) as node:
        yield node


class Told:
    def __init__(self, wire: bytes) -> None:
        head, _, self.body = wire.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.fields = dict(line.split(": ", 1) for line in lines)


async def ask(node: Node, line: str, body: bytes = b"", **fields: str) -> Told:
    """One request, and everything until the node closes."""
    address = node.listeners["ws"]
    host, _, port = address.rpartition(":")
    told = {"Host": address, **{name.replace("_", "-"): value for name, value in fields.items()}}
    if body:
        told["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    with anyio.fail_after(LIMIT_S):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body)
            wire = b"".join([piece async for piece in stream])
    return Told(wire)


async def web_request(node: Node, operation: int, shape: type[msgspec.Struct]) -> msgspec.Struct:
    done, answers = anyio.Event(), []

    def answer(outcome: object) -> None:
        answers.append(outcome)
        done.set()

    node.peer_requests.ask(operation, b"\x80", answer)
    with anyio.fail_after(LIMIT_S):
        await done.wait()
    assert isinstance(answers[0], bytes)
    return msgspec.msgpack.decode(answers[0], type=shape)


async def link_of(node: Node) -> str:
    answer = await web_request(node, WebOperation.LINK, LinkAnswer)
    assert isinstance(answer, LinkAnswer) and answer.url is not None
    found = LINK.fullmatch(answer.url)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("path", FILES)
async def test_every_file_is_served_with_its_type_and_what_guards_it(node: Node, path: str) -> None:
    name, content_type = FILES[path]
    told = await ask(node, f"GET {path}")
    assert told.status == 200
    assert told.body == (files("millpond.node.web") / "static" / name).read_bytes()
    assert told.fields["Content-Type"] == content_type
    assert told.fields["Content-Length"] == str(len(told.body))
    assert told.fields["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert told.fields["X-Content-Type-Options"] == "nosniff"
    assert told.fields["Cache-Control"] == "no-cache"


async def test_all_files_are_served_and_no_others_are_named(node: Node) -> None:
    folder = files("millpond.node.web") / "static"
    assert {each.name for each in folder.iterdir()} == {name for name, _ in FILES.values()}
    for name in (each.name for each in folder.iterdir()):
        text = (folder / name).read_text("utf-8")
        for asked in re.findall(r'(?:from|src=|href=) ?"\.?(/[^"#]+)"', text):
            assert asked in FILES, f"{name} asks for {asked}"


def test_the_policy_lets_in_nothing_from_elsewhere_and_nothing_inline() -> None:
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; ")
    assert (
        "unsafe" not in CONTENT_SECURITY_POLICY
        and "*" not in CONTENT_SECURITY_POLICY
        and "http" not in CONTENT_SECURITY_POLICY
    )
    page = (files("millpond.node.web") / "static" / "index.html").read_text("utf-8")
    assert not re.search(r"<style|<script(?![^>]*src=)|\son[a-z]+=|\sstyle=|javascript:", page)


async def test_a_link_logs_in_once(node: Node) -> None:
    secret = await link_of(node)
    told = await ask(node, f"POST {LOGIN}", secret.encode())
    assert told.status == 200
    assert told.fields["Cache-Control"] == "no-store"
    token = json.loads(told.body)["token"]
    assert node.web.login.rights(token.encode()) is not None
    again = await ask(node, f"POST {LOGIN}", secret.encode())
    assert again.status == 403 and b"mpw1" not in again.body


async def test_pages_of_other_origins_cannot_log_in(node: Node) -> None:
    secret = await link_of(node)
    told = await ask(node, f"POST {LOGIN}", secret.encode(), Origin="https://evil.example")
    assert told.status == 403
    assert (await ask(node, f"POST {LOGIN}", secret.encode())).status == 200


@pytest.mark.parametrize("body", [b"x", b"mpw1.", b"\xff\xfe\x00", b"mpw1." + b"A" * 900])
async def test_guesses_are_refused(node: Node, body: bytes) -> None:
    assert (await ask(node, f"POST {LOGIN}", body)).status == 403


async def test_logging_out_ends_the_session(node: Node) -> None:
    token = json.loads((await ask(node, f"POST {LOGIN}", (await link_of(node)).encode())).body)[
        "token"
    ]
    assert (await ask(node, f"POST {LOGOUT}", token.encode())).status == 200
    assert node.web.login.rights(token.encode()) is None
    assert (await ask(node, f"POST {LOGOUT}", token.encode())).status == 200


async def test_a_request_revokes_all_sessions(node: Node) -> None:
    await ask(node, f"POST {LOGIN}", (await link_of(node)).encode())
    answer = await web_request(node, WebOperation.REVOKE, RevokeAnswer)
    assert answer == RevokeAnswer(1)
    assert node.web.login.sessions == 0


async def test_sessions_outlive_the_node(tmp_path: Path) -> None:
    config = Config(p2p=OFF, ws="127.0.0.1:0", s3p=OFF, rustlog=OFF, http=OFF, data=str(tmp_path))
    async with Node(config) as node:
        token = json.loads((await ask(node, f"POST {LOGIN}", (await link_of(node)).encode())).body)[
            "token"
        ]
    async with Node(config) as node:
        assert node.web.login.rights(token.encode()) is not None


async def test_without_the_listener_there_is_no_link() -> None:
    async with Node(Config(p2p=OFF, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as node:
        assert await web_request(node, WebOperation.LINK, LinkAnswer) == LinkAnswer(None, [])


async def test_names_that_were_allowed_have_links_too(tmp_path: Path) -> None:
    origins = ("https://pond.example",)
    config = Config(p2p=OFF, ws="127.0.0.1:0", s3p=OFF, rustlog=OFF, http=OFF, origins=origins)
    async with Node(config) as node:
        answer = await web_request(node, WebOperation.LINK, LinkAnswer)
        assert isinstance(answer, LinkAnswer)
        assert [each.partition("#")[0] for each in answer.others] == ["https://pond.example/chat"]
        told = await ask(node, "GET /chat", Host="pond.example")
        assert told.status == 200


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("127.0.0.1:7401", "127.0.0.1:7401"),
        ("0.0.0.0:7401", "127.0.0.1:7401"),
        ("[::]:7401", "127.0.0.1:7401"),
        ("192.0.2.7:7401", "192.0.2.7:7401"),
        ("[::1]:7401", "[::1]:7401"),
    ],
)
def test_where_a_browser_on_this_machine_finds_the_page(listens: str, reached: str) -> None:
    assert reachable(listens) == reached
