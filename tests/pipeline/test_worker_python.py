"""The Python of Spark's workers: where it imports PySpark from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from zipfile import ZipFile

import pytest

from millpond.pipeline.spark import worker_python as workers

PYTHON = Path(sys.executable)
SHOWS = """
import json, os, py4j, pyspark, sys
print(json.dumps([pyspark.FROM, py4j.FROM, sys.argv[1:], os.environ["PYTHONPATH"]]))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages as pip has them, in a folder whose name a shell would take apart."""
    site = tmp_path / "it's $HOME"
    for name in workers.PACKAGES:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("FROM = 'folder'\n")
    library = site / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    with ZipFile(library / "pyspark.zip", "w") as packing:
        for name in workers.PACKAGES:
            packing.writestr(f"{name}/__init__.py", "FROM = 'zip'\n")

    def find_spec(name: str) -> ModuleSpec:
        return ModuleSpec(name, None, origin=str(site / name / "__init__.py"))

    monkeypatch.setattr(workers, "find_spec", find_spec)
    return library / "pyspark.zip"


def shown(python: Path, pythonpath: str, *words: str) -> list[object]:
    environ = os.environ | {"PYTHONPATH": pythonpath}
    command = [python, "-c", SHOWS, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_pyspark_is_imported_from_its_folder(installed: Path, tmp_path: Path) -> None:
    given = f"{installed}{os.pathsep}{tmp_path / 'ours'}"
    assert shown(PYTHON, given) == ["zip", "zip", [], given], "this is what Spark does"
    for _ in range(2):  # written once more, the script is the same
        script = workers.worker_python(PYTHON, tmp_path / "cache")
        *found, pythonpath = shown(script, given, "a b", "")
        assert found == ["folder", "folder", ["a b", ""]]
        assert str(pythonpath).endswith(f"{os.pathsep}{given}")


def test_a_zip_file_of_another_spark_is_left_where_it_is(installed: Path, tmp_path: Path) -> None:
    script = workers.worker_python(PYTHON, tmp_path / "cache")
    other = installed.rename(tmp_path / "other.zip")
    installed.write_bytes(b"")
    assert shown(script, str(other)) == ["zip", "zip", [], str(other)]


def test_without_a_zip_file_it_is_the_python_itself(installed: Path, tmp_path: Path) -> None:
    installed.unlink()
    assert workers.worker_python(PYTHON, tmp_path / "cache") == PYTHON
    assert not (tmp_path / "cache").exists()


def test_what_a_kill_left_unfinished_is_written_again(installed: Path, tmp_path: Path) -> None:
    """By a process of the same id, as the first one of a container always has."""
    script = workers.worker_python(PYTHON, tmp_path / "cache")
    link = script.parent / "packages" / "pyspark"
    link.rename(link.with_name(f".pyspark.{os.getpid()}"))
    assert workers.worker_python(PYTHON, tmp_path / "cache") == script
    assert shown(script, str(installed))[:2] == ["folder", "folder"]
