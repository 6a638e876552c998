"""The checker of streams finds each thing that must not happen, and nothing in a good run."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.checker import CheckResult, check
from tests.crash.events import Label, Started
from tests.crash.history import History
from tests.crash.report import ledger
from tests.crash.stream_checker import StreamCheckResult, check_streams
from tests.crash.stream_events import (
    Append,
    Below,
    Dropped,
    Look,
    Looked,
    Place,
    Placed,
    Run,
    StreamEvent,
    Trim,
    Trimmed,
)
from tests.crash.written_streams import Row, WrittenStreams

S = "shared"
A, B, C = (Label("w1", n) for n in (1, 2, 3))
COUNT = 3
Happened = Started | StreamEvent


def at(sequence: int) -> Place:
    """The position of a record of the stream, when all have ids of one millisecond."""
    return Place(9, sequence, sequence)


def sent(label: Label, connection: int = 1, *, is_owed: bool = False) -> Append:
    return Append(S, label, COUNT, connection, is_owed)


def kept(label: Label, sequence: int, connection: int = 1) -> list[Happened]:
    return [sent(label, connection), Placed(S, label, at(sequence))]


def look(*runs: tuple[Label, int, int, int], reader: str = "look") -> list[Happened]:
    """A complete reading: of each run label, index, count, and the sequence of its first record."""
    found = [Run(S, reader, label, index, n, at(first)) for label, index, n, first in runs]
    return [Look(S, reader), *found, Looked(S, reader)]


def trim(below: Below, number: int = 1) -> list[Happened]:
    return [Trim(S, number, below), Trimmed(S, number)]


def faults_of(*history: Happened) -> dict[str, int]:
    return check_streams(history).faults


WHOLE_A, WHOLE_B = (A, 0, COUNT, 0), (B, 0, COUNT, 3)


def test_a_good_run_has_no_faults_and_its_figures_are_right() -> None:
    """Kept, trimmed, lost on the way, kept without an answer, and repeated where that may be."""
    history = [
        Started(1, 0),
        *kept(A, 0),
        sent(B),
        sent(C),
        Started(2, 0),
        *look((A, 0, COUNT, 0), (B, 0, COUNT, 3)),
        *trim((9, 1)),
        *look((A, 1, 2, 1), (B, 0, COUNT, 3), reader="later"),
    ]
    result = check_streams(history)
    assert result.faults == {}
    assert (result.attempted, result.acked, result.unknown) == (3, 1, 2)
    assert (result.kept_unseen, result.done, result.looks) == (1, 1, 2)
    assert result.delivered == 11


def test_s3a_15_a_part_of_a_batch_is_torn() -> None:
    """Of one that was acknowledged, and of one that was not: all of its records or none."""
    assert faults_of(*kept(A, 0), *look((A, 0, 2, 0))) == {"torn": 1}
    assert faults_of(sent(A), *look((A, 0, 2, 0))) == {"torn": 1}
    assert faults_of(sent(A), *look((A, 1, 2, 1))) == {"torn": 1}
    assert faults_of(sent(A), *look()) == {}


def test_s3a_15_records_of_others_within_a_batch_are_found() -> None:
    torn = look((A, 0, 1, 0), (B, 0, COUNT, 1), (A, 1, 2, 4))
    assert faults_of(sent(A), sent(B, 2), *torn) == {"duplicated": 1}


def test_acknowledged_or_seen_and_not_there_is_lost() -> None:
    """S3A-34: also what nobody acknowledged, once somebody saw it."""
    assert faults_of(*kept(A, 0), *kept(B, 3), *look(WHOLE_B)) == {"lost": 1}
    seen: list[Happened] = [sent(A), Run(S, "follower", A, 0, COUNT, at(0))]
    assert faults_of(*seen, Started(2, 0), *look()) == {"lost": 1}


def test_a_reading_that_was_broken_off_proves_nothing_lost() -> None:
    assert faults_of(*kept(A, 0), Look(S, "look"), Started(2, 0)) == {}


def test_what_came_after_a_reading_began_may_be_missing_from_it() -> None:
    assert faults_of(Look(S, "look"), *kept(A, 0), Looked(S, "look")) == {}


def test_another_id_than_the_acknowledged_one_is_a_duplicate() -> None:
    assert faults_of(*kept(A, 0), *look((A, 0, COUNT, 4))) == {"duplicated": 1}
    twice = look(WHOLE_A, (A, 0, COUNT, 3))
    assert faults_of(*kept(A, 0), *twice) == {"duplicated": 1}


def test_a_repeated_batch_is_there_once() -> None:
    """Its writer found it kept, or repeated it: not both."""
    first, again = sent(A, is_owed=True), sent(A, 2, is_owed=True)
    found = Placed(S, A, at(0), is_told=False)
    result = check_streams([first, Started(2, 0), found, *look(WHOLE_A)])
    assert result.faults == {}
    assert (result.unknown, result.recovered, result.kept_unseen) == (1, 1, 1)
    twice: list[Happened] = [
        first,
        Started(2, 0),
        again,
        Placed(S, A, at(3)),
        *look(WHOLE_A, (A, 0, COUNT, 3)),
    ]
    assert faults_of(*twice) == {"duplicated": 1}
    assert faults_of(first) == {"unanswered": 1}


def test_two_batches_under_one_id_are_a_fault() -> None:
    assert faults_of(sent(A), sent(B, 2), Placed(S, A, at(0)), Placed(S, B, at(0))) == {
        "duplicated": 1
    }


def test_s3a_13_ids_never_go_back_not_even_after_a_trim_of_everything() -> None:
    """Nor are they given twice: what was known when a batch was sent is below it."""
    emptied = [*kept(A, 3), *trim((2**64 - 1, 0)), Started(2, 0)]
    assert faults_of(*emptied, *kept(B, 6, 2)) == {}
    assert faults_of(*emptied, *kept(B, 0, 2)) == {"reordered": 1}
    assert faults_of(*emptied, *kept(B, 3, 2)) == {"reordered": 1, "duplicated": 1}


def test_batches_of_one_connection_are_in_the_order_of_their_sending() -> None:
    """S3P-46; of different connections in any."""
    swapped: list[Happened] = [Placed(S, B, at(0)), Placed(S, A, at(3))]
    assert faults_of(sent(A), sent(B), *swapped) == {"reordered": 1}
    assert faults_of(sent(A), sent(B, 2), *swapped) == {}


def test_s3p_32_what_a_reader_gets_ascends_and_has_no_gaps() -> None:
    both = [*kept(A, 0), *kept(B, 3)]
    assert faults_of(*both, *look(WHOLE_B, WHOLE_A)) == {"reordered": 1}
    gap = [*kept(A, 0), *kept(B, 5), *look(WHOLE_A, (B, 0, COUNT, 5))]
    assert faults_of(*gap) == {"reordered": 1}
    follower: list[Happened] = [
        Run(S, "f", B, 0, COUNT, Place(9, 3)),
        Run(S, "f", A, 0, COUNT, Place(9, 0)),
    ]
    assert faults_of(*both, *follower) == {"reordered": 1}


@pytest.mark.parametrize("below", [(9, 4), 4, (10, 0), (2**64 - 1, 2**64 - 1)])
def test_what_is_trimmed_never_comes_back(below: Below) -> None:
    both = [*kept(A, 0), *kept(B, 3), *trim(below), Started(2, 0)]
    left = () if below == (10, 0) or below == (2**64 - 1,) * 2 else ((B, 1, 2, 4),)
    assert faults_of(*both, *look(*left)) == {}
    assert faults_of(*both, *look(WHOLE_A, WHOLE_B))["revived"] == 2


def test_a_trim_without_an_answer_may_be_done_but_not_undone() -> None:
    before = [*kept(A, 0), Trim(S, 1, (9, 2)), Started(2, 0)]
    assert faults_of(*before, *look(WHOLE_A)) == {}
    assert faults_of(*before, *look((A, 2, 1, 2))) == {}
    assert faults_of(*before, *look()) == {"lost": 1}
    was_done = [*before, *look((A, 2, 1, 2)), Started(3, 0)]
    assert faults_of(*was_done, *look(WHOLE_A, reader="2")) == {"revived": 1}
    was_not = [*before, *look(WHOLE_A), Started(3, 0)]
    assert faults_of(*was_not, *look((A, 2, 1, 2), reader="2")) == {"torn": 1}


def test_a_trim_may_take_what_somebody_is_about_to_read() -> None:
    """A look of two pages with a trim between them; what is missing behind the cut is a fault."""
    kept_all = [*kept(A, 0), *kept(B, 3), *kept(C, 6), Look(S, "look")]
    first, last = Run(S, "look", A, 0, COUNT, at(0)), Run(S, "look", C, 0, COUNT, at(6))
    assert faults_of(*kept_all, first, *trim(6), last, Looked(S, "look")) == {}
    assert "reordered" in faults_of(*kept_all, first, *trim(3), last, Looked(S, "look"))
    assert "reordered" in faults_of(*trim(6), *kept_all, first, last, Looked(S, "look"))


def test_a_trim_takes_nothing_that_was_sent_after_it() -> None:
    """One that takes all there is may take what is on its way, and nothing later."""
    everything = (2**64 - 1, 2**64 - 1)
    assert faults_of(*kept(A, 0), *trim(everything), *kept(B, 3), *look()) == {"lost": 1}
    on_its_way = [sent(A), *trim(everything), Placed(S, A, at(0))]
    assert faults_of(*on_its_way, *look()) == faults_of(*on_its_way, *look(WHOLE_A)) == {}


def test_damage_and_inventions_are_faults() -> None:
    other = Run(S, "look", A, 0, 1, at(0), is_whole=False)
    assert faults_of(sent(A), Look(S, "look"), other, Looked(S, "look")) == {"damaged": 1}
    assert faults_of(*look(WHOLE_A)) == {"invented": 1}
    assert faults_of(sent(A), Dropped(S, A), *look(WHOLE_A)) == {"invented": 1}
    assert faults_of(sent(A), Dropped(S, A), *kept(A, 0, 2), *look(WHOLE_A)) == {}


def test_the_ledger_has_a_column_for_streams_and_an_example_of_each_fault() -> None:
    results: dict[str, CheckResult | StreamCheckResult] = {
        "channels": check([]),
        "streams": check_streams([*kept(A, 0), *look((A, 0, 2, 0))]),
    }
    table = ledger(results)
    assert "torn                 -         1   must be 0" in table
    assert "lost                 0         0   must be 0" in table
    assert "torn: shared: Label(writer='w1', n=1) at Place(ms=9" in table


class TestShelves:
    """The records that a reader got, as runs of records of one append."""

    def runs(self, rows: list[Row]) -> list[tuple[Label, int, int, bool]]:
        written_streams = WrittenStreams(History(1), 1)
        written_streams.saw(S, "reader", rows)
        events = written_streams.history.events
        return [
            (each.label, each.index, each.count, each.is_whole)
            for each in events
            if isinstance(each, Run)
        ]

    def rows(self, *labels: Label) -> list[Row]:
        written_streams = WrittenStreams(History(1), 1)
        bodies = [body for label in labels for body in written_streams.bodies(label)]
        return [Row(at(index), body) for index, body in enumerate(bodies)]

    def sizes(self, *labels: Label) -> list[int]:
        return [len(self.rows(label)) for label in labels]

    def test_each_batch_is_one_run(self) -> None:
        a, b = self.sizes(A, B)
        assert self.runs(self.rows(A, B)) == [(A, 0, a, True), (B, 0, b, True)]

    def test_a_gap_in_the_ids_ends_a_run(self) -> None:
        big = next(label for n in range(1, 99) if len(self.rows(label := Label("w", n))) > 4)
        rows = self.rows(big)
        size = len(rows)
        moved = [*rows[:2], *(Row(each.place.moved(1), each.body) for each in rows[2:])]
        assert self.runs(moved) == [(big, 0, 2, True), (big, 2, size - 2, True)]
        assert self.runs(rows[1:]) == [(big, 1, size - 1, True)]

    def test_a_changed_byte_is_seen_wherever_it_is(self) -> None:
        rows, rng = self.rows(A, B), Random(1)
        for place in range(len(rows)):
            body = bytearray(rows[place].body)
            body[rng.randrange(len(body))] ^= 1
            changed = [*rows[:place], Row(rows[place].place, bytes(body)), *rows[place + 1 :]]
            assert not all(is_whole for *_, is_whole in self.runs(changed))
