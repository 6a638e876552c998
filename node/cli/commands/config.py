"""`millpond config show`: the settings of `serve` and their origins."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from millpond.actors.messages import Durability
from millpond.node.cli.exit_codes import ExitCode, usage_error
from millpond.node.cli.options.data_folder import data_folder
from millpond.node.cli.output import print_json, print_line
from millpond.node.config import ChannelRule, ConfigError, LoadedConfig, load_config
from millpond.node.config_rules import StreamRule
from millpond.node.credentials import HIDDEN, hide_credentials

EPILOG = """\
examples:
  millpond config show > millpond.toml      write a file for `millpond serve --config`
  millpond config show --origin             show the origin of each setting
  millpond config show --secrets            passwords in URLs as well

The order of precedence is: options of `serve`, environment (MILLPOND_<SETTING>), file, defaults.
"""


def add_parser(subparsers: Any) -> None:
    """Add `config show` to the command line."""
    parser = subparsers.add_parser(
        "config", description="Show the configuration that `serve` uses."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="print every setting",
        description="Print the settings that `serve` uses, as TOML.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument(
        "--secrets", action="store_true", help=f"print passwords in URLs, not {HIDDEN}"
    )
    show.add_argument("--origin", action="store_true", help="show the origin of each setting")
    show.add_argument("--config", metavar="FILE", default=os.environ.get("MILLPOND_CONFIG"))
    show.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the configuration."""
    try:
        loaded = load_config({}, os.environ, Path(args.config) if args.config else None)
    except ConfigError as exc:
        raise usage_error(str(exc)) from exc
    values = settings(loaded)
    if not args.secrets:
        values, given = {name: _without_secrets(value) for name, value in values.items()}, values
        if values != given:
            text = f"millpond: passwords are shown as {HIDDEN}; --secrets prints them"
            print(text, file=sys.stderr)
    if not loaded.config.data and loaded.config.durability is not Durability.MEMORY:
        loaded.origins["data"] += f": {data_folder(os.environ)}"
    if args.json and args.origin:
        pairs = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()
        }
        print_json(pairs)
    elif args.json:
        print_json(values)
    else:
        for name, value in values.items():
            origin = f"  # {loaded.origins[name]}" if args.origin else ""
            print_line(f"{name} = {_toml(value)}{origin}")
    return ExitCode.OK


def settings(loaded: LoadedConfig) -> dict[str, Any]:
    """All settings as values of a TOML file."""
    config = loaded.config
    return {each.name: _plain(getattr(config, each.name)) for each in dataclasses.fields(config)}


def _without_secrets(value: Any) -> Any:
    match value:
        case str():
            return hide_credentials(value)
        case list():
            return [_without_secrets(each) for each in value]
        case _:
            return value


def _toml(value: Any) -> str:
    """The value in TOML: that of JSON, with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case ChannelRule() | StreamRule():
            return _rule(value)
        case Durability():
            return value.name.lower()
        case Enum():
            return value.value
        case _:
            return value


def _rule(rule: ChannelRule | StreamRule) -> str:
    options = msgspec.structs.asdict(rule)
    pattern, mode = options.pop("pattern"), options.pop("mode", None)
    if rule.durability is not None:
        options["durability"] = rule.durability.name.lower()
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    return f"{pattern}=" + ",".join([mode.name.lower(), *given] if mode is not None else given)
