"""The parsers of all commands, and what their arguments are called in the pages made from them."""

# ruff: noqa: SLF001 - argparse tells what a parser has by private attributes only

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module


def parser_tree() -> argparse.ArgumentParser:
    """The parser of `millpond` with those of all commands."""
    tree: argparse.ArgumentParser = import_module("millpond.node.cli.main").build_parser()
    return tree


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            # The names that help shows: earlier ones lead to the same parsers.
            return {each: it for each, it in action.choices.items() if it.prog.endswith(f" {each}")}
    return {}


def leaves(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands below a parser, families included, in the order of their definition."""
    for word, child in subcommands(parser).items():
        yield f"{name} {word}", child
        yield from leaves(child, f"{name} {word}")


def metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def invocation(action: argparse.Action) -> str:
    """A positional argument as the usage line has it."""
    word = metavar(action)
    if isinstance(action, argparse._SubParsersAction):
        return f"{word} ..."
    match action.nargs:
        case "?":
            return f"[{word}]"
        case "*":
            return f"[{word} ...]"
        case "+":
            return f"{word} [{word} ...]"
        case _:
            return word


def option_names(action: argparse.Action) -> list[str]:
    takes = "" if action.nargs == 0 else f" {metavar(action)}"
    if action.nargs == "?":
        takes = f" [{metavar(action)}]"
    return [f"{name}{takes}" for name in action.option_strings]


def helped(action: argparse.Action) -> str:
    """The help text with its default put in."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    values = {name: getattr(value, "__name__", value) for name, value in vars(action).items()}
    if action.choices is not None:
        values["choices"] = ", ".join(map(str, action.choices))
    return (action.help % (values | {"prog": "millpond"})).strip()
