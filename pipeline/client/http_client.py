"""A small blocking client of one node's HTTP listener; no event loop, for Spark's workers.

Whatever passes is tried again with growing pauses, until nothing came for `timeout_ms`.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from random import uniform
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from millpond.pipeline.client.column_blocks import decode_blocks
from millpond.pipeline.client.columns import Columns, decode_batch
from millpond.pipeline.client.s2_codec import TERMINAL, next_frame
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import Nodes

PAUSE_S, PAUSE_S_MAX = 0.05, 2.0
ANSWER_BYTES_MAX = 16 * 2**20
QUIET_S_MAX = 30.0
"""A node that sends nothing for so long in the middle of an answer counts as lost."""
_LATER = frozenset((408, 425, 429, 500, 502, 503, 504))
_DECIDED = ("ALERT", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What TLS fails by the next time as well."""
_COLUMNS = "s2s/columns"
_S2S = {"content-type": "s2s/proto", "accept": _COLUMNS}

T = TypeVar("T")


class NodeUnreachable(Exception):
    """No answer for now: it is worth another try."""


class NoSuchStream(PipelineError):
    """The node has no stream of this name."""

    def __init__(self, stream: str, address: str) -> None:
        super().__init__("no_stream", f"there is no stream {stream!r} at {address}")

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


class NodeClient:
    """One node; one connection, made when it is needed. Not for several threads at once."""

    def __init__(self, nodes: Nodes, index: int) -> None:
        self.address = nodes.addresses[index]
        self._nodes = nodes
        self._line: HTTPConnection | None = None

    def close(self) -> None:
        """It can be used again."""
        if self._line is not None:
            self._line.close()
            self._line = None

    # What is asked of streams.

    def names(self, prefix: str = "") -> list[str]:
        """All streams whose names begin so."""
        found: list[str] = []
        last, has_more = "", True
        while has_more:
            query = {"prefix": prefix, "start_after": last, "limit": 1000}
            page = self.ask_json("GET", f"/v1/streams?{urlencode(query)}")
            found += [each["name"] for each in page["streams"] if not each.get("deleted_at")]
            has_more = page["has_more"] and bool(page["streams"])
            last = page["streams"][-1]["name"] if has_more else ""
        return found

    def tail(self, stream: str) -> int:
        """The sequence behind the last record. Raises NoSuchStream."""
        found = self.ask_json("GET", f"{_path(stream)}/tail", stream=stream)
        return int(found["tail"]["seq_num"])

    def first(self, stream: str, query: Mapping[str, int]) -> int | None:
        """The sequence of the first record of a read; None: there is none from there on."""
        asked = urlencode({**query, "count": 1})
        status, body = self._patiently(
            partial(
                self._ask, "GET", f"{_path(stream)}?{asked}", {"accept": "application/protobuf"}
            )
        )
        if status == 416:
            return None
        self.check(status, body, stream)
        found = decode_batch(body).sequences
        return int(found[0]) if len(found) else None

    def earliest(self, stream: str) -> int:
        """The sequence of the first record there is, or the tail."""
        found = self.first(stream, {"seq_num": 0})
        return self.tail(stream) if found is None else found

    def at_time(self, stream: str, time_ms: int) -> int | None:
        """The sequence of the first record of that time or later; None: there is none."""
        return self.first(stream, {"timestamp": time_ms})

    def read(self, stream: str, start: int, end: int) -> Iterator[Columns]:
        """Records from `start` to before `end`, as far as there are any; over lost connections."""
        give_up_at = time.monotonic() + self._limit_s
        pause = PAUSE_S
        while start < end:
            try:
                for columns in self._session(stream, start, end - start):
                    start = int(columns.sequences[-1]) + 1
                    give_up_at, pause = time.monotonic() + self._limit_s, PAUSE_S
                    yield columns
                    if start >= end:
                        return
                return
            except NodeUnreachable as error:
                pause = self._rest(pause, give_up_at, error)

    def _session(self, stream: str, start: int, count: int) -> Iterator[Columns]:
        asked = urlencode({"seq_num": start, "count": count, "clamp": "true"})
        response = self._send("GET", f"{_path(stream)}?{asked}", _S2S, None)
        if response.status != 200:
            body = self._whole(response)
            if response.status == 416:
                return
            self.check(response.status, body, stream)
        is_over = False
        is_by_columns = response.getheader("content-type") == _COLUMNS
        decode = decode_blocks if is_by_columns else _decode_frame
        try:
            while (frame := self._frame(response)) is not None:
                flag, body = frame
                if flag & TERMINAL:
                    self.check(int.from_bytes(body[:2], "big"), body[2:], stream)
                yield from decode(body)
            is_over = True
        finally:
            if not is_over:
                self.close()

    def _frame(self, response: HTTPResponse) -> tuple[int, bytes] | None:
        try:
            return next_frame(response.read)
        except (OSError, HTTPException, EOFError) as error:
            raise self._lost(error) from None

    # One request.

    def ask_json(self, method: str, path: str, body: bytes | None = None, stream: str = "") -> Any:
        """What a request is answered with, tried again where that helps. Raises PipelineError."""
        return json.loads(self.ask_bytes(method, path, body, stream=stream) or b"null")

    def ask_bytes(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        media: str = "application/json",
        stream: str = "",
    ) -> bytes:
        """The same as bytes."""
        headers = {} if body is None else {"content-type": media}

        def ask() -> bytes:
            status, answer = self._ask(method, path, headers, body)
            self.check(status, answer, stream)
            return answer

        return self._patiently(ask)

    def check(self, status: int, body: bytes, stream: str) -> None:
        """Raises Lost and PipelineError for what is no success."""
        if status < 300:
            return
        code, text = _told(body)
        if code == "stream_not_found":
            raise NoSuchStream(stream, self.address)
        if status in _LATER:
            raise NodeUnreachable(f"{code}: {text}")
        hint = "the options token and tokenFile" if status in (401, 403) else ""
        raise PipelineError(code, f"{self.address} answered {status}: {text}", hint)

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        response = self._send(method, path, headers, body)
        answer = self._whole(response)
        if response.status in _LATER:
            code, text = _told(answer)
            raise NodeUnreachable(f"{code}: {text}")
        return response.status, answer

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        if self._line is None:
            self._line = self._dial()
        line = self._line
        told = {"s2-basin": self._nodes.basin, **headers}
        if self._nodes.token is not None:
            told["authorization"] = f"Bearer {self._nodes.token}"
        try:
            line.request(method, path, body, told)
            return line.getresponse()
        except ssl.SSLCertVerificationError as error:
            self.close()
            text = f"{self.address}: {error.verify_message}"
            raise PipelineError("tls_refused", text, "the option tlsCa") from None
        except ssl.SSLError as error:
            if not any(each in (error.reason or "") for each in _DECIDED):
                raise self._lost(error) from None
            self.close()
            text, hint = f"{self.address}: {error.reason}", "the options tlsCert, tlsKey; https?"
            raise PipelineError("tls_refused", text.lower().replace("_", " "), hint) from None
        except (OSError, HTTPException) as error:
            raise self._lost(error) from None

    def _whole(self, response: HTTPResponse) -> bytes:
        """A body, in full: `read` of a known length raises where it is cut short."""
        is_sized = response.length is not None and response.length <= ANSWER_BYTES_MAX
        try:
            body = response.read() if is_sized else response.read(ANSWER_BYTES_MAX)
            if response.isclosed() or not response.read(1):
                return body
        except (OSError, HTTPException) as error:
            raise self._lost(error) from None
        self.close()
        raise PipelineError("bad_answer", f"{self.address}: an answer without end")

    def _lost(self, error: Exception) -> NodeUnreachable:
        self.close()
        return NodeUnreachable(str(error) or type(error).__name__)

    def _dial(self) -> HTTPConnection:
        parts = urlsplit(self.address)
        timeout = min(QUIET_S_MAX, self._limit_s)
        if parts.scheme == "https":
            port, nodes = parts.port or 443, self._nodes
            try:
                context = ssl.create_default_context(cafile=nodes.tls_ca)
                if nodes.tls_cert is not None:
                    context.load_cert_chain(nodes.tls_cert, nodes.tls_key)
            except (OSError, ssl.SSLError) as error:
                raise PipelineError("bad_option", f"tlsCa, tlsCert, tlsKey: {error}") from None
            return HTTPSConnection(
                parts.hostname or "", port, timeout=timeout, context=context, blocksize=2**16
            )
        return HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)

    # Trying again.

    @property
    def _limit_s(self) -> float:
        return self._nodes.timeout_ms / 1000

    def _patiently(self, ask: Callable[[], T]) -> T:
        give_up_at = time.monotonic() + self._limit_s
        pause = PAUSE_S
        while True:
            try:
                return ask()
            except NodeUnreachable as error:
                pause = self._rest(pause, give_up_at, error)

    def _rest(self, pause: float, give_up_at: float, error: NodeUnreachable) -> float:
        """Wait a little; gives the next pause. Raises PipelineError where it is too late."""
        if time.monotonic() + pause > give_up_at:
            text = f"{self.address} did not answer for {self._limit_s:g} s: {error}"
            raise PipelineError(
                "node_away", text, "the option timeoutMs; a restart goes on"
            ) from None
        time.sleep(pause * uniform(0.5, 1.0))
        return min(2 * pause, PAUSE_S_MAX)


def _decode_frame(body: bytes) -> Iterator[Columns]:
    columns = decode_batch(body)
    if len(columns.sequences):
        yield columns


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}/records"


def _told(body: bytes) -> tuple[str, str]:
    """The code and the text of a refusal."""
    try:
        found = json.loads(body)
        return str(found["code"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        return "refused", body[:200].decode("utf-8", "replace")
