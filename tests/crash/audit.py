"""The stored messages, read from a running node with LIST and GET."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from tests.conformance import packets as p
from tests.conformance.peer import Ended
from tests.crash.connection import Connection, UnexpectedPacket, join
from tests.crash.events import Found, Missed
from tests.crash.history import FENCE, History
from tests.crash.workload import GOODBYE, SILENCE_S

PAGE = 1000
GETS_AT_ONCE = 64
LIST_ACK, GET_ACK = 0x09, 0x05
NOT_FOUND = b"\xff\x04\x02"


async def audit(address: str, channel: str, history: History) -> None:
    """Record messages that should be listed and are not, of a channel without readers."""
    expected = set(history.standing.get(channel, ()))
    try:
        async with await join(address, channel, {p.ROLE: p.BOTH}, wants_push=False) as connection:
            listed = await ids(connection)
    except Ended:
        return
    for message_id in sorted(expected.difference(listed)):
        history.record(Missed(message_id, history.life))


async def drain(address: str, channel: str, history: History) -> list[int]:
    """Record all that is kept and ack it, until nothing is left. Gives the ids."""
    drained: list[int] = []
    async with await join(address, channel, {p.ROLE: p.BOTH}, wants_push=False) as connection:
        while found := await ids(connection):
            for some in _parts(found):
                await connection.send(*map(p.get, some))
                for packet in await _packets(connection, len(some)):
                    _record(packet, history)
                for message_id in some:
                    history.done(channel, message_id)
                await connection.send(*map(p.ack, some))
            drained += found
    return drained


async def ids(connection: Connection) -> list[int]:
    """Everything that is kept in the connection's channel, page by page."""
    found: list[int] = []
    while True:
        start = found[-1] + 1 if found else 0
        await connection.send(p.list_(PAGE, start))
        (packet,) = await _packets(connection, 1)
        if packet[0] != LIST_ACK:
            raise UnexpectedPacket(f"LIST was answered with {packet[:32].hex()}")
        page = [int.from_bytes(packet[at : at + 8], "big") for at in range(1, len(packet), 8)]
        found += page
        if len(page) < PAGE:
            return found


def _parts(found: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(found), GETS_AT_ONCE):
        yield found[at : at + GETS_AT_ONCE]


async def _packets(connection: Connection, count: int) -> list[bytes]:
    got: list[bytes] = []
    with anyio.fail_after(SILENCE_S):
        while len(got) < count:
            got += [each for each in await connection.receive() if each != GOODBYE]
    return got


def _record(packet: bytes, history: History) -> None:
    if packet[:3] == NOT_FOUND:
        return  # it expired between LIST and GET; what did not is missed by the checker
    if packet[0] != GET_ACK:
        raise UnexpectedPacket(f"GET was answered with {packet[:32].hex()}")
    if packet[9:].startswith(FENCE):
        return
    label, is_whole = history.read(packet[9:])
    history.record(Found(int.from_bytes(packet[1:9], "big"), label, history.life, is_whole))
