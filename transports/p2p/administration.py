"""Carries out packet 0x90, for who may, and puts the answers to packet 0x94 into packets."""

from __future__ import annotations

from millpond.actors.errors import Code, RequestError
from millpond.actors.messages import Rights
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.interface import P2PNodeServices
from millpond.transports.p2p.nacks import encode_refusal


def administered(request: p.Admin, asker: Admission, host: P2PNodeServices) -> bytes:
    """The packet that answers the request."""
    correlation = request.request_id.to_bytes(4, "big")
    if Rights.ADMIN not in asker.join.rights:
        return encode_refusal(p.ADMIN, Code.NOT_ALLOWED, correlation)
    try:
        body = host.admin(request.operation, request.body, asker)
    except RequestError as error:
        return encode_refusal(p.ADMIN, error.code, correlation)
    reply = p.encode(p.AdminReply(request.request_id, request.operation, body))
    if len(reply) > asker.packet_bytes_max:
        return encode_refusal(p.ADMIN, Code.TOO_LARGE_FOR_PEER, correlation)
    return reply


def answered_peers(request: p.Peers, outcome: bytes | RequestError, packet_bytes_max: int) -> bytes:
    """The packet that answers a request about peers."""
    if isinstance(outcome, RequestError):
        return refused_peers(request, outcome.code, outcome.delay_ms)
    reply = p.encode(p.PeersReply(request.request_id, request.operation, outcome))
    if len(reply) > packet_bytes_max:
        return refused_peers(request, Code.TOO_LARGE_FOR_PEER)
    return reply


def refused_peers(request: p.Peers, code: Code, delay_ms: int | None = None) -> bytes:
    """The packet that refuses it."""
    return encode_refusal(p.PEERS, code, request.request_id.to_bytes(4, "big"), delay_ms)
