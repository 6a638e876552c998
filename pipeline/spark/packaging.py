"""The file for Spark's `--py-files`: all that executors need of this package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from millpond.pipeline.errors import PipelineError

PACKAGES = ("millpond/pipeline", "pyspark_millpond")


def pack(target: Path) -> Path:
    """Write the file. Raises PipelineError."""
    try:
        return _put(packed(), target)
    except OSError as error:
        raise PipelineError("bad_option", f"{target}: {error.strerror}") from None


def cached(cache: Path) -> Path:
    """The file in the cache folder, with a name that depends on the sources."""
    data = packed()
    target = cache / "packed" / f"millpond-pipeline-{sha256(data).hexdigest()[:16]}.zip"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    return _put(data, target)


def packed() -> bytes:
    """The file's bytes: the same for the same sources."""
    held = BytesIO()
    with ZipFile(held, "w") as packing:
        for name, content in _sources():
            entry = ZipInfo(name)
            entry.compress_type = ZIP_DEFLATED
            packing.writestr(entry, content)
    return held.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parents[3]
    yield "millpond/__init__.py", b""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_bytes()


def _put(data: bytes, target: Path) -> Path:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.write_bytes(data)
    return fresh.replace(target)
