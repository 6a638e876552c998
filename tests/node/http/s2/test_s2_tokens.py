"""Access tokens by the published client, against a node: issued, used, kept, revoked (A.2, A.3)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from s2_sdk import (
    S2,
    AccessTokenScope,
    AppendInput,
    BasinConfig,
    Encryption,
    Endpoints,
    ExactMatch,
    Operation,
    OperationGroupPermissions,
    Permission,
    PrefixMatch,
    ReadLimit,
    Record,
    S2ServerError,
    SeqNum,
)

from millpond.actors.messages import Durability
from millpond.node.config_rules import StreamRule
from millpond.node.node import Node
from tests.node.http.s2.conftest import BASIN, ONCE, client, running


def _with(node: Node, token: str) -> Any:
    url = f"http://{node.listeners['http']}"
    return S2(token, endpoints=Endpoints(account=url, basin=url), retry=ONCE)


def _scope(*ops: Operation, **groups: Permission) -> AccessTokenScope:
    return AccessTokenScope(
        basins=ExactMatch(BASIN),
        streams=PrefixMatch("team/"),
        op_groups=OperationGroupPermissions(**groups) if groups else None,
        ops=list(ops),
    )


async def _refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(S2ServerError) as caught:
        await call
    return caught.value.status_code, caught.value.code


async def test_a_3_a_token_from_its_issue_to_its_end(node: Node, s2: Any, basin: Any) -> None:
    for name in ("team/a", "other"):
        await basin.create_stream(name)
        await basin.stream(name).append(AppendInput([Record(body=b"x")]))
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    scope = _scope(Operation.LIST_STREAMS, stream=Permission.READ)
    token = await s2.issue_access_token("reader", scope=scope, expires_at=end)
    (info,) = (await s2.list_access_tokens(prefix="read")).items
    assert (info.id, info.scope, info.expires_at) == ("reader", scope, end)
    assert await _refusal(s2.issue_access_token("reader", scope=scope)) == (
        409,
        "resource_already_exists",
    )
    async with _with(node, token) as narrow:
        theirs = narrow.basin(BASIN)
        assert [each.name for each in (await theirs.list_streams()).items] == ["team/a"]
        batch = await theirs.stream("team/a").read(start=SeqNum(0))
        assert [each.body for each in batch.records] == [b"x"]
        denied = (403, "permission_denied")
        append = theirs.stream("team/a").append(AppendInput([Record(body=b"y")]))
        assert await _refusal(append) == denied
        assert await _refusal(theirs.stream("other").read(start=SeqNum(0))) == denied
        assert await _refusal(theirs.create_stream("team/b")) == denied
        assert await _refusal(narrow.list_basins()) == denied
        assert await _refusal(narrow.issue_access_token("more", scope=scope)) == denied
        await s2.revoke_access_token("reader")
        assert await _refusal(theirs.stream("team/a").read(start=SeqNum(0))) == (401, "authn")
    assert await _refusal(s2.revoke_access_token("reader")) == (404, "access_token_not_found")


async def test_a_3_names_have_the_prefix_of_the_token(node: Node, s2: Any, basin: Any) -> None:
    both = Permission.READ_WRITE
    scope = _scope(basin=both, stream=both)
    token = await s2.issue_access_token("team", scope=scope, auto_prefix_streams=True)
    assert (await s2.list_access_tokens()).items[0].auto_prefix_streams
    async with _with(node, token) as narrow:
        theirs = narrow.basin(BASIN)
        assert (await theirs.create_stream("a/b c")).name == "a/b c"
        stream = theirs.stream("a/b c")
        async with stream.append_session() as session:
            tickets = [
                await session.submit(AppendInput([Record(body=b"%d" % each)])) for each in range(20)
            ]
            assert [(await each).start.seq_num for each in tickets] == list(range(20))
        assert [each.name for each in (await theirs.list_streams()).items] == ["a/b c"]
    assert [each.name for each in (await basin.list_streams()).items] == ["team/a/b c"]
    batch = await basin.stream("team/a/b c").read(start=SeqNum(19))
    assert [each.body for each in batch.records] == [b"19"]


async def test_sessions_end_when_their_token_is_revoked(node: Node, s2: Any, basin: Any) -> None:
    """A reader that follows and a writer: what was acked is there, and nothing later."""
    await basin.create_stream("team/a")
    scope = _scope(stream=Permission.READ_WRITE)
    token = await s2.issue_access_token("team", scope=scope)
    async with _with(node, token) as narrow:
        stream = narrow.basin(BASIN).stream("team/a")
        seen: list[bytes] = []
        has_seen = anyio.Event()

        async def follow() -> None:
            async for batch in stream.read_session(start=SeqNum(0)):
                seen.extend(each.body for each in batch.records)
                has_seen.set()

        reader = asyncio.create_task(follow())
        session = stream.append_session()
        await session.__aenter__()
        await (await session.submit(AppendInput([Record(body=b"kept")])))
        with anyio.fail_after(60):
            await has_seen.wait()
        await s2.revoke_access_token("team")
        with anyio.fail_after(60):
            assert await _refusal(reader) == (403, "permission_denied")
            with pytest.raises(S2ServerError):
                await (await session.submit(AppendInput([Record(body=b"lost")])))
                await session.__aexit__(None, None, None)
    assert seen == [b"kept"]
    assert (await basin.stream("team/a").check_tail()).seq_num == 1


async def test_tokens_are_there_after_a_restart_and_nowhere_on_the_disk(tmp_path: Path) -> None:
    told = {"data": str(tmp_path / "node"), "durability": Durability.DISK}
    scope = _scope(stream=Permission.READ)
    async with running(**told) as node, client(node) as s2:
        await s2.create_basin(BASIN)
        await s2.basin(BASIN).create_stream("team/a")
        kept = await s2.issue_access_token("kept", scope=scope)
        gone = await s2.issue_access_token("gone", scope=scope)
        await s2.revoke_access_token("gone")
    async with running(**told) as node, client(node) as s2:
        assert [each.id for each in (await s2.list_access_tokens()).items] == ["kept"]
        async with _with(node, kept) as narrow:
            tail = await narrow.basin(BASIN).stream("team/a").check_tail()
            assert tail.seq_num == 0
        async with _with(node, gone) as narrow:
            tail = narrow.basin(BASIN).stream("team/a").check_tail()
            assert await _refusal(tail) == (401, "authn")
    for path in (tmp_path / "node").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert kept.removeprefix("mpi1.").encode() not in data
            assert gone.removeprefix("mpi1.").encode() not in data


async def test_basins_and_tokens_outlive_streams_that_a_rule_keeps_in_memory(
    tmp_path: Path,
) -> None:
    rules = (StreamRule.parse("*=durability=memory"),)
    told = {"data": str(tmp_path / "node"), "durability": Durability.DISK, "streams": rules}
    async with running(**told) as node, client(node) as s2:
        await s2.create_basin(BASIN)
        await s2.basin(BASIN).create_stream("in-memory")
        await s2.issue_access_token("kept", scope=_scope(stream=Permission.READ))
    async with running(**told) as node, client(node) as s2:
        assert [each.name for each in (await s2.list_basins(prefix=BASIN)).items] == [BASIN]
        assert [each.id for each in (await s2.list_access_tokens()).items] == ["kept"]
        assert (await s2.basin(BASIN).list_streams()).items == []


@pytest.mark.parametrize("cipher", list(Encryption))
async def test_s2x_02_records_are_encrypted_with_the_client_s_key(s2: Any, cipher: Any) -> None:
    """Unary and in sessions; another key reads nothing, and none is refused by the cipher's
    name."""
    name = "secret-basin"
    await s2.create_basin(name, config=BasinConfig(stream_cipher=cipher))
    basin = s2.basin(name)
    assert (await basin.create_stream("a")).cipher == cipher
    key, other = bytes(range(32)), bytes(32)
    stream = basin.stream("a", encryption_key=key)
    records = [Record(body=b"first", headers=[(b"n", b"v")]), Record(body=b"x" * 100_000)]
    await stream.append(AppendInput(records))
    async with stream.append_session() as session:
        await (await session.submit(AppendInput([Record(body=b"last")])))
    batch = await stream.read(start=SeqNum(0))
    assert [(each.body, each.headers) for each in batch.records] == [
        (b"first", [(b"n", b"v")]),
        (b"x" * 100_000, []),
        (b"last", []),
    ]
    seen = [
        each.body
        async for found in stream.read_session(start=SeqNum(0), limit=ReadLimit(count=3))
        for each in found.records
    ]
    assert seen == [b"first", b"x" * 100_000, b"last"]
    refused = basin.stream("a", encryption_key=other).read(start=SeqNum(0))
    assert await _refusal(refused) == (400, "decryption_failed")
    with pytest.raises(S2ServerError, match=cipher.value) as caught:
        await basin.stream("a").append(AppendInput([Record(body=b"x")]))
    assert (caught.value.status_code, caught.value.code) == (400, "bad_header")
    assert (await basin.stream("a").check_tail()).seq_num == 3
