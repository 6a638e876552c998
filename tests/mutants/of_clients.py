"""Mistakes at the edge of the node: commands, jobs, rules, browsers, memory."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

TRIM = "tests/node/cli/test_stream.py::test_a_trim_beyond_the_tail_is_refused_without_force"
REMOVAL = "tests/node/cli/test_removal.py::"
EXPIRED = "tests/actors/channels/test_expired_dead_letters.py::"
MESSAGES = "tests/node/cli/test_messages.py::"
OWN = "tests/node/test_own_cells.py::"
BROWSERS = "tests/node/http/test_browsers.py::"
BUDGET = "tests/transports/server/test_memory_budget.py::"

CLIENT_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a sequence beyond the tail trims all",
        Fault.TRIMS,
        "node/cli/stream/removal.py",
        'tail, is_beyond, text = f"the tail, {info.tail}", below > info.tail, str(below)',
        'tail, is_beyond, text = f"the tail, {info.tail}", False, str(below)',
        TRIM,
    ),
    Mutant(
        "an id beyond the last one trims all",
        Fault.TRIMS,
        "node/cli/stream/removal.py",
        "            is_beyond = below > Position(last.ms, last.seq + 1)\n",
        "            is_beyond = False\n",
        TRIM,
    ),
    Mutant(
        "no answer is a yes",
        Fault.TRIMS,
        "node/cli/removal.py",
        '    if answer.strip().lower() not in ("y", "yes"):\n',
        '    if answer.strip().lower() not in ("y", "yes", ""):\n',
        REMOVAL + "test_without_consent_nothing_is_removed",
    ),
    Mutant(
        "nobody is asked",
        Fault.TRIMS,
        "node/cli/removal.py",
        "    return not args.yes and sys.stdin is not None and sys.stdin.isatty()\n",
        "    return False\n",
        REMOVAL + "test_without_consent_nothing_is_removed",
    ),
    Mutant(
        "an expired message leaves before its dead letter is stored",
        Fault.JOBS,
        "actors/channels/channel.py",
        "                self._send_dead_letter(row, EXPIRED, now, effects)\n",
        (
            "                self._send_dead_letter(row, EXPIRED, now, effects)\n"
            "                self.remove(row.id, effects)\n"
        ),
        EXPIRED + "test_p2p_14_while_its_dead_letter_channel_is_full_it_is_not_visible",
    ),
    Mutant(
        "a refused dead letter counts as stored",
        Fault.JOBS,
        "actors/channels/channel.py",
        "effects, 0, origin\n            ):\n                return\n",
        "effects, 0, origin\n            ):\n                pass\n",
        EXPIRED + "test_p2p_14_while_its_dead_letter_channel_is_full_it_is_not_visible",
    ),
    Mutant(
        "raw output ends with a newline",
        Fault.RAW,
        "node/cli/commands/recv.py",
        '        return data if is_raw else data + b"\\n"\n',
        '        return data + b"\\n"\n',
        MESSAGES + "test_bytes_come_back_as_they_went_in",
    ),
    Mutant(
        "get ends with a newline",
        Fault.RAW,
        "node/cli/commands/inspect.py",
        '        await output.write(data if output.is_raw else data + b"\\n")\n',
        '        await output.write(data + b"\\n")\n',
        MESSAGES + "test_bytes_come_back_as_they_went_in",
    ),
    Mutant(
        "a file gets a newline",
        Fault.RAW,
        "node/cli/byte_output.py",
        "not args.json and (args.raw or args.file is not None)",
        "not args.json and args.raw",
        MESSAGES + "test_bytes_come_back_as_they_went_in",
    ),
    Mutant(
        "the older content of a file stays behind",
        Fault.RAW,
        "node/cli/byte_output.py",
        "os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC",
        "os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC",
        MESSAGES + "test_bytes_come_back_as_they_went_in",
    ),
    Mutant(
        "rules match catalogs",
        Fault.RULES,
        "actors/streams/names.py",
        "    return stream_of(cell) if found is None else qualified_name(*found)\n",
        "    name = stream_of(cell) if found is None else qualified_name(*found)\n"
        "    return cell if name is None else name\n",
        OWN + "test_no_rule_for_streams_is_for_catalogs",
    ),
    Mutant(
        "rules match mailboxes",
        Fault.RULES,
        "node/outbox/mailbox.py",
        "    return None if owner_of(channel) is not None else channel\n",
        "    return channel\n",
        OWN + "test_no_rule_for_channels_is_for_mailboxes",
    ),
    Mutant(
        "dead letters follow a rule of their own",
        Fault.RULES,
        "node/node.py",
        "self._channel_rules.durability(rule_name_of(cell.removesuffix(DEAD_SUFFIX)))",
        "self._channel_rules.durability(rule_name_of(cell))",
        OWN + "test_a_rule_for_a_channel_is_for_its_dead_letters",
    ),
    Mutant(
        "any Host is the node's",
        Fault.BROWSERS,
        "transports/browser_policy.py",
        "        if len(host) > HOST_BYTES_MAX or (host and not self._is_own_host(host)):\n",
        "        if len(host) > HOST_BYTES_MAX:\n",
        BROWSERS + "test_only_own_hosts_and_admitted_origins_reach_an_api",
    ),
    Mutant(
        "any Origin may use the node",
        Fault.BROWSERS,
        "transports/browser_policy.py",
        "        if origins and not _is_same(origins[0], host):\n",
        "        if origins and not host:\n",
        BROWSERS + "test_refused_requests_change_nothing",
    ),
    Mutant(
        "images and links of other sites reach the node",
        Fault.BROWSERS,
        "transports/browser_policy.py",
        "        return BrowserRefusal.CROSS_SITE\n",
        "        return None\n",
        BROWSERS + "test_only_own_hosts_and_admitted_origins_reach_an_api",
    ),
    Mutant(
        "the form of a page is JSON",
        Fault.BROWSERS,
        "transports/http/s2/context.py",
        '        if not is_json(self.header(b"content-type")):\n',
        '        if body and self.header(b"content-type") is None:\n',
        BROWSERS + "test_bodies_that_a_form_can_send_change_nothing",
    ),
    Mutant(
        "pages of the WebSocket listener are for all hosts",
        Fault.BROWSERS,
        "transports/websocket/http_pages.py",
        "        check_browser(policy, request.all_of, is_page_visit=_is_page_visit(request))\n",
        "",
        BROWSERS + "test_the_websocket_listener_checks_every_path_alike",
    ),
    Mutant(
        "a page may take the bytes of the budget twice",
        Fault.MEMORY,
        "transports/server/memory_budget.py",
        "        if taken_bytes > self._bytes_max - self._reads_bytes:\n            return False\n",
        "",
        BUDGET + "test_what_fits_is_let_in_and_what_does_not_waits_for_others_to_finish",
    ),
    Mutant(
        "one client may take all",
        Fault.MEMORY,
        "transports/server/memory_budget.py",
        "        return held + size_bytes <= settings.principal_bytes_max\n",
        "        return True\n",
        BUDGET + "test_a_connection_and_a_principal_have_shares",
    ),
    Mutant(
        "what does not move stays",
        Fault.MEMORY,
        "transports/server/memory_budget.py",
        "            self._close_stalled(now)\n",
        "",
        BUDGET + "test_the_largest_connection_that_does_not_move_is_closed_first",
    ),
    Mutant(
        "the overrun has no end",
        Fault.MEMORY,
        "transports/server/memory_budget.py",
        "            self._close_worst(now)\n",
        "            pass\n",
        BUDGET + "test_above_the_overrun_connections_are_closed_at_once",
    ),
    Mutant(
        "half requests are read on without memory",
        Fault.MEMORY,
        "transports/server/pipelined.py",
        "        if account.has_room(READ_BYTES, now) or self._waiter is not None:\n",
        "        if account.held_bytes:\n",
        "tests/attacks/test_memory.py::test_an_attack_takes_no_more_memory_than_the_budget"
        "[RustLog: 60 half frames of 10 MiB]",
    ),
    Mutant(
        "all packets of a read are handled at once",
        Fault.MEMORY,
        "transports/p2p/connection.py",
        "TURN_PACKETS_MAX = 512\n",
        "TURN_PACKETS_MAX = 2**60\n",
        "tests/transports/p2p/test_connection.py"
        "::test_small_packets_of_one_read_are_handled_in_turns[bare-tcp]",
    ),
    Mutant(
        "long answers that need no stream are made as short ones",
        Fault.MEMORY,
        "transports/server/pipelined.py",
        "        self._pass_requests += len(data) // ANSWER_BYTES\n",
        "",
        "tests/transports/rustlog/test_flow.py"
        "::test_answers_that_need_no_stream_are_written_as_they_are_made",
    ),
    Mutant(
        "the end of a move is lost where a channel is built anew",
        Fault.JOBS,
        "actors/channels/channel.py",
        "            self.tee.withhold_posts(handover.posts)\n",
        "",
        "tests/actors/channels/test_tee.py::TestCommits"
        "::test_a_dead_letter_is_no_move_any_more_where_its_channel_was_built_anew",
    ),
)
