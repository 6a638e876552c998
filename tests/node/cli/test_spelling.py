"""One spelling in all commands: options, names of commands, errors and exit codes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.node.cli.main import build_parser
from millpond.node.config import Config, ConfigError, load_config
from tests.node.processes import Serving, command_here, environment, serving


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """All commands below a parser, each once."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield each
                yield from commands(each)


ROOT = build_parser()
COMMANDS = list(commands(ROOT))


def option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return parser._option_string_actions.get(name)


def test_n_is_a_number_of_things_everywhere() -> None:
    found = {each.prog: option(each, "-n") for each in COMMANDS if option(each, "-n")}
    assert len(found) >= 9
    for prog, action in found.items():
        assert action is not None and action.nargs is None and action.type is not None, prog
        assert action.metavar == "N" or prog.startswith("millpond pipeline"), prog
        assert action.help, prog


def test_f_goes_on_until_ctrl_c_everywhere_and_has_one_long_name() -> None:
    found = {each.prog: option(each, "-f") for each in COMMANDS if option(each, "-f")}
    assert len(found) >= 6
    for prog, action in found.items():
        assert action is not None and action.option_strings == ["-f", "--follow"], prog
        assert action.nargs == 0 and "until Ctrl-C" in str(action.help), prog
    assert not [
        each.prog for each in COMMANDS if option(each, "--follow") and each.prog not in found
    ]


def test_json_takes_no_value_and_every_command_with_output_has_it() -> None:
    families = {each.prog for each in COMMANDS if list(commands(each))}
    without = []
    for each in COMMANDS:
        action = option(each, "--json")
        if action is None:
            without += [each.prog] if each.prog not in families else []
        else:
            assert action.nargs == 0 and "JSON" in str(action.help), each.prog
    pipeline = {prog for prog in without if prog.startswith("millpond pipeline")}
    assert set(without) - pipeline == {"millpond completion"}


def test_y_is_yes_and_all_that_remove_have_it() -> None:
    removing = {each.prog for each in COMMANDS if each.prog.endswith(" rm")}
    with_yes = {each.prog for each in COMMANDS if option(each, "--yes")}
    # A context is settings of this user; it is added again in a moment.
    assert removing - with_yes <= {"millpond context rm"}
    for each in COMMANDS:
        if action := option(each, "-y"):
            assert action.option_strings == ["-y", "--yes"]


NOUNS = ("channel", "stream", "topic", "jobs", "jobs dead", "token", "peer", "context")


@pytest.mark.parametrize("noun", NOUNS)
def test_every_noun_has_ls_show_and_rm(noun: str) -> None:
    progs = {each.prog for each in COMMANDS}
    assert {f"millpond {noun} {verb}" for verb in ("ls", "show", "rm")} <= progs


OLD = {
    "stream info": "stream show",
    "stream delete": "stream rm",
    "topic describe": "topic show",
    "topic delete": "topic rm",
    "jobs cancel": "jobs rm",
    "jobs dead purge": "jobs dead rm",
    "token revoke": "token rm",
    "peer list": "peer ls",
    "keys list": "keys ls",
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_works_and_no_help_shows_it(old: str) -> None:
    env = environment()
    done = command_here(*old.split(), "--help", env=env)
    assert done.returncode == 0
    assert done.stdout == command_here(*OLD[old].split(), "--help", env=env).stdout
    family, _, name = old.rpartition(" ")
    lines = command_here(*family.split(), "--help", env=env).stdout.decode().splitlines()
    assert not [line for line in lines if line.split()[:1] == [name]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("node") / "data"
    with serving("--ws", "off", "--data", str(folder), "--channel", "jobs/*=queue") as opened:
        yield opened


MISSING = """
get box 123
info nothing
export nothing
channel show nothing
channel rm nothing
channel purge nothing
stream show nothing
stream read nothing
stream tail nothing
stream trim nothing 1
stream rm nothing
topic show nothing
topic fetch nothing
topic commit nothing g 1
topic offset nothing g
topic rm nothing
jobs show mail 123
jobs retry mail 123
jobs rm mail 123
jobs dead show mail 123
jobs dead retry mail 123
jobs dead rm mail 123
subscription show nothing
state show nothing
state get nothing user 1
context show nothing
context use nothing
context rm nothing
token show 123456789abc
token rm 123456789abc
peer show nobody
peer rm nobody
peer block nobody
keys trust nobody
keys revoke nobody
chat nobody
import no-such-file.jsonl
""".strip().splitlines()


@pytest.mark.parametrize("line", MISSING)
def test_what_is_not_there_is_exit_code_4_and_an_object_with_json(
    node: Serving, line: str, tmp_path: Path
) -> None:
    env = environment(
        MILLPOND_CONNECT=node.urls["tcp"],
        MILLPOND_DATA=node.ready["data"],
        XDG_CONFIG_HOME=str(tmp_path),
    )
    for words in (line.split(), [*line.split(), "--json"]):
        done = command_here(*words, env=env)
        assert done.returncode == 4, (done.stdout, done.stderr)
        *_, last = done.stderr.decode().splitlines()
        if words[-1] != "--json":
            assert last.startswith("millpond ")
    told = json.loads(last)
    assert set(told) == {"code", "message", "hint", "exit_status"}
    assert (told["code"], told["exit_status"]) == ("not_found", 4) and told["message"]


def failed(*words: str, **variables: str) -> tuple[int, dict[str, Any]]:
    done = command_here(*words, env=environment(**variables))
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    return done.returncode, json.loads(line)


def test_other_errors_are_objects_with_their_hint() -> None:
    nowhere = "tcp://127.0.0.1:1"
    code, told = failed("ping", "--json", "--connect", nowhere)
    assert code == told["exit_status"] == 1 and told["code"] == "failure"
    assert told["message"] == "no node at 127.0.0.1:1"
    assert told["hint"] == "start one with `millpond serve`"
    code, told = failed("recv", "a", "--jsno", "--json")
    assert (code, told["code"], told["hint"]) == (2, "usage", "did you mean --json?")
    code, told = failed("stream", "shwo", "a", "--json")
    assert (code, told["message"], told["hint"]) == (
        2,
        "there is no command 'shwo'",
        "did you mean show?",
    )
    code, told = failed("put", "a", "b", "--ttl", "soon", "--json")
    assert code == 2 and "--ttl" in told["message"] and told["hint"] is None
    code, told = failed("serve", "--json", "--durability", "memory", "--data", "x")
    assert (code, told["code"]) == (2, "usage")


def test_json_behind_two_dashes_is_data() -> None:
    done = command_here(
        "put", "--connect", "tcp://127.0.0.1:1", "a", "--", "--json", env=environment()
    )
    assert done.stderr.startswith(b"millpond put: no node")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ack_timeout_s", "1m30s", 90.0),
        ("ttl_default_s", "7d", 604_800),
        ("ttl_default_s", "90", 90),
        ("keep_alive_s", "0.5", 0.5),
        ("keep_alive_s", "500ms", 0.5),
        ("node_bytes_max", "2GB", 2**31),
        ("scrub_bytes_s", "64KiB", 65_536),
        ("packet_bytes_max", "1048576", 2**20),
    ],
)
def test_settings_are_spelled_like_options(
    name: str, text: str, value: float, tmp_path: Path
) -> None:
    file = tmp_path / "millpond.toml"
    file.write_text(f'{name} = "{text}"\n')
    for loaded in (
        load_config({}, {}, file),
        load_config({}, {f"MILLPOND_{name.upper()}": text}, None),
    ):
        found = getattr(loaded.config, name)
        assert found == value and type(found) is type(getattr(Config(), name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ack_timeout_s", "64KiB"),
        ("node_bytes_max", "90s"),
        ("ttl_default_s", "1.5s"),
        ("window", "5m"),
    ],
)
def test_units_of_another_kind_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_config({}, {f"MILLPOND_{name.upper()}": text}, None)


def test_rules_take_units_too() -> None:
    texts = {
        "MILLPOND_STREAMS": "logs=age=7d,bytes=1GiB",
        "MILLPOND_CHANNELS": "a=queue,ttl=1h,lease=1.5s",
    }
    config = load_config({}, texts, None).config
    assert (config.streams[0].age, config.streams[0].bytes) == (604_800, 2**30)
    assert (config.channels[0].ttl, config.channels[0].lease) == (3600, 1.5)
    with pytest.raises(ConfigError, match="bytes"):
        load_config({}, {"MILLPOND_STREAMS": "logs=bytes=7d"}, None)
