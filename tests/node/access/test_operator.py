"""The operator of a node: chats and mailboxes are not for everybody on the machine (P3)."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import NotAllowed
from millpond.actors.messages import Rights
from millpond.node.access.operator import (
    FILE_NAME,
    LISTENERS_FILE,
    Operator,
    make_cookie,
    read_cookie,
    socket_users,
    write_listeners,
)
from millpond.node.access.policy import AccessPolicy, GrantOutcome, RuleFiles
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.cli.connection import local_address
from millpond.node.client.connect import connect
from millpond.node.client.errors import HandshakeRefused
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.identity import Identity, peer_id
from millpond.transports.server.interface import Principal
from millpond.transports.server.private_names import is_private
from tests.node.outbox.peer_nodes import PeerNode

NOBODY = 65534
BOB = peer_id(Identity.from_seed(bytes(32)).public)
PRIVATE = (f"chat/{BOB}", f"mail/{BOB}!dead", f"mail/{BOB}", f"mail/{BOB}!keys")
NEAR = "127.0.0.1"

only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/net/tcp")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def cookie(tmp_path: Path) -> bytes:
    return make_cookie(tmp_path, os.urandom)


def policy(tmp_path: Path, cookie: bytes | None, rules: str | None = None) -> AccessPolicy:
    path = tmp_path / ACCESS_FILE
    if rules is not None:
        path.write_text(rules)
        path.chmod(0o600)
    made = AccessPolicy(RuleFiles(path, must_exist=False))
    made.recognize_operator(Operator(cookie, lambda: {7400}))
    return made


@pytest.mark.parametrize(
    "name", ["chat/1", "chat/", "mail/bob", "mail", f"chats/{BOB}", f"chat/{BOB}x", f"chat/{BOB}/1"]
)
def test_other_names_are_not_private(name: str) -> None:
    assert not is_private(name.encode())


def test_the_cookie_is_a_file_for_its_owner_alone_and_new_at_each_start(tmp_path: Path) -> None:
    first = make_cookie(tmp_path, os.urandom)
    path = tmp_path / FILE_NAME
    assert path.read_bytes() == first + b"\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_cookie(tmp_path, os.urandom) != first and first.startswith(b"mpo1.")


def test_commands_find_the_cookie_and_the_listeners_of_a_run(tmp_path: Path) -> None:
    assert read_cookie(tmp_path) is None
    cookie = make_cookie(tmp_path, os.urandom)
    assert read_cookie(tmp_path) is None
    listeners = {"p2p": "127.0.0.1:7400", "ws": "[::]:7401"}
    write_listeners(tmp_path, listeners)
    assert read_cookie(tmp_path) == (cookie.decode(), listeners)
    path = tmp_path / LISTENERS_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for damaged in (b"", b"p2p\n", b"1 2 3\n"):
        path.write_bytes(damaged)
        assert read_cookie(tmp_path) == (cookie.decode(), {})
    write_listeners(tmp_path, listeners)
    (tmp_path / FILE_NAME).chmod(0o640)
    assert read_cookie(tmp_path) is None
    make_cookie(tmp_path, os.urandom)  # the next run: others may listen there now
    assert read_cookie(tmp_path) is None


@pytest.mark.parametrize(
    ("address", "dialled"),
    [
        ("127.0.0.1:7400", "127.0.0.1:7400"),
        ("0.0.0.0:7400", "127.0.0.1:7400"),
        (":7400", "127.0.0.1:7400"),
        ("[::]:7400", "[::1]:7400"),
        ("[::1]:7400", "[::1]:7400"),
        ("192.0.2.1:7400", "192.0.2.1:7400"),
        ("", ""),
    ],
)
def test_a_listener_at_all_addresses_is_reached_on_this_machine(address: str, dialled: str) -> None:
    assert local_address(address) == dialled


def test_another_user_of_the_machine_may_do_all_but_read_chats_and_mail(
    tmp_path: Path, cookie: bytes
) -> None:
    """P3. Nothing tells that the client without a port is the operator's."""
    access = policy(tmp_path, cookie)
    for token, rights in ((None, None), (b"mpo1.wrong", None), (cookie, Rights.ALL)):
        principal = Principal(token, None, NEAR)
        assert access.authorize(principal, b"notes") in (Rights.ALL, Rights.ALL | Rights.OPERATOR)
        assert access.is_operator(principal) is (rights is not None)
        for name in PRIVATE:
            found = access.authorize_stream(principal, name.encode())
            assert (found or Rights.NONE) & Rights.ALL == (rights or Rights.NONE)
            assert (access.authorize(principal, name.encode()) is None) is (rights is None)
    told = access.explain(Principal(None, None, NEAR), PRIVATE[0].encode())
    assert [each.outcome for each in told.reasons] == [GrantOutcome.PRIVATE]


@pytest.mark.parametrize(
    ("rules", "reads", "is_operator"),
    [
        ("anyone all\n", False, False),
        ("anyone all *\n", False, False),
        ("anyone all c* stream:c*\n", False, False),
        ("anyone all chat/* stream:chat/*\n", True, False),
        ("anyone all,operator\n", True, True),
        ("anyone get\nanyone operator x\n", True, True),
        ("anyone operator until=2020-01-01T00:00Z\nanyone all\n", False, False),
    ],
)
def test_rights_to_everything_do_not_include_them(
    tmp_path: Path, cookie: bytes, rules: str, reads: bool, is_operator: bool
) -> None:
    access = policy(tmp_path, cookie, rules)
    principal = Principal(b"some token", None, NEAR)
    assert access.is_operator(principal) is is_operator
    for is_stream in (False, True):
        judge = access.authorize_stream if is_stream else access.authorize
        rights = judge(principal, PRIVATE[0].encode()) or Rights.NONE
        assert (Rights.GET in rights) is reads
    by_cookie = access.authorize(Principal(cookie, None, "192.0.2.1"), PRIVATE[0].encode())
    assert by_cookie is not None and Rights.ALL in by_cookie


@pytest.fixture(params=["127.0.0.1", "::1"])
def sockets(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A listener, and a client connected to it."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        try:
            listener.bind((request.param, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        client = stack.enter_context(socket.socket(family))
        client.connect(listener.getsockname())
        yield listener, client


@only_linux
def test_the_user_of_a_socket_is_known_while_it_has_one(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """A socket that was closed is shown as root's: it is nobody's."""
    listener, client = sockets
    (host, port, *_), to = client.getsockname(), listener.getsockname()[1]
    address = ip_address(host)
    assert list(socket_users(address, port, {to})) == [os.geteuid()]
    assert list(socket_users(address, port, {to + 1})) == []
    assert list(socket_users(address, to, {to})) == []
    client.close()
    assert list(socket_users(address, port, {to})) == []


@only_linux
def test_a_client_with_a_socket_of_two_families_is_found() -> None:
    """It connects to 127.0.0.1 as ::ffff:127.0.0.1."""
    with socket.socket() as listener, socket.socket(socket.AF_INET6) as client:
        listener.bind((NEAR, 0))
        listener.listen()
        to = listener.getsockname()[1]
        try:
            client.connect((f"::ffff:{NEAR}", to))
        except OSError:
            pytest.skip("no IPv6 here")
        port = client.getsockname()[1]
        assert list(socket_users(ip_address(NEAR), port, {to})) == [os.geteuid()]


TRIES = """
import anyio, http.client, json, os, sys
from urllib.parse import quote
from millpond import connect, connect_rustlog, connect_s3p
from millpond.actors.errors import RequestError

async def outcome(work):
    try:
        await work()
    except Exception as error:
        return type(error).__name__
    return "done"

def status(address, stream):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", f"/v1/stream/{quote(stream, safe='')}?offset=-1")
    return str(connection.getresponse().status)

async def streams_elsewhere(found, stream, s3p, rustlog, http):
    found["http"] = status(http, stream)
    async with connect_s3p(s3p) as client:
        found["s3p forge"] = await outcome(lambda: client.append(stream, b"forged"))
    async with connect_s3p(s3p) as client:
        found["s3p read"] = await outcome(lambda: client.read(stream))
    async with connect_rustlog(rustlog) as client:
        found["rustlog fetch"] = await outcome(lambda: client.fetch(stream, 0))
        found["rustlog forge"] = await outcome(lambda: client.produce(stream, b"forged"))
        found["rustlog listed"] = str(stream in await client.topics())

async def main(url, stream, *elsewhere):
    found = {}
    async with connect(url, channel="notes") as notes:
        found["put"] = await outcome(lambda: notes.put(b"hello", ttl=60))
        found["chats"] = await outcome(lambda: notes.peers(8, {}))
        found["say"] = await outcome(lambda: notes.peers(7, {"peer": "bob", "text": "forged"}))
        history = notes.streams.stream(stream)
        found["read"] = await outcome(lambda: history.read(0))
        found["forge"] = await outcome(lambda: history.append([b"forged"]))
        names = [each async for each in notes.streams.names()]
        found["listed"] = str(stream.encode() in names)
    for name in (stream, stream.replace("chat/", "mail/")):
        async def attach():
            async with connect(url, channel=name, reconnect=False) as channel:
                await channel.list()
        found[name.partition("/")[0]] = await outcome(attach)
    await streams_elsewhere(found, stream, *elsewhere)
    return found

user, *where = sys.argv[1:]
ours = anyio.run(main, *where)  # also imports all that the other user may not read
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
print(json.dumps([ours, anyio.run(main, *where)]))
"""


DENIED = {
    "put": "done",
    "chats": "NotAllowed",
    "say": "NotAllowed",
    "read": "NotAllowed",
    "forge": "NotAllowed",
    "listed": "False",
    "chat": "HandshakeRefused",
    "mail": "HandshakeRefused",
    "http": "403",
    "s3p forge": "LimitExceeded",
    "s3p read": "LimitExceeded",
    "rustlog fetch": "InvalidRequest",
    "rustlog forge": "InvalidRequest",
    "rustlog listed": "False",
}


def _outcomes(*where: str) -> list[dict[str, str]]:
    """The outcomes of a client that runs as this user, and as nobody after that."""
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(NOBODY), *where],
        capture_output=True,
        check=True,
        timeout=300,
    )
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@only_linux
@only_root
@pytest.mark.anyio
async def test_another_user_reads_no_chats_and_forges_nothing(tmp_path: Path) -> None:
    """P3, with a node, and with a client that runs as somebody else."""
    here = "127.0.0.1:0"
    alice = PeerNode(tmp_path, "alice", s3p=here, rustlog=here, http=here)
    bob = PeerNode(tmp_path, "bob")
    (alice.folder / ACCESS_FILE).unlink()
    alice.knows(bob, dials=False)
    async with alice.node() as node:
        async with connect(alice.url, channel="any") as own:
            said = await own.peers(PeerOperation.CHAT_SEND, {"peer": "bob", "text": "a secret"})
            assert said["sequence"] == 0
        stream = f"chat/{peer_id(bob.public)}"
        ours, theirs = await anyio.to_thread.run_sync(
            _outcomes,
            alice.url,
            stream,
            *(node.listeners[name] for name in ("s3p", "rustlog", "http")),
        )
        assert theirs == DENIED
        # RustLog has no topics of such names; all others do what they are asked to.
        shown = {name: each for name, each in ours.items() if not name.startswith("rustlog")}
        assert set(shown.values()) == {"done", "True", "200"}


@pytest.mark.anyio
async def test_the_cookie_opens_what_an_access_file_shuts(tmp_path: Path) -> None:
    alice = PeerNode(tmp_path, "alice")
    async with alice.node():
        with pytest.raises(HandshakeRefused):
            async with connect(alice.url, channel="any", reconnect=False):
                raise AssertionError("the access file has no line for this client")
        token = (alice.folder / FILE_NAME).read_text().strip()
        async with connect(alice.url, channel="any", token=token) as own:
            assert (await own.peers(PeerOperation.CHATS, {}))["chats"] == []


@pytest.mark.anyio
async def test_a_token_for_everything_writes_nothing_in_the_name_of_the_node(
    tmp_path: Path,
) -> None:
    alice = PeerNode(tmp_path, "alice")
    digest = sha256(b"all of it").hexdigest()
    (alice.folder / ACCESS_FILE).write_text(f"token:{digest} all\n")
    async with alice.node():
        async with connect(alice.url, channel="any", token="all of it") as client:
            with pytest.raises(NotAllowed):
                await client.peers(PeerOperation.CHATS, {})
            with pytest.raises(NotAllowed):
                await client.streams.stream(PRIVATE[0]).read()


@pytest.mark.anyio
async def test_the_right_of_the_operator_ends_for_open_connections(tmp_path: Path) -> None:
    alice = PeerNode(tmp_path, "alice")
    rules = alice.folder / ACCESS_FILE
    rules.write_text("anyone all\nanyone operator x\n")
    async with alice.node() as node, connect(alice.url, channel="any") as client:
        assert (await client.peers(PeerOperation.CHATS, {}))["chats"] == []
        rules.write_text("anyone all\n")
        node.reload()
        with pytest.raises(NotAllowed):
            await client.peers(PeerOperation.CHATS, {})
