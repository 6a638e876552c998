"""The page's own P2P client against this project's codecs: the same bytes both ways."""

from __future__ import annotations

import json
import random
from contextlib import AsyncExitStack
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millpond.actors.messages import Role
from millpond.transports.p2p.handshake import decode_hello
from tests.browser.chromium import Tab
from tests.browser.conftest import Person

VALUES: list[object] = [
    None, True, False, 0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1,
    -1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**53) + 1,
    "", "a", "é" * 15, "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 70_000, "👩‍👩‍👧",
    [], [1, "2", None], list(range(15)), list(range(16)), list(range(70_000)),
    {}, {"a": {"b": [{"c": None}]}}, {f"k{i}": i for i in range(15)},
    {f"k{i}": i for i in range(16)}, 0.5, -1e300,
]  # fmt: skip


@pytest.fixture
async def page(tab: Tab, homes: AsyncExitStack, alice: Person) -> Tab:
    await homes.enter_async_context(alice.at_home())
    await tab.open(alice.page)
    await tab.until("document.body?.dataset.view === 'login'")
    await tab.run(
        """(async () => {
            window.m = await import('/msgpack.js');
            window.p = await import('/p2p.js');
            window.hex = (bytes) => [...bytes].map((b) => b.toString(16).padStart(2, '0')).join('');
            window.bytes = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (d) => parseInt(d, 16));
        })()"""
    )
    return tab


async def decoded(page: Tab, wire: bytes) -> Any:
    return await page.run(f"m.decode(bytes('{wire.hex()}'))")


async def test_values_both_ways(page: Tab) -> None:
    for value in VALUES:
        assert await decoded(page, msgspec.msgpack.encode(value)) == value
        wire = bytes.fromhex(await page.run(f"hex(m.encode({json.dumps(value)}))"))
        assert msgspec.msgpack.decode(wire) == value


async def test_bytes_both_ways(page: Tab) -> None:
    for size in (0, 1, 255, 256, 70_000):
        value = random.Random(size).randbytes(size)
        wire = msgspec.msgpack.encode(value).hex()
        assert await page.run(f"hex(m.decode(bytes('{wire}')))") == value.hex()
        assert await page.run(f"hex(m.encode(bytes('{value.hex()}')))") == wire


async def test_what_javascript_has_no_number_for(page: Tab) -> None:
    assert await page.run("String(m.decode(bytes('cfffffffffffffffff')))") == str(2**64 - 1)
    groups = msgspec.msgpack.encode({b"read": 5})
    assert await page.run(f"m.decode(bytes('{groups.hex()}')).size") == 1


async def test_what_is_cut_or_is_no_value_is_refused(page: Tab) -> None:
    whole = msgspec.msgpack.encode({"a": [1, "text", b"bytes", 2**40, -1.5]})
    broken = [whole[:cut] for cut in range(len(whole))] + [whole + b"\x00", b"\xc1", b"\x91" * 100]
    outcomes = await page.run(
        f"""{json.dumps([each.hex() for each in broken])}.map((each) => {{
            try {{ m.decode(bytes(each)); return 'taken' }} catch (error) {{ return error.name }}
        }})"""
    )
    assert set(outcomes) == {"RangeError"}


async def test_hello_is_what_the_node_reads(page: Tab) -> None:
    raw = bytes.fromhex(await page.run("hex(p.hello('millpond!chat', 'mpw1.token'))"))
    hello = decode_hello(raw)
    assert hello.channel == b"millpond!chat"
    assert hello.token == b"mpw1.token"
    assert hello.role is Role.CONSUMER
    assert hello.extensions == set(range(0x90, 0x98))
    assert not hello.want_push


async def test_a_wrong_token_is_told_apart_from_a_node_that_is_away(page: Tab) -> None:
    refused = await page.run(
        "p.connect('millpond!chat', 'mpw1.wrong').catch((error) => error.code)"
    )
    assert refused == 0xF5


async def test_answers_in_parts_are_put_together(
    tab: Tab, homes: AsyncExitStack, tmp_path: Path, bob: Person
) -> None:
    """A read of more than a packet holds, over a real connection."""
    alice = Person(tmp_path, "alice", packet_bytes_max=2**16)
    node = await homes.enter_async_context(alice.at_home())
    ledger = alice.history_with(bob.public)
    await ledger.create(2**28)
    bodies = [random.Random(place).randbytes(100_000) for place in range(4)]
    await ledger.append(bodies)
    await tab.open(alice.page)
    await tab.until("document.body?.dataset.view === 'login'")
    token = node.web.login.exchange(node.web.login.new_link())
    read = f"{{ stream: new TextEncoder().encode('{ledger.name.decode()}'), bytes_max: 1000000 }}"
    sums = await tab.run(
        f"""(async () => {{
            const {{ connect, STREAM }} = await import('/p2p.js');
            const connection = await connect('millpond!chat', '{token}');
            const {{ spans }} = await connection.ask(STREAM, 3, {read});
            connection.close();
            const add = (sum, byte) => (sum * 31 + byte) % 1000003;
            return spans.flatMap(({{ bodies }}) => bodies.map((body) => body.reduce(add, 0)));
        }})()"""
    )
    assert sums == [
        reduce(lambda sum, byte: (sum * 31 + byte) % 1000003, each, 0) for each in bodies
    ]
