"""Dialogues as text, in packets, S3P and RustLog."""

from __future__ import annotations

import pytest

from millpond.testing import BadScript, DialogueMismatch, Script, SimNode


async def test_a_message_in_packets(script: Script) -> None:
    """P2P-01 to P2P-03: the bytes of PUT, GET and LIST."""
    said = await script.packets("""
        > JOIN notes
        < READY ...
        > PUT 1:4 60:4 "hello"
        < PUT_ACK 1:4 60:4 {id:8}
        > GET {id}
        < GET_ACK {id} "hello"
        > LIST 10:2 0:8 0:8
        < 09 {id}
    """)
    assert len(said["id"]) == 8


async def test_two_clients_in_one_dialogue(script: Script) -> None:
    await script.packets("""
        # Bob is there first.
        bob> JOIN chat
        bob< READY ...
        > JOIN chat
        < READY ...
        > PUT 7:4 60:4 "hi"
        < PUT_ACK 7:4 60:4 {id:8}
        bob< MSGX {id} 1:2 "hi"
        bob> MSG_ACK {id}
        bob~ 5
        > GET {id}
        < NACK GET ...
    """)


async def test_s3p(script: Script) -> None:
    said = await script.s3p("""
        > CREATE orders []
        < +OK
        > CREATE orders []
        < -ERR_STREAM_EXISTS ...
        > APPEND orders [] [tea "green tea"]
        < {ms}-1
        > READ orders []
        < [{ms}-0 tea
           {ms}-1 "green tea"]
        > READ orders [COUNT 1]
        < [{_} ...]
    """)
    assert int(said["ms"]) > 0


async def test_rustlog(script: Script) -> None:
    said = await script.rustlog("""
        > {"type": "CreateTopic", "topic": "orders", "partition_count": 1}
        < {"type": "CreateTopicResponse", "success": true, "partitions_created": 1}
        > {"type": "Produce", "topic": "orders", "partition": 0, "records": ["dGVh"]}
        < {"type": "ProduceResponse", "base_offset": "{at}", "record_count": 1}
        > {"type": "Fetch", "topic": "orders", "partition": 0, "offset": "{at}"}
        < {"type": "FetchResponse", "next_offset": 1,
           "records": [{"offset": "{at}", "payload": "dGVh", "...": "..."}]}
    """)
    assert said == {"at": 0}


async def test_a_mismatch_shows_the_dialogue(script: Script) -> None:
    with pytest.raises(DialogueMismatch) as caught:
        await script.packets("""
            > JOIN notes
            < READY ...
            > PUT 1:4 60:4 "hello"
            < PUT_ACK 1:4 60:4 {id:8}
            > GET {id}
            < GET_ACK {id} "goodbye"
        """)
    lines = str(caught.value).splitlines()
    assert lines[0] == "line 7: the node sends something else"
    assert lines[1:3] == ["  > JOIN notes", "  < READY ..."]
    assert lines[6] == '- < GET_ACK {id} "goodbye"'
    assert lines[7].startswith("+ < GET_ACK ") and lines[7].endswith("# 'hello'")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("> CREATE a []\n< -NO", "+ < +OK"),
        ("> CREATE a []\n< +OK\n< +OK", "+ < (nothing)"),
        ("> CREATE a []\n> CREATE b []\n< +OK", "+ < +OK"),
        ("> CREATE a []\n~ 1", "+ < +OK"),
        ("> CREATE a []\n< +OK\n> READ a []\n< [x]", "+ < []"),
        ("> NO_COMMAND a []\n< ...\n< closed\n< +OK", "+ < closed"),
    ],
)
async def test_what_the_node_said_instead_is_shown(script: Script, text: str, shown: str) -> None:
    with pytest.raises(DialogueMismatch) as caught:
        await script.s3p(text)
    assert shown in str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "line 1: 'hello' begins with none of"),
        ("> PUT one", "line 1: > PUT one: 'one' is no type"),
        ("> GET {id}", "{id} has no value yet"),
        ("> JOIN", "JOIN CHANNEL"),
        ("> PUT 300:1", "300 does not fit into 1 bytes"),
    ],
)
async def test_what_is_no_dialogue_is_said(script: Script, text: str, reason: str) -> None:
    with pytest.raises(BadScript) as caught:
        await script.packets(text)
    assert reason in str(caught.value)


async def test_what_is_no_s3p_is_said(script: Script) -> None:
    with pytest.raises(BadScript, match=r"a \[ without a \]"):
        await script.s3p("> CREATE a [")


async def test_placeholders_may_be_known_before(script: Script, node: SimNode) -> None:
    async with node.connect("notes") as notes:
        receipt = await notes.put(b"hello")
    await script.packets(
        '> JOIN notes consumer\n< READY ...\n< MSGX {id} 1:2 "hello"', id=receipt.id.to_bytes(8)
    )
