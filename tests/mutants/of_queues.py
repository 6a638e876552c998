"""Mistakes in queues: pauses, limits, priorities, and schedules."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

CATALOG = "actors/streams/catalogs/channels.py"
DELIVERY = "actors/channels/delivery_modes.py"
BACKLOG = "actors/channels/ranked_backlog.py"
LIMITS = "actors/channels/queue_limits.py"
SETTINGS = "actors/queue_settings.py"
SCHEDULES = "actors/jobs/schedules.py"
FLOWS = "actors/jobs/flows.py"
CHANNEL = "actors/channels/channel.py"
OF_LIMITS = "tests/actors/channels/test_queue_limits.py::"
OF_SETTINGS = "tests/node/jobs/test_queue_settings.py::"
OF_SCHEDULES = "tests/node/jobs/test_schedules.py::"
OF_FLOWS = "tests/actors/jobs/test_flow_cell.py::"
OF_NODE_FLOWS = "tests/node/jobs/test_flows.py::"
OF_FORGOTTEN = "tests/actors/jobs/test_forgotten_schedules.py::"

QUEUE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a pause is not stored",
        Fault.QUEUES,
        CATALOG,
        "            effects.changes.append(MetadataSet(_QUEUE + channel, value))\n",
        "",
        OF_SETTINGS + "test_a_pause_outlives_a_kill",
    ),
    Mutant(
        "a queue hears of its settings with its next start",
        Fault.QUEUES,
        CATALOG,
        """MetadataSet(_QUEUE + channel, value))
            effects.posts += ((channel, QueueSettingsChanged()),)
""",
        "MetadataSet(_QUEUE + channel, value))\n",
        OF_SETTINGS + "test_a_paused_queue_takes_jobs_and_gives_none",
    ),
    Mutant(
        "settings that the disk refused stay in the queue",
        Fault.QUEUES,
        CATALOG,
        "        self.deadline = 0.0 if self._changed else inf\n",
        "        self.deadline = inf\n",
        OF_SETTINGS + "test_what_the_disk_refused_is_undone_and_its_queues_are_told",
    ),
    Mutant(
        "a deleted channel leaves its settings",
        Fault.QUEUES,
        CATALOG,
        "                    self._queues.set(channel, NO_SETTINGS)\n",
        "",
        OF_SETTINGS + "test_the_catalog_has_a_limit_and_forgets_queues_without_settings",
    ),
    Mutant(
        "a paused queue pushes",
        Fault.QUEUES,
        DELIVERY,
        "        if self.is_stopped or self.is_paused:\n",
        "        if self.is_stopped:\n",
        OF_LIMITS + "test_a_pause_holds_back_what_a_limit_would_let_through",
    ),
    Mutant(
        "one job more than the queue allows",
        Fault.QUEUES,
        LIMITS,
        "self.running >= settings.concurrency",
        "self.running > settings.concurrency",
        OF_LIMITS + "test_no_more_jobs_run_than_the_queue_allows",
    ),
    Mutant(
        "a job of a lost connection counts as running",
        Fault.QUEUES,
        DELIVERY,
        """            for message_id in consumer.leases:
                self._end(self._limits, message_id)
""",
        "            pass\n",
        OF_LIMITS + "test_no_more_jobs_run_than_the_queue_allows",
    ),
    Mutant(
        "a parked job waits for ever",
        Fault.QUEUES,
        DELIVERY,
        "            self._ended_keys.add(key)\n",
        "            pass\n",
        OF_LIMITS + "test_of_each_key_so_many_run_and_others_are_not_held_up",
    ),
    Mutant(
        "one parked job of a key goes on where several may",
        Fault.QUEUES,
        BACKLOG,
        """        if key in self._parked:
            self.open_key(key, now)
""",
        "",
        OF_LIMITS + "test_limits_that_are_lifted_let_everything_through",
    ),
    Mutant(
        "waiting counts for nothing",
        Fault.QUEUES,
        BACKLOG,
        "        return ageing_ms << TIME_SHIFT if ageing_ms else STRICT\n",
        "        return STRICT\n",
        OF_LIMITS + "test_a_low_job_gets_older_than_a_high_one_is_important",
    ),
    Mutant(
        "a job that one consumer may not have is lost to the others",
        Fault.QUEUES,
        BACKLOG,
        "                cursors[priority] = message_id\n",
        "                self._waiting.discard(message_id)\n",
        OF_LIMITS + "test_a_job_that_a_consumer_may_not_have_is_for_others",
    ),
    Mutant(
        "a job that nobody may have holds up its key",
        Fault.QUEUES,
        BACKLOG,
        """                cursors[priority] = message_id
                self._pass_over(key, now)
""",
        "                cursors[priority] = message_id\n",
        OF_LIMITS + "test_a_job_that_its_key_let_through_and_nobody_may_have_holds_up_no_other",
    ),
    Mutant(
        "a job that is too late holds up its key",
        Fault.QUEUES,
        BACKLOG,
        """a delay gives it back at its end
                self._pass_over(key, now)
""",
        "a delay gives it back at its end\n",
        OF_LIMITS + "test_a_job_that_its_key_let_through_and_is_late_holds_up_no_other",
    ),
    Mutant(
        "a job that comes back after its start deadline starts",
        Fault.QUEUES,
        BACKLOG,
        " or self.is_late(message_id, now):",
        ":",
        OF_LIMITS + "test_a_job_that_comes_back_unstarted_after_its_time_is_a_dead_letter[back]",
    ),
    Mutant(
        "a job that comes back after its start deadline waits for ever",
        Fault.QUEUES,
        DELIVERY,
        """        if self._options:
            self._await_start(message_id)
""",
        "",
        OF_LIMITS + "test_a_job_that_comes_back_unstarted_after_its_time_is_a_dead_letter[lost]",
    ),
    Mutant(
        "all buckets are looked at whenever one may be full",
        Fault.QUEUES,
        SETTINGS,
        "        if now < max(self._frees_at, self._swept_at + SWEEP_GAP_S):\n",
        "        if now < self._frees_at:\n",
        OF_LIMITS + "test_sweeps_of_a_full_table_keep_a_distance",
    ),
    Mutant(
        "a restart fills the buckets",
        Fault.QUEUES,
        SETTINGS,
        "            0.0 if rate is None else now + rate.tolerance_s,\n",
        "            0.0,\n",
        OF_LIMITS + "test_a_bucket_outlives_the_behaviour_and_has_one_token_after_a_restart",
    ),
    Mutant(
        "buckets of keys without end",
        Fault.QUEUES,
        SETTINGS,
        "            if len(self._key_full_at) >= KEYS_MAX and not self._sweep(now):\n",
        "            if len(self._key_full_at) > 2 * KEYS_MAX and not self._sweep(now):\n",
        OF_LIMITS + "test_the_buckets_of_keys_have_a_limit",
    ),
    Mutant(
        "a job that has started is too late to start",
        Fault.QUEUES,
        DELIVERY,
        "                if message_id in self._buffer and not self.attempts.get(message_id):\n",
        "                if message_id in self._buffer:\n",
        OF_LIMITS + "test_a_job_that_failed_before_its_start_deadline_is_tried_again_after_it",
    ),
    Mutant(
        "a moment is forgotten before its job is stored",
        Fault.QUEUES,
        SCHEDULES,
        "            pending_ms=_ms(moment),\n",
        "            pending_ms=0,\n",
        OF_SCHEDULES + "test_no_moment_is_lost_or_doubled_by_crashes[1-False]",
    ),
    Mutant(
        "a moment that is sent again puts a second job",
        Fault.QUEUES,
        CHANNEL,
        "        outcome = self._put_scheduled(job, now, effects) if stored is None else stored\n",
        "        outcome = self._put_scheduled(job, now, effects)\n",
        OF_SCHEDULES + "test_no_moment_is_lost_or_doubled_by_crashes[1-False]",
    ),
    Mutant(
        "a full queue loses a moment",
        Fault.QUEUES,
        SCHEDULES,
        "    Code.BUFFER_FULL,\n    Code.STORAGE_FAILED,\n",
        "    Code.STORAGE_FAILED,\n",
        OF_SCHEDULES + "test_a_moment_waits_for_room_in_the_queue",
    ),
    Mutant(
        "an interval begins with a job",
        Fault.QUEUES,
        SCHEDULES,
        "    anchor_ms = int(now * 1000)  # rounded up it would be a moment itself\n",
        "    anchor_ms = round(now * 1000)\n",
        OF_FORGOTTEN + "test_an_interval_puts_no_job_at_the_moment_at_which_it_is_put",
    ),
    Mutant(
        "a schedule that is no more stays in the memory of its channel",
        Fault.QUEUES,
        SCHEDULES,
        "gone = [n for n in numbers if not self._is_of(channel, n)]",
        "gone = [n for n in numbers if self._is_of(channel, n)]",
        OF_FORGOTTEN
        + "test_a_channel_asks_for_the_schedules_that_it_remembers_and_forgets_the_others",
    ),
    Mutant(
        "a failure that is told twice fails the next job of its step",
        Fault.QUEUES,
        FLOWS,
        "        if not self._is_former(message):\n",
        "        if True:\n",
        OF_FLOWS + "test_a_failure_that_is_told_twice_does_not_fail_the_next_job_of_its_step",
    ),
    Mutant(
        "the job of a step that is on its way out is taken for the next one",
        Fault.QUEUES,
        FLOWS,
        "        if answer.code in _PASSING or is_former:\n",
        "        if answer.code in _PASSING:\n",
        OF_FLOWS + "test_a_job_on_its_way_out_is_not_taken_for_the_next_one",
    ),
    Mutant(
        "a dead letter that runs again ends no step",
        Fault.QUEUES,
        FLOWS,
        "            return not flow.header.is_cancelled\n",
        "            return False\n",
        OF_FLOWS + "test_a_dead_letter_that_runs_again_ends_its_step",
    ),
    Mutant(
        "a dead letter that is put back is outside of its flow",
        Fault.QUEUES,
        CHANNEL,
        "            if dead.flow_key:  #",
        "            if False:  #",
        OF_NODE_FLOWS + "test_a_dead_letter_that_is_put_back_is_the_job_of_its_step_again",
    ),
    Mutant(
        "results of steps without end",
        Fault.QUEUES,
        FLOWS,
        "            if self._bytes + len(message.data) > RESULTS_MAX:\n",
        "            if False:\n",
        OF_FLOWS + "test_results_have_a_limit_and_their_steps_fail_above_it",
    ),
    Mutant(
        "a cancelled flow wakes without a pause",
        Fault.QUEUES,
        FLOWS,
        "            self._retry_at.pop((flow.number, at), None)\n        for at, status",
        "            pass\n        for at, status",
        OF_FLOWS
        + "test_a_cancelled_flow_whose_channel_does_not_answer_is_asked_again_now_and_then",
    ),
    Mutant(
        "a pending job is not sent again after a restart",
        Fault.QUEUES,
        FLOWS,
        "        self._retry_all()\n        self._check_at = -inf\n",
        "        self._check_at = -inf\n",
        OF_FLOWS + "test_pending_jobs_are_sent_again_after_a_restart_and_flows_go_in_their_time",
    ),
    Mutant(
        "a step that waits is put before the others have ended",
        Fault.QUEUES,
        FLOWS,
        """                case _:
                    state = StepState.WAITING
        return state
""",
        "        return state\n",
        OF_NODE_FLOWS + "test_a_join_sees_the_results_of_its_group_in_their_order",
    ),
    Mutant(
        "a job of a flow is stored each time that it is sent",
        Fault.QUEUES,
        CHANNEL,
        "                attributes.claim(outcome, unique, effects.changes)\n",
        "                pass\n",
        OF_NODE_FLOWS + "test_a_job_that_is_cancelled_or_purged_fails_its_step",
    ),
)
