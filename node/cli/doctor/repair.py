"""`millpond doctor --repair`: the repair of one damaged partition, and its report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from millpond.actors.state.checkpoint_store import state_file
from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.repair.repair import FolderRepair, LogRules, NotRepairable, Repaired
from millpond.actors.store.repair.sqlite_wal import PAGE_BYTES
from millpond.actors.streams.durable.fork_log import base_of
from millpond.actors.streams.metadata import creation_of
from millpond.actors.streams.names import staged_part_of, stream_of
from millpond.node.cli.doctor.data_folder import (
    CATALOGS,
    describe_partition,
    known_damages,
    partition_name,
    repair_all_command,
)
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.data_folder import check_owner, explain_folder_errors
from millpond.node.cli.output import counted, print_json, print_line
from millpond.node.cli.progress import Progress
from millpond.node.data_folder import FolderLock, was_used
from millpond.node.environment import current_environment

LOST_SHOWN = 20
QUIET = logging.NullHandler()


def repair_partition(folder: Path, name: bytes, *, as_json: bool) -> int:
    """Repair a channel or stream of a stopped node; 1 if anything is lost."""
    with _repairs(folder, OsDisk()) as repairs:
        damages = list(dict.fromkeys([*_reported(repairs, name), *known_damages(folder, name)]))
        try:
            with Progress("read", what="page", beside_output=True) as progress:
                done = repairs.repair(name, partial(_show_page, progress))
            code = _finish(folder, name, done, damages, as_json=as_json)
        except NotRepairable as exc:
            raise Failure(f"{describe_partition(name)}: {exc}", ExitCode.NOT_FOUND) from exc
        if not as_json and any(damage.is_all for damage in repairs.damages):
            print_line(f"refused     everything, until `{repair_all_command(folder)}`")
    return code


def repair_all(folder: Path, disk: Disk, *, as_json: bool) -> int:
    """Read everything, repair what is damaged, and remove the reports without a name; 1 if anything
    is lost."""
    code = ExitCode.OK
    with _repairs(folder, disk) as repairs:
        repairs.scrub()
        names = [name for name in repairs.names() if staged_part_of(name) is None]
        with Progress("repaired", what="channel or stream", total=len(names)) as progress:
            for name in names:
                damages = _reported(repairs, name)
                done = repairs.repair(name)
                code = max(code, _finish(folder, name, done, damages, as_json=as_json))
                progress.add(1, 0)
        # Printed first: a repair that is interrupted prints it again.
        for damage in repairs.unnamed:
            code = ExitCode.FAILURE
            if as_json:
                print_json({"where": damage.where, "text": damage.text, "all": damage.is_all})
            else:
                print_line(f"reported    {damage.where}: {damage.text}")
        repairs.forget_unnamed()
        if not names and not as_json:
            print_line("repaired    nothing: no channel or stream is damaged")
    return code


@contextmanager
def _repairs(folder: Path, disk: Disk) -> Iterator[FolderRepair]:
    """The repairs of a folder, which is locked meanwhile."""
    # `doctor` reports the others itself.
    logging.getLogger("millpond.actors").addHandler(QUIET)
    now = current_environment().wall()
    rules = LogRules(base_of, partial(creation_of, now_ms=int(now * 1000)))
    with explain_folder_errors(folder):
        check_owner(folder)
        lock = FolderLock(folder)
        try:
            used = was_used(folder)
            with closing(FolderRepair(folder, disk, rules, was_used=used, now=now)) as repairs:
                yield repairs
        finally:
            lock.release()


def _reported(repairs: FolderRepair, name: bytes) -> list[str]:
    return [f"{each.where}: {each.text}" for each in repairs.damages if each.name == name]


def _show_page(progress: Progress, page: int, pages: int) -> None:
    progress.total = pages
    count = page - progress.records
    progress.add(count, count * PAGE_BYTES)


def _finish(
    folder: Path, name: bytes, done: Repaired, damages: list[str], *, as_json: bool
) -> ExitCode:
    """Print what a repair has done."""
    # It was made of records that are lost as well.
    state_file(folder, stream_of(name) or b"").unlink(missing_ok=True)
    if as_json:
        print_json(_object(name, done, damages))
    else:
        for line in _lines(name, done, damages):
            print_line(line)
    is_complete = done.is_complete and not _is_of_journal(damages)
    return ExitCode.OK if is_complete else ExitCode.FAILURE


def _object(name: bytes, done: Repaired, damages: list[str]) -> dict[str, object]:
    if _is_stream(done):
        kind, lost = "stream", _ranges(done)
    else:
        kind, lost = "channel", [str(each) for each in done.lost]
    return {
        kind: partition_name(name),
        "messages": done.messages,
        "in_file": done.in_file,
        "lost": lost,
        "lost_count": _lost_count(done),
        "at_least": _is_minimum(done, damages),
        "delivery_known": done.is_delivery_known,
        "skipped": None if done.skipped is None else _range(done.skipped),
        "lost_properties": done.lost_metadata if done.is_metadata_known else None,
        "settings_lost": done.is_created_anew,
        "complete": done.is_complete and not _is_of_journal(damages),
        "moved_to": None if done.moved is None else str(done.moved),
        "damages": damages,
    }


def _is_stream(done: Repaired) -> bool:
    """True: it is a log."""
    return done.kind is PartitionKind.LOG


def _lost_count(done: Repaired) -> int | None:
    """The number of messages or records that are known to be lost; None: there may be more, or some
    of them never were."""
    if not _is_stream(done):
        return done.lost_count
    if not (done.is_whole_known and done.is_lost_counted):
        return None
    return sum(last + 1 - first for first, last in done.lost_records)


def _is_minimum(done: Repaired, damages: list[str]) -> bool:
    """True: more may be lost than is counted."""
    is_more = done.is_lost_minimum or _is_of_journal(damages)
    return _lost_count(done) is not None and is_more


def _is_of_journal(damages: list[str]) -> bool:
    return any(".journal" in each for each in damages)


def _lines(name: bytes, done: Repaired, damages: list[str]) -> Iterator[str]:
    how_many = _records if _is_stream(done) else counted
    subject = describe_partition(name)
    yield from (f"damaged     {each}" for each in damages)
    if done.moved is not None:
        yield f"moved to    {done.moved}: the old file, as it was"
        yield f"read        {how_many(done.in_file)} of it; the journal had what came later"
    yield from (f"lost        {each}" for each in _losses(done, damages))
    if done.skipped is not None:
        yield f"skipped     {_range(done.skipped)}: sequences that are not given out again"
    if done.is_gone:
        yield f"repaired    nothing is left of {subject}: it does not exist until it is used again"
    elif name in CATALOGS:
        yield f"repaired    {subject} is served again"
    else:
        yield f"repaired    {subject} has {how_many(done.messages)}, and is served again"


def _losses(done: Repaired, damages: list[str]) -> Iterator[str]:
    count = _lost_count(done)
    is_minimum = _is_minimum(done, damages)
    if count:
        how_many = _records(count) if _is_stream(done) else counted(count)
        yield f"at least {how_many}" if is_minimum else how_many
    lost = [str(each) for each in done.lost] or _ranges(done)
    if lost:
        more = f" and {len(lost) - LOST_SHOWN} more" if len(lost) > LOST_SHOWN else ""
        what = "records " if _is_stream(done) else "ids "
        yield f"{what}{', '.join(lost[:LOST_SHOWN])}{more}: not what was written"
    if done.is_lost_minimum and not count:
        yield "perhaps messages: removed ones that are back may stand for them"
    if count is None:
        if not _is_stream(done):
            yield "perhaps more messages: nothing tells how many there were"
        elif done.is_whole_known:
            yield "fewer records than that: an earlier repair had lost or skipped some of these"
        else:
            yield "perhaps records before the first and after the last one as well"
    if not done.is_delivery_known:
        yield "perhaps subscribers, acks or attempts: messages may be delivered again"
    yield from _lost_properties(done)
    if done.is_created_anew:
        yield "the settings of the stream: it has those of the node now"
    if _is_of_journal(damages):
        yield "what was in that part of the journal; nobody can tell what it was"


def _lost_properties(done: Repaired) -> Iterator[str]:
    what = "of its properties: settings, offsets, tokens or entries"
    if done.lost_metadata:
        yield f"{'' if done.is_metadata_known else 'at least '}{done.lost_metadata} {what}"
    elif not done.is_metadata_known:
        yield f"perhaps some {what}; nothing tells how many there were"


def _ranges(done: Repaired) -> list[str]:
    """Sequences of lost records, the last one of each range included."""
    return [_range(each) for each in done.lost_records]


def _range(sequences: tuple[int, int]) -> str:
    first, last = sequences
    return f"{first}-{last}" if first < last else f"{first}"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
