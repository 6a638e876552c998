"""Run in a process of its own: what channels cost in resident memory, as one line of JSON."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path

from millpond.actors.messages import Ack, Attach, Batch, Msg, Put
from tests.actors.channels.harness import ChannelHarness
from tests.actors.recording_port import RecordingPort

WARM = 2_000


def rss_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def name(number: int) -> bytes:
    return b"channel/%012d" % number


def join_and_leave(harness: ChannelHarness, number: int) -> None:
    port = RecordingPort(1, harness.now)
    harness.scheduler.attach(name(number), port, Attach(), harness.now)
    harness.scheduler.detach(name(number), port)


def put_push_and_ack(harness: ChannelHarness, number: int) -> None:
    """One message goes through, and everyone leaves."""
    channel, scheduler, now = name(number), harness.scheduler, harness.now
    producer, consumer = RecordingPort(1, now), RecordingPort(2, now)
    for port in (producer, consumer):
        scheduler.attach(channel, port, Attach(), now)
    scheduler.submit(channel, Batch(producer, [Put(1, 60, b"hi")]), now)
    push = consumer.written[-1]
    assert isinstance(push, Msg)
    scheduler.submit(channel, Batch(consumer, [Ack(push.id)]), now)
    for port in (producer, consumer):
        scheduler.detach(channel, port)


def pass_seconds(harness: ChannelHarness, seconds: int) -> None:
    """Coarser than `ChannelHarness.advance`, which stops at every one of so many deadlines."""
    for _ in range(seconds):
        harness.now += 1
        while harness.scheduler.turn(harness.now):
            pass


def main(channels: int, channels_per_s: int) -> None:
    """All channels are joined and left; then each has one message within their common window."""
    harness, started = ChannelHarness(), time.perf_counter()
    for number in range(WARM):
        join_and_leave(harness, -number)
        put_push_and_ack(harness, -number)
    pass_seconds(harness, 1000)
    assert harness.scheduler.cells == {}
    measured, before = dict[str, float](), rss_bytes()

    def measure(what: str) -> None:
        measured[what] = round((rss_bytes() - before) / channels, 1)

    for number in range(channels):
        join_and_leave(harness, number)
    measure("joined and left")
    for number in range(channels):
        put_push_and_ack(harness, number)
        if (number + 1) % channels_per_s == 0:
            pass_seconds(harness, 1)
    measure("just used")
    pass_seconds(harness, 70)
    measure("passivated, inside the key window")
    assert len(harness.scheduler.cells) == channels
    pass_seconds(harness, 700)
    measure("after the key window")
    measured["cells left"] = len(harness.scheduler.cells)
    measured["seconds"] = round(time.perf_counter() - started, 1)
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
