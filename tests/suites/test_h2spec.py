"""h2spec 2.2.1, the published suite of HTTP/2 and HPACK, against a node: all of its cases, the
strict one as well, in clear and by TLS (docs/reference/compatibility.md)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.node.processes import serving
from tests.node.tls.certificate_files import files_of
from tests.suites.caches import kept, run_or_skip

CASES = 146
ANSWER_S = 20
"""The time that each case waits for what it wants to see; none waits for all of it."""
LIMIT_S = 110.0
FILES = ("go.mod", "go.sum", "tools.go")
PACKAGE = "github.com/summerwind/h2spec/cmd/h2spec"
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")


@pytest.fixture(scope="session")
def h2spec() -> Path:
    """The program, built from what the module's go.sum names."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go here: h2spec is not built")
    words = (go, "build", "-o", "h2spec", PACKAGE)
    return kept("h2spec-go", FILES, lambda folder: run_or_skip(words, folder)) / "h2spec"


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "tls"])
def test_every_case_passes(h2spec: Path, tmp_path: Path, is_encrypted: bool) -> None:
    words: tuple[str, ...] = QUIET
    if is_encrypted:
        files = files_of(tmp_path)
        words += ("--tls-cert", files.cert, "--tls-key", files.key)
    with serving(*words, limit_s=LIMIT_S) as node:
        host, port = node.ready["listeners"]["http"].split(":")
        report = tmp_path / "report.xml"
        options = ("--strict", "--timeout", str(ANSWER_S), "--junit-report", str(report))
        subprocess.run(
            (h2spec, "-h", host, "-p", port, *options, *(("-t", "-k") if is_encrypted else ())),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [f"{each.get('package')}: {each.get('classname')}" for each in cases if len(each)]
    assert not failed, "\n".join(failed)
    assert len(cases) == CASES
