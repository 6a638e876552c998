"""`/millpond/state/...`: questions, events in, and a state followed as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.transports.http import paths
from millpond.transports.http.state.app import StateApi
from tests.node.state.node_clients import EVENTS, FRONT, JSON, RESET, NodeClients, node_clients, put
from tests.transports.http.client import Client, Exchange
from tests.transports.http.running_app import running_app

ALLOWED = ((b"origin", b"http://127.0.0.1:7404"), (b"host", b"127.0.0.1:7404"))
FOREIGN = ((b"origin", b"https://evil.example"), (b"host", b"127.0.0.1:7404"))
REBOUND = ((b"origin", b"http://evil.example"), (b"host", b"evil.example"))


class Said:
    """Events of a stream that is followed."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._rest = b""
        self.id = b""

    async def next(self) -> tuple[str, Any]:
        while b"\n\n" not in self._rest:
            piece = await self._exchange.piece()
            assert piece is not None, "the answer is over"
            self._rest += piece
        event, _, self._rest = self._rest.partition(b"\n\n")
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n"))
        self.id = fields.get(b"id", self.id)
        return fields[b"event"].decode(), json.loads(fields[b"data"])

    async def until_live(self) -> dict[tuple[str, str], Any]:
        """The state as it is once all is there."""
        state: dict[tuple[str, str], Any] = {}
        while True:
            name, data = await self.next()
            match name:
                case "state":
                    if data["first"]:
                        state.clear()
                    state.update({(kind, key): value for kind, key, value in data["rows"]})
                case "change":
                    apply(state, data["events"])
                case "live":
                    return state
                case _:
                    raise AssertionError((name, data))


def apply(state: dict[tuple[str, str], Any], events: list[dict[str, Any]]) -> None:
    for event in events:
        headers = event["headers"]
        if headers.get("control") == "reset":
            state.clear()
        elif headers.get("operation") == "delete":
            state.pop((event["type"], event["key"]), None)
        elif "control" not in headers:
            state[event["type"], event["key"]] = event["value"]


@asynccontextmanager
async def following(
    clients: NodeClients, name: str, *more: tuple[bytes, bytes]
) -> AsyncIterator[Said]:
    async with clients.http.open("GET", f"/millpond/state/{name}", (*EVENTS, *more)) as exchange:
        await exchange.say(b"", is_last=True)
        assert await exchange.head() == 200
        assert dict(exchange.pairs)[b"content-type"] == b"text/event-stream"
        yield Said(exchange)


async def test_a_state_is_made_written_and_read() -> None:
    async with node_clients() as clients:
        made = await clients.http.request("PUT", "/millpond/state/users", JSON)
        again = await clients.http.request("PUT", "/millpond/state/users", JSON)
        assert (made.status, again.status) == (201, 200) and made.json() == {"created": True}
        one = await clients.post("users", put("a", {"n": 1}))
        two = await clients.post("users", b"[%b, %b]" % (put("b", None), put("c/d", [1], "team")))
        assert one.json() == {"first": "0", "count": 1, "position": "1"}
        assert two.json() == {"first": "1", "count": 2, "position": "3"}
        assert (await clients.get("users/user/a")).json() == {"position": "3", "value": {"n": 1}}
        assert (await clients.get("users/team/c%2Fd")).json()["value"] == [1]
        assert (await clients.get("users/user/b")).json()["value"] is None
        told = (await clients.get("users/user")).json()
        assert told == {"position": "3", "values": {"a": {"n": 1}, "b": None}, "more": False}
        info = (await clients.get("users")).json()
        assert info["types"] == {"user": 2, "team": 1} and info["changes"] == "3"


async def test_a_type_in_pages() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put(f"{number:02}", number) for number in range(25)])
        keys: list[str] = []
        after = ""
        while True:
            page = (await clients.get(f"users/user?limit=10{after}")).json()
            keys += page["values"]
            if not page["more"]:
                break
            after = f"&after={keys[-1]}"
        assert keys == [f"{number:02}" for number in range(25)]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("users/user/nobody", 404),
        ("users/nobody/a", 404),
        ("nothing", 404),
        ("nothing/user/a", 404),
        ("users/user/a/b", 404),
        ("users/%ff/a", 400),
        ("users/user?limit=0", 400),
        ("users/user?limit=99999999999999999999999999", 400),
        ("x" * 1025, 400),
    ],
)
async def test_what_is_not_there(path: str, status: int) -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        got = await clients.get(path)
        assert got.status == status and set(got.json()) == {"code", "message"}


BOTH = b'{"type":"u","key":"k","value":1,"headers":{"operation":"insert","control":"reset"}}'


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 422, "truncated"),
        (b"{", 422, "truncated"),
        (b"[{", 400, ""),
        (b"[]", 422, "1 to 1000"),
        (b"5", 422, "neither a change nor"),
        (BOTH, 422, "both"),
        (b"[%b,%b]" % (put("a", 1), b"{}"), 422, "event 1"),
        (b'{"type":"u","key":"k","headers":{"operation":"insert"}}', 422, "without a value"),
        (b'{"headers":{"control":"compact"}}', 422, "unknown control event"),
        (b"[" + b",".join([put("a", 1)] * 1001) + b"]", 422, "1 to 1000"),
        (b"[" + b"1," * 500_000 + b"x]", 422, "1 to 1000"),
        (b" " * (2**20 + 1), 413, ""),
    ],
)
async def test_what_is_no_event_is_not_appended(body: bytes, status: int, words: str) -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        got = await clients.post("users", body)
        assert got.status == status and words in got.json()["message"]
        assert (await clients.streams.stream("users").info()).tail == 0


async def test_only_the_node_s_own_pages_write() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        body = put("a", 1)
        assert (await clients.post("users", body, (*JSON, *ALLOWED))).status == 200
        assert (await clients.post("users", body, (*JSON, *FOREIGN))).status == 403
        assert (await clients.post("users", body, (*JSON, *REBOUND))).status == 421
        assert (
            await clients.post("users", body, ((b"content-type", b"text/plain"),))
        ).status == 415
        assert (await clients.streams.stream("users").info()).tail == 1


async def test_an_append_where_the_tail_has_to_be() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        assert (await clients.post("users?match=0", put("a", 1))).status == 200
        assert (await clients.post("users?match=0", put("a", 2))).status == 412
        assert (await clients.post("users?match=-1", put("a", 2))).status == 400
        assert (await clients.get("users/user/a")).json()["value"] == 1


async def test_the_front_and_methods_that_there_are_not() -> None:
    async with node_clients() as clients:
        assert (await clients.get("")).body == FRONT.body
        assert (await clients.http.request("DELETE", "/millpond/state/users")).status == 405
        assert (await clients.http.request("POST", "/millpond/state/users/a/b", JSON)).status == 405


async def test_a_state_is_followed_from_what_it_is_on() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put("a", 1), b"no event", put("b", 2)])
        async with following(clients, "users") as said:
            state = await said.until_live()
            assert state == {("user", "a"): 1, ("user", "b"): 2}
            for way in clients.ways:
                await way("users", [put("a", way.__name__), b"hello"])
                name, data = await said.next()
                assert name == "change" and data["events"] == [json.loads(put("a", way.__name__))]
            await clients.by_s3p("users", [RESET])
            assert (await said.next())[1]["events"] == [json.loads(RESET)]


async def test_a_follower_goes_on_where_it_was() -> None:
    async with node_clients() as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        await clients.by_p2p("users", [put("a", 1)])
        async with following(clients, "users") as said:
            await said.until_live()
        await clients.by_p2p("users", [put("a", 2)])
        async with following(clients, "users", (b"last-event-id", said.id)) as again:
            assert (await again.next())[0] == "live"
            name, data = await again.next()
            assert name == "change" and [each["value"] for each in data["events"]] == [2]
        await clients.by_p2p("users", [put("a", 3)])
        await stream.trim(3)
        async with following(clients, "users", (b"last-event-id", said.id)) as behind:
            name, data = await behind.next()
            assert name == "state" and data["first"] and data["rows"] == [["user", "a", 3]]


async def test_a_large_state_is_followed_while_it_changes() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        for start in range(0, 3000, 500):
            await clients.by_p2p("users", [put(str(n), n) for n in range(start, start + 500)])
        async with following(clients, "users") as said, anyio.create_task_group() as tasks:
            tasks.start_soon(clients.by_p2p, "users", [put(str(n), -n) for n in range(500)])
            state = await said.until_live()
            while state["user", "499"] != -499:
                apply(state, (await said.next())[1]["events"])
        assert state == {("user", str(n)): -n if n < 500 else n for n in range(3000)}


async def test_a_follower_hears_that_its_stream_is_deleted() -> None:
    async with node_clients() as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        await clients.by_p2p("users", [put("a", 1)])
        async with following(clients, "users") as said:
            await said.until_live()
            await stream.delete()
            name, data = await said.next()
            assert name == "error" and data["code"] == "unknown_stream"


async def test_a_follower_that_was_slow_hears_that_its_stream_is_another_one() -> None:
    async with node_clients(window=1) as clients:
        stream = clients.streams.stream("users")
        await stream.create()
        for start in range(0, 1500, 500):
            await clients.by_p2p("users", [put(str(n), "old") for n in range(start, start + 500)])
        async with following(clients, "users") as said:
            await stream.delete()
            await stream.create()
            for start in range(0, 2000, 500):
                await clients.by_p2p(
                    "users", [put(str(n), "new") for n in range(start, start + 500)]
                )
            names = []
            with anyio.fail_after(60):
                while not names or names[-1] not in ("error", "change"):
                    names.append((await said.next())[0])
            assert names[-1] == "error" and names[:1] == ["state"]


async def test_a_follower_of_a_stream_that_is_not_there() -> None:
    async with node_clients() as clients:
        got = await clients.http.request("GET", "/millpond/state/users", EVENTS)
        assert got.status == 404


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Client]:
    tokens = folder / "tokens"
    tokens.write_text("writer put,get stream:*\nreader get stream:users\nputter put stream:users\n")
    tokens.chmod(0o600)
    async with running_app({}, token_file=str(tokens)) as inside:
        inside.application._apis.update({paths.STATE: StateApi(inside.services, FRONT)})
        inside.application._lengths = [2]
        yield Client(inside.application, host="192.0.2.7")


async def asked(http: Client, token: str, method: str, path: str, body: bytes = b"") -> int:
    headers = (*JSON, *(((b"authorization", b"Bearer " + token.encode()),) if token else ()))
    return (await http.request(method, f"/millpond/state/{path}", headers, body)).status


async def test_rights_are_those_in_the_stream(tmp_path: Path) -> None:
    async with guarded(tmp_path) as http:
        for name in ("users", "others"):
            assert await asked(http, "writer", "PUT", name) == 201
            assert await asked(http, "writer", "POST", name, put("a", 1)) == 200
        for path in ("users", "users/user", "users/user/a"):
            assert await asked(http, "reader", "GET", path) == 200
            assert await asked(http, "putter", "GET", path) == 403
            assert await asked(http, "", "GET", path) == 401
            assert await asked(http, "unknown", "GET", path) == 401
        assert await asked(http, "reader", "GET", "others/user/a") == 403
        assert await asked(http, "reader", "GET", "not-there") == 403
        assert await asked(http, "reader", "POST", "users", put("a", 2)) == 403
        assert await asked(http, "putter", "POST", "users", put("a", 2)) == 200
        assert await asked(http, "reader", "PUT", "users") == 403


async def test_a_follower_without_the_right_hears_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as http:
        assert await asked(http, "writer", "PUT", "users") == 201
        headers = (*EVENTS, (b"authorization", b"Bearer putter"))
        assert (await http.request("GET", "/millpond/state/users", headers)).status == 403


async def test_a_follower_hears_that_the_node_stops() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        await clients.by_p2p("users", [put("a", 1)])
        async with following(clients, "users") as said, anyio.create_task_group() as tasks:
            await said.until_live()
            tasks.start_soon(clients.node.drain)
            name, data = await said.next()
            assert name == "error" and data["code"] == "server_draining"
