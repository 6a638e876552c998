"""Errors of subscriptions: a status, and `{"error":{"code","message"}}` (DSS-04)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamFailed
from millpond.actors.subscriptions.messages import SubscriptionRefusal, SubscriptionRefused
from millpond.transports.http.durable.errors import DurableError, error_of
from millpond.transports.http.response import Pairs, Response, json_response

_STATUSES = {
    SubscriptionRefusal.INVALID_REQUEST: 400,
    SubscriptionRefusal.TOKEN_INVALID: 401,
    SubscriptionRefusal.TOKEN_EXPIRED: 401,
    SubscriptionRefusal.SUBSCRIPTION_NOT_FOUND: 404,
}
_CONFLICT = HTTPStatus.CONFLICT.value


class SubscriptionError(Exception):
    """The answer to a request that nothing was done of. `details` are fields beside the message."""

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        details: Mapping[str, object] | None = None,
        headers: Pairs = (),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.details = details or {}
        self.headers = headers

    def response(self, headers: Pairs) -> Response:
        """The response, with the common headers."""
        error = {"code": self.code, "message": str(self), **self.details}
        return json_response(self.status, {"error": error}, (*self.headers, *headers))


def invalid(text: str) -> SubscriptionError:
    """400: the request cannot be read, or is beyond a limit."""
    return SubscriptionError(400, SubscriptionRefusal.INVALID_REQUEST.name, text)


def not_found() -> SubscriptionError:
    """404: there is nothing at this path."""
    code = SubscriptionRefusal.SUBSCRIPTION_NOT_FOUND.name
    return SubscriptionError(404, code, "nothing exists at this path")


def refusal(reply: SubscriptionRefused) -> SubscriptionError:
    """The error for a refusal by a subscription."""
    reason, details = reply.reason, dict[str, object]()
    if reason is SubscriptionRefusal.ALREADY_CLAIMED:
        details = {"current_holder": reply.holder, "generation": reply.generation}
    status = _STATUSES.get(reason, _CONFLICT)
    headers: Pairs = ((b"www-authenticate", b"Bearer"),) if status == 401 else ()
    return SubscriptionError(status, reason.name, reply.text, details, headers)


def failure(reply: StreamFailed | Failed) -> SubscriptionError:
    """The error for a refusal by the parts that carry requests to a subscription."""
    if reply.code is Code.BUFFER_FULL:
        return unavailable("too many requests wait for this subscription")
    return from_durable(error_of(reply))


def unavailable(text: str) -> SubscriptionError:
    """503: try again."""
    return SubscriptionError(503, "UNAVAILABLE", text, headers=((b"retry-after", b"1"),))


def from_durable(error: DurableError) -> SubscriptionError:
    """An error of streams in the form of subscriptions."""
    return SubscriptionError(error.status, error.code.upper(), str(error), headers=error.headers)
