"""The plugin as a newcomer has it: a file of tests, and pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from millpond.node.testing import plugin

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "guides" / "testing.md"
LIMIT_S = 300.0
BLOCK = re.compile(r"^```python\n(# (test_\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {name: text for text, name in BLOCK.findall(DOCUMENT.read_text("utf-8"))}


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_files(folder, {"test_mine.py": text}, *options)


def run_files(
    folder: Path, files: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    given = [] if is_installed() else ["-p", plugin.__name__]
    if not any("hypothesis" in text for text in files.values()):
        # whose plugin would import it in each of these processes
        given += ["-p", "no:hypothesispytest"]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *given, *options]
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [*words, *files],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def is_installed() -> bool:
    points = (point for each in distributions() for point in each.entry_points)
    return any(point.value == plugin.__name__ for point in points)


@pytest.mark.readme
def test_what_the_documentation_shows_passes(tmp_path: Path) -> None:
    options = "--millpond-backends=asyncio,trio", "--millpond-timeout=120"
    told = run_files(tmp_path, EXAMPLES, *options, "-rA")
    assert told.returncode == 0, told.stdout + told.stderr
    passed = set(re.findall(r"^PASSED (test_\w+\.py)::", told.stdout, re.MULTILINE))
    assert passed == set(EXAMPLES)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


FAILING = """
import pytest
from millpond.actors.channels.channel import Channel
from millpond.actors.errors import OutcomeUnknown

async def handle(job):
    raise KeyError(job.data)

async def work(node):
    async with node.connect("jobs", role="worker", mode="queue") as jobs:
        async for job in jobs:
            await handle(job)

async def test_what_a_handler_raises_is_the_tests(node, world):
    world.start(work, node)
    async with node.connect("jobs", role="producer", mode="queue", who="boss") as jobs:
        await jobs.put(b"the job")
        await world.clock.sleep(10**9)

@pytest.fixture
def broken(monkeypatch):
    def handle(self, batch, now):
        raise ZeroDivisionError("in a cell")

    monkeypatch.setattr(Channel, "handle", handle)

async def test_a_crash_within_the_node_is_the_tests(node, channel, broken):
    with pytest.raises(OutcomeUnknown):
        await channel.put(b"x")

async def test_unless_it_is_expected(node, world, channel, broken):
    world.expect(ZeroDivisionError)
    with pytest.raises(OutcomeUnknown):
        await channel.put(b"x")
"""


def test_failures_reach_the_test_that_caused_them(tmp_path: Path) -> None:
    """With the traceback of the handler, and the seed below."""
    told = run(tmp_path, FAILING)
    assert "KeyError: b'the job'" in told.stdout and "await handle(job)" in told.stdout
    assert "ZeroDivisionError: in a cell" in told.stdout
    assert "--millpond-seed=1" in told.stdout
    failed = set(re.findall(r"^(?:FAILED|ERROR) test_mine.py::(\w+)", told.stdout, re.MULTILINE))
    assert failed == {
        "test_what_a_handler_raises_is_the_tests",
        "test_a_crash_within_the_node_is_the_tests",
    }, told.stdout


ORDINARY = """
import time
import anyio
import pytest

def test_a_sync_one():
    pass

@pytest.mark.anyio
async def test_time_is_real_for_others():
    began = time.monotonic()
    await anyio.sleep(0.05)
    assert time.monotonic() - began > 0.04

@pytest.fixture
async def single_node(world):
    return await world.node("pond")

async def test_a_fixture_of_ones_own(single_node, world, anyio_backend_name):
    await world.clock.sleep(3600)
    assert single_node.is_running and anyio_backend_name == "trio"

@pytest.mark.parametrize("world_seed", [5, 6])
async def test_many_seeds(world, world_seed):
    assert world.seed == world_seed

async def test_the_seed_of_the_command_line(world):
    assert world.seed == 7
"""


def test_other_tests_are_left_alone(tmp_path: Path) -> None:
    told = run(tmp_path, ORDINARY, "--millpond-backends=trio", "--millpond-seed=7", "-rA")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "test_many_seeds[trio-6]" in told.stdout or "test_many_seeds[6-trio]" in told.stdout


OWN_BACKEND = """
import time
import anyio
import pytest

@pytest.fixture(scope="module")
def anyio_backend():
    return "trio"

@pytest.fixture(scope="module")
async def made_once(anyio_backend):
    await anyio.lowlevel.checkpoint()
    return [anyio_backend[0]]

@pytest.mark.anyio
async def test_others_live_in_real_time(anyio_backend):
    began = time.monotonic()
    await anyio.sleep(0.05)
    assert time.monotonic() - began > 0.04 and anyio_backend == "trio"

async def test_on_the_library_that_the_project_names(world, anyio_backend_name):
    await world.clock.sleep(3600)
    assert anyio_backend_name == "trio" and anyio.current_time() == 3600

@pytest.mark.parametrize("n", [1, 2])
async def test_with_a_fixture_of_the_module(world, made_once, n):
    made_once.append(n)
    assert made_once == ["trio", 1, 2][: n + 1]
"""


def test_a_projects_own_backend_is_kept(tmp_path: Path) -> None:
    """Its library, on virtual time; and a fixture of the module may be async."""
    told = run(tmp_path, OWN_BACKEND)
    assert told.returncode == 0, told.stdout + told.stderr


def test_options_are_checked(tmp_path: Path) -> None:
    told = run(tmp_path, "async def test_one(world): ...", "--millpond-backends=asyncio, trio")
    assert "2 passed" in told.stdout, told.stdout + told.stderr
    told = run(tmp_path, "async def test_one(world): ...", "--millpond-backends=curio")
    assert "'curio' is none of asyncio, trio" in told.stdout + told.stderr


SAME_TIMES = """
import anyio
import pytest

began = []

@pytest.mark.parametrize("world_seed", range(3))
async def test_where_the_clock_stands(world, world_seed):
    began.append(anyio.current_time())
    await world.clock.sleep(0.1)
    assert began == [0.0] * len(began)
"""


def test_each_test_begins_at_the_same_time(tmp_path: Path) -> None:
    told = run(tmp_path, SAME_TIMES, "--millpond-backends=trio")
    assert told.returncode == 0, told.stdout + told.stderr


HANGING = """
import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

async def fails():
    raise KeyError("in a handler")

@pytest.fixture
async def begins_never(world):
    world.start(fails)
    await anyio.Event().wait()
    yield

@pytest.fixture
async def ends_never(world):
    async with anyio.create_task_group():
        yield
        await anyio.Event().wait()

@pytest.fixture
async def gives(world):
    return await world.node("gives")

async def test_set_up(begins_never):
    pass

async def test_tear_down(ends_never):
    pass

@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(n=st.integers())
async def test_examples(world, n):
    world.start(fails)
    await anyio.Event().wait()

async def test_a_sync_fixture_asked_for_in_a_test(world, request):
    request.getfixturevalue("tmp_path_factory")
    request.getfixturevalue("record_property")
    world.start(fails)
    await anyio.Event().wait()

async def test_and_on_it_goes(gives):
    assert gives.is_running
"""


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_nothing_hangs(library: str, tmp_path: Path) -> None:
    """Fixtures and hypothesis' tests are interrupted, too; those after them are none the worse."""
    options = ("--millpond-timeout=3", f"--millpond-backends={library}")
    told = run(tmp_path, HANGING, *options)
    failed = re.findall(r"^(FAILED|ERROR) test_mine.py::(\w+)", told.stdout, re.MULTILINE)
    assert sorted(failed) == [
        ("ERROR", "test_set_up"),
        ("ERROR", "test_tear_down"),
        ("FAILED", "test_a_sync_fixture_asked_for_in_a_test"),
        ("FAILED", "test_examples"),
    ], told.stdout + told.stderr
    assert "in ends_never" in told.stdout
    assert "2 passed" in told.stdout, told.stdout  # of which one has its error at the end


def test_the_plugin_costs_little_where_nobody_uses_it() -> None:
    """It is loaded wherever the package is installed."""
    asked = (
        "import sys, millpond.node.testing.plugin as plugin;"
        "print(sorted(set(sys.modules) & {'millpond.node.node'}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert told.stdout == "[]\n"
