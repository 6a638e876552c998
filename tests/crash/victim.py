"""A node on a data folder, in a process that may have to die: `python -m tests.crash.victim`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path

import anyio
import msgspec

from millpond.actors.messages import Mode
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.settings import StoreSettings
from millpond.node.config import OFF, ChannelRule, Config
from millpond.node.node import Node
from tests.crash.kill_points import CountedDisk, KillPoint
from tests.crash.plan import Death

SEGMENT_BYTES = 256 * 1024
JOURNAL_BYTES_MAX = 1024 * 1024
"""Small, so that a second of work turns the journal over."""
SETTLE_S = 0.3
REWRITE_BYTES_MAX = 16 * 1024
ATTEMPTS_MAX = 60_000
"""Every kill costs a message in hand an attempt; none may become a dead letter by that."""


class Quick(Config):
    """A configuration whose store flushes what is younger and smaller than usual."""

    @property
    def store_settings(self) -> StoreSettings:
        return msgspec.structs.replace(
            super().store_settings, settle_s=SETTLE_S, rewrite_bytes_max=REWRITE_BYTES_MAX
        )


async def serve(folder: Path, death: Death | None, store: str) -> None:
    """Serve until SIGTERM, or until the kill point."""
    config = Quick(
        p2p="127.0.0.1:0",
        ws=OFF,
        s3p="127.0.0.1:0",
        rustlog=OFF,
        http=OFF,
        data=str(folder),
        store=store,
        segment_bytes=SEGMENT_BYTES,
        journal_bytes_max=JOURNAL_BYTES_MAX,
        channels=(ChannelRule("queue/*", Mode.QUEUE, attempts=ATTEMPTS_MAX),),
    )
    disk = CountedDisk(OsDisk(), KillPoint(folder, death))
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Node(config, disk=disk) as node:
            ready = {name: node.listeners[name] for name in ("p2p", "s3p")}
            os.write(1, json.dumps(ready).encode() + b"\n")
            async for _ in signals:
                break


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.victim")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--store", default="", metavar="URL", help="keep channels and streams there"
    )
    parser.add_argument("--die", type=Death.parse, metavar="KIND:PLACE:NUMBER:PHASE")
    parser.add_argument("--loop", choices=("asyncio", "uvloop", "trio"), default="uvloop")
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level="INFO")
    logging.getLogger("millpond.node.node").setLevel(
        "DEBUG"
    )  # also of an empty store, when it was opened
    backend = "trio" if args.loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if args.loop == "uvloop" else {}
    anyio.run(serve, args.data, args.die, args.store, backend=backend, backend_options=options)


if __name__ == "__main__":
    main()
