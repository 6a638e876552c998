"""The source files of a program, watched for changes (`millpond work --reload`)."""

from __future__ import annotations

import sys
import sysconfig
from itertools import islice
from pathlib import Path
from traceback import walk_tb

FILES_MAX = 10_000
"""The most files that are watched."""
EVERY_S = 0.5
"""The time between two looks."""
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
OWN = ("millpond", "__main__")

Stamp = tuple[int, int]


class SourceFiles:
    """The files of the loaded modules, but installed ones; `changed` compares them with before.

    It is made before the modules are loaded, so that a change of a file in `folder` during the load
    is seen.
    """

    def __init__(self, folder: Path) -> None:
        paths = sysconfig.get_paths()
        self._installed = tuple(f"{paths[each]}/" for each in INSTALLED)
        self._folder = folder
        self._of_error: set[str] | None = None
        self._stamps: dict[str, Stamp | None] = {each: _stamp(each) for each in self._in_folder()}

    def failed(self, error: BaseException) -> None:
        """The load failed: the files of the traceback count as well, and all in the folder, also
        new ones."""
        self._of_error = files_of_error(error)
        for path in self._of_error:
            self._stamps.setdefault(path, _stamp(path))

    def changed(self) -> str | None:
        """The name of a file that has another time or size than before; None: all are as they
        were. A module that is loaded late is watched from then on."""
        found = None
        for path in self._paths()[:FILES_MAX]:
            stamp = _stamp(path)
            if stamp is None:  # an editor replaces it
                continue
            is_new = path not in self._stamps
            if self._stamps.get(path) != stamp:
                self._stamps[path] = stamp
                found = found if is_new and self._of_error is None else path
        return found

    def _paths(self) -> list[str]:
        paths: dict[str, None] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] not in OWN and isinstance(file, str):
                paths[file] = None
        if self._of_error is not None:
            paths |= dict.fromkeys([*self._of_error, *self._in_folder()])
        return [each for each in paths if not each.startswith(self._installed)]

    def _in_folder(self) -> list[str]:
        return [str(each) for each in islice(self._folder.glob("*.py"), FILES_MAX)]


def files_of_error(error: BaseException | None) -> set[str]:
    """The files of the frames of an error and its causes, and of wrong syntax."""
    files: set[str] = set()
    while error is not None:
        files |= {frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)}
        if isinstance(error, SyntaxError) and error.filename:
            files.add(error.filename)
        error = error.__cause__ or error.__context__
    return files


def _stamp(path: str) -> Stamp | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
