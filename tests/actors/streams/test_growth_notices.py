"""Notices of grown streams, as subscriptions get them."""

from __future__ import annotations

from millpond.actors.messages import CellMessage
from millpond.actors.streams.growth_notices import GrowthNotices
from millpond.actors.streams.messages import StreamGrew, TellSubscriptions

CELLS = (b"one", b"two")


class Posted:
    """The notices, and what was posted to cells."""

    def __init__(self) -> None:
        self.posts: list[tuple[bytes, CellMessage]] = []
        self.notices = GrowthNotices(lambda cell, message: self.posts.append((cell, message)))

    def grow(self, tail: int, stream: bytes = b"s") -> StreamGrew:
        """A stream has records up to `tail`."""
        notice = StreamGrew(0, stream, 7, tail)
        self.notices.send((TellSubscriptions(0, CELLS, notice),))
        return notice


def test_all_that_follow_a_stream_are_told_once_a_batch() -> None:
    node = Posted()
    node.grow(1)
    last = node.grow(2)
    assert node.posts == []
    node.notices.flush()
    node.notices.flush()
    assert node.posts == [(b"one", last), (b"two", last)]


def test_one_that_is_awake_gets_no_message_and_misses_nothing() -> None:
    node = Posted()
    node.notices.set_awake(b"one", is_awake=True)
    for tail in (1, 2):
        last = node.grow(tail)
        other = node.grow(tail, b"other")
        node.notices.flush()
    assert [cell for cell, _ in node.posts] == [b"two"], "one message waits, whatever comes"
    assert list(node.notices.take(b"one")) == [last, other]
    assert not node.notices.take(b"one")
    missed = list(node.notices.unread(b"two"))
    assert last in missed and list(node.notices.take(b"two")) == missed
    assert not node.notices.unread(b"two")


def test_one_that_is_idle_again_is_told() -> None:
    node = Posted()
    node.notices.set_awake(b"one", is_awake=True)
    node.notices.set_awake(b"one", is_awake=False)
    notice = node.grow(1)
    node.notices.flush()
    assert (b"one", notice) in node.posts


def test_one_that_is_built_anew_has_missed_nothing() -> None:
    node = Posted()
    node.notices.set_awake(b"one", is_awake=True)
    node.grow(1)
    node.notices.flush()
    node.notices.forget(b"one")
    assert not node.notices.take(b"one")
    notice = node.grow(2)
    node.notices.flush()
    assert (b"one", notice) in node.posts
