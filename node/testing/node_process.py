"""The process of a `RealNode`: it reads the configuration, serves, and ends with its input."""

from __future__ import annotations

import json
import pickle
import sys

import anyio
import anyio.to_thread

from millpond.node.config import Config
from millpond.node.node import Node


async def serve(config: Config) -> None:
    """Serve until the end of the input."""
    async with Node(config) as node:
        sys.stdout.write(json.dumps(node.listeners) + "\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)


def main() -> None:
    """Read the configuration: its length in 4 bytes, and a pickle of the parent's own making."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    config: Config = pickle.loads(sys.stdin.buffer.read(size))
    anyio.run(serve, config)


if __name__ == "__main__":
    main()
