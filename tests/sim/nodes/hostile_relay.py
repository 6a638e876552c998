"""A hostile relay: what it does with sealed messages and prekeys, and the messages of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from millpond.actors.errors import RequestError
from millpond.actors.messages import Ack, Put
from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import conversation_stream
from millpond.node.client.channel import Channel
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.relayed_message import (
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    relayed_deadline,
)
from millpond.node.peers.identity import Identity
from millpond.node.peers.one_time_prekeys import decode_one_time, encode_one_time, sign_one_time
from millpond.node.peers.prekeys import SignedPrekey, encode_prekey
from millpond.node.peers.sealed_message import Content, Kind, Seen, seal_message
from millpond.testing import NotRunning, SimNode, World

NAME = "mallory"
DEEDS = (
    *("pass", "drop", "delay", "replay", "alter", "withhold", "misdirect"),
    *("forge", "receipt", "stranger"),
)
KEY_DEEDS = ("show", "keep back", "show the first", "show version 1")
ONE_TIME_DEEDS = ("hand out", "hand out again", "keep one-time keys back", "invent one-time keys")
DRAIN = "drain one-time keys"
GIVEN_DEEDS = ("take keys in", "say keys are lost", "say keys are left")
DRAINS = 0.1
"""The probability that the relay takes all one-time prekeys of a person, and hands out none."""
STRANGERS = 3
STRANGE = b"strange"
"""The message of a stranger outside of the chat."""
TEXTS_MAX = 6
"""The most texts of a stranger to one node."""
REPEATS_MAX = 3
WINDOW = 64
LATE_S = 60.0
"""The longest delay of a message that the relay delays."""
KEYS_SHOWN_EVERY_S = 600.0
KEYS_LIVE_S = 700.0
WEEK_S = 604_800
DAY_S = 86_400


class Stranger:
    """A key that no node knows. It counts its messages to each node in one line, as a node does."""

    def __init__(self, identity: Identity, line: bytes) -> None:
        self.identity = identity
        self.line = line
        self.texts: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """By recipient: the uuid and the payload of each text, in order."""


class HostileRelay:
    """A relay that does with the messages on it what its owner likes.

    It pushes to the `persons`. Those in `fetchers` fetch from its second node, `letterbox`, as
    well, where it leaves half of what it passes on to them.
    """

    def __init__(
        self,
        world: World,
        node: SimNode,
        letterbox: SimNode | None,
        persons: list[SimNode],
        fetchers: set[bytes],
        counts: Counter[str],
    ) -> None:
        self.is_honest = False
        self._world, self._node, self._letterbox, self._counts = world, node, letterbox, counts
        self._fetchers = fetchers
        self._rng = world.rng("hostile relay")
        self._identity = node.node.peer_services.keyring.identity
        self._persons = {each.public: each for each in persons}
        self._first_keys = {public: self._prekey(public) for public in self._persons}
        self._keys = dict(self._first_keys)
        self._one_time: dict[bytes, list[bytes]] = {}
        self._handed_out: dict[bytes, list[bytes]] = {}
        self._ways: dict[bytes, Channel] = {}
        self._withheld: list[RelayedMessage] = []
        self._seen: list[RelayedMessage] = []
        self._tasks: TaskGroup
        entropy = world.entropy("strangers")
        self.strangers = [Stranger(Identity.new(entropy), entropy(8)) for _ in range(STRANGERS)]

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Treat all messages on the relay, and pass them on, until cancelled."""
        given = self._node.node.outbox.context.given_prekeys
        given.take = self._hand_out  # type: ignore[method-assign]  # it is no honest relay
        if self._letterbox is not None:
            given = self._letterbox.node.outbox.context.given_prekeys
            given.give = self._take_in  # type: ignore[method-assign]
        async with AsyncExitStack() as stack:
            for public, person in self._persons.items():
                way = person.connect(
                    mailbox_of(public),
                    who=NAME,
                    role="producer",
                    identity=self._identity,
                    peer=public,
                    wait_s=WEEK_S,
                )
                self._ways[public] = await stack.enter_async_context(way)
            async with anyio.create_task_group() as self._tasks:
                for public in self._persons:
                    self._tasks.start_soon(self._take, public)
                self._tasks.start_soon(self._show_keys)
                task_status.started()

    async def _take(self, owner: bytes) -> None:
        local = self._node.node.outbox.context.local
        with local.consumer(mailbox_of(owner), WINDOW) as consumer:
            while True:
                message = await consumer.receive()
                consumer.settle(Ack(message.id))
                self._treat(decode_relayed_message(message.data))

    async def repeat_all(self) -> None:
        """Repeat every message once more, when no node has an idempotency key of it any more."""
        await anyio.sleep(KEYS_LIVE_S)
        for each in list(self._seen):
            self._pass_on(each, 0.0)

    def become_honest(self) -> None:
        """Pass on everything from now on, prekeys as well, and half of what was withheld."""
        self.is_honest = True
        self._show_all_keys()
        for each in self._withheld:
            if self._rng.random() < 0.5:
                self._pass_on(each, 0.0)

    def _treat(self, relayed: RelayedMessage) -> None:
        assert not relayed.is_version_1, "nobody is brought to write by version 1"
        deed = "pass" if self.is_honest else self._rng.choice(DEEDS)
        self._counts[deed] += 1
        self._seen.append(relayed)
        match deed:
            case "pass":
                self._pass_on(relayed, 0.0)
            case "drop":
                pass
            case "delay":
                self._pass_on(relayed, self._later())
            case "replay":
                for _ in range(self._rng.randint(1, REPEATS_MAX)):
                    # With another deadline outside no idempotency key recognizes it.
                    again = relayed.deadline + 3600 * self._rng.randint(0, 3)
                    self._pass_on(relayed, 0.0)
                    self._pass_on(msgspec.structs.replace(relayed, deadline=again), self._later())
            case "alter":
                self._pass_on(self._altered(relayed), 0.0)
                if self._rng.random() < 0.5:
                    self._pass_on(relayed, self._later())
            case "withhold":
                self._withheld.append(relayed)
            case "misdirect":
                other = self._other(relayed.recipient)
                self._pass_on(msgspec.structs.replace(relayed, recipient=other), 0.0)
            case _:
                made: dict[str, Callable[[bytes], RelayedMessage]] = {
                    "forge": self._forged,
                    "receipt": self._false_receipt,
                    "stranger": self._of_stranger,
                }
                for _ in range(self._rng.randint(1, REPEATS_MAX)):
                    false = made[deed](relayed.recipient)
                    self._seen.append(false)
                    self._pass_on(false, 0.0)
                self._pass_on(relayed, self._later())

    def _later(self) -> float:
        return self._rng.uniform(0.0, LATE_S)

    def _other(self, person: bytes) -> bytes:
        others = [each for each in self._persons if each != person]
        return others[0] if len(others) == 1 else self._rng.choice(others)

    def _altered(self, relayed: RelayedMessage) -> RelayedMessage:
        place, bit = self._rng.randrange(len(relayed.envelope)), 1 << self._rng.randrange(8)
        envelope = bytearray(relayed.envelope)
        envelope[place] ^= bit
        return msgspec.structs.replace(relayed, envelope=bytes(envelope))

    # Messages of its own, well sealed.

    def _forged(self, recipient: bytes) -> RelayedMessage:
        """A message of the relay: relays are no contacts."""
        channel = self._rng.choice((b"notes", b"jobs-pay", self._chat_of_other(recipient)))
        return self._sealed(recipient, self._identity, channel=channel, body=b"forged")

    def _false_receipt(self, recipient: bytes) -> RelayedMessage:
        """A receipt for all that the recipient has sent to its peer, by whoever is no peer."""
        sender = self._rng.choice([self._identity, *(each.identity for each in self.strangers)])
        seen: tuple[Seen, ...] = ()
        try:
            deliveries = self._persons[recipient].node.outbox._deliveries
            line = deliveries._outgoing(self._other(recipient)).line
            if line is not None:  # the relay cannot know it; this one does
                count = line.counter + 1  # so that no hash is compared
                seen = (Seen(line.line, line.began, count, bytes(32), count, (), ()),)
        except NotRunning:
            pass
        return self._sealed(recipient, sender, kind=Kind.RECEIPT, channel=b"", counter=0, seen=seen)

    def _of_stranger(self, recipient: bytes) -> RelayedMessage:
        """A text of a stranger for the chat, a repeated one, or something for another channel."""
        stranger = self._rng.choice(self.strangers)
        texts = stranger.texts.setdefault(recipient, [])
        channel = conversation_stream(stranger.identity.public)
        if self._rng.random() < 0.25:
            channel = self._rng.choice((b"notes", b"jobs-pay", self._chat_of_other(recipient)))
            return self._sealed(recipient, stranger.identity, channel=channel, body=STRANGE)
        is_new = len(texts) < TEXTS_MAX and (not texts or self._rng.random() < 0.7)
        if is_new:
            number = len(texts) + 1
            said = f"{self.strangers.index(stranger)} says {number}"
            at = int(self._world.clock.now() * 1000)
            clear = encode_payload(Text(stranger.line.hex()[:8], number, at, said))
            texts.append((self._rng.randbytes(16), clear))
        number = len(texts) if is_new else self._rng.randint(1, len(texts))
        uuid, clear = texts[number - 1]
        fields = {"uuid": uuid, "line": stranger.line, "began": 1, "counter": number}
        return self._sealed(recipient, stranger.identity, channel=channel, body=clear, **fields)

    def _chat_of_other(self, recipient: bytes) -> bytes:
        return conversation_stream(self._other(recipient))

    def _sealed(self, recipient: bytes, sender: Identity, **fields: object) -> RelayedMessage:
        now_ms = int(self._world.clock.now() * 1000)
        values: dict[str, object] = {
            "kind": Kind.MESSAGE,
            "deadline": now_ms + WEEK_S * 1000,
            "sent_at": now_ms,
            "uuid": self._rng.randbytes(16),
            "line": self._rng.randbytes(8),
            "began": now_ms,
            "counter": 1,
            "settled": 0,
            "seen": (),
            "floor": 0,
            "key": None,
            "body": b"",
        }
        content = Content(**(values | fields))  # type: ignore[arg-type]  # names are the fields'
        sealed = seal_message(
            content,
            sender=sender,
            recipient=recipient,
            prekey=self._prekey(recipient).public,
            entropy=self._rng.randbytes,
        )
        return RelayedMessage(0, relayed_deadline(content.deadline / 1000), recipient, b"", sealed)

    # Prekeys, which peers read at the relay.

    def _prekey(self, public: bytes) -> SignedPrekey:
        """The newest known prekey of a person."""
        try:
            keyring = self._persons[public].node.peer_services.keyring
        except NotRunning:
            return self._keys[public]
        found = keyring.prekeys.current()
        if hasattr(self, "_keys"):
            self._keys[public] = found
        return found

    async def _show_keys(self) -> None:
        while True:
            self._show_all_keys()
            await anyio.sleep(KEYS_SHOWN_EVERY_S)

    def _show_all_keys(self) -> None:
        for public in self._persons:
            deed = "show" if self.is_honest else self._rng.choice(KEY_DEEDS)
            self._counts[deed] += 1
            key = self._prekey(public)
            match deed:
                case "show":
                    self._show(public, key)
                case "show the first":
                    self._show(public, self._first_keys[public])
                case "show version 1":
                    self._show(public, self._in_version_1(public, key))
                case _:
                    pass

    async def _hand_out(self, owner: bytes, sender: bytes, count: int) -> list[bytes]:
        """One-time prekeys of a person, in place of what an honest relay would hand out."""
        if owner not in self._persons:
            return []
        deed = "hand out" if self.is_honest else self._rng.choice(ONE_TIME_DEEDS)
        if not self.is_honest and self._rng.random() < DRAINS:
            deed = DRAIN
        fresh = self._one_time.setdefault(owner, [])
        if not fresh:
            fresh += await self._given_by(owner)
        used = self._handed_out.setdefault(owner, [])
        self._counts[deed] += 1
        match deed:
            case "hand out":
                found, fresh[:count] = fresh[:count], []
                used += found
                return found
            case "hand out again":
                return used[-count:]
            case "drain one-time keys":
                while await self._given_by(owner):
                    pass
                fresh.clear()
                return []
            case "invent one-time keys":
                now_ms = int(self._world.clock.now() * 1000)
                public, until = self._rng.randbytes(32), now_ms + WEEK_S * 1000
                return [encode_one_time(sign_one_time(self._identity, public, 1, now_ms, until))]
            case _:
                return []

    async def _given_by(self, owner: bytes) -> list[bytes]:
        """One-time prekeys that a person has given the relay."""
        try:
            context = self._persons[owner].node.outbox.context
            now_ms = int(context.now() * 1000)
            lifetime_ms = int(context.prekeys.lifetime_s * 1000)
            made = await context.one_time.make(self._identity.public, now_ms, lifetime_ms)
        except (NotRunning, OSError):
            return []
        self._counts["no one-time keys are left"] += not made
        return [encode_one_time(each) for each in made]

    async def _take_in(
        self, owner: bytes, known: Collection[int], keys: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The answer of the second node to a person that gives it one-time prekeys: how it is, that
        all are gone, or that all are there. They are handed out in any case."""
        deed = "take keys in" if self.is_honest else self._rng.choice(GIVEN_DEEDS)
        self._counts[deed] += 1
        fresh = self._one_time.setdefault(owner, [])
        fresh += keys
        match deed:
            case "say keys are lost":
                return [], list(known)
            case "say keys are left":
                return list(known), []
            case _:
                numbers = {decode_one_time(each, owner).number for each in fresh}
                return sorted(numbers.intersection(known)), []

    def _in_version_1(self, public: bytes, key: SignedPrekey) -> SignedPrekey:
        try:
            prekeys = self._persons[public].node.peer_services.keyring.prekeys
        except NotRunning:
            return key
        return prekeys.as_version_1(key)

    def _show(self, public: bytes, key: SignedPrekey) -> None:
        put = Put(self._rng.getrandbits(32), 2 * DAY_S, encode_prekey(key))
        local = self._node.node.outbox.context.local
        local.put_nowait(mailbox_of(public) + KEYS_SUFFIX, put)

    # Passing on.

    def _pass_on(self, relayed: RelayedMessage, after_s: float) -> None:
        self._tasks.start_soon(self._put, relayed, after_s)

    async def _put(self, relayed: RelayedMessage, after_s: float) -> None:
        await anyio.sleep(after_s)
        data = encode_relayed_message(msgspec.structs.replace(relayed, hops=1))
        recipient = relayed.recipient
        try:
            if recipient in self._fetchers and self._rng.random() < 0.5:
                assert self._letterbox is not None
                self._counts["left to be fetched"] += 1
                local = self._letterbox.node.outbox.context.local
                put = Put(self._rng.getrandbits(32), DAY_S, data)
                await local.put(mailbox_of(recipient), put)
            else:
                await self._ways[recipient].put(data, ttl=DAY_S)
        except RequestError as error:
            self._counts[f"not taken: {type(error).__name__}"] += 1
