"""Mistakes in groups: their membership, delivery, receipts and files."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

MEMBERSHIP = "tests/node/chat/groups/test_membership.py::"
CONVERSATION = "tests/node/chat/groups/test_conversation.py::"
GROUPS = "tests/node/chat/groups/test_groups.py::"
FILES = "tests/node/chat/groups/test_group_files.py::"

GROUP_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "every member changes the group",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        (
            "    if author is None or not author.is_admin:\n"
            '        raise BadRecord("its author is no admin")\n'
        ),
        '    if author is None:\n        raise BadRecord("its author is no admin")\n',
        MEMBERSHIP + "test_whoever_is_no_admin_changes_nothing",
    ),
    Mutant(
        "a removal in the other branch of a fork does not count",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "                found |= {key for key, _ in record.members}\n",
        "                found |= {key for key, _ in record.members[:0]}\n",
        MEMBERSHIP + "test_a_fork_is_seen_in_any_order_and_merged_in_none",
    ),
    Mutant(
        "a removed admin removes others by an old record",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "            if record.change is Change.REMOVE and self.is_admin(record.by):\n",
        "            if record.change is Change.REMOVE:\n",
        MEMBERSHIP + "test_a_removed_admin_undoes_nothing_by_an_old_record",
    ),
    Mutant(
        "one acceptance is for all later invitations",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "        statements = self._statements.get((key, member.added), {})\n",
        (
            "        statements: dict[Change, Statement] = {}\n"
            "        for (by, _), of_one in self._statements.items():\n"
            "            statements |= of_one if by == key else {}\n"
        ),
        MEMBERSHIP + "test_a_statement_is_of_its_author_and_for_one_invitation",
    ),
    Mutant(
        "a removed member gets time by saying that it leaves",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "            self._gone[record.by] = msgspec.structs.replace(gone, is_own=True)\n",
        "            self._gone[record.by] = Departure(self.state.epoch + 1, record.at, now)\n",
        MEMBERSHIP + "test_a_removed_member_writes_no_more_because_it_says_that_it_leaves",
    ),
    Mutant(
        "a leave that comes late is for the next invitation as well",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "        elif member is not None and member.added == record.previous:\n",
        "        elif member is not None:\n",
        MEMBERSHIP + "test_a_member_that_was_added_again_is_waited_for_when_its_leave_comes_late",
    ),
    Mutant(
        "messages from before a removal are accepted for ever",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "            is_early = is_before and now <= gone.heard_at + GRACE_S\n",
        "            is_early = is_before\n",
        MEMBERSHIP + "test_messages_of_members_alone_and_of_removed_ones_from_before",
    ),
    Mutant(
        "a restart gives a removed member more time",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "                heard_at = min(now, record.at / 1000) if is_stored else now\n",
        "                heard_at = now\n",
        MEMBERSHIP + "test_a_restart_gives_a_removed_member_no_more_time",
    ),
    Mutant(
        "an admin fills the records, and cannot be removed",
        Fault.GROUPS,
        "node/chat/groups/membership.py",
        "        takes_all = is_stored or self._makes_smaller(record)\n",
        "        takes_all = True\n",
        MEMBERSHIP + "test_an_admin_that_fills_the_records_of_a_group_is_removed",
    ),
    Mutant(
        "records hold one after the other, while others send",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        "                if not added and not refused_count % RECORDS_AT_ONCE:\n",
        "                if not len(taken) % RECORDS_AT_ONCE:\n",
        GROUPS + "test_records_are_verified_in_slices_and_hold_all_at_once",
    ),
    Mutant(
        "a contact invites into a group of others",
        Fault.GROUPS,
        "node/chat/groups/groups.py",
        "        if own is not MemberStatus.INVITED or peer not in membership.active:\n",
        "        if own is not MemberStatus.INVITED:\n",
        GROUPS + "test_only_a_member_that_is_a_contact_invites",
    ),
    Mutant(
        "invitations of one contact keep those of others away",
        Fault.GROUPS,
        "node/chat/groups/groups.py",
        (
            "        return len(waiting) < INVITATIONS_MAX"
            " and of_sender < INVITATIONS_OF_CONTACT_MAX\n"
        ),
        "        return len(waiting) < INVITATIONS_MAX\n",
        GROUPS + "test_invitations_of_one_contact_keep_those_of_others_not_away",
    ),
    Mutant(
        "the group that was left last is forgotten before its members hear of it",
        Fault.GROUPS,
        "node/chat/groups/groups.py",
        "        left.sort(key=lambda each: each.left_at)\n",
        "",
        GROUPS + "test_the_group_that_was_left_last_is_kept_and_its_members_hear_of_it",
    ),
    Mutant(
        "a message that is held is held once more when it comes again",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "        return name in self._seen or name in self._held\n",
        "        return name in self._seen\n",
        CONVERSATION + "test_a_message_of_an_unknown_state_waits_and_is_then_told_of",
    ),
    Mutant(
        "an old message of another member is shown again",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "        if self._hashes.get(number) == received.hash:",
        "        if self._hashes.get(number) == received.signed:",
        CONVERSATION
        + "test_a_member_that_repeats_an_old_message_of_another_one_shows_nothing_twice",
    ),
    Mutant(
        "a message that is stored twice counts twice",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "        if name in self._seen:  # it was stored twice: the first one counts\n",
        "        if not name:\n",
        CONVERSATION + "test_a_message_that_is_stored_twice_counts_once",
    ),
    Mutant(
        "messages wait for no gap of their author",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "        return _Place(is_ready=gap is None, gap=gap)\n\n    def _shown(",
        "        return _Place(is_ready=True, gap=gap)\n\n    def _shown(",
        CONVERSATION + "test_a_gap_is_told_and_what_fills_it_is_late",
    ),
    Mutant(
        "a receipt that comes again is stored again",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        (
            "            if own is None or by in own.read"
            " or (state is State.DELIVERED and by in own.delivered):\n"
        ),
        "            if own is None:\n",
        CONVERSATION + "test_receipts_count_members_once_and_only_for_own_messages",
    ),
    Mutant(
        "members that have a message are sent it again after a restart",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "                outgoing.done |= set(record.members)\n",
        "                outgoing.done |= set(record.members[:0])\n",
        CONVERSATION + "test_receipts_count_members_once_and_only_for_own_messages",
    ),
    Mutant(
        "receipts are not passed on",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        "                is_receipt = isinstance(body, Receipt | FileStatus)\n",
        "                is_receipt = isinstance(body, FileStatus)\n",
        GROUPS + "test_members_that_are_no_contacts_hear_each_other_through_one_between",
    ),
    Mutant(
        "texts are shown whoever has written them",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        (
            "        return self.membership.verdict"
            "(received.message, received.text.at, self._history.now())\n"
        ),
        "        return Verdict.ACCEPT\n",
        GROUPS + "test_one_who_is_no_member_is_passed_on_to_nobody_and_fills_no_history",
    ),
    Mutant(
        "what a stranger sends is passed on",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        "                payload = msgspec.structs.replace(payload, targets=())\n",
        "                payload = msgspec.structs.replace(payload, hops=0)\n",
        GROUPS + "test_one_who_is_no_member_is_passed_on_to_nobody_and_fills_no_history",
    ),
    Mutant(
        "strangers fill the history",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        "        return len(strangers) < HELD_OF_STRANGERS_MAX\n",
        "        return len(strangers) < 10 * HELD_OF_STRANGERS_MAX\n",
        GROUPS + "test_one_who_is_no_member_is_passed_on_to_nobody_and_fills_no_history",
    ),
    Mutant(
        "a member says for another one that it writes",
        Fault.GROUPS,
        "node/chat/groups/group_task.py",
        (
            "            if message.by == peer and is_joined and not self._is_blocked(peer):\n"
            "                self._typing_at[peer] = self._history.now()\n"
        ),
        (
            "            if is_joined and not self._is_blocked(peer):\n"
            "                self._typing_at[message.by] = self._history.now()\n"
        ),
        GROUPS + "test_members_see_who_writes_until_the_message_is_there",
    ),
    Mutant(
        "a removed member fetches files",
        Fault.GROUPS,
        "node/chat/groups/file_transfers.py",
        (
            "        if conversation is None or recipient not in self._membership().active:\n"
            "            return None\n"
            "        found = "
        ),
        "        if conversation is None:\n            return None\n        found = ",
        FILES + "test_a_removed_member_gets_nothing_of_later_files",
    ),
    Mutant(
        "a file stays when its message is deleted",
        Fault.GROUPS,
        "node/chat/groups/conversation.py",
        "            files.drop(name)\n",
        "            files.find(name)\n",
        FILES + "test_a_deleted_message_takes_its_file_with_it_at_all_members",
    ),
    Mutant(
        "a file that all members have stays at relays",
        Fault.GROUPS,
        "node/chat/groups/file_transfers.py",
        "            self._drop_later(stored.root)\n            return CHECK_S\n",
        "            return CHECK_S\n",
        FILES + "test_a_file_leaves_relays_when_its_message_is_deleted_or_all_have_it",
    ),
)
