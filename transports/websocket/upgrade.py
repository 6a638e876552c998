"""The HTTP request that becomes a WebSocket: what it asks for, and whether it may
(docs/reference/wire-protocol.md).

Refusals are raised as UpgradeRefused and never quote the request: it may hold a token.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote_to_bytes

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import UpgradeRefused
from millpond.transports.p2p.framing import Upgrade

BARE = "p2pbuf.v1"
HELLO = "p2pbuf.v1.hello"
CHANNEL_BYTES_MAX = 255
_CHANNELS = "/v1/channels/"
_BEARER = "bearer."
_REQUIRED = {405: {"Allow": "GET"}, 426: {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}}
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_VISIBLE = re.compile(rb"[\x21-\x7e]+")


def path_of(channel: bytes) -> str:
    """The request path of a channel."""
    return _CHANNELS + quote(channel, safe="")


def read_request(request: Request, policy: BrowserPolicy) -> Upgrade:
    """The requested upgrade, without the subprotocol. Raises UpgradeRefused."""
    headers = request.headers
    check_browser(policy, headers.get_all)
    return Upgrade(channel=_channel_of(request.path), token=_token_of(headers))


def check_browser(
    policy: BrowserPolicy, all_of: Callable[[str], Sequence[str]], *, is_page_visit: bool = False
) -> None:
    """Check a request by the browser policy; `all_of` gives the values of a header. Raises
    UpgradeRefused."""
    hosts, origins, sites = (
        [each.encode("latin-1") for each in all_of(name)]
        for name in ("host", "origin", "sec-fetch-site")
    )
    if len(hosts) != 1:
        raise UpgradeRefused(400, "the request needs one Host")
    site = sites[-1] if sites else None
    refusal = policy.check(hosts, origins, site, is_page_visit=is_page_visit)
    if refusal is not None:
        raise UpgradeRefused(refusal.status, refusal.text)


def give_token(headers: Headers, token: bytes) -> None:
    """Put a token into a request; as a subprotocol, where a header cannot hold its bytes."""
    if _VISIBLE.fullmatch(token):
        headers["Authorization"] = f"Bearer {token.decode()}"
    else:
        headers["Sec-WebSocket-Protocol"] = _BEARER + base64.urlsafe_b64encode(
            token
        ).decode().rstrip("=")


def write_refusal(refused: UpgradeRefused) -> bytes:
    """The HTTP response of a refused upgrade."""
    body = f"{refused.reason}\n".encode()
    headers = Headers(_REQUIRED.get(refused.status, {}))
    headers["Connection"] = "Upgrade, close" if "Upgrade" in headers else "close"
    headers["Content-Length"] = str(len(body))
    headers["Content-Type"] = "text/plain; charset=utf-8"
    return Response(refused.status, refused.reason, headers, body).serialize()


def _channel_of(path: str) -> bytes:
    name = path.removeprefix(_CHANNELS)
    if name == path or not name or "?" in name:
        raise UpgradeRefused(404, "channels are at /v1/channels/<name>")
    channel = unquote_to_bytes(name)
    if _STRAY_PERCENT.search(name) or len(channel) > CHANNEL_BYTES_MAX:
        raise UpgradeRefused(400, "the channel's name is not acceptable")
    return channel


def _token_of(headers: Headers) -> bytes | None:
    offers = ",".join(headers.get_all("Sec-WebSocket-Protocol")).split(",")
    offered = [offer.strip() for offer in offers if offer.strip().startswith(_BEARER)]
    credentials = [value.partition(" ") for value in headers.get_all("Authorization")]
    bearers = [token.strip() for scheme, _, token in credentials if scheme.lower() == "bearer"]
    if len(offered) + len(bearers) > 1:
        raise UpgradeRefused(400, "more than one token")
    if bearers:
        return bearers[0].encode("latin-1")
    return _decode(offered[0].removeprefix(_BEARER)) if offered else None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise UpgradeRefused(400, "the token is not base64url") from None
