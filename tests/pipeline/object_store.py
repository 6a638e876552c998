"""An S3 server of the package moto, in a process of its own: the client of Delta's package waits
for it without letting other threads of Python run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

_RUNNING = re.compile(r"Running on (http://\S+)")


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """A server with a bucket, and the environment variables that reach it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=plain) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = _RUNNING.search(line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            asked = urllib.request.Request(f"{found[1]}/{bucket}", method="PUT")
            urllib.request.urlopen(asked).close()
            yield {
                "AWS_ENDPOINT_URL": found[1],
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
            }
        finally:
            process.kill()
