"""docs/reference/limits.md has every setting, with the default and the flag that it really has."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from millpond.node.cli.commands import serve
from millpond.node.cli.commands.config import settings
from millpond.node.config import Config, LoadedConfig

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "limits.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| (?:`(--[\w-]+)`)? ?\|", re.MULTILINE)
ROWS = {name: (json.loads(default), flag or None) for name, default, flag in ROW.findall(PAGE)}


def flags_of_serve() -> dict[str, str]:
    subparsers = argparse.ArgumentParser().add_subparsers()
    serve.add_parser(subparsers)
    actions = subparsers.choices["serve"]._actions
    return {action.dest: action.option_strings[0] for action in actions if action.option_strings}


def test_every_setting_is_in_the_table_with_its_default() -> None:
    shown = {name: default for name, (default, _) in ROWS.items()}
    assert shown == settings(LoadedConfig(Config()))


def test_every_setting_is_shown_with_its_flag() -> None:
    flags = flags_of_serve()
    shown = {name: flag for name, (_, flag) in ROWS.items()}
    assert shown == {name: flags.get(name) for name in shown}


def test_each_setting_is_shown_once() -> None:
    assert len(ROW.findall(PAGE)) == len(ROWS)
