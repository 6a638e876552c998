"""A client of HTTP/2 on a `rig.Line`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import h2.events as events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from tests.transports.http.server.rig import Line

FRAMES = {0: "DATA", 1: "HEADERS", 3: "RST", 4: "SETTINGS", 6: "PING", 7: "GOAWAY", 8: "WINDOW"}


class Client:
    """Says what it is told at once; reads when it is told to."""

    def __init__(self, line: Line, *, settings: dict[SettingCodes, int] | None = None) -> None:
        self.line = line
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        if settings:
            self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.gives_back = True
        """Whether what was read is acknowledged."""
        self.events: dict[int, list[Any]] = defaultdict(list)
        self.frames: list[str] = []
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.line.say(data)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        ends: bool = True,
        headers: Sequence[tuple[str, str]] = (),
        flushes: bool = True,
    ) -> int:
        number = self.h2.get_next_available_stream_id()
        head = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "[::1]"),
            (":path", path),
        ]
        self.h2.send_headers(number, [*head, *headers], end_stream=ends and not body)
        if body:
            self.h2.send_data(number, body, end_stream=ends)
        if flushes:
            self.flush()
        return number

    def say(
        self, number: int, body: bytes, *, ends: bool = False, padding: int | None = None
    ) -> None:
        self.h2.send_data(number, body, end_stream=ends, pad_length=padding)
        self.flush()

    def reset(self, number: int) -> None:
        self.h2.reset_stream(number, 8)
        self.flush()

    async def read(self) -> None:
        """Take in what is answered until all is still."""
        while data := await self.line.read():
            self._note_frames(data)
            for event in self.h2.receive_data(data):
                self.events[getattr(event, "stream_id", 0) or 0].append(event)
                if isinstance(event, events.DataReceived) and self.gives_back:
                    size = event.flow_controlled_length
                    self.h2.acknowledge_received_data(size, event.stream_id)
            self.flush()

    def _note_frames(self, data: bytes) -> None:
        while data:
            self.frames.append(FRAMES[data[3]])
            data = data[9 + int.from_bytes(data[:3], "big") :]

    def _of(self, number: int, kind: type[Any]) -> list[Any]:
        return [each for each in self.events[number] if isinstance(each, kind)]

    def status(self, number: int) -> int:
        (event,) = self._of(number, events.ResponseReceived)
        return int(dict(event.headers)[b":status"])

    def body(self, number: int) -> bytes:
        return b"".join(each.data for each in self._of(number, events.DataReceived))

    def is_whole(self, number: int) -> bool:
        return bool(self._of(number, events.StreamEnded))

    def reset_by(self, number: int) -> int | None:
        """The code by which the server reset a stream."""
        found = self._of(number, events.StreamReset)
        return int(found[0].error_code) if found else None

    @property
    def ended_by(self) -> int | None:
        """The code of the server's GOAWAY."""
        found = self._of(0, events.ConnectionTerminated)
        return int(found[0].error_code) if found else None
