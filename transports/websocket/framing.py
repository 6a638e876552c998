"""WebSocket as a framing, at either end: the HTTP upgrade first, then frames
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHeaderValue
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import UpgradeRefused
from millpond.transports.p2p.framing import Upgrade
from millpond.transports.websocket import upgrade as http
from millpond.transports.websocket.frames import FrameCodec, core_log
from millpond.transports.websocket.http_pages import (
    PageRequest,
    Site,
    answer_page,
    read_page_request,
)

KEY_BYTES = 16
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ?([^\r\n]*)\r\n")


class ServerFraming(FrameCodec):
    """A node's end. `upgrade` is set with the 101; before that, `error` is an UpgradeRefused.

    `policy` checks every request before anything else. A request for a page of `site` is answered,
    and the stream is `closed`.
    """

    __slots__ = ("_page", "_policy", "_site")

    def __init__(self, packet_max: int, policy: BrowserPolicy, site: Site | None = None) -> None:
        super().__init__(packet_max, is_server=True)
        self._policy = policy
        self._site = site
        self._page: PageRequest | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """See the base; before the upgrade, there are no packets."""
        if self._is_open or self.upgrade is not None:
            return super().feed(data)
        if self.error is None and not self.closed:
            try:
                self._read_head(data)
            except UpgradeRefused as refused:
                self._tail.clear()
                self._out = http.write_refusal(refused)
                self.error = refused
        return []

    def _read_head(self, data: bytes) -> None:
        """Read the request before the upgrade: that for it, or for a page, and its body."""
        if self._page is not None:
            self._tail += data
        else:
            head = self._take_head(data)
            if head is None:
                return
            self._page = None if self._site is None else read_page_request(head)
            if self._page is None:
                self._accept(head)
                return
        if len(self._tail) >= self._page.body_bytes:
            assert self._site is not None
            body = bytes(self._tail[: self._page.body_bytes])
            self._tail.clear()
            self._out = answer_page(self._site, self._page, body, self._policy)
            self._page = None  # the client may take its time to read the answer
            self.closed = True

    def _accept(self, head: bytes) -> None:
        core = ServerProtocol(
            subprotocols=[Subprotocol(http.HELLO), Subprotocol(http.BARE)], logger=core_log
        )
        core.receive_data(head)
        events = core.events_received()
        if not events or self._tail:
            raise UpgradeRefused(400, "not a WebSocket request")
        (request,) = events
        assert isinstance(request, Request)
        upgrade = http.read_request(request, self._policy)
        response = core.accept(request)
        if response.status_code != 101:
            raise _refusal_of(core, response)
        self._out = response.serialize()
        self._open(Upgrade(upgrade.channel, core.subprotocol == http.HELLO, upgrade.token))


def _refusal_of(core: ServerProtocol, response: Response) -> UpgradeRefused:
    match core.handshake_exc:
        case InvalidHeaderValue(name="Sec-WebSocket-Version"):
            return UpgradeRefused(426, "the WebSocket version is 13")
        case _:
            return UpgradeRefused(response.status_code, response.reason_phrase)


class ClientFraming(FrameCodec):
    """A client's end: `take_output` is the request first, `ready` the answer to it.

    `host` is `host:port`. Without `hello`, the connection is bare. Keys and masks are of `entropy`.
    """

    __slots__ = ("_asked", "_handshake")

    def __init__(
        self,
        host: str,
        channel: bytes,
        hello: bool,
        token: bytes | None,
        packet_max: int,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(packet_max, is_server=False, entropy=entropy)
        self._asked = Upgrade(channel, hello, None)
        core = ClientProtocol(
            parse_uri(f"ws://{host}{http.path_of(channel)}"),
            subprotocols=[Subprotocol(http.HELLO if hello else http.BARE)],
            logger=core_log,
        )
        core.key = b64encode(entropy(KEY_BYTES)).decode()
        self._handshake: ClientProtocol | None = core
        request = core.connect()
        if token is not None:
            http.give_token(request.headers, token)
        core.send_request(request)
        self._out = b"".join(core.data_to_send())

    @property
    def ready(self) -> bool:
        """Whether the other end has upgraded."""
        return self.upgrade is not None

    def feed(self, data: bytes) -> list[bytes]:
        """See the base; before the upgrade, there are no packets."""
        if self._handshake is None:
            return super().feed(data)
        if self.error is not None:
            return []
        try:
            if not self._read_head(data):
                return []
        except UpgradeRefused as refused:
            self.error = refused
            return []
        self._handshake = None
        self._open(self._asked)
        first = bytes(self._tail)
        self._tail.clear()
        return self._split(first)

    def _read_head(self, data: bytes) -> bool:
        """Whether the answer is complete. A refusal counts with its first line, body or not."""
        head = self._take_head(data)
        status = _STATUS.match(self._tail if head is None else head)
        if status and status[1] != b"101":
            raise UpgradeRefused(int(status[1]), status[2].decode("latin-1"))
        if head is None:
            return False
        assert self._handshake is not None
        self._handshake.receive_data(head)
        subprotocol = http.HELLO if self._asked.hello else http.BARE
        if self._handshake.handshake_exc or self._handshake.subprotocol != subprotocol:
            raise UpgradeRefused(502, "not the requested WebSocket")
        return True
