"""A Kafka broker of one node, and Spark's own source for it, for benchmarks.

`mvn` fetches the jars into a cache folder the first time. Spark's source for 4.3.0 could not be had
on 2026-11-27; that of 4.2.0 runs in it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

BROKER = "org.apache.kafka:kafka_2.13:3.9.1"
SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
PARTS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Jars of the source that Spark does not have."""
START_S = 600.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version><dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency></dependencies>
</project>"""
_SERVER = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def jars_of(name: str) -> list[Path]:
    """The jars of an artifact and of all that it needs."""
    folder = Path.home() / ".cache" / "millpond" / "bench" / name.replace(":", "_")
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_text(_POM.format(*name.split(":")))
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*fetch, f"-DoutputDirectory={folder}"], cwd=folder, check=True)
    return sorted(folder.glob("*.jar"))


def source_jars() -> str:
    """The jars that Spark's class path needs for its Kafka source."""
    return ":".join(str(each) for each in jars_of(SOURCE) if each.name.startswith(PARTS))


class KafkaBroker:
    """A broker with its log in a folder, for a block."""

    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self._folder = folder
        self._partitions = partitions
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._controller = _free_port(), _free_port()

    @property
    def address(self) -> str:
        """Its `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> KafkaBroker:
        self._folder.mkdir()
        settings = self._folder / "server.properties"
        ports = {"port": self.port, "controller": self._controller}
        text = _SERVER.format(folder=self._folder, partitions=self._partitions, **ports)
        settings.write_text(text)
        path = ":".join(map(str, jars_of(BROKER)))
        java = [_java(), "-Xmx512m", "-cp", path]
        format = ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(settings)]
        quiet = subprocess.DEVNULL
        subprocess.run([*java, "kafka.tools.StorageTool", *format], check=True, stdout=quiet)
        command = [*java, "kafka.Kafka", str(settings)]
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.5)
        raise RuntimeError("the broker does not start")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
