"""S3A-36, RLA-33, P2P-24 with an access file: rights in streams, for all clients and protocols."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.rustlog_peer import RustlogServer, fetch, produce, rustlog_server
from tests.conformance.s3p_peer import OK, append, create, read

OWNER = "listener:s3p all stream:*\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


async def test_s3a_36_p2p_24_a_stream_without_the_right_ends_the_connection(tmp_path: Path) -> None:
    rules = write(
        tmp_path / "access.conf",
        "listener:s3p put,get stream:orders\naddress:127.0.0.0/8 put stream:drop/*\n",
    )
    async with rustlog_server(access_file=rules) as server:
        client = await server.s3p()
        assert await client.ask(create()) == OK and await client.ask(create(b"drop/a")) == OK
        await client.append(b"x")
        assert len(await client.records()) == 1
        await client.send(append(b"y", name=b"drop/a"), read(b"drop/a"), append(b"z"))
        assert (await client.reply()).startswith(b"$")
        assert await client.rest() == b"-ERR_LIMITS access refused\r\n"
        other = await server.s3p()
        assert len(await other.records()) == 1
        assert server.node.services.counters.reasons == {"not allowed": 1}


async def test_rla_33_p2p_24_a_topic_without_the_right_is_an_error_and_hidden(
    tmp_path: Path,
) -> None:
    path = tmp_path / "access.conf"
    rules = write(path, "listener:rustlog all\n")
    async with rustlog_server(access_file=rules) as server:
        peer = await server.rustlog()
        await peer.create("open")
        await peer.create("secret")
        write(path, "listener:rustlog put,list stream:open\n")
        server.node.reload()
        assert (await peer.ask(produce("open", b"x")))["type"] == "ProduceResponse"
        same = [await peer.refused(fetch(name), 400) for name in ("open", "secret", "absent")]
        assert same[0] == same[1] == same[2]
        topics = await peer.ask({"type": "ListTopics"})
        assert [each["name"] for each in topics["topics"]] == ["open"]
        await peer.refused({"type": "CreateTopic", "topic": "new", "partition_count": 1}, 400)
        write(path, "anyone all chat/*\n")
        server.node.reload()
        await peer.ends()
        await _is_shut(server)


async def _is_shut(server: RustlogServer) -> None:
    newcomer = await server.rustlog()
    await newcomer.send(fetch("open"))
    await newcomer.ends(400)


async def test_s3a_36_a_waiting_read_is_answered_before_a_connection_without_rights_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "access.conf"
    async with rustlog_server(access_file=write(path, OWNER)) as server:
        client = await server.s3p()
        assert await client.ask(create()) == OK
        await client.send(read(BLOCK=60_000))
        await client.silent_for(0.05)
        write(path, "")
        server.node.reload()
        assert await client.rest() == b"*0\r\n"
