"""An API that is made with its first request: its modules take as long to load as half of the
node's start."""

from __future__ import annotations

from collections.abc import Callable

from millpond.transports.http.app import Api
from millpond.transports.http.direct import DirectApi, DirectOperation
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Pairs, Response, ResponseWriter


class LazyApi:
    """The API that `make` makes, once. Implements `app.Api` and `direct.DirectApi`."""

    def __init__(self, name: str, make: Callable[[], Api]) -> None:
        self.name = name
        self._make = make
        self._api: Api | None = None

    def _made(self) -> Api:
        if self._api is None:
            self._api = self._make()
        return self._api

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response | None:
        return await self._made()(request, writer)

    def direct_operation(self, head: RequestHead, cors: Pairs) -> DirectOperation | None:
        """The API's own; None for one that has no direct requests."""
        api = self._made()
        return api.direct_operation(head, cors) if isinstance(api, DirectApi) else None

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """The API's own rejection."""
        return self._made().reject(reason, delay_ms)
