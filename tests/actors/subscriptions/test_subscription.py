"""Subscriptions by their states: wakes, leases, fencing, cursors (DSS-07 to DSS-21, DSS-34)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed, StreamFailed
from millpond.actors.store.changes import Change, MetadataSet
from millpond.actors.store.interface import Commit, Fault
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.names import stream_cell, subscription_cell
from millpond.actors.streams.stream import Stream
from millpond.actors.subscriptions import messages as s
from millpond.actors.subscriptions.context import SubscriptionLimits
from millpond.actors.subscriptions.status import SubscriptionStatus
from millpond.actors.subscriptions.stream_links import LINK, StoredLink
from millpond.actors.subscriptions.subscription import (
    EVENT_RETRY_S,
    LINKS_A_TURN,
    NAMES_A_TURN,
    RECHECK_S,
)
from millpond.actors.subscriptions.tail_lookups import AT_ONCE
from millpond.actors.subscriptions.tokens import TOKEN_S
from millpond.node.access.grants import is_in_scope
from tests.actors.streams.harness import SlowMemory
from tests.actors.subscriptions.harness import (
    HOOK,
    MAKER,
    PULL,
    SUB,
    SubscriptionHarness,
    settling,
    spec,
    subscriptions,
)

DONE, ACCEPTED, FAILED = (
    s.DeliveryOutcome.DONE,
    s.DeliveryOutcome.ACCEPTED,
    s.DeliveryOutcome.FAILED,
)
ACK, RELEASE, CALLBACK = s.WakeAction.ACK, s.WakeAction.RELEASE, s.WakeAction.CALLBACK
Refusal = s.SubscriptionRefusal
EVENT = b"events/a"


class GroupMemory(SlowMemory):
    """Writes share one commit until the test finishes it, as on a disk."""

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:  # type: ignore[override]
        commit = super().write(name, changes)
        if commit is not None and len(self.commits) > 1:
            self.commits.pop()
        return self.commits[0] if commit is not None else None


@pytest.fixture
def node() -> Iterator[SubscriptionHarness]:
    with subscriptions() as opened:
        yield opened


@pytest.fixture
def pull(node: SubscriptionHarness) -> SubscriptionHarness:
    """With a pull-wake subscription and its wake stream."""
    node.put(b"wake")
    node.subscribe(PULL)
    return node


# Configuration.


def test_the_same_again_changes_nothing_and_another_one_is_refused(
    node: SubscriptionHarness,
) -> None:
    made = node.subscribe()
    assert made.is_new and not made.links
    node.put(EVENT, b"1")
    node.delivery()
    again = node.subscribe()
    assert not again.is_new and again.created_ms == made.created_ms
    assert node.deliveries() == []
    node.tell(s.LinkStreams(0, streams=(b"other",)), s.SubscriptionDone)
    assert not node.subscribe().is_new, "links that came later do not count"
    for other in (
        spec(pattern=b"events/**"),
        spec(streams=[b"x"]),
        spec(lease_ms=1000),
        spec(description="d"),
        PULL,
    ):
        request = s.PutSubscription(0, other, MAKER)
        assert node.refusal(request) is Refusal.SUBSCRIPTION_ALREADY_EXISTS


def test_a_subscription_begins_at_the_tails(node: SubscriptionHarness) -> None:
    node.put(EVENT, b"1", b"2")
    node.put(b"events/empty")
    node.put(b"other", b"1")
    made = node.subscribe(spec(streams=[b"missing", b"other"]))
    assert {each.path: (each.acked, each.is_explicit) for each in made.links} == {
        EVENT: (2, False),
        b"events/empty": (0, False),
        b"missing": (0, True),
        b"other": (1, True),
    }
    assert node.deliveries() == []
    node.post_to(b"other", b"2")
    assert [each.path for each in node.delivery().links if each.has_pending] == [b"other"]


def test_a_stream_that_comes_later_is_pending_from_its_first_record(
    node: SubscriptionHarness,
) -> None:
    node.subscribe()
    node.put(EVENT)
    assert node.cursors() == {} and node.deliveries() == []
    node.post_to(EVENT, b"1")
    (link,) = node.delivery().links
    assert (link.path, link.acked, link.tail, link.has_pending) == (EVENT, -1, 1, True)
    node.put(b"events/b", b"1")
    assert node.cursors() == {EVENT: -1, b"events/b": -1}


def test_what_no_append_is_wakes_nobody(node: SubscriptionHarness) -> None:
    node.put(EVENT, b"1")
    node.subscribe()
    node.put(b"events/b")
    node.one(d.DurableAppend(0, [], closes=True), d.DurableAppended, EVENT)
    assert node.deliveries() == []


def test_other_views_of_a_stream_wake_as_well(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.create(EVENT)
    node.append(b"x", name=EVENT)
    assert node.delivery().links[0].tail == 1


def test_a_fork_with_records_comes_later(node: SubscriptionHarness) -> None:
    node.put(b"source", b"1", b"2")
    node.subscribe()
    fork = d.ForkSource(b"source", None, 0)
    made = d.CreateSpec(None, None, False, [], fork)
    request = d.Fork(0, stream_cell(EVENT), made, None, [], 0)
    reply = node.ask_cell(stream_cell(b"source"), request)
    assert isinstance(reply, d.DurableCreated) and reply.tail == 2
    assert [(each.path, each.acked, each.tail) for each in node.delivery().links] == [
        (EVENT, -1, 2)
    ]


def test_a_scope_keeps_a_pattern_out_of_streams(node: SubscriptionHarness) -> None:
    node.put(b"a/1", b"1")
    node.put(b"b/1", b"1")
    private = b"chat/" + b"a" * 52
    node.create(private)
    node.subscribe(spec(pattern=b"**"), maker=s.Maker("", ("a/*",)))
    assert node.cursors() == {b"a/1": 1}
    node.put(b"a/2", b"1")
    node.put(b"b/2", b"1")
    assert node.cursors() == {b"a/1": 1, b"a/2": -1}
    node.subscribe(spec(pattern=b"**"), b"all")
    assert private not in node.cursors(b"all")


def test_the_rights_of_a_maker_are_those_of_today(node: SubscriptionHarness) -> None:
    maker = s.Maker("http://node", ("a/*", "b/*"), b"sealed")
    node.put(b"a/1", b"1")
    node.put(b"b/1", b"1")
    node.subscribe(spec(pattern=b"**"), maker=maker)
    node.post_to(b"b/1", b"2")
    first = node.delivery()
    assert [each.path for each in first.links] == [b"a/1", b"b/1"]
    # It may no longer read b: nothing of b is shown, and nothing of b wakes.
    node.scopes[b"sealed"] = ("a/*",)
    node.finish(first, FAILED)
    node.advance(2)
    assert node.deliveries() == [], "all that was new is hidden"
    assert node.cursors() == {b"a/1": 1} and node.found().maker.scope == ("a/*",)
    node.put(b"b/2", b"1")
    node.post_to(b"b/1", b"3")
    node.post_to(b"a/1", b"2")
    second = node.delivery()
    assert [each.path for each in second.links] == [b"a/1"]
    node.finish(second, DONE)
    # It may again: its positions are where they were, and what came meanwhile is new.
    del node.scopes[b"sealed"]
    node.post_to(b"b/2", b"2")
    third = node.delivery()
    assert {each.path: (each.acked, each.tail) for each in third.links} == {
        b"a/1": (2, 2), b"b/1": (1, 3), b"b/2": (-1, 2)
    }  # fmt: skip


def test_rights_that_end_while_the_node_is_down(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:
        node.put(EVENT, b"1")
        node.subscribe(maker=s.Maker("", None, b"sealed"))
        node.post_to(EVENT, b"2")
        node.scopes[b"sealed"] = ()
        node.restart()
        assert node.deliveries() == [] and node.cursors() == {}
        del node.scopes[b"sealed"]
        node.restart()
        assert [each.acked for each in node.delivery().links] == [1]


def test_links_by_name_stay_when_the_maker_may_not_read_them(node: SubscriptionHarness) -> None:
    node.put(EVENT, b"1")
    node.subscribe(spec(streams=[EVENT]), maker=s.Maker("", None, b"sealed"))
    node.scopes[b"sealed"] = ()
    assert node.cursors() == {EVENT: 1}
    node.tell(s.UnlinkStream(0, stream=EVENT), s.SubscriptionDone)
    assert node.cursors() == {}
    node.tell(s.LinkStreams(0, streams=(EVENT,)), s.SubscriptionDone)
    assert node.cursors() == {EVENT: 1}


def test_a_subscription_acts_for_the_client_that_put_it_last(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:
        node.put(EVENT, b"1")
        node.subscribe(maker=s.Maker("http://node", None, b"old"))
        node.scopes[b"old"] = ()
        assert node.cursors() == {}
        other = s.Maker("http://elsewhere", None, b"new")
        node.tell(s.ChangeMaker(0, node.found().revision, maker=other), s.SubscriptionDone)
        assert node.cursors() == {EVENT: 1}
        known = s.Maker("http://node", None, b"new")
        assert node.found().maker == known, "workers know the old URL"
        node.restart()
        assert node.found().maker == known and node.cursors() == {EVENT: 1}


def test_what_a_client_was_shown_is_what_it_manages(pull: SubscriptionHarness) -> None:
    """Rights are checked in one request; another one acts only on what they were checked for."""
    pull.put(EVENT, b"1")
    checked = pull.found().revision

    def refused() -> bool:
        requests: list[s.ManagingRequest] = [
            s.ClaimWake(0, checked, worker="w"),
            s.LinkStreams(0, checked, streams=(b"x",)),
            s.UnlinkStream(0, checked, stream=b"x"),
            s.ChangeMaker(0, checked, maker=MAKER),
            s.DeleteSubscription(0, checked),
        ]
        return all(pull.refusal(each) is Refusal.CHANGED for each in requests)

    # Streams that its pattern brings are within the scope that was checked.
    pull.put(b"events/later", b"1")
    assert pull.found().revision == checked
    pull.tell(s.LinkStreams(0, checked, streams=(b"secret",)), s.SubscriptionDone)
    assert refused()
    checked = pull.found().revision
    pull.tell(s.UnlinkStream(0, checked, stream=b"secret"), s.SubscriptionDone)
    assert refused()
    checked = pull.found().revision
    pull.tell(s.DeleteSubscription(0, checked), s.SubscriptionDone)
    pull.subscribe(PULL)
    assert refused()
    pull.post_to(EVENT, b"2")
    claim = s.ClaimWake(0, pull.found().revision, worker="w")
    pull.tell(claim, s.WakeClaimed)


def test_the_status_for_an_operator(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:

        def status() -> SubscriptionStatus:
            return node.statuses[subscription_cell(SUB)]()

        node.put(EVENT, b"1")
        node.put(b"events/b", b"1")
        assert node.statuses == {}
        node.subscribe()
        assert (status().state, status().streams, status().lag) == ("idle", 2, 0)
        node.post_to(EVENT, b"2", b"3")
        node.finish(node.delivery(), FAILED, "x" * 1000)
        found = status()
        assert (found.state, found.pending, found.lag, found.failures) == ("woken", 1, 2, 1)
        assert found.is_failed and found.error == "x" * 200 and found.retry_at > node.now
        node.restart()
        assert status().error == "x" * 200, "it survives"
        node.advance(2)
        node.finish(node.delivery(), DONE)
        assert (status().state, status().lag, status().error) == ("idle", 0, "")
        node.tell(s.DeleteSubscription(0), s.SubscriptionDone)
        assert node.statuses == {}


def test_the_status_of_an_event_that_cannot_be_appended(node: SubscriptionHarness) -> None:
    node.subscribe(PULL)
    node.put(EVENT, b"1")
    found = node.statuses[subscription_cell(SUB)]()
    assert found.is_failed and "wake stream" in found.error and found.target == "wake"
    node.put(b"wake")
    node.advance(EVENT_RETRY_S)
    assert node.statuses[subscription_cell(SUB)]().error == ""
    node.claim("w1")
    found = node.statuses[subscription_cell(SUB)]()
    assert (found.state, found.holder) == ("claimed", "w1")


# Links.


def test_descriptions_have_pages(node: SubscriptionHarness) -> None:
    names = [b"events/%04d" % number for number in range(2 * s.PAGE_MAX + 1)]
    for each in names:
        node.create(each)
    node.subscribe(spec(streams=[names[3], b"x"]))
    assert [each.path for each in node.found().links] == [*names, b"x"]
    pages, after = [], None
    while True:
        found = node.tell(s.DescribeSubscription(0, after), s.SubscriptionDescribed)
        pages.append(len(found.links))
        after = found.next
        if after is None:
            break
    assert pages == [s.PAGE_MAX, s.PAGE_MAX, 2]
    explicit = s.DescribeSubscription(0, is_explicit=True)
    found = node.tell(explicit, s.SubscriptionDescribed)
    assert [each.path for each in found.links] == [names[3], b"x"] and found.next is None


def test_streams_that_wait_longest_are_shown_first(node: SubscriptionHarness) -> None:
    count = s.SHOWN_MAX + 100
    for number in range(count):
        node.create(b"events/%04d" % number)
    node.subscribe()
    node.append(b"x", name=b"events/%04d" % (count - 1))
    wake = node.delivery()
    for number in range(count - 1):
        node.append(b"x", name=b"events/%04d" % number)
    node.finish(wake, DONE)
    wake = node.delivery()
    assert len(wake.links) == s.SHOWN_MAX and all(each.has_pending for each in wake.links)
    node.append(b"x", name=b"events/0000")
    node.finish(wake, DONE)
    wake = node.delivery()
    assert [each.path for each in wake.links if each.has_pending] == [
        b"events/0000", *(b"events/%04d" % number for number in range(s.SHOWN_MAX, count - 1))
    ]  # fmt: skip


def test_explicit_links(node: SubscriptionHarness) -> None:
    node.put(EVENT, b"1")
    node.put(b"manual/b", b"1")
    node.subscribe()
    node.tell(s.LinkStreams(0, streams=(EVENT, b"manual/b")), s.SubscriptionDone)
    assert node.cursors() == {EVENT: 1, b"manual/b": 1}
    node.post_to(b"manual/b", b"2")
    node.finish(node.delivery(), DONE)
    assert node.cursors()[b"manual/b"] == 2
    node.tell(s.LinkStreams(0, streams=(b"manual/b",)), s.SubscriptionDone)
    assert node.cursors()[b"manual/b"] == 2, "one that is linked keeps its cursor"
    for path in (EVENT, b"manual/b", b"absent"):
        node.tell(s.UnlinkStream(0, stream=path), s.SubscriptionDone)
    (link,) = node.found().links
    assert (link.path, link.is_explicit, link.acked) == (EVENT, False, 1)
    node.post_to(b"manual/b", b"3")
    assert node.deliveries() == []


def test_a_deleted_stream_loses_its_links(node: SubscriptionHarness) -> None:
    node.put(EVENT, b"1", b"2")
    node.subscribe(spec(streams=[b"manual"]))
    node.put(b"manual", b"1")
    node.finish(node.delivery(), DONE)
    for name in (EVENT, b"manual"):
        node.one(m.Delete(0), m.Done, name)
    assert node.cursors() == {}
    node.put(b"manual", b"1")
    node.put(EVENT, b"1")
    assert node.cursors() == {EVENT: -1}
    assert node.delivery().links[0].tail == 1


def test_an_expired_stream_loses_its_links(node: SubscriptionHarness) -> None:
    made = d.CreateSpec(b"application/json", d.Lifetime(10), False, [b"1"])
    node.one(d.DurableCreate(0, made), d.DurableCreated, EVENT)
    node.subscribe()
    assert node.cursors() == {EVENT: 1}
    node.advance(20)
    assert node.cursors() == {}


# Webhooks.


def test_done_acknowledges_what_was_sent(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    first = node.delivery()
    assert first.wake_id.startswith("w_") and len(first.wake_id) == 26
    assert (first.generation, first.url, first.origin) == (1, HOOK.url, "http://node")
    node.post_to(EVENT, b"2")
    assert node.deliveries() == [], "one at a time"
    node.finish(first, DONE)
    second = node.delivery()
    assert node.cursors() == {EVENT: 1}, "the snapshot, and no more"
    assert (second.generation, second.links[0].tail) == (2, 2)
    assert second.wake_id != first.wake_id
    node.finish(second, DONE)
    assert node.cursors() == {EVENT: 2} and node.deliveries() == []
    node.advance(3600)
    assert node.deliveries() == []


def test_a_worker_that_goes_on_calls_back(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1", b"2")
    wake = node.delivery()
    node.finish(wake)
    node.advance(29)
    request = settling(wake, None, (EVENT, 1))
    assert node.tell(request, s.WakeSettled).next_wake is False
    assert node.cursors() == {EVENT: 1}
    node.advance(29)
    assert node.deliveries() == [], "the lease was extended"
    request = settling(wake, None, (EVENT, 2), done=True)
    assert node.tell(request, s.WakeSettled).next_wake is False
    assert node.refusal(request) is Refusal.FENCED
    node.post_to(EVENT, b"3")
    second = node.delivery()
    assert second.generation == 2
    assert node.refusal(settling(wake, None, (EVENT, 3), done=True)) is Refusal.FENCED
    assert node.cursors() == {EVENT: 2}


def test_done_without_all_acks_leads_to_another_wake(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1", b"2")
    wake = node.delivery()
    node.finish(wake)
    settled = node.tell(settling(wake, None, (EVENT, 1), done=True), s.WakeSettled)
    assert settled.next_wake is True
    assert node.delivery().generation == 2


def test_a_callback_before_the_answer(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    wake = node.delivery()
    node.tell(settling(wake, None, (EVENT, 1), done=True), s.WakeSettled)
    node.post_to(EVENT, b"2")
    assert node.deliveries() == [], "the first request is still under way"
    node.finish(wake, DONE)
    second = node.delivery()
    assert second.generation == 2 and node.cursors() == {EVENT: 1}
    node.finish(wake, DONE)
    assert node.cursors() == {EVENT: 1}, "an answer that came before"


def test_a_lease_that_runs_out_is_another_wake(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    wake = node.delivery()
    node.finish(wake)
    node.advance(30.01)
    second = node.delivery()
    assert second.generation == 2 and node.counts.leases_expired == 1
    assert node.refusal(settling(wake, None, (EVENT, 1))) is Refusal.FENCED
    node.finish(second, DONE)
    node.advance(100)
    assert node.deliveries() == []


def test_a_slow_worker_has_no_second_request(node: SubscriptionHarness) -> None:
    node.subscribe(spec(lease_ms=1000))
    node.put(EVENT, b"1")
    wake = node.delivery()
    assert wake.timeout_s == 1.0
    node.advance(5)
    assert node.deliveries() == []
    node.finish(wake)
    node.advance(0.9)
    assert node.tell(settling(wake, None, (EVENT, 1), done=True), s.WakeSettled)


def test_failures_are_repeated_later_and_later(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    wake = node.delivery()
    tokens = {wake.token}
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        node.finish(wake, FAILED)
        assert node.found().is_failed and node.counts.failed
        node.advance(0.79 * expected)
        assert node.deliveries() == []
        node.advance(0.42 * expected)
        wake, before = node.delivery(), wake
        assert (wake.wake_id, wake.generation) == (before.wake_id, before.generation)
        tokens.add(wake.token)
    node.post_to(EVENT, b"2")
    node.finish(wake, DONE)
    assert not node.found().is_failed and not node.counts.failed
    assert node.cursors() == {EVENT: 1}
    wake = node.delivery()
    node.finish(wake, FAILED)
    node.advance(1.3)
    wake = node.delivery()
    assert wake.links[0].tail == 2, "the delays begin anew"
    node.finish(wake, DONE)
    assert node.cursors() == {EVENT: 2}


def test_a_retry_shows_newer_tails_and_they_count(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    node.finish(node.delivery(), FAILED)
    node.post_to(EVENT, b"2")
    node.advance(2)
    retry = node.delivery()
    assert retry.links[0].tail == 2 and retry.generation == 1
    node.finish(retry, DONE)
    assert node.cursors() == {EVENT: 2} and node.deliveries() == []


def test_a_callback_ends_the_retries(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    wake = node.delivery()
    node.finish(wake, FAILED)  # its answer was lost
    node.tell(settling(wake, None, (EVENT, 1), done=True), s.WakeSettled)
    node.advance(100)
    assert node.deliveries() == []


def test_of_many_streams_those_with_news_are_shown(node: SubscriptionHarness) -> None:
    for number in range(1100):
        node.create(b"events/%04d" % number)
    node.subscribe()
    node.append(b"x", name=b"events/1099")
    wake = node.delivery()
    assert len(wake.links) == s.SHOWN_MAX and wake.links[0].path == b"events/1099"
    node.finish(wake, DONE)
    assert node.cursors()[b"events/1099"] == 1


# Pull-wake.


def test_an_event_wakes_and_a_worker_claims(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1")
    (event,) = pull.events()
    assert event == {
        "type": "wake",
        "subscription_id": "sub",
        "stream": "events/a",
        "generation": 1,
        "ts": pull.now_ms,
    }
    pull.post_to(EVENT, b"2")
    assert len(pull.events()) == 1, "unchanged until the end"
    claimed = pull.claim("w1")
    assert (claimed.generation, claimed.lease_ms) == (1, 30_000)
    assert [(each.path, each.acked, each.tail) for each in claimed.links] == [(EVENT, -1, 2)]
    for worker in ("w1", "w2"):
        refused = pull.tell(s.ClaimWake(0, worker=worker), s.SubscriptionRefused)
        assert (refused.reason, refused.holder, refused.generation) == (
            Refusal.ALREADY_CLAIMED,
            "w1",
            1,
        )
    settled = pull.tell(settling(claimed, ACK, (EVENT, 2), done=True), s.WakeSettled)
    assert settled.next_wake is False
    assert pull.refusal(s.ClaimWake(0, worker="w1")) is Refusal.NO_PENDING_WORK
    pull.post_to(EVENT, b"3")
    again = pull.claim("w1")
    assert again.generation == 2
    pull.tell(settling(again, RELEASE), s.WakeSettled)
    assert pull.cursors() == {EVENT: 2}
    assert [each["generation"] for each in pull.events()] == [1, 2, 3]


def test_a_claim_that_is_not_kept_is_another_wake(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1")
    claimed = pull.claim()
    pull.advance(20)
    pull.tell(settling(claimed, ACK), s.WakeSettled)
    pull.advance(20)
    assert len(pull.events()) == 1, "an acknowledgement extends the lease"
    pull.advance(10.1)
    assert [each["generation"] for each in pull.events()] == [1, 2]
    assert pull.refusal(settling(claimed, ACK, (EVENT, 1))) is Refusal.FENCED
    assert pull.refusal(settling(claimed, RELEASE)) is Refusal.FENCED


def test_a_wake_without_lease_waits_for_ever(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1")
    pull.advance(86_400)
    assert len(pull.events()) == 1
    assert pull.claim().generation == 1


def test_a_wake_whose_stream_is_gone_makes_way(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1")
    pull.one(m.Delete(0), m.Done, EVENT)
    assert pull.refusal(s.ClaimWake(0, worker="w")) is Refusal.NO_PENDING_WORK
    pull.put(b"events/b", b"1")
    assert [each["stream"] for each in pull.events()] == ["events/a", "events/b"]


@pytest.mark.parametrize("how", ["missing", "closed", "not JSON"])
def test_a_wake_stream_that_takes_nothing(node: SubscriptionHarness, how: str) -> None:
    if how != "missing":
        node.put(b"wake", kind=b"text/plain" if how == "not JSON" else b"application/json")
    if how == "closed":
        node.one(d.DurableAppend(0, [], closes=True), d.DurableAppended, b"wake")
    node.subscribe(PULL)
    node.put(EVENT, b"1")
    assert node.found().is_failed
    claimed = node.claim()
    node.tell(settling(claimed, RELEASE), s.WakeSettled)
    assert node.found().is_failed
    if how != "missing":
        node.one(m.Delete(0), m.Done, b"wake")
    node.put(b"wake")
    node.advance(EVENT_RETRY_S + 1)
    assert [each["generation"] for each in node.events()] == [2]
    assert not node.found().is_failed


def test_a_wake_stream_does_not_wake_its_own(node: SubscriptionHarness) -> None:
    node.put(b"events/wake")
    wanted = spec(
        s.SubscriptionKind.PULL_WAKE, wake_stream=b"events/wake", streams=[b"events/wake"]
    )
    node.subscribe(wanted)
    node.put(EVENT, b"1")
    node.advance(10)
    assert len(node.events(b"events/wake")) == 1
    node.subscribe(spec(), b"other")
    node.post_to(b"events/wake", b"{}")
    assert [each.id for each in node.deliveries()] == [b"other"]


def test_two_that_wake_each_other_run_slowly(node: SubscriptionHarness) -> None:
    for name in (b"one", b"two"):
        node.put(name)
    kind = s.SubscriptionKind.PULL_WAKE
    node.subscribe(spec(kind, None, [b"two"], wake_stream=b"one"), b"first")
    node.subscribe(spec(kind, None, [b"one"], wake_stream=b"two"), b"second")
    node.post_to(b"two", b"{}")
    seen = {b"one": 0, b"two": 1}
    for _ in range(100):  # in ten seconds
        for id_, stream in ((b"first", b"one"), (b"second", b"two")):
            if len(node.events(stream)) > seen[stream]:
                seen[stream] = len(node.events(stream))
                wake = node.claim(id_=id_)
                acks = [(each.path, max(each.acked, 0) + 1) for each in wake.links]
                node.tell(settling(wake, ACK, *acks, done=True), s.WakeSettled, id_)
        node.advance(0.1)
    assert 5 <= len(node.events(b"one")) <= 12


# Tokens and acknowledgements.


def test_the_order_of_the_checks(node: SubscriptionHarness) -> None:
    node.put(b"wake")
    node.subscribe(PULL)
    node.subscribe(HOOK, b"hook")
    node.put(EVENT, b"1")
    wake, claimed = node.delivery(), node.claim()
    nobody = settling(claimed, ACK, token=None, generation=7)
    assert node.refusal(nobody, b"none") is Refusal.SUBSCRIPTION_NOT_FOUND
    for action in (ACK, RELEASE):
        request = settling(wake, action, token=None)
        assert node.refusal(request, b"hook") is Refusal.INVALID_REQUEST
    assert node.refusal(nobody) is Refusal.TOKEN_INVALID
    for token in (b"", b"x", b"!" * 40, claimed.token[:-2], wake.token, b"A" * 64, b"A" * 1000):
        request = settling(claimed, ACK, token=token, generation=7)
        assert node.refusal(request) is Refusal.TOKEN_INVALID
    for changes in ({"generation": 2}, {"generation": 0}, {"wake_id": wake.wake_id}):
        assert node.refusal(settling(claimed, ACK, **changes)) is Refusal.FENCED
    assert node.tell(settling(claimed, CALLBACK), s.WakeSettled)
    for _ in range(int(TOKEN_S) // 20):
        node.advance(20)
        reply = node.ask_cell(subscription_cell(SUB), settling(claimed, ACK))
        if isinstance(reply, s.SubscriptionRefused):
            break
    assert node.refusal(settling(claimed, ACK, generation=7)) is Refusal.TOKEN_EXPIRED


def test_a_token_of_an_earlier_subscription_of_the_id(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1")
    claimed = pull.claim()
    pull.tell(s.DeleteSubscription(0), s.SubscriptionDone)
    assert pull.refusal(settling(claimed, ACK)) is Refusal.SUBSCRIPTION_NOT_FOUND
    pull.subscribe(PULL)
    assert pull.refusal(settling(claimed, ACK)) is Refusal.TOKEN_INVALID


def test_all_acks_are_checked_before_one_is_applied(pull: SubscriptionHarness) -> None:
    pull.put(EVENT, b"1", b"2", b"3")
    pull.put(b"events/b", b"1")
    claimed = pull.claim()
    assert pull.tell(settling(claimed, ACK, (EVENT, 2)), s.WakeSettled)
    pull.advance(15)
    for path, position in ((EVENT, 1), (EVENT, 4), (EVENT, None), (b"events/c", 1)):
        request = settling(claimed, ACK, (b"events/b", 1), (path, position), done=True)
        assert pull.refusal(request) is Refusal.INVALID_OFFSET
    assert pull.cursors() == {EVENT: 2, b"events/b": -1}
    assert pull.tell(settling(claimed, ACK, (EVENT, 2), (EVENT, 2)), s.WakeSettled)
    pull.advance(29)
    assert pull.refusal(settling(claimed, ACK, (EVENT, 9))) is Refusal.INVALID_OFFSET
    pull.advance(2)  # that was no sign of life
    assert pull.refusal(settling(claimed, ACK)) is Refusal.FENCED


def test_a_deleted_subscription_is_gone(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1")
    wake = node.delivery()
    for _ in range(2):
        node.tell(s.DeleteSubscription(0), s.SubscriptionDone)
    node.finish(wake, FAILED)
    node.post_to(EVENT, b"2")
    node.advance(1000)
    assert node.deliveries() == [] and not node.counts.failed
    for request in (s.DescribeSubscription(0), settling(wake), s.LinkStreams(0, streams=(b"x",))):
        assert node.refusal(request) is Refusal.SUBSCRIPTION_NOT_FOUND
    assert not node.shared.subscriptions.cells
    assert subscription_cell(SUB) not in node.scheduler.cells
    assert node.subscribe().links[0].acked == 2


# Limits.


def test_limits(node: SubscriptionHarness) -> None:
    node.subscription_limits = SubscriptionLimits(subscriptions_max=2, links_max=3)
    for number in range(3):
        node.create(b"events/%d" % number)
    node.subscribe()
    request = s.PutSubscription(0, spec(streams=[b"x"]), MAKER)
    assert node.refusal(request, b"b") is Refusal.INVALID_REQUEST
    node.subscribe(spec(pattern=None, streams=[b"x"]), b"b")
    assert node.refusal(request, b"c") is Refusal.INVALID_REQUEST
    assert not node.subscribe(spec(pattern=None, streams=[b"x"]), b"b").is_new
    assert node.refusal(s.LinkStreams(0, streams=(b"y",))) is Refusal.INVALID_REQUEST
    node.put(b"events/9", b"1")
    assert b"events/9" not in node.cursors() and node.counts.unlinked == 1
    node.append(b"x", name=b"events/1")
    node.delivery()


def test_too_many_requests_that_wait(node: SubscriptionHarness) -> None:
    node.subscription_limits = SubscriptionLimits(waiting_max=2)
    node.subscribe()
    port, cell = node.port(), subscription_cell(SUB)
    batch = Batch(port, [s.DescribeSubscription(number) for number in range(4)])
    node.scheduler.submit(cell, batch, node.now)
    node.settle()
    replies = port.take()
    assert [each.code for each in replies if isinstance(each, Failed)] == [Code.BUFFER_FULL] * 2
    assert len(replies) == 4


# Very many streams.


class CountingMemory(MemoryStore):
    """Counts changes."""

    changes = 0

    def write(self, name: bytes, changes: Sequence[Change]) -> None:
        self.changes += len(changes)
        super().write(name, changes)


MANY = 2000


def turns_of(node: SubscriptionHarness, store: CountingMemory) -> list[tuple[int, int, int]]:
    """Of each turn of the node until nothing is left to do: names that were compared, changes that
    were stored, streams that were asked."""
    found: list[tuple[int, int, int]] = []
    compared, asked = [0], [0]

    def compare(scope: tuple[str, ...] | None, path: bytes) -> bool:
        compared[0] += 1
        return is_in_scope(scope, path)

    def count_asked(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code is Stream._describe.__code__:
            asked[0] += 1

    node.linkable = compare
    before_profile = sys.getprofile()
    sys.setprofile(count_asked)
    try:
        has_more = True
        while has_more:
            before = compared[0], store.changes, asked[0]
            has_more = node.scheduler.turn(node.now)
            after = compared[0], store.changes, asked[0]
            found.append(tuple(b - a for a, b in zip(before, after, strict=True)))  # type: ignore[arg-type]
    finally:
        sys.setprofile(before_profile)
        node.linkable = is_in_scope
    return found


def test_a_pattern_over_very_many_streams_gives_way_to_others() -> None:
    store = CountingMemory()
    with subscriptions(store=store) as node:
        for number in range(MANY):
            node.put(b"events/%d" % number, b"1")
        port, cell = node.port(), subscription_cell(SUB)
        put = s.PutSubscription(0, HOOK, MAKER)
        node.scheduler.submit(cell, Batch(port, [put, s.DescribeSubscription(1)]), node.now)
        turns = turns_of(node, store)
        assert sum(changes for _, changes, _ in turns) == MANY + 2
        # A cell has its share with those that somebody waits for, and another with the others.
        assert max(changes for _, changes, _ in turns) <= 2 * LINKS_A_TURN + 2
        assert max(compared for compared, _, _ in turns) <= 2 * NAMES_A_TURN
        assert max(asked for _, _, asked in turns) <= 2 * AT_ONCE
        made, found = port.take()
        assert isinstance(made, s.SubscriptionDescribed) and made.is_new
        assert isinstance(found, s.SubscriptionDescribed), "which waited for it"
        assert node.cursors() == {b"events/%d" % number: 1 for number in range(MANY)}
        assert node.deliveries() == []

        node.scheduler.cells[cell].behaviour = None  # as a crash does
        node.post(cell, s.DeliveryFinished(99, s.DeliveryOutcome.DONE))
        turns = turns_of(node, store)
        assert sum(asked for _, _, asked in turns) >= MANY - AT_ONCE
        assert max(asked for _, _, asked in turns) <= 2 * AT_ONCE
        assert max(compared for compared, _, _ in turns) <= 2 * NAMES_A_TURN
        assert node.deliveries() == []


def test_streams_that_grow_come_and_go_while_a_pattern_is_compared() -> None:
    store = CountingMemory()
    with subscriptions(store=store) as node:
        for number in range(MANY):
            node.put(b"events/%d" % number, b"1")
        port, cell = node.port(), subscription_cell(SUB)
        node.scheduler.submit(cell, Batch(port, [s.PutSubscription(0, HOOK, MAKER)]), node.now)
        gone, grown, turns = 0, 0, 0
        while node.scheduler.turn(node.now):
            turns += 1
            if turns % 10 == 0 and not port.written:
                node.say(node.port(), m.Delete(0), name=b"events/%d" % gone)
                gone += 1
                append = d.DurableAppend(0, [b"2"], b"application/json")
                node.say(node.port(), append, name=b"events/%d" % (MANY - 1 - grown))
                grown += 1
                create = d.CreateSpec(b"application/json", None, False, [b"1"])
                node.say(node.port(), d.DurableCreate(0, create), name=b"events/new%d" % gone)
        assert gone == grown > 3
        cursors = node.cursors()
        assert not any(b"events/%d" % each in cursors for each in range(gone))
        pending = {each.path: each.tail - max(each.acked, 0) for each in node.found().links}
        news = {path for path, lag in pending.items() if lag}
        assert {b"events/new%d" % (each + 1) for each in range(gone)} <= set(cursors)
        # Each of those that grew is new, or its record came before its tail was looked up.
        assert news <= {b"events/%d" % (MANY - 1 - each) for each in range(grown)} | {
            b"events/new%d" % (each + 1) for each in range(gone)
        }
        for each in range(grown):
            path = b"events/%d" % (MANY - 1 - each)
            assert path in news or cursors[path] == 2
        assert bool(news) == bool(node.deliveries())


def test_links_of_a_subscription_that_was_never_made_are_no_links(tmp_path: Path) -> None:
    """The node died before its configuration was stored."""
    with subscriptions(tmp_path) as node:
        node.put(EVENT, b"1", b"2")
        stored = StoredLink(True, False, 0, 0)
        cell = subscription_cell(SUB)
        node.store.write(cell, [MetadataSet(LINK + b"events/old", msgspec.msgpack.encode(stored))])
        node.restart()
        assert node.store.log_snapshot(cell).metadata == {}
        assert node.refusal(s.DescribeSubscription(0)) is Refusal.SUBSCRIPTION_NOT_FOUND
        node.subscribe()
        node.restart()
        assert node.cursors() == {EVENT: 2}


# Durability.


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:
        node.put(b"wake")
        node.put(b"old", b"1")
        node.subscribe(PULL, b"pull")
        made = node.subscribe(spec(streams=[b"old"], description="d"))
        node.put(EVENT, b"1", b"2")
        claimed, wake = node.claim("w", b"pull"), node.delivery()
        node.finish(wake)
        node.tell(settling(wake, None, (EVENT, 1)), s.WakeSettled)
        node.restart()
        found = node.found()
        assert (found.spec, found.created_ms) == (made.spec, made.created_ms)
        assert node.cursors() == {EVENT: 1, b"old": 1}
        again = node.delivery()
        assert (again.wake_id, again.generation) == (wake.wake_id, wake.generation)
        assert node.tell(settling(wake, None, (EVENT, 2), done=True), s.WakeSettled)
        refused = node.tell(s.ClaimWake(0, worker="x"), s.SubscriptionRefused, b"pull")
        assert refused.holder == "w"
        ack = settling(claimed, ACK, (EVENT, 2), done=True)
        assert node.tell(ack, s.WakeSettled, b"pull")
        node.post_to(EVENT, b"3")
        assert node.claim("w", b"pull").generation == 2


def test_a_retry_survives_a_restart(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:
        node.subscribe()
        node.put(EVENT, b"1")
        for _ in range(4):
            wake = node.delivery()
            node.finish(wake, FAILED)
            node.advance(0 if _ == 3 else 10)
        node.restart()
        assert node.found().is_failed and node.deliveries() == []
        node.advance(10)
        again = node.delivery()
        assert (again.wake_id, again.generation) == (wake.wake_id, 1)
        node.finish(again, FAILED)
        node.advance(12)
        assert node.deliveries() == [], "the delays go on: 16 s"


def test_a_lease_that_ran_out_meanwhile(tmp_path: Path) -> None:
    with subscriptions(tmp_path) as node:
        node.put(b"wake")
        node.subscribe()
        node.subscribe(PULL, b"pull")
        node.put(EVENT, b"1")
        node.finish(node.delivery())
        node.claim("w", b"pull")
        node.close()
        node.clock.now += 100
        node.open()
        assert node.delivery().generation == 2
        assert node.claim("x", b"pull").generation == 2


def test_records_that_it_was_not_told_of(tmp_path: Path) -> None:
    """A node that dies between an append and the wake finds at its start what is pending."""
    with subscriptions(tmp_path) as node:
        node.put(b"events/old", b"1")
        node.put(b"events/gone", b"1")
        node.put(b"events/new", b"1")
        node.subscribe(spec(streams=[b"events/new"]))
        node.close()
        node.open()
        index = node.shared.subscriptions
        index.cells.clear()
        index.__init__()  # type: ignore[misc]  # nobody is told of anything
        node.put(EVENT, b"1")
        node.post_to(b"events/old", b"2")
        for name in (b"events/gone", b"events/new"):
            node.one(m.Delete(0), m.Done, name)
        node.advance(1)
        node.put(b"events/new", b"1")
        assert node.deliveries() == []
        node.restart()
        assert node.cursors() == {EVENT: -1, b"events/old": 1, b"events/new": -1}
        pending = [each.path for each in node.delivery().links if each.has_pending]
        assert pending == [EVENT, b"events/new", b"events/old"]


def test_a_stream_that_lost_its_last_records(tmp_path: Path) -> None:
    """One in `os`, after a power cut: its new records are new, whatever was acknowledged."""
    with subscriptions(tmp_path) as node:
        node.subscribe()
        node.put(EVENT, b"1")
        node.finish(node.delivery(), DONE)
        incarnation = node.describe(EVENT).incarnation
        lost = msgspec.msgpack.encode(StoredLink(True, False, 5, incarnation))
        node.store.write(subscription_cell(SUB), [MetadataSet(LINK + EVENT, lost)])
        node.restart()
        assert node.cursors() == {EVENT: 1} and node.deliveries() == []
        node.post_to(EVENT, b"2")
        assert [each.tail for each in node.delivery().links] == [2]


def test_nothing_is_called_before_the_generation_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SlowMemory()
    with subscriptions(None, store=store) as node:
        node.subscribe()
        node.put(EVENT)
        store.is_slow = True
        port = node.port()
        append = d.DurableAppend(0, [b"1"], b"application/json")
        node.say(port, append, name=EVENT)
        node.settle()
        assert port.take() == []
        store.finish()
        assert isinstance(port.take()[0], d.DurableAppended), "it waits for no delivery"
        assert node.deliveries() == []
        store.finish()
        assert node.delivery().generation == 1
        store.is_slow = False


def test_a_failing_disk_loses_no_wake(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    store = SlowMemory()
    with subscriptions(None, store=store) as node:
        node.subscribe()
        node.put(EVENT)
        store.is_slow = True
        node.say(node.port(), d.DurableAppend(0, [b"1"], b"application/json"), name=EVENT)
        store.finish()
        store.is_doomed = True
        port = node.port()
        request = s.DescribeSubscription(1)
        node.scheduler.submit(subscription_cell(SUB), Batch(port, [request]), node.now)
        store.finish(Fault.NOT_STORED)
        store.is_slow = store.is_doomed = False
        node.settle()
        assert isinstance(port.take()[0], Failed | StreamFailed | s.SubscriptionDescribed)
        node.advance(10)
        found = [each.generation for each in node.deliveries()]
        assert found and set(found) <= {1, 2}


def test_a_stream_that_cannot_be_read_holds_up_nothing_else(
    node: SubscriptionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    node.put(EVENT, b"1")
    node.put(b"events/b", b"1")
    node.crash_on.add(m.Describe)
    request = s.PutSubscription(0, HOOK, MAKER)
    assert node.tell(request, StreamFailed).code is Code.STORAGE_FAILED
    assert not node.shared.subscriptions.cells
    node.crash_on.clear()
    node.advance(10)
    node.subscribe()
    node.crash_on.add(m.Describe)
    cell = node.scheduler.cells[subscription_cell(SUB)]
    cell.behaviour = None  # as after a crash
    assert node.cursors() == {EVENT: 1, b"events/b": 1}
    node.crash_on.clear()
    node.advance(3 * RECHECK_S)
    node.post_to(EVENT, b"2")
    assert [each.path for each in node.delivery().links if each.has_pending] == [EVENT]


def test_leases_move_with_the_clock(node: SubscriptionHarness) -> None:
    node.put(b"wake")
    node.subscribe(PULL)
    node.put(EVENT, b"1")
    claimed = node.claim()
    node.scheduler.clock_moved(3600)
    node.clock.now += 3600
    assert node.tell(settling(claimed, ACK), s.WakeSettled)
    node.advance(29)
    assert node.tell(msgspec.structs.replace(settling(claimed, ACK)), s.WakeSettled)


def test_done_says_nothing_of_a_stream_that_was_made_anew(node: SubscriptionHarness) -> None:
    node.subscribe()
    node.put(EVENT, b"1", b"2", b"3")
    wake = node.delivery()
    node.one(m.Delete(0), m.Done, EVENT)
    node.put(EVENT, b"4")
    node.finish(wake, DONE)
    second = node.delivery()
    assert [(each.acked, each.tail) for each in second.links] == [(-1, 1)]


@pytest.mark.parametrize("is_pull", [False, True])
def test_an_ack_for_a_stream_that_was_made_anew(node: SubscriptionHarness, is_pull: bool) -> None:
    node.put(b"wake")
    node.subscribe(PULL if is_pull else HOOK)
    node.put(EVENT, b"1", b"2")
    wake = node.claim() if is_pull else node.delivery()
    node.one(m.Delete(0), m.Done, EVENT)
    node.put(EVENT, b"3", b"4", b"5")
    assert node.refusal(settling(wake, None, (EVENT, 2), done=True)) is Refusal.INVALID_OFFSET
    assert node.cursors() == {EVENT: -1}, "its worker has not seen the record 3"
    if is_pull:
        node.tell(settling(wake, RELEASE), s.WakeSettled)
        wake = node.claim()
    else:
        node.finish(wake, FAILED)
        node.advance(2)
        wake = node.delivery()
    node.tell(settling(wake, None, (EVENT, 2)), s.WakeSettled)
    assert node.cursors() == {EVENT: 2}


def test_a_stream_that_comes_and_goes_while_tails_are_looked_up(
    node: SubscriptionHarness,
) -> None:
    node.put(EVENT, b"1")
    node.subscribe()
    shown = node.one(m.Describe(0), m.StreamDescription, EVENT)
    cell, later = subscription_cell(SUB), shown.incarnation + 1
    notices = [
        m.StreamGone(0, EVENT, shown.incarnation),
        m.StreamGrew(0, EVENT, later, 5),
        m.StreamGone(0, EVENT, later),
    ]
    node.scheduler.submit(cell, Batch(None, [*notices]), node.now)
    node.settle()
    assert node.cursors() == {} and node.deliveries() == []


def test_a_stream_whose_records_are_not_stored_tells_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    store = SlowMemory()
    with subscriptions(None, store=store) as node:
        node.put(EVENT, b"1")
        node.subscribe()
        store.is_slow = store.is_doomed = True
        port = node.port()
        node.say(port, d.DurableAppend(1, [b"2"], b"application/json"), name=EVENT)
        store.finish(Fault.NOT_STORED)
        store.is_slow = store.is_doomed = False
        node.settle()
        assert isinstance(port.take()[0], Failed | StreamFailed)
        assert node.deliveries() == []
        node.post_to(EVENT, b"2")
        assert [each.tail for each in node.delivery().links] == [2]


def test_a_stream_that_grows_and_goes_in_one_commit() -> None:
    store = GroupMemory()
    with subscriptions(None, store=store) as node:
        node.put(EVENT, b"1")
        node.subscribe()
        store.is_slow = True
        node.say(node.port(), d.DurableAppend(1, [b"2"], b"application/json"), name=EVENT)
        node.say(node.port(), m.Delete(1), name=EVENT)
        store.is_slow = False
        store.finish()
        node.settle()
        assert node.cursors() == {} and node.deliveries() == []


def test_the_status_of_a_wake_that_nobody_claims_grows(pull: SubscriptionHarness) -> None:
    for number in range(3):
        pull.put(b"events/%d" % number, b"1")
        pull.post_to(b"events/0", b"2", b"3")
    found = pull.statuses[subscription_cell(SUB)]()
    assert (found.state, found.streams, found.pending, found.lag) == ("woken", 3, 3, 9)
