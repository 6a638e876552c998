"""The API of subscriptions: routes, bodies, errors, rights (DSS-01 to DSS-09, DSS-22, DSS-31,
DSS-32)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from millpond.actors.messages import Batch
from millpond.actors.subscriptions import messages as s
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.subscriptions.interface import SubscriptionSettings
from millpond.transports.http.webhooks.destination import WebhookPolicy
from tests.actors.recording_port import RecordingPort
from tests.transports.http.client import Got
from tests.transports.http.durable.api_client import JSON, ApiClient, api_client, header_of

pytestmark = pytest.mark.anyio
LOCAL = WebhookPolicy(is_local=True)
HOOK = {"type": "webhook", "pattern": "events/*", "webhook": {"url": "https://worker.example/x"}}
PULL = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
SUB = "__ds/subscriptions/s1"


class Subscriber:
    """A client that speaks JSON."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def __call__(
        self, method: str, path: str, content: object = None, **headers: str | None
    ) -> Got:
        body = b"" if content is None else content
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers.setdefault("content_type", JSON)
        return await self.client.ask(method, path, body, **headers)

    async def refused(
        self, method: str, path: str, content: object = None, **headers: str | None
    ) -> tuple[int, str]:
        """The status and the code of a refusal."""
        got = await self(method, path, content, **headers)
        found = json.loads(got.body)
        assert set(found) == {"error"} and found["error"]["message"], found
        assert header_of(got, "content-type") == JSON
        assert header_of(got, "x-content-type-options") == "nosniff"
        return got.status, found["error"]["code"]


@asynccontextmanager
async def subscriber(
    settings: SubscriptionSettings | None = None, host: str = "127.0.0.1", **config: Any
) -> AsyncIterator[Subscriber]:
    durable = DurableSettings(
        long_poll_s=0.1, subscriptions=settings or SubscriptionSettings(LOCAL)
    )
    async with api_client(durable, host=host, **config) as client:
        yield Subscriber(client)


async def test_create_confirm_show_delete() -> None:
    async with subscriber() as ask:
        wanted = {**HOOK, "description": "d", "streams": ["/manual/a/", "manual%2Fb"]}
        made = await ask("PUT", SUB, wanted)
        assert made.status == 201
        content = json.loads(made.body)
        signing = content["webhook"]["signing"]
        assert signing["kid"].startswith("ds_")
        assert content.pop("created_at").endswith("Z")
        assert content == {
            "id": "s1",
            "subscription_id": "s1",
            "type": "webhook",
            "pattern": "events/*",
            "streams": [
                {
                    "path": path,
                    "link_type": "explicit",
                    "acked_offset": "0000000000000000_0000000000000000",
                }
                for path in ("manual/a", "manual/b")
            ],
            "webhook": {
                "url": "https://worker.example/x",
                "signing": {
                    "alg": "ed25519",
                    "kid": signing["kid"],
                    "jwks_url": "http://127.0.0.1:7404/v1/stream/__ds/jwks.json",
                },
            },
            "lease_ttl_ms": 30_000,
            "status": "active",
            "description": "d",
        }
        again = await ask("PUT", SUB, {**wanted, "lease_ttl_ms": 3e4, "unknown": [1]})
        assert (again.status, json.loads(again.body)) == (200, json.loads(made.body))
        assert (await ask("GET", SUB)).body == again.body
        found = await ask.refused("PUT", SUB, {**wanted, "lease_ttl_ms": 30_001})
        assert found == (409, "SUBSCRIPTION_ALREADY_EXISTS")
        for _ in range(2):
            assert (await ask("DELETE", SUB)).status == 204
        assert await ask.refused("GET", SUB) == (404, "SUBSCRIPTION_NOT_FOUND")


async def test_the_keys() -> None:
    async with subscriber(webhook_key=3) as ask:
        got = await ask("GET", "__ds/jwks.json")
        assert got.status == 200
        assert header_of(got, "content-type") == "application/jwk-set+json"
        assert header_of(got, "cache-control") == "public, max-age=300"
        keys = json.loads(got.body)["keys"]
        assert len(keys) == 2 and keys[0]["kid"] != keys[1]["kid"]
        made = json.loads((await ask("PUT", SUB, HOOK)).body)
        assert made["webhook"]["signing"]["kid"] == keys[0]["kid"]


async def test_a_public_url() -> None:
    settings = SubscriptionSettings(LOCAL, "https://mill.example/")
    async with subscriber(settings) as ask:
        made = json.loads((await ask("PUT", SUB, HOOK)).body)
        jwks_url = made["webhook"]["signing"]["jwks_url"]
        assert jwks_url == "https://mill.example/v1/stream/__ds/jwks.json"


async def test_paths_that_are_none() -> None:
    async with subscriber() as ask:
        for path in (
            *("__ds", "__ds/", "__ds/x", "__ds/subscriptions", "__ds/jwks.json/x"),
            *("__ds/subscriptions/a/b", "__ds/subscriptions/a/claim/b", "%5F%5Fds/x"),
        ):
            for method in ("GET", "PUT", "POST", "DELETE"):
                found = await ask.refused(method, path, {})
                assert found == (404, "SUBSCRIPTION_NOT_FOUND"), (method, path)
        for path, methods in (
            ("__ds/jwks.json", ("PUT", "POST", "DELETE")),
            (SUB, ("POST", "PATCH")),
            (SUB + "/streams", ("GET", "PUT")),
            (SUB + "/streams/a", ("GET", "POST")),
            (SUB + "/claim", ("GET", "DELETE")),
            (SUB + "/callback", ("GET", "PUT")),
        ):
            for method in methods:
                assert (await ask.refused(method, path, {}))[0] == 405
        for name in ("x__ds", "a/__ds/b"):
            assert (await ask("PUT", name, b"[]")).status == 201


async def test_ids() -> None:
    async with subscriber() as ask:
        for id_ in ("%00", "a%0Ab", "a" * 256, "%FF", "", "%C2%80", "%7F"):
            found = await ask.refused("PUT", f"__ds/subscriptions/{id_}", HOOK)
            assert found == (400, "INVALID_REQUEST"), id_
        for id_ in ("a" * 255, "a%2Fb", "%C3%A4", "a%20b", "..%2F.."):
            made = await ask("PUT", f"__ds/subscriptions/{id_}", HOOK)
            assert made.status == 201 and json.loads(made.body)["id"] == unquote(id_)


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    {},
    {**HOOK, "type": "x"},
    {**HOOK, "type": ["webhook"]},
    {"type": "webhook", "webhook": HOOK["webhook"]},
    {**HOOK, "pattern": ""},
    {**HOOK, "pattern": "/"},
    {**HOOK, "pattern": 7},
    {**HOOK, "pattern": "a" * 1025},
    {**HOOK, "pattern": "/".join(["**"] * 9)},
    {**HOOK, "pattern": "%"},
    {**HOOK, "streams": "a"},
    {**HOOK, "streams": [""]},
    {**HOOK, "streams": ["//"]},
    {**HOOK, "streams": [7]},
    {**HOOK, "streams": ["%zz"]},
    {**HOOK, "streams": ["__ds/x"]},
    {**HOOK, "streams": ["a" * 513]},
    {**HOOK, "streams": [str(number) for number in range(101)]},
    {"type": "webhook", "streams": [], "webhook": HOOK["webhook"]},
    {**HOOK, "webhook": None},
    {**HOOK, "webhook": {}},
    {**HOOK, "webhook": {"url": 7}},
    {**HOOK, "lease_ttl_ms": 999},
    {**HOOK, "lease_ttl_ms": 600_001},
    {**HOOK, "lease_ttl_ms": 1000.5},
    {**HOOK, "lease_ttl_ms": "1000"},
    {**HOOK, "lease_ttl_ms": True},
    {**HOOK, "lease_ttl_ms": 1e300},
    {**HOOK, "description": 7},
    {**HOOK, "description": "d" * 1025},
    {"type": "pull-wake", "pattern": "**"},
    {**PULL, "wake_stream": ""},
    {**PULL, "wake_stream": 7},
]


async def test_bodies_that_are_none() -> None:
    async with subscriber() as ask:
        for content in BAD:
            found = await ask.refused("PUT", SUB, content)
            assert found == (400, "INVALID_REQUEST"), str(content)[:80]


async def test_a_body_that_is_too_large() -> None:
    async with subscriber() as ask:
        got = await ask("PUT", SUB, b" " * (2**20 + 1))
        assert got.status == 413


async def test_a_lease_is_a_number() -> None:
    async with subscriber() as ask:
        for lease in (b"1e3", b"1000.0", b"1000"):
            body = b'{"type":"pull-wake","pattern":"**","wake_stream":"w","lease_ttl_ms":%b}'
            made = await ask("PUT", SUB, body % lease)
            assert made.status in (200, 201) and json.loads(made.body)["lease_ttl_ms"] == 1000


async def test_urls_that_are_not_called() -> None:
    rejected = (400, "WEBHOOK_URL_REJECTED")
    for policy, urls in (
        (LOCAL, ("http://10.0.0.1/hook", "https://127.0.0.1/", "x", "https://u@worker.example/")),
        (WebhookPolicy(), ("http://127.0.0.1/", "http://localhost/")),
    ):
        async with subscriber(SubscriptionSettings(policy)) as ask:
            for url in urls:
                wanted = {**HOOK, "webhook": {"url": url}}
                assert await ask.refused("PUT", SUB, wanted) == rejected
            assert await ask.refused("GET", SUB) == (404, "SUBSCRIPTION_NOT_FOUND")
    async with subscriber(SubscriptionSettings(WebhookPolicy(is_enabled=False))) as ask:
        assert await ask.refused("PUT", SUB, HOOK) == (400, "INVALID_REQUEST")
        assert (await ask("PUT", SUB, PULL)).status == 201


async def test_links() -> None:
    async with subscriber() as ask:
        assert (await ask("PUT", SUB, HOOK)).status == 201
        streams = SUB + "/streams"
        assert (await ask("POST", streams, {"streams": ["a/b", "/c/", "ä%2Ab"]})).status == 204
        for content in ({}, {"streams": []}, {"streams": 7}):
            assert await ask.refused("POST", streams, content) == (400, "INVALID_REQUEST")
        paths = [each["path"] for each in json.loads((await ask("GET", SUB)).body)["streams"]]
        assert paths == ["a/b", "c", "%C3%A4*b"]
        for path in ("a%2Fb", "a/b", "c", "nothing", "%C3%A4%2Ab"):
            assert (await ask("DELETE", f"{streams}/{path}")).status == 204
        assert json.loads((await ask("GET", SUB)).body)["streams"] == []
        assert await ask.refused("DELETE", f"{streams}/") == (400, "INVALID_REQUEST")
        missing = "__ds/subscriptions/none/streams"
        for method, path, content in (
            ("POST", missing, {"streams": ["a"]}),
            ("DELETE", missing + "/a", None),
            ("POST", "__ds/subscriptions/none/claim", {"worker": "w"}),
        ):
            found = await ask.refused(method, path, content)
            assert found == (404, "SUBSCRIPTION_NOT_FOUND")


@pytest.mark.parametrize("path", ["e/100%25", "e/%FF", "e/a%20b%3F%23", "e/%2F", "e/ä"])
async def test_a_path_that_is_shown_is_one_to_read_and_acknowledge(path: str) -> None:
    async with subscriber() as ask:
        assert (await ask("PUT", "wake/pool", b"[]")).status == 201
        assert (await ask("PUT", SUB, {**PULL, "pattern": "**"})).status == 201
        assert (await ask("PUT", quote(path, safe="/%"), b"[1]")).status == 201
        (event,) = json.loads((await ask("GET", "wake/pool")).body)
        wake = json.loads((await ask("POST", SUB + "/claim", {"worker": "w"})).body)
        (stream,) = wake["streams"]
        assert stream["path"] == event["stream"]
        assert (await ask("GET", stream["path"])).body == b"[1]"
        ack = {"stream": stream["path"], "offset": stream["tail_offset"]}
        body = {"wake_id": wake["wake_id"], "generation": 1, "acks": [ack], "done": True}
        done = await ask("POST", SUB + "/ack", body, authorization=f"Bearer {wake['token']}")
        assert (done.status, json.loads(done.body)) == (200, {"ok": True, "next_wake": False})


async def test_claim_ack_and_release() -> None:
    async with subscriber() as ask:
        assert (await ask("PUT", "wake/pool", b"[]")).status == 201
        assert (await ask("PUT", SUB, PULL)).status == 201
        assert await ask.refused("POST", SUB + "/claim", {"worker": "w"}) == (
            409,
            "NO_PENDING_WORK",
        )
        for content in ({}, {"worker": ""}, {"worker": "w" * 256}, {"worker": 7}):
            assert await ask.refused("POST", SUB + "/claim", content) == (400, "INVALID_REQUEST")
        assert (await ask("PUT", "events/a", b'[{"n":1},{"n":2}]')).status == 201
        claimed = await ask("POST", SUB + "/claim", {"worker": "w1"})
        assert claimed.status == 200 and header_of(claimed, "cache-control") == "no-store"
        wake = json.loads(claimed.body)
        assert wake["streams"] == [
            {
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": "0000000000000002_0000000000000000",
                "has_pending": True,
            }
        ]
        assert (wake["generation"], wake["lease_ttl_ms"]) == (1, 30_000)
        busy = await ask("POST", SUB + "/claim", {"worker": "w2"})
        error = json.loads(busy.body)["error"]
        assert (busy.status, error["code"], error["current_holder"], error["generation"]) == (
            409,
            "ALREADY_CLAIMED",
            "w1",
            1,
        )
        bearer = f"Bearer {wake['token']}"
        base = {"wake_id": wake["wake_id"], "generation": 1}
        assert await ask.refused("POST", SUB + "/ack", base) == (401, "TOKEN_INVALID")
        assert await ask.refused("POST", SUB + "/ack", base, authorization="Basic x") == (
            401,
            "TOKEN_INVALID",
        )
        for wrong in (
            {},
            {"wake_id": "w", "generation": "1"},
            {**base, "acks": 7},
            {**base, "acks": [7]},
            {**base, "done": 1},
        ):
            found = await ask.refused("POST", SUB + "/ack", wrong, authorization=bearer)
            assert found == (400, "INVALID_REQUEST")
        for offset in ("-1", "now", "", "1", "0000000000000003_0000000000000000", 7, None):
            acks = [{"stream": "events/a", "offset": offset}]
            found = await ask.refused(
                "POST", SUB + "/ack", {**base, "acks": acks}, authorization=bearer
            )
            assert found == (409, "INVALID_OFFSET"), offset
        acks = [{"path": "/events/a", "offset": "0000000000000001_0000000000000009"}]
        done = await ask("POST", SUB + "/ack", {**base, "acks": acks}, authorization=bearer)
        assert (done.status, json.loads(done.body)) == (200, {"ok": True, "next_wake": False})
        shown = json.loads((await ask("GET", SUB)).body)["streams"][0]
        assert shown["acked_offset"] == "0000000000000001_0000000000000000"
        released = await ask(
            "POST", SUB + "/release", base, authorization=f"bearer {wake['token']}"
        )
        assert released.status == 204
        found = await ask.refused("POST", SUB + "/release", base, authorization=bearer)
        assert found == (409, "FENCED")
        assert await ask.refused("POST", SUB + "/callback", base, authorization=bearer) == (
            409,
            "FENCED",
        )
        assert wake["token"].encode() not in (await ask("GET", SUB)).body


def rules(folder: Path, **tokens: str) -> str:
    """An access file with these tokens."""
    lines = [
        f"token:{sha256(token.encode()).hexdigest()} {rights}" for token, rights in tokens.items()
    ]
    path = folder / "access.conf"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


async def test_rights(tmp_path: Path) -> None:
    access = rules(
        tmp_path,
        all="all",
        events="get,put stream:events/*",
        reader="get stream:*",
        writer="put stream:*",
        wake="put,get stream:events/* stream:wake/*",
    )
    async with subscriber(access_file=access) as ask:

        async def status(token: str | None, method: str, path: str, content: object = None) -> int:
            header = None if token is None else f"Bearer {token}"
            return (await ask(method, path, content, authorization=header)).status

        for name in ("events/a", "other/a", "wake/pool"):
            assert await status("all", "PUT", name, b"[1]") == 201
        assert await status(None, "PUT", SUB, HOOK) == 401
        assert await status("wrong", "PUT", SUB, HOOK) == 401
        assert await status("writer", "PUT", SUB, HOOK) == 403
        assert await status("reader", "PUT", SUB, PULL) == 403, "it may not append events"
        assert await status("events", "PUT", SUB, {**HOOK, "streams": ["other/a"]}) == 403
        # A pattern follows what its maker may read.
        assert await status("events", "PUT", SUB, {**HOOK, "pattern": "**"}) == 201
        shown = await ask("GET", SUB, authorization="Bearer all")
        assert [each["path"] for each in json.loads(shown.body)["streams"]] == ["events/a"]
        assert await status("all", "POST", "other/b", b"[1]") == 404
        assert await status("all", "PUT", "other/b", b"[1]") == 201
        assert await status("all", "PUT", "events/b", b"[1]") == 201
        shown = await ask("GET", SUB, authorization="Bearer events")
        assert len(json.loads(shown.body)["streams"]) == 2
        # Only a client that may read as much manages it.
        everywhere = "__ds/subscriptions/all"
        assert await status("reader", "PUT", everywhere, {**HOOK, "pattern": "**"}) == 201
        for method, path, content in (
            ("GET", everywhere, None),
            ("DELETE", everywhere, None),
            ("PUT", everywhere, {**HOOK, "pattern": "**"}),
            ("POST", everywhere + "/streams", {"streams": ["events/a"]}),
            ("DELETE", everywhere + "/streams/a", None),
        ):
            assert await status("events", method, path, content) == 403, (method, path)
            assert await status(None, method, path, content) == 401
        assert await status("events", "POST", SUB + "/streams", {"streams": ["other/a"]}) == 403
        # Also one that has no stream yet; a client that may read everything manages those of all.
        empty = "__ds/subscriptions/empty"
        assert await status("wake", "PUT", empty, {**HOOK, "pattern": "wake/none/*"}) == 201
        assert await status("events", "GET", empty) == 403
        assert await status("reader", "GET", empty) == 200
        assert await status("wake", "DELETE", empty) == 204
        pull = "__ds/subscriptions/pull"
        assert await status("wake", "PUT", pull, PULL) == 201
        assert await status("all", "POST", "events/a", b"[2]") == 204
        assert await status("events", "POST", pull + "/claim", {"worker": "w"}) == 403
        assert await status("reader", "POST", pull + "/claim", {"worker": "w"}) == 403
        assert await status("wake", "POST", pull + "/claim", {"worker": "w"}) == 200
        assert await status("all", "DELETE", everywhere) == 204
        assert await status(None, "DELETE", "__ds/subscriptions/none") == 401


async def test_rights_that_change(tmp_path: Path) -> None:
    """A pattern follows what its maker may read today; a later PUT makes another maker."""
    everything = {**HOOK, "pattern": "**"}
    access = rules(tmp_path, all="all", worker="get stream:*", other="get stream:*")
    async with subscriber(access_file=access) as ask:

        async def paths(token: str) -> list[str]:
            shown = await ask("GET", SUB, authorization=f"Bearer {token}")
            return [each["path"] for each in json.loads(shown.body)["streams"]]

        for name in ("events/a", "other/a"):
            await ask("PUT", name, b"[1]", authorization="Bearer all")
        assert (await ask("PUT", SUB, everything, authorization="Bearer worker")).status == 201
        assert await paths("all") == ["events/a", "other/a"]
        rules(tmp_path, all="all", worker="get stream:events/*", other="get stream:*")
        ask.client.node.reload()
        assert await paths("all") == await paths("worker") == ["events/a"]
        rules(tmp_path, all="all", other="get stream:*")
        ask.client.node.reload()
        assert await paths("all") == []
        again = await ask("PUT", SUB, everything, authorization="Bearer other")
        assert again.status == 200
        assert await paths("all") == await paths("other") == ["events/a", "other/a"]


@pytest.mark.parametrize("operation", ["claim", "link", "unlink", "delete", "put"])
async def test_a_subscription_that_changes_while_rights_are_checked(
    tmp_path: Path, operation: str
) -> None:
    """Between the check and the act another client remakes it, for streams that this one may not
    read: the request is checked again, and refused."""
    access = rules(tmp_path, all="all", narrow="get,put stream:events/* stream:wake/*")
    requests = {
        "claim": ("POST", SUB + "/claim", {"worker": "w"}, s.ClaimWake),
        "link": ("POST", SUB + "/streams", {"streams": ["events/b"]}, s.LinkStreams),
        "unlink": ("DELETE", SUB + "/streams/events/a", None, s.UnlinkStream),
        "delete": ("DELETE", SUB, None, s.DeleteSubscription),
        "put": ("PUT", SUB, PULL, s.ChangeMaker),
    }
    method, path, content, kind = requests[operation]
    async with subscriber(access_file=access) as ask:
        services = ask.client.served.services
        for name in ("events/a", "secret", "wake/pool"):
            await ask("PUT", name, b"[1]", authorization="Bearer all")
        made = await ask("PUT", SUB, PULL, authorization="Bearer narrow")
        assert made.status == 201
        submit, changes = services.submit, []

        def submit_behind_another(cell: bytes, batch: Batch, now: float) -> bool:
            if any(isinstance(each, kind) for each in batch.messages) and not changes:
                changes.append(operation)
                spec = s.SubscriptionSpec(
                    s.SubscriptionKind.PULL_WAKE, b"events/*", (b"secret",), None, b"wake/pool",
                    30_000, None,
                )  # fmt: skip
                maker = s.Maker("http://node", None)
                other = [s.DeleteSubscription(1), s.PutSubscription(2, spec, maker)]
                submit(cell, Batch(RecordingPort(99), other), now)
            return submit(cell, batch, now)

        services.submit = submit_behind_another
        refused = await ask.refused(method, path, content, authorization="Bearer narrow")
        services.submit = submit
        assert changes and refused[0] == 403
        shown = json.loads((await ask("GET", SUB, authorization="Bearer all")).body)
        assert [each["path"] for each in shown["streams"]] == ["events/a", "secret"]


async def test_a_subscription_of_many_streams_is_shown_whole() -> None:
    async with subscriber() as ask:
        names = [f"events/{number:04}" for number in range(2500)]
        for each in names:
            assert (await ask("PUT", each)).status == 201
        made = await ask("PUT", SUB, HOOK)
        assert made.status == 201
        assert [each["path"] for each in json.loads(made.body)["streams"]] == names
        again = await ask("PUT", SUB, HOOK)
        assert (again.status, again.body) == (200, made.body)
        assert (await ask("GET", SUB)).body == made.body


@pytest.mark.parametrize(
    "headers",
    [
        {"x_forwarded_for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"via": "1.1 proxy"},
        {"x_real_ip": "203.0.113.9"},
        {"host": "mill.example"},
    ],
)
async def test_clients_that_a_proxy_brings_do_not_have_this_machine_called(
    headers: dict[str, str],
) -> None:
    here = {**HOOK, "webhook": {"url": "http://127.0.0.1:9/x"}}
    async with subscriber(host_names=("mill.example",)) as ask:
        assert await ask.refused("PUT", SUB, here, **headers) == (400, "WEBHOOK_URL_REJECTED")
        assert (await ask("PUT", SUB, here, host="[::1]:7404")).status == 201
        assert (await ask("PUT", SUB, here, host="localhost")).status == 200
        assert (await ask("PUT", SUB + "2", HOOK, **headers)).status == 201
    named = SubscriptionSettings(WebhookPolicy(is_local=True, hosts=frozenset({"127.0.0.1"})))
    async with subscriber(named, host_names=("mill.example",)) as ask:
        assert (await ask("PUT", SUB, here, **headers)).status == 201


async def test_clients_with_rights_by_rules_do_not_have_this_machine_called(
    tmp_path: Path,
) -> None:
    here = {**HOOK, "webhook": {"url": "http://127.0.0.1:9/x"}}
    async with subscriber(access_file=rules(tmp_path, all="all")) as ask:
        refused = await ask.refused("PUT", SUB, here, authorization="Bearer all")
        assert refused == (400, "WEBHOOK_URL_REJECTED")
