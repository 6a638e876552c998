"""The tests of published crates, built once for all runs. Their sources are those that
`cargo install s2-cli` leaves in cargo's registry."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from tests.suites.caches import HERE, cache, run_or_skip

SDK, CLI = "s2-sdk-0.35.3", "s2-cli-0.43.4"
BUILD_S = 2400.0
"""The Rust SDK of S2 takes 7 minutes on two cores beside other work."""
EXAMPLE = "guide"


def source(crate: str) -> Path:
    """The sources of a crate, by its name and version. Skips the test where they are not."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    found = sorted(home.glob(f"registry/src/*/{crate}"))
    if not found or shutil.which("cargo") is None:
        pytest.skip(f"no cargo, or no sources of {crate} here (cargo install s2-cli)")
    return found[0]


def own_tests(crate: str, example: str) -> dict[str, Path]:
    """The test programs of a crate, by name, built as the crate says; and a program that uses the
    crate, by the name `EXAMPLE`."""
    return _built(crate, source(crate), {}, example)


def program_test(crate: str, manifest: str, name: str, program: str) -> Path:
    """A test program of a crate that runs the installed `program`, by its name. The manifest
    `tests/suites/<manifest>` has the packages that the test itself needs."""
    folder = cache() / f"{crate}-sources"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / manifest, folder)
    (folder / "tests").mkdir()
    shutil.copy(source(crate) / "tests" / f"{name}.rs", folder / "tests")
    return _built(crate, folder, {f"CARGO_BIN_EXE_{Path(program).name}": program})[name]


def _built(
    crate: str, sources: Path, environment: Mapping[str, str], example: str = ""
) -> dict[str, Path]:
    digest = sha256(repr((sorted(environment.items()), example)).encode()).hexdigest()
    programs = cache() / f"{crate}-tests-{digest[:16]}"
    if not (programs / ".built").exists():
        shutil.rmtree(programs, ignore_errors=True)
        programs.mkdir(parents=True)
        target = programs / "target"
        variables = {
            **os.environ,
            **environment,
            "CARGO_TARGET_DIR": str(target),
            "CARGO_INCREMENTAL": "0",
            "CARGO_PROFILE_DEV_DEBUG": "0",
        }
        copied = programs / "source"
        shutil.copytree(sources, copied)
        locked = ("--locked",) if (copied / "Cargo.lock").exists() else ()
        for words in _commands(copied, example):
            printed = run_or_skip(
                (*words, *locked, "--message-format", "json"),
                copied,
                limit_s=BUILD_S,
                env=variables,
            )
            for name, executable in _executables(printed):
                shutil.copy(executable, programs / name)
        shutil.rmtree(target)
        (programs / ".built").touch()
    return {each.name: each for each in programs.iterdir() if each.is_file() and each.suffix == ""}


def _commands(folder: Path, example: str) -> Iterator[tuple[str, ...]]:
    yield "nice", "cargo", "test", "--tests", "--no-run"
    if example:
        (folder / "examples" / f"{EXAMPLE}.rs").write_text(example)
        with (folder / "Cargo.toml").open("a") as manifest:
            manifest.write(f'\n[[example]]\nname = "{EXAMPLE}"\npath = "examples/{EXAMPLE}.rs"\n')
        yield "nice", "cargo", "build", "--example", EXAMPLE


def _executables(printed: str) -> list[tuple[str, str]]:
    """The names and paths of the tests that cargo says it built."""
    messages = [json.loads(each) for each in printed.splitlines() if each.startswith("{")]
    return [
        (each["target"]["name"], each["executable"])
        for each in messages
        if each.get("executable") and {"test", "example"} & {*each["target"]["kind"]}
    ]
