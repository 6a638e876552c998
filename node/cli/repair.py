"""`millpond doctor --repair`: makes one damaged channel usable again, and tells what it did."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from actors.store.disk import OsDisk
from actors.store.repair import NotRepairable, Repaired, repair
from node.cli.doctor_folder import known_damages
from node.cli.exits import Exit, Failure
from node.cli.folder import as_owner, folder_explained
from node.cli.output import counted, print_json, print_line
from node.storage import FolderLock

LOST_SHOWN = 20


def repair_channel(folder: Path, name: bytes, *, as_json: bool) -> int:
    """Repair a channel of a stopped node."""
    logging.getLogger("actors").addHandler(logging.NullHandler())  # `doctor` tells of the others
    shown = os.fsdecode(name)
    with folder_explained(folder):
        as_owner(folder)
        lock = FolderLock(folder)
        try:
            damages = known_damages(folder, name)
            done = repair(folder, OsDisk(), name)
        except NotRepairable as exc:
            raise Failure(f"channel {shown!r}: {exc}", Exit.NOT_FOUND) from exc
        finally:
            lock.release()
    if as_json:
        lost = [str(each) for each in done.lost]
        aside = None if done.aside is None else str(done.aside)
        counts = {"messages": done.messages, "in_file": done.in_file}
        print_json({"channel": shown, **counts, "lost": lost, "aside": aside, "damages": damages})
    else:
        for line in _lines(shown, done, damages):
            print_line(line)
    return Exit.OK


def _lines(shown: str, done: Repaired, damages: list[str]) -> list[str]:
    lines = [f"damaged     {each}" for each in damages]
    if done.aside is not None:
        lines.append(f"set aside   {done.aside}: the old file, as it was")
        lines.append(f"read        {counted(done.in_file)} of it; the journal had what came later")
    if done.lost:
        ids = ", ".join(map(str, done.lost[:LOST_SHOWN]))
        more = f" and {len(done.lost) - LOST_SHOWN} more" if len(done.lost) > LOST_SHOWN else ""
        lines.append(f"lost        {ids}{more}: not what was written")
    if any(".journal" in each for each in damages):
        lines.append(
            "lost        what was in that part of the journal; nobody can tell what it was"
        )
    lines.append(f"repaired    channel {shown!r} has {counted(done.messages)}, and is served again")
    return lines
