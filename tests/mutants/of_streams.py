"""Mistakes in streams: age, readers at the tail, offsets."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

RETENTION = "tests/actors/streams/test_retention.py::TestArrival::"
GRACE = "tests/actors/streams/test_trim_grace.py::TestFollowers::"
OFFSETS = "tests/transports/http/durable/test_offsets.py::"

STREAM_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "arrival is not kept beside a time of the client's id",
        Fault.AGE,
        "actors/streams/chunks.py",
        "    if columns[1] is not None or not arrived_ms == timestamp == first_id.ms:\n",
        "    if columns[1] is not None:\n",
        RETENTION + "test_a_record_is_there_for_the_age_and_no_longer",
    ),
    Mutant(
        "arrival is not kept beside timestamps",
        Fault.AGE,
        "actors/streams/chunks.py",
        "        columns = (*columns, appends, arrived_ms)\n",
        "        columns = (*columns, appends)\n",
        RETENTION + "test_a_record_is_there_for_the_age_and_no_longer",
    ),
    Mutant(
        "an older chunk of the future never ages",
        Fault.AGE,
        "actors/streams/chunks.py",
        "    return latest_ms if latest_ms <= now_ms else min(id_ms, timestamp)\n",
        "    return latest_ms\n",
        RETENTION + "test_of_an_older_folder",
    ),
    Mutant(
        "a waiting read sees what a trim left",
        Fault.TAIL,
        "actors/streams/read.py",
        "self._show_from(scan, waiter.read, self._appender.fresh, waiter.sequence)",
        (
            "self._show_from(scan, waiter.read, self._appender.fresh, "
            "max(waiter.sequence, self._bounds.trim_point))"
        ),
        GRACE + "test_s2x_70_who_waits_at_the_tail_gets_the_append_whole",
    ),
    Mutant(
        "a later trim takes the grace of an earlier one",
        Fault.TAIL,
        "actors/streams/trim_grace.py",
        "        if len(waiting) > 1 and due_at - waiting[-2][0] < step_s:\n",
        "        if waiting and (due_at := waiting[-1][0]):\n",
        "tests/actors/streams/test_trim_grace.py::TestGrace::test_each_trim_has_its_own",
    ),
    Mutant(
        "a session that does not wait follows",
        Fault.TAIL,
        "transports/http/s2/read_query.py",
        "        return not self.is_bounded if self.wait_s is None else self.wait_s > 0\n",
        "        return not self.is_bounded if not self.wait_s else True\n",
        "tests/transports/http/s2/test_read_query.py::test_who_may_follow",
    ),
    Mutant(
        "an offset inside of a record is taken for its end",
        Fault.OFFSETS,
        "transports/http/durable/offsets.py",
        "    return None if found is None else int(found[1])\n",
        "    return None if found is None else int(found[1]) + bool(int(found[2]))\n",
        OFFSETS + "test_the_worked_offsets_of_a_stream_of_three_appends",
    ),
    Mutant(
        "a read beyond the tail waits there",
        Fault.OFFSETS,
        "transports/http/durable/read_page.py",
        "    return min(start, info.tail)\n",
        "    return start\n",
        OFFSETS + "test_a_live_read_beyond_the_tail_delivers_what_comes_next",
    ),
    Mutant(
        "a fork begins at an offset that no node gave",
        Fault.OFFSETS,
        "transports/http/durable/offsets.py",
        "sequence is not None and offset == offset_of(sequence).decode()",
        "sequence is not None",
        OFFSETS + "test_a_fork_begins_at_an_offset_that_the_node_gave",
    ),
    Mutant(
        "a start beyond the tail is the tail",
        Fault.OFFSETS,
        "transports/http/s2/read_query.py",
        "            is_beyond = sequence > tail.seq_num\n",
        "            is_beyond = False\n",
        "tests/transports/http/s2/test_reads.py::test_a_5_nothing_there_is_416_with_the_tail",
    ),
)
