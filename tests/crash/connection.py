"""One connection of the workload: packets out, packets in, and the end of the node as `Ended`."""

from __future__ import annotations

from types import TracebackType

from tests.conformance import packets as p
from tests.conformance.peer import Ended, LengthPrefixed, SocketPipe, connect_tcp

READY = 0x83
STORAGE_FAILED = b"\xff\x80\xe1"


class UnexpectedPacket(Exception):
    """A packet that the node must not send."""


class Connection:
    """A connection that is through its handshake; `async with` closes it."""

    def __init__(self, pipe: SocketPipe) -> None:
        self._pipe = pipe
        self._framing = LengthPrefixed()
        self._early: list[bytes] = []

    async def send(self, *packets: bytes) -> None:
        """All in one write. Raises Ended."""
        await self._pipe.send(p.framed(*packets))

    async def receive(self) -> list[bytes]:
        """The packets of one read, at least one. Raises Ended."""
        found, self._early = self._early, []
        while not found:
            data = await self._pipe.receive()
            if not data:
                raise Ended
            found, _ = self._framing.feed(data)
        return found

    async def ask(self, packet: bytes) -> bytes:
        """Send, and give the next packet. Raises Ended."""
        await self.send(packet)
        first, *self._early = await self.receive()
        return first

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._pipe.aclose()


async def join(address: str, channel: str, tags: p.Tags, *, wants_push: bool) -> Connection:
    """Connect and say HELLO. Raises Ended when the node is not there, or goes.

    The channel must be as durable as can be (tag 81 of READY). Raises UnexpectedPacket.
    """
    try:
        connection = Connection(await connect_tcp(address))
    except OSError:
        raise Ended from None
    try:
        answer = await connection.ask(p.hello(channel.encode(), tags, flags=int(wants_push)))
        if answer.startswith(STORAGE_FAILED):
            raise Ended  # its store went before it
        if answer[0] != READY:
            raise UnexpectedPacket(f"{channel}: HELLO was answered with {answer[:32].hex()}")
        _, ready = p.read_ready(answer)
    except BaseException:
        await connection.__aexit__(None, None, None)
        raise
    assert ready[p.DURABILITY] == b"\x02", ready
    return connection
