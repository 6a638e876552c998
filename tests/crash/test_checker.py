"""The checker of the kill loop finds each thing that must not happen, and nothing in a good run."""

from __future__ import annotations

from millpond.actors.ids import EPOCH_MS
from tests.crash.checker import check
from tests.crash.events import (
    Done,
    Event,
    Found,
    Got,
    Kept,
    Label,
    Missed,
    Refused,
    Sent,
    Settled,
    Started,
)
from tests.crash.report import ledger

A, B, C = (Label("w1", n) for n in (1, 2, 3))


def id_at(ms: int) -> int:
    """An id given out so many milliseconds after the epoch of the ids."""
    return ms << 22


def kept(label: Label, message_id: int, connection: int = 1) -> list[Event]:
    return [Sent(label, connection), Kept(label, message_id, connection)]


def faults_of(*history: Event) -> dict[str, int]:
    return check(history).faults


def test_a_good_run_has_no_faults_and_its_figures_are_right() -> None:
    """P2P-06, P2P-08: kept, delivered, acked, found; an unknown PUT was answered by its retry."""
    history: list[Event] = [
        Started(1, EPOCH_MS + 1),
        *kept(A, id_at(10)),
        *kept(B, id_at(20)),
        Got(id_at(10), A, life=1),
        Done(id_at(10), life=1),
        Sent(C, 1),
        Started(2, EPOCH_MS + 40),
        Sent(C, 2),
        Kept(C, id_at(30), 2),
        Found(id_at(20), B, life=2),
        Found(id_at(30), C, life=2),
    ]
    result = check(history)
    assert result.faults == {}
    assert (result.attempted, result.acked, result.done) == (3, 3, 1)
    assert (result.unknown, result.recovered, result.kept_unseen) == (1, 1, 1)
    assert (result.delivered, result.redelivered) == (3, 0)


def test_a_retry_that_was_kept_anew_is_not_counted_as_kept_unseen() -> None:
    history = [
        Sent(A, 1),
        Started(2, EPOCH_MS + 40),
        *kept(A, id_at(50), 2),
        Found(id_at(50), A, life=2),
    ]
    result = check(history)
    assert (result.unknown, result.recovered, result.kept_unseen) == (1, 1, 0)


def test_acked_and_not_there_is_lost() -> None:
    """P2P-08: what was acknowledged is kept until it is acked or expires."""
    assert faults_of(*kept(A, 10), *kept(B, 11), Found(11, B, life=1)) == {"lost": 1}


def test_missing_from_a_list_is_lost_even_if_it_comes_back() -> None:
    assert faults_of(*kept(A, 10), Missed(10, life=2), Found(10, A, life=3)) == {"lost": 1}


def test_expired_is_not_lost_but_must_be_gone() -> None:
    sent = Sent(A, 1, is_brief=True)
    assert faults_of(sent, Kept(A, 10, 1)) == {}
    assert faults_of(sent, Kept(A, 10, 1), Found(10, A, life=1)) == {"undead": 1}


def test_two_ids_for_one_put_are_a_duplicate() -> None:
    """PA-09: a retry is answered as the first time."""
    twice = [Sent(A, 1), *kept(A, 11, 2), Found(10, A, life=2), Found(11, A, life=2)]
    assert faults_of(*twice) == {"duplicated": 1}
    answered_twice = [*kept(A, 10, 1), *kept(A, 11, 2), Done(10, 1), Done(11, 2)]
    assert faults_of(*answered_twice) == {"duplicated": 1}


def test_a_duplicate_that_was_only_pushed_is_seen_too() -> None:
    history = [*kept(A, 10), Got(10, A, life=1), Done(10, life=1), Got(12, A, life=1), Done(12, 1)]
    assert faults_of(*history) == {"duplicated": 1}


def test_ids_that_fall_on_one_connection_are_reordered() -> None:
    """P2P-08: ids ascend as the PUTs of one connection were sent, whenever the answers came."""
    sent = [Sent(A, 1), Sent(B, 1), Sent(C, 1)]
    there = [Found(each.id, each.label, 1) for each in (Kept(A, 12, 1), Kept(B, 11, 1))]
    answers = [Kept(B, 11, 1), Kept(A, 12, 1), Kept(C, 13, 1)]
    assert faults_of(*sent, *answers, *there, Found(13, C, 1)) == {"reordered": 1}


def test_a_put_that_was_refused_counts_where_it_was_sent_again() -> None:
    history = [
        Sent(A, 1),
        Refused(A, 0x26, 1),
        *kept(B, 10),
        *kept(A, 11),
        Found(10, B, 1),
        Found(11, A, 1),
    ]
    result = check(history)
    assert result.faults == {} and result.refused == 1 and result.unknown == 0


def test_order_is_not_asked_across_connections() -> None:
    assert faults_of(*kept(B, 20, 1), *kept(A, 10, 2), Done(20, 1), Done(10, 1)) == {}


def test_seen_again_after_a_kill_is_allowed_until_the_ack_was_durable() -> None:
    """PS-13: an ack may be undone by a crash as long as nothing durable came after it."""
    history = [*kept(A, 10), Got(10, A, life=1), Done(10, life=1)]
    again = Got(10, A, life=2)
    result = check([*history, again])
    assert result.faults == {} and result.redelivered == 1
    assert faults_of(*history, Settled((10,)), again) == {"revived": 1}
    assert faults_of(*history, Settled((10,)), Found(10, A, life=2)) == {"revived": 1}


def test_seen_again_in_the_life_that_had_its_ack_is_a_fault() -> None:
    history = [*kept(A, 10), Got(10, A, life=1), Done(10, life=1), Got(10, A, life=1)]
    assert faults_of(*history) == {"revived": 1}


def test_other_data_and_messages_from_nowhere_are_faults() -> None:
    assert faults_of(*kept(A, 10), Found(10, A, life=1, is_whole=False)) == {"damaged": 1}
    assert faults_of(Found(10, A, life=1)) == {"invented": 1}


def test_a_put_without_an_answer_at_the_end_is_a_fault() -> None:
    result = check([Sent(A, 1), Sent(A, 2)])
    assert result.faults == {"unanswered": 1}
    assert (result.unknown, result.recovered) == (1, 0)


def test_an_acknowledged_put_may_be_sent_again_and_gets_the_same_id() -> None:
    """PA-09: as if its answer had been lost; if that is, the PUT is none of unknown outcome."""
    there = Found(10, A, life=3)
    history: list[Event] = [*kept(A, 10), Started(2, 0), Sent(A, 2), Started(3, 0)]
    result = check([*history, there])
    assert result.faults == {} and result.unknown == 0
    assert faults_of(*history, *kept(A, 10, 3), there) == {}
    assert faults_of(*history, *kept(A, 12, 3), there, Found(12, A, 3)) == {"duplicated": 1}


def test_the_table_names_each_figure_and_an_example() -> None:
    table = ledger({"channels": check(kept(A, 10))})
    assert "lost                 1   must be 0" in table
    assert "lost: Label(writer='w1', n=1) under id 10" in table
