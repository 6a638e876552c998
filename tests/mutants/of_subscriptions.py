"""Mistakes in subscriptions: wakes, cursors, leases, destinations of webhooks."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

ACTOR = "actors/subscriptions/subscription.py"
POST = "transports/http/webhooks/post.py"
STATES = "tests/actors/subscriptions/test_subscription.py::"
CALLS = "tests/transports/http/webhooks/test_post.py::"
API = "tests/transports/http/durable/test_subscriptions.py::"

SUBSCRIPTION_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rights in one subscription are used for another of its id",
        Fault.WAKES,
        ACTOR,
        "if config and known != self._revision:",
        "if config and known < 0:",
        API + "test_a_subscription_that_changes_while_rights_are_checked[asyncio-delete]",
    ),
    Mutant(
        "a maker whose rights ended is told of streams",
        Fault.WAKES,
        ACTOR,
        "        if self._is_scope_known and scope == self._scope:\n",
        "        if self._is_scope_known:\n",
        STATES + "test_the_rights_of_a_maker_are_those_of_today",
    ),
    Mutant(
        "a client behind a proxy has the machine of the node called",
        Fault.WAKES,
        "transports/http/durable/subscriptions/app.py",
        "is_local = not (is_brought or self.services.is_controlled())",
        "is_local = not self.services.is_controlled()",
        API + "test_clients_that_a_proxy_brings_do_not_have_this_machine_called[asyncio-headers0]",
    ),
    Mutant(
        "silent receivers hold all slots of webhooks",
        Fault.WAKES,
        "node/webhooks/slots.py",
        "may_be_unproven = self._unproven_receivers[receiver] < free_unproven",
        "may_be_unproven = True",
        "tests/node/webhooks/test_slots.py::"
        "test_silent_receivers_leave_half_of_the_slots_to_those_that_answer",
    ),
    Mutant(
        "the first append to a new stream is not pending",
        Fault.WAKES,
        ACTOR,
        "StoredLink(True, False, s.BEFORE_FIRST, notice.incarnation)",
        "StoredLink(True, False, notice.tail, notice.incarnation)",
        STATES + "test_a_stream_that_comes_later_is_pending_from_its_first_record",
    ),
    Mutant(
        "a worker that is done acknowledges what it was not shown",
        Fault.WAKES,
        ACTOR,
        "effects.changes.append(self._links.change(link, acked=tail))",
        "effects.changes.append(self._links.change(link, acked=link.tail))",
        STATES + "test_done_acknowledges_what_was_sent",
    ),
    Mutant(
        "a wake that has ended is acknowledged",
        Fault.WAKES,
        ACTOR,
        "        if not is_current or not wake.id or request.wake_id != wake.id:\n",
        "        if not is_current:\n",
        STATES + "test_a_worker_that_goes_on_calls_back",
    ),
    Mutant(
        "streams that a node did not tell of before it died stay unseen",
        Fault.WAKES,
        ACTOR,
        "        yield from self._find_names(paths, self._does_match, sys.maxsize)\n",
        "",
        STATES + "test_records_that_it_was_not_told_of",
    ),
    Mutant(
        "a call that a restart interrupts is not made again",
        Fault.WAKES,
        ACTOR,
        "        if wake.phase is WakePhase.WOKEN and not wake.retry_at:\n",
        "        if wake.phase is WakePhase.CLAIMED and not wake.retry_at:\n",
        STATES + "test_everything_survives_a_restart",
    ),
    Mutant(
        "a worker that fails is called every second",
        Fault.WAKES,
        ACTOR,
        "delay_s = min(RETRY_S * 2**wake.failures, RETRY_S_MAX)",
        "delay_s = RETRY_S",
        STATES + "test_failures_are_repeated_later_and_later",
    ),
    Mutant(
        "a lease that was extended runs out all the same",
        Fault.WAKES,
        ACTOR,
        "wake.lease_until, wake.retry_at, wake.failures = now + self._lease_s, 0.0, 0",
        "wake.retry_at, wake.failures = 0.0, 0",
        STATES + "test_a_claim_that_is_not_kept_is_another_wake",
    ),
    Mutant(
        "two workers have the lease",
        Fault.WAKES,
        ACTOR,
        "        if wake.phase is WakePhase.CLAIMED:\n",
        "        if wake.phase is WakePhase.CLAIMED and wake.holder == request.worker:\n",
        STATES + "test_an_event_wakes_and_a_worker_claims",
    ),
    Mutant(
        "a cursor outlives its stream",
        Fault.WAKES,
        ACTOR,
        "        if link is not None and 0 < link.incarnation <= incarnation:\n",
        "        if link is not None and link.incarnation == 0:\n",
        STATES + "test_a_deleted_stream_loses_its_links",
    ),
    Mutant(
        "a cursor goes back",
        Fault.WAKES,
        ACTOR,
        "max(link.acked, 0) <= position <= link.tail",
        "0 <= position <= link.tail",
        STATES + "test_all_acks_are_checked_before_one_is_applied",
    ),
    Mutant(
        "a token that nobody made is taken",
        Fault.WAKES,
        "actors/subscriptions/tokens.py",
        "        if not hmac.compare_digest(mac, self._mac(id_, nonce, claims)):\n",
        "        if not mac:\n",
        STATES + "test_the_order_of_the_checks",
    ),
    Mutant(
        "a stream tells of its records before it has them all",
        Fault.WAKES,
        "actors/streams/stream.py",
        "m.StreamGrew(0, name, incarnation, self._bounds.tail)",
        "m.StreamGrew(0, name, incarnation, self._bounds.tail - 1)",
        STATES + "test_other_views_of_a_stream_wake_as_well",
    ),
    Mutant(
        "who may not read the streams manages the subscription",
        Fault.WAKES,
        "transports/http/durable/subscriptions/app.py",
        "return own is None or (scope is not None and set(scope) <= set(own))",
        "return own is None or scope is None or bool(own)",
        API + "test_rights",
    ),
    Mutant(
        "an address behind a name is not checked",
        Fault.WAKES,
        POST,
        "        if not may_connect(each, destination.network):\n",
        "        if not each:\n",
        CALLS + "test_every_address_is_checked_before_one_is_called",
    ),
    Mutant(
        "a name is looked up again when it is called",
        Fault.WAKES,
        POST,
        "return await anyio.connect_tcp(address, destination.port)",
        "return await anyio.connect_tcp(destination.host, destination.port)",
        CALLS + "test_a_name_is_looked_up_once_and_pinned",
    ),
    Mutant(
        "an answer is read to its end",
        Fault.WAKES,
        POST,
        "        left -= len(data)\n",
        "        left -= 0 * len(data)\n",
        CALLS + "test_an_endless_answer_is_cut",
    ),
)
