"""Reads back what was appended to a stream."""

from __future__ import annotations

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import START, RecordPosition, Records, after
from millpond.node.bench.load import Run
from millpond.node.bench.payload import Payload
from millpond.node.bench.stream_rows import BATCH
from millpond.node.bench.verify import Fault


class Walk:
    """Reads a stream back: records in the order of their numbers, none missing, none too many."""

    def __init__(
        self, line: DriverConnection, name: str, content: Payload, size: int, run: Run
    ) -> None:
        self._line = line
        self._name = name
        self._content = content
        self._size = size
        self._run = run

    async def all(self, count: int, last: RecordPosition, quota: int) -> int:
        """The first `quota` of `count` records, and those from `last` on: the number read."""
        place, sequence = START, 0
        while sequence < min(count, quota):
            records = await self._page(place)
            if not records:
                text = f"record {sequence} of {self._name} is not there"
                self._run.faults.note(Fault.LOST, text, count - sequence)
                return sequence
            for place, body in records:
                self._check(place, body, sequence)
                sequence += 1
            place = after(place)
        if sequence > count:
            text = f"{self._name} has {sequence} records, {count} were appended"
            self._run.faults.note(Fault.UNEXPECTED, text, sequence - count)
        return sequence + await self._end(last, count - 1) if count else sequence

    async def _end(self, place: RecordPosition, sequence: int) -> int:
        records = await self._page(place)
        if [each for each, _ in records] != [place]:
            text = f"{self._name} has {len(records)} records from its last one on, at {place}"
            self._run.faults.note(Fault.LOST, text)
        for each, body in records[:1]:
            self._check(each, body, sequence)
        return len(records)

    async def _page(self, place: RecordPosition) -> list[tuple[RecordPosition, bytes]]:
        speech = self._line.speech
        request = speech.read(self._name, place, BATCH * 10, self._size, 0)
        match await self._line.ask(request):
            case Records(records=records):
                return records
            case _:
                return []

    def _check(self, place: RecordPosition, body: bytes, sequence: int) -> None:
        if self._content.read(body) != sequence:
            text = f"the record at {place} of {self._name} is not what was appended"
            self._run.faults.note(Fault.DAMAGED, text)
