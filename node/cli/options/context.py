"""The settings of a connection: from options, the environment, and a context.

Each setting is that of its option, else that of the context of `--context`, else that of its
environment variable, else that of the context in use (MILLPOND_CONTEXT, else `millpond context
use`), else its default. The context in use is left out as a whole where another address is given:
its token and keys are for its own nodes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millpond.node.cli.exit_codes import usage_error

if TYPE_CHECKING:
    from millpond.node.cli.contexts import Settings

CONNECT = "tcp://127.0.0.1:7400"
VARIABLES = {
    "connect": "MILLPOND_CONNECT",
    "token_file": "MILLPOND_TOKEN",
    "identity": "MILLPOND_IDENTITY",
    "peer": "",
    "ca": "MILLPOND_CA",
    "pin": "MILLPOND_PIN",
    "cert": "MILLPOND_CERT",
    "cert_key": "MILLPOND_CERT_KEY",
    "allow_plain": "MILLPOND_ALLOW_PLAIN",
}
"""The settings of a connection, and their environment variables."""
DEFAULTS = {"connect": CONNECT, "allow_plain": False}


def add_context_option(parser: argparse.ArgumentParser) -> None:
    """Add `--context`. The parser has the options of all settings; what stands for those that are
    not given is found when the command line was read."""
    parser.add_argument(
        "--context",
        metavar="CONTEXT",
        help="saved settings of a connection (or MILLPOND_CONTEXT; see `millpond context`)",
    )
    parser.set_defaults(uses_context=True, **dict.fromkeys(VARIABLES))


def resolve(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Set the settings of a connection that no option has given, and `args.context` to the context
    that is used, None for none. Gives the origin of each setting. Raises Failure."""
    is_named = args.context is not None
    context, name = _context(args, environ)
    origins: dict[str, str] = {}
    for setting, variable in VARIABLES.items():
        if getattr(args, setting) is not None:
            origins[setting] = "option"
            continue
        sources = [
            (environ.get(variable), f"environment {variable}"),
            (context.get(setting), f"context {name}"),
        ]
        default = (DEFAULTS.get(setting), "default")
        in_order = reversed(sources) if is_named else sources
        value, origins[setting] = next((each for each in in_order if each[0]), default)
        setattr(args, setting, bool(value) if setting == "allow_plain" else value)
    args.context = name
    return origins


def _context(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, str | None]:
    """The context that applies, and its name; ({}, None) for none."""
    from_environment = environ.get("MILLPOND_CONTEXT") or None
    if args.context is not None:
        where, name = "--context", args.context
    elif args.connect or environ.get("MILLPOND_CONNECT") or getattr(args, "data", None):
        return {}, None
    else:
        where, name = "MILLPOND_CONTEXT", from_environment
    from millpond.node.cli.contexts import contexts_file, read_contexts

    path = contexts_file(environ)
    if name is None and not path.exists():
        return {}, None
    contexts = read_contexts(path)
    if name is None:
        where, name = f"{path}: current", contexts.current or None
    if name is None:
        return {}, None
    if name not in contexts.by_name:
        from millpond.node.cli.parser import nearest

        hint = nearest(name, contexts.by_name) or "`millpond context ls` lists them"
        raise usage_error(f"{where}: there is no context {name!r}", hint)
    return contexts.by_name[name], name
