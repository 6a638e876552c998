"""Worlds in which the damaged folder of a node is repaired: what the repair prints is true.

The node stops, is killed or loses its power, one of its files is damaged, perhaps it runs on it for
a while, `doctor --repair-all` runs, perhaps on a disk that fails, and the node starts again. Then
it serves every name, and what it serves is compared with what was acknowledged and printed.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from errno import EIO
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import anyio

from millpond.actors.errors import UnknownStream
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.repair.quarantine import read_reports
from millpond.actors.streams.names import stream_cell
from millpond.errors import HandshakeRefused, StorageFailed
from millpond.node.cli.doctor.repair import repair_all
from millpond.node.cli.exit_codes import Failure
from millpond.node.testing.disk.damage import DIVERTED, PAGE_BYTES, DamageKind
from millpond.node.testing.disk.faults import DiskCall
from millpond.node.testing.disk.simulated import SimulatedDisk
from millpond.testing import SimNode, World
from tests.sim.nodes.livelock import reading_loop

CHANNELS = ("orders", "mail", "news")
STREAMS = ("audit", "clicks")
BATCHES_MAX = 4
COUNT_MAX = 12
SIZE_MIN, SIZE_MAX = 16, 3000
END_BYTES = 8
"""The bytes at both ends of the data of a message by which it is found in a file."""
SETTLED_S = 10.0
"""After this time messages go to files."""
REPAIRS_MAX = 4
MARGIN_BYTES = 128
"""The bytes around the data of a message in a file that belong to it."""
HEAD_BYTES = 512
"""The head of a page, without which nothing tells where its rows begin."""
Line = dict[str, Any]


@dataclass
class Cell:
    """A channel or a stream: what was acknowledged, by id or sequence.

    `kept` has to be there, `maybe` may be: acknowledged messages, trimmed records, lost ones.
    `written` is all that clients sent, also what was refused. No id or sequence below `next` is
    given out any more.
    """

    kept: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, bytes] = field(default_factory=dict)
    written: set[bytes] = field(default_factory=set)
    next: int = 0

    def remove(self, number: int) -> None:
        """A client does not want this one any more."""
        self.maybe[number] = self.kept.pop(number)


@dataclass
class Damage:
    """One file that is damaged, with its bytes before and after."""

    kind: DamageKind
    path: Path
    before: bytes
    after: bytes


@dataclass
class Repair:
    """The repair of a folder: its exit code, and all the lines that it printed."""

    code: int = 0
    lines: list[Line] = field(default_factory=list)
    interruptions: int = 0

    def of(self, name: str) -> list[Line]:
        """The lines about a channel or stream, in their order."""
        return [each for each in self.lines if name in (each.get("channel"), each.get("stream"))]

    @property
    def is_of_all(self) -> bool:
        """Every name may have lost something, also one of which nothing is left."""
        return any(each.get("all") for each in self.lines)


@dataclass
class Folder:
    """Everything that is known of the folder of one world."""

    seed: int
    channels: dict[str, Cell]
    streams: dict[str, Cell]
    damage: Damage | None = None
    was_run_damaged: bool = False
    damages: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    lost: int = 0

    @property
    def cells(self) -> dict[str, Cell]:
        """The channels and streams by name."""
        return self.channels | self.streams


def live(seed: int, folder: Path) -> Folder:
    """A world of a seed, from beginning to end. Raises AssertionError for a wrong answer."""
    found = Folder(seed, {name: Cell() for name in CHANNELS}, {name: Cell() for name in STREAMS})
    anyio.run(_live, found, folder, backend_options={"loop_factory": reading_loop})
    return found


async def _live(found: Folder, folder: Path) -> None:
    rng = Random(f"repaired {found.seed}")
    segment = rng.choice((2**14, 2**15))
    async with World(found.seed, folder=folder, threads=False, timeout_s=120) as world:
        node = await world.node("pond", segment_bytes=segment, journal_bytes_max=2 * segment)
        disk = world.disk("pond")
        for _ in range(rng.randint(1, 3)):
            await _fill(world, node, found, rng)
            is_stopped = await _end(node, rng)
            if rng.random() < 0.9:
                _damage(disk, found, rng, is_stopped=is_stopped)
            if rng.random() < 0.3:
                await node.start()
                found.was_run_damaged = True
                await _fill(world, node, found, rng)
                await _end(node, rng)
            done = _repaired(world, node, rng)
            found.repairs.append(done)
            assert found.damage or (done.code, done.lines) == (0, []), done
            disk.keep_copies()
            await node.start()
            assert read_reports(node.folder / "damaged", disk) == [], "all is repaired"
            await _check(node, found, done)
            found.damage, found.was_run_damaged = None, False


async def _end(node: SimNode, rng: Random) -> bool:
    """End the node. True: it was a clean stop."""
    is_stopped = rng.random() < 0.6
    await (node.stop() if is_stopped else node.crash(power=rng.random() < 0.3))
    return is_stopped


# Clients.


async def _fill(world: World, node: SimNode, found: Folder, rng: Random) -> None:
    """Write to some names, and remove some of what is there."""
    for _ in range(rng.randint(1, BATCHES_MAX)):
        for name in rng.sample(CHANNELS, 2):
            await _unless_refused(found, _put, node, found.channels[name], name, rng)
        for name in rng.sample(STREAMS, 1):
            await _unless_refused(found, _append, node, found.streams[name], name, rng)
        await world.clock.sleep(rng.choice((0.1, SETTLED_S)))


async def _unless_refused(
    found: Folder, work: Callable[..., Awaitable[None]], *args: object
) -> None:
    try:
        await work(*args)
    except (StorageFailed, HandshakeRefused) as error:
        assert isinstance(error, StorageFailed) or "storage failed" in str(error), error
        assert found.was_run_damaged, "nothing is refused on a sound or repaired disk"


async def _put(node: SimNode, cell: Cell, name: str, rng: Random) -> None:
    async with node.connect(name) as channel:
        for _ in range(rng.randint(1, COUNT_MAX)):
            data = rng.randbytes(rng.randint(SIZE_MIN, SIZE_MAX))
            cell.written.add(data)
            receipt = await channel.put(data, ttl=100_000)
            assert receipt.id >= cell.next, "an id comes again"
            cell.next = receipt.id + 1
            cell.kept[receipt.id] = data
        if cell.kept and rng.random() < 0.4:
            for number in rng.sample(sorted(cell.kept), rng.randint(1, min(3, len(cell.kept)))):
                cell.remove(number)
                await channel.ack(number)


async def _append(node: SimNode, cell: Cell, name: str, rng: Random) -> None:
    async with node.streams() as streams:
        stream = streams.stream(name)
        if not cell.next:
            await stream.create()
        for _ in range(rng.randint(1, COUNT_MAX)):
            some = [
                rng.randbytes(rng.randint(SIZE_MIN, SIZE_MAX)) for _ in range(rng.randint(1, 3))
            ]
            cell.written.update(some)
            receipt = await stream.append(some)
            assert receipt.first >= cell.next, "a sequence comes again"
            cell.next = receipt.first + receipt.count
            cell.kept.update(enumerate(some, receipt.first))
        if cell.kept and rng.random() < 0.2:
            below = rng.choice(sorted(cell.kept))
            for number in [each for each in cell.kept if each < below]:
                cell.remove(number)
            await stream.trim(below)


# Damage and repair.


def _damage(disk: SimulatedDisk, found: Folder, rng: Random, *, is_stopped: bool) -> None:
    """Damage one file. After a crash the newest segment is left alone: its end cannot be told from
    a torn tail."""
    kind = rng.choice(list(DamageKind))
    paths = disk.copies() if kind is DamageKind.STALE else disk.paths()
    newest = max((each for each in paths if each.suffix == ".journal"), default=None)
    paths = [each for each in paths if is_stopped or each != newest]
    if not paths:
        return
    path = rng.choice(paths)
    before = _content(disk, path)
    if disk.damage(kind.value, path):
        found.damage = Damage(kind, path, before, _content(disk, path))
        found.damages.append(f"{kind.value} {path.name}")


def _content(disk: SimulatedDisk, path: Path) -> bytes:
    return disk.read(path) if disk.has(path) else b""


def _repaired(world: World, node: SimNode, rng: Random) -> Repair:
    """Repair the folder; some repairs are interrupted by the disk or the loss of power."""
    disk, done = world.disk("pond"), Repair()
    was_failing = False
    for _ in range(REPAIRS_MAX):
        is_failing = rng.random() < 0.2
        was_failing |= is_failing
        if is_failing:
            times = rng.choice((1, inf))
            disk.faults.add(frozenset(DiskCall), EIO, times, skipped=rng.randrange(300))
        try:
            _run(node, disk, done)
        except Failure:
            assert is_failing
            done.interruptions += 1
        else:
            break
        finally:
            disk.heal()
            disk.end_process()
            if rng.random() < 0.3:
                disk.lose_power()
    else:
        _run(node, disk, done)
        disk.end_process()
    if was_failing:  # what was told may be told again
        again = Repair()
        _run(node, disk, again)
        assert all(line in done.lines for line in again.lines), again
    last = Repair()
    _run(node, disk, last)
    assert (last.code, last.lines) == (0, []), f"a repair leaves something to repair: {last}"
    return done


def _run(node: SimNode, disk: SimulatedDisk, done: Repair) -> None:
    """`doctor --repair-all --json`."""
    output = io.TextIOWrapper(io.BytesIO())
    try:
        with redirect_stdout(output):
            done.code = max(done.code, repair_all(node.folder, disk, as_json=True))
    finally:
        assert sys.stdout is not output
        buffer = output.detach()
        assert isinstance(buffer, io.BytesIO)
        done.lines += map(json.loads, buffer.getvalue().splitlines())


# Checks.


async def _check(node: SimNode, found: Folder, done: Repair) -> None:
    """All is served that was acknowledged, but what the repair lost, which it says."""
    for name, cell in found.channels.items():
        await _check_channel(node, found, done, name, cell)
    for name, cell in found.streams.items():
        if cell.next:
            await _check_stream(node, found, done, name, cell)


async def _check_channel(node: SimNode, found: Folder, done: Repair, name: str, cell: Cell) -> None:
    async with node.connect(name, window=0) as channel:
        served = {each: await channel.get(each) for each in await channel.list(limit=1000)}
    lost = _lost(found, done, name, cell, served)
    lines = done.of(name)
    for line in lines:
        assert not {int(each) for each in line["lost"]} & served.keys(), "it says that it is lost"
    if lines:
        assert lines[-1]["messages"] == len(served), lines
    # An older page has removed messages, which hide as many that are lost.
    is_minimum = any(line["at_least"] for line in lines) and _may_be_older(found.damage)
    if lost and lines and not is_minimum and not any(_is_unknown(line) for line in lines):
        assert sum(line["lost_count"] for line in lines) >= len(lost), lines


async def _check_stream(node: SimNode, found: Folder, done: Repair, name: str, cell: Cell) -> None:
    served: dict[int, bytes] = {}
    async with node.streams() as streams:
        stream = streams.stream(name)
        try:
            info = await stream.info()
        except UnknownStream:
            assert not cell.kept or done.is_of_all or done.of(name), f"{name} vanishes"
            await stream.create()
            info = await stream.info()
        async for each in stream.records(0):
            served[each.sequence] = each.data
    assert info.tail >= cell.next, f"{name}: sequences from {info.tail} on come again"
    lost = _lost(found, done, name, cell, served)
    lines = done.of(name)
    named = [each for line in lines for each in _ranges(line)]
    assert not any(_is_in(named, each) for each in served), "it says that they are lost"
    if lines:
        assert lines[-1]["messages"] == len(served), (lines, len(served))
    if lines and not any(_is_unknown(line) for line in lines):
        untold = sorted(each for each in lost if not _is_in(named, each))
        assert not untold, f"{name}: nothing is said of {untold}: {lines}"


def _may_be_older(damage: Damage | None) -> bool:
    """The damage may have brought an older page back."""
    return damage is not None and damage.kind in (
        *DIVERTED,
        DamageKind.STALE,
        DamageKind.STALE_PAGE,
    )


def _is_unknown(line: Line) -> bool:
    """The line says that more may be lost than it names."""
    return line["lost_count"] is None or any(".journal" in each for each in line["damages"])


def _ranges(line: Line) -> Iterator[range]:
    """The sequences that are lost or skipped."""
    for each in [*line["lost"], *([line["skipped"]] if line["skipped"] else [])]:
        first, _, last = each.partition("-")
        yield range(int(first), int(last or first) + 1)


def _is_in(ranges: list[range], number: int) -> bool:
    return any(number in each for each in ranges)


def _lost(found: Folder, done: Repair, name: str, cell: Cell, served: dict[int, bytes]) -> set[int]:
    """The acknowledged messages or records that are not served; from now on nobody expects them."""
    refused = cell.written.difference(cell.kept.values(), cell.maybe.values())
    for number, data in served.items():
        known = cell.kept.get(number, cell.maybe.get(number))
        is_own = data == known or (known is None and data in refused)
        assert is_own, "nothing is made up, of another one, or there twice"
    lost = cell.kept.keys() - served.keys()
    if lost:
        lines = done.of(name)
        assert found.damage, f"{name} loses {len(lost)} on a sound disk"
        assert done.code or done.interruptions, f"{name} loses {len(lost)}, and the exit code is 0"
        assert lines or done.is_of_all, f"{name} loses {len(lost)}, and nothing is printed"
        assert not lines or not all(line["complete"] for line in lines), f"{name} is not complete"
        if not found.was_run_damaged:
            _check_extent(found.damage, name, [cell.kept[number] for number in lost])
    found.lost += len(lost)
    cell.maybe.update((number, cell.kept.pop(number)) for number in lost)
    for number in cell.maybe.keys() & served.keys():
        cell.kept[number] = cell.maybe.pop(number)
    cell.kept.update(served)
    return set(lost)


def _check_extent(damage: Damage, name: str, lost: list[bytes]) -> None:
    """Only what was in the damaged file is lost, and of a file only what was hit."""
    text = f"{damage.kind.value} {damage.path.name}: {name}"
    for data in lost:
        # Data larger than a page goes on in others.
        ends = data[:END_BYTES], data[-END_BYTES:]
        assert any(end in damage.before for end in ends), f"{text}: what is lost was elsewhere"
    if damage.path.parent.name == "journal":
        return
    assert damage.path.name == Path(file_name(_owner(name))).name, f"{text} is not its owner"
    if damage.kind is not DamageKind.STALE and name in CHANNELS:
        hit = [data for data in lost if _is_hit(damage, data)]
        assert len(hit) == len(lost), f"{text}: {len(lost) - len(hit)} are lost that are sound"


def _owner(name: str) -> bytes:
    """The name that the header of a file has for a channel or stream."""
    return stream_cell(name.encode()) if name in STREAMS else name.encode()


def _is_hit(damage: Damage, data: bytes) -> bool:
    """A copy of the data, what is next to it, or the head of its page has other bytes than
    before."""
    at = damage.before.find(data)
    while at >= 0:
        page = at - at % PAGE_BYTES
        parts = (
            slice(max(at - MARGIN_BYTES, 0), at + len(data) + MARGIN_BYTES),
            slice(page, page + HEAD_BYTES),
        )
        if any(damage.before[part] != damage.after[part] for part in parts):
            return True
        at = damage.before.find(data, at + 1)
    return False
