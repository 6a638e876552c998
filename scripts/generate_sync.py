"""The generator of the blocking clients: `python scripts/generate_sync.py [--check]`.

Each class of `TWINS` gets a blocking class with the same methods, types and docstrings, whose calls
run in the event loop that all blocking clients share (`node.client.sync.portal`). The result is
committed; `--check` only compares, and a test runs it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CLIENT = "millpond.node.client"

ITERATORS = {"AsyncIterator", "AsyncGenerator"}
FUTURES = {"ReplyFuture", "RecordFuture"}
COPIES = {
    "Mapping": "dict",
    "TableView": "dict",
    "deque": "list",
    "list": "list",
    "EventStats": "copy",
}
"""Results of properties and plain methods that the loop changes later, and the copy of each."""
RENAMED = {
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
}
WORDS = (
    ("async with", "with"),
    ("`async for`", "`for`"),
)


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A module to write: its first paragraph, and what is taken from which modules."""

    name: str
    doc: str
    twins: dict[str, tuple[str, ...]]


MODULES = (
    Module(
        f"{CLIENT}.sync.streams",
        "Blocking streams: `with connect_streams(url) as streams`.",
        {
            f"{CLIENT}.state.remote": ("NodeState",),
            f"{CLIENT}.streams.stream": ("Stream",),
            f"{CLIENT}.streams.streams": ("Streams",),
            f"{CLIENT}.streams.connect": ("connect_streams",),
        },
    ),
    Module(
        f"{CLIENT}.sync.channel",
        'Blocking channels: `with connect(url, channel="chat/1") as channel`.',
        {
            f"{CLIENT}.channel": ("Message", "Channel"),
            f"{CLIENT}.connect": ("connect",),
            f"{CLIENT}.receiver": ("Receiver",),
            f"{CLIENT}.channels": ("Channels", "connect_channels"),
        },
    ),
    Module(
        f"{CLIENT}.state.sync",
        "The blocking writer and follower of shared states.",
        {
            f"{CLIENT}.state.writer": ("StateWriter",),
            f"{CLIENT}.state.changes": ("Changes",),
            f"{CLIENT}.state.follower": ("StateView", "follow_state"),
        },
    ),
    Module(
        f"{CLIENT}.s3p.sync",
        'The blocking S3P client: `with connect_s3p("127.0.0.1:7402") as s3p`.',
        {f"{CLIENT}.s3p.client": ("S3pProducer", "S3p", "connect_s3p")},
    ),
    Module(
        f"{CLIENT}.rustlog.sync",
        'The blocking RustLog client: `with connect_rustlog("127.0.0.1:7403") as rustlog`.',
        {
            f"{CLIENT}.rustlog.producer": ("RustlogProducer",),
            f"{CLIENT}.rustlog.client": ("RustlogConsumer", "Rustlog", "connect_rustlog"),
        },
    ),
    Module(
        "millpond.node.jobs.sync",
        'A blocking job queue: `with Queue("tcp://127.0.0.1:7400", "mail") as queue`.',
        {
            "millpond.node.jobs.handle": ("Handle",),
            "millpond.node.jobs.queue": ("Queue",),
        },
    ),
)
TWINS = {
    name: (module.name, source)
    for module in MODULES
    for source, names in module.twins.items()
    for name in names
    if name[0].isupper()
}
CONSTRUCTED = {"StateWriter"}
"""Made by the user, of another blocking object, whose loop it shares."""
CONTEXTS = {"Queue"}
"""Made by the user, and open within `with`, or from `open` to `close`."""
OPENED = {
    "Channel": "connect",
    "Channels": "connect_channels",
    "Streams": "connect_streams",
    "S3p": "connect_s3p",
    "Rustlog": "connect_rustlog",
}
"""Made by a function, and open as those; a client may also be given by another one."""
INTERNAL = {"committing", "end", "run", "start", "tell"}
"""Methods that the clients call among themselves."""


class Source:
    """A module that a blocking one is made of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tree = ast.parse(path_of(name).read_text())
        self.imports: dict[str, tuple[str, str, str | None]] = {
            alias.asname or alias.name: (node.module, alias.name, alias.asname)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__"
            for alias in node.names
        }
        for node in self.tree.body:
            for defined in _defined(node):
                self.imports[defined] = (name, defined, None)
        self.plain = {
            alias.name
            for node in self.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }

    def find(self, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef:
        for node in self.tree.body:
            if isinstance(node, Definition) and node.name == name:
                return node
        raise LookupError(f"{self.name} has no {name}")


class Writer:
    """One blocking module, as text."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._local = {name for names in module.twins.values() for name in names}
        self._imports: set[str] = set()
        self._source: Source

    def text(self) -> str:
        body = []
        for name, twins in self._module.twins.items():
            self._source = Source(name)
            for twin in twins:
                node = self._source.find(twin)
                body.append(
                    self._class(node) if isinstance(node, ast.ClassDef) else self._opener(node)
                )
        head = f'"""{self._module.doc}\n\nWritten by scripts/generate_sync.py: do not edit.\n"""\n'
        return "\n".join(
            [head, "from __future__ import annotations\n", *sorted(self._imports), *body]
        )

    # Classes.

    def _class(self, node: ast.ClassDef) -> str:
        name, twin = node.name, f"Async{node.name}"
        self._import(self._source.name, name, twin)
        base = "BlockingContext" if name in CONTEXTS | set(OPENED) else "Blocking"
        self._import(f"{CLIENT}.sync.portal", base)
        parameter = _parameter_of(node)
        if parameter is None:
            lines = [f"class {name}({base}[{twin}]):"]
        else:
            self._use(parameter)
            self._import("typing", "Generic")
            lines = [f"class {name}({base}[{twin}[{parameter}]], Generic[{parameter}]):"]
        lines += _docstring(node, 4)
        for each in node.body:
            match each:
                case ast.AnnAssign(target=ast.Name(id=attribute)) if attribute[0] != "_":
                    lines += self._attribute(attribute, each.annotation)
                case ast.FunctionDef(name="__init__") if name in CONSTRUCTED | CONTEXTS:
                    lines += self._constructor(each, twin, name)
                case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_public(each.name, name):
                    lines += self._method(each)
                case _:
                    pass
        return "\n".join(lines) + "\n\n"

    def _attribute(self, name: str, annotation: ast.expr) -> list[str]:
        kind, _ = _generic(annotation)
        value = f"self._async.{name}"
        value = self._copied(kind, value) if kind in COPIES else self._wrapped(annotation, value)
        head = f"    def {name}(self) -> {self._type(annotation)}:"
        return ["    @property", head, f"        return {value}", ""]

    def _constructor(self, node: ast.FunctionDef, twin: str, name: str) -> list[str]:
        head = f"    def __init__({self._parameters(node.args)}) -> None:"
        if name in CONTEXTS:
            self._import("functools", "partial")
            call = f"partial({twin}{_comma(self._arguments(node.args))})"
            return [head, f"        super().__init__({call})", ""]
        first = node.args.args[1].arg
        self._import(f"{CLIENT}.sync.portal", "portal_of")
        call = f"{twin}({self._arguments(node.args)}), portal_of({first})"
        return [head, f"        super().__init__({call})", ""]

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
        returns = node.returns
        assert returns is not None
        name = RENAMED.get(node.name, node.name)
        decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
        function = f"self._async.{node.name}"
        arguments = self._arguments(node.args)
        call = f"{function}({arguments})"
        passed = f"{function}{_comma(arguments)}"
        kind, item = _generic(returns)
        head: list[str] = []
        result = self._type(returns)
        if "property" in decorators:
            head = ["    @property"]
            if kind in COPIES:
                body = f"return {self._copied(kind, function)}"
            else:
                body = f"return {self._wrapped(returns, function)}"
        elif "asynccontextmanager" in decorators:
            head = ["    @contextmanager"]
            self._import("contextlib", "contextmanager")
            self._import("collections.abc", "Generator")
            assert item is not None
            result = f"Generator[{self._type(item)}]"
            if self._type(item) == "None":
                body = f"with self._enter({call}):\n            yield"
            else:
                yielded = self._wrapped(item, "opened")
                body = f"with self._enter({call}) as opened:\n            yield {yielded}"
        elif node.name == "__aiter__":
            self._import("typing", "Self")
            result, body = "Self", "return self"
        elif node.name == "__enter__" or node.name == "__aenter__":
            self._import("typing", "Self")
            run = "_await" if node.name == "__aenter__" else "_call"
            result, body = "Self", f"self.{run}({passed})\n        return self"
        elif node.name == "__anext__":
            body = f"return {self._wrapped(returns, f'self._next({passed})')}"
        elif kind in ITERATORS:
            assert item is not None
            body = f"return self._iterate({call})"
        elif kind in FUTURES:
            run = "_send" if isinstance(node, ast.FunctionDef) else "_await_send"
            body = f"return self.{run}({passed})"
        elif isinstance(node, ast.AsyncFunctionDef):
            body = f"return {self._wrapped(returns, f'self._await({passed})')}"
        elif kind in COPIES:
            body = f"return {self._copied(kind, call)}"
        else:
            body = f"return {self._wrapped(returns, f'self._call({passed})')}"
        if result == "None" and body.startswith("return "):
            body = body.removeprefix("return ")
        head += [f"    def {name}({self._parameters(node.args)}) -> {result}:"]
        return [*head, *_docstring(node, 8), f"        {body}", ""]

    def _copied(self, kind: str | None, value: str) -> str:
        match COPIES[kind or ""]:
            case "copy":
                return f"self._call(lambda: {value}.copy())"
            case copy:
                return f"self._call(lambda: {copy}({value}))"

    # Functions.

    def _opener(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        self._import(self._source.name, node.name, f"{node.name}_async")
        if node.name in OPENED.values():
            return self._maker(node)
        self._import("contextlib", "contextmanager")
        self._import("collections.abc", "Generator")
        assert node.returns is not None
        _, item = _generic(node.returns)
        assert item is not None
        shared = [each.arg for each in node.args.args if self._is_twin(each.annotation)]
        self._import(f"{CLIENT}.sync.portal", "portal_of")
        call = f"{node.name}_async({self._arguments(node.args)})"
        opened = "portal.enter(opening) as opened"
        lines = [
            "@contextmanager",
            f"def {node.name}({self._parameters(node.args)}) -> Generator[{self._type(item)}]:",
            *_docstring(node, 4),
            f"    opening = {call}",
        ]
        lines += [f"    portal = portal_of({shared[0]})", f"    with {opened}:"]
        return "\n".join([*lines, f"        yield {self._type(item)}(opened, portal)", ""])

    def _maker(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        """A function that gives a client which is not open yet."""
        assert node.returns is not None
        kind = self._type(node.returns)
        self._import("functools", "partial")
        given = ", ".join(each.arg for each in node.args.args)
        passed = ", ".join(
            part
            for part in (
                f"{node.name}_async",
                given,
                *(f"{each.arg}={self._passed(each)}" for each in node.args.kwonlyargs),
            )
            if part
        )
        return "\n".join(
            [
                f"def {node.name}({self._parameters(node.args)}) -> {kind}:",
                *_docstring(node, 4),
                f"    return {kind}(partial({passed}))",
                "",
            ]
        )

    # Types and arguments.

    def _is_twin(self, annotation: ast.expr | None) -> bool:
        return isinstance(annotation, ast.Name) and (
            annotation.id in self._local or annotation.id in TWINS
        )

    def _wrapped(self, annotation: ast.expr, value: str) -> str:
        """The value, as its blocking twin where it has one."""
        if not self._is_twin(annotation):
            return value
        assert isinstance(annotation, ast.Name)
        maker = ".over" if annotation.id in OPENED else ""
        return f"{annotation.id}{maker}({value}, self._portal)"

    def _type(self, annotation: ast.expr) -> str:
        """An annotation as the blocking module says it."""
        return ast.unparse(self._translated(annotation))

    def _translated(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name(id=kind), slice=inner) if kind in ITERATORS:
                self._import("collections.abc", "Iterator")
                first = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
                return ast.Subscript(ast.Name("Iterator"), self._translated(first))
            case ast.Subscript(value=ast.Name(id=kind), slice=inner) if kind in FUTURES:
                self._import(f"{CLIENT}.sync.portal", "SyncFuture")
                return ast.Subscript(ast.Name("SyncFuture"), self._translated(inner))
            case ast.Subscript(value=ast.Name(id="deque"), slice=inner):
                return ast.Subscript(ast.Name("list"), self._translated(inner))
            case ast.Subscript(value=ast.Name(id="Mapping"), slice=inner):
                return ast.Subscript(ast.Name("dict"), self._translated(inner))
            case ast.Subscript(value=ast.Name(id="TableView"), slice=inner):
                keys_and_values = ast.Tuple([ast.Name("str"), self._translated(inner)])
                return ast.Subscript(ast.Name("dict"), keys_and_values)
            case ast.Name(id=name):
                self._use(name)
                return node
            case ast.Attribute(value=ast.Name(id=name)):
                self._use(name)
                return node
            case ast.Subscript(value=value, slice=inner):
                return ast.Subscript(self._translated(value), self._translated(inner))
            case ast.BinOp(left=left, op=op, right=right):
                return ast.BinOp(self._translated(left), op, self._translated(right))
            case ast.Tuple(elts=elements):
                return ast.Tuple([self._translated(each) for each in elements])
            case ast.List(elts=elements):
                return ast.List([self._translated(each) for each in elements])
            case _:
                return node

    def _parameters(self, arguments: ast.arguments) -> str:
        for each in (*arguments.defaults, *arguments.kw_defaults):
            if each is not None:
                for name in ast.walk(each):
                    if isinstance(name, ast.Name):
                        self._use(name.id)
        copied = ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0]
        assert isinstance(copied, ast.FunctionDef)
        plain = copied.args
        for each in _all(plain):
            if each.annotation is not None:
                each.annotation = self._translated(each.annotation)
        return ast.unparse(plain)

    def _arguments(self, arguments: ast.arguments) -> str:
        told = [self._passed(each) for each in arguments.args if each.arg != "self"]
        if arguments.vararg is not None:
            told.append(f"*{arguments.vararg.arg}")
        told += [f"{each.arg}={self._passed(each)}" for each in arguments.kwonlyargs]
        if arguments.kwarg is not None:
            told.append(f"**{arguments.kwarg.arg}")
        return ", ".join(told)

    def _passed(self, argument: ast.arg) -> str:
        if not self._is_twin(argument.annotation):
            return argument.arg
        self._import(f"{CLIENT}.sync.portal", "async_of")
        return f"async_of({argument.arg})"

    # Imports.

    def _use(self, name: str) -> None:
        if name in self._local:
            return
        if name in TWINS:
            module = TWINS[name][0]
            if module != self._module.name:
                self._import(module, name)
        elif name in self._source.imports:
            self._import(*self._source.imports[name])
        elif name in self._source.plain:
            self._imports.add(f"import {name}")

    def _import(self, module: str, name: str, alias: str | None = None) -> None:
        self._imports.add(f"from {module} import {name}" + (f" as {alias}" if alias else ""))


def path_of(module: str) -> Path:
    return ROOT / (module.removeprefix("millpond.").replace(".", "/") + ".py")


def _defined(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
        case _:
            pass


def _is_public(name: str, owner: str) -> bool:
    if name in INTERNAL:
        return False
    if owner in CONTEXTS | set(OPENED) and name in ("__aenter__", "__aexit__"):
        return False
    return name[0] != "_" or name in {*RENAMED, "__enter__", "__exit__", "__getitem__"}


def _parameter_of(node: ast.ClassDef) -> str | None:
    """The type variable of a class that is `Generic[X]`."""
    for base in node.bases:
        match base:
            case ast.Subscript(value=ast.Name(id="Generic"), slice=ast.Name(id=parameter)):
                return parameter
            case _:
                pass
    return None


def _generic(annotation: ast.expr) -> tuple[str | None, ast.expr | None]:
    match annotation:
        case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[item, *_])):
            return kind, item
        case ast.Subscript(value=ast.Name(id=kind), slice=item):
            return kind, item
        case ast.Name(id=kind):
            return kind, None
        case _:
            return None, None


def _all(arguments: ast.arguments) -> list[ast.arg]:
    more = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.args, *arguments.kwonlyargs, *more]


def _comma(arguments: str) -> str:
    return f", {arguments}" if arguments else ""


def _docstring(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: int
) -> list[str]:
    text = ast.get_docstring(node)
    if text is None:
        return []
    for old, new in WORDS:
        text = text.replace(old, new)
    lines = f'"""{text}'.splitlines()
    closing = [" " * indent + '"""'] if len(lines) > 1 else []
    if not closing:
        lines[-1] += '"""'
    return [*[" " * indent + line if line else "" for line in lines], *closing]


def formatted(text: str, path: Path) -> str:
    """The text as ruff leaves it."""
    ruff = Path(sys.executable).with_name("ruff")
    for options in (("check", "--fix", "--quiet", "--select", "I,F401"), ("format", "--quiet")):
        command = [str(ruff), *options, "--stdin-filename", str(path), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
        if done.returncode or not done.stdout:
            raise SystemExit(f"{path}: {done.stdout}{done.stderr}")
        text = done.stdout
    return text


def main() -> int:
    stale = []
    for module in MODULES:
        path = path_of(module.name)
        text = formatted(Writer(module).text(), path)
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv:
            path.write_text(text)
    if stale and "--check" in sys.argv:
        print("not as scripts/generate_sync.py makes it:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
