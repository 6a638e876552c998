"""The rows of S2 that its published clients rely on beyond the data plane (S2X of interop.md):
encryption, access tokens, metrics, shown configuration, codes of errors, retention, trims, and
sessions that do not follow. In memory, with raw requests; other folders have more of each."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import basin_cell, stream_cell
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.info import time_text
from millpond.transports.http.s2.s2_pb2 import AppendInput
from tests.transports.http.client import Client, Got
from tests.transports.http.s2.account import (
    ALL,
    BEGAN_AT,
    OTHER,
    OWN,
    RECORD,
    REMOTE,
    Account,
    Hands,
    account,
    code_of,
    headers_of,
)

CIPHERS = ("aegis-256", "aes-256-gcm")
KEY, OTHER_KEY = bytes(range(1, 33)), bytes(32)
KEY_TEXT = b"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
SECRET = "nobody reads this on a disk"
EVENTS = (b"accept", b"text/event-stream")
S2S = (b"content-type", b"s2s/proto")
BINARY = (b"s2-format", b"base64")
BEGAN_S = int(BEGAN_AT)


@pytest.fixture
def wiring() -> str:
    """Nothing here depends on the event loop."""
    return "tcp-uvloop"


def key_header(key: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if key is None else ((b"s2-encryption-key", b64encode(key)),)


def text_header(text: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if text is None else ((b"s2-encryption-key", text),)


def command(verb: str, body: bytes) -> dict[str, Any]:
    pair = ["", b64encode(verb.encode()).decode()]
    return {"headers": [pair], "body": b64encode(body).decode()}


TRIM_ALL = command("trim", (2**53 - 1).to_bytes(8, "big"))


async def _append(
    s2: Account, records: list[Any], *headers: tuple[bytes, bytes], basin: str = OTHER, **more: Any
) -> Got:
    body = {"records": records, **more}
    return await s2.ask("POST", "/streams/a/records", body, basin=basin, headers=headers)


async def _read(s2: Account, query: str, *headers: tuple[bytes, bytes], basin: str = OTHER) -> Got:
    return await s2.ask("GET", f"/streams/a/records{query}", basin=basin, headers=headers)


@asynccontextmanager
async def encrypting(cipher: str, **settings: Any) -> AsyncIterator[Account]:
    """A node with a basin that encrypts, and a stream in it."""
    async with account(**settings) as s2:
        made = await s2.ask("PUT", f"/basins/{OTHER}", {"config": {"stream_cipher": cipher}})
        assert made.status == 201, made.body
        assert (await s2.ask("POST", "/streams", {"stream": "a"}, basin=OTHER)).status == 201
        yield s2


async def _stored(s2: Account, stream: str = "a") -> list[bytes]:
    """The bodies as they are stored."""
    return [body for span in await _spans(s2, stream) for body in span.bodies]


async def _spans(s2: Account, stream: str = "a") -> Sequence[m.RecordColumns]:
    """The records as they are stored."""
    from millpond.actors.positions import Seek, SeekBy
    from millpond.transports.http.cell_client import CellClient

    with CellClient(s2.node.services) as cells:
        cell = basin_cell(OTHER.encode(), stream.encode())
        seek = Seek(SeekBy.SEQUENCE, sequence=0)
        reply = await cells.request(cell, lambda number: m.EncryptedRead(number, seek, 1000, 2**24))
    assert isinstance(reply, m.Records), reply
    return reply.spans


# 3.1 Encryption.


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_01_a_basin_s_cipher_is_that_of_its_new_streams(cipher: str) -> None:
    async with account() as s2:
        made = await s2.ask(
            "POST", "/basins", {"basin": OTHER, "config": {"stream_cipher": cipher}}
        )
        assert made.status == 201
        shown = await s2.ask("GET", f"/basins/{OTHER}")
        assert shown.json()["stream_cipher"] == cipher
        made = await s2.ask("POST", "/streams", {"stream": "posted"}, basin=OTHER)
        assert made.json()["cipher"] == cipher
        made = await s2.ask("PUT", "/streams/put", basin=OTHER)
        assert made.json()["cipher"] == cipher
        changed = await s2.ask("PATCH", f"/basins/{OTHER}", {"stream_cipher": None})
        assert changed.json()["stream_cipher"] is None
        assert (await s2.ask("PUT", "/streams/plain", basin=OTHER)).json()["cipher"] is None
        listed = (await s2.ask("GET", "/streams", basin=OTHER)).json()["streams"]
        assert {each["name"]: each["cipher"] for each in listed} == {
            "plain": None,
            "posted": cipher,
            "put": cipher,
        }
        config = (await s2.ask("GET", "/streams/put", basin=OTHER)).json()
        assert "cipher" not in json.dumps(config)
        # It never changes: not with the basin, and not with the stream's own configuration.
        change = {"retention_policy": {"age": 60}}
        assert (await s2.ask("PATCH", "/streams/put", change, basin=OTHER)).status == 200
        assert (await s2.ask("PUT", "/streams/put", change, basin=OTHER)).json()["cipher"] == cipher
        bad = {"stream_cipher": "rot13"}
        for method, path, body in (
            ("PATCH", f"/basins/{OTHER}", bad),
            ("PUT", f"/basins/{OTHER}", {"config": bad}),
            ("POST", "/basins", {"basin": "third-basin", "config": bad}),
        ):
            assert code_of(await s2.ask(method, path, body)) == (400, "bad_json")
        # A stream's own configuration has no such field to give it one.
        got = await s2.ask("PUT", "/streams/plain", {"stream_cipher": cipher}, basin=OTHER)
        assert got.status == 400 or got.json()["cipher"] is None


@pytest.mark.parametrize("way", ["append", "session", "read", "events", "tail"])
@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_01_streams_that_requests_create_have_the_cipher_of_then(
    cipher: str, way: str
) -> None:
    """The basin gets its cipher by PUT, and another one by PATCH."""
    creating = {"create_stream_on_append": True, "create_stream_on_read": True}
    (other,) = set(CIPHERS) - {cipher}
    key = key_header(KEY)

    async def create(name: str) -> None:
        path = f"/streams/{name}/records"
        match way:
            case "append":
                got = await s2.ask("POST", path, RECORD, basin=OTHER, headers=key)
            case "session":
                got = await s2.ask("POST", path, basin=OTHER, headers=(*key, S2S))
            case "read":
                got = await s2.ask("GET", f"{path}?seq_num=0", basin=OTHER, headers=key)
                assert got.status == 416  # it is there now, and empty
                return
            case "events":
                query = f"{path}?seq_num=0&wait=0"
                got = await s2.ask("GET", query, basin=OTHER, headers=(*key, EVENTS))
            case _:
                got = await s2.ask("GET", f"{path}/tail", basin=OTHER)
        assert got.status == 200, got.body

    async with account() as s2:
        config = {**creating, "stream_cipher": cipher}
        got = await s2.ask("PUT", f"/basins/{OTHER}", {"config": config})
        assert got.status == 201
        assert (await s2.ask("GET", f"/basins/{OTHER}")).json()["stream_cipher"] == cipher
        await create("first")
        for number, change in enumerate((other, None, cipher)):
            got = await s2.ask("PATCH", f"/basins/{OTHER}", {"stream_cipher": change})
            assert (got.status, got.json()["stream_cipher"]) == (200, change)
            await create(f"later-{number}")
        listed = (await s2.ask("GET", "/streams", basin=OTHER)).json()["streams"]
        assert {each["name"]: each["cipher"] for each in listed} == {
            "first": cipher,
            "later-0": other,
            "later-1": None,
            "later-2": cipher,
        }


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("way", ["unary", "events", "s2s"])
async def test_s2x_02_the_key_comes_with_each_append_and_read(cipher: str, way: str) -> None:
    assert b64encode(KEY) == KEY_TEXT
    async with encrypting(cipher) as s2:
        key = text_header(KEY_TEXT)
        records = [{"body": SECRET}, {"headers": [["n", "v"]], "body": ""}, {"body": "x" * 70_000}]
        if way == "s2s":
            body = AppendInput(
                records=[
                    {"body": SECRET.encode()},
                    {"headers": [{"name": b"n", "value": b"v"}]},
                    {"body": b"x" * 70_000},
                ]
            ).SerializeToString()
            pairs = [(b"s2-basin", OTHER.encode()), S2S, *key]
            wire = frames.encode([body])
            got = await Client(s2.application).request("POST", "/v1/streams/a/records", pairs, wire)
            assert got.status == 200
            assert b"bad" not in got.body
        else:
            assert (await _append(s2, records, *key)).status == 200
        if way == "unary":
            found = (await _read(s2, "?seq_num=0", *key)).json()["records"]
            assert [{k: v for k, v in each.items() if k in ("headers", "body")} for each in found][
                :2
            ] == [{"body": SECRET}, {"headers": [["n", "v"]]}]
            assert found[2]["body"] == "x" * 70_000
        else:
            accepts = EVENTS if way == "events" else S2S
            got = await _read(s2, "?seq_num=0&count=3", *key, accepts)
            assert SECRET.encode() in got.body
            assert b"x" * 70_000 in got.body


@pytest.mark.parametrize("text", [b"", b"   ", b"A" * 45, b"A" * 100])
async def test_s2x_03_a_key_of_an_impossible_length_is_a_bad_header(text: bytes) -> None:
    """On every append and read, plain streams and unknown ones included."""
    async with account() as s2:
        await s2.fill("a")
        key = text_header(text)
        for stream in ("a", "not-there"):
            path = f"/streams/{stream}/records"
            for headers in (key, (*key, S2S), (*key, EVENTS)):
                got = await s2.ask("GET", f"{path}?seq_num=0", basin=OTHER, headers=headers)
                assert code_of(got) == (400, "bad_header")
            for headers in (key, (*key, S2S)):
                got = await s2.ask("POST", path, RECORD, basin=OTHER, headers=headers)
                assert code_of(got) == (400, "bad_header")


async def test_s2x_03_on_a_plain_stream_the_key_is_not_looked_at() -> None:
    async with account() as s2:
        await s2.fill("a")
        for text in (b"!!!!", b" x ", KEY_TEXT):
            assert (await _append(s2, [{}], *text_header(text))).status == 200
            assert (await _read(s2, "?seq_num=0", *text_header(text))).status == 200


WRONG = [
    (None, "missing encryption key for stream cipher '{}'"),
    (b"!!!!", "invalid encryption key for stream cipher '{}': invalid base64"),
    (KEY_TEXT.rstrip(b"="), "invalid encryption key for stream cipher '{}': invalid base64"),
    (b"_" * 44, "invalid encryption key for stream cipher '{}': invalid base64"),
    (b64encode(b"abc"), "invalid encryption key length for stream cipher '{}': 3"),
    (b64encode(bytes(33)), "invalid encryption key length for stream cipher '{}': 33"),
]


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize(("text", "message"), WRONG)
async def test_s2x_04_s2x_05_what_is_no_key(cipher: str, text: bytes | None, message: str) -> None:
    """Before conditions and positions are looked at; sessions answer it before their 200."""
    async with encrypting(cipher) as s2:
        key = text_header(text)
        wanted = {"code": "bad_header", "message": message.format(cipher)}
        refused = [
            await _append(s2, [{"body": "x"}], *key),
            await _append(s2, [{"body": "x"}], *key, match_seq_num=7),
            await _append(s2, [], *key, S2S),
            await _read(s2, "?seq_num=0", *key),
            await _read(s2, "?seq_num=9", *key),
            await _read(s2, "?seq_num=9", *key, EVENTS),
            await _read(s2, "?seq_num=0", *key, S2S),
        ]
        for got in refused:
            assert (got.status, got.json()) == (400, wanted)
            assert text is None or text not in got.body
        # Malformed requests and missing streams are refused first.
        assert code_of(await _append(s2, [], *key)) == (422, "invalid")
        got = await s2.ask("GET", "/streams/b/records?seq_num=0", basin=OTHER, headers=key)
        assert code_of(got) == (404, "stream_not_found")
        assert (await _read(s2, "/tail")).json()["tail"]["seq_num"] == 0


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_06_commands_take_the_key_and_nothing_else_does(cipher: str) -> None:
    async with encrypting(cipher) as s2:
        fence = command("fence", b"mine")
        assert code_of(await _append(s2, [fence], BINARY)) == (400, "bad_header")
        assert (await _append(s2, [fence], BINARY, *key_header(KEY))).status == 200
        assert (await _read(s2, "/tail")).json()["tail"]["seq_num"] == 1
        for path in ("/streams/a", "/streams", f"/metrics/{OTHER}/a?set=storage&start=0&end=1"):
            assert (await s2.ask("GET", path, basin=OTHER)).status == 200
        assert (await s2.ask("DELETE", "/streams/a", basin=OTHER)).status == 202


async def test_s2x_07_a_refused_key_makes_nothing() -> None:
    config = {
        "stream_cipher": "aes-256-gcm",
        "create_stream_on_append": True,
        "create_stream_on_read": True,
    }
    async with account() as s2:
        assert (await s2.ask("PUT", f"/basins/{OTHER}", {"config": config})).status == 201
        for got in (
            await _append(s2, [{"body": "x"}]),
            await _append(s2, [{"body": "x"}], *text_header(b"!!!!")),
            await _append(s2, [], S2S),
            await _read(s2, "?seq_num=0"),
            await _read(s2, "?seq_num=0", EVENTS),
        ):
            assert code_of(got) == (400, "bad_header")
        assert (await s2.ask("GET", "/streams", basin=OTHER)).json()["streams"] == []
        assert (await _append(s2, [{"body": "x"}], *key_header(KEY))).status == 200
        (info,) = (await s2.ask("GET", "/streams", basin=OTHER)).json()["streams"]
        assert info["cipher"] == "aes-256-gcm"


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_08_commands_are_stored_in_clear_and_sizes_are_those_in_clear(
    cipher: str,
) -> None:
    async with encrypting(cipher) as s2:
        most = {"body": b64encode(bytes(2**20 - 8)).decode()}
        key = key_header(KEY)
        assert (await _append(s2, [most], BINARY, *key)).status == 200
        over = {"body": b64encode(bytes(2**20 - 7)).decode()}
        assert code_of(await _append(s2, [over], BINARY, *key)) == (422, "invalid")
        assert len(json.loads((await _read(s2, "?seq_num=0", *key)).body)["records"]) == 1
        fence = command("fence", b"mine")
        assert (await _append(s2, [fence], BINARY, *key)).status == 200
        refused = await _append(s2, [{"body": "x"}], *key, fencing_token="other")
        assert refused.json() == {"fencing_token_mismatch": "mine"}
        assert (await _stored(s2))[1] == b"mine"
        small = [{"body": b64encode(b"abcd").decode()}] * 3
        assert (await _append(s2, small, BINARY, *key)).status == 200
        # 12 metered bytes each: two fit into 24, as they would in clear.
        found = (await _read(s2, "?seq_num=2&bytes=24", *key)).json()["records"]
        assert [each["seq_num"] for each in found] == [2, 3]
        events = (await _read(s2, "?seq_num=2&bytes=24", *key, EVENTS)).body
        assert (b'"seq_num":3' in events, b'"seq_num":4' in events) == (True, False)


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_08_sequence_and_timestamp_are_in_clear_and_name_value_and_body_are_not(
    cipher: str,
) -> None:
    """Fences and trims are stored as they are, and work: no part of them is a secret."""
    async with encrypting(cipher, s2_trim_grace_s=0) as s2:
        key = key_header(KEY)
        record = {
            "headers": [["a name", "a value"], ["a name", "another"]],
            "body": SECRET,
            "timestamp": 1234,
        }
        assert (await _append(s2, [record] * 3, *key)).status == 200
        commands = [command("fence", b"mine"), command("trim", (2).to_bytes(8, "big"))]
        assert (await _append(s2, commands, BINARY, *key)).status == 200
        tail = (await _read(s2, "/tail")).json()["tail"]
        assert tail["seq_num"] == 5
        first, *_ = spans = await _spans(s2)
        assert first.first == 2  # the trim took effect
        rows = [
            (span.timestamps[at] if span.timestamps else span.timestamp, body, headers)
            for span in spans
            for at, body in enumerate(span.bodies)
            for headers in [span.headers[at] if span.headers else []]
        ]
        assert [at for at, _, _ in rows] == [1234, *[tail["timestamp"]] * 2]
        sealed, fence, trim = (each[1:] for each in rows)
        assert fence == (b"mine", [(b"", b"fence")])
        assert trim == ((2).to_bytes(8, "big"), [(b"", b"trim")])
        assert sealed[1] == []
        for part in (b"a name", b"a value", b"another", SECRET.encode()):
            assert part not in sealed[0]
        # By the timestamp without a key it is found; the key is for the records alone.
        (found, *_) = (await _read(s2, "?timestamp=1234", *key)).json()["records"]
        assert found == {"seq_num": 2, **record}


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_08_usage_is_metered_in_clear(cipher: str) -> None:
    async with encrypting(cipher, clock=Hands().clock()) as s2:
        key = key_header(KEY)
        records = [{"headers": [["n", "vv"]], "body": "xyz"}] * 3  # 16 metered bytes each
        assert (await _append(s2, records, *key)).status == 200
        for query, count in (("count=2", 2), ("bytes=47", 2), ("bytes=48", 3)):
            got = await _read(s2, f"?seq_num=0&{query}", *key)
            assert len(got.json()["records"]) == count
        for name, size in (("append-throughput", 48), ("read-throughput", 16 * 7)):
            query = f"/metrics/{OTHER}?set={name}&start={BEGAN_S}&end={BEGAN_S + 60}"
            (value,) = (await s2.ask("GET", query)).json()["values"]
            assert sum(each[1] for each in value["accumulation"]["values"]) == size


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_09_stored_records_are_sealed_for_their_stream(cipher: str) -> None:
    async with encrypting(cipher) as s2:
        key = key_header(KEY)
        records = [{"headers": [["name", "value"]], "body": SECRET}] * 2
        assert (await _append(s2, records, *key)).status == 200
        first, second = await _stored(s2)
        assert first != second and first[0] == second[0] == 1 + CIPHERS.index(cipher)
        for each in (first, second):
            assert SECRET.encode() not in each and b"value" not in each
        # A record that is copied to another stream does not open.
        assert (await s2.ask("POST", "/streams", {"stream": "b"}, basin=OTHER)).status == 201
        await _put_stored(s2, "b", first)
        got = await s2.ask("GET", "/streams/b/records?seq_num=0", basin=OTHER, headers=key)
        assert code_of(got) == (400, "decryption_failed")


async def _put_stored(s2: Account, stream: str, body: bytes) -> None:
    from millpond.transports.http.cell_client import CellClient

    cell = basin_cell(OTHER.encode(), stream.encode())
    with CellClient(s2.node.services) as cells:
        reply = await cells.request(cell, lambda number: m.EncryptedAppend(number, [body]))
    assert isinstance(reply, m.Appended)


async def test_s2x_09_a_stream_of_aes_256_gcm_is_full_at_2_32_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from millpond.transports.http.s2 import encryption

    monkeypatch.setattr(encryption, "GCM_RECORDS_MAX", 3)
    for cipher, last in (("aes-256-gcm", (422, "invalid")), ("aegis-256", None)):
        async with encrypting(cipher) as s2:
            assert (await _append(s2, [{}, {}], *key_header(KEY))).status == 200
            got = await _append(s2, [{}, {}], *key_header(KEY))
            assert (code_of(got) if last else None) == last


def test_s2x_10_the_binding_of_aegis_is_that_of_libsodium() -> None:
    from millpond.transports.http.s2.encryption import Aegis

    sealed = Aegis(KEY).encrypt(bytes(32), b"secret", b"id")
    assert sealed.hex() == (
        "6cb225c751aba7d724b0b637195136efb16874938097967c39bba7e0dfcc25ec8a0c8afb93fd"
    )
    assert Aegis(KEY).decrypt(bytes(32), sealed, b"id") == b"secret"


async def test_s2x_10_without_its_library_aegis_is_not_implemented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    aegis = {"stream_cipher": "aegis-256"}
    async with encrypting("aegis-256") as s2:
        assert (await s2.ask("PUT", "/basins/plain-basin")).status == 201
        monkeypatch.setitem(sys.modules, "nacl", None)
        for got in (
            await s2.ask("PATCH", "/basins/plain-basin", aegis),
            await s2.ask("PUT", "/basins/plain-basin", {"config": aegis}),
            await s2.ask("PUT", "/basins/third-basin", {"config": aegis}),
            await s2.ask("POST", "/basins", {"basin": "third-basin", "config": aegis}),
            await s2.ask("POST", "/streams", {"stream": "new"}, basin=OTHER),
            await s2.ask("PUT", "/streams/new", basin=OTHER),
            await _append(s2, [{}], *key_header(KEY)),
            await _read(s2, "?seq_num=0", *key_header(KEY)),
        ):
            assert code_of(got) == (501, "not_implemented")
        assert (await s2.ask("GET", "/basins/third-basin")).status == 404
        # Changes that do not touch the cipher are made, in the basin and in its streams.
        result = b"s2-provision-result"
        got = await s2.ask("PUT", f"/basins/{OTHER}", {"config": aegis})
        assert (got.status, got.headers[result]) == (200, b"noop")
        change = {"create_stream_on_append": True}
        for body in (change, {**change, **aegis}):
            got = await s2.ask("PATCH", f"/basins/{OTHER}", body)
            assert (got.status, got.json()["stream_cipher"]) == (200, "aegis-256")
        config = {**aegis, **change, "create_stream_on_read": True}
        got = await s2.ask("PUT", f"/basins/{OTHER}", {"config": config})
        assert (got.status, got.headers[result]) == (200, b"updated")
        got = await s2.ask("PUT", "/streams/a", basin=OTHER)
        assert (got.status, got.headers[result]) == (200, b"noop")
        age = {"retention_policy": {"age": 60}}
        assert (await s2.ask("PUT", "/streams/a", age, basin=OTHER)).headers[result] == b"updated"
        assert (await s2.ask("PATCH", "/streams/a", age, basin=OTHER)).status == 200
        got = await s2.ask("POST", "/streams", {"stream": "a"}, basin=OTHER)
        assert code_of(got) == (409, "resource_already_exists")
        # Nor are other ciphers touched.
        gcm = {"stream_cipher": "aes-256-gcm"}
        assert (await s2.ask("PATCH", f"/basins/{OTHER}", gcm)).status == 200
        assert (await s2.ask("POST", "/streams", {"stream": "new"}, basin=OTHER)).status == 201
        assert code_of(await s2.ask("PATCH", f"/basins/{OTHER}", aegis))[0] == 501


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_11_another_key_fails_where_a_record_would_be_shown(cipher: str) -> None:
    async with encrypting(cipher) as s2:
        for key in (KEY, OTHER_KEY):
            assert (await _append(s2, [{"body": SECRET}], *key_header(key))).status == 200
        mine = key_header(KEY)
        one = await _read(s2, "?seq_num=0&count=1", *mine)
        assert one.json()["records"][0]["body"] == SECRET
        small = await _read(s2, f"?seq_num=0&bytes={8 + len(SECRET)}", *mine)
        assert len(small.json()["records"]) == 1
        got = await _read(s2, "?seq_num=0", *mine)
        assert (got.status, got.json()) == (
            400,
            {"code": "decryption_failed", "message": "record decryption failed"},
        )
        events = (await _read(s2, "?seq_num=0&count=2", *mine, EVENTS)).body
        assert b"event: error" in events and b"decryption_failed" in events
        assert b"[DONE]" not in events
        frame = (await _read(s2, "?seq_num=0&count=2", *mine, S2S)).body
        assert (400).to_bytes(2, "big") + b'{"code":"decryption_failed"' in frame
        # Nothing is shown: nothing fails.
        for query in ("?seq_num=0&count=0", "?seq_num=1&bytes=9", "?seq_num=1&until=1"):
            assert (await _read(s2, query, *mine)).json()["records"] == []
        assert (await _read(s2, "?seq_num=2", *mine)).status == 416


async def test_s2x_11_damaged_forms_are_the_store_s_fault() -> None:
    async with encrypting("aes-256-gcm") as s2:
        key = key_header(KEY)
        assert (await _append(s2, [{"body": SECRET}], *key)).status == 200
        (good,) = await _stored(s2)
        for at, (bad, wanted) in enumerate(
            (
                (b"\x01" + good[1:], (500, "storage")),
                (good[:20], (500, "storage")),
                (b"", (500, "storage")),
                (good[:1] + b"\xff\xff\xff\xff" + good[5:], (500, "storage")),
                (good[:-1] + bytes((good[-1] ^ 1,)), (400, "decryption_failed")),
                (good[:4] + bytes((good[4] ^ 1,)) + good[5:], (400, "decryption_failed")),
            ),
            1,
        ):
            await _put_stored(s2, "a", bad)
            assert code_of(await _read(s2, f"?seq_num={at}&count=1", *key)) == wanted, bad


@pytest.mark.parametrize("cipher", CIPHERS)
async def test_s2x_12_the_key_shows_nowhere(cipher: str, caplog: pytest.LogCaptureFixture) -> None:
    from millpond.transports.http.s2.encryption import EncryptionKey

    caplog.set_level(logging.DEBUG)
    async with encrypting(cipher) as s2:
        key = text_header(KEY_TEXT)
        got = [
            await _append(s2, [{"body": SECRET}], *key),
            await _read(s2, "?seq_num=0", *key),
            await _read(s2, "?seq_num=0", *text_header(KEY_TEXT[:40])),
            await _read(s2, "?seq_num=0", *key_header(OTHER_KEY)),
        ]
        assert all(KEY_TEXT[:40] not in each.body for each in got)
        stored = b"".join(await _stored(s2))
        assert KEY not in stored and KEY_TEXT not in stored
    assert KEY_TEXT.decode()[:40] not in caplog.text
    assert KEY_TEXT.decode() not in repr(EncryptionKey.of_header(KEY_TEXT))


def test_s2x_12_a_head_with_a_key_is_not_cached() -> None:
    from millpond.transports.http.asgi import EXTENSION, ServerExtension
    from millpond.transports.http.server.head_cache import HeadCache

    cache = HeadCache()
    scope = {"extensions": {EXTENSION: ServerExtension(None, {})}}
    plain = b"POST /v1/streams/a/records HTTP/1.1\r\n\r\n"
    cache.keep(plain, 0, scope)
    assert cache.find(plain) is not None
    head = b"POST /v1/streams/a/records HTTP/1.1\r\nS2-Encryption-Key: %b\r\n\r\n" % KEY_TEXT
    cache.keep(head, 0, scope)
    assert cache.find(head) is None


async def test_s2x_13_other_apis_neither_read_nor_append() -> None:
    """Tail, trim and deletion work."""
    from millpond.actors.errors import Code
    from millpond.actors.positions import Seek, SeekBy
    from millpond.actors.streams.durable import messages as d
    from millpond.transports.http.cell_client import CellClient
    from millpond.transports.http.durable.errors import error_of as durable_error
    from millpond.transports.p2p.nacks import CODES
    from millpond.transports.rustlog.responses import error_of as rustlog_error
    from millpond.transports.s3p.connection import REASONS

    async with account() as s2:
        config = {"config": {"stream_cipher": "aes-256-gcm"}}
        assert (await s2.ask("PUT", f"/basins/{OWN}", config)).status == 200
        assert (await s2.ask("POST", "/streams", {"stream": "a"})).status == 201
        assert (await _append(s2, [{"body": "x"}], *key_header(KEY), basin=OWN)).status == 200
        cell = stream_cell(b"a")
        seek = Seek(SeekBy.SEQUENCE, sequence=0)
        with CellClient(s2.node.services) as cells:
            for make in (
                lambda number: m.Append(number, [b"x"]),
                lambda number: m.Append(number, [b"x"], headers=[[(b"n", b"v")]]),
                lambda number: m.SessionAppend(number, [b"x"]),
                lambda number: m.Read(number, seek, 10, 1000),
                lambda number: d.DurableAppend(number, [b"x"]),
                lambda number: m.WriterAppend(number, [b"x"], writer=b"w"),
            ):
                reply = await cells.request(cell, make)
                assert isinstance(reply, m.StreamFailed), reply
                assert reply.code is Code.ENCRYPTED
            plain = stream_cell(b"plain")
            await cells.request(plain, m.Create)
            for make in (
                lambda number: m.EncryptedAppend(number, [b"x"]),
                lambda number: m.EncryptedSessionAppend(number, [b"x"]),
                lambda number: m.EncryptedRead(number, seek, 10, 1000),
            ):
                reply = await cells.request(plain, make)
                assert isinstance(reply, m.StreamFailed) and reply.code is Code.ENCRYPTED
            described = await cells.request(cell, m.Describe)
            assert isinstance(described, m.StreamDescription) and described.info.tail == 1
            assert isinstance(await cells.request(cell, lambda n: m.Trim(n, 1)), m.Done)
            assert isinstance(await cells.request(cell, m.Delete), m.Done)
    assert REASONS[Code.ENCRYPTED] == "the stream is encrypted"
    assert (rustlog_error(Code.ENCRYPTED).code, rustlog_error(Code.ENCRYPTED).message) == (
        400,
        "encrypted",
    )
    assert durable_error(m.StreamFailed(0, Code.ENCRYPTED)).status == 403
    assert CODES[Code.ENCRYPTED] == CODES[Code.NOT_ALLOWED]


# 3.2 Access tokens.


@pytest.mark.parametrize(
    ("scope", "more"),
    [
        ({"streams": ALL, "ops": ["read", "check-tail"]}, {}),
        ({"op_groups": {"stream": {"read": True, "write": True}}}, {}),
        (
            {
                "streams": {"prefix": "prefix/"},
                "op_groups": {"stream": {"read": True, "write": True}},
            },
            {"auto_prefix_streams": True},
        ),
        ({"basins": None, "streams": {"exact": ""}, "ops": ["append"]}, {}),
    ],
)
async def test_s2x_20_a_part_of_the_scope_may_be_missing(
    scope: dict[str, Any], more: dict[str, Any]
) -> None:
    async with account() as s2:
        await s2.fill("a")
        token = await s2.issue("one", scope, **more)
        for method, path, body in (
            ("GET", "/streams/a/records?seq_num=0", None),
            ("POST", "/streams/a/records", RECORD),
        ):
            got = await s2.ask(method, path, body, token=token, basin=OTHER)
            assert code_of(got) == (403, "permission_denied")


async def test_s2x_21_refused_scopes_say_why() -> None:
    async with account() as s2:
        for scope, more, message in (
            ({"basins": ALL}, {}, "Access token permissions cannot be empty"),
            (
                {"ops": [], "op_groups": {"stream": {"read": False}}},
                {},
                "Access token permissions cannot be empty",
            ),
            *(
                (
                    {"basins": ALL, "ops": ["read"], **streams},
                    {"auto_prefix_streams": True},
                    "Auto prefixing is only allowed for streams with prefix matching",
                )
                for streams in ({}, {"streams": None}, {"streams": {"exact": "a"}})
            ),
        ):
            body = {"id": "one", "scope": scope, **more}
            got = await s2.ask("POST", "/access-tokens", body)
            assert (got.status, got.json()) == (422, {"code": "invalid", "message": message})
        every = {"read": True, "write": True}
        groups = {"account": every, "basin": every, "stream": every}
        await s2.issue("all-groups", {"op_groups": groups})


ISSUES: dict[str, Any] = {"access_tokens": ALL}


async def test_s2x_22_the_right_to_issue_is_an_operation_like_others() -> None:
    async with account() as s2:
        for number, scope in enumerate(
            ({"ops": ["issue-access-token"]}, {"op_groups": {"account": {"write": True}}})
        ):
            token = await s2.issue(f"issuer-{number}", {**ISSUES, **scope})
            body = {"id": f"issued-{number}", "scope": {"ops": ["issue-access-token"]}}
            assert (await s2.ask("POST", "/access-tokens", body, token=token)).status == 201


async def test_s2x_23_a_token_hands_on_only_what_it_has() -> None:
    end = (BEGAN_S + 1000) * 1000
    mine = {
        "basins": {"prefix": "team-"},
        "streams": {"prefix": "a/"},
        "access_tokens": {"prefix": "t/"},
        "ops": ["list-basins", "issue-access-token", "read"],
    }
    async with account(clock=Hands().clock()) as s2:
        token = await s2.issue("issuer", mine, expires_at=time_text(end))

        async def asks(scope: dict[str, Any], name: str = "t/1", **more: Any) -> Got:
            body = {"id": name, "scope": scope, **more}
            return await s2.ask("POST", "/access-tokens", body, token=token)

        denied = (403, "permission_denied")
        for scope in (
            {"ops": ["create-basin"]},
            {"op_groups": {"stream": {"read": True}}},
            {"basins": ALL, "ops": ["read"]},
            {"basins": {"prefix": "team"}, "ops": ["read"]},
            {"basins": {"exact": "other-basin"}, "ops": ["read"]},
            {"streams": {"exact": "a"}, "ops": ["read"]},
            {"access_tokens": {"prefix": ""}, "ops": ["read"]},
        ):
            assert code_of(await asks(scope)) == denied, scope
        assert code_of(await asks({"ops": ["read"]}, "other")) == denied
        assert code_of(await asks({"ops": ["read"]}, expires_at=time_text(end + 1000))) == denied
        assert code_of(await asks({"ops": []}, "other")) == (422, "invalid")
        assert code_of(await asks({"ops": 1}, "other")) == (400, "bad_json")
        # The body comes before the id and the subset, all of it.
        past = time_text((BEGAN_S - 1) * 1000)
        assert code_of(await asks({"ops": ["read"]}, "other", expires_at=past)) == (422, "invalid")
        assert code_of(await asks({"ops": ["trim"]}, expires_at=past)) == (422, "invalid")
        for part, size in (("basins", 49), ("streams", 513), ("access_tokens", 97)):
            for kind in ("exact", "prefix"):
                scope = {part: {kind: "n" * size}, "ops": ["create-basin"]}
                assert code_of(await asks(scope, "other")) == (422, "invalid")
        for number, scope in enumerate(
            (
                {"ops": ["list-basins"]},
                {"basins": {"prefix": "team-1"}, "streams": {"exact": "a/b"}, "ops": ["read"]},
                {"basins": {"exact": "team-abc"}, "streams": {"exact": ""}, "ops": ["read"]},
            )
        ):
            assert (await asks(scope, f"t/{number}")).status == 201, scope
        assert code_of(await asks({"ops": ["read"]}, "t/0")) == (409, "resource_already_exists")
        listed = (await s2.ask("GET", "/access-tokens?prefix=t/")).json()["access_tokens"]
        assert {each["expires_at"] for each in listed} == {time_text(end)}
        reader = await s2.issue("reader", {"access_tokens": ALL, "ops": ["read"]})
        got = await s2.ask("POST", "/access-tokens", {"id": 1}, token=reader)
        assert code_of(got) == denied


async def test_s2x_24_the_asker_s_prefix_goes_before_what_it_asks_for() -> None:
    async with account() as s2:
        scope = {**ISSUES, "basins": ALL, "streams": {"prefix": "t/"}}
        ops = ["issue-access-token", "read", "list-streams"]
        token = await s2.issue("team", {**scope, "ops": ops}, auto_prefix_streams=True)
        for name, streams, more, wanted in (
            ("exact", {"exact": "x"}, {}, {"exact": "t/x"}),
            ("prefix", {"prefix": "x/"}, {"auto_prefix_streams": True}, {"prefix": "t/x/"}),
            ("none", None, {}, None),
        ):
            body = {"id": name, "scope": {"basins": ALL, "streams": streams, "ops": ops[1:]}}
            got = await s2.ask("POST", "/access-tokens", {**body, **more}, token=token)
            assert got.status == 201
            path = f"/access-tokens?prefix={name}"
            (info,) = (await s2.ask("GET", path)).json()["access_tokens"]
            assert info["scope"]["streams"] == wanted
            if name == "prefix":
                narrow = got.json()["access_token"]
        # With the prefix before them they are names that no stream can have.
        body = {"id": "long", "scope": {"streams": {"exact": "n" * 511}, "ops": ["read"]}}
        got = await s2.ask("POST", "/access-tokens", body, token=token)
        assert code_of(got) == (422, "invalid")
        await s2.fill("t/x/1", "t/y", "x/1")
        got = await s2.ask("GET", "/streams", token=narrow, basin=OTHER)
        assert [each["name"] for each in got.json()["streams"]] == ["1"]
        path = "/streams/1/records?seq_num=0"
        assert (await s2.ask("GET", path, token=narrow, basin=OTHER)).status == 200


async def test_s2x_25_revoking_a_token_does_not_revoke_what_it_issued() -> None:
    async with account() as s2:
        await s2.fill("a")
        scope = {**ISSUES, "basins": ALL, "streams": ALL, "ops": ["read", "issue-access-token"]}
        first = await s2.issue("first", scope)
        body = {"id": "second", "scope": {"basins": ALL, "streams": ALL, "ops": ["read"]}}
        second = (await s2.ask("POST", "/access-tokens", body, token=first)).json()["access_token"]
        assert (await s2.ask("DELETE", "/access-tokens/first")).status == 204
        path = "/streams/a/records?seq_num=0"
        got = await s2.ask("GET", path, token=first, basin=OTHER)
        assert code_of(got) == (401, "authn")
        assert (await s2.ask("GET", path, token=second, basin=OTHER)).status == 200
        assert b"first" not in (await s2.ask("GET", "/access-tokens")).body


async def test_s2x_26_listed_tokens_have_all_their_parts() -> None:
    async with account() as s2:
        await s2.issue("one", {"streams": ALL, "basins": {"exact": ""}, "ops": ["read"]})
        none = {"read": False, "write": False}
        listed = (await s2.ask("GET", "/access-tokens")).json()
        assert listed["access_tokens"] == [
            {
                "id": "one",
                "expires_at": None,
                "auto_prefix_streams": False,
                "scope": {
                    "basins": None,
                    "streams": {"prefix": ""},
                    "access_tokens": None,
                    "op_groups": {"account": none, "basin": none, "stream": none},
                    "ops": ["read"],
                },
            }
        ]


async def test_s2x_27_unknown_tokens_are_refused_where_there_are_known_ones(
    tmp_path: Path,
) -> None:
    from hashlib import sha256

    async with account() as s2:
        await s2.fill("a")
        await s2.issue("one", {"ops": ["read"]})
        assert (await s2.ask("GET", "/streams", token="any", basin=OTHER)).status == 200
    rules = tmp_path / "access.conf"
    digest = sha256(b"known").hexdigest()
    rules.write_text(f"address:127.0.0.0/8 all\ntoken:{digest} all\n")
    rules.chmod(0o600)
    async with account(rules=rules) as s2:
        await s2.fill("a")
        for token, status in (("unknown", 401), ("known", 200), (None, 200)):
            for method, path, body in (
                ("GET", "/streams", None),
                ("GET", "/basins", None),
                ("POST", "/streams/a/records", RECORD),
                ("GET", "/streams/a/records?seq_num=0", None),
            ):
                got = await s2.ask(method, path, body, token=token, basin=OTHER)
                assert got.status == status, (token, path)
                assert status == 200 or got.json()["code"] == "authn"


# 3.3 Metrics. tests/transports/http/s2/test_metrics.py has more of each.


async def _metrics(s2: Account, path: str) -> Got:
    return await s2.ask("GET", f"/metrics{path}")


async def test_s2x_30_syntax_is_400_and_meaning_422() -> None:
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a")
        for query, wanted in (
            ("?set=nothing&start=0&end=1", (400, "bad_query")),
            ("?set=account-ops&start=0&end=1&interval=second", (400, "bad_query")),
            ("?set=active-basins", (422, "invalid")),
            (f"?set=account-ops&start={BEGAN_S}&end={BEGAN_S + 600}", (422, "invalid")),
            (f"/{OTHER}?set=storage&start=0&end=1&interval=minute", (422, "invalid")),
        ):
            assert code_of(await _metrics(s2, query)) == wanted


async def test_s2x_31_s2x_32_s2x_34_points_of_the_interval_that_goes_on() -> None:
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a")
        period = f"&start={BEGAN_S}&end={BEGAN_S}"
        got = await _metrics(s2, f"/{OTHER}?set=append-ops{period}")
        minute = BEGAN_S - BEGAN_S % 60
        assert got.json() == {
            "values": [
                {
                    "accumulation": {
                        "name": "express",
                        "unit": "operations",
                        "interval": "minute",
                        "values": [[minute, 1]],
                    }
                }
            ]
        }
        past = await _metrics(s2, f"/{OTHER}?set=append-ops&start=0&end=3600")
        assert past.json() == {"values": []}


async def test_s2x_33_nothing_is_billed() -> None:
    async with account(clock=Hands().clock()) as s2:
        got = await _metrics(s2, "?set=estimated-billable-usage&start=0&end=3600")
        assert got.body == (
            b'{"values":[{"accumulation":'
            b'{"name":"total","unit":"usd","interval":"hour","values":[]}}]}'
        )


# 3.4 Configuration shown.


async def test_s2x_40_a_default_configuration_is_shown_with_its_storage_class() -> None:
    async with account() as s2:
        assert (await s2.ask("PUT", f"/basins/{OTHER}")).status == 201
        shown = (await s2.ask("GET", f"/basins/{OTHER}")).json()
        assert shown["default_stream_config"] is None
        told = {"retention_policy": {"age": 60}, "delete_on_empty": {"min_age_secs": 9}}
        whole = {**told, "storage_class": "express"}
        config = {"config": {"default_stream_config": told}}
        made = await s2.ask("POST", "/basins", {"basin": "third-basin", **config})
        assert made.status == 201
        shown = (await s2.ask("GET", "/basins/third-basin")).json()
        assert shown["default_stream_config"] == whole
        for default in (told, whole):
            body = {"config": {"default_stream_config": default}}
            got = await s2.ask("PUT", "/basins/third-basin", body)
            assert got.headers[b"s2-provision-result"] == b"noop"
        cleared = await s2.ask("PATCH", "/basins/third-basin", {"default_stream_config": None})
        assert cleared.json()["default_stream_config"] is None


async def test_s2x_41_a_stream_s_configuration_is_resolved() -> None:
    async with account() as s2:
        await s2.fill("a")
        config = (await s2.ask("GET", "/streams/a", basin=OTHER)).json()
        assert config == {
            "storage_class": "express",
            "retention_policy": {"age": 604_800},
            "timestamping": {"mode": "client-prefer", "uncapped": False},
            "delete_on_empty": {"min_age_secs": 0},
        }
        change = {"default_stream_config": {"timestamping": {"uncapped": True}}}
        got = await s2.ask("PATCH", f"/basins/{OTHER}", change)
        assert got.json()["default_stream_config"] == {
            "storage_class": "express",
            "timestamping": {"uncapped": True},
        }


# 3.5 The code of each mistake.

BAD_BASINS = ("ab", "AB", "b" * 49, "-begins-so")
BAD_STREAMS = ("n" * 513, "%2E", "%2E%2E", "%FF")


def _mistakes() -> Iterator[tuple[str, str, Any, tuple[tuple[bytes, bytes], ...], int, str]]:
    for name in BAD_BASINS:
        for method, body in (("GET", None), ("PUT", {}), ("PATCH", {}), ("DELETE", None)):
            yield method, f"/basins/{name}", body, (), 400, "bad_path"
        yield "POST", "/basins", {"basin": name}, (), 400, "bad_json"
        yield "GET", f"/metrics/{name}?{PERIOD}", None, (), 400, "bad_path"
    for name in BAD_STREAMS:
        for method, behind, body in (
            ("GET", "", None),
            ("PUT", "", {}),
            ("PATCH", "", {}),
            ("DELETE", "", None),
            ("GET", "/records?seq_num=0", None),
            ("POST", "/records", RECORD),
            ("GET", "/records/tail", None),
        ):
            yield method, f"/streams/{name}{behind}", body, (), 400, "bad_path"
        yield "GET", f"/metrics/{OTHER}/{name}?{PERIOD}", None, (), 400, "bad_path"
    for name in ("", ".", "..", "n" * 513):
        yield "POST", "/streams", {"stream": name}, (), 400, "bad_json"
    for name in ("", ".", "..", "n" * 97):
        yield "DELETE", f"/access-tokens/{quote(name)}", None, (), 400, "bad_path"
        body = {"id": name, "scope": {"ops": ["read"]}}
        yield "POST", "/access-tokens", body, (), 400, "bad_json"
    for method, body in (("GET", None), ("PATCH", {}), ("DELETE", None)):
        yield method, "/basins/not-there", body, (), 404, "basin_not_found"
        yield method, "/streams/not-there", body, (), 404, "stream_not_found"
    yield "POST", "/streams/not-there/records", RECORD, (), 404, "stream_not_found"
    for behind in ("?seq_num=0", "/tail"):
        yield "GET", f"/streams/not-there/records{behind}", None, (), 404, "stream_not_found"
    for query in ("prefix=AB", "limit=x", "limit=-1"):
        yield "GET", f"/basins?{query}", None, (), 400, "bad_query"
    for limit in (0, 1001):
        yield "GET", f"/basins?limit={limit}", None, (), 200, ""
    for path, body in (
        ("/basins", {"basin": "third-basin", "config": {"stream_cipher": "rot13"}}),
        ("/basins", {"basin": 1}),
        ("/basins", {}),
        ("/streams/a/records", {"records": [{"timestamp": -1}]}),
        ("/streams/a/records", {"records": [{"timestamp": 2**64}]}),
        ("/streams/a/records", {"records": [{}], "fencing_token": "t" * 37}),
    ):
        yield "POST", path, body, (), 400, "bad_json"
    age = {"retention_policy": {"age": 0}}
    config = {"config": {"default_stream_config": age}}
    yield "POST", "/streams", {"stream": "new", "config": age}, (), 422, "invalid"
    yield "PUT", "/streams/new", age, (), 422, "invalid"
    yield "PATCH", "/streams/a", age, (), 422, "invalid"
    yield "POST", "/basins", {"basin": "third-basin", **config}, (), 422, "invalid"
    yield "PUT", "/basins/third-basin", config, (), 422, "invalid"
    yield "PATCH", f"/basins/{OTHER}", config["config"], (), 422, "invalid"
    for records in ([], [{}] * 1001, [{"body": "x" * 2**20}], [{"headers": [["", "drop"]]}]):
        yield "POST", "/streams/a/records", {"records": records}, (), 422, "invalid"
    body = {"records": [{"body": "not base64!"}]}
    yield "POST", "/streams/a/records", body, (BINARY,), 422, "invalid"
    token = (b"s2-request-token", b"t" * 37)
    yield "POST", "/streams", {"stream": "new"}, (token,), 400, "bad_header"
    yield "POST", "/basins", {"basin": "third-basin"}, (token,), 400, "bad_header"
    path = "/streams/a/records?seq_num=0"
    for header in ((b"s2-format", b"hex"), (b"s2-encryption-key", b"k" * 45)):
        yield "POST", "/streams/a/records", RECORD, (header,), 400, "bad_header"
        yield "GET", path, None, (header,), 400, "bad_header"
        yield "GET", path, None, (header, EVENTS), 400, "bad_header"
    for value in (b"7", b"a,b,c", b"1,2", b"-1,0,0"):
        yield "GET", path, None, (EVENTS, (b"last-event-id", value)), 400, "bad_header"
    for query in ("seq_num=x", "clamp=maybe"):
        yield "GET", f"/streams/a/records?{query}", None, (), 400, "bad_query"
    for query in ("seq_num=0&timestamp=0", "seq_num=0&tail_offset=1", "timestamp=5&until=5"):
        yield "GET", f"/streams/a/records?{query}", None, (), 422, "invalid"
    for query in ("set=nothing&start=0&end=1", "set=account-ops&start=0&end=1&interval=second"):
        yield "GET", f"/metrics?{query}", None, (), 400, "bad_query"


async def test_s2x_51_each_mistake_has_its_code() -> None:
    async with account() as s2:
        await s2.fill("a")
        for method, path, body, headers, status, code in _mistakes():
            got = await s2.ask(method, path, body, basin=OTHER, headers=headers)
            found = (got.status, got.json()["code"] if status != 200 else "")
            assert found == (status, code), (method, path, body)
        for basin in BAD_BASINS:
            got = await s2.ask("GET", "/streams", basin=basin)
            assert code_of(got) == (400, "bad_header")
        client = Client(s2.application)
        got = await client.request("GET", "/v1/streams", [(b"host", b"127.0.0.1")])
        assert code_of(got) == (400, "bad_header")
        empty = [*headers_of(None, OTHER), (b"s2-request-token", b"")]
        got = await client.request("POST", "/v1/streams", empty, b'{"stream":"empty-token"}')
        assert got.status == 201


NO_JSON: dict[tuple[str, str], tuple[bytes, ...]] = {
    ("POST", "/basins"): (b'{"config":{}}', b'{"basin":7}', b'{"basin":"third-basin","config":3}'),
    ("PUT", "/basins/third-basin"): (b'{"config":3}',),
    ("PATCH", f"/basins/{OTHER}"): (b'{"create_stream_on_append":"yes"}',),
    ("POST", "/streams"): (b'{"config":{}}', b'{"stream":7}', b'{"stream":"new","config":3}'),
    ("PUT", "/streams/new"): (b'{"storage_class":"glacial"}', b'{"retention_policy":{"age":-1}}'),
    ("PATCH", "/streams/a"): (b'{"timestamping":{"mode":"never"}}', b'{"storage_class":3}'),
    ("POST", "/streams/a/records"): (b"{}", b'{"records":7}', b'{"records":[{"body":7}]}'),
    ("POST", "/access-tokens"): (b'{"id":"one"}', b'{"scope":{}}', b'{"id":7,"scope":{}}'),
}
"""Requests with bodies of a wrong type, or that lack a field."""


@pytest.mark.parametrize("asked", NO_JSON, ids=" ".join)
async def test_s2x_51_bodies_that_are_not_the_json_that_is_asked_for(
    asked: tuple[str, str],
) -> None:
    method, path = asked
    async with account() as s2:
        await s2.fill("a")
        client, pairs = Client(s2.application), headers_of(None, OTHER)
        for body in (b"{", b"[]", b"7", b'"text"', b"\xff{}", *NO_JSON[asked]):
            got = await client.request(method, "/v1" + path, pairs, body)
            assert code_of(got) == (400, "bad_json"), body
        for path in ("/basins/third-basin", "/streams/new"):
            assert (await s2.ask("GET", path, basin=OTHER)).status == 404
        assert (await _read(s2, "/tail")).json()["tail"]["seq_num"] == 1


async def test_s2x_51_mistakes_in_protobuf() -> None:
    async with account() as s2:
        await s2.fill("a")
        client = Client(s2.application)
        pairs = [(b"s2-basin", OTHER.encode()), (b"content-type", b"application/protobuf")]
        long = AppendInput(records=[{}], fencing_token="t" * 37).SerializeToString()
        for body, wanted in (
            (b"\xff", (400, "bad_proto")),
            (long, (422, "invalid")),
            (b"", (422, "invalid")),
            (AppendInput(records=[{}] * 1001).SerializeToString(), (422, "invalid")),
        ):
            got = await client.request("POST", "/v1/streams/a/records", pairs, body)
            assert code_of(got) == wanted, body[:20]
        assert (await _read(s2, "/tail")).json()["tail"]["seq_num"] == 1


@pytest.mark.parametrize("kind", [None, b"text/plain", b"application/x-www-form-urlencoded"])
async def test_s2x_51_json_has_to_be_declared(kind: bytes | None) -> None:
    async with account() as s2:
        await s2.fill("a")
        client = Client(s2.application)
        pairs = [(b"s2-basin", OTHER.encode())]
        if kind is not None:
            pairs.append((b"content-type", kind))
        for method, path, body in (
            ("POST", "/basins", b'{"basin":"third-basin"}'),
            ("PATCH", f"/basins/{OTHER}", b"{}"),
            ("POST", "/streams", b'{"stream":"new"}'),
            ("PATCH", "/streams/a", b"{}"),
            ("POST", "/streams/a/records", b'{"records":[{}]}'),
            ("POST", "/access-tokens", b'{"id":"a","scope":{"ops":["read"]}}'),
        ):
            got = await client.request(method, "/v1" + path, pairs, body)
            assert code_of(got) == (400, "bad_json"), path
        # A PUT without a content type has no body, whatever comes.
        for path, wanted in ((f"/basins/{OTHER}", 200), ("/streams/put", 201)):
            got = await client.request("PUT", "/v1" + path, pairs, b'{"nonsense"')
            assert got.status == (wanted if kind is None else 400)


class Asked(NamedTuple):
    """A request that nothing is wrong with, until faults change it."""

    method: str
    path: str
    """With `{stream}` or `{basin}`."""
    body: Any = None
    query: str = ""
    stream: str = "a"
    path_basin: str = OTHER
    basin: str = OTHER
    host: str = "127.0.0.1"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Fault(NamedTuple):
    """A mistake of a request: the fields that it changes, and the answer if it is the first."""

    wanted: tuple[int, str]
    changes: dict[str, Any]


UNKNOWN = Fault((401, "authn"), {"host": "192.0.2.9"})
HEADER = Fault((400, "bad_header"), {"basin": "B"})
STREAM_PATH = Fault((400, "bad_path"), {"stream": "n" * 513})
BASIN_PATH = Fault((400, "bad_path"), {"path_basin": "B"})
FORBIDDEN = Fault((403, "permission_denied"), {"host": REMOTE})
NO_BASIN = Fault((404, "basin_not_found"), {"basin": "not-there"})
NO_PATH_BASIN = Fault((404, "basin_not_found"), {"path_basin": "not-there"})
NO_STREAM = Fault((404, "stream_not_found"), {"stream": "not-there"})
NO_KEY = Fault((400, "bad_header"), {"headers": ()})
OF_STREAM = (UNKNOWN, HEADER, STREAM_PATH)
THERE = (FORBIDDEN, NO_BASIN, NO_STREAM)
AGE_0 = {"retention_policy": {"age": 0}}


def bad_query(query: str) -> Fault:
    return Fault((400, "bad_query"), {"query": query})


def bad_json(body: Any) -> Fault:
    return Fault((400, "bad_json"), {"body": body})


def meaningless(**changes: Any) -> Fault:
    return Fault((422, "invalid"), changes)


NO_JSON_TYPE = Fault((400, "bad_json"), {"headers": ((b"content-type", b"text/plain"),)})
RECORDS, BASIN_OF_PATH = "/streams/{stream}/records", "/basins/{basin}"
ACCOUNT_PATH = (UNKNOWN, BASIN_PATH)
PERIOD = "set=storage&start=0&end=1"
KEYED = key_header(KEY)
ORDERS: dict[str, tuple[Asked, tuple[Fault, ...]]] = {
    "append": (
        Asked("POST", RECORDS, RECORD, headers=KEYED),
        (
            *OF_STREAM,
            NO_JSON_TYPE,
            bad_json({"records": 1}),
            meaningless(body={"records": []}),
            *THERE,
            NO_KEY,
            Fault((412, ""), {"body": {**RECORD, "match_seq_num": 9}}),
        ),
    ),
    "session": (
        Asked("POST", RECORDS, headers=(*KEYED, S2S)),
        (*OF_STREAM, *THERE, Fault((400, "bad_header"), {"headers": (S2S,)})),
    ),
    **{
        name: (
            Asked("GET", RECORDS, query="seq_num=0", headers=(*KEYED, *form)),
            (
                *OF_STREAM,
                bad_query("seq_num=x"),
                meaningless(query="seq_num=0&tail_offset=1"),
                *THERE,
                Fault((400, "bad_header"), {"headers": form}),
                Fault((416, ""), {"query": "seq_num=9&wait=0"}),
            ),
        )
        for name, form in (("read", ()), ("events", (EVENTS,)), ("frames", (S2S,)))
    },
    "tail": (Asked("GET", f"{RECORDS}/tail"), (*OF_STREAM, *THERE)),
    "create stream": (
        Asked("POST", "/streams", {"stream": "new"}),
        (
            UNKNOWN,
            HEADER,
            NO_JSON_TYPE,
            bad_json({"stream": ""}),
            meaningless(body={"stream": "new", "config": AGE_0}),
            FORBIDDEN,
            NO_BASIN,
            Fault((409, "resource_already_exists"), {"body": {"stream": "a"}}),
        ),
    ),
    "put stream": (
        Asked("PUT", "/streams/{stream}", {}),
        (
            *OF_STREAM,
            NO_JSON_TYPE,
            bad_json({"storage_class": 1}),
            meaningless(body=AGE_0),
            *THERE[:2],
        ),
    ),
    "patch stream": (
        Asked("PATCH", "/streams/{stream}", {}),
        (*OF_STREAM, NO_JSON_TYPE, bad_json({"storage_class": 1}), meaningless(body=AGE_0), *THERE),
    ),
    "show stream": (Asked("GET", "/streams/{stream}"), (*OF_STREAM, *THERE)),
    "delete stream": (Asked("DELETE", "/streams/{stream}"), (*OF_STREAM, *THERE)),
    "list streams": (
        Asked("GET", "/streams"),
        (UNKNOWN, HEADER, bad_query("limit=x"), NO_BASIN),
    ),
    "create basin": (
        Asked("POST", "/basins", {"basin": "third-basin"}),
        (
            UNKNOWN,
            NO_JSON_TYPE,
            bad_json({"basin": "B"}),
            meaningless(body={"basin": "third-basin", "config": {"default_stream_config": AGE_0}}),
            FORBIDDEN,
            Fault((409, "resource_already_exists"), {"body": {"basin": OTHER}}),
        ),
    ),
    "put basin": (
        Asked("PUT", BASIN_OF_PATH, {}),
        (
            *ACCOUNT_PATH,
            NO_JSON_TYPE,
            bad_json({"config": 1}),
            meaningless(body={"config": {"default_stream_config": AGE_0}}),
            FORBIDDEN,
        ),
    ),
    "patch basin": (
        Asked("PATCH", BASIN_OF_PATH, {}),
        (
            *ACCOUNT_PATH,
            NO_JSON_TYPE,
            bad_json({"stream_cipher": "rot13"}),
            meaningless(body={"default_stream_config": AGE_0}),
            FORBIDDEN,
            NO_PATH_BASIN,
        ),
    ),
    "show basin": (Asked("GET", BASIN_OF_PATH), (*ACCOUNT_PATH, FORBIDDEN, NO_PATH_BASIN)),
    "delete basin": (Asked("DELETE", BASIN_OF_PATH), (*ACCOUNT_PATH, FORBIDDEN, NO_PATH_BASIN)),
    "basin metrics": (
        Asked("GET", "/metrics/{basin}", query=PERIOD),
        (
            *ACCOUNT_PATH,
            bad_query("set=nothing"),
            meaningless(query="set=storage"),
            FORBIDDEN,
            NO_PATH_BASIN,
        ),
    ),
    "stream metrics": (
        Asked("GET", "/metrics/{basin}/{stream}", query=PERIOD),
        (
            *ACCOUNT_PATH,
            bad_query("set=nothing"),
            meaningless(query="set=storage"),
            FORBIDDEN,
            NO_PATH_BASIN,
            NO_STREAM,
        ),
    ),
    "revoke token": (
        Asked("DELETE", "/access-tokens/{stream}"),
        (
            UNKNOWN,
            STREAM_PATH,
            FORBIDDEN,
            Fault((404, "access_token_not_found"), {"stream": "not-there"}),
        ),
    ),
}


@pytest.fixture
def few_rights(tmp_path: Path) -> Path:
    """An access file: the keeper may do everything, REMOTE next to nothing, others are unknown."""
    rules = tmp_path / "access.conf"
    rules.write_text(f"address:127.0.0.0/8 all\naddress:{REMOTE} get stream:z/*\n")
    rules.chmod(0o600)
    return rules


@asynccontextmanager
async def with_few_rights(rules: Path) -> AsyncIterator[Account]:
    """A node with an encrypting basin, and an empty stream in it."""
    async with account(rules=rules) as s2:
        config = {"config": {"stream_cipher": "aes-256-gcm"}}
        assert (await s2.ask("PUT", f"/basins/{OTHER}", config)).status == 201
        assert (await s2.ask("POST", "/streams", {"stream": "a"}, basin=OTHER)).status == 201
        yield s2


async def _with_faults(s2: Account, asked: Asked, *faults: Fault) -> Got:
    """The answer to a request with these mistakes."""
    for fault in reversed(faults):
        asked = asked._replace(**fault.changes)
    path = asked.path.format(stream=asked.stream, basin=asked.path_basin)
    path += f"?{asked.query}" if asked.query else ""
    more = {"basin": asked.basin, "host": asked.host, "headers": asked.headers}
    return await s2.ask(asked.method, path, asked.body, **more)


@pytest.mark.parametrize("name", ORDERS)
async def test_s2x_50_the_order_of_checks(name: str, few_rights: Path) -> None:
    """Credentials, basin, path, query, form, meaning, permission, existence, key, state: of any two
    mistakes the first one is told, and of all."""
    asked, faults = ORDERS[name]
    async with with_few_rights(few_rights) as s2:
        for at, fault in enumerate(faults):
            later = faults[at + 1 :]
            for others in (later, *((each,) for each in later)):
                got = await _with_faults(s2, asked, fault, *others)
                status, code = fault.wanted
                assert got.status == status, (fault, others, got.body)
                assert not code or got.json()["code"] == code, (fault, others)


@pytest.mark.parametrize(
    "name", [name for name, (_, found) in ORDERS.items() if FORBIDDEN in found]
)
async def test_s2x_50_a_client_without_rights_learns_nothing_of_existence(
    name: str, few_rights: Path
) -> None:
    asked, faults = ORDERS[name]
    async with with_few_rights(few_rights) as s2:
        denied = await _with_faults(s2, asked, FORBIDDEN)
        assert code_of(denied) == (403, "permission_denied")
        for fault in faults[faults.index(FORBIDDEN) + 1 :]:
            got = await _with_faults(s2, asked, FORBIDDEN, fault)
            assert (got.status, got.pairs, got.body) == (denied.status, denied.pairs, denied.body)


async def test_s2x_50_of_tokens_the_operation_comes_first(few_rights: Path) -> None:
    """S2X-23 puts it before the body."""
    async with with_few_rights(few_rights) as s2:
        for host, wanted in (("192.0.2.9", 401), (REMOTE, 403), ("127.0.0.1", 400)):
            got = await s2.ask("POST", "/access-tokens", {"id": 1}, host=host)
            assert got.status == wanted
        for host, wanted in (("192.0.2.9", 401), (REMOTE, 400), ("127.0.0.1", 400)):
            for path in ("/access-tokens?limit=x", "/basins?limit=x", "/metrics?set=x"):
                assert (await s2.ask("GET", path, host=host)).status == wanted


# 3.6 Retention by age, 3.7 trims, 3.8 sessions that do not follow. The followers that wait are in
# tests/node/http/test_s2_tail.py and tests/actors/streams/test_trim_grace.py.


async def test_s2x_60_s2x_61_s2x_62_age_counts_from_the_arrival() -> None:
    """Old timestamps are readable, future ones do not keep a record."""
    hands = Hands()
    now_ms = BEGAN_S * 1000
    async with account(clock=hands.clock()) as s2:
        await s2.fill()
        config = {
            "retention_policy": {"age": 3600},
            "timestamping": {"uncapped": True},
        }
        assert (await s2.ask("PUT", "/streams/a", config, basin=OTHER)).status == 201
        day_ms = 86_400_000
        records = [{"timestamp": now_ms + days * day_ms} for days in (-8, -8, 0, 8)]
        assert (await _append(s2, records)).status == 200
        assert len((await _read(s2, "?seq_num=0")).json()["records"]) == 4
        hands.at_s = 3599.0
        assert len((await _read(s2, "?seq_num=0")).json()["records"]) == 4
        longer = {"retention_policy": {"age": 7200}}
        assert (await s2.ask("PATCH", "/streams/a", longer, basin=OTHER)).status == 200
        assert (await _append(s2, [{}])).status == 200
        hands.at_s = 3601.0
        found = (await _read(s2, "?seq_num=0")).json()["records"]
        assert [each["seq_num"] for each in found] == [4]


@pytest.mark.parametrize("grace_s", [0, 10])
async def test_s2x_70_s2x_71_s2x_72_s2x_73_s2x_74_a_generation_that_trims_itself(
    grace_s: int,
) -> None:
    hands = Hands()
    async with account(clock=hands.clock(), s2_trim_grace_s=grace_s) as s2:
        await s2.fill()
        assert (await s2.ask("POST", "/streams", {"stream": "a"}, basin=OTHER)).status == 201
        data = [{"body": b64encode(b"d%d" % at).decode()} for at in range(3)]
        records = [*data, TRIM_ALL, command("fence", b"end-1")]
        got = await _append(s2, records, BINARY)
        assert (got.json()["start"]["seq_num"], got.json()["end"]["seq_num"]) == (0, 5)
        # Its fence holds from the next append on.
        refused = await _append(s2, [{}], fencing_token="")
        assert refused.json() == {"fencing_token_mismatch": "end-1"}
        found = (await _read(s2, "?seq_num=0", BINARY)).json()["records"]
        assert [each["seq_num"] for each in found] == ([0, 1, 2, 3, 4] if grace_s else [4])
        hands.at_s = 60.0
        found = (await _read(s2, "?seq_num=0", BINARY)).json()["records"]
        assert [each["seq_num"] for each in found] == [4]
        assert (await _read(s2, "/tail")).json()["tail"]["seq_num"] == 5


@pytest.mark.parametrize("form", [EVENTS, S2S])
async def test_s2x_75_s2x_76_a_session_that_does_not_follow(form: tuple[bytes, bytes]) -> None:
    async with account() as s2:
        await s2.fill("a")
        assert (await _append(s2, [{"body": "y"}])).status == 200
        empty = b"data: [DONE]\n\n" if form is EVENTS else b""
        whole = await _read(s2, "?seq_num=0&wait=0", form)
        assert whole.status == 200 and whole.body.endswith(empty) and len(whole.body) > len(empty)
        assert b"event: ping" not in whole.body
        for query in (
            "seq_num=2&wait=0",
            "seq_num=2&wait=0&clamp=true",
            "seq_num=9&wait=0&clamp=true",
        ):
            got = await _read(s2, f"?{query}", form)
            assert (got.status, got.body) == (200, empty)
        for query in ("seq_num=9&wait=0", "seq_num=2&count=5", "seq_num=2&until=9999999999999"):
            assert (await _read(s2, f"?{query}", form)).status == 416
        assert (await _read(s2, "?seq_num=2&wait=0")).status == 416
