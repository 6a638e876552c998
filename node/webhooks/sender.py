"""The sender of webhooks: it makes the requests that subscriptions ask for, so many at once.

Slow receivers do not keep the others waiting (`node.webhooks.slots`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from millpond.actors.messages import CellMessage, Port, Reply
from millpond.actors.subscriptions.messages import Delivery, DeliveryFinished, DeliveryOutcome
from millpond.node.webhooks.slots import DeliverySlots
from millpond.transports.http.webhooks.destination import (
    UrlRejected,
    WebhookPolicy,
    destination_of,
)
from millpond.transports.http.webhooks.signature import HEADER, WebhookKey

if TYPE_CHECKING:
    import ssl

    from millpond.transports.http.webhooks.post import Resolve

log = logging.getLogger(__name__)


class WebhookSender(Port):
    """The port that subscriptions send deliveries to. Each is answered by `DeliveryFinished`.

    `wall` is the time of signatures, in seconds since 1970; `at_once` the most requests under way.
    """

    __slots__ = (
        *("_context", "_has_work", "_key", "_policy", "_post", "_resolve", "_slots"),
        *("_version", "_wall", "number", "received_at"),
    )

    def __init__(
        self,
        post: Callable[[bytes, CellMessage], None],
        policy: WebhookPolicy,
        at_once: int,
        version: Callable[[], str],
        wall: Callable[[], float],
        resolve_name: Resolve | None = None,
    ) -> None:
        self.number = 0
        self.received_at = 0.0
        self._post = post
        self._policy = policy
        self._slots = DeliverySlots(at_once)
        self._version = version
        self._wall = wall
        self._resolve = resolve_name
        self._has_work: anyio.Event | None = None
        self._key: Callable[[], WebhookKey]
        self._context: ssl.SSLContext | None = None

    def open(self, tasks: TaskGroup, key: Callable[[], WebhookKey]) -> None:
        """Make requests from now on, in `tasks`, signed with `key`."""
        self._key = key
        self._has_work = anyio.Event()
        self._has_work.set()  # there may be some already
        tasks.start_soon(self._start_deliveries, tasks)

    @property
    def waiting(self) -> int:
        """Deliveries that wait for their turn."""
        return self._slots.waiting

    # Port: called by cells.

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        # Others are refusals of deliveries whose changes are lost: their cell is built anew.
        for each in replies:
            if isinstance(each, Delivery):
                self._slots.add(each)

    def flush(self) -> None:
        if self._has_work is not None:
            self._has_work.set()

    async def _start_deliveries(self, tasks: TaskGroup) -> None:
        """Start the tasks: `flush` is called outside of any task."""
        while self._has_work is not None:
            await self._has_work.wait()
            self._has_work = anyio.Event()
            while (delivery := self._slots.start()) is not None:
                tasks.start_soon(self._deliver, delivery)

    async def _deliver(self, delivery: Delivery) -> None:
        outcome, error = DeliveryOutcome.FAILED, "the node failed to make the call"
        began = anyio.current_time()
        try:
            outcome, error = await self._outcome(delivery)
        except Exception:  # a task of the node: one delivery must not end it
            log.exception("webhook crashed: subscription=%r", delivery.id)
        finally:
            took_s = anyio.current_time() - began
            is_failed = outcome is DeliveryOutcome.FAILED
            self._slots.finish(delivery, took_s, is_failed=is_failed)
        self._post(delivery.cell, DeliveryFinished(delivery.number, outcome, error))
        self.flush()

    async def _outcome(self, delivery: Delivery) -> tuple[DeliveryOutcome, str]:
        """The outcome of a delivery, and the reason of a failure."""
        # Imported for the first delivery: most nodes make none.
        from millpond.transports.http.webhooks.notification import notification, outcome_of
        from millpond.transports.http.webhooks.post import DeliveryFailed, post, resolve

        key = self._key()
        body = notification(delivery)
        headers = (
            (b"content-type", b"application/json"),
            (b"user-agent", f"millpond/{self._version()}".encode()),
            (HEADER, key.header(int(self._wall()), body)),
        )
        try:
            destination = destination_of(delivery.url, self._policy)
            answer = await post(
                destination,
                headers,
                body,
                timeout_s=delivery.timeout_s,
                tls=self._tls,
                resolve_name=self._resolve or resolve,
            )
        except (UrlRejected, DeliveryFailed) as error:
            log.info("webhook failed: subscription=%r error=%s", delivery.id, error)
            return DeliveryOutcome.FAILED, str(error)
        outcome = outcome_of(answer)
        if outcome is DeliveryOutcome.FAILED:
            log.info("webhook refused: subscription=%r status=%d", delivery.id, answer.status)
            return outcome, f"the receiver answered {answer.status}"
        return outcome, ""

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        return self._context
