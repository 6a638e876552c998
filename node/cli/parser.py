"""Parsers of the command line, and what they say of wrong arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from millpond.node.cli.exit_codes import WrongArguments

WORDS_ALIKE = 0.6
OPTIONS_ALIKE = 0.72
"""Likeness of words that are taken for misspelt ones; `--file` is no `--token-file`."""

OTHER_WORDS = {
    **dict.fromkeys(("publish", "pub", "send", "produce", "enqueue"), "put"),
    **dict.fromkeys(("receive", "subscribe", "sub", "consume", "pull"), "recv"),
    **dict.fromkeys(("start", "run", "node", "daemon"), "serve"),
    **dict.fromkeys(("status", "stats"), "info"),
    **dict.fromkeys(("request", "call"), "ask"),
    **dict.fromkeys(("delete", "remove", "del"), "rm"),
    **dict.fromkeys(("describe", "get", "view"), "show"),
    **dict.fromkeys(("queue", "queues", "job"), "jobs"),
    **dict.fromkeys(("worker",), "work"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("monitor", "watch"), "top"),
    **dict.fromkeys(("logs", "log"), "events"),
}
"""Words of other tools for commands of this one."""


class CommandParser(argparse.ArgumentParser):
    """A parser that answers a wrong argument with one line of usage and the nearest right word."""

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads, one of which this is
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        word = next((each for each in unknown if each[:1] == "-" and each.strip("-")), None)
        if word is not None:  # told here, as the parser above does not know the options
            option = word.partition("=")[0]
            hint = nearest(option, self._option_string_actions, OPTIONS_ALIKE)
            self.error(f"unknown option {option}", hint)
        if unknown and self._subparsers is None:
            self.error(f"too many arguments: {' '.join(map(repr, unknown))}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        is_command = action.nargs == argparse.PARSER
        if is_command and value not in (action.choices or ()):
            known = list(action.choices or ())
            hint = nearest(str(value), known) or f"expected one of: {', '.join(known)}"
            if (other := OTHER_WORDS.get(str(value))) in known:
                hint = f"did you mean {other}?"
            self.error(f"there is no command {value!r}", hint)
        super()._check_value(action, value)

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Raise WrongArguments, which ends the command with exit code 2."""
        words = [each.metavar or each.dest for each in self._get_positional_actions()]
        usage = " ".join([self.prog, "[OPTION ...]", *(w for w in words if isinstance(w, str))])
        raise WrongArguments(self.prog, usage, message, hint)


def nearest(word: str, known: Iterable[str], alike: float = WORDS_ALIKE) -> str:
    """The hint that names the known word most like this one; empty if none is."""
    from difflib import get_close_matches  # late: commands without a mistake do not need it

    found = get_close_matches(word, list(known), n=1, cutoff=alike)
    return f"did you mean {found[0]}?" if found else ""


class Parser(CommandParser):
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


def add_alias(subparsers: Any, old: str, parser: argparse.ArgumentParser) -> None:
    """Have an earlier name of a command work for one version more; no help shows it."""
    subparsers._name_parser_map[old] = parser  # noqa: SLF001  argparse shows all other aliases


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
