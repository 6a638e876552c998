"""The API of subscriptions: which request is which operation, and who may make it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import anyio.lowlevel
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
    unavailable,
)
from millpond.transports.http.durable.subscriptions.interface import (
    SubscriptionNodeServices,
    SubscriptionSettings,
)
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, json_response
from millpond.transports.http.webhooks.destination import WebhookPolicy, is_this_machine
from millpond.transports.http.webhooks.signature import jwk_set

_BEARER = b"bearer "
_JWKS_HEADERS = (
    (b"content-type", b"application/jwk-set+json"),
    (b"cache-control", b"public, max-age=300"),
)
_OF_PROXIES = (
    *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    b"x-real-ip",
)
"""Headers that tell of a proxy in front of the node."""
_NO_STORE = (b"cache-control", b"no-store")
_TRIES = 8
"""A subscription that changes more often while its links are read is not managed."""
_Operation = Callable[["SubscriptionCall"], Awaitable[Response]]


class _Changed(Exception):
    """The subscription has changed since the client's rights were checked: check them again."""


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

    @property
    def policy(self) -> WebhookPolicy:
        """The destinations that this client may name. Only a client of this machine may name this
        machine: one that a proxy brings, or that has its rights from access rules, is perhaps
        elsewhere."""
        policy, request = self.settings.policy, self.request
        if not policy.is_local:
            return policy
        is_brought = any(request.header(each) is not None for each in _OF_PROXIES)
        is_local = not (is_brought or self.services.is_controlled()) and is_this_machine(
            request.header(b"host") or b""
        )
        return policy if is_local else msgspec.structs.replace(policy, is_local=False)

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
            case s.SubscriptionRefused(reason=s.SubscriptionRefusal.CHANGED):
                raise _Changed
            case s.SubscriptionRefused():
                raise refusal(reply)
            case StreamFailed() | Failed():
                raise failure(reply)
            case _:
                return reply

    async def pages(
        self, cells: CellClient, *, is_explicit: bool = False
    ) -> AsyncIterator[s.SubscriptionDescribed]:
        """The subscription, once for each page of its links, for a client that may manage it: it
        may read all that the subscription follows, and append to the wake stream.

        Raises SubscriptionError (401, 403, 404), and _Changed if it does between two pages.
        """
        if not self.is_known:
            raise self.denied()
        after: bytes | None = None
        revision: int | None = None
        while True:
            describe = partial(_describe, after=after, is_explicit=is_explicit)
            found = await self.ask(cells, describe)
            assert isinstance(found, s.SubscriptionDescribed), f"{found} describes no subscription"
            if revision not in (None, found.revision):
                raise _Changed
            if revision is None:
                self._check_rights(found)
            for each in found.links:
                if each.is_explicit:  # others are within the maker's scope
                    self.require(each.path, Rights.GET)
            yield found
            after, revision = found.next, found.revision
            if after is None:
                return
            await anyio.lowlevel.checkpoint()

    async def manage(
        self, cells: CellClient, make: Callable[[int, int], s.ManagingRequest]
    ) -> CellReply:
        """The reply to a request that needs rights in all that the subscription follows; `make`
        takes a number and the revision. Raises SubscriptionError."""
        for _ in range(_TRIES):
            try:
                async for found in self.pages(cells, is_explicit=True):
                    revision = found.revision
                return await self.ask(cells, partial(_revised, make, revision))
            except _Changed:
                await anyio.lowlevel.checkpoint()
        raise unavailable("the subscription changes all the time")

    async def view(self, cells: CellClient) -> tuple[s.SubscriptionDescribed, list[bytes]]:
        """The subscription, and the pages of its links as JSON. Raises SubscriptionError."""
        for _ in range(_TRIES):
            try:
                pages = []
                async for found in self.pages(cells):
                    pages.append(codec.link_page(found.links))
                return found, pages
            except _Changed:
                await anyio.lowlevel.checkpoint()
        raise unavailable("the subscription changes all the time")

    def _check_rights(self, found: s.SubscriptionDescribed) -> None:
        """Check the rights in all but the links. Raises SubscriptionError (401, 403)."""
        self._check_spec(found.spec)
        if found.spec.pattern is not None and not self._covers(found.maker.scope):
            raise self.denied()

    def check_new(self, spec: s.SubscriptionSpec) -> s.Maker:
        """The maker of a subscription like this. Raises SubscriptionError (401, 403)."""
        self._check_spec(spec)
        scope = self.services.stream_scope(self.request.principal)
        if spec.pattern is not None and scope == ():
            raise self.denied()
        credentials = self.services.maker_credentials(self.request.principal)
        return s.Maker(self.origin, scope, credentials)

    def _check_spec(self, spec: s.SubscriptionSpec) -> None:
        for each in spec.streams:
            self.require(each, Rights.GET)
        if spec.wake_stream is not None:
            self.require(spec.wake_stream, Rights.PUT)

    def _covers(self, scope: tuple[str, ...] | None) -> bool:
        """True: this client may read whatever the maker could."""
        own = self.services.stream_scope(self.request.principal)
        return own is None or (scope is not None and set(scope) <= set(own))


def _describe(number: int, after: bytes | None, *, is_explicit: bool) -> s.DescribeSubscription:
    return s.DescribeSubscription(number, after, is_explicit)


def _revised(
    make: Callable[[int, int], s.ManagingRequest], revision: int, number: int
) -> s.ManagingRequest:
    return make(number, revision)


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
    spec = codec.spec_of(await call.fields(), call.policy)
    maker = call.check_new(spec)
    with call.cell_client() as cells:
        found = await call.ask(cells, lambda number: s.PutSubscription(number, spec, maker))
        assert isinstance(found, s.SubscriptionDescribed), f"{found} describes no subscription"
        if found.is_new and found.next is None:
            return _described(call, found, [codec.link_page(found.links)], is_new=True)
        if not found.is_new:
            # It acts for the client that has put it last: its rights may be the longer ones.
            await call.manage(
                cells,
                lambda number, revision: s.ChangeMaker(number, revision, maker=maker),
            )
        shown, links = await call.view(cells)
        return _described(call, shown, links, is_new=found.is_new)


async def _get(call: SubscriptionCall) -> Response:
    with call.cell_client() as cells:
        return _described(call, *await call.view(cells))


async def _delete(call: SubscriptionCall) -> Response:
    with call.cell_client() as cells:
        try:
            await call.manage(cells, s.DeleteSubscription)
        except SubscriptionError as error:
            if error.status != 404:
                raise
    return _no_content()


async def _link(call: SubscriptionCall) -> Response:
    streams = codec.paths_of(await call.fields())
    for each in streams:
        call.require(each, Rights.GET)
    if not streams:
        raise invalid("streams: at least one is required")

    def make(number: int, revision: int) -> s.LinkStreams:
        return s.LinkStreams(number, revision, streams=streams)

    with call.cell_client() as cells:
        await call.manage(cells, make)
    return _no_content()


async def _unlink(call: SubscriptionCall) -> Response:
    path = codec.checked_path(call.path)

    def make(number: int, revision: int) -> s.UnlinkStream:
        return s.UnlinkStream(number, revision, stream=path)

    with call.cell_client() as cells:
        await call.manage(cells, make)
    return _no_content()


async def _claim(call: SubscriptionCall) -> Response:
    worker = codec.worker_of(await call.fields())

    def make(number: int, revision: int) -> s.ClaimWake:
        return s.ClaimWake(number, revision, worker=worker)

    with call.cell_client() as cells:
        claimed = await call.manage(cells, make)
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


def _described(
    call: SubscriptionCall,
    found: s.SubscriptionDescribed,
    links: list[bytes],
    *,
    is_new: bool = False,
) -> Response:
    key = call.services.webhook_keys()[0]
    return _json(201 if is_new else 200, codec.shown(found, links, key))


def _json(status: int, content: object) -> Response:
    return json_response(status, content, (_NO_STORE, *SECURITY_HEADERS))


def _no_content() -> Response:
    return Response(204, SECURITY_HEADERS)


def _bad_method(request: Request, methods: tuple[str, ...]) -> SubscriptionError:
    allow = ((b"allow", ", ".join(methods).encode()),)
    text = f"not supported here: {request.method[:20]}"
    return SubscriptionError(405, "METHOD_NOT_ALLOWED", text, headers=allow)
