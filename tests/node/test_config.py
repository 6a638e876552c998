"""The configuration: which source wins, what is refused, and `config show`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from millpond.actors.channels.settings import EmptyPolicy
from millpond.actors.messages import Durability, Mode
from millpond.node.cli.main import main
from millpond.node.config import ChannelRule, Config, ConfigError, channel_rules, load_config
from millpond.node.credentials import hide_credentials
from millpond.node.webhooks.services import webhook_policy


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "millpond.toml"
    file.write_text(
        'p2p = "127.0.0.1:1"\nwindow = 3\nkeep_alive_s = 1.5\nrequire_hello = true\n'
        'channels = ["jobs/*=queue,lease=2.5,durability=os", "*=fanout"]\nempty_put = "refuse"\n'
    )
    return file


def test_flags_win_over_environment_over_file_over_defaults(settings: Path):
    environment = {"MILLPOND_P2P": "127.0.0.1:2", "MILLPOND_WINDOW": "4", "PATH": "/bin"}
    loaded = load_config({"p2p": "127.0.0.1:3"}, environment, settings)
    assert loaded.config.p2p == "127.0.0.1:3"
    assert loaded.config.window == 4
    assert loaded.config.keep_alive_s == 1.5
    assert loaded.config.ws == Config().ws
    assert loaded.origins["p2p"] == "flag"
    assert loaded.origins["window"] == "environment MILLPOND_WINDOW"
    assert loaded.origins["keep_alive_s"] == f"file {settings}"
    assert loaded.origins["ws"] == "default"


def test_text_becomes_the_type_of_the_setting(settings: Path):
    environment = {
        "MILLPOND_REQUIRE_HELLO": "no",
        "MILLPOND_ORIGINS": "https://a.example;https://b.example",
        "MILLPOND_DRAIN_TIMEOUT_S": "0.5",
        "MILLPOND_EMPTY_PUT": "store",
        "MILLPOND_DATA": "/var/lib/millpond",
        "MILLPOND_DURABILITY": "OS",
    }
    config = load_config({}, environment, settings).config
    assert config.require_hello is False
    assert config.origins == ("https://a.example", "https://b.example")
    assert config.drain_timeout_s == 0.5
    assert config.empty_put is EmptyPolicy.STORE
    assert (config.data, config.durability) == ("/var/lib/millpond", Durability.OS)
    assert [rule.pattern for rule in config.channels] == ["jobs/*", "*"]


@pytest.mark.parametrize(
    "environment",
    [
        {"MILLPOND_WINDOW": "many"},
        {"MILLPOND_WINDOW": "-1"},
        {"MILLPOND_REQUIRE_HELLO": "perhaps"},
        {"MILLPOND_EMPTY_PUT": "burn"},
        {"MILLPOND_CHANNELS": "jobs"},
        {"MILLPOND_DURABILITY": "tape"},
        {"MILLPOND_PACKET_BYTES_MAX": "16777216"},
        {"MILLPOND_DEFAULT_CHANNEL": 251 * "c"},
        {"MILLPOND_ADDRESSES": "mill.lan"},
        {"MILLPOND_ALLOW_PLAIN_PEERS": "perhaps"},
    ],
)
def test_a_bad_setting_is_refused_by_name(environment: dict[str, str]):
    [variable] = environment
    name = variable.removeprefix("MILLPOND_").lower().removesuffix("s")
    with pytest.raises(ConfigError, match=f"(?i){name}"):
        load_config({}, environment, None)


@pytest.mark.parametrize("text", ["colour = 1\n", "window = [\n", b"\xff = 1\n"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | bytes):
    file = tmp_path / "bad.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        load_config({}, {}, file)


def test_a_channel_rule_gives_mode_ttl_lease_and_attempts():
    """PS-05: configuration decides the mode, the first rule that matches holds."""
    rules = tuple(map(ChannelRule.parse, ["jobs/*=queue,ttl=60,lease=2.5,attempts=3", "*=FANOUT"]))
    book = channel_rules(Config(channels=rules))
    jobs, other = book.settings(b"jobs/mail"), book.settings(b"chat/\xff")
    assert jobs.mode is Mode.QUEUE
    assert (jobs.ttl_default, jobs.delivery.ack_timeout_s) == (60, 2.5)
    assert jobs.delivery.attempts_max == 3
    assert other.mode is Mode.FANOUT
    assert channel_rules(Config()).settings(b"c").mode is None


def test_a_channel_rule_gives_a_durability_that_the_node_can_keep():
    rules = tuple(
        map(ChannelRule.parse, ["log=fanout,durability=memory", "mail=pair,durability=os"])
    )
    on_disk = channel_rules(Config(channels=rules, data="/var/lib/millpond"))
    assert on_disk.durability(b"log") is Durability.MEMORY
    assert on_disk.durability(b"mail") is Durability.OS
    assert on_disk.durability(b"other") is Durability.DISK
    assert on_disk.durability(None) is Durability.DISK
    without = channel_rules(Config(channels=rules))
    assert without.durability(b"mail") is without.durability(b"other") is Durability.MEMORY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queue",
        "=queue",
        "a=",
        "a=tree",
        "a=queue,ttl",
        "a=queue,ttl=0",
        "a=queue,x=1",
        "a=queue,durability=tape",
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(text: str):
    with pytest.raises(ConfigError, match="channel rule"):
        ChannelRule.parse(text)


def test_config_show_hides_passwords_unless_asked(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILLPOND_STORE", "redis://me:swordfish@host:6379/0?prefix=p")
    monkeypatch.setenv("MILLPOND_REPLICA", "s3://key:swordfish@bucket/prefix")
    for words in ([], ["--origin"], ["--json"], ["--json", "--origin"]):
        assert main(["config", "show", *words]) == 0
        out, err = capfd.readouterr()
        assert "redis://me:***@host:6379/0?prefix=p" in out and "s3://key:***@bucket" in out
        assert "swordfish" not in out + err and "--secrets" in err
    assert main(["config", "show", "--secrets"]) == 0
    out, err = capfd.readouterr()
    assert 'store = "redis://me:swordfish@host:6379/0?prefix=p"' in out and not err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:secret@host:6379/0", "redis://me:***@host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://secret@host", "redis://***@host"),
        ("redis://me:se/c@r:et?@host/0", "redis://me:***@host/0"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("tls://host:7400#key-sha256:ab", "tls://host:7400#key-sha256:ab"),
        ("PEER@tcp://host:7400", "PEER@tcp://host:7400"),
        ("redis://[::1]:6379/0?prefix=p", "redis://[::1]:6379/0?prefix=p"),
        ("'tcp://me:secret@h': wrong, and 'tcp://h:1'", "'tcp://me:***@h': wrong, and 'tcp://h:1'"),
    ],
)
def test_credentials_are_hidden_in_any_url(text: str, shown: str):
    assert hide_credentials(text) == shown


def test_a_configuration_in_a_traceback_has_no_password():
    assert "swordfish" not in repr(Config(store="redis://me:swordfish@host", data="d"))


@pytest.mark.parametrize("name", ["addresses", "via", "public_url"])
def test_addresses_that_others_are_told_have_no_credentials(name: str):
    scheme = "https" if name == "public_url" else "tcp"
    with pytest.raises(ConfigError, match=name) as caught:
        load_config({}, {f"MILLPOND_{name.upper()}": f"{scheme}://me:swordfish@host"}, None)
    assert "swordfish" not in str(caught.value)


def test_config_show_prints_a_file_that_means_the_same(
    settings: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILLPOND_WINDOW", "5")
    assert main(["config", "show", "--config", str(settings)]) == 0
    shown = capfd.readouterr().out
    monkeypatch.delenv("MILLPOND_WINDOW")
    copy = settings.with_name("copy.toml")
    copy.write_text(shown)
    assert load_config({}, {}, copy).config == load_config({"window": 5}, {}, settings).config


def test_config_show_writes_toml_whatever_the_text(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    name = 'chat/\U0001d11e\x7f\t"\u00e9'
    monkeypatch.setenv("MILLPOND_DEFAULT_CHANNEL", name)
    assert main(["config", "show"]) == 0
    assert tomllib.loads(capfd.readouterr().out)["default_channel"] == name


def test_config_show_names_origins(settings: Path, capfd: pytest.CaptureFixture[str]):
    words = ["config", "show", "--origin", "--config", str(settings)]
    assert main(words) == 0
    plain = capfd.readouterr().out
    assert f"window = 3  # file {settings}" in plain.splitlines()
    assert tomllib.loads(plain)["channels"] == ["jobs/*=queue,lease=2.5,durability=os", "*=fanout"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["window"] == {"value": 3, "origin": f"file {settings}"}
    assert told["ws"] == {"value": "127.0.0.1:7401", "origin": "default"}
    assert told["data"]["origin"].endswith("/millpond")  # where `serve` keeps its data


def test_config_show_refuses_what_serve_would(capfd: pytest.CaptureFixture[str]):
    assert main(["config", "show", "--config", "/nonexistent"]) == 2
    assert "/nonexistent" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["list_page", "malformed_max", "ttl_default_s", "stalled_s"])
def test_a_limit_of_zero_is_refused_where_it_would_break_something(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be 0"):
        Config(**{name: 0})
    assert Config(window=0, requests_per_s_max=0).window == 0


@pytest.mark.parametrize(
    "url",
    ["mill.example", "ftp://mill.example", "https://mill.example/x", "https://", "https://a b"],
)
def test_a_public_url_is_one(url: str) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        Config(public_url=url)


def test_where_webhooks_may_go_is_a_matter_of_the_listener() -> None:
    assert webhook_policy(Config()).is_local
    assert not webhook_policy(Config(http="0.0.0.0:7404")).is_local
    assert not webhook_policy(Config(public_url="https://mill.example")).is_local
    assert Config(public_url="https://mill.example:8443/").public_url
    loaded = load_config({}, {"MILLPOND_WEBHOOK_HOSTS": "Hooks.Internal;10.1.2.3"}, None)
    assert webhook_policy(loaded.config).hosts == {"hooks.internal", "10.1.2.3"}
    assert not webhook_policy(Config(webhooks=False)).is_enabled
