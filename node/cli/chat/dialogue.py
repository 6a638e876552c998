"""The dialogue of a chat: it follows conversations, sends typed lines and shows presence."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ObjectSendStream

from millpond.actors.errors import (
    DataTooLarge,
    EmptyData,
    Malformed,
    NotAllowed,
    NotFound,
    RequestError,
    UnknownPeer,
)
from millpond.node.chat.actions import Action
from millpond.node.chat.messages import ChatInfo
from millpond.node.chat.records import Kind, Record
from millpond.node.cli.chat import groups
from millpond.node.cli.chat.client import UUID_BYTES, ChatClient, Page
from millpond.node.cli.chat.files import KnownFiles, NotSent, path_of, save_file, send_file
from millpond.node.cli.chat.screen import Screen
from millpond.node.cli.chat.search import end_lines, found_line
from millpond.node.cli.chat.view import (
    CHANGE_INDENT,
    ConversationView,
    clean,
    first_shown,
    is_message,
    local_time,
    quoted,
    quoted_message,
)
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.reach import OWN_REACH, PEERS_REACH
from millpond.node.client.channel import Channel
from millpond.node.outbox.messages import DiscoveredNode
from millpond.node.outbox.own_addresses import Reach
from millpond.node.peers.peer import Trust
from millpond.node.qr_code import qr_lines

POLL_S = 2.0
TYPING_EVERY_S = 3.0
REPORT_EVERY_S = 1.0
"""The interval in seconds in which changes of messages are collected before they are shown."""
RECORDS_PER_MESSAGE = 5
UNREAD_RECORDS_MAX = 10_000
"""The number of records that are searched for unread messages."""
TYPED_AHEAD_MAX = 100
UNSENT_REPORTS = 2
HELP = """\
/to PEER          talk with somebody else        /list    all conversations
/who              who is online                  /quit    leave (so does Ctrl-D)
/invite NAME      a link that adds both sides    /block   take nothing more from this peer
/add LINK NAME    accept an invite               //...    a message that begins with /
/discovered       nodes on this network             /add N NAME   add one of them
/verify [NUMBER]  show, or compare, the safety number of this peer
/reply TEXT       answer the last message        /react 👍   react to it; alone: no reaction
/edit TEXT        change your last message       /delete     delete it on both sides
/search WORDS     messages with these words in all conversations
/file PATH        send a file                    /save [-2] [PATH]   save one that has come
/last             the last messages: /reply -2 TEXT answers the last but one, and so on
/group            the members of this group; /group help tells the rest
Tab completes a command or a name; Alt-Enter begins a new line in the message"""
COMMANDS = (
    *("/add", "/block", "/delete", "/discovered", "/edit", "/file", "/group", "/help", "/invite"),
    *("/last", "/list", "/quit", "/react", "/reply", "/save", "/search", "/verify", "/who"),
)
LISTED = 9
"""The number of messages of each side that `/last` lists."""
BLOCK_AGAIN = "/block yes"


class Options(msgspec.Struct, frozen=True):
    """`history`: the number of messages shown at the start. `stays`: continue after the end of the
    input. `wait_s`: the time in seconds for messages and files to be delivered then. Through pipes
    `files` are sent first, and files that come are saved in the folder `save_in`; without
    `reads_input` nothing else is sent."""

    history: int
    stays: bool
    wait_s: float
    as_json: bool
    files: tuple[str, ...] = ()
    save_in: Path | None = None
    reads_input: bool = True


class Dialogue:
    """The dialogue with one peer at a time, on one connection to the node."""

    def __init__(
        self, channel: Channel, screen: Screen, options: Options, notices: list[str]
    ) -> None:
        self._client = ChatClient(channel)
        self._screen = screen
        self._options = options
        self._chat: ChatInfo  # from `run` on
        self._view = ConversationView("")
        self._files = KnownFiles()
        self._sent_files: set[bytes] = set()
        self._saved_from = 0
        """The sequence of the next message whose file is saved, with `save_in`."""
        self._saved: set[int] = set()
        self._shown_to = 0
        self._sent_to = -1
        self._unread: dict[str, int] = {}
        self._invited: set[str] = set()
        """The groups whose invitations were shown."""
        self._follower = anyio.CancelScope()
        self._follow_lock = anyio.Lock()
        self._changed = anyio.Event()
        self._notices = notices
        self._is_disconnected = False
        self._unsent: str | None = None
        self._unsent_reports = 0
        self._discovered: list[DiscoveredNode] = []
        """The nodes of the last `/discovered`, for `/add N`."""

    async def run(self, peer: str) -> int:
        """Run until the end of the input; gives the exit code."""
        chat = await self._client.chat_with(peer)
        self._set_completions([chat])
        await self._show_conversation(chat)
        code: int = ExitCode.OK
        async with anyio.create_task_group() as tasks:
            for work in (
                self._follow_conversations,
                self._watch_peers,
                self._tell_typing,
                self._report_changes,
                self._report_transfers,
                self._screen.redraw_on_signals,
            ):
                tasks.start_soon(work)
            for path in self._options.files:
                await self._send_file(path)
            if self._options.reads_input:
                await self._read_input()
            if self._options.stays:
                await anyio.sleep_forever()
            if self._options.wait_s:
                code = await self._wait_for_delivery()
            tasks.cancel_scope.cancel()
        return code

    # The input.

    async def _read_input(self) -> None:
        if not self._screen.is_interactive:
            async with aclosing(self._screen.typed()) as lines:
                await self._handle_lines(lines)
            return
        send, typed = anyio.create_memory_object_stream[str](TYPED_AHEAD_MAX)
        async with anyio.create_task_group() as tasks, typed:
            tasks.start_soon(self._read_ahead, send)
            await self._handle_lines(typed)
            tasks.cancel_scope.cancel()

    async def _read_ahead(self, send: ObjectSendStream[str]) -> None:
        """Read lines while the node does not answer to the one before."""
        async with send, aclosing(self._screen.typed()) as lines:
            async for line in lines:
                await send.send(line)

    async def _handle_lines(self, lines: AsyncIterable[str]) -> None:
        async for line in lines:
            if self._screen.is_interactive and line.startswith("/"):
                if line.startswith("//"):
                    await self._send(line[1:])
                elif not await self._run_command(line):
                    return
            elif line.strip():
                await self._send(line)

    async def _run_command(self, line: str) -> bool:
        """Run a command; False: the command ends the dialogue."""
        command, _, rest = line.partition(" ")
        match command:
            case "/quit" | "/q":
                return False
            case "/list" | "/who":
                chats = await self._client.chats()
                if command == "/who":
                    chats = [each for each in chats if each.here]
                lines = [describe(each) for each in chats]
                await self._screen.show(lines or ["nobody"])
            case "/to" if rest.strip():
                await self._switch_to(rest.strip())
            case "/invite" if rest.strip():
                await self._invite(rest.strip())
            case "/add" if len(rest.split(None, 1)) == 2:
                await self._add(*rest.split(None, 1))
            case "/discovered":
                await self._show_discovered()
            case "/block" | "/verify" if self._chat.group is not None:
                await self._screen.show([f"{command} is about one peer; see /group"])
            case "/verify":
                await self._verify(rest.strip())
            case "/reply" | "/edit" | "/delete" | "/react":
                await self._act(command, rest.strip())
            case "/file" if rest.strip():
                await self._send_file(rest.strip())
            case "/save":
                await self._save_file(rest.strip())
            case "/last":
                await self._list_messages()
            case "/search" if rest.strip():
                await self._search(rest.strip())
            case "/group":
                await self._group(rest.strip())
            case "/block":
                return await self._block(is_sure=rest.strip() == "yes")
            case "/help":
                await self._screen.show(HELP.splitlines())
            case _:
                text = f"{clean(command)}: unknown command; the commands are:"
                await self._screen.show([text, *HELP.splitlines()])
        return True

    # Commands about messages.

    async def _act(self, command: str, rest: str) -> None:
        """Answer or change one of the last messages."""
        back, text = _place_and_text(rest)
        is_own = command in ("/edit", "/delete")
        latest = self._view.messages.latest(Kind.OUT if is_own else Kind.IN)
        message = next(islice(latest, back - 1, None), None)
        if message is None:
            owner = "yours" if is_own else self._chat.name
            await self._screen.show([f"there is no such message of {owner} here; see /last"])
            return
        match command:
            case "/reply" | "/edit" if not text:
                await self._screen.show([f"{command} needs a text: {command} [-N] TEXT"])
            case "/reply":
                await self._send(text, Action.REPLY, message.uuid)
            case "/edit":
                await self._send(text, Action.EDIT, message.uuid)
            case "/delete" if text:
                await self._screen.show(["/delete takes no text: /delete [-N]"])
            case "/delete":
                await self._send("", Action.DELETE, message.uuid)
            case _:
                action = Action.REACT if text else Action.UNREACT
                await self._send(text, action, message.uuid)

    async def _search(self, query: str) -> None:
        try:
            answer = await self._client.search(query)
        except (DataTooLarge, NotAllowed, Malformed) as error:
            await self._screen.show([f"not searched: {clean(str(error))}"])
            return
        lines = [found_line(each) for each in reversed(answer.found)]
        await self._screen.show([*lines, *end_lines(answer, len(answer.found))])

    async def _list_messages(self) -> None:
        lines = []
        for kind in (Kind.IN, Kind.OUT):
            latest = list(islice(self._view.messages.latest(kind), LISTED))
            for back, message in reversed(list(enumerate(latest, 1))):
                who, state = self._view.who(kind, message.by), ""
                if kind is Kind.OUT and self._chat.group is not None:
                    state = f"   ({self._view.own_state(message.uuid)})"
                lines.append(f"-{back}  {who}: {quoted_message(message)}{state}")
        await self._screen.show(lines or ["no messages are shown here"])

    # Files.

    async def _send_file(self, path: str) -> None:
        uuid = os.urandom(UUID_BYTES)
        try:
            sequence = await send_file(self._client, self._chat, path_of(path), uuid)
        except (NotSent, RuntimeError, Malformed, NotAllowed, UnknownPeer) as error:
            text = f"not sent: {clean(str(error))}"
            if not self._screen.is_interactive:
                raise Failure(text) from error
            await self._screen.show([text])
        else:
            self._sent_to = max(self._sent_to, sequence)
            self._sent_files.add(uuid)

    async def _save_file(self, rest: str) -> None:
        back, path = _place_and_text(rest)
        file = next(islice(self._files.received(), back - 1, None), None)
        if file is None:
            await self._screen.show([f"there is no such file of {self._chat.name} here"])
            return
        try:
            target = path_of(path or ".")
            saved, size = await save_file(self._client, self._chat, file, target)
        except (RequestError, RuntimeError, OSError) as error:
            await self._screen.show([f"not saved: {clean(str(error))}"])
        else:
            await self._screen.show([f"--- saved: {clean(str(saved))} ({size})"])

    async def _save_received(self) -> None:
        """Save the files that have come and are not saved yet."""
        folder = self._options.save_in
        if folder is None:
            return
        for file in reversed(list(self._files.received())):
            if file.sequence < self._saved_from or file.sequence in self._saved:
                continue
            self._saved.add(file.sequence)
            try:
                saved, size = await save_file(self._client, self._chat, file, folder)
            except (RequestError, OSError) as error:
                text = f"not saved: {file.name}: {clean(str(error))}"
                if not isinstance(error, NotFound) or not self._options.stays:
                    raise Failure(text) from error
                print(text, file=sys.stderr)  # deleted a moment ago: others will come
                continue
            print(f"saved: {clean(str(saved))} ({size})", file=sys.stderr)

    async def _report_transfers(self) -> None:
        """Show how far the files are that are on their way."""
        while self._screen.is_interactive:
            await anyio.sleep(POLL_S)
            files = self._files
            if files.are_pending:
                transfers = await self._client.transfers(self._chat)
                if files is self._files:  # and no other conversation is shown by now
                    await self._screen.show(list(files.progress(transfers)))

    # Commands about peers.

    async def _invite(self, name: str) -> None:
        answer = await self._client.invite(name)
        if answer.link is None:
            await self._screen.show([clean(str(answer.error))])
            return
        await self._show_code(answer.link)
        warning = OWN_REACH.get(Reach(answer.reach))
        await self._screen.show(
            [
                answer.link,
                f"--- give this link to {clean(name)} alone: it works once, for 7 days",
                *([f"--- warning: {warning}"] if warning else []),
            ]
        )

    async def _add(self, link: str, name: str) -> None:
        if link.isascii() and link.isdigit():
            if not 0 < int(link[:9]) <= len(self._discovered):
                await self._screen.show([f"there is no node {link[:9]}; see /discovered"])
                return
            card = self._discovered[int(link[:9]) - 1].card
            answer = await self._client.add_card(name.strip(), card)
        else:
            answer = await self._client.accept_invite(link, name.strip())
        if answer.error is not None:
            await self._screen.show([f"not added: {clean(answer.error)}"])
            return
        warning = PEERS_REACH.get(Reach(answer.reach))
        if warning is not None:
            await self._screen.show([f"--- warning: {warning.format(name=clean(name))}"])
        await self._switch_to(name.strip())

    async def _show_discovered(self) -> None:
        try:
            self._discovered = await self._client.discovered()
        except Malformed:
            await self._screen.show(["the node looks for no others: start it with --discover"])
            return
        lines = [
            f"{number}  {clean(each.name or 'unverified')}  {each.words}  {clean(each.address)}"
            for number, each in enumerate(self._discovered, 1)
        ]
        await self._screen.show(lines or ["no other node was found on this network yet"])

    async def _group(self, text: str) -> None:
        lines, turns_to = await groups.run_command(self._client, self._chat, text)
        await self._screen.show(lines)
        if turns_to is not None:
            await self._switch_to(turns_to)

    async def _show_code(self, text: str) -> None:
        rows = qr_lines(text)
        if not await self._screen.show_image(rows, len(rows[0])):
            await self._screen.show([f"--- a window of {len(rows[0])} columns shows a QR code"])

    async def _verify(self, number: str) -> None:
        try:
            if number:
                answer = await self._client.verify(self._chat, number)
                outcome = answer.error or f"{self._chat.name}: {answer.trust}"
                await self._screen.show([f"--- {clean(outcome)}"])
                self._chat = await self._client.chat_with(self._chat.id)
                return
            peer = await self._client.peer(self._chat)
        except UnknownPeer:
            await self._screen.show(["this peer was removed"])
            return
        digits = str(peer.safety_number).split()
        if peer.code:  # of a node that has codes
            await self._show_code(peer.code)
        rows = [" ".join(digits[start : start + 4]) for start in range(0, len(digits), 4)]
        advice = f"{self._chat.name} sees the same number if nobody sits in between. Have it read"
        lines = [*rows, f"--- {advice} to you, and type: /verify followed by what you hear"]
        if peer.code:
            lines.append("--- or have the code above scanned in the peer's page")
        await self._screen.show(lines)

    async def _block(self, *, is_sure: bool) -> bool:
        """Block the peer; False: the dialogue ends with it."""
        if not is_sure:
            text = f"--- {BLOCK_AGAIN} blocks the key of {self._chat.name} for ever"
            await self._screen.show([text])
            return True
        try:
            await self._client.block(self._chat)
        except UnknownPeer:
            await self._screen.show(["this peer was removed"])
            return True
        await self._screen.show([f"--- {self._chat.name} is blocked"])
        return False

    async def _switch_to(self, name: str) -> None:
        try:
            info = await self._client.chat_with(name)
        except Failure as error:
            await self._screen.show([clean(str(error))])
            return
        self._follower.cancel()
        async with self._follow_lock:  # no record of the other peer is shown as one of this peer
            await self._show_conversation(info)

    async def _show_conversation(self, info: ChatInfo) -> None:
        self._chat = info
        names = None if info.group is None else info.group.names
        self._view = ConversationView(info.name, is_accepted=info.accepted, names=names)
        self._files = KnownFiles()
        self._sent_to, self._shown_to = -1, info.tail
        if self._screen.is_interactive:
            await self._screen.show([f"--- {describe(info)}   (/help tells of commands)"])
        await self._screen.prompt(f"{info.name}> ")
        await self._show_history(info)

    async def _send(self, text: str, action: Action | None = None, about: str = "") -> None:
        """Send a message, and wait until the node has stored it."""
        self._unsent, self._unsent_reports = text, 0
        try:
            sequence = await self._client.say(self._chat, text, action, about)
        except NotFound:
            await self._screen.show(["not sent: this message is too old, or was deleted"])
        except (DataTooLarge, EmptyData, NotAllowed, UnknownPeer) as error:
            if not self._screen.is_interactive:
                raise Failure(f"not sent: {error}") from error
            await self._screen.show([f"not sent: {error}"])
        else:
            self._sent_to = max(self._sent_to, sequence)
        finally:
            self._unsent = None

    async def _wait_for_delivery(self) -> int:
        """Wait until the sent messages are delivered."""
        with anyio.move_on_after(self._options.wait_s):
            while self._shown_to <= self._sent_to or self._view.in_flight:
                await self._wait_for_change()
            if self._view.lost:
                raise Failure(f"{self._view.lost} of the messages will not be delivered")
            if self._sent_files:
                await self._wait_for_files()
            failed = list(self._files.not_taken(self._sent_files))
            if failed:
                raise Failure(f"not taken by the peer: {', '.join(failed)}")
            return ExitCode.OK
        text = "not all messages were delivered in time; the node continues to deliver them"
        raise Failure(text, ExitCode.TIMEOUT)

    async def _wait_for_change(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()

    async def _wait_for_files(self) -> None:
        """Wait until no sent file is on its way, and the records that say so are read."""
        while True:
            transfers = await self._client.transfers(self._chat)
            if self._sent_files.isdisjoint(each.uuid for each in transfers):
                break
            await anyio.sleep(REPORT_EVERY_S)
        tail = (await self._client.chat_with(self._chat.id)).tail
        while self._shown_to < tail:
            await self._wait_for_change()

    # The conversation.

    async def _follow_conversations(self) -> None:
        while True:
            async with self._follow_lock:
                with anyio.CancelScope() as self._follower:
                    await self._follow(self._chat)

    async def _follow(self, chat: ChatInfo) -> None:
        async with aclosing(self._client.follow(chat, self._shown_to)) as pages:
            async for page in pages:
                await self._show_records(page)
                for sequence, _ in page[-1:]:
                    self._shown_to = sequence + 1
                    self._changed.set()
                    await self._client.mark_read(chat, sequence)

    async def _show_history(self, chat: ChatInfo) -> None:
        count = self._options.history
        self._saved_from = chat.tail
        if not chat.tail or not (count or chat.unread):
            return
        unread_from = max(chat.read, chat.tail - UNREAD_RECORDS_MAX) if chat.unread else chat.tail
        page = await self._read_history(chat, count, unread_from)
        for sequence, record in page:
            self._files.learn(sequence, record)
        if unread_from > chat.read and chat.unread and self._screen.is_interactive:
            await self._screen.show(["--- what is unread for longest is not shown: see --history"])
        shown = page[first_shown(page, count, unread_from) :]
        self._saved_from = shown[0][0] if shown else chat.tail
        await self._save_received()
        if self._options.as_json:
            await self._show_objects(shown)
        else:
            is_plain = not self._screen.is_interactive
            lines = self._view.history(page, count, unread_from, is_plain=is_plain)
            await self._screen.show(lines)
        await self._client.mark_read(chat, chat.tail - 1)

    async def _read_history(self, chat: ChatInfo, count: int, unread_from: int) -> Page:
        """The last records, with `count` messages among them, or all from `unread_from` on. Of a
        history that has almost nothing but changes of messages, some are read."""
        span = RECORDS_PER_MESSAGE * count
        most = max(UNREAD_RECORDS_MAX, 4 * span)
        while True:
            start = max(0, min(unread_from, chat.tail - span))
            page = await self._client.history(chat, start)
            found = sum(is_message(each) for _, each in page)
            if not start or found >= count or span >= most:
                return page
            span = min(2 * span, most)

    async def _learn_names(self, records: Page) -> None:
        """Learn the names of members that are new in a group."""
        names = self._view.names
        if names is None or all(each.by in names for _, each in records if each.by):
            return
        group = (await self._client.chat_with(self._chat.id)).group
        if group is not None:
            self._view.names = group.names

    async def _show_records(self, records: Page) -> None:
        await self._learn_names(records)
        if self._options.as_json:
            for sequence, record in records:
                self._view.take(record)
                self._files.learn(sequence, record)
            await self._show_objects(records)
            await self._save_received()
            return
        lines: list[str] = []
        for sequence, record in records:
            shown = self._view.take(record) + self._files.learn(sequence, record)
            if self._screen.is_interactive:
                lines += shown
            elif record.kind is Kind.IN and shown:
                lines += self._view.plain(record)
        await self._screen.show(lines)
        await self._save_received()

    async def _show_objects(self, records: Page) -> None:
        who = {"peer": self._chat.name, "id": self._chat.id}
        lines = [
            msgspec.json.encode({**who, "sequence": at, **_told_fields(record)}).decode()
            for at, record in records
            if record.kind is not Kind.HELD
        ]
        await self._screen.show(lines)

    # Notices, and other conversations.

    async def _report_changes(self) -> None:
        while True:
            await anyio.sleep(REPORT_EVERY_S)
            lines = [*self._show_notices(), *self._slow_send_notice()]
            if self._screen.is_interactive:
                await self._screen.show([*lines, *self._view.state_changes()])

    def _show_notices(self) -> Iterator[str]:
        """The notices of the connection; of several attempts to reconnect only the first."""
        for each in self._notices:
            what, *again = clean(each).split("; trying again")
            if not (again and self._is_disconnected):
                yield f"--- {what}"
            self._is_disconnected |= bool(again)
        self._notices.clear()

    def _slow_send_notice(self) -> Iterator[str]:
        """The notice about a message that the node has not stored for a while."""
        self._unsent_reports += 1
        if self._unsent is not None and self._unsent_reports == UNSENT_REPORTS:
            yield f"{CHANGE_INDENT}not kept yet, the node does not answer: {quoted(self._unsent)}"

    async def _tell_typing(self) -> None:
        """Have the peer see that a message is being typed, while the line changes."""
        before = ""
        while self._screen.is_interactive:
            await anyio.sleep(TYPING_EVERY_S)
            draft = self._screen.draft()
            is_message = bool(draft.strip()) and not draft.startswith("/")
            if is_message and draft != before:
                await self._client.typing(self._chat)
            before = draft

    async def _watch_peers(self) -> None:
        """Show changes of presence, and new messages of other peers."""
        if self._screen.is_interactive:
            self._set_completions(await self._client.chats())
        while self._screen.is_interactive:
            await anyio.sleep(POLL_S)
            chats = {each.id: each for each in await self._client.chats()}
            self._set_completions(chats.values())
            # The node has answered: notices of attempts before it are of the outage that is over.
            lines = list(self._show_notices())
            if self._is_disconnected:
                self._is_disconnected = False
                lines.append("--- connected again")
            await self._screen.show(lines)
            now = chats.get(self._chat.id)
            self._view.is_accepted = now is None or now.accepted
            if now is not None:
                writers = "" if now.group is None else f": {', '.join(now.group.typing)}"
                verb = "are" if now.group is not None and len(now.group.typing) > 1 else "is"
                sign = f"{clean(writers)} {verb} typing" if now.typing else ""
                await self._screen.prompt(f"{now.name}{sign}> ")
            if now is not None and now.here != self._chat.here:
                self._chat = now
                await self._screen.show([f"--- {describe(now)}"])
            await self._screen.show(list(self._unread_elsewhere(chats)))

    def _set_completions(self, chats: Iterable[ChatInfo]) -> None:
        self._screen.set_completions([*COMMANDS, *(f"/to {each.name}" for each in chats)])

    def _unread_elsewhere(self, chats: dict[str, ChatInfo]) -> Iterator[str]:
        for id_, chat in chats.items():
            if chat.group is not None and chat.group.status == "invited":
                if id_ not in self._invited:
                    yield f"--- {describe(chat)}   (/to {chat.name})"
                self._invited.add(id_)
            if chat.unread > self._unread.get(id_, 0) and id_ != self._chat.id:
                yield f"--- {chat.name} wrote: {chat.unread} unread   (/to {chat.name})"
            self._unread[id_] = chat.unread


def _place_and_text(rest: str) -> tuple[int, str]:
    """How many messages back, and the text: `-2 TEXT` or `TEXT`."""
    first, _, text = rest.partition(" ")
    digits = first.removeprefix("-")
    if first.startswith("-") and digits.isascii() and digits.isdigit() and len(digits) < 5:
        return max(1, int(digits)), text.strip()
    return 1, rest


def _told_fields(record: Record) -> dict[str, object]:
    """The fields of a record without those that only nodes use."""
    fields: dict[str, object] = msgspec.to_builtins(record)
    return {name: fields[name] for name in fields if name not in ("signed", "targets")}


def describe(chat: ChatInfo) -> str:
    """A conversation in one line: peer, presence, and new messages."""
    if chat.group is not None:
        return groups.describe(chat)
    words = [f"{chat.name} is online" if chat.here else f"{chat.name} is away"]
    seen_at = None if chat.seen_at is None else local_time(round(chat.seen_at * 1000))
    if not chat.here and seen_at is not None:
        words.append(f"since {seen_at:%d %b %H:%M}")
    match chat.trust:
        case Trust.VERIFIED.value:
            words.append("(verified)")
        case Trust.ADDED.value if chat.key_changed:
            words.append("(KEY CHANGED, not verified)")
        case Trust.ADDED.value:
            words.append("(not verified)")
        case other:
            words.append(f"({other})")
    notes = [f"{chat.unread} unread"] if chat.unread else []
    notes += [f"{chat.waiting} of yours wait for a key"] if chat.waiting else []
    return ", ".join((" ".join(words), *notes))
