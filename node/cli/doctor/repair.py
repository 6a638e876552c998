"""`millpond doctor --repair`: the repair of one damaged partition, and its report."""

from __future__ import annotations

import logging
from pathlib import Path

from millpond.actors.state.checkpoint_store import state_file
from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.repair.repair import NotRepairable, Repaired, repair
from millpond.actors.streams.durable.fork_log import base_of
from millpond.actors.streams.names import stream_of
from millpond.node.cli.doctor.data_folder import describe_partition, known_damages, partition_name
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.data_folder import check_owner, explain_folder_errors
from millpond.node.cli.output import counted, print_json, print_line
from millpond.node.data_folder import FolderLock

LOST_SHOWN = 20


def repair_partition(folder: Path, name: bytes, *, as_json: bool) -> int:
    """Repair a channel or stream of a stopped node."""
    # `doctor` reports the others itself.
    logging.getLogger("millpond.actors").addHandler(logging.NullHandler())
    with explain_folder_errors(folder):
        check_owner(folder)
        lock = FolderLock(folder)
        try:
            damages = known_damages(folder, name)
            done = repair(folder, OsDisk(), name, base_of)
            # It was made of records that are lost as well.
            state_file(folder, stream_of(name) or b"").unlink(missing_ok=True)
        except NotRepairable as exc:
            raise Failure(f"{describe_partition(name)}: {exc}", ExitCode.NOT_FOUND) from exc
        finally:
            lock.release()
    if as_json:
        print_json(_object(name, done, damages))
    else:
        for line in _lines(name, done, damages):
            print_line(line)
    return ExitCode.OK


def _object(name: bytes, done: Repaired, damages: list[str]) -> dict[str, object]:
    aside = None if done.aside is None else str(done.aside)
    if done.kind is PartitionKind.LOG:
        kind, lost = "stream", _ranges(done)
    else:
        kind, lost = "channel", [str(each) for each in done.lost]
    counts = {"messages": done.messages, "in_file": done.in_file}
    return {kind: partition_name(name), **counts, "lost": lost, "aside": aside, "damages": damages}


def _lines(name: bytes, done: Repaired, damages: list[str]) -> list[str]:
    how_many = _records if done.kind is PartitionKind.LOG else counted
    lines = [f"damaged     {each}" for each in damages]
    if done.aside is not None:
        lines.append(f"moved to    {done.aside}: the old file, as it was")
        lines.append(f"read        {how_many(done.in_file)} of it; the journal had what came later")
    lost = [str(each) for each in done.lost] or _ranges(done)
    if lost:
        more = f" and {len(lost) - LOST_SHOWN} more" if len(lost) > LOST_SHOWN else ""
        what = "records " if done.kind is PartitionKind.LOG else ""
        lines.append(
            f"lost        {what}{', '.join(lost[:LOST_SHOWN])}{more}: not what was written"
        )
    if not done.is_whole_known:
        lines.append("lost        perhaps records before the first and after the last one as well")
    if any(".journal" in each for each in damages):
        lines.append(
            "lost        what was in that part of the journal; nobody can tell what it was"
        )
    lines.append(
        f"repaired    {describe_partition(name)} has {how_many(done.messages)}, and is served again"
    )
    return lines


def _ranges(done: Repaired) -> list[str]:
    """Sequences of lost records, the last one of each range included."""
    return [f"{first}-{last}" if first < last else f"{first}" for first, last in done.lost_records]


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
