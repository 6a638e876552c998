"""The output of received bytes: standard output, or the file of `-o`; with `--raw` as they are."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from millpond.node.cli.exit_codes import Failure, usage_error
from millpond.node.cli.output import write_async

NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EROFS)
"""Errors of fsync for what is no file on a disk, such as a pipe or a terminal."""


def add_byte_output(parser: argparse.ArgumentParser) -> None:
    """Add `--raw` and `-o`."""
    parser.add_argument(
        "--raw", action="store_true", help="print the bytes as they were put, without a newline"
    )
    parser.add_argument(
        "-o",
        dest="file",
        type=Path,
        metavar="FILE",
        help="write to FILE in place of stdout, as with --raw unless --json is given",
    )


class ByteOutput:
    """The output of one command, for a block. `is_raw`: bytes are written without a newline.

    The file is created, or emptied, before the first write: a command that gets nothing leaves it
    as it was. Raises Failure where it cannot be written, and for options that exclude one another.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        if args.raw and args.json:
            raise usage_error("--raw and --json exclude each other")
        self.is_raw: bool = not args.json and (args.raw or args.file is not None)
        self._file: Path | None = args.file
        self._fd: int | None = None
        if args.file is not None and args.file.is_dir():
            raise usage_error(f"-o: {args.file} is a folder")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    async def write(self, data: bytes) -> None:
        """Write and flush. A file is synced: the message may leave the node next."""
        if self._file is None:
            await write_async(data)
            return
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._fd = os.open(self._file, flags, 0o600)
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
            _sync(self._fd)
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise Failure(f"cannot write {self._file}: {exc.strerror}") from exc


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in NOT_SYNCED:
            raise
