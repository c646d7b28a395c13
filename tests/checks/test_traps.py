"""docs/conformance.md lists the traps of the protocol, and every test that is named for one."""

import re

from tests.support.repository import ROOT

TRAPS = {f"g{number}" for number in range(1, 12)}
FOUND = {
    "UNKNOWN_MEMBER_ID amid a rebalance": {
        "g8_unknown_member_id_is_not_said_to_members_that_stay_in_a_concurrent_rebalance",
        "g8_who_stays_is_known_while_others_come_and_go",
    },
    "aborted records": {"g8_aborted_records_reach_no_reader_of_committed_records"},
    "`max.message.bytes`": {"g8_max_message_bytes_is_enforced"},
    "records without a key": {"g8_a_compacted_topic_refuses_records_without_a_key"},
    "ListOffsets by time": {"g8_g11_a_timestamp_gives_the_exact_record_also_inside_a_compressed_batch"},
    "CreatePartitions with empty lists": {
        "g8_no_topics_at_all",
        "g8_an_empty_list_of_assignments_is_none_at_all",
    },
    "EndTxn": {
        "g8_end_txn_is_offered_in_its_range_and_ends_the_connection_beyond",
        "g8_end_txn_ends_it_in_every_version_of_its_range",
        "g8_end_txn_can_be_repeated_but_not_changed",
    },
    "a rebalance too many": {
        "g8_no_extra_rebalance_when_a_member_exceeds_its_poll_interval",
        "g8_a_member_that_exceeds_its_poll_interval_costs_one_rebalance_and_one_when_it_is_back",
    },
    "APPEND and SUBTRACT": {"g8_append_and_subtract_change_lists"},
}
"""G8 is nine findings: words of each one's row, and the tests that it has at least."""


def table() -> str:
    return (ROOT / "docs" / "conformance.md").read_text().partition("## Traps of the protocol")[2].partition("\n## ")[0]


def named(text: str) -> set[str]:
    return set(re.findall(r"`(g\d+_\w+)`", text))


def written() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def test_(g\d+_\w+)", text, re.MULTILINE)}


def test_each_trap_has_a_test_that_is_named_for_it() -> None:
    assert {re.match(r"g\d+", name)[0] for name in written()} == TRAPS  # type: ignore[index] - each matches


def test_the_table_has_them_all_and_no_other() -> None:
    assert named(table()) == written()


def test_each_of_the_nine_findings_of_g8_has_its_row_and_its_tests() -> None:
    assert len(FOUND) == 9
    rows = [row for row in table().splitlines() if any(name.startswith("g8_") for name in named(row))]
    for words, tests in FOUND.items():
        (row,) = [each for each in rows if words in each.split("|")[2]]
        assert tests <= named(row) & written(), words
    beside = {name for name in written() if name.startswith("g8_")} - set().union(*FOUND.values())
    assert beside == {
        "g8_every_setting_of_a_topic_is_told_with_its_source",
        "g8_metadata_comes_back_to_the_letter",
        "g8_init_producer_id_refuses_a_timeout_above_the_brokers_maximum",
    }
