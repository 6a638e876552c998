"""A volume that can lose its power: ext4 in an image, on a loop device, shut down without a flush.

The kernel's shutdown call (EXT4_IOC_SHUTDOWN without a flush of the log) ends all input and output
of the file system at once. Data that was written and not synced is lost, like names whose folder
was not synced, unless the kernel had written them back by itself. The next mount replays the log of
ext4, as after a loss of power. Mounting needs the rights of root and a loop device.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSH = (2).to_bytes(4, "little")
IMAGE_BYTES = 512 * 1024 * 1024


class NoVolume(Exception):
    """The machine mounts no images: no rights, no loop device, or no mkfs.ext4."""


class Volume:
    """An ext4 file system, mounted at `at`. Its image and mount point are made in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Make and mount it. Raises NoVolume."""
        self._image = folder / "volume.ext4"
        self.at = folder / "volume"
        self.at.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def cut_power(self) -> None:
        """End all input and output at once; nothing that waits is written."""
        handle = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(handle)

    def power_up(self) -> None:
        """Mount it again, with what reached the image. Nobody may use it at this moment."""
        self.close()
        self._mount()

    def close(self) -> None:
        """Unmount it."""
        _run("umount", str(self.at))

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.at))


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoVolume(f"{words[0]} is not installed") from error
    if done.returncode:
        raise NoVolume(f"{' '.join(words)}: {done.stderr.strip()}")
