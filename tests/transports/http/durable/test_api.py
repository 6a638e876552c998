"""Cases beyond the public suite: other views, rights, origins, partial input, deleted streams."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

from millpond.actors.messages import Rights
from millpond.actors.streams import messages as m
from millpond.transports.http.durable.interface import DurableSettings
from tests.transports.http.durable.api_client import JSON, TEXT, ApiClient, api_client, header_of

ZERO = "0" * 16 + "_" + "0" * 16


async def test_records_of_other_views_are_messages() -> None:
    async with api_client() as ds:
        assert (await ds.ask("PUT", "orders", content_type=JSON)).status == 201
        ds.otherwise(b"orders", m.Append(0, [b'{"n": 1}', b" [2] "]))
        await ds.ask("POST", "orders", b"[3, [4]]", content_type=JSON)
        got = await ds.ask("GET", "orders")
        assert got.body == b'[{"n": 1}, [2] ,3,[4]]'
        assert got.json() == [{"n": 1}, [2], 3, [4]]
        assert header_of(got, "stream-next-offset") == f"{4:016d}_{0:016d}"


async def test_what_is_no_message_is_left_out() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=JSON)
        bodies = [b"1", b"not json", b"", b'"\xff"', b"2,3", b"]", b'"\\ud800"', b"4"]
        ds.otherwise(b"orders", m.Append(0, bodies))
        fence = [[(b"", b"fence")]]
        ds.otherwise(b"orders", m.Append(0, [b"token"], headers=fence))  # type: ignore[arg-type]
        for _ in range(3):  # later readers get what was written for the first ones
            got = await ds.ask("GET", "orders")
            assert got.body == b'[1,"\\ud800",4]'
            assert header_of(got, "stream-up-to-date") == "true"


async def test_messages_are_records_of_other_views() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b'[{"n":1}, {"n":2}]', content_type=JSON)
        reply = ds.otherwise(b"orders", m.Read(0, _from(0), 10, 1000))
        assert isinstance(reply, m.Records)
        assert [body for span in reply.spans for body in span.bodies] == [b'{"n":1}', b'{"n":2}']


def _from(sequence: int) -> m.Seek:
    from millpond.actors.positions import SeekBy

    return m.Seek(SeekBy.SEQUENCE, sequence)


async def test_nobody_is_told_a_length_that_a_read_would_not_have() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"hello", content_type=TEXT)
        head = await ds.ask("HEAD", "orders")
        assert (head.status, head.body, header_of(head, "content-length")) == (200, b"", None)
        assert header_of(head, "x-content-type-options") == "nosniff"


@pytest.mark.parametrize("kind", [b"text/plain\r\nx-other: 1", b"text", b"text/plain;\n", b""])
async def test_a_content_type_that_is_none_is_not_shown(kind: bytes) -> None:
    async with api_client() as ds:
        ds.otherwise(b"odd", m.Create(0, m.Settings(content_type=kind)), m.Append(0, [b"x"]))
        got = await ds.ask("GET", "odd")
        assert (got.status, header_of(got, "content-type")) == (200, "application/octet-stream")
        assert header_of(await ds.ask("HEAD", "odd"), "content-type") == "application/octet-stream"
        assert (await ds.ask("PUT", "other", content_type="text")).status == 201
        assert (
            header_of(await ds.ask("HEAD", "other"), "content-type") == "application/octet-stream"
        )


async def test_a_stream_made_elsewhere_is_of_octets() -> None:
    async with api_client() as ds:
        ds.otherwise(b"a/b", m.Create(0))
        ds.otherwise(b"a/b", m.Append(0, [b"x", b"", b"y"]))
        for name in ("a/b", "a%2Fb", "%61/b"):
            got = await ds.ask("GET", name)
            assert (got.body, header_of(got, "content-type")) == (b"xy", "application/octet-stream")
        assert (await ds.ask("POST", "a/b", b"z", content_type=TEXT)).status == 409


async def test_what_was_trimmed_is_gone() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        for each in (b"a", b"b", b"c"):
            await ds.ask("POST", "orders", each, content_type=TEXT)
        ds.otherwise(b"orders", m.Trim(0, 2))
        assert (await ds.ask("GET", "orders?offset=-1")).body == b"c"
        assert (await ds.ask("GET", f"orders?offset={ZERO}")).status == 410
        assert (await ds.ask("GET", f"orders?offset={2:016d}_{0:016d}")).body == b"c"


async def test_an_append_has_a_limit_of_messages() -> None:
    async with api_client(DurableSettings(messages_max=3)) as ds:
        assert (await ds.ask("PUT", "orders", b"[1,2,3]", content_type=JSON)).status == 201
        assert (await ds.ask("POST", "orders", b"[4,[5,5],6]", content_type=JSON)).status == 204
        for method, name in (("POST", "orders"), ("PUT", "others")):
            got = await ds.ask(method, name, b"[1,2,3,4]", content_type=JSON)
            assert (got.status, got.json()["code"]) == (413, "too_many_messages")
            assert got.json()["message"] == "at most 3 messages in one append"
        fork = {"stream_forked_from": "/v1/stream/orders", "content_type": JSON}
        assert (await ds.ask("PUT", "copy", b"[1,2,3,4]", **fork)).status == 413
        assert (await ds.ask("GET", "orders")).json() == [1, 2, 3, 4, [5, 5], 6]
        for name in ("others", "copy"):
            assert (await ds.ask("HEAD", name)).status == 404


async def test_half_an_upload_leaves_no_trace() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        for method, name in (("POST", "orders"), ("PUT", "new")):
            async with ds.open(method, name, content_type=TEXT, content_length="9") as exchange:
                await exchange.say(b"half")
                await exchange.leave()
                await exchange.got()
        assert (await ds.ask("GET", "orders")).body == b""
        assert (await ds.ask("HEAD", "new")).status == 404


async def test_pages_are_bounded_and_follow_one_another() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        ds.otherwise(b"orders", m.Append(0, [b"x" * 2**20] * 9))
        offset, sizes, last = "-1", list[int](), None
        while last is None:
            got = await ds.ask("GET", f"orders?offset={offset}")
            sizes.append(len(got.body))
            offset, last = (
                header_of(got, "stream-next-offset") or "",
                header_of(got, "stream-up-to-date"),
            )
        assert sizes == [4 * 2**20, 4 * 2**20, 2**20]


@pytest.mark.parametrize(
    ("method", "name", "status"),
    [
        ("PUT", "", 400),
        ("PUT", "n" * 513, 400),
        ("PATCH", "orders", 405),
        ("GET", "orders?live=never&offset=-1", 400),
        ("GET", "orders?offset=5", 400),
        ("GET", "orders?offset=%zz", 400),
        ("GET", "%zz", 400),
        ("POST", "orders%", 400),
    ],
)
async def test_what_is_refused(method: str, name: str, status: int) -> None:
    async with api_client() as ds:
        got = await ds.ask(method, name)
        assert got.status == status
        assert got.json()["message"]
        assert header_of(got, "x-content-type-options") == "nosniff"


@pytest.mark.parametrize(
    "headers",
    [
        {"stream_ttl": "1", "stream_expires_at": "2099-01-01T00:00:00Z"},
        {"stream_ttl": "1e3"},
        {"stream_ttl": "9" * 40},
        {"stream_expires_at": "2099-01-01T00:00:00"},
        {"stream_expires_at": "2099-13-01T00:00:00Z"},
        {"stream_forked_from": "orders"},
        {"stream_forked_from": "/v1/stream/%zz"},
        {"stream_forked_from": "/v1/stream/a", "stream_fork_offset": "3"},
        {"stream_fork_sub_offset": "0"},
    ],
)
async def test_headers_that_mean_nothing(headers: dict[str, str]) -> None:
    async with api_client() as ds:
        got = await ds.ask("PUT", "orders", **headers)
        assert got.status == 400
        assert (await ds.ask("HEAD", "orders")).status == 404


async def forked(ds: ApiClient, at: int, sub: int, name: str = "fork") -> int:
    """The status of such a fork of `orders`."""
    offset = {"stream_fork_offset": f"{at:016d}_{0:016d}", "stream_fork_sub_offset": str(sub)}
    return (await ds.ask("PUT", name, stream_forked_from="/v1/stream/orders", **offset)).status


async def test_a_sub_offset_ends_where_its_append_ends() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"[0,1,2]", content_type=JSON)
        await ds.ask("POST", "orders", b"[3,4]", content_type=JSON)
        # Two appends of one batch share a chunk, as those of many clients do.
        ds.otherwise(b"orders", m.Append(1, [b"5", b"6"]), m.Append(2, [b"7"]))
        ends = {0: 3, 1: 3, 2: 3, 3: 5, 5: 7, 6: 7, 7: 8}
        for at, end in ends.items():
            assert await forked(ds, at, end - at + 1) == 400
            assert await forked(ds, at, end - at, f"fork{at}") == 201
            got = await ds.ask("GET", f"fork{at}")
            assert got.json() == list(range(end))
        assert (await ds.ask("HEAD", "fork")).status == 404


async def test_a_sub_offset_counts_messages_of_one_append_over_many_pages() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=JSON)
        long = m.Append(1, [b"%d" % each for each in range(2500)])
        ds.otherwise(b"orders", long, m.Append(2, [b"not json", b"1"]))
        assert await forked(ds, 0, 2501) == 400
        assert await forked(ds, 0, 2400) == 201
        assert len((await ds.ask("GET", "fork")).json()) == 2400
        assert await forked(ds, 2500, 1, "other") == 201, "what is no message is not counted"
        assert (await ds.ask("GET", "other")).json()[-2:] == [2499, 1]


async def test_a_time_is_compared_and_not_its_spelling() -> None:
    async with api_client() as ds:
        first = await ds.ask("PUT", "orders", stream_expires_at="2099-01-01T00:00:00Z")
        again = await ds.ask("PUT", "orders", stream_expires_at="2099-01-01T01:00:00.000+01:00")
        other = await ds.ask("PUT", "orders", stream_expires_at="2099-01-01T00:00:01Z")
        assert [first.status, again.status, other.status] == [201, 200, 409]
        head = await ds.ask("HEAD", "orders")
        assert header_of(head, "stream-expires-at") == "2099-01-01T00:00:00Z"


async def test_a_page_of_elsewhere_may_do_nothing() -> None:
    """Browsers send a POST of text without asking first."""
    async with api_client(origins=("https://app.example",)) as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        for origin in ("https://evil.example", "null"):
            got = await ds.ask("POST", "orders", b"x", content_type=TEXT, origin=origin)
            assert got.status == 403
            asked = await ds.ask("OPTIONS", "orders", origin=origin)
            assert asked.status == 403
            assert header_of(asked, "access-control-allow-origin") is None
        for origin in ("https://app.example", "http://127.0.0.1:7404"):
            got = await ds.ask("POST", "orders", b"y", content_type=TEXT, origin=origin)
            assert (got.status, header_of(got, "access-control-allow-origin")) == (204, origin)
        asked = await ds.ask("OPTIONS", "orders", origin="https://app.example")
        assert b"producer-id" in asked.headers[b"access-control-allow-headers"]
        assert (await ds.ask("GET", "orders")).body == b"yy"


RIGHTS = {
    "PUT": Rights.PUT,
    "POST": Rights.PUT,
    "GET": Rights.GET,
    "HEAD": Rights.GET | Rights.LIST,
    "DELETE": Rights.ADMIN,
}


@pytest.mark.parametrize("method", RIGHTS)
async def test_each_operation_takes_its_right(method: str) -> None:
    async with api_client() as ds:
        ds.otherwise(b"orders", m.Create(0, m.Settings(content_type=b"text/plain")))
        everything = Rights.PUT | Rights.GET | Rights.LIST | Rights.ADMIN
        for given in (everything & ~RIGHTS[method], RIGHTS[method]):
            ds.served.services.authorize_stream = lambda principal, name, given=given: given  # type: ignore[method-assign,misc]
            body = b"x" if method == "POST" else b""
            got = await ds.ask(method, "orders", body, content_type=TEXT)
            assert (got.status == 403) == (given != RIGHTS[method])


async def test_who_is_unknown_is_told_so() -> None:
    async with api_client() as ds:
        ds.served.services.authorize_stream = lambda principal, name: None  # type: ignore[method-assign]
        ds.served.services.knows = lambda principal: False  # type: ignore[method-assign]
        got = await ds.ask("GET", "orders")
        assert (got.status, header_of(got, "www-authenticate")) == (401, "Bearer")


async def test_a_fork_takes_the_right_to_read_its_source() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "secret", b"x", content_type=TEXT)
        may = {b"copy": Rights.PUT | Rights.GET, b"secret": Rights.PUT}
        ds.served.services.authorize_stream = lambda principal, name: may[name]  # type: ignore[method-assign]
        got = await ds.ask("PUT", "copy", stream_forked_from="/v1/stream/secret")
        assert got.status == 403


async def test_events_end_when_the_right_to_read_does() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        with anyio.fail_after(60):
            async with ds.open("GET", "orders?offset=-1&live=sse") as exchange:
                assert await exchange.head() == 200
                assert b"data:x" in (await exchange.piece() or b"")
                ds.served.services.authorize_stream = lambda principal, name: None  # type: ignore[method-assign]
                ds.served.services.reauthorize()
                assert await exchange.piece() is None


async def test_a_stream_that_is_deleted_ends_its_readers() -> None:
    async with api_client(DurableSettings(long_poll_s=30)) as ds:
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        tail = f"{1:016d}_{0:016d}"
        with anyio.fail_after(60):
            async with (
                ds.open("GET", f"orders?offset={tail}&live=sse") as events,
                ds.open("GET", f"orders?offset={tail}&live=long-poll") as poll,
            ):
                await events.head()
                await events.piece()
                await anyio.sleep(0.05)
                assert (await ds.ask("DELETE", "orders")).status == 204
                await ds.ask("PUT", "orders", b"new", content_type=TEXT)
                assert await events.piece() is None
                assert (await poll.got()).status == 404


async def test_an_event_stream_has_a_heartbeat_in_quiet_times() -> None:
    async with api_client(DurableSettings(events_s=0.3, heartbeat_s=0.05)) as ds:
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        with anyio.fail_after(60):
            async with ds.open("GET", "orders?offset=-1&live=sse") as exchange:
                await exchange.head()
                assert b"data:x" in (await exchange.piece() or b"")
                assert await exchange.piece() == b":\n\n"
                await ds.ask("POST", "orders", b"y", content_type=TEXT)
                rest = b""
                while (piece := await exchange.piece()) is not None:
                    rest += piece
        assert rest.count(b"event: data") == 1 and b"data:y" in rest
        assert rest.count(b"event: control") == 1, "a heartbeat moves nothing"
        assert 2 <= rest.count(b":\n\n") <= 6


async def test_a_node_that_stops_answers_who_waits() -> None:
    async with api_client(DurableSettings(long_poll_s=30)) as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        with anyio.fail_after(60):
            async with (
                ds.open("GET", "orders?offset=-1&live=sse") as events,
                ds.open("GET", "orders?offset=now&live=long-poll") as poll,
            ):
                await events.head()
                await events.piece()
                await anyio.sleep(0.05)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ds.node.drain)
                    assert await events.piece() is None
                    assert (await poll.got()).status == 204
                    tasks.cancel_scope.cancel()
                got = await ds.ask("GET", "orders")
                assert got.status == 503


async def test_a_tag_changes_with_the_stream() -> None:
    async with api_client() as ds:
        tags = []
        for _ in range(2):
            await ds.ask("PUT", "orders", b"x", content_type=TEXT)
            tags.append(header_of(await ds.ask("GET", "orders"), "etag"))
            await ds.ask("POST", "orders", stream_closed="true")
            tags.append(header_of(await ds.ask("GET", "orders"), "etag"))
            await ds.ask("DELETE", "orders")
            await anyio.sleep(0.005)
        assert len(set(tags)) == 4
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        tag = header_of(await ds.ask("GET", "orders"), "etag") or ""
        got = await ds.ask("GET", "orders", if_none_match=f'"other", W/{tag}')
        assert (got.status, got.body) == (304, b"")


async def test_a_full_node_says_so_and_keeps_nothing() -> None:
    async with api_client(stream_bytes_max=1000) as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        headers = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        got = await ds.ask("POST", "orders", b"x" * 2000, content_type=TEXT, **headers)
        assert (got.status, got.json()["code"]) == (507, "full")
        got = await ds.ask("POST", "orders", b"x", content_type=TEXT, **headers)
        assert got.status == 200


async def test_followers_wait_together_and_none_is_lost_with_another() -> None:
    """The one who asked for all of them leaves; the others get what comes, in order."""
    async with api_client() as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        with anyio.fail_after(60):
            async with AsyncExitStack() as stack:
                opened = [
                    await stack.enter_async_context(ds.open("GET", "orders?offset=-1&live=sse"))
                    for _ in range(5)
                ]
                for each in opened:
                    await each.head()
                    await each.piece()
                await anyio.sleep(0.05)
                await opened[0].leave()
                await anyio.sleep(0.05)
                for body in (b"a", b"b"):
                    await ds.ask("POST", "orders", body, content_type=TEXT)
                    for each in opened[1:]:
                        assert b"data:" + body in (await each.piece() or b"")
                await ds.ask("POST", "orders", stream_closed="true")
                for each in opened[1:]:
                    assert b"streamClosed" in (await each.piece() or b"")
                    assert await each.piece() is None


async def test_events_end_after_their_time() -> None:
    async with api_client(DurableSettings(events_s=0.1)) as ds:
        await ds.ask("PUT", "orders", content_type=TEXT)
        with anyio.fail_after(60):
            async with ds.open("GET", "orders?offset=-1&live=sse") as events:
                await events.head()
                assert b"upToDate" in (await events.piece() or b"")
                assert await events.piece() is None
