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


async def audit(address: str, channel: str, book: History) -> None:
    """Note what should be listed and is not; of channels without readers, for nobody acks then."""
    expected = set(book.standing.get(channel, ()))
    try:
        async with await join(address, channel, {p.ROLE: p.BOTH}, wants_push=False) as line:
            listed = await ids(line)
    except Ended:
        return
    for message_id in sorted(expected.difference(listed)):
        book.note(Missed(message_id, book.life))


async def drain(address: str, channel: str, book: History) -> list[int]:
    """Note all that is kept and ack it, until nothing is left. Gives the ids."""
    drained: list[int] = []
    async with await join(address, channel, {p.ROLE: p.BOTH}, wants_push=False) as line:
        while found := await ids(line):
            for some in _parts(found):
                await line.send(*map(p.get, some))
                for packet in await _packets(line, len(some)):
                    _note(packet, book)
                for message_id in some:
                    book.done(channel, message_id)
                await line.send(*map(p.ack, some))
            drained += found
    return drained


async def ids(line: Connection) -> list[int]:
    """Everything that is kept in the line's channel, page by page."""
    found: list[int] = []
    while True:
        start = found[-1] + 1 if found else 0
        await line.send(p.list_(PAGE, start))
        (packet,) = await _packets(line, 1)
        if packet[0] != LIST_ACK:
            raise UnexpectedPacket(f"LIST was answered with {packet[:32].hex()}")
        page = [int.from_bytes(packet[at : at + 8], "big") for at in range(1, len(packet), 8)]
        found += page
        if len(page) < PAGE:
            return found


def _parts(found: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(found), GETS_AT_ONCE):
        yield found[at : at + GETS_AT_ONCE]


async def _packets(line: Connection, count: int) -> list[bytes]:
    got: list[bytes] = []
    with anyio.fail_after(SILENCE_S):
        while len(got) < count:
            got += [each for each in await line.receive() if each != GOODBYE]
    return got


def _note(packet: bytes, book: History) -> None:
    if packet[:3] == NOT_FOUND:
        return  # it expired between LIST and GET; what did not is missed by the checker
    if packet[0] != GET_ACK:
        raise UnexpectedPacket(f"GET was answered with {packet[:32].hex()}")
    if packet[9:].startswith(FENCE):
        return
    label, is_whole = book.read(packet[9:])
    book.note(Found(int.from_bytes(packet[1:9], "big"), label, book.life, is_whole))
