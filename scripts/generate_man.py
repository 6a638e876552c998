"""The man page of `millpond`, share/man/man1/millpond.1, made from the parsers of all commands.

`scripts/generate_reference.py` writes and checks it with the other pages that are made from the
code. The same parsers give the same bytes: the page has no date, and its text is that of `--help`.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from importlib import import_module

from parser_tree import (
    helped,
    invocation,
    leaves,
    option_names,
    parser_tree,
    subcommands,
)

from millpond.node.cli.exit_codes import MEANINGS

VARIABLES = (
    ("MILLPOND_CONNECT", "addresses of the node: --connect"),
    ("MILLPOND_CONTEXT", "saved settings of a connection: --context"),
    ("MILLPOND_TOKEN", "file of the access token: --token-file"),
    ("MILLPOND_IDENTITY", "identity key: --identity"),
    ("MILLPOND_CA, MILLPOND_PIN, MILLPOND_CERT, MILLPOND_CERT_KEY", "TLS: --ca, --pin and others"),
    ("MILLPOND_CONFIG", "configuration file of serve: --config"),
    ("MILLPOND_DATA", "data folder of serve, and of commands that use one"),
    ("MILLPOND_<SETTING>", "any setting of serve"),
    ("NO_COLOR", "no colours on a terminal"),
)
FILES = (
    ("~/.local/share/millpond", "the data folder ($XDG_DATA_HOME/millpond)"),
    ("~/.config/millpond/contexts.toml", "contexts ($XDG_CONFIG_HOME/millpond/contexts.toml)"),
)


def escaped(text: str) -> str:
    """Text as roff prints it: no escapes, no requests, dashes that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraph(text: str) -> list[str]:
    return [".PP", escaped(" ".join(text.split()))]


def item(tag: str, text: str) -> list[str]:
    return [".TP", f".B {escaped(tag)}", escaped(" ".join(text.split())) or "\\&"]


def verbatim(text: str) -> list[str]:
    return [".PP", ".nf", ".RS 2", *map(escaped, text.rstrip().splitlines()), ".RE", ".fi"]


def command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The section of a command."""
    actions = parser._actions  # noqa: SLF001  argparse has no other way to see them
    positional = [each for each in actions if not each.option_strings and each.help != "=="]
    options = [
        each
        for each in actions
        if each.option_strings and each.dest != "help" and each.help != argparse.SUPPRESS
    ]
    words = " ".join(map(invocation, positional))
    yield f".SS {escaped(name)}"
    for part in (parser.description or "").split("\n\n"):
        if part:
            yield from paragraph(part)
    yield from (".PP", f".B {escaped(name)}")
    yield escaped(f"{'[OPTION ...] ' if options else ''}{words}".strip()) or "\\&"
    if children := subcommands(parser):
        yield from paragraph(f"Commands: {', '.join(children)}.")
    for each in positional:
        if text := helped(each):
            yield from item(invocation(each), text)
    for each in options:
        yield from item(", ".join(option_names(each)), helped(each))
    if parser.epilog:
        yield from verbatim(inspect.cleandoc(parser.epilog))


def page() -> str:
    """The whole page."""
    main = import_module("millpond.node.cli.main")
    root = parser_tree()
    lines = [
        '.\\" Made by scripts/generate_reference.py from the parsers of the commands.',
        '.TH MILLPOND 1 "" "millpond" "User Commands"',
        ".ad l",
        ".nh",
        ".SH NAME",
        "millpond \\- a peer\\-to\\-peer node that stores messages until peers receive them",
        ".SH SYNOPSIS",
        ".B millpond",
        ".I COMMAND",
        "[\\fIOPTION\\fR ...] [\\fIARGUMENT\\fR ...]",
        ".SH DESCRIPTION",
        *paragraph(
            "Millpond runs a node, which keeps messages for peers that are away, runs job queues "
            "and serves append-only streams, and has the commands that talk to one. "
            "millpond COMMAND --help prints the text of a command."
        ),
        ".SH COMMANDS",
    ]
    for name, (_, summary) in main.COMMANDS.items():
        lines += item(name, summary)
    lines.append(".SH OPTIONS OF COMMANDS")
    for name, parser in leaves(root, "millpond"):
        lines += command(name, parser)
    exit_codes = [(str(int(code)), text) for code, text in MEANINGS.items()]
    for title, rows in (("EXIT STATUS", exit_codes), ("ENVIRONMENT", VARIABLES), ("FILES", FILES)):
        lines.append(f".SH {title}")
        for name, text in rows:
            lines += item(name, text)
    lines.append(".SH EXAMPLES")
    lines += verbatim(main.EPILOG.partition("\n\n")[0])
    return "\n".join(lines) + "\n"
