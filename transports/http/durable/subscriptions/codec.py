"""Bodies of requests about subscriptions, and of their responses (DSS-02 to DSS-08, DSS-19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import msgspec

from millpond.actors.streams.glob import BadGlob, Glob
from millpond.actors.streams.names import stream_path
from millpond.actors.subscriptions.messages import (
    LinkView,
    StreamAck,
    SubscriptionDescribed,
    SubscriptionKind,
    SubscriptionSpec,
    WakeClaimed,
)
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.context import RESERVED
from millpond.transports.http.durable.offsets import sequence_of
from millpond.transports.http.durable.subscriptions.errors import SubscriptionError, invalid
from millpond.transports.http.request import BadPath, percent_decoded
from millpond.transports.http.webhooks.destination import (
    UrlRejected,
    WebhookPolicy,
    destination_of,
)
from millpond.transports.http.webhooks.notification import JWKS, pending_link, shown_link
from millpond.transports.http.webhooks.signature import ALGORITHM, WebhookKey

BODY_BYTES_MAX = 2**20
ID_BYTES_MAX = 255
STREAMS_MAX = 100
"""The explicit streams of one request."""
DESCRIPTION_BYTES_MAX = 1024
WORKER_BYTES_MAX = 255
LEASE_MS_DEFAULT, LEASE_MS_MIN, LEASE_MS_MAX = 30_000, 1000, 600_000
ACKS_MAX = 10_000
GENERATION_MAX = 2**53

Fields = Mapping[str, object]


def fields_of(body: bytes) -> Fields:
    """The fields of a body. Raises SubscriptionError."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid("the body is not JSON") from None
    if not isinstance(found, dict):
        raise invalid("the body is no JSON object")
    return cast("Fields", found)


def subscription_id(segment: bytes) -> bytes:
    """The id in a path. Raises SubscriptionError."""
    try:
        text = segment.decode()
    except UnicodeDecodeError:
        raise invalid("the id is not UTF-8") from None
    if not 0 < len(segment) <= ID_BYTES_MAX or any(_is_control(each) for each in text):
        raise invalid(f"an id has 1 to {ID_BYTES_MAX} bytes, without control characters")
    return segment


def spec_of(fields: Fields, policy: WebhookPolicy) -> SubscriptionSpec:
    """The subscription that a body describes. Raises SubscriptionError."""
    kind = _kind(fields.get("type"))
    pattern = _pattern(fields.get("pattern"))
    streams = () if fields.get("streams") is None else paths_of(fields)
    if pattern is None and not streams:
        raise invalid("pattern, streams: at least one of them is required")
    url = wake_stream = None
    if kind is SubscriptionKind.WEBHOOK:
        url = _url(fields.get("webhook"), policy)
    else:
        wake_stream = path_of(fields.get("wake_stream"), "wake_stream")
    description = fields.get("description")
    if description is not None:
        description = _text(description, "description", DESCRIPTION_BYTES_MAX, least=0)
    lease_ms = _lease(fields.get("lease_ttl_ms"))
    return SubscriptionSpec(kind, pattern, streams, url, wake_stream, lease_ms, description)


def paths_of(fields: Fields) -> tuple[bytes, ...]:
    """The streams that a body names, sorted, each once. Raises SubscriptionError."""
    found = fields.get("streams")
    if not isinstance(found, list):
        raise invalid("streams: expected an array")
    paths = cast("list[object]", found)
    if len(paths) > STREAMS_MAX:
        raise invalid(f"streams: at most {STREAMS_MAX} in one request")
    return tuple(sorted({path_of(each, "streams") for each in paths}))


def path_of(given: object, name: str) -> bytes:
    """The name of a stream in a body. Raises SubscriptionError."""
    if not isinstance(given, str):
        raise invalid(f"{name}: expected the path of a stream")
    try:
        path = percent_decoded(given.strip("/").encode())
    except (BadPath, UnicodeEncodeError):
        raise invalid(f"{name}: the path cannot be decoded") from None
    return checked_path(path, name)


def checked_path(path: bytes, name: str = "stream") -> bytes:
    """A name that a stream may have. Raises SubscriptionError."""
    if not 0 < len(path) <= protocol.NAME_BYTES_MAX:
        raise invalid(f"{name}: a path has 1 to {protocol.NAME_BYTES_MAX} bytes")
    if path.partition(b"/")[0] == RESERVED:
        raise invalid(f"{name}: no stream has this path")
    return path


def worker_of(fields: Fields) -> str:
    """The worker of a claim. Raises SubscriptionError."""
    return _text(fields.get("worker"), "worker", WORKER_BYTES_MAX, least=1)


def wake_of(fields: Fields) -> tuple[str, int]:
    """The wake that an acknowledgement is for: its id and its generation."""
    wake_id, generation = fields.get("wake_id"), _integer(fields.get("generation"))
    if not isinstance(wake_id, str) or generation is None:
        raise invalid("wake_id, generation: expected those of the wake")
    return wake_id, generation


def acks_of(fields: Fields) -> tuple[StreamAck, ...]:
    """The positions that a body acknowledges; one that is no offset is without a position."""
    found = fields.get("acks")
    if found is None:
        return ()
    if not isinstance(found, list):
        raise invalid("acks: expected an array")
    acks = cast("list[object]", found)
    if len(acks) > ACKS_MAX:
        raise invalid(f"acks: at most {ACKS_MAX} in one request")
    return tuple(map(_ack, acks))


def is_done(fields: Fields) -> bool:
    """True: the worker has handled everything."""
    done = fields.get("done", False)
    if not isinstance(done, bool):
        raise invalid("done: expected true or false")
    return done


def link_page(links: Sequence[LinkView]) -> bytes:
    """Links as clients see them: items of an array in JSON."""
    return msgspec.json.encode([shown_link(each) for each in links])[1:-1]


def shown(
    found: SubscriptionDescribed, links: Sequence[bytes], key: WebhookKey
) -> dict[str, object]:
    """A subscription as clients see it; `links` are the pages of its links (`link_page`)."""
    spec = found.spec
    moment = datetime.fromtimestamp(found.created_ms / 1000, UTC)
    content: dict[str, object] = {
        "id": found.id.decode(),
        "subscription_id": found.id.decode(),
        "type": spec.kind.value,
        "streams": msgspec.Raw(b"[%b]" % b",".join(filter(None, links))),
        "lease_ttl_ms": spec.lease_ms,
        "created_at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "status": "failed" if found.is_failed else "active",
    }
    if spec.pattern is not None:
        content["pattern"] = spec.pattern.decode()
    if spec.wake_stream is not None:
        content["wake_stream"] = stream_path(spec.wake_stream)
    if spec.description is not None:
        content["description"] = spec.description
    if spec.url is not None:
        jwks_url = found.maker.origin + JWKS
        signing = {"alg": ALGORITHM, "kid": key.kid, "jwks_url": jwks_url}
        content["webhook"] = {"url": spec.url, "signing": signing}
    return content


def shown_claim(claimed: WakeClaimed) -> dict[str, object]:
    """A claim as its worker sees it."""
    return {
        "wake_id": claimed.wake_id,
        "generation": claimed.generation,
        "token": claimed.token.decode(),
        "streams": [pending_link(each) for each in claimed.links],
        "lease_ttl_ms": claimed.lease_ms,
    }


def _kind(given: object) -> SubscriptionKind:
    try:
        return SubscriptionKind(given)
    except ValueError:
        raise invalid("type: expected webhook or pull-wake") from None


def _pattern(given: object) -> bytes | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise invalid("pattern: expected text")
    try:
        pattern = given.strip("/").encode()
        Glob(pattern)
    except (BadGlob, UnicodeEncodeError) as error:
        raise invalid(f"pattern: {error}") from None
    return pattern


def _url(given: object, policy: WebhookPolicy) -> str:
    if not policy.is_enabled:
        raise invalid("type: webhooks are switched off at this node")
    url = cast("Fields", given).get("url") if isinstance(given, dict) else None
    if not isinstance(url, str):
        raise invalid("webhook.url: required")
    try:
        destination_of(url, policy)
    except UrlRejected as error:
        text = f"webhook.url: {error}"
        raise SubscriptionError(400, "WEBHOOK_URL_REJECTED", text) from None
    return url


def _lease(given: object) -> int:
    if given is None:
        return LEASE_MS_DEFAULT
    lease_ms = _integer(given)
    if lease_ms is None or not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        text = f"lease_ttl_ms: expected a whole number, {LEASE_MS_MIN} to {LEASE_MS_MAX}"
        raise invalid(text)
    return lease_ms


def _integer(given: object) -> int | None:
    """A whole number at least 0, however JSON writes it (`1e3`); None: it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    if not 0 <= given <= GENERATION_MAX or given != int(given):
        return None
    return int(given)


def _text(given: object, name: str, most: int, *, least: int) -> str:
    size = len(given.encode("utf-8", "surrogatepass")) if isinstance(given, str) else -1
    if not isinstance(given, str) or not least <= size <= most:
        raise invalid(f"{name}: expected text of {least} to {most} bytes")
    return given


def _ack(given: object) -> StreamAck:
    fields = cast("Fields", given) if isinstance(given, dict) else {}
    path = fields.get("stream", fields.get("path"))
    if not isinstance(path, str):
        raise invalid("acks: expected objects with stream and offset")
    offset = fields.get("offset")
    position = sequence_of(offset) if isinstance(offset, str) else None
    return StreamAck(path_of(path, "acks"), position)


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"
