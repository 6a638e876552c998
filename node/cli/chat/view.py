"""The view of a conversation: records become lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from millpond.node.chat.records import Kind, Record, State, is_newer
from millpond.node.cli.chat.line_editor import is_shown, text_width

OWN_TEXTS_MAX = 10_000
"""The number of own messages whose text is kept, to show it with their later states."""
QUOTED_CHARS = 40
INDENT = "         "
"""The indentation of lines that continue the one above."""
CHANGE_INDENT = "       -- "
"""The begin of notices about messages; terminals show them dimmed. It is indented less than any
line of a message, so that no message can imitate a notice."""

STATE_TEXTS = {
    State.WAITING: "waits for a key of the peer",
    State.KEPT: "kept here, until it can go",
    State.SENT: "on its way",
    State.DELIVERED: "delivered",
    State.READ: "read",
    State.EXPIRED: "NOT DELIVERED in time",
    State.REFUSED: "REFUSED",
}
NOT_ACCEPTED = "sent, not accepted yet"


def invite_text(state: State) -> str:
    """A line about an accepted invite, by the state of the answer to it."""
    match state:
        case State.DELIVERED | State.READ:
            return "invite accepted; both sides are added"
        case State.EXPIRED | State.REFUSED:
            return "the answer to the invite did not arrive in time; ask for a new invite"
        case _:
            return "invite accepted here; the other node has not answered yet"


class ShownMessage(msgspec.Struct):
    """A message of the user with its state; `text` is None for the answer to an invite."""

    text: str | None
    state: State


class ConversationView:
    """The view of the conversation with the peer `name`."""

    def __init__(self, name: str, *, is_accepted: bool = True) -> None:
        """`is_accepted`: the peer has answered once; until then it may not know this node."""
        self.name = name
        self.is_accepted = is_accepted
        self._own: dict[str, ShownMessage] = {}
        self._changes: dict[str, None] = {}
        self._day = ""
        self._long_lost: frozenset[str] = frozenset()

    @property
    def in_flight(self) -> int:
        """The number of shown messages that have not arrived yet."""
        return sum(each.state in ON_THE_WAY for each in self._own.values())

    @property
    def lost(self) -> int:
        """The number of messages that were lost since the history was shown."""
        return len(self._lost() - self._long_lost)

    def _lost(self) -> frozenset[str]:
        return frozenset(uuid for uuid, each in self._own.items() if each.state in LOST)

    def history(
        self,
        records: Sequence[tuple[int, Record]],
        count: int,
        unread_from: int,
        *,
        is_plain: bool = False,
    ) -> list[str]:
        """The last `count` messages, or all that were not read. Gives lines."""
        first = first_shown(records, count, unread_from)
        first_unread = _first_unread(records, unread_from)
        for _, record in records:
            self._learn(record)
        lines: list[str] = []
        for place, (_, record) in enumerate(records):
            if place < first:
                continue
            if is_plain:
                lines += self.plain(record)
                continue
            if place == first_unread:
                lines.append(f"{CHANGE_INDENT}new:")
            lines += self._lines(record, with_state=True)
        self._changes.clear()
        self._long_lost = self._lost()
        return lines

    def take(self, record: Record) -> list[str]:
        """A record came. Gives lines to be shown now."""
        self._learn(record)
        return list(self._lines(record, with_state=False))

    def plain(self, record: Record) -> list[str]:
        """The lines of a record for pipes: only the text of a message."""
        if record.kind not in MESSAGES:
            return []
        first, *rest = clean_lines(record.text)
        who = self.name if record.kind is Kind.IN else "you"
        return [f"{who}: {first}", *(f"  {line}" for line in rest)]

    def state_changes(self) -> list[str]:
        """The lines about state changes of messages since the last call."""
        changed = [self._own[uuid] for uuid in self._changes if uuid in self._own]
        self._changes.clear()
        texts = [(each.state, each.text) for each in changed if each.text is not None]
        counts = Counter(state for state, _ in texts)
        answers = [each.state for each in changed if each.text is None]
        lines = [f"{CHANGE_INDENT}{invite_text(each)}" for each in answers]
        for state in sorted(counts, key=list(State).index):
            quote = next(text for each, text in texts if each is state)
            what = quoted(quote) if counts[state] == 1 else f"{counts[state]} messages"
            lines.append(f"{CHANGE_INDENT}{self._state_text(state)}: {what}")
        return lines

    def _state_text(self, state: State) -> str:
        is_early = state is State.SENT and not self.is_accepted
        return NOT_ACCEPTED if is_early else STATE_TEXTS[state]

    def _learn(self, record: Record) -> None:
        if record.kind in (Kind.OUT, Kind.INVITE):
            text = record.text if record.kind is Kind.OUT else None
            self._own[record.uuid] = ShownMessage(text, record.state or State.WAITING)
            self._changes[record.uuid] = None
            if len(self._own) > OWN_TEXTS_MAX:
                self._own.pop(next(iter(self._own)))
        elif record.kind is Kind.STATE and record.state is not None:
            own = self._own.get(record.uuid)
            if own is not None and is_newer(record.state, own.state):
                own.state = record.state
                self._changes[record.uuid] = None

    def _lines(self, record: Record, *, with_state: bool) -> Iterator[str]:
        match record.kind:
            case Kind.STATE:
                return
            case Kind.NOTE:
                yield from self._new_day(record.at)
                yield f"{CHANGE_INDENT}{clean(record.text)}"
            case Kind.INVITE:
                yield from self._new_day(record.at)
                own = self._own.get(record.uuid)
                yield f"{CHANGE_INDENT}{invite_text(State.WAITING if own is None else own.state)}"
            case Kind.OUT:
                yield from self._new_day(record.at)
                own = self._own.get(record.uuid)
                told = (
                    f"   ({self._state_text(own.state)})" if with_state and own is not None else ""
                )
                yield from message_text(record.at, "you", record.text + told)
            case Kind.IN:
                yield from self._new_day(record.at)
                late = " (late)" if record.late else ""
                sent = sent_text(record)
                yield from message_text(record.at, f"{self.name}{late}{sent}", record.text)

    def _new_day(self, at: int) -> Iterator[str]:
        moment = local_time(at)
        day = "" if moment is None else f"{moment:%A %d %B %Y}"
        if day and day != self._day:
            self._day = day
            yield f"{CHANGE_INDENT}{day}"


MESSAGES = (Kind.IN, Kind.OUT)
ON_THE_WAY = (State.WAITING, State.KEPT, State.SENT)
LOST = (State.EXPIRED, State.REFUSED)
LATE_MS = 60_000


def first_shown(records: Sequence[tuple[int, Record]], count: int, unread_from: int) -> int:
    """The index of the first of the last `count` messages, or of the unread ones."""
    places = [place for place, (_, each) in enumerate(records) if each.kind in MESSAGES]
    start = places[-count] if 0 < count <= len(places) else (0 if count else len(records))
    return min(start, _first_unread(records, unread_from))


def _first_unread(records: Sequence[tuple[int, Record]], unread_from: int) -> int:
    return next(
        (
            place
            for place, (sequence, each) in enumerate(records)
            if sequence >= unread_from and each.kind is Kind.IN
        ),
        len(records),
    )


def message_text(at: int, who: str, text: str) -> Iterator[str]:
    """A message with its further lines indented."""
    first, *rest = clean_lines(text)
    moment = local_time(at)
    yield f"{moment:%H:%M}  {who}: {first}" if moment else f"--:--  {who}: {first}"
    for line in rest:
        yield f"{INDENT}{line}"


def sent_text(record: Record) -> str:
    """The time of writing by the clock of the sender, if it was well before the arrival."""
    moment = local_time(record.sent_at)
    if moment is None or not record.sent_at or abs(record.at - record.sent_at) < LATE_MS:
        return ""
    came = local_time(record.at)
    is_today = came is not None and came.date() == moment.date()
    return f" (written {moment:%H:%M})" if is_today else f" (written {moment:%d %b %H:%M})"


def local_time(at: int) -> datetime | None:
    """The local time; None for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(at / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return None


def wrapped(line: str, columns: int) -> list[str]:
    """A line in rows of a terminal, broken between words. A longer word, such as a link, stays
    whole. Further rows are indented like further lines of a message, so none imitates a notice."""
    if text_width(line) <= columns:
        return [line]
    indent = INDENT if columns > 3 * len(INDENT) else ""
    begin = line[: len(line) - len(line.lstrip(" "))]
    rows, row = [], begin
    for word in line.lstrip(" ").split(" "):
        joined = word if not row.strip() else f" {word}"
        if row.strip() and text_width(row) + text_width(joined) > columns:
            rows.append(row)
            row = indent + word
        else:
            row += joined
    return [*rows, row]


def quoted(text: str) -> str:
    """The beginning of a message, on one line."""
    line = " ".join(clean_lines(text))
    return line if len(line) <= QUOTED_CHARS else f"{line[: QUOTED_CHARS - 3]}..."


def clean(text: str) -> str:
    """On one line, and without what would move the cursor or change what was said before."""
    return " ".join(clean_lines(text))


def clean_lines(text: str) -> list[str]:
    """The lines of a text, each without control characters."""
    return ["".join(map(_shown, line)) for line in text.split("\n")]


def _shown(char: str) -> str:
    if is_shown(char):
        return char
    return " " if char == "\t" else f"\\x{ord(char):02x}"
