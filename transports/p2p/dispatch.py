"""How a P2P connection asks cells: batches to them, their pressure back, the end after answers."""

from __future__ import annotations

from functools import partial

from millpond.actors.errors import Code, RequestError
from millpond.actors.messages import Batch, CellMessage, Failed, JobReply, Rights, StreamReply
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.administration import answered_peers, refused_peers
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.interface import P2PNodeServices
from millpond.transports.p2p.jobs.requests import JobRequests
from millpond.transports.p2p.lifecycle import CLOSED
from millpond.transports.p2p.login import Arrival
from millpond.transports.p2p.nacks import encode_refusal
from millpond.transports.p2p.streams.requests import StreamRequests

PEERS_ASKED_MAX = 64
"""Requests about peers that a connection may have unanswered."""


class Asking(Arrival):
    """A connection that waits for full mailboxes, and for whoever does not read its answers."""

    __slots__ = ("_desk", "_full", "_has_eof", "_jobs", "_peers_asked", "_reads_pending")

    def __init__(self, number: int, host: P2PNodeServices, framing: Framing) -> None:
        super().__init__(number, host, framing)
        self._desk: StreamRequests | None = None
        self._jobs: JobRequests | None = None
        self._full = 0  # mailboxes that must have room again before more is read
        self._has_eof = False
        self._reads_pending = 0
        self._peers_asked: set[int] | None = None

    def _take(self, packets: list[bytes], size_bytes: int) -> None:
        """Hand packets to the cells they are for."""
        raise NotImplementedError

    # Streams.

    def _ask_stream(self, request: p.Stream) -> None:
        admission = self._admission
        assert admission is not None
        is_free = Rights.ADMIN in admission.join.rights
        if not is_free and not self._host.may_use_streams(admission.principal):
            correlation = request.request_id.to_bytes(4, "big")
            self._add(encode_refusal(p.STREAM, Code.NOT_ALLOWED, correlation))
            return
        if self._desk is None:
            rights = None if is_free else partial(self._host.authorize_stream, admission.principal)
            self._desk = StreamRequests(self._host, admission.packet_bytes_max, rights)
        for packet in self._desk.take(request):
            self._add(packet)

    def _answer_stream(self, reply: StreamReply | Failed) -> None:
        if self._desk is None:
            return
        for packet in self._desk.answered(reply):
            self._add(packet)
        if self._has_eof:
            self._finish()

    # Jobs.

    def _ask_jobs(self, request: p.Jobs, messages: list[CellMessage]) -> None:
        """What packet 96 asks goes to the channel, in line with what else does."""
        admission = self._admission
        assert admission is not None
        if self._jobs is None:
            self._jobs = JobRequests(admission.join.rights, admission.packet_bytes_max)
        asked = self._jobs.take(request)
        if isinstance(asked, bytes):
            self._add(asked)
        else:
            messages.append(asked)

    def _answer_jobs(self, reply: JobReply | Failed) -> None:
        packet = None if self._jobs is None else self._jobs.answered(reply)
        if packet is not None:
            self._add(packet)
        if self._has_eof:
            self._finish()

    # Peers.

    def _ask_peers(self, request: p.Peers) -> None:
        """What packet 94 asks, which is answered in any order."""
        assert self._admission is not None
        asked = self._peers_asked = self._peers_asked or set()
        refusal = None
        if Rights.ADMIN not in self._admission.join.rights:
            refusal = Code.NOT_ALLOWED
        elif request.request_id in asked:
            refusal = Code.MALFORMED
        elif len(asked) >= PEERS_ASKED_MAX:
            refusal = Code.BUFFER_FULL
        if refusal is not None:
            self._add(refused_peers(request, refusal))
            return
        asked.add(request.request_id)
        self._host.peers(request.operation, request.body, partial(self._answer_peers, request))

    def _answer_peers(self, request: p.Peers, outcome: bytes | RequestError) -> None:
        asked, admission = self._peers_asked, self._admission
        if admission is None or asked is None or request.request_id not in asked:
            return  # it left in the meantime
        asked.discard(request.request_id)
        self._add(answered_peers(request, outcome, admission.packet_bytes_max))
        self.flush()
        if self._has_eof:
            self._finish()

    def _leave_channel(self) -> None:
        self._peers_asked = self._jobs = None
        desk, self._desk = self._desk, None
        for cell in desk.leave() if desk is not None else ():
            self._host.detach(cell, self)
        super()._leave_channel()

    # Backpressure.

    def _submit(self, messages: list[CellMessage], size_bytes: int) -> None:
        if self._desk is not None:
            for cell, requests, request_bytes in self._desk.batches():
                self._hand_over(cell, Batch(self, [*requests], request_bytes))
        if self._channel is not None and messages:
            self._hand_over(self._channel, Batch(self, messages, size_bytes))

    def _hand_over(self, cell: bytes, batch: Batch) -> None:
        if not self._host.submit(cell, batch, self.received_at):
            self._full += 1
            self._wire.pause()
            self._host.on_capacity(cell, self._mailbox_has_room)

    def _mailbox_has_room(self) -> None:
        self._full -= 1
        self._continue()

    def _must_wait(self) -> bool:
        """Read no further while the other end does not read its answers."""
        if not self._wire.congested:
            return self._full > 0
        is_full = self._wire.unsent_bytes > self._host.settings.unread_bytes_max
        if is_full:
            self._wire.pause()
        return is_full or self._full > 0

    def _go_on(self) -> None:
        if not self._must_wait():
            self._continue()

    def _continue(self) -> None:
        if self._full or self._phase is CLOSED:
            return
        if self._inbox is not None and self._reads_pending:
            return  # `flush` comes here again with the last of those answers
        self.received_at = self._host.now()
        packets, self._inbox = self._inbox, None
        if packets:
            self._take(packets, 0)
        if self._inbox is None and not self._must_wait():
            self._wire.resume()
        if self._has_eof:
            self._finish()

    def _leave_in_turn(self) -> None:
        """The other end said goodbye: what it asked for before is answered first."""
        if self._admission is None:
            self._close()
        else:
            self._has_eof = True
            self._finish()

    def _finish(self) -> None:
        """After the other end's last byte: close behind the answer to everything before."""
        if self._inbox is not None or self._full:
            return
        if self._peers_asked:
            return  # `_answer_peers` comes here again
        if self._jobs is not None and not self._jobs.is_idle:
            return  # `_answer_jobs` comes here again
        if self._desk is not None:
            self._desk.stop_waiting()
            self._submit([], 0)
            if not self._is_answered():
                return  # `_answer_stream` comes here again
        if self._admission is None:
            return
        # Answered in turn, and by nothing but `Joined`: its guest is in the channel already.
        self._submit([self._admission.join], 0)

    def _is_answered(self) -> bool:
        return self._desk is None or self._desk.is_idle
