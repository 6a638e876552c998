"""The HTTP side of a node: its APIs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from millpond.actors.messages import Rights
from millpond.actors.runtime.supervisor import contain, contain_call
from millpond.actors.streams.settings import StreamCounters
from millpond.node.admin import StatusSources
from millpond.node.config import Config
from millpond.node.connections import Services
from millpond.node.http.health import HealthApi, ReadyApi
from millpond.node.http.metric_sources import MetricSources
from millpond.node.http.metrics import MetricsApi
from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.http import paths
from millpond.transports.http.active_request import ActiveRequest
from millpond.transports.http.app import Api, Application
from millpond.transports.http.cors import CrossOrigin
from millpond.transports.http.direct import DirectPort
from millpond.transports.http.durable import protocol as durable
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.subscriptions.interface import SubscriptionSettings
from millpond.transports.http.lazy_api import LazyApi
from millpond.transports.http.request import LISTENER, HttpLimits
from millpond.transports.server.interface import Principal, ServerConnection
from millpond.transports.server.pipelined import PipelinedConnection

if TYPE_CHECKING:
    from millpond.node.http.state_page import StatePage
    from millpond.node.web.login import WebLogin

PAGES = (
    *(paths.STATE, (*paths.STATE, b"")),
    *((b"",), (paths.CONSOLE,), (paths.CONSOLE, b"")),
)
"""The paths of pages for people."""
ACCEPTED_HEADERS = (
    *(b"accept", b"cache-control", b"content-encoding", b"last-event-id"),
    *(b"s2-basin", b"s2-format"),
    *durable.ALLOWED_HEADERS,
)
"""Request headers that pages of other origins may send."""
EXPOSED_HEADERS = (
    *(b"allow", b"content-encoding", b"retry-after", b"retry-after-ms", b"www-authenticate"),
    *durable.EXPOSED_HEADERS,
)
"""Response headers that pages of other origins may read, besides those that every page may."""


class HttpServices:
    """The HTTP side of a node: its APIs.

    `apis`: by the first segments of the path; further ones are added before `application`.
    `console` has the logins to the console.
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        sources: Callable[[], StatusSources],
        streams: StreamCounters,
        policy: BrowserPolicy,
        console: WebLogin | None = None,
    ) -> None:
        self._config = config
        self._cross_origin = CrossOrigin(policy, ACCEPTED_HEADERS, EXPOSED_HEADERS)
        self._services = services
        self._is_started = False
        metric_sources = MetricSources(
            status=sources,
            config=config,
            connections=lambda: services.registry.connections,
            listener_of=listener_of,
            http=services.http,
            streams=streams,
            states=services.states,
            schedules=services.schedules,
            stages=services.stages,
            transactions=services.transactions,
            groups=lambda: services.directory.groups,
            memory=services.memory,
            rustlog=services.rustlog_metrics,
            subscriptions=services.subscriptions,
        )
        ready = ReadyApi(
            self._rights_of,
            sources().store.health,
            sources().store.damages,
            lambda: self._is_started,
            lambda: services.is_draining,
            lambda: sources().clock,
            lambda: sources().replica,
        )
        self.apis: dict[tuple[bytes, ...], Api] = {
            (b"health",): HealthApi(),
            (b"ping",): HealthApi(),
            (b"ready",): ready,
            (b"metrics",): MetricsApi(metric_sources, self._rights_of),
            **dict.fromkeys(
                ((b"",), (paths.CONSOLE,)), LazyApi("console", partial(_console_api, console))
            ),
            paths.STATE: LazyApi("state", self._state_api),
            paths.PAGE: LazyApi("page", lambda: self._page),
            **dict.fromkeys(paths.S2, LazyApi("s2", self._s2_api)),
            paths.DURABLE: LazyApi("durable", self._durable_api),
            paths.TAILS: LazyApi("tails", self._tails_api),
            paths.REPLICA_FILES: LazyApi("replica-files", self._replica_files_api),
            paths.TRANSACTIONS: LazyApi("transactions", self._transactions_api),
        }

    @cached_property
    def _page(self) -> StatePage:
        from millpond.node.http.state_page import StatePage

        return StatePage()

    def _state_api(self) -> Api:
        from millpond.transports.http.state.app import StateApi

        return StateApi(self._services, self._page.front, self._config.http_heartbeat_s)

    def _s2_api(self) -> Api:
        from millpond.transports.http.s2.app import S2Api

        return S2Api(self._services)

    def _durable_api(self) -> Api:
        from millpond.transports.http.durable.app import DurableApi

        return DurableApi(self._services, self._durable())

    def _tails_api(self) -> Api:
        from millpond.transports.http.tails.app import TailsApi

        return TailsApi(self._services)

    def _replica_files_api(self) -> Api:
        from millpond.transports.http.tails.replica_files import ReplicaFilesApi

        return ReplicaFilesApi(self._services, self._services)

    def _transactions_api(self) -> Api:
        from millpond.transports.http.transactions.app import TransactionsApi

        return TransactionsApi(self._services)

    def _durable(self) -> DurableSettings:
        config = self._config
        return DurableSettings(
            long_poll_s=config.http_long_poll_s,
            heartbeat_s=config.http_heartbeat_s,
            is_secure=LISTENER in config.tls_names,
            messages_max=config.durable_messages_max,
            subscriptions=SubscriptionSettings(
                self._services.subscriptions.policy, config.public_url
            ),
        )

    def application(self) -> Application:
        """The ASGI application; it can be mounted into another one."""
        config = self._config
        limits = HttpLimits(
            url_bytes_max=config.http_url_bytes_max,
            header_bytes_max=config.http_header_bytes_max,
            body_bytes_max=config.http_body_bytes_max,
            body_s=config.http_body_s,
        )
        task_guard = partial(contain, "request/http")
        call_guard = partial(contain_call, "request/http")
        return Application(
            self._services,
            self.apis,
            task_guard,
            limits,
            call_guard,
            self._cross_origin,
            PAGES,
        )

    def started(self) -> None:
        """Report as ready: all listeners of the node are open."""
        self._is_started = True

    def _rights_of(self, principal: Principal) -> Rights | None:
        services = self._services
        if not services.knows(principal):
            return None
        everywhere = (services.authorize_stream(principal, b""), services.authorize(principal, b""))
        return reduce(or_, (each or Rights.NONE for each in everywhere))

    def close_requests(self) -> None:
        """End all requests."""
        for connection in list(self._services.registry.connections):
            if isinstance(connection, ActiveRequest | DirectPort):
                connection.close()


def _console_api(login: WebLogin | None) -> Api:
    from millpond.node.console.page import ConsoleApi

    return ConsoleApi(login)


def listener_of(connection: ServerConnection) -> str:
    """The listener of a connection; WebSocket counts as P2P."""
    match connection:
        case ActiveRequest() | DirectPort():
            return LISTENER
        case PipelinedConnection():
            return connection.listener
        case _:
            return "p2p"
