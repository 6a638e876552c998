"""The public modules: what they export, and that importing the package loads nothing heavy."""

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

import millpond

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("chat", "errors", "jobs", "state", "streams", "sync", "testing", "tracing")


@pytest.mark.parametrize("name", ["millpond", *(f"millpond.{each}" for each in MODULES)])
def test_every_exported_name_is_there(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    assert sorted(module.__all__) == module.__all__
    for each in module.__all__:
        assert getattr(module, each) is not None
    assert set(module.__all__) <= set(dir(module))


OPERATORS = {"__init__", "__call__", "__getitem__", "__iter__", "__next__", "__anext__"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def signatures(item: object) -> Iterator[tuple[str, ast.expr | None]]:
    """The annotations of a public class or function: what a user's type checker sees."""
    kinds = item.__mro__ if isinstance(item, type) else (item,)
    for each in kinds:
        if getattr(each, "__module__", "").startswith("millpond"):
            (node,) = ast.parse(dedent(inspect.getsource(each))).body  # type: ignore[arg-type]
            yield from annotations(node)


def annotations(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, Function):
        found = node.args
        named = (*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg)
        yield from ((f"{node.name}({each.arg})", each.annotation) for each in named if each)
        yield node.name, node.returns
    elif isinstance(node, ast.ClassDef):
        functions = [each for each in node.body if isinstance(each, Function)]
        overloaded = {each.name for each in functions if is_overload(each)}
        for part in functions:
            is_public = not part.name.startswith("_") or part.name in OPERATORS
            if is_public and (is_overload(part) or part.name not in overloaded):
                yield from ((f"{node.name}.{name}", each) for name, each in annotations(part))
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
                yield f"{node.name}.{ast.unparse(field.target)}", field.annotation


def is_overload(function: Function) -> bool:
    return any(ast.unparse(each) == "overload" for each in function.decorator_list)


@pytest.mark.parametrize("name", ["millpond", *(f"millpond.{each}" for each in MODULES)])
def test_no_public_signature_has_any(name: str) -> None:
    """`object` is what the package does not know: a checker finds where a user relies on more."""
    module = import_module(name)
    for each in module.__all__:
        item = getattr(module, each)
        if inspect.isclass(item) or inspect.isfunction(item):
            for where, annotation in signatures(item):
                assert annotation is None or "Any" not in words(annotation), f"{each}: {where}"
        elif not inspect.ismodule(item):
            assert "typing.Any" not in str(item), each


def words(annotation: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


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
