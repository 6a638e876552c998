"""`millpond context`: saved settings of connections."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.node.cli.contexts import (
    NAME,
    PATHS,
    Contexts,
    Settings,
    changed_contexts,
    contexts_file,
    read_contexts,
)
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.context import VARIABLES, add_context_option, resolve
from millpond.node.cli.options.identity import add_identity_options
from millpond.node.cli.options.node import add_connect, add_token_file
from millpond.node.cli.options.tls import add_plain_option, add_tls_options
from millpond.node.cli.output import print_json, print_line
from millpond.node.cli.parser import action, nearest

EPILOG = """\
a first context:
  millpond context add prod --connect tls://a.example:7400 --token-file prod.token
  millpond context use prod               from now on commands connect there
  millpond recv orders --context test     one command with another context

A setting of a connection is that of its option, else that of the context of --context, else that of
its environment variable (MILLPOND_CONNECT, MILLPOND_TOKEN, ...), else that of the context in use,
else its default. The context in use is that of MILLPOND_CONTEXT, else that of `context use`. It is
left out as a whole where --connect or MILLPOND_CONNECT gives other addresses, as its token and keys
are for its own. The file is $XDG_CONFIG_HOME/millpond/contexts.toml or
~/.config/millpond/contexts.toml, with mode 0600; tokens and keys stay in files of their own.
"""
ADD_EPILOG = """\
examples:
  millpond context add local --connect tcp://127.0.0.1:7400 --use
  millpond context add prod --connect tls://a.example:7400,tls://b.example:7400 \\
      --ca mill.crt --token-file prod.token
  millpond context add prod --connect tls://c.example:7400 --replace
"""
USE_EPILOG = """\
examples:
  millpond context use prod      commands connect there, unless told otherwise
  millpond context use --none    to the default again
"""
LS_EPILOG = """\
example:
  millpond context ls            names and addresses; * is the one in use
"""
RM_EPILOG = """\
example:
  millpond context rm test old   exit code 4 if one does not exist
"""
SHOW_EPILOG = """\
examples:
  millpond context show prod     the settings of a context; exit code 4 if it does not exist
  millpond context show          the settings that commands use now, and their origins
"""

Work = Callable[[argparse.Namespace], None]


def add_parser(subparsers: Any) -> None:
    """Add `context` to the command line."""
    parser = subparsers.add_parser(
        "context",
        description="Manage saved settings of connections.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    add = _add(actions, "add", "Save the settings of a connection.", ADD_EPILOG, _save)
    add.add_argument("name", metavar="NAME", type=_name, help="letters, digits, `.`, `_` and `-`")
    add_connect(add)
    add_token_file(add)
    add_identity_options(add)
    add_tls_options(add)
    add_plain_option(add)
    add.set_defaults(**dict.fromkeys(VARIABLES))
    add.add_argument("--replace", action="store_true", help="replace the context of this name")
    add.add_argument("--use", action="store_true", help="use it from now on")
    use = _add(actions, "use", "Choose the context that commands use.", USE_EPILOG, _use)
    use.add_argument("name", metavar="CONTEXT", nargs="?")
    use.add_argument("--none", action="store_true", help="use no context")
    _add(actions, "ls", "List contexts.", LS_EPILOG, _ls)
    rm = _add(actions, "rm", "Remove contexts.", RM_EPILOG, _rm)
    rm.add_argument("names", metavar="CONTEXT", nargs="+")
    show = _add(actions, "show", "Show the settings of a context.", SHOW_EPILOG, _show)
    show.add_argument("name", metavar="CONTEXT", nargs="?")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    args.work(args)
    return ExitCode.OK


def _add(actions: Any, name: str, summary: str, epilog: str, work: Work) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(work=work)
    return parser


def _name(text: str) -> str:
    if NAME.fullmatch(text) is None:
        message = "1 to 64 letters, digits, `.`, `_` and `-`, a letter or digit first"
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a context: {message}")
    return text


def _save(args: argparse.Namespace) -> None:
    from millpond.node.client.url import parse_urls

    if args.connect is None:
        raise usage_error("give the address of the node: --connect URL")
    try:
        parse_urls(args.connect)
    except ValueError as exc:
        raise usage_error(f"--connect: {exc}") from exc
    if args.peer is not None and args.identity is None:
        raise usage_error("--peer needs --identity: a node authenticates only to clients that do")
    given = {name: getattr(args, name) for name in VARIABLES}
    settings = {name: value for name, value in given.items() if value}
    for name in set(PATHS) & set(settings):
        settings[name] = str(Path(settings[name]).expanduser().absolute())
    with changed_contexts(contexts_file()) as contexts:
        if args.name in contexts.by_name and not args.replace:
            raise Failure(f"context {args.name!r} exists; --replace replaces it")
        contexts.by_name[args.name] = settings
        if args.use:
            contexts.current = args.name
    if args.json:
        print_json(_fields(args.name, contexts))


def _use(args: argparse.Namespace) -> None:
    if args.none == (args.name is not None):
        raise usage_error("give the name of a context, or --none")
    with changed_contexts(contexts_file()) as contexts:
        if not args.none:
            _settings(contexts, args.name)
        contexts.current = args.name or ""
    if args.json:
        print_json({"current": contexts.current or None})


def _ls(args: argparse.Namespace) -> None:
    contexts = read_contexts(contexts_file())
    width = max(map(len, contexts.by_name), default=0)
    for name, settings in sorted(contexts.by_name.items()):
        if args.json:
            print_json(_fields(name, contexts))
        else:
            mark = "*" if name == contexts.current else " "
            print_line(f"{mark} {name:{width}}  {settings.get('connect', '')}".rstrip())


def _rm(args: argparse.Namespace) -> None:
    with changed_contexts(contexts_file()) as contexts:
        for name in args.names:
            _settings(contexts, name)
        for name in args.names:
            contexts.by_name.pop(name, None)
        if contexts.current in args.names:
            contexts.current = ""
    if args.json:
        for name in args.names:
            print_json({"context": name, "removed": True})


def _show(args: argparse.Namespace) -> None:
    if args.name is None:
        _show_effective(args)
        return
    contexts = read_contexts(contexts_file())
    settings = _settings(contexts, args.name)
    if args.json:
        print_json(_fields(args.name, contexts))
        return
    for name, value in settings.items():
        print_line(f"{_shown(name):12} {value}")


def _show_effective(args: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    add_context_option(parser)
    used = parser.parse_args([])
    origins = resolve(used, os.environ)
    values = {name: getattr(used, name) for name in origins if getattr(used, name)}
    if args.json:
        print_json({name: {"value": values[name], "origin": origins[name]} for name in values})
        return
    for name, value in values.items():
        print_line(f"{_shown(name):12} {value}  ({origins[name]})")


def _settings(contexts: Contexts, name: str) -> Settings:
    if name not in contexts.by_name:
        hint = nearest(name, contexts.by_name) or "`millpond context ls` lists them"
        raise Failure(f"there is no context {name!r}", ExitCode.NOT_FOUND, hint)
    return contexts.by_name[name]


def _fields(name: str, contexts: Contexts) -> dict[str, Any]:
    return {"context": name, "current": name == contexts.current} | contexts.by_name[name]


def _shown(name: str) -> str:
    return name.replace("_", "-")
