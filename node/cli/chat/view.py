"""The view of a conversation: records become lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from millpond.node.chat.actions import Action, action_of, is_shown_alone
from millpond.node.chat.records import Kind, Record, State, is_newer
from millpond.node.cli.chat.line_editor import is_shown, text_width
from millpond.node.cli.chat.shown_messages import MESSAGES, ShownMessage, ShownMessages

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


class OwnMessage(msgspec.Struct):
    """A message of the user with its state; `text` is None for the answer to an invite. In a group
    `count` members get it, and some have said that it is `delivered`, or `read`."""

    text: str | None
    state: State
    count: int = 0
    delivered: set[str] = msgspec.field(default_factory=set)
    read: set[str] = msgspec.field(default_factory=set)


class ConversationView:
    """The view of the conversation with the peer `name`."""

    def __init__(
        self, name: str, *, is_accepted: bool = True, names: dict[str, str] | None = None
    ) -> None:
        """`is_accepted`: the peer has answered once; until then it may not know this node. `names`:
        those of the members of a group by their ids; None: it is no group."""
        self.name = name
        self.names = names
        self.is_accepted = is_accepted
        self.messages = ShownMessages()
        self._own: dict[str, OwnMessage] = {}
        self._changes: dict[str, None] = {}
        self._day = ""
        self._long_lost: frozenset[str] = frozenset()

    @property
    def in_flight(self) -> int:
        """The number of shown messages that have not arrived yet."""
        return sum(self._is_in_flight(each) for each in self._own.values())

    def _is_in_flight(self, own: OwnMessage) -> bool:
        if self.names is None or own.state is State.WAITING:
            return own.state in ON_THE_WAY
        return own.state not in LOST and len(own.delivered) < own.count

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
            if self.messages.changed_by(record) is not None:
                continue  # the message is shown as it is now
            if is_plain:
                lines += self._plain_now(record)
                continue
            if place == first_unread:
                lines.append(f"{CHANGE_INDENT}new:")
            lines += self._lines(record, self.messages.target(record), is_history=True)
        self._changes.clear()
        self._long_lost = self._lost()
        return lines

    def take(self, record: Record) -> list[str]:
        """A record came. Gives lines to be shown now."""
        about = self.messages.target(record)
        about = None if about is None else msgspec.structs.replace(about)  # as it was
        if not self._learn(record):
            return []
        return list(self._lines(record, about, is_history=False))

    def plain(self, record: Record) -> list[str]:
        """The lines of a record for pipes: only the text of a message, or its new text."""
        action = action_of(record)
        if record.kind not in MESSAGES or action not in (None, Action.REPLY, Action.EDIT):
            return []
        return self._plain(record, " (edited)" if action is Action.EDIT else "", record.text)

    def _plain(self, record: Record, mark: str, text: str) -> list[str]:
        first, *rest = clean_lines(text)
        return [
            f"{self.who(record.kind, record.by)}{mark}: {first}",
            *(f"  {line}" for line in rest),
        ]

    def _plain_now(self, record: Record) -> list[str]:
        """The lines of a record for pipes, with later changes of the message."""
        message = self.messages.get(record.kind, record.uuid, record.by)
        if message is None:
            return self.plain(record)
        mark = " (edited)" if message.is_edited else ""
        return [] if message.is_deleted else self._plain(record, mark, message.text)

    def who(self, kind: Kind, by: str = "") -> str:
        """The name of an author."""
        if kind is Kind.OUT:
            return "you"
        return clean((self.names or {}).get(by, by[:8])) if by else self.name

    def state_changes(self) -> list[str]:
        """The lines about state changes of messages since the last call."""
        changed = [self._own[uuid] for uuid in self._changes if uuid in self._own]
        self._changes.clear()
        if self.names is not None:
            shown = [(self.state_text(each), each) for each in changed if self._is_told(each)]
            return [f"{CHANGE_INDENT}{state}: {quoted(each.text or '')}" for state, each in shown]
        texts = [(each.state, each.text) for each in changed if each.text is not None]
        counts = Counter(state for state, _ in texts)
        answers = [each.state for each in changed if each.text is None]
        lines = [f"{CHANGE_INDENT}{invite_text(each)}" for each in answers]
        for state in sorted(counts, key=list(State).index):
            quote = next(text for each, text in texts if each is state)
            what = quoted(quote) if counts[state] == 1 else f"{counts[state]} messages"
            lines.append(f"{CHANGE_INDENT}{self._state_text(state)}: {what}")
        return lines

    @staticmethod
    def _is_told(own: OwnMessage) -> bool:
        """True where all members of a group have a message, or have read it, or not one has."""
        is_whole = own.count in (len(own.delivered), len(own.read))
        return is_whole or own.state in LOST

    def state_text(self, own: OwnMessage) -> str:
        """The state of a message of the user."""
        if self.names is None or own.state in LOST:
            return self._state_text(own.state)
        if own.state is State.WAITING:
            return "waits for members"
        if not own.count:
            return "there is nobody else in the group"
        read = f", read by {len(own.read)}" if own.read else ""
        return f"delivered to {len(own.delivered)} of {own.count}{read}"

    def own_state(self, uuid: str) -> str:
        """The state of a known message of the user; empty for others."""
        own = self._own.get(uuid)
        return "" if own is None else self.state_text(own)

    def _state_text(self, state: State) -> str:
        is_early = state is State.SENT and not self.is_accepted
        return NOT_ACCEPTED if is_early else STATE_TEXTS[state]

    def _learn(self, record: Record) -> bool:
        has_changed = self.messages.learn(record)
        if record.kind in (Kind.OUT, Kind.INVITE):
            text = told_text(record) if record.kind is Kind.OUT else None
            self._own[record.uuid] = OwnMessage(text, record.state or State.WAITING)
            self._changes[record.uuid] = None
            if len(self._own) > OWN_TEXTS_MAX:
                self._own.pop(next(iter(self._own)))
        elif record.kind is Kind.STATE and record.state is not None:
            own = None if record.by else self._own.get(record.uuid)
            if own is not None and self.names is not None:
                self._learn_members(own, record)
            elif own is not None and is_newer(record.state, own.state):
                own.state = record.state
                self._changes[record.uuid] = None
        return has_changed

    def _learn_members(self, own: OwnMessage, record: Record) -> None:
        """Learn to how many members of a group a message was sent, or who has it."""
        assert record.state is not None
        if record.state in (State.DELIVERED, State.READ):
            own.delivered.update(record.members)
            if record.state is State.READ:
                own.read.update(record.members)
        own.count = max(own.count, record.count)
        if is_newer(record.state, own.state):
            own.state = record.state
        if record.state is not State.WAITING:
            self._changes[record.uuid] = None

    def _lines(
        self, record: Record, about: ShownMessage | None, *, is_history: bool
    ) -> Iterator[str]:
        """The lines of a record; in a `is_history` a message is shown as it is now, with its state.
        `about`: the message that it is about."""
        match record.kind:
            case Kind.STATE | Kind.HELD:
                return
            case Kind.NOTE:
                yield from self._new_day(record.at)
                who = f"{self.who(Kind.IN, record.by)} " if record.by else ""
                yield f"{CHANGE_INDENT}{who}{clean(record.text)}"
            case Kind.INVITE:
                yield from self._new_day(record.at)
                own = self._own.get(record.uuid)
                yield f"{CHANGE_INDENT}{invite_text(State.WAITING if own is None else own.state)}"
            case Kind.OUT | Kind.IN if is_shown_alone(record):
                yield from self._new_day(record.at)
                yield from self._message_lines(record, about, is_history=is_history)
            case Kind.OUT | Kind.IN:
                yield from self._new_day(record.at)
                yield from self._change_lines(record, about)

    def _message_lines(
        self, record: Record, about: ShownMessage | None, *, is_history: bool
    ) -> Iterator[str]:
        marks = ""
        if record.kind is Kind.IN:
            marks = (" (late)" if record.late else "") + sent_text(record)
        if action_of(record) is Action.REPLY:
            quote = "an earlier message" if about is None else quoted_message(about)
            marks += f" (to {quote})"
        text, end = record.text, ""
        message = self.messages.get(record.kind, record.uuid, record.by)
        if is_history and message is not None:
            text = "(deleted)" if message.is_deleted else message.text
            marks += " (edited)" if message.is_edited and not message.is_deleted else ""
            given = [f"{clean(each)} {self.who(*who)}" for who, each in message.reactions.items()]
            end = f"   [{', '.join(given)}]" if given else ""
        own = self._own.get(record.uuid)
        if is_history and own is not None and record.kind is Kind.OUT:
            end += f"   ({self.state_text(own)})"
        yield from message_text(record.at, self.who(record.kind, record.by) + marks, text + end)

    def _change_lines(self, record: Record, about: ShownMessage | None) -> Iterator[str]:
        who, action = self.who(record.kind, record.by), action_of(record)
        quote = "an earlier message" if about is None else quoted_message(about)
        match action:
            case Action.EDIT:
                yield from message_text(record.at, f"{who} (edited {quote})", record.text)
            case Action.DELETE:
                moment = None if about is None else local_time(about.at)
                which = f"the message of {moment:%H:%M}" if moment else "an earlier message"
                yield f"{CHANGE_INDENT}{who} deleted {which}"
            case Action.REACT:
                yield f"{CHANGE_INDENT}{who} reacted {clean(record.text)} to {quote}"
            case _:
                yield f"{CHANGE_INDENT}{who} took back the reaction to {quote}"

    def _new_day(self, at: int) -> Iterator[str]:
        moment = local_time(at)
        day = "" if moment is None else f"{moment:%A %d %B %Y}"
        if day and day != self._day:
            self._day = day
            yield f"{CHANGE_INDENT}{day}"


ON_THE_WAY = (State.WAITING, State.KEPT, State.SENT)
LOST = (State.EXPIRED, State.REFUSED)
LATE_MS = 60_000


def is_message(record: Record) -> bool:
    """True for a message of its own, and no change of another one."""
    return record.kind in MESSAGES and is_shown_alone(record)


def told_text(record: Record) -> str:
    """The text of a message of the user in notices about its state."""
    match action_of(record):
        case Action.EDIT:
            return f"edit: {record.text}"
        case Action.DELETE:
            return "deletion"
        case Action.REACT:
            return f"reaction {record.text}"
        case Action.UNREACT:
            return "end of a reaction"
        case _:
            return record.text


def quoted_message(message: ShownMessage) -> str:
    """The beginning of a message in quotes."""
    return "a deleted message" if message.is_deleted else f'"{quoted(message.text)}"'


def first_shown(records: Sequence[tuple[int, Record]], count: int, unread_from: int) -> int:
    """The index of the first of the last `count` messages, or of the unread ones."""
    places = [place for place, (_, each) in enumerate(records) if is_message(each)]
    start = places[-count] if 0 < count <= len(places) else (0 if count else len(records))
    return min(start, _first_unread(records, unread_from))


def _first_unread(records: Sequence[tuple[int, Record]], unread_from: int) -> int:
    return next(
        (
            place
            for place, (sequence, each) in enumerate(records)
            if sequence >= unread_from and each.kind is Kind.IN and is_message(each)
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
