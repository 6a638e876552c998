"""A Spark Connect server of the package pyspark, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from millpond.pipeline.spark.session import LOCAL, prepare_environment

HOME = Path(pyspark.__file__).parent
PATIENCE_S = 600.0
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(log: Path) -> Iterator[str]:
    """The address of a server, for a block."""
    prepare_environment(LOCAL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--master", LOCAL, "--class", _MAIN, *words]
    with (
        log.open("wb") as told,
        subprocess.Popen(
            [*command, "spark-internal"],
            stdout=told,
            stderr=told,
            start_new_session=True,
            env=dict(os.environ),
        ) as process,
    ):
        try:
            _await(process, port, log)
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
