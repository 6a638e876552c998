"""The tests of two crates, unmodified, against a node: the Rust SDK of S2, and its command line.

The node knows a token, and the suites have one that it issued (S2X-27): one of their cases wants
the account to have a token at all.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import matches
from tests.node.processes import serving
from tests.suites.cargo import CLI, EXAMPLE, SDK, own_tests, program_test
from tests.suites.guide import SHOWN_NODE, programs
from tests.suites.issued_tokens import QUIET, guarded_node
from tests.suites.test_s2_cli import program

pytestmark = pytest.mark.full

SDK_CASES = {"account_ops": 18, "basin_ops": 43, "metrics_ops": 20, "stream_ops": 84}
CLI_CASES = 48
LIMIT_S = 300.0
SERVED_S = 3600.0
"""The node serves while the tests are built."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that point both suites at a node of their own."""
    folder = tmp_path_factory.mktemp("s2-rust")
    with guarded_node(folder, limit_s=SERVED_S) as (url, token):
        yield {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "S2_ACCOUNT_ENDPOINT": url,
            "S2_BASIN_ENDPOINT": url,
            "S2_ACCESS_TOKEN": token,
        }


def _passed(test: Path, environment: dict[str, str]) -> int:
    """The number of cases that passed; any other fails the test."""
    done = subprocess.run(
        (test,),
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5000:]
    found = re.search(r"^test result: ok\. (\d+) passed; 0 failed", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout[-1000:]
    return int(found[1])


@pytest.fixture(scope="module")
def sdk() -> dict[str, Path]:
    """The programs of the SDK. That of the guide gets its node from a variable, so that it is not
    built for each."""
    guide, _ = programs("rust")["s2-sdk"]
    address = f'"http://{SHOWN_NODE}"'
    assert address in guide
    return own_tests(SDK, guide.replace(address, '&std::env::var("S2_BASIN_ENDPOINT")?'))


@pytest.mark.parametrize("name", SDK_CASES)
def test_the_rust_sdk(sdk: dict[str, Path], environment: dict[str, str], name: str) -> None:
    assert _passed(sdk[name], environment) == SDK_CASES[name]


def test_the_program_of_the_guide(sdk: dict[str, Path], tmp_path: Path) -> None:
    with serving(*QUIET, limit_s=LIMIT_S) as node:
        url = f"http://{node.ready['listeners']['http']}"
        done = subprocess.run(
            (sdk[EXAMPLE],),
            env={"S2_BASIN_ENDPOINT": url},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            text=True,
        )
    assert done.returncode == 0 and matches(done.stdout, programs("rust")["s2-sdk"][1]), done


def test_the_command_line(environment: dict[str, str]) -> None:
    """Those of its tests that ask a server; the others need none."""
    test = program_test(CLI, "s2-cli-cargo", "integration", program())
    assert _passed(test, environment) == CLI_CASES
