"""The time of a takeover: from kill -9 of the owner to the first acknowledged put at the standby.

    python -m tests.node.replica.takeover_time --takeover-s 2 --times 5

Both nodes are on this machine, and the replica is a folder or, with --replica, anywhere. The put is
a `replicated` one of a client that tries to connect every 10 ms.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from millpond.errors import MillpondError
from millpond.sync import connect
from tests.node.replica.kill_loop import CHANNEL, LIMIT_S, Peer

PAUSE_S = 0.01
REST_S = 3.0
"""Between the start of the standby and the kill, at the least."""


def main() -> None:
    """Measure, and print each time and their median."""
    parser = argparse.ArgumentParser(description="Measure takeovers.")
    parser.add_argument("--takeover-s", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--replica", default="", help="address of an empty replica")
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        url = args.replica or f"file://{folder}/replica"
        peers = [Peer(folder, each, url, args.takeover_s) for each in (0, 1)]
        try:
            found = _measure(peers, args.times)
        finally:
            for each in peers:
                each.end()
    shown = " ".join(f"{each:.2f}" for each in found)
    print(f"takeover_s={args.takeover_s:g}: {shown} s, median {median(found):.2f} s")


def _measure(peers: list[Peer], times: int) -> list[float]:
    owner, standby = peers
    owner.start()
    _put(owner)
    found = []
    for _ in range(times):
        standby.start()
        end = time.monotonic() + LIMIT_S
        while not standby.has_told("standby"):
            assert time.monotonic() < end, standby.log
            time.sleep(PAUSE_S)
        time.sleep(REST_S)
        _put(owner)
        killed_at = time.monotonic()
        owner.end()
        _put(standby)
        found.append(time.monotonic() - killed_at)
        owner, standby = standby, owner
    return found


def _put(peer: Peer) -> None:
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            with connect(peer.url, channel=CHANNEL, role="producer", reconnect=False) as link:
                link.put(b"letter", ttl=3600)
                return
        except (MillpondError, OSError):
            assert time.monotonic() < end, peer.log
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
