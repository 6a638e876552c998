"""The messages to one peer without a receipt: the lowest counter of each line."""

from __future__ import annotations

from random import Random

from millpond.node.outbox.deliveries import KeptMessage, _Outgoing, _OwnLine


def kept(number: int, line: bytes, counter: int) -> KeptMessage:
    return KeptMessage(
        uuid=b"%d" % number,
        line=line,
        began=1,
        counter=counter,
        hash=b"",
        deadline=0,
        size=number,
        mailbox_id=number,
        attempts=0,
        tried_at=0.0,
    )


def test_the_lowest_counter_is_that_of_the_messages_that_are_left() -> None:
    """Messages come in any order when they are sent again, and some have the same counter: those
    that cannot be opened have none."""
    rng = Random(1)
    outgoing = _Outgoing()
    lines = [_OwnLine(name, 1, 1000) for name in (b"a", b"b", b"")]
    for number in range(3000):
        if rng.random() < 0.6:
            line = rng.choice(lines)
            outgoing.add(kept(number, line.line, rng.randrange(200) if line.line else 0))
        elif outgoing.messages:
            gone = outgoing.remove(rng.choice(list(outgoing.messages)))
            assert gone is not None and outgoing.remove(gone.uuid) is None
        if number % 7 == 0:
            messages = outgoing.messages.values()
            for line in lines:
                counters = [each.counter for each in messages if each.line == line.line]
                assert outgoing.lowest(line) == min(counters, default=1000)
            assert outgoing.size == sum(each.size for each in messages)
    for uuid in list(outgoing.messages):
        outgoing.remove(uuid)
    assert outgoing.counters == {} and outgoing.size == 0
