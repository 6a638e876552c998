"""The sdist and the wheel: what is in them, and that a user's program is typed against them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import anyio
import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("actors", "transports", "node", "pipeline")
PROGRAM = Path(__file__).with_name("typed_program.py")
LIMIT_S = 300.0
HEADER = Path(sysconfig.get_path("include"), "Python.h")
COMPILER = shutil.which("cc") is not None and HEADER.exists()


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(what: str, source: Path, target: Path, **environment: str) -> Path:
    """The package that the build backend builds from the sources in a folder. Its C code is not
    optimized, which takes most of the time."""
    environment = {"CFLAGS": "-O0"} | environment
    code = f"from setuptools import build_meta; print(build_meta.build_{what}({str(target)!r}))"
    return target / run([sys.executable, "-c", code], source, **environment).split()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def checkout(folder: Path) -> Path:
    """The files that git knows, so that a build leaves nothing behind in the sources."""
    target = folder / "checkout"
    for name in run(["git", "ls-files", "-co", "--exclude-standard"], ROOT).splitlines():
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def sdist(folder: Path, checkout: Path) -> Path:
    """The unpacked sdist."""
    with tarfile.open(build("sdist", checkout, folder)) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(folder: Path, checkout: Path) -> Path:
    return build("wheel", checkout, folder)


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def uncompiled(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, without compiled ones: those have the folder of their sources."""
    files = contents(wheel)
    return {name: files[name] for name in files if not name.endswith((".so", "/RECORD"))}


def test_the_wheel_holds_the_two_packages_and_nothing_twice(wheel: Path, checkout: Path) -> None:
    files = contents(wheel)
    data = {name for name in files if ".data/" in name}
    assert [name.partition("/")[2] for name in data] == ["data/share/man/man1/millpond.1"]
    tops = {PurePosixPath(name).parts[0] for name in files if name not in data}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "millpond",
        "pyspark_millpond",
    }
    packed = {PurePosixPath(name) for name in files if ".dist-info/" not in name} - set(
        map(PurePosixPath, data)
    )
    built = {path for path in packed if path.suffix == ".so"}
    assert packed - built == set(sources(checkout)) - {PurePosixPath("millpond/_speedups.c")}
    assert {path.name.partition(".")[0] for path in built} == ({"_speedups"} if COMPILER else set())


def test_without_a_compiler_the_wheel_has_no_native_codecs(folder: Path, checkout: Path) -> None:
    shutil.copytree(checkout, folder / "bare", symlinks=True)
    shutil.rmtree(folder / "bare" / "build", ignore_errors=True)
    (folder / "without").mkdir()
    wheel = build("wheel", folder / "bare", folder / "without", CC="/bin/false")
    names = contents(wheel)
    assert "millpond/__init__.py" in names
    assert not [name for name in names if name.endswith(".so")]


def sources(checkout: Path) -> Iterator[PurePosixPath]:
    """The files of the two packages in the checkout."""
    for package in PACKAGES:
        for path in (checkout / package).rglob("*"):
            if path.is_file():
                yield PurePosixPath("millpond", *path.relative_to(checkout).parts)
    for package in ("millpond", "pyspark_millpond"):
        for path in (checkout / package).glob("*"):
            if path.is_file():
                yield PurePosixPath(package, path.name)


def test_the_wheel_of_the_sdist_is_that_of_the_checkout(
    folder: Path, sdist: Path, wheel: Path
) -> None:
    (folder / "again").mkdir()
    again = build("wheel", sdist, folder / "again")
    assert uncompiled(again) == uncompiled(wheel)
    assert contents(again).keys() == contents(wheel).keys()


def test_the_sdist_has_the_tests_and_what_they_read(sdist: Path, checkout: Path) -> None:
    for package in ("docs", "scripts", "tests"):
        for path in (checkout / package).rglob("*"):
            assert (sdist / path.relative_to(checkout)).exists(), path
    for name in ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"):
        assert (sdist / name).is_file()
    assert not [path for path in sdist.rglob("*") if path.is_symlink()]


@pytest.fixture(scope="module", params=["checkout", "wheel"])
def python(request: pytest.FixtureRequest, folder: Path) -> Path:
    """An interpreter that has the package: by its path, as an editable install, or by its wheel."""
    target = folder / f"venv-{request.param}"
    venv.create(target, with_pip=False, symlinks=True)
    site = next((target / "lib").glob("python3*")) / "site-packages"
    dependencies = Path(anyio.__file__).parents[1]
    if request.param == "wheel":
        with ZipFile(request.getfixturevalue("wheel")) as archive:
            archive.extractall(site)
        (site / "more.pth").write_text(f"{dependencies}\n")
    else:
        (site / "more.pth").write_text(f"{ROOT}\n{dependencies}\n")
    return target / "bin" / "python"


def test_mypy_types_a_users_program(python: Path, folder: Path, tmp_path: Path) -> None:
    program = shutil.copy(PROGRAM, tmp_path / "program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "mypy")]
    run([*command, "--python-executable", str(python), str(program)], tmp_path, MYPYPATH="")


def test_pyright_types_a_users_program(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    program = shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", str(python), str(program)]
    run(command, tmp_path)


def test_a_users_program_runs(python: Path, tmp_path: Path) -> None:
    program = shutil.copy(PROGRAM, tmp_path / "program.py")
    assert run([str(python), str(program)], tmp_path).splitlines()[-1] == "done"
