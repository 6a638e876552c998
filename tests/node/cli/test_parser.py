"""The parser of the whole command line, from which the reference of the commands is generated."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from millpond.node.cli.main import COMMANDS, build_parser, main


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


@pytest.mark.parametrize("parser", list(parsers(build_parser())), ids=lambda each: each.prog)
def test_help_of_every_command_can_be_printed(parser: argparse.ArgumentParser) -> None:
    assert parser.format_help().startswith(f"usage: {parser.prog}")


def test_every_command_has_a_parser_and_its_summary() -> None:
    text = build_parser().format_help()
    for name, (_, summary) in COMMANDS.items():
        assert name in text
        assert summary in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strem", "ls"], "there is no command 'strem'; did you mean stream?"),
        (["jobs", "shw"], "there is no command 'shw'; did you mean show?"),
        (["put", "--tll", "3", "a", "b"], "unknown option --tll; did you mean --ttl?"),
        (["stream", "read", "--jsn", "a"], "unknown option --jsn; did you mean --json?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest_one(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: millpond")
    assert error.endswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status"], "did you mean info?"),
        (["publish", "c", "x"], "did you mean put?"),
        (["subscribe", "c"], "did you mean recv?"),
        (["topic", "remove", "t"], "did you mean rm?"),
        (["stream", "describe", "s"], "did you mean show?"),
        (
            ["--connect", "tcp://127.0.0.1:1", "ping"],
            "the options of a command come after it: millpond ping --connect tcp://127.0.0.1:1",
        ),
    ],
)
def test_words_of_other_tools_are_answered_with_ours(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: millpond")
    assert error.endswith(said)


def test_help_and_version_are_words_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    for words, option in ((["help", "put"], ["put", "--help"]), (["version"], ["--version"])):
        assert main(words) == main(option) == 0
        shown = capsys.readouterr().out
        assert shown[: len(shown) // 2] == shown[len(shown) // 2 :] != ""
