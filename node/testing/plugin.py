"""The pytest plugin: worlds, nodes, channels and streams as fixtures, on virtual time.

An async test that asks for one of them needs no mark. It runs on the libraries that
`--millpond-backends=asyncio,trio` names, else on that of its own fixture `anyio_backend`, else on
asyncio. A test that parametrizes `anyio_backend` has its own way.
Everything of the project is imported late: pytest loads this wherever the package is installed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel
    from millpond.node.client.streams.stream import Stream
    from millpond.node.testing.dialogue.script import Script
    from millpond.node.testing.failures import Failures
    from millpond.node.testing.real_node import RealNode
    from millpond.node.testing.sim_node import SimNode
    from millpond.node.testing.world import World

OURS = "millpond_world"
"""The fixture behind `world` that marks our tests: other projects may have a `world`, too."""
BACKENDS, SEED = "millpond_backends", "millpond_seed"
TIMEOUT, STALL = "millpond_timeout", "millpond_stall"
BACKEND = "anyio_backend"
ANYIO = "anyio.pytest_plugin"
FAILURES = "millpond.node.testing.failures"
TIMEOUTS = "millpond.node.testing.timeouts"
IN_TEST = pytest.StashKey[bool]()
"""Set while a test with a world runs, which may ask for fixtures, too."""

Scope = Literal["session", "module"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "millpond_node(process=False, disk=False, **settings): the node of the fixture "
        "`millpond_node`",
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("millpond")
    group.addoption(
        "--millpond-backends",
        help="libraries that tests with a world run on: asyncio, trio, or asyncio,trio",
    )
    group.addoption("--millpond-seed", type=int, default=1, help="the seed of such tests")
    group.addoption(
        "--millpond-timeout",
        "--millpond-patience",  # its first name
        dest=TIMEOUT,
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="real time after which such a test fails: 20",
    )
    group.addoption(
        "--millpond-stall",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="virtual time for which nothing moves such a test until it fails: 600",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with a world on virtual time, unless they choose a backend."""
    if OURS not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if any(BACKEND in _names(mark.args[0]) for mark in marks):
        return
    scope: Scope = "module"  # as of anyio's own, so that fixtures of a module may be async
    libraries: list[str] | None = ["asyncio"]
    own = _own_backend(metafunc)
    if own is not None:
        libraries = _libraries_of(own)
        scope = "session" if own.scope in ("session", "package") else "module"
    option: str | None = metafunc.config.getoption(BACKENDS, None)
    if option is not None:
        libraries = _names(option)
    if libraries is not None:
        backends = [_virtual(each) for each in libraries]
        mark = pytest.mark.parametrize(BACKEND, backends, ids=libraries, scope=scope)
        metafunc.definition.add_marker(mark)


def _names(argnames: str | list[str] | tuple[str, ...]) -> list[str]:
    return argnames.replace(" ", "").split(",") if isinstance(argnames, str) else list(argnames)


@cache
def _virtual(library: str) -> tuple[str, dict[str, Any]]:
    """One backend for all tests, which may share a fixture that runs on it."""
    from millpond.node.testing.time.virtual_time import virtual

    try:
        return virtual(library)
    except (ValueError, ImportError) as exc:
        raise pytest.UsageError(f"--millpond-backends: {exc}") from exc


def _own_backend(metafunc: pytest.Metafunc) -> pytest.FixtureDef[Any] | None:
    """The fixture `anyio_backend` of the test's own project, if it has one."""
    found = metafunc._arg2fixturedefs.get(BACKEND)  # noqa: SLF001 (there is no public way)
    return found[-1] if found and found[-1].func.__module__ != ANYIO else None


def _libraries_of(own: pytest.FixtureDef[Any]) -> list[str] | None:
    """The libraries that a fixture names; None if it has options or needs a running test."""
    from millpond.node.testing.time.virtual_time import BACKENDS as KNOWN

    values: list[Any] = []
    if own.params is not None:
        values = list(own.params)
    elif not inspect.signature(own.func).parameters and not _is_lazy(own.func):
        values = [own.func()]
    return values if values and all(each in KNOWN for each in values) else None


def _is_lazy(func: Any) -> bool:
    return inspect.isgeneratorfunction(func) or _is_async(func)


def _is_async(func: Any) -> bool:
    return inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start virtual time at 0 for each test."""
    if isinstance(item, pytest.Function) and OURS in item.fixturenames and _is_parametrized(item):
        from millpond.node.testing.time.virtual_time import reset_clock

        reset_clock(item.callspec.params.get(BACKEND))


def _is_parametrized(item: pytest.Function) -> bool:
    return "callspec" in vars(item)


def _active_failures() -> list[Failures]:
    """The failures of the existing worlds; without their module there is no world."""
    module = sys.modules.get(FAILURES)
    return [] if module is None else list(module.Failures.active)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Let background failures interrupt the set-up and tear-down of async fixtures.

    Between fixtures and tests nothing is interrupted: that would be pytest itself.
    """
    active, func = _active_failures(), fixturedef.func
    if active and _is_async(func) and BACKEND in request.fixturenames:
        from millpond.node.testing.failures import guarded_fixture

        guarded = guarded_fixture(active, func, request.instance)
        fixturedef.func = guarded  # type: ignore[misc]  # as anyio does
    try:
        return (yield)
    finally:
        fixturedef.func = func  # type: ignore[misc]
        if not request.config.stash.get(IN_TEST, False):
            for failures in _active_failures():
                failures.deactivate_guards()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Let background failures interrupt a test."""
    active = _active_failures()
    if not active:
        return (yield)  # a test without a world
    from millpond.node.testing.failures import guarded_test

    stash, test = pyfuncitem.config.stash, pyfuncitem.obj
    stash[IN_TEST] = True
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    if inner is not None:
        original = getattr(inner, "_anyio_original_func", inner)  # as anyio leaves it behind
        test.hypothesis.inner_test = guarded_test(active, original)
    else:
        pyfuncitem.obj = guarded_test(active, test)
    try:
        return (yield)
    finally:
        stash[IN_TEST] = False
        pyfuncitem.obj = test
        if inner is not None:
            test.hypothesis.inner_test = inner


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Add the seed to the report of a failed test. A stall is its own report: its traceback would
    show where it was noticed, and not where the test waits."""
    report = yield
    timeouts = sys.modules.get(TIMEOUTS)
    if timeouts is not None and call.excinfo is not None:
        error = call.excinfo.value
        if isinstance(error, timeouts.Stalled) and not getattr(error, "__notes__", ()):
            report.longrepr = f"{type(error).__name__}: {error}"
    world = getattr(item, "funcargs", {}).get(OURS)
    if report.failed and world is not None:
        report.sections.append(("millpond", f"--millpond-seed={world.seed}"))
    return report


@pytest.fixture
def world_seed(request: pytest.FixtureRequest) -> int:
    """The seed of the test's world; parametrize it to run a test under many."""
    seed: int = request.config.getoption(SEED, 1)
    return seed


@pytest.fixture
async def millpond_world(
    anyio_backend: object, world_seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """The world behind `world`; asking for `anyio_backend` has anyio's plugin run the test."""
    from millpond.node.testing.world import World

    timeout_s: float = request.config.getoption(TIMEOUT, 20.0)
    stall_s: float = request.config.getoption(STALL, 600.0)
    folder = tmp_path / "world"
    async with World(world_seed, folder=folder, timeout_s=timeout_s, stall_s=stall_s) as world:
        yield world


@pytest.fixture
def world(millpond_world: World) -> World:
    """An empty world; `await world.node(name)` creates nodes."""
    return millpond_world


@pytest.fixture
async def node(millpond_world: World) -> SimNode:
    """A node, `pond`, on a simulated disk."""
    return await millpond_world.node("pond")


@pytest.fixture
async def two_nodes(millpond_world: World) -> tuple[SimNode, SimNode]:
    """Two nodes that are peers, `alice` and `bob`."""
    alice, bob = await millpond_world.node("alice"), await millpond_world.node("bob")
    millpond_world.link(alice, bob)
    return alice, bob


@pytest.fixture
async def channel(node: SimNode) -> AsyncIterator[Channel]:
    """A client of the channel `test` of the node `pond`."""
    async with node.connect("test") as channel:
        yield channel


@pytest.fixture
async def stream(node: SimNode) -> AsyncIterator[Stream]:
    """The stream `test` of the node `pond`, empty."""
    async with node.streams() as streams:
        stream = streams.stream("test")
        await stream.create()
        yield stream


@pytest.fixture
def millpond_node(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[RealNode]:
    """A node on free ports, on real time, for blocking clients and for other processes.

    It runs in memory in a thread. The mark `millpond_node` has options of
    `millpond.testing.run_node`, and `disk=True`: `@pytest.mark.millpond_node(process=True)`.
    """
    from millpond.node.testing.real_node import run_node

    options: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("millpond_node"))):
        options |= mark.kwargs
    if options.pop("disk", False):
        options["folder"] = tmp_path / "millpond"
    with run_node(**options) as node:
        yield node


@pytest.fixture
def script(node: SimNode) -> Script:
    """A player of dialogues with the node `pond`."""
    from millpond.node.testing.dialogue.script import Script

    return Script(node)
