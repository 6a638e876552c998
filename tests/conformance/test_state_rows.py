"""Rows E, S, C, M, V and T of the State Protocol (docs/reference/state.md), each shown by its
vectors.

The same vectors go through the published class in tests/suites/test_state_npm.py, and through every
protocol of a node in tests/node/state.
"""

from __future__ import annotations

from tests.state.vectors import check, with_row


def shown(row: str) -> None:
    vectors = with_row(row)
    assert vectors, f"no vector shows {row}"
    for vector in vectors:
        check(vector)


def test_state_e_01_every_record_is_a_change_or_a_control_event_or_is_survived() -> None:
    shown("E1")


def test_state_e_02_control_makes_a_control_event() -> None:
    shown("E2")


def test_state_e_03_operation_makes_a_change_event() -> None:
    shown("E3")


def test_state_e_04_producers_give_type_key_operation_and_value() -> None:
    shown("E4")


def test_state_e_05_unknown_fields_are_passed_over() -> None:
    shown("E5")


def test_state_s_01_insert_and_update_set() -> None:
    shown("S1")


def test_state_s_02_correctness_does_not_depend_on_insert_or_update() -> None:
    shown("S2")


def test_state_s_03_the_whole_value_is_replaced() -> None:
    shown("S3")


def test_state_s_04_delete_removes_one_pair() -> None:
    shown("S4")


def test_state_s_05_the_value_of_a_delete_is_ignored() -> None:
    shown("S5")


def test_state_s_06_later_wins() -> None:
    shown("S6")


def test_state_s_07_old_value_means_nothing() -> None:
    shown("S7")


def test_state_s_08_timestamps_order_nothing() -> None:
    shown("S8")


def test_state_s_09_txid_is_carried_without_effect() -> None:
    shown("S9")


def test_state_s_10_type_and_key_are_separate_exact_strings() -> None:
    shown("S10")


def test_state_s_11_null_is_a_value_like_any_other() -> None:
    shown("S11")


def test_state_s_12_a_missing_value_corrupts_nothing() -> None:
    shown("S12")


def test_state_s_13_replay_and_resume_give_the_same() -> None:
    shown("S13")


def test_state_c_01_control_events_change_no_value() -> None:
    shown("C1")


def test_state_c_02_snapshots_and_up_to_date_leave_the_state_as_it_is() -> None:
    shown("C2")


def test_state_c_03_nested_snapshots_are_survived() -> None:
    shown("C3")


def test_state_c_04_an_end_without_a_beginning_is_counted() -> None:
    shown("C4")


def test_state_c_05_up_to_date_follows_the_applied_changes() -> None:
    shown("C5")


def test_state_c_06_a_reset_begins_a_new_epoch() -> None:
    shown("C6")


def test_state_c_07_the_offset_of_a_control_event_is_for_people() -> None:
    shown("C7")


def test_state_m_01_apply() -> None:
    shown("M1")


def test_state_m_02_apply_batch_is_one_by_one() -> None:
    shown("M2")


def test_state_m_03_get() -> None:
    shown("M3")


def test_state_m_04_get_type() -> None:
    shown("M4")


def test_state_m_05_clear_and_types() -> None:
    shown("M5")


def test_state_v_01_one_schema_for_each_type() -> None:
    shown("V1")


def test_state_v_02_producers_validate() -> None:
    shown("V2")


def test_state_v_03_a_value_that_does_not_fit_corrupts_nothing() -> None:
    shown("V3")


def test_state_v_04_a_new_schema_begins_with_a_reset() -> None:
    shown("V4")


def test_state_t_01_order_replay_and_resume() -> None:
    shown("T1")


def test_state_t_02_duplicates_go_before_the_state() -> None:
    shown("T2")
