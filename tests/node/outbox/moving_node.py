"""A node in a process of its own, to be killed while it moves messages into a channel.

    python -m tests.node.outbox.moving_node FOLDER DAYS [LETTERS]

Its clock is DAYS ahead. It puts the relayed messages of the file LETTERS (one a line, hexadecimal)
into its own mailbox, and writes the clear text of each message that arrives in the channel, which
stays there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from millpond.actors.messages import Put
from millpond.node.clock import Clock
from millpond.node.node import Node
from millpond.node.outbox.mailbox import mailbox_of
from tests.node.outbox.peer_nodes import PeerNode

CHANNEL = b"notes"
MESSAGES_MAX = 10_000
TTL_S = 604_800


async def run(folder: Path, days: float, letters: list[bytes]) -> None:
    own = PeerNode(folder.parent, folder.name)
    clock = Clock(time.monotonic, lambda: time.time() + days * 86_400)
    async with Node(own.config, clock=clock) as node:
        local = node.outbox.context.local
        for number, letter in enumerate(letters, 1):
            local.put_nowait(mailbox_of(own.public), Put(number, TTL_S, letter))
        with local.consumer(CHANNEL, MESSAGES_MAX) as consumer:
            while True:
                message = await consumer.receive()
                opened = await node.outbox.open(CHANNEL, message.data)
                sys.stdout.buffer.write(opened.plaintext + b"\n")
                sys.stdout.buffer.flush()


if __name__ == "__main__":
    lines = Path(sys.argv[3]).read_text().split() if len(sys.argv) > 3 else []
    anyio.run(run, Path(sys.argv[1]), float(sys.argv[2]), list(map(bytes.fromhex, lines)))
