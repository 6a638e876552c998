"""The files in deploy/: they name only what exists, and their commands work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.node.cli.main import build_parser
from tests.node.processes import ROOT, environment, serving

yaml = pytest.importorskip("yaml", reason="an extra, `dev`")

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "millpond.service"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "millpond.json").read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
NAME = re.compile(r"\b(?:millpond|process)_[a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:millpond|process)_[a-z0-9_]+)\s*(?:\{[^}]*\})?")
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
STOP_S = 60.0


def metrics() -> dict[str, str]:
    """The kind of each metric by its name, as the reference has them."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    return dict(re.findall(r"^- `(\w+)` \((gauge|counter|histogram)", text, re.MULTILINE))


METRICS = metrics()


def check_expression(expression: str) -> None:
    """It names only metrics that exist, and takes the rate of counters alone."""
    names = NAME.findall(expression)
    assert names or "up{" in expression, expression
    for name in names:
        part = next((each for each in HISTOGRAM_PARTS if name.endswith(each)), "")
        kind = METRICS.get(name) or METRICS.get(name.removesuffix(part))
        assert kind is not None, f"there is no metric {name}"
        assert (kind == "histogram") == bool(part and name not in METRICS), expression
        grows = kind != "gauge"
        is_rate = bool(re.search(rf"(rate|increase)\({name}\b", expression))
        assert is_rate == grows, f"{name} is a {kind}: {expression}"
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alarm_is_of_metrics_that_exist(rule: Mapping[str, Any]) -> None:
    check_expression(rule["expr"])
    assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_prometheus_takes_its_files() -> None:
    """promtool reads the alarms, and the configuration with the alarms beside it."""
    files = DEPLOY / "prometheus"
    rules = ["promtool", "check", "rules", files / "alerts.yaml"]
    told = subprocess.run(rules, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0 and f"{len(RULES)} rules found" in told.stdout, told.stderr
    config = ["promtool", "check", "config", "--syntax-only", files / "prometheus.yml"]
    told = subprocess.run(config, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr


def test_the_guide_and_the_rules_have_the_same_alarms() -> None:
    text = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    table = text.partition("## Alarms")[2].partition("A short rise")[0]
    told = {
        name
        for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        for name in NAME.findall(cell)
    }
    ruled = {name for rule in RULES for name in NAME.findall(rule["expr"])}
    missing = told - ruled - {"millpond_request_seconds_bucket"}  # usual times differ
    assert missing == set()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_is_of_metrics_that_exist(panel: Mapping[str, Any]) -> None:
    assert panel["targets"] and panel["description"]
    for target in panel["targets"]:
        check_expression(target["expr"])
        assert 'instance="$instance"' in target["expr"], "of one node"


def test_panels_do_not_overlap() -> None:
    taken = set()
    for each in DASHBOARD["panels"]:
        at = each["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, each["title"]
        taken |= cells
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


# systemd.


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    parser.read_string(UNIT.read_text())
    return parser


def test_the_unit_starts_tells_and_stops(tmp_path: Path) -> None:
    """Its command, with other places and any ports; systemd's messages; SIGTERM."""
    service = unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert program.endswith("/bin/millpond") and service["Type"] == "notify"
    data, config = tmp_path / "data", tmp_path / "millpond.toml"
    config.write_text('p2p = "127.0.0.1:0"\nws = "off"\ns3p = "off"\nrustlog = "off"\n')
    places = {"/var/lib/millpond": str(data), "/etc/millpond.toml": str(config)}
    words = [places.get(word, word) for word in words]
    assert words[0] == "serve" and words[1:] == ["--data", str(data), "--config", str(config)]
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(address)
        notified.settimeout(STOP_S)
        # `serving` chooses the ports of what is not in the file.
        with serving(*words[1:], env=environment(NOTIFY_SOCKET=address)) as node:
            assert b"READY=1" in notified.recv(1000)
            node.process.send_signal(signal.SIGTERM)
            assert b"STOPPING=1" in notified.recv(1000)
            assert node.process.wait(STOP_S) == 0
    assert int(service["TimeoutStopSec"]) >= 25 + 5, "drain and stop, and a little"
    assert 0o700 == int(service["StateDirectoryMode"], 8)


def test_the_unit_is_one_of_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    here = tmp_path / "millpond.service"
    text = UNIT.read_text().replace("/opt/millpond/.venv/bin/millpond", shutil.which("true") or "")
    here.write_text(text.replace("kill -HUP", f"{shutil.which('kill') or '/bin/kill'} -HUP"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", here],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "millpond.service" in line]
    assert not told, told


# Containers.


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, re.sub(r"\s+", " ", rest).strip()


def test_the_image_has_no_root_a_volume_a_check_and_a_signal() -> None:
    found = list(instructions())
    last = found[max(at for at, (word, _) in enumerate(found) if word == "FROM") :]
    of = dict(last)
    assert of["USER"] == "10001:10001" and of["VOLUME"] == "/data" and of["STOPSIGNAL"] == "SIGTERM"
    assert "MILLPOND_DATA=/data" in of["ENV"] and of["HEALTHCHECK"].startswith("--interval")
    assert json.loads(of["ENTRYPOINT"]) == ["millpond"]
    assert all(":" in rest and "latest" not in rest for word, rest in found if word == "FROM")
    build_parser().parse_args(json.loads(of["CMD"]))


def test_the_check_of_the_image_passes_while_the_node_answers() -> None:
    check = dict(instructions())["HEALTHCHECK"]
    _, dash, code = json.loads(check[check.index("CMD") + 4 :])
    assert dash == "-c" and "127.0.0.1:7404" in code
    python = shutil.which("python3") or "python3"
    with serving("--memory", "--ws", "off", "--http", "127.0.0.1:0") as node:
        here = code.replace("127.0.0.1:7404", node.ready["listeners"]["http"])
        assert subprocess.run([python, "-c", here], timeout=60, check=False).returncode == 0
    gone = subprocess.run([python, "-c", here], timeout=60, capture_output=True, check=False)
    assert gone.returncode != 0


def test_the_node_of_compose_is_one_that_starts() -> None:
    node = COMPOSE["services"]["node"]
    build_parser().parse_args(node["command"])
    for each in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", ())), (
            "of this machine"
        )
        assert "latest" not in each["image"]
    for each in COMPOSE["services"].values():
        for volume in each["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
    assert (DEPLOY / COMPOSE["services"]["first"]["build"]["dockerfile"]).name == "Dockerfile"


def test_the_tokens_of_compose_let_prometheus_and_clients_in(tmp_path: Path) -> None:
    """`first.sh` runs once; then each token has its rights, and nobody else has any."""
    data, tokens = tmp_path / "data", tmp_path / "tokens"
    data.mkdir(mode=0o700)
    tokens.mkdir()
    for _ in range(2):
        make_tokens(data, tokens)
    rules = (data / "access.conf").read_text()
    assert rules.count("token:") == 2
    # The rule for this machine within the container goes: the test is another machine.
    (data / "access.conf").write_text(rules.replace("address:127.0.0.0/8 all\n", ""))
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    token = tokens / Path(job["authorization"]["credentials_file"]).name
    with serving("--data", str(data), "--ws", "off", "--http", "127.0.0.1:0") as node:
        url = f"http://{node.ready['listeners']['http']}"
        assert httpx.get(f"{url}/metrics").status_code == 401
        for path_of_token, appends in ((token, 403), (tokens / "client.token", 201)):
            headers = {"authorization": f"Bearer {path_of_token.read_text().strip()}"}
            shown = httpx.get(f"{url}/metrics", headers=headers)
            assert shown.status_code == 200 and "millpond_uptime_seconds" in shown.text
            put = httpx.put(f"{url}/v1/stream/{appends}", headers=headers)
            assert put.status_code == appends, put.text


def test_tokens_that_an_interrupted_run_did_not_make_are_made_by_the_next(tmp_path: Path) -> None:
    data, tokens = tmp_path / "data", tmp_path / "tokens"
    data.mkdir(mode=0o700)
    tokens.mkdir()
    access = data / "access.conf"
    access.touch(mode=0o600)
    access.write_text("token:" + 64 * "0" + " admin\n")
    make_tokens(data, tokens)
    assert {each.name for each in tokens.iterdir()} == {"client.token", "prometheus.token"}
    rules = access.read_text()
    assert rules.count("token:") == 3
    assert "address:" not in rules, "rules that are there are the operator's"


def make_tokens(data: Path, tokens: Path) -> None:
    """Run `first.sh`."""
    script = [shutil.which("sh") or "sh", DEPLOY / "compose" / "first.sh", data, tokens]
    programs = Path(os.sys.executable).parent  # type: ignore[attr-defined]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(script, env=environment(PATH=path), timeout=120, check=True)
