"""The cell of a subscription: it follows streams, wakes a worker, and keeps its lease.

Streams tell it that they have grown, through the index, once their records are stored; nothing is
told to subscriptions that do not follow them. An event that loses such a notice (a crash, a full
mailbox) also ends the behaviour, and a behaviour that is built looks up the tails of all its
streams before it does anything else. So a wake is repeated by a crash, and never lost.

A request about very many streams is work of several turns: so many names are compared with the
pattern, and so many links stored, in each. A subscription exists once its configuration is stored,
behind all its links.

It makes no requests of its own. A delivery leaves as a reply to the port of the webhooks, and an
event as an append to the wake stream; both wait, as all effects do, until the generation is stored.
Requests that need tails wait in line while these are looked up. docs/internals/streams.md has the
table of states.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from enum import Enum, auto
from math import inf
from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Failed,
    Port,
    Reply,
    StreamFailed,
    StreamRequest,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogDeleted, LogSnapshot, MetadataSet
from millpond.actors.streams import messages as m
from millpond.actors.streams.cell_port import CellPort, StreamReplyReceived
from millpond.actors.streams.durable.messages import (
    DurableAppend,
    DurableAppended,
    DurableRefused,
)
from millpond.actors.streams.glob import Glob
from millpond.actors.streams.names import stream_cell, stream_path, subscription_cell
from millpond.actors.subscriptions import messages as s
from millpond.actors.subscriptions.context import SubscriptionContext
from millpond.actors.subscriptions.status import ERROR_CHARACTERS_MAX, SubscriptionStatus
from millpond.actors.subscriptions.stream_links import StoredLink, StreamLink, StreamLinks
from millpond.actors.subscriptions.tail_lookups import StreamTail, TailLookups
from millpond.actors.subscriptions.wake import WAKE, Wake, WakePhase, stored_wake

CONFIG = b"config"
RESERVED = b"__ds/"
"""Names of streams that begin so are none of Durable Streams."""
JSON = b"application/json"
RETRY_S, RETRY_S_MAX = 1.0, 60.0
"""The delays before a delivery is repeated double from the first to the second."""
EVENT_RETRY_S = 60.0
EVENT_PAUSE_S = 1.0
"""Between two events that only events of other subscriptions led to."""
RECHECK_S = 5.0
"""Before streams that could not be read are looked up again."""
NONCE_BYTES, WAKE_ID_BYTES = 8, 12
NAMES_A_TURN = 500
"""Names of streams that a turn compares with a pattern."""
LINKS_A_TURN = 100
"""StreamLinks that a turn stores, or checks against their streams."""


class StoredConfig(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of the key `config`, as MessagePack. `nonce` tells the subscription from later ones
    of its id."""

    spec: s.SubscriptionSpec
    maker: s.Maker
    created_ms: int
    nonce: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredConfig).decode


class Pause(Enum):
    """The reason why work of several turns does not go on at once."""

    TURN = auto()
    """Others have their turn first."""
    TAILS = auto()
    """Tails are looked up."""


_Steps = Generator[Pause, None, None]


class _Work(msgspec.Struct, frozen=True):
    """Work of several turns, and the request that waits for it."""

    number: int
    steps: _Steps
    port: Port | None = None
    request: StreamRequest | None = None


class Subscription:
    """The subscription `id`, if there is one. Implements `Behaviour` and `ClockObserver`."""

    __slots__ = (
        "_cell",
        "_config",
        "_context",
        "_delivery",
        "_delivery_generation",
        "_effects",
        "_event",
        "_glob",
        "_has_leftovers",
        "_id",
        "_is_changed",
        "_is_checked",
        "_is_draining",
        "_is_paused",
        "_is_scope_known",
        "_links",
        "_lookups",
        "_lost_holder",
        "_notices",
        "_now",
        "_port",
        "_queue",
        "_recheck_at",
        "_remade",
        "_revision",
        "_scope",
        "_shown",
        "_unknown",
        "_wake",
        "_work",
        "deadline",
    )

    def __init__(self, id_: bytes, snapshot: LogSnapshot, context: SubscriptionContext) -> None:
        self._id = id_
        self._cell = subscription_cell(id_)
        self._context = context
        self._port = CellPort(self._cell, context.post)
        self._lookups = TailLookups(self._port)
        self._now, self._effects = 0.0, Effects()
        """The time and the effects of the turn."""
        self._work: _Work | None = None
        self._is_paused = False
        """The work goes on in another turn."""
        self._queue: deque[tuple[Port, s.SubscriptionRequest]] = deque()
        self._lost_holder = ""
        """The worker whose lease ran out last."""
        self._notices: dict[bytes, m.StreamGrew | m.StreamGone] = {}
        """The last notice of each stream, while tails are looked up."""
        self._delivery = 0
        """The number of the delivery under way; 0: there is none."""
        self._delivery_generation = 0
        self._shown: dict[bytes, int] = {}
        """The tails that the worker of this wake was shown: a delivery that is answered with `done`
        acknowledges them."""
        self._remade: set[bytes] = set()
        """Streams that it was shown and that are gone. One that is made anew is another stream: the
        worker's positions are none of its."""
        self._event = 0
        """The number of the event under way."""
        self._unknown: set[bytes] = set()
        """Streams that could not tell their tails."""
        self._recheck_at = inf
        self._is_draining = False
        stored = snapshot.metadata.get(CONFIG)
        self._config = None if stored is None else _decode(stored)
        self._glob: Glob | None = None
        self._has_leftovers = self._config is None and bool(snapshot.metadata)
        """There are links of a subscription that was never made: the node died before that."""
        self._wake = stored_wake(snapshot.metadata.get(WAKE))
        self._is_changed = False
        """The wake is not what is stored."""
        config = self._config
        self._links = (
            StreamLinks({}, None)
            if config is None
            else StreamLinks(snapshot.metadata, config.spec.wake_stream)
        )
        self._revision = next(context.numbers)
        self._is_scope_known = False
        self._scope: tuple[str, ...] | None = ()
        """The streams that the maker may read, as of this turn; see `Maker`."""
        self._is_checked = self._config is None
        if self._config is None:
            context.index.remove(self._cell)
        else:
            self._register(self._config.spec)
        self._note_status()
        self.deadline = inf if self._is_checked and not self._has_leftovers else -inf

    @property
    def is_empty(self) -> bool:
        return self._config is None and not self._queue and self._work is None

    @property
    def can_passivate(self) -> bool:
        return self.is_empty

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        work = self._work
        if work is not None and work.port is not None and work.request is not None:
            yield work.port, work.request
        yield from self._queue

    def clock_moved(self, seconds: float) -> None:
        wake = self._wake
        wake.lease_until += seconds if wake.lease_until else 0.0
        wake.retry_at += seconds if wake.retry_at else 0.0
        wake.announced_at += seconds if wake.announced_at else 0.0

    def limit_deadlines(self, now: float) -> None:
        wake = self._wake
        wake.lease_until = min(wake.lease_until, now + self._lease_s)
        wake.retry_at = min(wake.retry_at, now + RETRY_S_MAX)
        wake.announced_at = min(wake.announced_at, now)
        self.deadline = -inf

    # Batches.

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        self._begin(now, effects)
        for message in batch.messages:
            self._take(batch.port, message, now, effects)
        self._continue(now, effects)
        return effects

    def wake(self, now: float) -> Effects:
        """Act on the time: a lease is over, a retry is due, or streams are to be looked up."""
        effects = Effects()
        self._begin(now, effects)
        if now >= self._recheck_at and self._work is None:
            self._recheck_at = inf
            self._begin_work(self._check_steps(sorted(self._unknown)))
        self._continue(now, effects)
        return effects

    def _begin(self, now: float, effects: Effects) -> None:
        """Begin a turn with what was missed since the one before it."""
        self._now, self._effects = now, effects
        if self._has_leftovers:
            self._has_leftovers = False
            effects.changes.append(LogDeleted())
        if self._is_checked:
            self._check_scope()
        for notice in self._context.index.notices.take(self._cell):
            self._notice(notice)
        if not self._is_checked:
            # A behaviour that was built looks at all its streams: notices may have been lost.
            self._is_checked = True
            if self._config is not None:
                self._is_scope_known = True
                self._scope = self._context.scope_of(self._config.maker)
            self._begin_work(self._first_check_steps())
        self._end_lease(now)

    def _check_scope(self) -> None:
        """Hide the links by the pattern that the maker may not read now. Their positions stay."""
        config, glob = self._config, self._glob
        if config is None or glob is None:
            return
        scope = self._context.scope_of(config.maker)
        if self._is_scope_known and scope == self._scope:
            return
        self._is_scope_known, self._scope = True, scope
        self._revision = next(self._context.numbers)
        for link in self._links:
            self._check_hidden(link)

    def _check_hidden(self, link: StreamLink) -> None:
        is_hidden = not link.is_explicit and not self._context.may_link(self._scope, link.path)
        if is_hidden != link.is_hidden:
            self._links.hide(link, is_hidden=is_hidden)

    def _notice(self, notice: m.StreamGrew | m.StreamGone) -> None:
        """Keep the last notice of a stream, in whatever order they come."""
        before = self._notices.pop(notice.stream, None)
        if before is not None and _age_of(before) > _age_of(notice):
            notice = before
        self._notices[notice.stream] = notice

    def _take(self, port: Port | None, message: CellMessage, now: float, effects: Effects) -> None:
        match message:
            case m.StreamGrew() | m.StreamGone():
                self._notice(message)
            case StreamReplyReceived(port=own, reply=reply):
                if own is self._port and not self._lookups.take(reply):
                    self._take_event_reply(reply, now, effects)
            case s.DeliveryFinished():
                self._finish_delivery(message, now, effects)
            case s.ContinueWork():
                if self._work is not None and message.number == self._work.number:
                    self._is_paused = False
            case Detach():
                self._queue = deque(each for each in self._queue if each[0] is not port)
            case Drain():
                self._is_draining = True
            case s.SubscriptionRequest() if port is not None:
                if len(self._queue) >= self._context.limits.waiting_max:
                    effects.port_replies.append((port, Failed(message, Code.BUFFER_FULL)))
                else:
                    self._queue.append((port, message))
            case StreamRequest() if port is not None:
                effects.port_replies.append((port, Failed(message, Code.MALFORMED)))
            case StreamRequest():
                pass
            case _:
                raise AssertionError(f"{type(message).__name__} is not for subscriptions")

    def _continue(self, now: float, effects: Effects) -> None:
        """Go on with everything that waits for nothing."""
        while True:
            if self._work is not None:
                if self._is_paused or self._lookups.is_waiting:
                    break
                self._go_on(self._work)
            elif self._notices:
                notices, self._notices = self._notices, {}
                for notice in notices.values():
                    self._observe(notice, effects)
            elif self._queue:
                port, request = self._queue.popleft()
                self._answer(port, request, now, effects)
            else:
                break
        if self._work is None and self._wake.phase is WakePhase.IDLE and self._links.pending:
            self._start_wake(now)
        self._act(now, effects)
        if self._is_changed:
            self._is_changed = False
            effects.changes.append(self._wake.change())
        is_awake = self._wake.phase is not WakePhase.IDLE
        self._context.index.notices.set_awake(self._cell, is_awake=is_awake)
        self.deadline = self._next_deadline()

    def _next_deadline(self) -> float:
        if self._config is None or self._work is not None:
            return inf
        wake, times = self._wake, [self._recheck_at]
        if wake.lease_until and not self._delivery:
            times.append(wake.lease_until)
        if wake.retry_at and not (self._is_draining or self._delivery or self._event):
            times.append(wake.retry_at)
        return min(times)

    # Work of several turns. Requests and notices wait in line for its end.

    def _begin_work(
        self, steps: _Steps, port: Port | None = None, request: StreamRequest | None = None
    ) -> None:
        self._work = _Work(next(self._context.numbers), steps, port, request)
        self._is_paused = False

    def _go_on(self, work: _Work) -> None:
        """Do the next step of the work."""
        match next(work.steps, None):
            case None:
                self._work = None
            case Pause.TURN:
                self._is_paused = True
                self._context.post_later(self._cell, s.ContinueWork(work.number))
            case Pause.TAILS:
                pass

    def _look_up(self, paths: Iterable[bytes]) -> _Steps:
        """Find the tails of these streams."""
        lookups = self._lookups
        lookups.begin(paths)
        while lookups.ask(self._effects):
            yield Pause.TAILS
            if lookups.has_more:
                yield Pause.TURN

    def _find_names(
        self, found: set[bytes], matches: Callable[[bytes], bool], names_max: int
    ) -> _Steps:
        """Add the names of streams that match, as soon as there are more than `names_max` no
        more. A stream that comes later tells of its first record."""
        names = [*self._context.directory.streams]
        for at in range(0, len(names), NAMES_A_TURN):
            if at:
                yield Pause.TURN
            found.update(filter(matches, names[at : at + NAMES_A_TURN]))
            if len(found) > names_max:
                return

    def _first_check_steps(self) -> _Steps:
        links = [*self._links]
        for at in range(0, len(links), NAMES_A_TURN):
            if at:
                yield Pause.TURN
            for link in links[at : at + NAMES_A_TURN]:
                self._check_hidden(link)
        paths = {link.path for link in links}
        yield from self._find_names(paths, self._does_match, sys.maxsize)
        yield from self._check_steps(sorted(paths))
        wake = self._wake
        if wake.phase is WakePhase.WOKEN and not wake.retry_at:
            # The delivery or the event that was under way may be lost.
            wake.retry_at = self._now

    def _check_steps(self, paths: Iterable[bytes]) -> _Steps:
        yield from self._look_up(paths)
        found = [*self._lookups.found.items()]
        for at in range(0, len(found), LINKS_A_TURN):
            if at:
                yield Pause.TURN
            for path, tail in found[at : at + LINKS_A_TURN]:
                self._check_link(path, tail)
        self._unknown = self._lookups.unreadable
        if self._unknown:
            self._recheck_at = self._now + RECHECK_S

    def _check_link(self, path: bytes, tail: StreamTail) -> None:
        effects, link = self._effects, self._links.get(path)
        if link is not None and link.incarnation not in (0, tail.incarnation):
            self._gone(path, link.incarnation, effects)
        elif link is not None and link.acked > tail.tail:
            # Not every stream is as durable as this: the power may have failed.
            effects.changes.append(self._links.rewind(link, tail.tail))
        if tail.incarnation:
            self._grew(m.StreamGrew(0, path, tail.incarnation, tail.tail), effects)

    def _observe(self, notice: m.StreamGrew | m.StreamGone, effects: Effects) -> None:
        if isinstance(notice, m.StreamGrew):
            self._grew(notice, effects)
        else:
            self._gone(notice.stream, notice.incarnation, effects)

    def _grew(self, notice: m.StreamGrew, effects: Effects) -> None:
        if self._config is None or not notice.tail:
            return
        path = notice.stream
        link = self._links.get(path)
        if link is not None and link.incarnation not in (0, notice.incarnation):
            self._gone(path, link.incarnation, effects)
            link = self._links.get(path)
        if link is None:
            if not self._does_match(path):
                return
            if len(self._links) >= self._context.limits.links_max:
                self._context.counters.unlinked += 1
                return
            stored = StoredLink(True, False, s.BEFORE_FIRST, notice.incarnation)
            effects.changes.append(self._links.set(path, stored, notice.tail))
            return
        if not link.incarnation:
            effects.changes.append(self._links.identify(link, notice.incarnation))
        self._links.grow(link, notice.tail)

    def _gone(self, path: bytes, incarnation: int, effects: Effects) -> None:
        """A stream was deleted: its links go, one made anew is another stream."""
        link = self._links.get(path)
        # Of notices about a stream only the last one is kept: it stands for those before it, too.
        if link is not None and 0 < link.incarnation <= incarnation:
            self._unlink(path, effects)

    def _unlink(self, path: bytes, effects: Effects) -> None:
        if self._shown.pop(path, None) is not None:
            self._remade.add(path)
        effects.changes.append(self._links.remove(path))
        self._context.index.unlink(self._cell, path)

    def _does_match(self, path: bytes) -> bool:
        """True: the pattern covers the stream, and the maker may read it."""
        config, glob = self._config, self._glob
        if config is None or glob is None or path == config.spec.wake_stream:
            return False
        return self._may_link(glob, self._scope, path)

    def _may_link(self, glob: Glob, scope: tuple[str, ...] | None, path: bytes) -> bool:
        if path.startswith(RESERVED) or not glob.matches(path):
            return False
        return self._context.may_link(scope, path)

    def _register(self, spec: s.SubscriptionSpec) -> None:
        """Have the streams tell of records."""
        self._glob = None if spec.pattern is None else Glob(spec.pattern)
        index = self._context.index
        index.add(self._cell, self._glob, spec.wake_stream)
        for link in self._links:
            if link.is_explicit:
                index.link(self._cell, link.path)

    # Requests.

    def _answer(
        self, port: Port, request: s.SubscriptionRequest, now: float, effects: Effects
    ) -> None:
        config, number = self._config, request.number
        reply: Reply | None
        match request:
            case s.PutSubscription():
                reply = self._put(port, request)
            case s.ManagingRequest(revision=int(known)) if config and known != self._revision:
                reply = _refused(number, s.SubscriptionRefusal.CHANGED)
            case s.DeleteSubscription():
                reply = self._delete(number, effects)
            case _ if config is None:
                reply = _refused(number, s.SubscriptionRefusal.SUBSCRIPTION_NOT_FOUND)
            case s.DescribeSubscription():
                reply = self._describe(request, config)
            case s.ChangeMaker():
                reply = self._change_maker(request, config, effects)
            case s.LinkStreams():
                reply = self._link(port, request, effects)
            case s.UnlinkStream():
                reply = self._unlink_explicit(request, effects)
            case s.ClaimWake():
                reply = self._claim(request, config, now, effects)
            case s.SettleWake():
                reply = self._settle(request, config, now, effects)
            case _:
                raise AssertionError(f"{type(request).__name__} is not for subscriptions")
        if reply is not None:
            effects.port_replies.append((port, reply))

    def _describe(
        self,
        request: s.DescribeSubscription | s.PutSubscription,
        config: StoredConfig,
        *,
        is_new: bool = False,
    ) -> s.SubscriptionDescribed:
        if isinstance(request, s.DescribeSubscription):
            links, after = self._links.page(request.after, is_explicit=request.is_explicit)
        else:
            links, after = self._links.page()
        return s.SubscriptionDescribed(
            request.number,
            self._id,
            config.spec,
            msgspec.structs.replace(config.maker, scope=self._scope),
            config.created_ms,
            self._wake.is_failed,
            links,
            self._revision,
            after,
            is_new,
        )

    def _change_maker(
        self, request: s.ChangeMaker, config: StoredConfig, effects: Effects
    ) -> Reply:
        maker = msgspec.structs.replace(request.maker, origin=config.maker.origin)
        if maker != config.maker:
            self._config = msgspec.structs.replace(config, maker=maker)
            self._revision = next(self._context.numbers)
            effects.changes.append(MetadataSet(CONFIG, _encode(self._config)))
            self._check_scope()
        return s.SubscriptionDone(request.number)

    def _put(self, port: Port, request: s.PutSubscription) -> Reply | None:
        config, spec, number = self._config, request.spec, request.number
        if config is not None:
            if config.spec == spec:
                return self._describe(request, config)
            return _refused(number, s.SubscriptionRefusal.SUBSCRIPTION_ALREADY_EXISTS)
        index, limits = self._context.index, self._context.limits
        if self._cell not in index.cells and len(index.cells) >= limits.subscriptions_max:
            text = f"at most {limits.subscriptions_max} subscriptions"
            return _refused(number, s.SubscriptionRefusal.INVALID_REQUEST, text)
        glob = None if spec.pattern is None else Glob(spec.pattern)
        # Streams tell of records from here on: a tail that is looked up may be outdated then.
        index.add(self._cell, glob, spec.wake_stream)
        for path in spec.streams:
            index.link(self._cell, path)
        self._begin_work(self._put_steps(port, request, glob), port, request)
        return None

    def _put_steps(self, port: Port, request: s.PutSubscription, glob: Glob | None) -> _Steps:
        spec, number, limits = request.spec, request.number, self._context.limits

        def matches(path: bytes) -> bool:
            if glob is None or path == spec.wake_stream:
                return False
            return self._may_link(glob, scope, path)

        scope = self._context.scope_of(request.maker)
        paths = set(spec.streams)
        if glob is not None:
            yield from self._find_names(paths, matches, limits.links_max)
        if len(paths) > limits.links_max:
            text = f"at most {limits.links_max} streams"
            refused = _refused(number, s.SubscriptionRefusal.INVALID_REQUEST, text)
            self._refuse_put(port, refused)
            return
        yield from self._look_up(sorted(paths))
        if self._lookups.unreadable:
            self._refuse_put(port, StreamFailed(number, Code.STORAGE_FAILED))
            return
        links, found = StreamLinks({}, spec.wake_stream), self._lookups.found
        explicit = frozenset(spec.streams)
        order = sorted(found)
        for at in range(0, len(order), LINKS_A_TURN):
            if at:
                yield Pause.TURN
            for path in order[at : at + LINKS_A_TURN]:
                tail, is_explicit = found[path], path in explicit
                if not (is_explicit or tail.incarnation):
                    continue  # it was deleted meanwhile
                stored = StoredLink(matches(path), is_explicit, tail.tail, tail.incarnation)
                self._effects.changes.append(links.set(path, stored, tail.tail))
        reply = self._create(request, glob, links, scope)
        self._effects.port_replies.append((port, reply))

    def _refuse_put(self, port: Port, reply: Reply) -> None:
        self._context.index.remove(self._cell)
        self._effects.port_replies.append((port, reply))

    def _create(
        self,
        request: s.PutSubscription,
        glob: Glob | None,
        links: StreamLinks,
        scope: tuple[str, ...] | None,
    ) -> Reply:
        """Make the subscription, whose links are stored; `scope` is the one that they were chosen
        by."""
        nonce = self._context.entropy(NONCE_BYTES)
        config = StoredConfig(request.spec, request.maker, int(self._now * 1000), nonce)
        self._config, self._glob, self._wake = config, glob, Wake()
        self._links, self._scope, self._is_scope_known = links, scope, True
        self._check_scope()
        self._revision = next(self._context.numbers)
        self._effects.changes += (MetadataSet(CONFIG, _encode(config)), self._wake.change())
        self._register(request.spec)
        self._note_status()
        return self._describe(request, config, is_new=True)

    def _delete(self, number: int, effects: Effects) -> s.SubscriptionDone:
        if self._config is not None:
            self._context.index.remove(self._cell)
            self._config, self._glob, self._wake = None, None, Wake()
            self._revision = next(self._context.numbers)
            self._links = StreamLinks({}, None)
            self._delivery = self._event = 0
            self._shown, self._remade = {}, set()
            self._is_changed, self._recheck_at = False, inf
            self._note_status()
            effects.changes.append(LogDeleted())
        return s.SubscriptionDone(number)

    def _link(self, port: Port, request: s.LinkStreams, effects: Effects) -> Reply | None:
        limits = self._context.limits
        fresh = [path for path in request.streams if self._links.get(path) is None]
        if len(self._links) + len(fresh) > limits.links_max:
            text = f"at most {limits.links_max} streams"
            return _refused(request.number, s.SubscriptionRefusal.INVALID_REQUEST, text)
        self._revision = next(self._context.numbers)
        for path in request.streams:
            link = self._links.get(path)
            if link is None or not link.is_explicit:
                self._context.index.link(self._cell, path)
            if link is not None and not link.is_explicit:
                effects.changes.append(self._links.change(link, is_explicit=True))
                self._check_hidden(link)

        self._begin_work(self._link_steps(port, request, fresh), port, request)
        return None

    def _link_steps(self, port: Port, request: s.LinkStreams, fresh: list[bytes]) -> _Steps:
        yield from self._look_up(fresh)
        reply = self._link_found(request, self._effects)
        self._effects.port_replies.append((port, reply))

    def _link_found(self, request: s.LinkStreams, effects: Effects) -> Reply:
        self._revision = next(self._context.numbers)
        for path, tail in self._lookups.found.items():
            if self._links.get(path) is None:
                stored = StoredLink(self._does_match(path), True, tail.tail, tail.incarnation)
                effects.changes.append(self._links.set(path, stored, tail.tail))
        for path in self._lookups.unreadable:
            self._context.index.unlink(self._cell, path)
        if self._lookups.unreadable:
            return StreamFailed(request.number, Code.STORAGE_FAILED)
        return s.SubscriptionDone(request.number)

    def _unlink_explicit(self, request: s.UnlinkStream, effects: Effects) -> Reply:
        link = self._links.get(request.stream)
        if link is not None and link.is_explicit:
            self._revision = next(self._context.numbers)
            if link.is_glob:
                effects.changes.append(self._links.change(link, is_explicit=False))
                self._check_hidden(link)
                self._context.index.unlink(self._cell, request.stream)
            else:
                self._unlink(request.stream, effects)
        return s.SubscriptionDone(request.number)

    # Wakes.

    @property
    def _lease_s(self) -> float:
        return 0.0 if self._config is None else self._config.spec.lease_ms / 1000

    def _start_wake(self, now: float, *, is_told: bool = False) -> None:
        """Begin a wake. `is_told`: a worker is there already, and is not called."""
        if self._config is None or (self._is_draining and not is_told):
            return
        wake = self._wake
        wake.end()
        wake.generation += 1
        wake.phase = WakePhase.WOKEN
        wake.id = "w_" + self._context.entropy(WAKE_ID_BYTES).hex()
        wake.failures = 0
        if not is_told:
            wake.retry_at = now
        self._context.counters.wakes += 1
        self._is_changed = True

    def _act(self, now: float, effects: Effects) -> None:
        """Make the delivery or the event that is due."""
        wake, config = self._wake, self._config
        if config is None or self._work is not None or self._is_draining:
            return
        if wake.phase is not WakePhase.WOKEN or not wake.retry_at or now < wake.retry_at:
            return
        if not self._links.pending and any(link.is_hidden for link in self._links):
            self._end_wake(now)  # what it was for is hidden
        elif config.spec.kind is s.SubscriptionKind.PULL_WAKE:
            self._announce(config, now, effects)
        elif not self._delivery:
            self._deliver(config, now, effects)

    def _deliver(self, config: StoredConfig, now: float, effects: Effects) -> None:
        wake, context = self._wake, self._context
        self._delivery, self._delivery_generation = next(context.numbers), wake.generation
        links = self._show()
        wake.lease_until, wake.retry_at = now + self._lease_s, 0.0
        self._is_changed = True
        delivery = s.Delivery(
            self._delivery,
            self._cell,
            self._id,
            config.spec.url or "",
            config.maker.origin,
            wake.id,
            wake.generation,
            context.tokens().issue(self._id, config.nonce, wake.generation, now),
            links,
            min(context.limits.timeout_s, self._lease_s),
        )
        effects.port_replies.append((context.webhooks, delivery))

    def _show(self) -> tuple[s.LinkView, ...]:
        """The streams for the worker of this wake."""
        links = self._links.shown()
        self._shown = {each.path: each.tail for each in links}
        self._remade.clear()
        return links

    def _finish_delivery(self, finished: s.DeliveryFinished, now: float, effects: Effects) -> None:
        if finished.number != self._delivery:
            return
        self._delivery = 0
        wake, counters = self._wake, self._context.counters
        is_failed = finished.outcome is s.DeliveryOutcome.FAILED
        counters.undelivered += is_failed
        counters.delivered += not is_failed
        is_current = wake.phase is WakePhase.WOKEN and wake.generation == self._delivery_generation
        if is_current or not is_failed:
            wake.is_failed = is_failed
            wake.error = finished.error[:ERROR_CHARACTERS_MAX] if is_failed else ""
            self._note_status()
        self._is_changed = True
        if not is_current:
            return
        match finished.outcome:
            case s.DeliveryOutcome.DONE:
                for path, tail in self._shown.items():
                    link = self._links.get(path)
                    if link is not None and tail > link.acked:
                        effects.changes.append(self._links.change(link, acked=tail))
                self._end_wake(now)
            case s.DeliveryOutcome.ACCEPTED:
                wake.failures, wake.lease_until = 0, now + self._lease_s
            case s.DeliveryOutcome.FAILED:
                delay_s = min(RETRY_S * 2**wake.failures, RETRY_S_MAX)
                wake.failures = min(wake.failures + 1, 16)
                wake.lease_until = 0.0
                wake.retry_at = now + delay_s * self._context.rng.uniform(0.8, 1.2)
            case _:
                assert_never(finished.outcome)

    def _announce(self, config: StoredConfig, now: float, effects: Effects) -> None:
        """Append an event to the wake stream."""
        wake, spec = self._wake, config.spec
        if self._event:
            return
        index, pending = self._context.index, self._links.pending
        soonest = wake.announced_at + EVENT_PAUSE_S
        if now < soonest and pending and all(map(index.is_wake_stream, pending)):
            wake.retry_at = soonest
            return
        self._event = next(self._context.numbers)
        wake.retry_at, wake.announced_at = 0.0, now
        self._is_changed = True
        first = next(iter(pending), b"")
        event = {
            "type": "wake",
            "subscription_id": self._id.decode(),
            "stream": stream_path(first),
            "generation": wake.generation,
            "ts": int(now * 1000),
        }
        append = DurableAppend(self._event, [msgspec.json.encode(event)], JSON)
        target = stream_cell(spec.wake_stream or b"")
        effects.forwards += ((target, Batch(self._port, [append])),)

    def _take_event_reply(self, reply: object, now: float, effects: Effects) -> None:
        match reply:
            case DurableAppended(number=number):
                error = ""
            case DurableRefused(number=number, reason=reason):
                error = f"the wake stream takes no event: {reason.name.lower()}"
            case StreamFailed(number=number, code=code):
                error = f"the wake stream takes no event: {code.name.lower()}"
            case Failed(request=DurableAppend(number=number), code=code):
                error = f"the wake stream takes no event: {code.name.lower()}"
            case _:
                return
        is_failed = bool(error)
        if number != self._event:
            return
        self._event = 0
        wake, counters = self._wake, self._context.counters
        counters.events += not is_failed
        counters.events_failed += is_failed
        if (wake.is_failed, wake.error) != (is_failed, error):
            wake.is_failed, wake.error = is_failed, error
            self._note_status()
            self._is_changed = True
        if is_failed and wake.phase is WakePhase.WOKEN:
            wake.retry_at = now + EVENT_RETRY_S
            self._is_changed = True

    def _end_wake(self, now: float) -> bool:
        """The lease ends. True: there is something new, and another wake begins."""
        self._wake.end()
        self._shown, self._remade = {}, set()
        self._is_changed = True
        if self._links.pending:
            self._start_wake(now)
        return self._wake.phase is not WakePhase.IDLE

    def _end_lease(self, now: float) -> None:
        """A worker that says nothing loses its lease."""
        wake = self._wake
        if not wake.lease_until or now < wake.lease_until or self._delivery:
            return
        if wake.phase is WakePhase.IDLE:
            return
        self._context.counters.leases_expired += 1
        self._lost_holder = wake.holder
        self._end_wake(now)

    def _claim(
        self, request: s.ClaimWake, config: StoredConfig, now: float, effects: Effects
    ) -> Reply:
        wake, number = self._wake, request.number
        if config.spec.kind is not s.SubscriptionKind.PULL_WAKE:
            return _refused(number, s.SubscriptionRefusal.INVALID_REQUEST, "type: webhook")
        if wake.phase is WakePhase.CLAIMED:
            return s.SubscriptionRefused(
                number,
                s.SubscriptionRefusal.ALREADY_CLAIMED,
                "another worker has the lease",
                wake.holder,
                wake.generation,
            )
        if not self._links.pending:
            if wake.phase is WakePhase.WOKEN:  # what it was for is gone
                self._end_wake(now)
            return _refused(number, s.SubscriptionRefusal.NO_PENDING_WORK)
        if wake.phase is WakePhase.IDLE:
            self._start_wake(now, is_told=True)
        wake.phase, wake.holder = WakePhase.CLAIMED, request.worker
        wake.lease_until, wake.retry_at = now + self._lease_s, 0.0
        self._is_changed = True
        self._context.counters.claims += 1
        if self._lost_holder not in ("", request.worker):
            self._context.takeovers.record("subscription", self._id, now)
        self._lost_holder = ""
        token = self._context.tokens().issue(self._id, config.nonce, wake.generation, now)
        return s.WakeClaimed(
            number,
            wake.id,
            wake.generation,
            token,
            self._show(),
            config.spec.lease_ms,
        )

    def _settle(
        self, request: s.SettleWake, config: StoredConfig, now: float, effects: Effects
    ) -> Reply:
        number, wake = request.number, self._wake
        refusal = self._check_token(request, config, now)
        if refusal is not None:
            return _refused(number, refusal)
        if request.action is s.WakeAction.RELEASE:
            return s.WakeSettled(number, self._end_wake(now))
        acks: dict[bytes, int] = {}
        for each in request.acks:
            link = self._links.get(each.stream)
            is_other = each.stream in self._remade
            if link is None or is_other or not _is_valid(each.position, link):
                text = f"stream {each.stream.decode('utf-8', 'replace')!r}"
                return _refused(number, s.SubscriptionRefusal.INVALID_OFFSET, text)
            acks[each.stream] = max(acks.get(each.stream, 0), each.position or 0)
        for path, position in acks.items():
            link = self._links.get(path)
            if link is not None and position > link.acked:
                effects.changes.append(self._links.change(link, acked=position))
        if request.done:
            return s.WakeSettled(number, self._end_wake(now))
        wake.lease_until, wake.retry_at, wake.failures = now + self._lease_s, 0.0, 0
        self._is_changed = True
        return s.WakeSettled(number, False)

    def _check_token(
        self, request: s.SettleWake, config: StoredConfig, now: float
    ) -> s.SubscriptionRefusal | None:
        """The reason why a token gives no right to this; None: it does."""
        is_callback = request.action is s.WakeAction.CALLBACK
        if not is_callback and config.spec.kind is not s.SubscriptionKind.PULL_WAKE:
            return s.SubscriptionRefusal.INVALID_REQUEST
        if request.token is None:
            return s.SubscriptionRefusal.TOKEN_INVALID
        claims = self._context.tokens().verify(self._id, config.nonce, request.token)
        if claims is None:
            return s.SubscriptionRefusal.TOKEN_INVALID
        if now >= claims.expires_at:
            return s.SubscriptionRefusal.TOKEN_EXPIRED
        wake = self._wake
        is_current = claims.generation == request.generation == wake.generation
        if not is_current or not wake.id or request.wake_id != wake.id:
            self._context.counters.fenced += 1
            return s.SubscriptionRefusal.FENCED
        return None

    def _note_status(self) -> None:
        failed = self._context.counters.failed
        (failed.add if self._wake.is_failed else failed.discard)(self._cell)
        if self._config is None:
            self._context.statuses.pop(self._cell, None)
        else:
            self._context.statuses[self._cell] = self._status

    def _status(self) -> SubscriptionStatus:
        config, wake, links = self._config, self._wake, self._links
        id_ = self._id.decode()
        if config is None:
            return SubscriptionStatus(id_, "unavailable")
        spec = config.spec
        target = spec.url or stream_path(spec.wake_stream or b"")
        lags = self._lags()
        return SubscriptionStatus(
            id=id_,
            state=wake.phase.name.lower(),
            kind=spec.kind.value,
            target=target,
            pattern=None if spec.pattern is None else spec.pattern.decode(),
            streams=len(links) + sum(links.get(path) is None for path in lags),
            hidden=sum(link.is_hidden for link in links),
            pending=len(lags),
            lag=sum(lags.values()),
            generation=wake.generation,
            holder=wake.holder,
            created_at=config.created_ms / 1000,
            lease_until=wake.lease_until,
            retry_at=wake.retry_at,
            failures=wake.failures,
            is_failed=wake.is_failed,
            error=wake.error,
        )

    def _lags(self) -> dict[bytes, int]:
        """The records that are not acknowledged, by stream, with what the next turn brings."""
        links, lags = self._links, {}
        for path in links.pending:
            link = links.get(path)
            if link is not None:
                lags[path] = link.tail - max(link.acked, 0)
        for notice in self._context.index.notices.unread(self._cell):
            path = notice.stream
            link = links.get(path)
            if isinstance(notice, m.StreamGone):
                lags.pop(path, None)
            elif link is None:
                if self._does_match(path):
                    lags[path] = notice.tail
            elif not link.is_hidden and not links.is_own(path):
                is_same = link.incarnation in (0, notice.incarnation)
                lags[path] = notice.tail - (max(link.acked, 0) if is_same else 0)
        return lags


def _age_of(notice: m.StreamGrew | m.StreamGone) -> tuple[int, float]:
    """Its place among the notices of a stream: of one incarnation the end comes last."""
    return notice.incarnation, inf if isinstance(notice, m.StreamGone) else notice.tail


def _is_valid(position: int | None, link: StreamLink) -> bool:
    """True: a worker that has this stream may acknowledge so far."""
    return position is not None and max(link.acked, 0) <= position <= link.tail


_TEXTS = {
    s.SubscriptionRefusal.SUBSCRIPTION_NOT_FOUND: "the subscription does not exist",
    s.SubscriptionRefusal.SUBSCRIPTION_ALREADY_EXISTS: "a subscription of this id is another one",
    s.SubscriptionRefusal.INVALID_REQUEST: "the subscription is of type webhook",
    s.SubscriptionRefusal.TOKEN_INVALID: "the token is missing, or not of this subscription",
    s.SubscriptionRefusal.TOKEN_EXPIRED: "the token has expired",
    s.SubscriptionRefusal.FENCED: "the wake has ended, or is another one",
    s.SubscriptionRefusal.NO_PENDING_WORK: "no stream has anything new",
    s.SubscriptionRefusal.INVALID_OFFSET: "the offset cannot be acknowledged",
    s.SubscriptionRefusal.CHANGED: "the subscription has changed meanwhile",
}


def _refused(number: int, reason: s.SubscriptionRefusal, text: str = "") -> s.SubscriptionRefused:
    known = _TEXTS.get(reason, "")
    return s.SubscriptionRefused(number, reason, text or known)
