"""The public modules: what they export, and that importing the package loads nothing heavy."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import millpond

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("chat", "errors", "jobs", "state", "streams", "sync", "testing")


@pytest.mark.parametrize("name", ["millpond", *(f"millpond.{each}" for each in MODULES)])
def test_every_exported_name_is_there(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    assert sorted(module.__all__) == module.__all__
    for each in module.__all__:
        assert getattr(module, each) is not None
    assert set(module.__all__) <= set(dir(module))


def test_the_package_lists_its_modules() -> None:
    assert set(MODULES) < set(dir(millpond)) == set(millpond.__all__)


def test_the_error_module_has_every_error_of_a_request() -> None:
    from millpond import errors
    from millpond.actors.errors import ERRORS, RequestError

    assert {each.__name__ for each in ERRORS.values()} <= set(errors.__all__)
    found = {name for name, each in vars(errors).items() if isinstance(each, type)}
    assert found == set(errors.__all__)
    assert all(issubclass(each, RequestError) for each in ERRORS.values())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"anyio", "cryptography", "h2", "msgspec", "uvloop", "websockets", "millpond.node.node"}
    code = f"import millpond, sys; print([m for m in {sorted(heavy)} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_every_public_connect_has_a_blocking_twin() -> None:
    from millpond import sync

    wanted = {"connect", "connect_channels", "connect_rustlog", "connect_s3p", "connect_streams"}
    assert {name for name in millpond.__all__ if name.startswith("connect")} == {
        *wanted,
        "connect_sync",
    }
    assert {name for name in sync.__all__ if name.startswith("connect")} == wanted


def test_the_blocking_clients_are_as_the_generator_writes_them() -> None:
    script = Path(__file__).parents[1] / "scripts" / "generate_sync.py"
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_entry_points_of_the_package_exist() -> None:
    """The command, Spark's and pytest's: an installer writes them down without looking."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = [*project["scripts"].values()]
    points += [each for group in project["entry-points"].values() for each in group.values()]
    assert points
    for point in points:
        module, _, name = point.partition(":")
        found = import_module(module)
        assert not name or callable(getattr(found, name))
