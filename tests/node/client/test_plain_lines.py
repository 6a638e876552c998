"""No token and no identity leave for another machine without TLS, unless that is asked for."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from anyio.abc import TaskGroup

from millpond import connect
from millpond.errors import ConnectionLost, HandshakeRefused, NotEncrypted
from millpond.jobs import Queue
from millpond.node.cli.connection import explain
from millpond.node.cli.exit_codes import ExitCode
from millpond.node.client.session import Session
from millpond.node.client.settings import SimulatedSettings
from millpond.streams import connect_streams
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import decode_hello
from tests.conformance.rig import RecordedWire
from tests.node.client.scripted_node import Line, Peer
from tests.transports.p2p.identity_packets import ALICE

THERE, HERE = ("203.0.113.7", "2001:db8::7"), ("127.0.0.1", "::1", "::ffff:127.0.0.1")
SECRETS: list[dict[str, Any]] = [
    {"token": "secret"},
    {"identity": ALICE},
    {"token": "secret", "identity": ALICE},
]


def peer_at(host: str) -> Peer:
    peer = Peer()
    peer.network.listen(host, lambda: Line(peer))
    return peer


def url_of(scheme: str, host: str) -> str:
    return f"{scheme}://[{host}]:7400" if ":" in host else f"{scheme}://{host}:7400"


@pytest.mark.parametrize("secrets", SECRETS)
@pytest.mark.parametrize("host", THERE)
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_nothing_is_sent_to_another_machine(
    scheme: str, host: str, secrets: dict[str, Any]
) -> None:
    """Not a byte: the upgrade of a WebSocket has the token, too."""
    peer = peer_at(host)
    with pytest.raises(NotEncrypted, match=f"not sent: {host} is reached without TLS"):
        async with connect(
            url_of(scheme, host), "chat/1", settings=SimulatedSettings(dialer=peer.dial), **secrets
        ):
            raise AssertionError("it is connected")
    assert peer.reads == []
    assert len(peer.dialled_at) == 1, "it is not tried again"


async def test_queues_and_streams_send_none_either() -> None:
    peer = peer_at(THERE[0])
    url = url_of("tcp", THERE[0])
    with pytest.raises(NotEncrypted):
        async with Queue(url, "mail", token="secret", settings=SimulatedSettings(dialer=peer.dial)):
            raise AssertionError("it is connected")
    with pytest.raises(NotEncrypted):
        async with connect_streams(
            url, token="secret", settings=SimulatedSettings(dialer=peer.dial)
        ):
            raise AssertionError("it is connected")
    assert peer.reads == []


@pytest.mark.parametrize("host", HERE)
async def test_this_machine_gets_the_token(host: str) -> None:
    peer = peer_at(host)
    async with connect(
        url_of("tcp", host), "chat/1", token="secret", settings=SimulatedSettings(dialer=peer.dial)
    ):
        assert token_at(peer) == b"secret"


async def test_another_machine_gets_it_where_that_is_asked_for() -> None:
    peer = peer_at(THERE[0])
    async with connect(
        url_of("tcp", THERE[0]),
        "chat/1",
        token="secret",
        allow_plain=True,
        settings=SimulatedSettings(dialer=peer.dial),
    ):
        assert token_at(peer) == b"secret"


async def test_a_client_without_secrets_needs_no_tls() -> None:
    peer = peer_at(THERE[0])
    async with connect(
        url_of("tcp", THERE[0]), "chat/1", settings=SimulatedSettings(dialer=peer.dial)
    ):
        assert token_at(peer) is None


async def test_a_connection_that_is_reset_at_once_is_lost_and_not_refused() -> None:
    """It has no address any more, and the next one may do."""
    wire = RecordedWire("")

    async def dial(tasks: TaskGroup, host: str, port: int, session: Session) -> None:
        session.opened(wire)
        session.ended()

    with pytest.raises(ConnectionLost) as caught:
        async with connect(
            "tcp://127.0.0.1:7400",
            "chat/1",
            token="secret",
            settings=SimulatedSettings(dialer=dial),
            reconnect=False,
        ):
            raise AssertionError("it is connected")
    assert not isinstance(caught.value, HandshakeRefused)
    assert wire.written == b"" and wire.aborted


def test_the_error_is_that_of_a_refused_handshake() -> None:
    """Programs that handle those handle this one as well."""
    assert issubclass(NotEncrypted, HandshakeRefused)


def test_a_command_names_the_option() -> None:
    args = argparse.Namespace(connect="tcp://203.0.113.7:7400", timeout=1.0, command="ping")
    failure = explain(NotEncrypted("the token was not sent: it is reached without TLS"), args)
    assert failure is not None and failure.code == ExitCode.REFUSED
    assert "tls://" in str(failure) and "--allow-plain" in str(failure)


def token_at(peer: Peer) -> bytes | None:
    [hello] = peer.line.of(p.Handshake)
    return decode_hello(hello.raw).token
