"""The API of subscriptions: which request is which operation, and who may make it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from millpond.actors.messages import Failed, Rights, StreamFailed
from millpond.actors.streams.names import subscription_cell
from millpond.actors.subscriptions import messages as s
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.context import RequestContext
from millpond.transports.http.durable.context import SECURITY_HEADERS, denial
from millpond.transports.http.durable.subscriptions import codec
from millpond.transports.http.durable.subscriptions.errors import (
    SubscriptionError,
    failure,
    from_durable,
    invalid,
    not_found,
    refusal,
)
from millpond.transports.http.durable.subscriptions.interface import (
    SubscriptionNodeServices,
    SubscriptionSettings,
)
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, json_response
from millpond.transports.http.webhooks.signature import jwk_set

_BEARER = b"bearer "
_JWKS_HEADERS = (
    (b"content-type", b"application/jwk-set+json"),
    (b"cache-control", b"public, max-age=300"),
)
_NO_STORE = (b"cache-control", b"no-store")
_Operation = Callable[["SubscriptionCall"], Awaitable[Response]]


class SubscriptionCall(RequestContext[SubscriptionNodeServices]):
    """A request about the subscription `id`. `path`: the rest of the path."""

    __slots__ = ("cell", "id", "is_secure", "path", "settings")

    def __init__(
        self,
        services: SubscriptionNodeServices,
        settings: SubscriptionSettings,
        request: Request,
        id_: bytes,
        path: bytes,
        *,
        is_secure: bool,
    ) -> None:
        super().__init__(services, request)
        self.settings = settings
        self.id = id_
        self.cell = subscription_cell(id_)
        self.path = path
        self.is_secure = is_secure

    @property
    def origin(self) -> str:
        """The base of the node's URLs, for workers."""
        if self.settings.public_url:
            return self.settings.public_url.rstrip("/")
        scheme = "https" if self.is_secure else "http"
        host = self.request.header(b"host") or b"localhost"
        return f"{scheme}://{host.decode('latin-1')}"

    async def fields(self) -> codec.Fields:
        """The fields of the body."""
        return codec.fields_of(await self.request.body(codec.BODY_BYTES_MAX))

    def require(self, stream: bytes, rights: Rights) -> None:
        """Require one of these rights in a stream. Raises SubscriptionError (401, 403)."""
        if not self.rights_in(stream) & rights:
            raise self.denied()

    def denied(self) -> SubscriptionError:
        """403, or 401 for a client that has no rights anywhere."""
        return from_durable(denial(is_known=self.is_known))

    async def ask(
        self, cells: CellClient, make: Callable[[int], s.SubscriptionRequest]
    ) -> CellReply:
        """The reply of the subscription. Raises SubscriptionError for a refusal."""
        reply = await cells.request(self.cell, make)
        match reply:
            case s.SubscriptionRefused():
                raise refusal(reply)
            case StreamFailed() | Failed():
                raise failure(reply)
            case _:
                return reply

    async def require_management(self, cells: CellClient) -> s.SubscriptionDescribed:
        """The subscription, for a client that may manage it: it may read all that the subscription
        follows, and append to the wake stream. Raises SubscriptionError (401, 403, 404)."""
        if not self.is_known:
            raise self.denied()
        found = await self.ask(cells, s.DescribeSubscription)
        assert isinstance(found, s.SubscriptionDescribed), f"{found} describes no subscription"
        self.check_management(found)
        return found

    def check_management(self, found: s.SubscriptionDescribed) -> None:
        """Check the rights of `require_management`. Raises SubscriptionError (401, 403)."""
        self._check_spec(found.spec)
        if found.spec.pattern is not None and not self._covers(found.maker.scope):
            raise self.denied()
        for each in found.links:
            self.require(each.path, Rights.GET)

    def check_new(self, spec: s.SubscriptionSpec) -> s.Maker:
        """The maker of a subscription like this. Raises SubscriptionError (401, 403)."""
        self._check_spec(spec)
        scope = self.services.stream_scope(self.request.principal)
        if spec.pattern is not None and scope == ():
            raise self.denied()
        return s.Maker(self.origin, scope)

    def _check_spec(self, spec: s.SubscriptionSpec) -> None:
        for each in spec.streams:
            self.require(each, Rights.GET)
        if spec.wake_stream is not None:
            self.require(spec.wake_stream, Rights.PUT)

    def _covers(self, scope: tuple[str, ...] | None) -> bool:
        """True: this client may read whatever the maker could."""
        own = self.services.stream_scope(self.request.principal)
        return own is None or (scope is not None and set(scope) <= set(own))


class SubscriptionsApi:
    """The API below `/v1/stream/__ds`."""

    def __init__(
        self,
        services: SubscriptionNodeServices,
        settings: SubscriptionSettings,
        *,
        is_secure: bool,
    ) -> None:
        self._services = services
        self._settings = settings
        self._is_secure = is_secure

    async def respond(self, request: Request) -> Response:
        """The response to a request whose path begins with the reserved segment."""
        try:
            return await self._respond(request, request.segments[len(DURABLE) + 1 :])
        except SubscriptionError as error:
            return error.response(SECURITY_HEADERS)

    async def _respond(self, request: Request, path: tuple[bytes, ...]) -> Response:
        operations: Mapping[str, _Operation]
        id_, rest = b"", b""
        match path:
            case (b"jwks.json",):
                if request.method != "GET":
                    raise _bad_method(request, ("GET",))
                return self._jwks()
            case (b"subscriptions", id_):
                operations = _OF_SUBSCRIPTION
            case (b"subscriptions", id_, b"streams"):
                operations = {"POST": _link}
            case (b"subscriptions", id_, b"streams", *more):
                operations, rest = {"DELETE": _unlink}, b"/".join(more).strip(b"/")
            case (b"subscriptions", id_, b"callback" | b"ack" | b"release" as action):
                operations = {"POST": _SETTLING[action]}
            case (b"subscriptions", id_, b"claim"):
                operations = {"POST": _claim}
            case _:
                raise not_found()
        operation = operations.get(request.method)
        if operation is None:
            raise _bad_method(request, tuple(operations))
        call = SubscriptionCall(
            self._services,
            self._settings,
            request,
            codec.subscription_id(id_),
            rest,
            is_secure=self._is_secure,
        )
        return await operation(call)

    def _jwks(self) -> Response:
        body = msgspec.json.encode(jwk_set(self._services.webhook_keys()))
        return Response(200, (*_JWKS_HEADERS, *SECURITY_HEADERS), body)


async def _put(call: SubscriptionCall) -> Response:
    spec = codec.spec_of(await call.fields(), call.settings)
    maker = call.check_new(spec)
    with call.cell_client() as cells:
        found = await call.ask(cells, lambda number: s.PutSubscription(number, spec, maker))
    assert isinstance(found, s.SubscriptionDescribed), f"{found} describes no subscription"
    if not found.is_new:
        call.check_management(found)
    return _described(call, found)


async def _get(call: SubscriptionCall) -> Response:
    with call.cell_client() as cells:
        return _described(call, await call.require_management(cells))


async def _delete(call: SubscriptionCall) -> Response:
    with call.cell_client() as cells:
        try:
            await call.require_management(cells)
            await call.ask(cells, s.DeleteSubscription)
        except SubscriptionError as error:
            # Nothing is deleted that may have come meanwhile: its rights were not checked.
            if error.status != 404:
                raise
    return _no_content()


async def _link(call: SubscriptionCall) -> Response:
    streams = codec.paths_of(await call.fields())
    for each in streams:
        call.require(each, Rights.GET)
    if not streams:
        raise invalid("streams: at least one is required")
    with call.cell_client() as cells:
        await call.require_management(cells)
        await call.ask(cells, lambda number: s.LinkStreams(number, streams))
    return _no_content()


async def _unlink(call: SubscriptionCall) -> Response:
    path = codec.checked_path(call.path)
    with call.cell_client() as cells:
        await call.require_management(cells)
        await call.ask(cells, lambda number: s.UnlinkStream(number, path))
    return _no_content()


async def _claim(call: SubscriptionCall) -> Response:
    worker = codec.worker_of(await call.fields())
    with call.cell_client() as cells:
        await call.require_management(cells)
        claimed = await call.ask(cells, lambda number: s.ClaimWake(number, worker))
    assert isinstance(claimed, s.WakeClaimed), f"{claimed} answers no claim"
    return _json(200, codec.shown_claim(claimed))


async def _settle(call: SubscriptionCall, action: s.WakeAction) -> Response:
    fields = await call.fields()
    wake_id, generation = codec.wake_of(fields)
    acks, done = codec.acks_of(fields), codec.is_done(fields)
    given = call.request.header(b"authorization") or b""
    has_token = given[: len(_BEARER)].lower() == _BEARER
    token = given[len(_BEARER) :].strip() if has_token else None

    def make(number: int) -> s.SettleWake:
        return s.SettleWake(number, action, token, wake_id, generation, acks, done)

    with call.cell_client() as cells:
        settled = await call.ask(cells, make)
    assert isinstance(settled, s.WakeSettled), f"{settled} answers no acknowledgement"
    if action is s.WakeAction.RELEASE:
        return _no_content()
    return _json(200, {"ok": True, "next_wake": settled.next_wake})


async def _callback(call: SubscriptionCall) -> Response:
    return await _settle(call, s.WakeAction.CALLBACK)


async def _ack(call: SubscriptionCall) -> Response:
    return await _settle(call, s.WakeAction.ACK)


async def _release(call: SubscriptionCall) -> Response:
    return await _settle(call, s.WakeAction.RELEASE)


_OF_SUBSCRIPTION: Mapping[str, _Operation] = {"GET": _get, "PUT": _put, "DELETE": _delete}
_SETTLING: Mapping[bytes, _Operation] = {
    b"callback": _callback,
    b"ack": _ack,
    b"release": _release,
}


def _described(call: SubscriptionCall, found: s.SubscriptionDescribed) -> Response:
    key = call.services.webhook_keys()[0]
    return _json(201 if found.is_new else 200, codec.shown(found, key))


def _json(status: int, content: object) -> Response:
    return json_response(status, content, (_NO_STORE, *SECURITY_HEADERS))


def _no_content() -> Response:
    return Response(204, SECURITY_HEADERS)


def _bad_method(request: Request, methods: tuple[str, ...]) -> SubscriptionError:
    allow = ((b"allow", ", ".join(methods).encode()),)
    text = f"not supported here: {request.method[:20]}"
    return SubscriptionError(405, "METHOD_NOT_ALLOWED", text, headers=allow)
