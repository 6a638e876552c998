"""Parsers of command families such as `millpond stream` and `millpond keys`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """A parser whose options may stand anywhere, and that accepts `--time -10m`.

    argparse itself gives all of DATA... to what stands before the first option, and sees an option
    in `-10m`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads, one of which this is
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        return super().parse_known_args(self._options_first(list(args or ())), namespace)

    def _options_first(self, words: list[str]) -> list[str]:
        options: list[str] = []
        others: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == "--":
                return [*options, "--", *others, *rest]
            found = self._option_string_actions.get(word)
            if found is not None and found.nargs is None:
                value = next(rest, None)
                is_long = word.startswith("--")
                options += [word] if value is None else self._joined(word, value, is_long)
            elif word != "-" and word.startswith("-"):
                options.append(word)
            else:
                others.append(word)
        return [*options, *others]

    @staticmethod
    def _joined(option: str, value: str, is_long: bool) -> list[str]:
        return [f"{option}={value}"] if is_long else [option, value]


def action(subparsers: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    """The parser of one command of a family."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser
