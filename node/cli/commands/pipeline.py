"""`millpond pipeline`: the commands of the Spark pipeline."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from millpond.node.cli.exit_codes import Failure

SUMMARY = "Build tables from streams with Spark."


def add_parser(subparsers: Any) -> None:
    """The family's parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser("pipeline", description=SUMMARY)
    _commands().add_commands(parser)


def run(args: argparse.Namespace) -> int:
    """Run `millpond pipeline ...`."""
    code: int = _commands().run(args)
    return code


def _commands() -> Any:
    """The module of the commands, whose packages are an extra. Raises Failure."""
    try:
        return import_module("millpond.pipeline.cli")
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed; install it with pip install '.[spark]'"
        raise Failure(text) from None
