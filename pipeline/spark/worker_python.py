"""The Python of Spark's workers on this machine, which imports PySpark from its folder.

Spark puts a ZIP file of PySpark before all other paths. It has no bytecode, so each process of
Spark's Python would compile PySpark anew, which takes most of a second.
"""

from __future__ import annotations

import os
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

SHIM_FOLDER = "python-for-spark"
PACKAGES = ("pyspark", "py4j")
_SHIM = """#!/bin/sh
# The same files as those of the ZIP file, with their bytecode.
if [ "${{PYTHONPATH%%:*}}" -ef '{zip_file}' ]; then
    export PYTHONPATH='{packages}':"$PYTHONPATH"
fi
exec '{python}' "$@"
"""


def worker_python(python: Path, cache: Path) -> Path:
    """A script that runs this python, written into `cache`; for use as PYSPARK_PYTHON.

    It is the python itself where PySpark is not installed as pip does it, with a ZIP file.
    """
    installed = [folder for each in PACKAGES if (folder := _folder_of(each)) is not None]
    zip_file = installed[0] / "python" / "lib" / "pyspark.zip" if installed else None
    if zip_file is None or len(installed) < len(PACKAGES) or not zip_file.is_file():
        return python
    names = "\0".join(map(str, (python, *installed)))
    home = cache / SHIM_FOLDER / sha256(names.encode()).hexdigest()[:16]
    packages = home / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    for folder in installed:
        link = packages / folder.name
        if not link.is_symlink():
            temporary = packages / f".{folder.name}.{os.getpid()}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(folder, target_is_directory=True)
            temporary.replace(link)
    text = _SHIM.format(
        zip_file=_quoted(zip_file), packages=_quoted(packages), python=_quoted(python)
    )
    script = home / "python"
    temporary = home / f".python.{os.getpid()}"
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(script)
    return script


def _folder_of(package: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _quoted(path: Path) -> str:
    """The path for a shell, between single quotes."""
    return str(path).replace("'", "'\\''")
