"""The pytest plugin: worlds, nodes, channels and streams as fixtures, on virtual time.

An async test that asks for one of them needs no mark. It runs on asyncio, or on the libraries that
`--millpond-backends=asyncio,trio` names; a test that parametrizes `anyio_backend` has its own way.
Everything of the project is imported late: pytest loads this wherever the package is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from node.channel import Channel
    from node.stream import Stream
    from node.testing.dialogue.script import Script
    from node.testing.sim_node import SimNode
    from node.testing.world import World

OURS = "millpond_world"
"""The fixture behind `world`, by which our tests are known: others may have a `world`, too."""
BACKENDS, SEED = "millpond_backends", "millpond_seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("millpond")
    group.addoption(
        "--millpond-backends",
        default="asyncio",
        help="libraries that tests with a world run on: asyncio, trio or both, with a comma",
    )
    group.addoption("--millpond-seed", type=int, default=1, help="the seed of such tests")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Time is virtual for tests with a world, unless they say how they want to run."""
    if OURS not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    if any("anyio_backend" in _names(mark.args[0]) for mark in marks):
        return
    from node.testing.pace import virtual

    libraries: list[str] = metafunc.config.getoption(BACKENDS, "asyncio").split(",")
    backends = [virtual(each) for each in libraries]
    mark = pytest.mark.parametrize("anyio_backend", backends, ids=libraries)
    metafunc.definition.add_marker(mark)


def _names(argnames: str | list[str] | tuple[str, ...]) -> list[str]:
    return argnames.replace(" ", "").split(",") if isinstance(argnames, str) else list(argnames)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """What fails behind a test interrupts it."""
    world: Any = pyfuncitem.funcargs.get(OURS)
    test = pyfuncitem.obj
    if world is not None and inspect.iscoroutinefunction(test):
        pyfuncitem.obj = _guarded(world, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _guarded(world: World, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def guarded(*args: Any, **kwargs: Any) -> None:
        with world.guard():
            await test(*args, **kwargs)

    return guarded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """The seed stands below what failed."""
    report = yield
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
    anyio_backend: object, world_seed: int, tmp_path: Path
) -> AsyncIterator[World]:
    """Behind `world`. That it asks for `anyio_backend` makes its tests those of anyio's plugin."""
    from node.testing.world import World

    async with World(world_seed, folder=tmp_path / "world") as world:
        yield world


@pytest.fixture
def world(millpond_world: World) -> World:
    """An empty world: nodes are made by `await world.node(name)`."""
    return millpond_world


@pytest.fixture
async def node(millpond_world: World) -> SimNode:
    """A node, `pond`, on a simulated disk."""
    return await millpond_world.node("pond")


@pytest.fixture
async def two_nodes(millpond_world: World) -> tuple[SimNode, SimNode]:
    """`alice` and `bob`, who know each other."""
    alice, bob = await millpond_world.node("alice"), await millpond_world.node("bob")
    millpond_world.link(alice, bob)
    return alice, bob


@pytest.fixture
async def channel(node: SimNode) -> AsyncIterator[Channel]:
    """A client in the channel `test` of the node `pond`."""
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
def script(node: SimNode) -> Script:
    """Plays dialogues with the node `pond`."""
    from node.testing.dialogue.script import Script

    return Script(node)
