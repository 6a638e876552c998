"""The machine's memory: how much this process may use, and how freed memory goes back.

Linux limits a container's memory by its control group (version 2 or 1), which is often far less
than the machine has.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MAPPED_BYTES_MIN = 2 * 2**20
"""Blocks of this size are mapped each on its own, and go back when they are freed."""
KEPT_BYTES = 8 * 2**20
"""So many freed bytes at the end of the heap stay with the process."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def memory_bytes(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """The bytes of memory of this machine, or of its control group if that is less."""
    limits = [_machine_bytes(), *_cgroup_limits(cgroups, own)]
    return min(limit for limit in limits if limit > 0)


def keep_freed_blocks() -> None:
    """Have glibc keep freed blocks below MAPPED_BYTES_MIN for the next ones, up to KEPT_BYTES at
    the end of its heap. By itself it gives each block of a large message back to the system, and
    the kernel clears the pages of the next one: half of the time of an append of 1 MiB."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)


def trimmer() -> Callable[[], None]:
    """A function that gives freed memory back to the system (glibc's `malloc_trim`); one that does
    nothing where the C library has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda: None
    trim.argtypes = (ctypes.c_size_t,)

    def give_back() -> None:
        trim(0)

    return give_back


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 2**32  # a system that does not tell


def _cgroup_limits(cgroups: Path, own: Path) -> Iterator[int]:
    """The limits of this process's control groups and of those above them."""
    for line in _text(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            folder, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Within a container the path is often that outside of it: then only the root is there.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts) + 1):
            text = _text(folder.joinpath(*parts[:count], name)).strip()
            if text.isdigit():
                yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
