"""`/health` and `/ping`: does the process answer; `/ready`: may it be sent work
(docs/internals/architecture.md).

`/ready` answers this machine; others need the right `admin` in all streams or in all channels, as
everybody does for `/metrics`, and for `info` on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from millpond.actors.messages import Rights
from millpond.actors.store.interface import Health
from millpond.actors.store.repair.quarantine import Damage
from millpond.node.clock import ClockStatus
from millpond.node.ip import is_remote
from millpond.node.replica.interface import ReplicaInfo
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import (
    Response,
    ResponseWriter,
    json_response,
    plain_rejection,
)
from millpond.transports.server.interface import Principal

_PLAIN = ((b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"))
_NO_STORE = ((b"cache-control", b"no-store"),)
READING = ("GET", "HEAD")

RightsOf = Callable[[Principal], Rights | None]
"""The rights of a client in all streams, or in all channels; None: the client is unknown."""


def rejection_of(request: Request, rights_of: RightsOf | None) -> Response | None:
    """The rejection of a request; None: it is answered. `rights_of` None: no rights are needed,
    else the right admin."""
    if len(request.segments) != 1:
        return plain_rejection(Rejection.NOT_FOUND)
    if request.method not in READING:
        allow = ((b"allow", b"GET, HEAD"),)
        return json_response(
            405, {"code": "method", "message": "only GET and HEAD are supported"}, allow
        )
    if rights_of is None:
        return None
    rights = rights_of(request.principal)
    if rights is None:
        challenge = ((b"www-authenticate", b"Bearer"),)
        message = "unknown or missing access token (Authorization: Bearer)"
        return json_response(401, {"code": "authn", "message": message}, challenge)
    if Rights.ADMIN in rights:
        return None
    message = "the right admin in all streams or channels is required"
    return json_response(403, {"code": "permission_denied", "message": message})


class HealthApi:
    """The API of `/health` and `/ping`: 200 as long as the process answers."""

    name = "health"

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        refusal = rejection_of(request, None)
        return refusal or Response(200, _PLAIN, b"OK\n")

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return (
            None if reason in (Rejection.DRAINING, Rejection.TOO_MANY) else plain_rejection(reason)
        )


class ReadyApi:
    """The API of `/ready`: 200, or 503 with the reasons. `damages` are those of the store;
    `is_started`: all listeners are open. `warnings` of the clock and the replica do not make it
    503."""

    name = "ready"

    def __init__(
        self,
        rights_of: RightsOf,
        health: Health,
        damages: Sequence[Damage],
        is_started: Callable[[], bool],
        is_draining: Callable[[], bool],
        clock: Callable[[], ClockStatus],
        replica: Callable[[], ReplicaInfo | None],
    ) -> None:
        self._rights_of = rights_of
        self._health = health
        self._damages = damages
        self._is_started = is_started
        self._is_draining = is_draining
        self._clock = clock
        self._replica = replica

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        is_here = not is_remote(request.principal.address)  # probes have no tokens
        return rejection_of(request, None if is_here else self._rights_of) or self._state()

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return (
            None if reason in (Rejection.DRAINING, Rejection.TOO_MANY) else plain_rejection(reason)
        )

    def _state(self) -> Response:
        clock = self._clock()
        reasons = list(self._reasons(clock))
        content: dict[str, bool | list[str]] = {"ready": not reasons, "reasons": reasons}
        if warnings := [*clock.warnings, *self._replica_warnings()]:
            content["warnings"] = warnings
        return json_response(503 if reasons else 200, content, _NO_STORE)

    def _replica_warnings(self) -> Iterator[str]:
        """A node serves on while its replica is away."""
        replica = self._replica()
        if replica is not None and replica.is_away:
            yield f"replica: {replica.error}; {replica.lag_bytes} bytes wait"
        cold = None if replica is None else replica.cold
        if cold is not None and cold.error:
            yield f"cold streams: {cold.error}"
        if cold is not None and cold.damaged:
            count, first = len(cold.damaged), cold.damaged[0]
            yield f"cold streams: {count} damaged objects, the first is {first}"

    def _reasons(self, clock: ClockStatus) -> Iterator[str]:
        if self._is_draining():
            yield "draining"
        elif not self._is_started():
            yield "starting"
        if not self._health.is_writable:
            yield f"store: {self._health.reason}"
        if damages := self._damages:
            first = damages[0]
            yield f"damage: {len(damages)}; {first.where}: {first.text} (see millpond doctor)"
        if clock.have_ids_ended:
            yield "ids: they have ended; no message is accepted (see millpond doctor)"
