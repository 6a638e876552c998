"""Secrets: no output for people or programs has a secret key or a token, but where it is made."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from tests.node.processes import command, command_here, environment, serving


def forms(secret: bytes) -> set[str]:
    """The ways in which bytes are written as text."""
    plain = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    b32 = base64.b32encode(secret).decode().rstrip("=")
    return {secret.hex(), plain, base64.b64encode(secret).decode().rstrip("="), b32, b32.lower()}


def test_outputs_have_no_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    here = environment(MILLPOND_DATA=str(folder), XDG_CONFIG_HOME=str(tmp_path / "config"))
    token = tmp_path / "token"
    words = ("token", "new", "--rights", "all", "--json")
    made = json.loads(command(*words, env=here).stdout)
    token.touch(mode=0o600)
    token.write_text(made["token"])
    with serving("--data", str(folder), "--http", "127.0.0.1:0", env=here) as node:
        at = ("--connect", node.urls["tcp"], "--token-file", str(token))
        secrets = {made["token"], (folder / "operator.cookie").read_text().strip()}
        for name in ("identity.key", "local.key"):
            (text,) = re.findall(r"^secret ([0-9a-f]{64})$", (folder / name).read_text(), re.M)
            secrets |= forms(bytes.fromhex(text))
        added = command("context", "add", "home", *at, env=here)
        assert added.returncode == 0, added.stderr
        shown = [json.dumps(node.ready)]
        for words in (
            ("info", *at),
            ("events", *at),
            ("doctor", *at),
            ("put", "c", "x", *at),
            ("channel", "ls", *at),
            ("ping", "c", *at),
            ("context", "ls"),
            ("context", "show", "home"),
            ("token", "ls"),
            ("keys", "show"),
            ("peer", "ls"),
            ("config", "show"),
        ):
            for more in ((), ("--json",)) if words[0] in ("info", "config") else (("--json",),):
                done = command_here(*words, *more, env=here)
                assert done.returncode == 0, (words, done.stderr)
                shown += [done.stdout.decode(), done.stderr.decode()]
    text = "".join(shown)
    assert str(token) in text, "a file with a token is named"
    assert not [each for each in secrets if each in text]
