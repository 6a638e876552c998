"""Checks of a data folder. Nothing is changed; files are read as copies."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from millpond.actors.store.catalog_copy import COPY, read_copy
from millpond.actors.store.catalog_recovery import LOST, OLD, RESTORED, has_traces, lost_catalog
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.journal.format import UnknownVersion
from millpond.actors.store.journal.reader import NOTHING_KNOWN, JournalContents, read_journal
from millpond.actors.store.partitions.catalog import CATALOG, Catalog, Listed, check_listed
from millpond.actors.store.partitions.cold_logs import cold_text
from millpond.actors.store.partitions.file_pool import FilePool, file_name
from millpond.actors.store.partitions.log_tables import ColdCount
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.actors.store.recovery import journal_damages, segments_known, unlisted_damages
from millpond.actors.store.repair.quarantine import Damage, read_reports
from millpond.actors.streams.names import (
    BASINS,
    CHANNELS,
    FLOWS,
    SCHEDULES,
    TOKENS,
    TOPICS,
    basin_stream_of,
    qualified_name_of,
    results_channel_of,
    staged_part_of,
    stream_of,
    subscription_of,
)
from millpond.node.cli.doctor.finding import Finding
from millpond.node.cli.options.data_folder import DISK_ERRORS, is_data_folder
from millpond.node.clock import BEHIND_S_MIN, JUMP_S_MAX, continued_time, is_same_boot
from millpond.node.clock_file import stored_reading
from millpond.node.data_folder import (
    CopyOnOpenDisk,
    FolderInUse,
    FolderLock,
    UnchangingDisk,
    was_used,
)
from millpond.node.environment import current_environment
from millpond.node.replica.standby import COPY as STANDBY_COPY
from millpond.node.replica.standby import REPLACED

SYNCS, SYNC_BYTES = 50, 4096
SLOW_SYNC_MS = 20.0
FREE_BYTES_MIN, FREE_PART_MIN = 2**30, 0.05
OTHERS_MAY = 0o077
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def folder_findings(folder: Path) -> Iterator[Finding]:
    """The findings about a folder: its disk, its lock, and its content if no node uses it."""
    try:
        yield _permissions(folder)
        yield from _clock(folder)
        yield _space(folder)
        yield _syncs(folder)
        with _locked(folder):
            yield Finding("lock", "ok", "no node uses it")
            yield from _standby(folder)
            if is_data_folder(folder):
                yield from _stopped(folder)
    except FolderInUse as exc:
        text = f"{folder} is in use by {exc.holder}; stop it to check the files, or use --scrub"
        yield Finding("lock", "ok", text)
        yield from _standby(folder)
        yield from _reported_damage(folder)
    except OSError as exc:
        advice = "run this as its owner"
        if exc.errno in DISK_FULL:
            advice = f"free space in {gettempdir()} for copies of the files, or set TMPDIR"
        text = f"{folder}: {exc.filename or 'write'}: {exc.strerror}; {advice}"
        yield Finding("data folder", "fail", text)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A lock against writers; a read-only disk needs none."""
    lock = None
    try:
        lock = FolderLock(folder)
    except OSError as exc:
        if exc.errno not in DISK_ERRORS:
            raise
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _reported_damage(folder: Path) -> Iterator[Finding]:
    """The damage that the running node has recorded."""
    for damage in read_reports(folder / "damaged", OsDisk()):
        subject = (
            "" if damage.name is None else f"{describe_partition(damage.name)} is not served; "
        )
        advice = f"stop the node, then `millpond doctor --data {folder}`"
        text = f"{subject}{damage.where}: {damage.text}; {advice}"
        yield Finding("damage", "fail", text)


def is_of_standby(folder: Path) -> bool:
    """True for the folder of a standby, which may have no store of its own yet."""
    return (folder / STANDBY_COPY).is_dir()


def _standby(folder: Path) -> Iterator[Finding]:
    """The copy of a standby, and the store that a takeover replaced."""
    if is_of_standby(folder):
        text = (
            f"{folder / STANDBY_COPY} is the copy of a replica: `millpond serve --standby` follows "
            "it, and puts it in the place of the store when it takes over"
        )
        yield Finding("standby", "ok", text)
    if (folder / REPLACED).is_dir():
        text = (
            f"{folder / REPLACED} is the store before the last takeover; remove it when nothing in "
            "it is missed"
        )
        yield Finding("standby", "ok", text)


def _permissions(folder: Path) -> Finding:
    status = folder.stat()
    if status.st_mode & OTHERS_MAY:
        text = f"other users can enter {folder}; `chmod 700 {shlex.quote(str(folder))}`"
        return Finding("data folder", "warn", text)
    if status.st_uid != os.geteuid():
        text = f"{folder} belongs to user {status.st_uid}; run the node as that user"
        return Finding("data folder", "warn", text)
    return Finding("data folder", "ok", str(folder))


def _clock(folder: Path) -> Iterator[Finding]:
    """The wall clock against the time that the folder has."""
    last = stored_reading(folder)
    if last is None:
        return
    boot = current_environment().boot
    ahead_s = time.time() - continued_time(last, boot)
    confirm = f"if it is right, `millpond doctor --data {shlex.quote(str(folder))} --confirm-clock`"
    if ahead_s <= -BEHIND_S_MIN:
        text = f"{-ahead_s:.0f} s behind the time of the data folder: set the clock; {confirm}"
        yield Finding("clock of data", "warn", text)
    elif ahead_s <= JUMP_S_MAX:
        yield Finding("clock of data", "ok", "the wall clock agrees with the data folder")
    elif is_same_boot(last, boot):
        text = f"{ahead_s:.0f} s ahead of the time of the data folder; expiry is held; {confirm}"
        yield Finding("clock of data", "warn", text)
    else:
        text = f"last used {ahead_s:.0f} s ago; a node that starts holds expiry at first; {confirm}"
        yield Finding("clock of data", "ok", text)


def _space(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f}"
    if usage.free < max(FREE_BYTES_MIN, FREE_PART_MIN * usage.total):
        text += "; a node with a full disk refuses messages: free space, or move the folder"
        return Finding("disk space", "warn", text)
    return Finding("disk space", "ok", text)


def _syncs(folder: Path) -> Finding:
    """The time of a disk sync, measured with a temporary file."""
    path = folder / f"doctor-{os.getpid()}.tmp"
    block = os.urandom(SYNC_BYTES)
    times_ms = []
    try:
        file = OsDisk().create(path, SYNCS * SYNC_BYTES)
    except OSError as exc:
        if exc.errno not in DISK_ERRORS:
            raise
        return Finding("disk sync", "fail", f"{exc.strerror}: a node cannot store messages there")
    try:
        for number in range(SYNCS):
            file.write(block, number * SYNC_BYTES)
            began_at = time.perf_counter()
            file.sync()
            times_ms.append((time.perf_counter() - began_at) * 1000)
    finally:
        file.close()
        path.unlink()
    times_ms.sort()
    middle_ms, last_ms = times_ms[SYNCS // 2], times_ms[SYNCS * 99 // 100]
    text = f"p50 {middle_ms:.2f} ms, p99 {last_ms:.2f} ms of {SYNCS} syncs"
    if middle_ms > SLOW_SYNC_MS:
        text += "; slow: each receipt waits that long. Use another disk, or --durability os"
        return Finding("disk sync", "warn", text)
    return Finding("disk sync", "ok", text)


def content_findings(folder: Path) -> Iterator[Finding]:
    """The findings about the content of a folder that nobody uses, as a backup; it is not locked,
    and nothing is written to it."""
    return _stopped(folder, UnchangingDisk)


def _stopped(folder: Path, disk: type[CopyOnOpenDisk] = CopyOnOpenDisk) -> Iterator[Finding]:
    with TemporaryDirectory() as scratch:
        copies = disk(Path(scratch))
        try:
            catalog = _catalog_used(folder, copies, Path(scratch))
            found = _read_journal(folder, copies, catalog)
        except (UnknownVersion, OSError) as exc:
            yield Finding("journal", "fail", f"{exc}; a later version may have written it")
            return
        yield _journal(found)
        inspection = _Inspection(folder, copies, found, catalog)
        yield from inspection.catalog()
        yield from inspection.partitions()
        yield from inspection.damages()


def known_damages(folder: Path, name: bytes) -> list[str]:
    """The known damage of a partition, from its report and the journal; its file is not read.

    The caller holds the folder's lock. Raises UnknownVersion, OSError.
    """
    with TemporaryDirectory() as scratch:
        copies = CopyOnOpenDisk(Path(scratch))
        catalog = _catalog_used(folder, copies, Path(scratch))
        found = _read_journal(folder, copies, catalog)
        return _Inspection(folder, copies, found, catalog).damages_of(name)


def _catalog_used(folder: Path, disk: CopyOnOpenDisk, scratch: Path) -> Path:
    """The catalog that the next start uses: where that of the folder cannot be, or is older, one
    made of the copy of the last clean stop. The caller holds the folder's lock. Raises OSError."""
    path, copy = folder / CATALOG, read_copy(folder, disk)
    if copy is None:
        return path
    if path.exists():
        try:
            with closing(Catalog(path, disk)) as catalog:
                if copy.generation <= catalog.generation:
                    return path
        except UnknownFormat:
            return path
        except (Damaged, sqlite3.Error):
            pass
    made = scratch / COPY
    made.write_bytes(copy.data)
    return made


def _read_journal(folder: Path, disk: CopyOnOpenDisk, path: Path) -> JournalContents:
    """The journal, compared with the list of the catalog if that can be read."""
    known = NOTHING_KNOWN
    if path.exists():
        try:
            with closing(Catalog(path, disk)) as catalog:
                known = segments_known(catalog, catalog.partitions())
        except (Damaged, sqlite3.Error):
            pass  # the check of the catalog tells of it
    return read_journal(folder / "journal", OsDisk(), known)


def _journal(found: JournalContents) -> Finding:
    size = sum(found.segments.values())
    text = f"{len(found.segments)} segments, {size / 2**20:.1f} MiB, {len(found.records)} records"
    if found.torn_bytes:
        text += f"; the last {found.torn_bytes} bytes are torn: they were never acknowledged"
    return Finding("journal", "ok", text)


class _Inspection:
    """The check of catalog and partitions; the methods are called in their order."""

    def __init__(
        self, folder: Path, disk: CopyOnOpenDisk, found: JournalContents, catalog: Path
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self._disk = disk
        self._found = found
        self._pool = FilePool(folder / "partitions", disk)
        self._damages = read_reports(folder / "damaged", disk)
        names = {record.name for _, record in found.records}
        self._listed: dict[bytes, Listed] = {}
        self._cold: dict[bytes, ColdCount] = {}
        self._names = names | {each.name for each in self._damages if each.name is not None}

    def catalog(self) -> Iterator[Finding]:
        """The catalog, and what the journal has lost according to it."""
        path, outlines = self._catalog, {}
        if not path.exists():
            used = was_used(self._folder)
            if has_traces(self._folder, self._disk) if used is None else used:
                yield self._lost_catalog(LOST)
            else:
                yield Finding("catalogue", "ok", "none; the next start creates it")
        else:
            try:
                with closing(Catalog(path, self._disk)) as catalog:
                    wrong = catalog.verify()
                    outlines, dirty = catalog.partitions(), catalog.dirty()
                    if catalog.generation < self._found.generation:
                        wrong = wrong or [OLD]
                listed = outlines.keys()
                self._listed = {name: Listed(outlines[name], name in dirty) for name in listed}
                self._damages += unlisted_damages(listed - dirty, listed, self._pool)
            except UnknownFormat as exc:
                yield Finding("catalogue", "fail", f"{exc}; a later version has written it")
                return
            except (Damaged, sqlite3.Error) as exc:
                wrong = [str(exc)]
            if wrong:
                yield self._lost_catalog(wrong[0])
            elif path.name == COPY:
                yield Finding("catalogue", "fail", f"it is lost, damaged or old; {RESTORED}")
            else:
                yield Finding("catalogue", "ok", f"{len(outlines)} partitions")
        self._names |= outlines.keys()
        self._damages += journal_damages(self._found, outlines)

    def _lost_catalog(self, text: str) -> Finding:
        """A catalog that the next start makes anew, which is damage of everything."""
        text = f"{text}; the next start rebuilds it"
        self._damages.append(lost_catalog(text))
        return Finding("catalogue", "fail", text)

    def partitions(self) -> Iterator[Finding]:
        """Every partition file, all of it."""
        names = {file_name(name): name for name in self._names}
        count = messages = 0
        for path in self._pool.paths():
            count += 1
            where = f"{path.parent.name}/{path.name}"
            try:
                name, kept, wrong = self._verify(path, names.get(where))
                messages += kept
            except (Damaged, sqlite3.Error, OSError) as exc:
                if isinstance(exc, OSError) and exc.errno in DISK_FULL:
                    raise  # of the copy
                name, wrong = names.get(where), [str(exc)]
            if wrong:
                more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                self._damages.append(Damage(where, wrong[0] + more, name))
        yield Finding("partitions", "ok", f"{count} files read, {messages} messages in them")
        if text := cold_text(self._cold):
            advice = "serve the folder with that (--replica URL)"
            yield Finding("cold records", "ok", f"{text} are in the replica alone: {advice}")

    def _verify(self, path: Path, named: bytes | None) -> tuple[bytes | None, int, list[str]]:
        """The name of a file's partition, its messages, and what is wrong with it. Raises Damaged,
        OSError, sqlite3.Error."""
        try:
            with closing(self._pool.look(path)) as partition:
                name = partition.metadata.name or named
                messages, wrong = partition.metadata.messages, partition.verify()
                if name in self._listed:
                    check_listed(self._listed[name], partition.metadata)
                if name is not None and (cold := partition.cold_count()).records:
                    self._cold[name] = cold
                return name, messages, wrong
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_READONLY or not isinstance(
                self._disk, UnchangingDisk
            ):
                raise
        self._disk.copy_next(path)  # it has what a crash left, which is removed
        return self._verify(path, named)

    def damages(self) -> Iterator[Finding]:
        """One finding for each damaged partition."""
        reported: set[bytes | str] = set()
        for damage in self._damages:
            key = damage.where if damage.name is None else damage.name
            if key not in reported:
                reported.add(key)
                yield Finding("damage", "fail", self._text(damage))
        if not reported:
            yield Finding("damage", "ok", "none")

    def damages_of(self, name: bytes) -> list[str]:
        """The texts of all damage of one partition."""
        for _ in self.catalog():
            pass
        found = {each.where: each.text for each in self._damages if each.name == name}
        return [f"{where}: {text}" for where, text in found.items()]

    def _text(self, damage: Damage) -> str:
        what = f"{damage.where}: {damage.text}"
        guide = "see docs/guides/troubleshooting.md"
        if damage.is_all:
            command = repair_all_command(self._folder)
            none = "any channel or stream may have lost data, and none is served"
            return f"{what}; {none}: `{command}`, and {guide}"
        if damage.where == CATALOG:
            return f"{what}; `{repair_all_command(self._folder)}` removes this report"
        if damage.name is None:
            return f"{what}; its owner is unknown: {guide}"
        if staged_part_of(damage.name) is not None:
            advice = "restart the query that wrote it: it writes the batch again"
            return f"{describe_partition(damage.name)} is not served; {what}; {advice}"
        advice = repair_command(self._folder, damage.name)
        return f"{describe_partition(damage.name)} is not served; {what}; `{advice}` repairs it"


CATALOGS = {
    TOPICS: "topics",
    BASINS: "basins",
    TOKENS: "tokens",
    CHANNELS: "channels",
    SCHEDULES: "schedules",
    FLOWS: "flows",
}


def describe_partition(name: bytes) -> str:
    """The kind and name of a partition; streams of other basins as `basin:name`."""
    if name in CATALOGS:
        return f"the catalog of {CATALOGS[name]}"
    stream, part, subscription = (
        qualified_name_of(name),
        staged_part_of(name),
        subscription_of(name),
    )
    if (channel := results_channel_of(name)) is not None:
        return f"the results of the jobs of {os.fsdecode(channel)!r}"
    if subscription is not None:
        return f"the subscription {os.fsdecode(subscription)!r}"
    if part is not None:
        subject = f"batch {part.batch} of {os.fsdecode(part.writer)!r} for the stream"
        return f"a part of {subject} {os.fsdecode(stream or b'')!r}"
    what, shown = ("channel", name) if stream is None else ("stream", stream)
    return f"{what} {os.fsdecode(shown)!r}"


def partition_name(name: bytes) -> str:
    """The name of a partition without its kind."""
    stream = qualified_name_of(name)
    if name in CATALOGS:
        return CATALOGS[name]
    if (channel := results_channel_of(name)) is not None:
        return os.fsdecode(channel)
    if (subscription := subscription_of(name)) is not None:
        return os.fsdecode(subscription)
    return os.fsdecode(name if stream is None else stream)


def repair_all_command(folder: Path) -> str:
    """The command that repairs everything."""
    return f"millpond doctor --data {shlex.quote(str(folder))} --repair-all"


def repair_command(folder: Path, name: bytes) -> str:
    """The command that repairs a partition."""
    stream = stream_of(name)
    if name in CATALOGS:
        words = [f"--repair-{partition_name(name)}"]
    elif subscription_of(name) is not None:
        words = ["--repair-subscription", partition_name(name)]
    elif results_channel_of(name) is not None:
        words = ["--repair-results", partition_name(name)]
    elif basin_stream_of(name) is not None:
        words = ["--repair-s2-stream", partition_name(name)]
    elif stream is None:
        words = ["--repair", os.fsdecode(name)]
    else:
        words = ["--repair-stream", os.fsdecode(stream)]
    return f"millpond doctor {' '.join(map(shlex.quote, ['--data', str(folder), *words]))}"
