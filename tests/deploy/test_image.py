"""The image of deploy/Dockerfile, built and run where this machine has programs for it.

Docker is used where its daemon answers, else buildah builds and podman runs. A machine without
them, without the base image, or whose kernel starts no container skips, and says why. The bound of
the size is of the image without its base, since bases differ.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.node.processes import ROOT, command, environment

pytestmark = pytest.mark.full

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
GUIDE = ROOT / "docs" / "guides" / "deployment.md"
USER = 10001
PORTS = (7400, 7404)
PULL_S = 300.0
BUILD_S = 900.0
COMMAND_S = 120.0
READY_S = 120.0
PROCESSES = 4096
STOP_S = 30
"""The guide gives a node so long to end; the engine kills it then, and its exit code is 137."""

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Engine:
    """Programs that build images and run containers."""

    run: str
    build: tuple[str, ...]
    publishes: bool = False
    """Whether ports of containers can be reached from this machine."""

    def tried(self, *words: str, limit_s: float = COMMAND_S, input: str | None = None) -> Done:
        return tried(self.run, *words, limit_s=limit_s, input=input)

    def do(self, *words: str, limit_s: float = COMMAND_S, input: str | None = None) -> str:
        """The standard output of a command that succeeds."""
        done = self.tried(*words, limit_s=limit_s, input=input)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def once(self, *words: str) -> Done:
        """`run`, to its end. The container is removed also when it does not end in time."""
        with container_name(self) as name:
            return self.tried("run", "--name", name, *words)

    def size(self, image: str) -> int:
        """The bytes of all layers, as they are unpacked."""
        return int(self.do("image", "inspect", "--format", "{{.Size}}", image))


def tried(*words: str, limit_s: float = COMMAND_S, input: str | None = None) -> Done:
    """Run a command to its end. One that takes too long is killed, and has failed."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=limit_s, input=input, check=False
        )
    except subprocess.TimeoutExpired:
        return Done(words, 124, "", f"{words[0]} took longer than {limit_s} s")


def last_line(done: Done) -> str:
    return (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]


@contextmanager
def container_name(engine: Engine) -> Iterator[str]:
    """A name for one container, which is removed with its own volumes."""
    name = f"millpond-test-{uuid4().hex}"
    try:
        yield name
    finally:
        engine.tried("rm", "--force", "--volumes", name)


def find_engine() -> Engine:
    docker, podman, buildah = (shutil.which(name) for name in ("docker", "podman", "buildah"))
    reasons = []
    if docker is not None:
        told = tried(docker, "version", "--format", "{{.Server.Version}}")
        if told.returncode == 0:
            return Engine(docker, (docker, "build"))
        reasons.append(f"docker: {last_line(told)}")
    if podman is not None and buildah is not None:
        told = tried(podman, "info")
        if told.returncode == 0:
            # Its own format has no health checks. chroot needs no cgroups, and has the network.
            how = ("--format", "docker", "--isolation", "chroot", "--layers=false")
            return Engine(podman, (buildah, "build", *how))
        reasons.append(f"podman: {last_line(told)}")
    pytest.skip("; ".join(reasons) or "neither docker nor buildah and podman are installed")


def base_image() -> str:
    """The image that the node's is made from, which is also that of the stage before."""
    bases: list[str] = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert len(set(bases)) == 1, "they share their layers"
    return bases[0]


@contextmanager
def having(engine: Engine, base: str) -> Iterator[None]:
    """The base image is here; one that was pulled for it is removed again."""
    is_here = engine.tried("image", "inspect", base).returncode == 0
    if not is_here:
        pulled = engine.tried("pull", base, limit_s=PULL_S)
        if pulled.returncode != 0:
            pytest.skip(f"{base} is not here and cannot be pulled: {last_line(pulled)}")
    try:
        yield
    finally:
        if not is_here:
            engine.tried("rmi", base)


@dataclass(frozen=True)
class Image:
    engine: Engine
    name: str
    base: str


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The built image. It is removed at the end, as all that the tests make."""
    engine, base = find_engine(), base_image()
    with having(engine, base):
        # A machine that starts no container shows it with the base: a fault of ours does not skip.
        true = ("--entrypoint", "true", base)
        started = engine.once("--network", "none", *true)
        if started.returncode != 0:
            pytest.skip(f"{engine.run} starts no container here: {last_line(started)}")
        port = ("--publish", f"127.0.0.1::{PORTS[0]}")
        published = engine.once(*port, *true).returncode == 0
        engine = Engine(engine.run, engine.build, published)
        name = f"millpond-test-{uuid4().hex}"
        try:
            words = ("--file", str(DOCKERFILE), "--tag", name, str(ROOT))
            built = tried(*engine.build, *words, limit_s=BUILD_S)
            assert built.returncode == 0, (built.stdout + built.stderr)[-4000:]
            yield Image(engine, name, base)
        finally:
            engine.tried("rmi", "--force", name)


@pytest.fixture
def volume(image: Image) -> Iterator[str]:
    name = f"millpond-test-{uuid4().hex}"
    image.engine.do("volume", "create", name)
    try:
        yield name
    finally:
        image.engine.tried("volume", "rm", "--force", name)


@dataclass(frozen=True)
class Container:
    engine: Engine
    name: str
    token: Path
    """A file on this machine; the container has a copy in the same place below its /tmp."""

    def inside(self, *words: str, input: str | None = None) -> str:
        return self.engine.do("exec", "--interactive", self.name, *words, input=input)

    def inspect(self, what: str) -> str:
        return self.engine.do("inspect", "--format", f"{{{{{what}}}}}", self.name)

    def logs(self) -> str:
        told = self.engine.tried("logs", self.name)
        return told.stdout + told.stderr

    def millpond(self, *words: str) -> str:
        """A command for the node, through the published port, else within the container."""
        if not self.engine.publishes:
            return self.inside("millpond", *words, "--token-file", f"/tmp/{self.token.name}")
        # "127.0.0.1:49153"
        where = self.engine.do("port", self.name, f"{PORTS[0]}/tcp").splitlines()[0]
        there = ("--connect", f"tcp://{where}", "--token-file", str(self.token))
        done = command(*words, *there, env=environment())
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def is_healthy(self) -> bool:
        """By the check of the image: Docker runs it by itself, podman when it is told to."""
        if Path(self.engine.run).name == "podman":
            return self.engine.tried("healthcheck", "run", self.name).returncode == 0
        return self.inspect(".State.Health.Status") == "healthy"

    def wait_until_healthy(self) -> None:
        end = time.monotonic() + READY_S
        while not self.is_healthy():
            assert self.inspect(".State.Running") == "true", self.logs()
            assert time.monotonic() < end, self.logs()
            time.sleep(0.5)


@contextmanager
def running(image: Image, volume: str, token: Path) -> Iterator[Container]:
    """A node with its data in the volume, started as in the guide."""
    engine = image.engine
    reached = tuple(word for port in PORTS for word in ("--publish", f"127.0.0.1::{port}"))
    network = reached if engine.publishes else ("--network", "none")
    with container_name(engine) as name:
        mounted = ("--volume", f"{volume}:/data")
        engine.do("run", "--detach", "--name", name, *mounted, *network, image.name)
        node = Container(engine, name, token)
        node.wait_until_healthy()
        copy = f"umask 077; cat > /tmp/{token.name}"
        node.inside("sh", "-c", copy, input=token.read_text())
        yield node


def stop(node: Container) -> None:
    """SIGTERM. The node ends by itself, in its time."""
    began = time.monotonic()
    node.engine.do("stop", "-t", str(STOP_S), node.name)
    assert time.monotonic() - began < STOP_S
    assert node.inspect(".State.ExitCode") == "0", node.logs()


def test_the_image_is_small(image: Image) -> None:
    """The guide names what it has beside its base."""
    (most,) = re.findall(r"at most (\d+) MB\s+more\s+than\s+its\s+base", GUIDE.read_text("utf-8"))
    more = image.engine.size(image.name) - image.engine.size(image.base)
    assert 0 < more <= int(most) * 1_000_000


def test_a_node_that_others_reach_needs_rules(image: Image, volume: str) -> None:
    refused = image.engine.once("--network", "none", "--volume", f"{volume}:/data", image.name)
    assert refused.returncode == 2 and "access" in refused.stderr, refused


def test_a_node_keeps_its_data_and_drains(image: Image, volume: str, tmp_path: Path) -> None:
    new = "umask 077; millpond token new --data /data --rights all --note client"
    mounted = ("--network", "none", "--volume", f"{volume}:/data", "--entrypoint", "sh")
    token = tmp_path / "client.token"
    token.touch(mode=0o600)
    made = image.engine.once(*mounted, image.name, "-c", new)
    assert made.returncode == 0, made.stderr
    token.write_text(made.stdout)

    with running(image, volume, token) as node:
        status = node.inside("cat", "/proc/1/status")
        assert re.search(rf"^Uid:(\s+{USER}){{4}}$", status, re.MULTILINE), status
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE), status
        node.millpond("put", "chat/1", "first")
        node.millpond("put", "chat/1", "second")
        assert node.millpond("recv", "chat/1", "--timeout", "30") == "first"
        stop(node)
    with running(image, volume, token) as node:
        assert node.millpond("recv", "chat/1", "--timeout", "30") == "second", "what was left"
        stop(node)


def test_the_services_of_compose_run_with_their_options(image: Image) -> None:
    """`first`, then `node`, as the engine is told to by Compose; what others see is in volumes."""
    engine = image.engine
    volumes = {each: f"millpond-test-{uuid4().hex}" for each in ("data", "tokens")}
    try:
        for volume in volumes.values():
            engine.do("volume", "create", volume)
        for _ in range(2):
            done = engine.once("--network", "none", *options_of("first", volumes, image.name))
            assert done.returncode == 0, done.stderr
        with container_name(engine) as name:
            words = options_of("node", volumes, image.name)
            engine.do("run", "--detach", "--name", name, "--network", "none", *words)
            node = Container(engine, name, Path("unused"))
            node.wait_until_healthy()
            assert "up " in node.inside("millpond", "info"), "a command within needs no token"
            assert node.inside("millpond", "put", "chat/1", "hello")
            readonly = engine.tried("exec", name, "touch", "/etc/x")
            assert readonly.returncode != 0 and "Read-only" in readonly.stderr
            node.inside("touch", "/tmp/x")
            status = node.inside("cat", "/proc/1/status")
            for line in (r"NoNewPrivs:\s+1", r"CapBnd:\s+0+", rf"Uid:(\s+{USER}){{4}}"):
                assert re.search(rf"^{line}$", status, re.MULTILINE), (line, status)
            stop(node)
        tokens = ("--volume", f"{volumes['tokens']}:/t", "--entrypoint", "sh", image.name)
        found = engine.once("--network", "none", *tokens, "-c", "cat /t/client.token")
        assert found.returncode == 0 and found.stdout.strip()
    finally:
        for volume in volumes.values():
            engine.tried("volume", "rm", "--force", volume)


def options_of(service: str, volumes: dict[str, str], image: str) -> list[str]:
    """The words behind `run` that say what the Compose file says of a service."""
    wanted = COMPOSE["services"][service]
    taken = {"build", "image", "depends_on", "ports", "restart", "stop_grace_period"}
    words: list[str] = []
    for name, value in wanted.items():
        match name:
            case "volumes":
                for each in value:
                    source, _, rest = each.partition(":")
                    here = volumes.get(source) or str((ROOT / "deploy" / source).resolve())
                    words += ["--volume", f"{here}:{rest}"]
            case "read_only":
                words += ["--read-only"] if value else []
            case "tmpfs" | "cap_drop" | "security_opt":
                option = "--" + name.replace("_", "-")
                words += [word for each in value for word in (option, each)]
            case "ulimits":
                # Some machines let a container have no higher limits than their own.
                for limit, of in (
                    ("nofile", resource.RLIMIT_NOFILE),
                    ("nproc", resource.RLIMIT_NPROC),
                ):
                    _, most = resource.getrlimit(of)
                    least = min(value.get(limit, PROCESSES), most)
                    words += ["--ulimit", f"{limit}={least}"] if least > 0 else []
            case "user":
                words += ["--user", value]
            case "entrypoint":
                words += ["--entrypoint", value[0]]
            case "command":
                pass
            case _:
                assert name in taken, name
    return [*words, image, *wanted.get("entrypoint", ())[1:], *wanted.get("command", ())]
