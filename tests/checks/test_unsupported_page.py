"""Every limit that docs/unsupported.md tells of is held by tests, and these are there."""

import re
from collections import defaultdict

from tests.support.repository import ROOT

SHOWN_BY: dict[str, tuple[str, ...]] = {
    "ElectLeaders, AlterPartitionReassignments": (
        "test_one_node_answers_truthfully",
        "test_the_directory_there_is_takes_what_it_has",
        "test_the_node_is_its_own_quorum",
    ),
    "Delegation tokens": ("test_there_are_no_delegation_tokens",),
    "Security: GSSAPI": (
        "test_a_mechanism_that_is_not_offered_is_answered_with_those_that_are",
        "test_the_name_is_javas_form_of_rfc_2253",
        "test_who_shows_a_certificate_is_its_subject_and_who_shows_none_is_cut_off",
        "test_files_that_do_not_fit_are_told_with_their_names",
        "test_users_made_by_an_admin_client_are_there_after_a_restart",
        "test_time_of_the_processor_and_partitions_have_quotas_too",
        "test_time_in_which_a_coroutine_waits_is_not_counted",
    ),
    "One node and one replica": (
        "test_every_version_names_the_node_and_the_topic",
        "broker/handlers/test_create_topics.py::test_what_is_refused",
        "test_where_the_log_is_told_to_take_them_more_replicas_may_be_asked_for",
        "test_replicas_in_sync_are_set_for_all_brokers_always_and_for_one_never",
        "test_replicas_in_sync_that_there_are_not_hold_up_no_record",
        "test_nothing_is_answered_or_shown_before_the_sync",
        "test_the_durability_of_a_topic_is_visible",
    ),
    "No record is held in memory only": (
        "test_what_is_answered_is_in_its_file_whatever_the_topic_says",
        "test_a_topic_that_trusts_the_page_cache_waits_for_no_sync",
        "test_a_new_partition_that_trusts_the_page_cache_survives_a_kill",
        "test_topics_that_a_power_cut_may_take_records_of_are_named",
        "test_embedded_log.py::test_a_client_writes_and_reads",
    ),
    "Produce takes record batches": ("test_g11_damaged_batches_are_refused",),
    "A batch is looked into": (
        "test_what_cannot_be_decoded_is_refused_and_takes_nothing_offline",
        "test_a_transactional_batch_needs_a_transactional_id",
    ),
    "Timestamps beyond": (
        "test_timestamps_of_another_unit_are_refused_whatever_the_topic_allows",
        "test_timestamps_that_microseconds_cannot_say",
    ),
    "A request has at most 100,000 items": (
        "test_a_request_of_too_many_items_closes_its_connection_with_one_line",
        "test_a_request_has_a_limit_of_items_in_all_arrays_together",
        "test_a_request_has_a_limit_of_topics_and_partitions",
    ),
    "An answer of settings": ("test_who_asks_for_far_more_than_there_is_room_for_is_cut_off_and_nobody_else",),
    "Produce below version 3": (
        "test_g4_produce_is_advertised_from_version_0_though_it_is_served_from_3",
        "test_what_is_no_request_closes_this_connection_only",
        "test_what_is_not_served_is_no_request",
        "test_what_is_not_served_is_not_offered_and_ends_the_connection",
        "test_g1_an_unknown_version_is_answered_in_version_0_with_the_versions_of_this_api",
    ),
    "A topic has at most 10,000 partitions": (
        "test_a_topic_has_so_many_partitions_at_most",
        "test_what_a_request_has_beyond_as_many_as_kafka_makes_at_once_is_refused",
        "broker/handlers/test_create_partitions.py::test_what_is_refused",
        "test_a_null_value_means_the_default",
        "test_a_null_value_of_a_new_topic_means_the_default",
        "broker/handlers/test_incremental_alter_configs.py::test_what_is_refused",
    ),
    "A client that only asks for a topic": (
        "test_a_missing_topic_is_created_where_the_client_allows_it",
        "test_a_topic_in_which_state_is_kept_is_not_made_by_asking",
        "test_where_no_topics_are_made_by_asking_there_are_none",
    ),
    "A Produce may have up to eight batches": (
        "test_several_batches_of_one_partition_lie_behind_each_other",
        "test_a_long_look_into_a_compacted_topics_batches_keeps_their_order",
        "test_a_small_batch_that_unpacks_to_much_is_refused_where_the_topic_looks_inside",
        "test_many_batches_of_one_append_are_not_taken",
        "test_many_batches_of_one_append_are_not_looked_into",
        "test_what_a_batch_unpacks_to_is_bounded_however_large_batches_may_be",
    ),
    "A Produce that names": ("test_a_request_that_names_far_more_partitions_than_there_are_is_refused",),
    "`retention.ms` keeps a segment": ("test_records_without_a_timestamp_stay",),
    "InitProducerId, AddPartitionsToTxn and EndTxn wait": (
        "test_who_takes_a_transactional_id_over_waits_for_the_end_of_its_transaction",
        "test_requests_during_the_end_of_a_transaction_wait_for_it",
        "test_g8_end_txn_ends_it_in_every_version_of_its_range",
    ),
    "`queued.max.requests`": (
        "test_requests_beyond_the_limit_wait_in_the_socket_and_are_answered_later",
        "test_the_limit_of_requests_is_of_one_connection",
    ),
    "There is no protocol for metrics": (
        "test_what_is_not_served_is_not_offered_and_ends_the_connection",
        "test_processes_are_shown_where_the_log_does_not_answer",
        "test_sources_jobs_and_readers_are_shown_with_their_lag",
        "test_who_writes_and_reads_what",
        "broker/handlers/test_describe_log_dirs.py::test_every_version_tells_sizes",
        "test_the_groups_tool_lists_describes_and_shows_the_lag",
        "test_lines_are_json_with_the_process_bound",
    ),
    "ApiVersions finalizes no": ("test_no_metadata_version_is_finalized",),
    "Fetch has no followers": ("test_a_rack_leads_to_no_other_replica",),
    "Share groups: a fetch": (
        "contract/test_share_fetch.py::test_what_is_not_there",
        "test_an_error_names_no_other_leader",
        "test_a_fetch_gets_what_another_member_lets_go_meanwhile",
        "test_by_duration_with_nothing_so_new_begins_at_the_end",
    ),
    "ConsumerGroupHeartbeat: a static member": ("test_a_static_member_joins_again_whose_answer_is_lost",),
    "Regular expressions": (
        "test_nobody_else_waits_while_one_is_read",
        "test_names_in_a_row_may_be_many",
        "broker/handlers/test_list_transactions.py::test_a_pattern_that_is_none",
    ),
    "ListOffsets: tiered storage": (
        "test_special_timestamps_and_the_versions_that_have_them",
        "broker/handlers/test_list_offsets.py::test_errors",
    ),
    "Produce, DeleteRecords, CreatePartitions": ("test_an_internal_topic_is_written_grown_and_deleted_by_nobody",),
    "Settings of the broker come from its start": (
        "test_topics_without_a_value_of_their_own_follow_at_once_and_after_a_crash",
        "test_a_setting_of_the_broker_that_has_no_effect_is_listed_as_one",
        "test_what_has_no_effect_is_kept_and_shown",
        "broker/test_dynamic_settings.py::test_what_is_refused",
    ),
    "DescribeConfigs documents settings": (
        "test_what_a_setting_is_for_is_told_in_the_words_of_the_page_of_settings",
        "test_not_all_of_kafkas_names_are_told_of_the_broker",
        "test_other_resources",
        "test_what_a_group_may_not_have",
        "test_loggers_and_metrics_of_clients_have_nothing_to_set",
    ),
    "Streams groups are as in Kafka": (
        "broker/handlers/test_streams_group_heartbeat.py::test_a_request_that_makes_no_sense_is_told_so",
        "test_the_topology_stays",
        "test_tasks_have_a_limit",
        "test_a_member_joins_and_has_every_task",
        "test_settings_of_streams_groups_are_these_and_none_names_an_assignor",
    ),
    "AddPartitionsToTxn 4–5": (
        "test_the_versions_that_brokers_ask_each_other_in_end_the_connection",
        "test_every_handler_is_listed_with_its_versions",
    ),
    "Topic settings that only make sense": (
        "test_what_has_no_effect_on_a_topic_is_kept_and_shown",
        "test_a_topic_setting_has_an_effect_or_is_listed_as_one_that_has_none",
    ),
    "So are `compression.*.level`": (
        "test_what_has_no_effect_on_a_topic_is_kept_and_shown",
        "test_a_topic_setting_has_an_effect_or_is_listed_as_one_that_has_none",
        "test_what_is_deleted_frees_its_disk_space",
        "test_a_file_that_is_let_go_is_closed_once_nobody_reads_it",
    ),
}
"""How each bullet of the section begins, and what shows that it is so: tests of this name, or of this file and name
where several files have one of it.
"""


def limits() -> list[str]:
    section = (ROOT / "docs" / "unsupported.md").read_text().partition("## Limits of what is served\n")[2]
    return re.findall(r"^- (.*)", section.partition("\n## ")[0], re.MULTILINE)


def places() -> dict[str, list[str]]:
    """The files of each test by its name, below `tests`."""
    found = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE):
            found[name].append(path.relative_to(ROOT / "tests").as_posix())
    return found


def test_every_limit_has_its_tests_and_every_entry_is_a_limit() -> None:
    bullets = limits()
    assert len(bullets) > 20
    assert [each for each in bullets if sum(each.startswith(start) for start in SHOWN_BY) != 1] == []
    assert [start for start in SHOWN_BY if sum(each.startswith(start) for each in bullets) != 1] == []
    assert [start for start, tests in SHOWN_BY.items() if not tests] == []


def test_every_test_that_shows_a_limit_is_the_one_of_its_name() -> None:
    there = places()
    for named in sorted({each for tests in SHOWN_BY.values() for each in tests}):
        path, _, name = named.rpartition("::")
        files = [each for each in there[name] if path in ("", each)]
        assert len(files) == 1, f"{named}: {files or 'there is none'}"
