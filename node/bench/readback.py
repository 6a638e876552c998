"""Reads back what a node was told to keep: LIST has these ids, GET has their contents."""

from __future__ import annotations

import anyio

from millpond.actors.messages import Get, GetAck, List, ListAck
from millpond.node.bench.drivers.p2p import Answer, Peer
from millpond.node.bench.verify import Fault, Faults
from millpond.transports.p2p.packets import encode

EVERYTHING = List(limit=2**16 - 1, start=0, end=0)


async def read_back(peer: Peer, kept: list[tuple[int, bytes]], faults: Faults) -> None:
    """Compare a channel, of which nothing else is asked now, with what it should hold; empty it."""
    reading = _Reading(kept, faults)
    peer.take = reading.take
    peer.send([encode(EVERYTHING), *[encode(Get(message_id)) for message_id, _ in kept]])
    await reading.done.wait()
    peer.acknowledge([message_id for message_id, _ in kept])


class _Reading:
    def __init__(self, kept: list[tuple[int, bytes]], faults: Faults) -> None:
        self.done = anyio.Event()
        self._kept = dict(kept)
        self._faults = faults
        self._unread = {"list", *self._kept}

    def take(self, batch: list[Answer]) -> None:
        for answer in batch:
            match answer:
                case ListAck(ids=ids):
                    self._compare(ids)
                case GetAck(id=message_id, data=data):
                    self._unread.discard(message_id)
                    if data != self._kept.get(message_id):
                        text = f"message {message_id} is kept with other content"
                        self._faults.note(Fault.DAMAGED, text)
                case _:
                    self._faults.note(Fault.UNEXPECTED, "a message came that nobody asked for")
        if not self._unread:
            self.done.set()

    def _compare(self, ids: list[int]) -> None:
        self._unread.discard("list")
        lost = self._kept.keys() - set(ids)
        if lost:
            self._faults.note(Fault.LOST, f"message {min(lost)} is not listed", len(lost))
        extra = set(ids) - self._kept.keys()
        if extra:
            text = f"message {min(extra)} is still there, although it was deleted"
            self._faults.note(Fault.UNEXPECTED, text, len(extra))
