"""Mistakes in what a node does with messages of other nodes: replays, rights, keys, strangers."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

ATTACKS = "tests/node/outbox/test_attacks.py::"
CONTACT = "tests/node/outbox/test_hostile_contact.py::"
ONE_TIME = "tests/node/outbox/test_one_time_prekeys.py::"
JUMPS = "tests/node/outbox/test_clock_jumps.py::"
REQUESTS = "tests/node/chat/test_message_requests.py::"

PEER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "what was accepted is forgotten with a restart",
        Fault.PEERS,
        "node/peers/peer_store.py",
        "        self.states = self._read_states(path)\n",
        "        self.states = dict(list(self._read_states(path).items())[:0])\n",
        ATTACKS + "test_what_was_read_is_known_after_a_restart",
    ),
    Mutant(
        "every counter is new",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            if status is not ReplayStatus.NEW:\n",
        "            if status is ReplayStatus.OLD:\n",
        ATTACKS + "test_what_was_accepted_and_not_delivered_is_delivered_after_a_restart",
    ),
    Mutant(
        "counters are not in the commit that accepts",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            await self._write([*batch.statements, *states], batch.used_keys)\n",
        "            await self._write(batch.statements, batch.used_keys)\n",
        "tests/node/outbox/test_moves.py::test_what_was_accepted_is_known_after_a_kill_at_once",
    ),
    Mutant(
        "lines that were forgotten are new",
        Fault.PEERS,
        "node/peers/lines.py",
        "ReplayStatus.OLD if content.began <= self.floor else ReplayStatus.NEW\n",
        "ReplayStatus.NEW\n",
        "tests/node/peers/test_lines.py::test_a_line_that_was_forgotten_is_never_known_again",
    ),
    Mutant(
        "no signature is verified",
        Fault.PEERS,
        "node/peers/sealed_message.py",
        "    if not verify(sender, signature, _SIGNED + sha256(bound + encoded).digest()):\n",
        "    if len(signature) != _SIGNATURE_BYTES:\n",
        "tests/node/peers/test_sealed_message.py::test_nobody_signs_for_another",
    ),
    Mutant(
        "a channel inside is for every contact",
        Fault.PEERS,
        "node/outbox/inbound.py",
        (
            "        if not self._context.may_send(opened.sender, channel):\n"
            "            return False\n"
        ),
        "",
        ATTACKS + "test_a_peer_writes_to_its_chat_and_nowhere_else",
    ),
    Mutant(
        "a right to all channels is one to all chats",
        Fault.PEERS,
        "node/access/policy.py",
        '        if is_private(channel) and channel != b"chat/" + peer_id(sender).encode():\n',
        '        if is_private(channel) and not channel.startswith(b"chat/"):\n',
        CONTACT + "test_a_right_to_all_channels_is_none_to_the_chats_of_others",
    ),
    Mutant(
        "every known key is a contact",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        if peer is None or not self._context.book.is_contact(opened.sender):\n",
        "        if peer is None:\n",
        ATTACKS + "test_a_stranger_and_a_revoked_key_write_nowhere",
    ),
    Mutant(
        "the relay's deadline counts",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            until=content.deadline / 1000,\n",
        "            until=float(relayed.deadline),\n",
        ATTACKS + "test_a_message_is_not_read_after_its_deadline",
    ),
    Mutant(
        "late messages are read",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            if opened.until + CLOCKS_APART_S < context.now():\n",
        "            if opened.until + CLOCKS_APART_S < 0:\n",
        ATTACKS + "test_a_message_is_not_read_after_its_deadline",
    ),
    Mutant(
        "a key for one contact opens for all",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        if own is not None and own[0] != opened.sender:\n",
        "        if own is not None and not own[0]:\n",
        ATTACKS + "test_a_key_that_one_peer_was_given_serves_no_other",
    ),
    Mutant(
        "one-time prekeys outlive their message",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        kids = [*used_keys, *one_time.kids_of([*moved, *taken])]\n",
        "        kids = list(used_keys)\n",
        ONE_TIME + "test_a_stolen_disk_opens_no_first_message_that_was_read",
    ),
    Mutant(
        "one-time prekeys are destroyed before their message is in its channel",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            batch.statements += self._context.one_time.used_by(opened.kid, opened.id)\n",
        "            batch.used_keys[opened.kid] = None\n",
        "tests/node/outbox/test_moves.py"
        "::test_a_one_time_prekey_lives_until_its_message_is_in_the_channel",
    ),
    Mutant(
        "a repeated message destroys the key of the first one",
        Fault.PEERS,
        "node/peers/one_time_prekeys.py",
        "        if found is None or found[1].mailbox_id not in (0, mailbox_id):\n",
        "        if found is None:\n",
        ONE_TIME + "test_a_repetition_does_not_destroy_the_key_of_a_message_on_its_way",
    ),
    Mutant(
        "keys end only where new ones are published",
        Fault.PEERS,
        "node/outbox/scheduling.py",
        "                tasks.start_soon(self._destroy_prekeys)\n",
        "",
        ONE_TIME + "test_private_keys_are_destroyed_after_their_time",
    ),
    Mutant(
        "one-time prekeys are handed out twice",
        Fault.PEERS,
        "node/outbox/given_prekeys.py",
        "            found, left = good[:count], good[count:]\n",
        "            found, left = good[:count], good\n",
        "tests/node/peers/test_one_time_prekeys.py::test_no_key_is_handed_out_twice",
    ),
    Mutant(
        "version 1 is used without a key of version 2",
        Fault.PEERS,
        "node/outbox/outbox.py",
        "            prekey = None if self._speaks_v2(peer) else self._prekey_v1(peer, ttl)\n",
        "            prekey = self._prekey_v1(peer, ttl)\n",
        ATTACKS + "test_without_a_key_of_version_2_none_of_version_1_is_used",
    ),
    Mutant(
        "receipts of anybody are believed",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        if peer is None or not self._context.book.is_contact(opened.sender):\n",
        (
            "        if opened.message is not None:\n"
            "            seen = opened.message.content\n"
            "            for each in self._context.book.peers:\n"
            "                self._deliveries.on_seen(each.public, seen.seen, seen.floor)\n"
            "        if peer is None or not self._context.book.is_contact(opened.sender):\n"
        ),
        CONTACT + "test_a_receipt_counts_for_messages_to_its_signer_alone",
    ),
    Mutant(
        "receipts of blocked keys are believed",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        if peer is None or not self._context.book.is_contact(opened.sender):\n",
        (
            "        if opened.message is not None:\n"
            "            seen = opened.message.content\n"
            "            self._deliveries.on_seen(opened.sender, seen.seen, seen.floor)\n"
            "        if peer is None or not self._context.book.is_contact(opened.sender):\n"
        ),
        CONTACT + "test_a_receipt_counts_for_messages_to_its_signer_alone",
    ),
    Mutant(
        "prekeys from the future are learned",
        Fault.PEERS,
        "node/peers/prekey_cache.py",
        "        if not check(prekey, owner) or self._is_ahead(prekey):\n",
        "        if not check(prekey, owner):\n",
        "tests/node/peers/test_prekey_cache.py::test_a_prekey_from_the_future_locks_nobody_out",
    ),
    Mutant(
        "prekeys of anybody are learned",
        Fault.PEERS,
        "node/peers/prekey_cache.py",
        "        if not check(prekey, owner) or self._is_ahead(prekey):\n",
        "        if self._is_ahead(prekey):\n",
        "tests/node/peers/test_prekey_cache.py::test_what_its_owner_did_not_sign_is_not_taken",
    ),
    Mutant(
        "blocked keys make requests",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        is_stranger = peer is None or peer.trust is Trust.PINNED\n",
        "        is_stranger = True\n",
        REQUESTS + "test_blocked_keys_and_relays_make_no_request",
    ),
    Mutant(
        "a request may name any channel",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "Kind.MESSAGE or content.channel != conversation_stream(sender):\n",
        "Kind.MESSAGE:\n",
        REQUESTS + "test_nothing_but_short_texts_for_the_chat_is_kept",
    ),
    Mutant(
        "strangers are kept without the setting",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        is_kept = self.is_on or is_introduced or isinstance(payload, Introduction)\n",
        "        is_kept = True\n",
        REQUESTS + "test_without_the_setting_strangers_are_dropped",
    ),
    Mutant(
        "refused strangers come again",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        is_refused = self._refused.get(sender, 0.0) > now\n",
        "        is_refused = self._refused.get(sender, 0.0) < 0\n",
        REQUESTS + "test_a_refused_stranger_is_forgotten_and_does_not_come_again",
    ),
    Mutant(
        "a refusal that is not stored is forgotten",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        for sender, until in unstored.items():\n",
        "        for sender, until in list(unstored.items())[:0]:\n",
        REQUESTS + "test_a_refusal_holds_where_another_write_fails_before_its_own",
    ),
    Mutant(
        "any number of strangers is kept",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        while len(self._senders) > SENDERS_MAX or self._size() > BYTES_MAX:\n",
        "        while self._size() > BYTES_MAX:\n",
        REQUESTS + "test_the_oldest_leave_for_newer_ones",
    ),
    Mutant(
        "any number of bytes of strangers is kept",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        while len(self._senders) > SENDERS_MAX or self._size() > BYTES_MAX:\n",
        "        while len(self._senders) > SENDERS_MAX:\n",
        REQUESTS + "test_the_oldest_leave_for_newer_ones",
    ),
    Mutant(
        "messages of removed contacts come again",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "        if content.uuid in known or self._was_contact(sender, content):\n",
        "        if content.uuid in known:\n",
        REQUESTS + "test_what_a_removed_contact_has_sent_is_no_request",
    ),
    Mutant(
        "an accepted text has its old idempotency key",
        Fault.PEERS,
        "node/chat/message_requests.py",
        "            for attempt in range(FIRST_ATTEMPT, FIRST_ATTEMPT + KEYS_TRIED_MAX):\n",
        "            for attempt in range(KEYS_TRIED_MAX):\n",
        REQUESTS + "test_an_accepted_one_is_in_the_chat_and_is_told",
    ),
    Mutant(
        "a request that was not stored counts",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "                self._strangers.reload()\n",
        "                pass\n",
        REQUESTS + "test_a_request_that_was_not_stored_comes_again",
    ),
    Mutant(
        "a channel is forgotten while a message may be in it",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            if mark.sender == sender and message_id not in self._moving:",
        "            if mark.sender == sender and message_id in self._moving:",
        "tests/node/outbox/test_moves.py::test_a_channel_stays_known_while_a_message_may_be_in_it",
    ),
    Mutant(
        "a record outlives its move",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        return Move(opened.id, opened.kept_until, self._put_of(opened, attempt))\n",
        (
            "        until = min(opened.kept_until, self._context.now() + 9 * 86_400)\n"
            "        return Move(opened.id, until, self._put_of(opened, attempt))\n"
        ),
        "tests/node/outbox/test_moves.py::test_a_record_does_not_outlive_its_move",
    ),
    Mutant(
        "a long absence loses what was accepted",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        values = (opened.id, sender, content.line, content.counter, opened.kept_until)\n",
        (
            "        until = int(min(opened.kept_until, context.now() + 9 * 86_400))\n"
            "        values = (opened.id, sender, content.line, content.counter, until)\n"
        ),
        "tests/node/outbox/test_moves.py::test_a_message_is_read_however_long_its_node_was_down",
    ),
    Mutant(
        "moves without a record are kept",
        Fault.PEERS,
        "actors/channels/channel.py",
        "                done = set(self.keys.moved).difference(origins)\n",
        "                done = set(self.keys.moved).intersection(())\n",
        (
            "tests/node/outbox/test_moves.py::"
            "test_moves_without_a_record_are_forgotten_with_the_next_message"
        ),
    ),
    Mutant(
        "moves with a record are forgotten",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            origins = {*self._context.unfinished, *self._moved}\n",
        "            origins = {*self._moved}\n",
        (
            "tests/node/outbox/test_moves.py::"
            "test_a_message_is_in_its_channel_once_whenever_the_node_is_killed"
        ),
    ),
    Mutant(
        "any number of messages is on its way into channels",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "            if batch.unfinished[sender] >= UNFINISHED_MAX:\n",
        "            if batch.unfinished[sender] < 0:\n",
        ATTACKS + "test_so_many_messages_of_a_sender_are_on_their_way_into_channels_and_no_more",
    ),
    Mutant(
        "deadlines are of before the jump of the clock",
        Fault.PEERS,
        "node/outbox/outbox.py",
        "            deadline = context.latest() + min(ttl or inf, context.settings.ttl_s)\n",
        "            deadline = context.now() + min(ttl or inf, context.settings.ttl_s)\n",
        JUMPS + "test_a_message_with_little_time_is_read",
    ),
    Mutant(
        "deadlines of a wrong clock stay",
        Fault.PEERS,
        "node/outbox/deliveries.py",
        "int((context.latest() + context.settings.ttl_s) * 1000)),\n",
        "COUNT_MAX),\n",
        JUMPS + "test_a_message_with_the_time_of_a_wrong_clock_expires",
    ),
    Mutant(
        "what is said is of before the jump of the clock",
        Fault.PEERS,
        "node/chat/conversation_task.py",
        "                said_at = int(self._outbox.context.latest() * 1000)\n",
        "                said_at = history.now_ms\n",
        JUMPS + "test_what_is_said_has_the_time_of_the_wall_clock",
    ),
    Mutant(
        "messages of others count as sent here",
        Fault.PEERS,
        "node/outbox/mailbox.py",
        "        if not relayed.hops:\n",
        "        if relayed.hops < 0:\n",
        (
            "tests/node/outbox/test_mailbox_quotas.py::"
            "test_nobody_else_makes_a_relay_report_a_message_as_its_own"
        ),
    ),
    Mutant(
        "messages of version 1 are forgotten before their prekey",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        until = int(context.now() + context.prekeys.lifetime_s)\n",
        "        until = int(context.now() + context.settings.ttl_s + KEPT_BEYOND_TTL_S)\n",
        ATTACKS + "test_a_message_of_version_1_is_known_as_long_as_its_prekey",
    ),
    Mutant(
        "many messages that wait are opened as often as a few",
        Fault.PEERS,
        "node/outbox/inbound.py",
        "        delay_ms = max(LATER_MS, count * LATER_MS_PER_MESSAGE)\n",
        "        delay_ms = max(LATER_MS, count)\n",
        ATTACKS + "test_many_messages_that_wait_are_opened_rarely",
    ),
    Mutant(
        "identities get the numbers of moves",
        Fault.PEERS,
        "actors/channels/subscribers.py",
        "            if isinstance(left, StoredKey) and key < MOVE_KEYS:\n",
        "            if isinstance(left, StoredKey):\n",
        "tests/actors/channels/test_moves.py::test_keys_of_identities_are_forgotten_beside_a_move",
    ),
)
