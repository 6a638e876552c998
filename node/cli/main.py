"""The entry point of `millpond`: parser, start of the command, exit code and error line."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from millpond.node.cli.exit_codes import (
    ExitCode,
    Failure,
    WrongArguments,
    exit_codes,
    first_cause,
)
from millpond.node.cli.parser import CommandParser

COMMANDS = {
    "serve": ("commands.serve", "Run a node."),
    "chat": ("chat.command", "Chat with a peer."),
    "put": ("commands.put", "Put messages into a channel."),
    "recv": ("commands.recv", "Receive and acknowledge messages."),
    "ask": ("commands.ask", "Ask a question in a channel, and print the answer."),
    "reply": ("commands.ask", "Answer questions in a channel by a program."),
    "list": ("commands.inspect", "List the ids of the messages in a channel."),
    "get": ("commands.inspect", "Print one message without removing it."),
    "ack": ("commands.inspect", "Acknowledge messages by id, which removes them."),
    "export": ("commands.export", "Export the messages of a channel as lines of JSON."),
    "import": ("commands.import_", "Import exported messages into a node."),
    "channel": ("commands.channel", "Create, list, purge and delete channels."),
    "backup": ("commands.backup", "Back up a whole node while it runs."),
    "restore": ("commands.restore", "Restore a backup or a replica into a new data folder."),
    "replica": ("commands.replica", "Show, verify, prune and snapshot the replica of a node."),
    "stream": ("stream.command", "Append to and read streams."),
    "state": ("commands.state", "Query the materialized state of a stream."),
    "jobs": ("jobs.command", "Put, inspect, retry and cancel jobs."),
    "work": ("jobs.work", "Run jobs with a Python function."),
    "topic": ("commands.topic", "Manage topics: partitioned streams with consumer groups."),
    "subscription": (
        "commands.subscription",
        "Show the state and lag of subscriptions.",
    ),
    "context": ("commands.context", "Manage saved settings of connections."),
    "ping": ("commands.ping", "Measure the round trip to a node."),
    "console": ("commands.console", "Print a link to the page that shows what a node holds."),
    "top": ("commands.top", "Show what a node does now."),
    "events": ("commands.events", "Show connections, refusals, crashes and damage of a node."),
    "info": ("commands.ping", "Show a running node and its channels."),
    "doctor": ("doctor.command", "Check this machine, the configuration and the node."),
    "keys": ("commands.keys", "Manage the identity of this node and the keys of peers."),
    "peer": ("commands.peer", "Manage the peers of this node."),
    "token": ("commands.token", "Create, list and revoke access tokens."),
    "config": ("commands.config", "Show the configuration that `serve` uses."),
    "completion": ("commands.completion", "Print the completion of a shell."),
    "bench": ("bench.command", "Run benchmarks."),
    "pipeline": ("commands.pipeline", "Build tables from streams with Spark."),
}
"""Each command's module and its line in `millpond --help`."""

SERVICES = ("serve", "work")
"""Commands that run for long, often with nobody who reads what they say."""

COMMANDS_PACKAGE = "millpond.node.cli"

EPILOG = f"""\
a first conversation:
  millpond serve                          in one terminal
  millpond put chat/1 'hello'             in another; prints the message's id
  millpond recv chat/1                    prints the message and acknowledges it

Commands connect to tcp://127.0.0.1:7400 unless --connect, MILLPOND_CONNECT or a context
(`millpond context`) says otherwise.
`millpond COMMAND --help` shows the options of a command, and examples.

exit codes:
{exit_codes()}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `millpond` with these arguments (default: the process's own); gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except SystemExit as end:  # argparse ends so, after --help and after usage errors
        return end.code if isinstance(end.code, int) else ExitCode.FAILURE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BaseException as exc:  # the end of the process: told on stderr, with its exit code
        return _end(first_cause(exc), words)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, with every command; nothing is run.

    The modules of all commands are imported, so this is for documentation and completion, not for
    the start of a command. Defaults that come from the environment (MILLPOND_DATA, ...) are those
    of this process. Raises Failure where the packages of the `spark` extra are missing.
    """
    parser, commands = _empty_parser()
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        import_module(f"{COMMANDS_PACKAGE}.{module}").add_parser(commands)
    return parser


class _Commands:
    """The subparsers of `millpond`: each command gets its line of `COMMANDS` as its summary."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        return self._subparsers.add_parser(name, help=COMMANDS[name][1], **options)


def _empty_parser() -> tuple[argparse.ArgumentParser, _Commands]:
    parser = CommandParser(
        prog="millpond",
        description="A peer-to-peer node that stores messages until peers receive them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser, _Commands(parser)


def _run(words: list[str]) -> int:
    """Only the module of the command is imported: the others would double the time to start."""
    parser, commands = _empty_parser()
    if "_ARGCOMPLETE" in os.environ:
        _complete(parser, commands)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    wanted = words[0] if words and words[0] in COMMANDS else None
    if wanted is None:
        if words and words[0].startswith("-"):
            _refuse_options_first(parser, words)
        for name in COMMANDS:
            commands.add_parser(name)
        return _without_command(parser, parser.parse_args(words))
    with _without_collections():
        module = import_module(f"{COMMANDS_PACKAGE}.{COMMANDS[wanted][0]}")
        module.add_parser(commands)
        arguments = parser.parse_args(words)
        if getattr(arguments, "uses_context", False):
            from millpond.node.cli.options.context import resolve

            resolve(arguments)
    code: int = module.run(arguments)
    return code


def _complete(parser: argparse.ArgumentParser, commands: _Commands) -> None:
    """Tell the shell what may follow; the process ends here."""
    from millpond.node.cli.completion import command_in, complete

    line = os.environ.get("COMP_LINE", "")
    wanted = command_in(line[: int(os.environ.get("COMP_POINT", len(line)))])
    if wanted in COMMANDS:
        import_module(f"{COMMANDS_PACKAGE}.{COMMANDS[wanted][0]}").add_parser(commands)
    else:
        for name in COMMANDS:
            commands.add_parser(name)
    complete(parser)


@contextmanager
def _without_collections() -> Generator[None]:
    """A context in which the garbage collector does not run, and whose objects it does not look at
    later: what modules make while they load is not garbage, and looking at all of it again and
    again is an eighth of the time they take."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()


def _without_command(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.version:
        from millpond.node.cli.output import installed

        print(f"millpond {installed('millpond') or 'unknown (not installed)'}")
        return ExitCode.OK
    if args.command is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    parser.error(f"{args.command}: options of a command come after it")


def _refuse_options_first(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Raises WrongArguments for `millpond --connect URL ping`."""
    at = next((index for index, word in enumerate(words) if word in COMMANDS), None)
    if at is not None and not {"--help", "-h", "--version"} & set(words[:at]):
        told = " ".join(["millpond", words[at], *words[:at]])
        parser.error(f"the options of a command come after it: {told}")


def _end(error: BaseException, words: list[str]) -> int:
    """The exit code of an error that ended a command, after its line on stderr."""
    match error:
        case Failure():
            _print_failure(error, words)
            return error.code
        case BrokenPipeError():
            # The reader of the output has gone; the interpreter's last flush must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case SystemExit(code=int(code)):
            return code
        case _:
            where = _line_of(error)
            text = f"internal error{where}: {type(error).__name__}: {error}"
            _print_failure(Failure(text, hint="please report it"), words, "internal")
            return ExitCode.FAILURE


def _line_of(error: BaseException) -> str:
    from pathlib import Path
    from traceback import extract_tb  # late, as is the above: few commands end so

    frames = extract_tb(error.__traceback__)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _print_failure(failure: Failure, words: list[str], code: str = "") -> None:
    """Say on stderr why a command ends: a line for people, with --json an object."""
    command = words[0] if words and words[0] in COMMANDS else ""
    if "--json" in (words[: words.index("--")] if "--" in words else words):
        import json

        fields = failure.fields()
        fields["code"] = code or fields["code"]
        line = json.dumps(fields, ensure_ascii=False)
    elif isinstance(failure, WrongArguments):
        usage = f"usage: {failure.usage} (all options: --help)"
        line = f"{usage}\n{failure.prog}: error: {failure}"
    else:
        line = f"millpond {command}".rstrip() + f": {failure}"
    if command in SERVICES:
        _write_error(line)
    else:
        print(line, file=sys.stderr)


def _write_error(text: str) -> None:
    from millpond.node.log_handler import write_error  # it takes time, and other commands do not

    write_error(text)
