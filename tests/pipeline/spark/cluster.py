"""A standalone cluster on loopback: a master and workers, each in a process group of its own, and
a Python for the executors that has what we need but not us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from types import TracebackType

import pyspark

from millpond.pipeline.spark.java_home import find_java
from millpond.pipeline.spark.worker_python import worker_python

BIN = Path(pyspark.__file__).parent / "bin"
PATIENCE_S = 600.0
# One compiler, and the archive of classes that scripts/test has.
SMALL = os.environ.get("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


class Cluster:
    """Runs from the beginning of the block to its end."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = worker_python(_bare_python(folder / "python"), folder / "cache")
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.environment = plain | {
            "JAVA_HOME": str(find_java(os.environ, folder / "cache")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": SMALL,
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "SPARK_DAEMON_MEMORY": "160m",
        }
        self.master = ""

    def __enter__(self) -> Cluster:
        words = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._start("master", "master.Master", *words)
        self.master = self._said("master", r"Starting Spark master at (spark://\S+)")
        for i in range(self._count):
            name = f"worker-{i}"
            room = ("--cores", "1", "--memory", "600m", "--work-dir", str(self._folder / name))
            self._start(name, "worker.Worker", *words, *room, self.master)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in reversed(self._processes):
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()

    def kill_worker(self, number: int) -> None:
        """kill -9, with the executors it has: as if the machine was gone."""
        process = self._processes[1 + number]
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def has_executor(self, number: int) -> bool:
        """Has this worker started one?"""
        return any((self._folder / f"worker-{number}").glob("app-*/*/stderr"))

    def _start(self, name: str, what: str, *words: str) -> None:
        command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{what}", *words]
        with self._log(name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    cwd=self._folder,
                    start_new_session=True,
                )
            )

    def _said(self, name: str, what: str) -> str:
        until = time.monotonic() + PATIENCE_S
        while True:
            text = self._log(name).read_text("utf-8", "replace")
            found = re.search(what, text)
            if found is not None:
                return found[1]
            assert time.monotonic() < until and self._processes[-1].poll() is None, text
            time.sleep(0.05)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _bare_python(folder: Path) -> Path:
    """One that imports what is installed here, but nothing that is only linked to from here."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    packages = [each for each in sys.path if each.endswith("site-packages")]
    (site / "installed.pth").write_text("\n".join(packages) + "\n")
    return folder / "bin" / "python"
