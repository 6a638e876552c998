"""The S2 API on a node in memory, with clients at addresses and with tokens of their own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millpond.actors.runtime.supervisor import contain
from millpond.node.clock import Clock
from millpond.transports.http import paths
from millpond.transports.http.app import Api, Application
from millpond.transports.http.s2.app import S2Api
from tests.transports.http.client import Client, Exchange, Got
from tests.transports.http.running_app import RunningApp, running_app

HERE, REMOTE = "127.0.0.1", "192.0.2.7"
OWN, OTHER = "millpond", "other-basin"
BEGAN_AT = 1_700_000_000.0
ALL: dict[str, Any] = {"prefix": ""}


class Hands:
    """Of a clock that a test moves."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: self.at_s, lambda: BEGAN_AT)


class Account:
    """An S2 API. Requests without a token are those of the keeper, on this machine."""

    def __init__(self, node: RunningApp) -> None:
        self.node = node
        guard = partial(contain, "request/http")
        apis: dict[tuple[bytes, ...], Api] = {**dict.fromkeys(paths.S2, S2Api(node.services))}
        self.application = Application(node.services, apis, guard)

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        basin: str = OWN,
        host: str = HERE,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Got:
        """Ask below `/v1`; the body as JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        pairs = [*headers_of(token, basin), *headers]
        return await Client(self.application, host=host).request(method, "/v1" + path, pairs, data)

    @asynccontextmanager
    async def session(self, path: str, token: str, basin: str = OWN) -> AsyncIterator[Exchange]:
        """Read a stream as events."""
        pairs = [*headers_of(token, basin), (b"accept", b"text/event-stream")]
        async with Client(self.application).open("GET", "/v1" + path, pairs) as exchange:
            await exchange.say(b"", is_last=True)
            assert await exchange.head() == 200
            yield exchange

    async def issue(self, token_id: str, scope: dict[str, Any], **more: Any) -> str:
        """A token with that scope."""
        body = {"id": token_id, "scope": scope, **more}
        got = await self.ask("POST", "/access-tokens", body)
        assert got.status == 201, got.body
        return str(got.json()["access_token"])

    async def fill(self, *names: str, basin: str = OTHER) -> None:
        """Have a basin with these streams, one record in each."""
        if basin != OWN:
            assert (await self.ask("PUT", f"/basins/{basin}")).status in (200, 201)
        for name in names:
            made = await self.ask("POST", "/streams", {"stream": name}, basin=basin)
            assert made.status == 201, made.body
            path = f"/streams/{quote(name, safe='')}/records"
            kept = await self.ask("POST", path, RECORD, basin=basin)
            assert kept.status == 200, kept.body


RECORD = {"records": [{"body": "x"}]}


def headers_of(token: str | None, basin: str) -> list[tuple[bytes, bytes]]:
    pairs = [(b"s2-basin", basin.encode()), (b"content-type", b"application/json")]
    if token is not None:
        pairs.append((b"authorization", b"Bearer " + token.encode()))
    return pairs


@asynccontextmanager
async def account(*, rules: Path | None = None, **settings: Any) -> AsyncIterator[Account]:
    """A running node. `rules`: its access file."""
    if rules is not None:
        settings["access_file"] = str(rules)
    async with running_app({}, **settings) as node:
        yield Account(node)


def code_of(got: Got) -> tuple[int, str]:
    """The status and S2's word for it."""
    return got.status, got.json()["code"]
