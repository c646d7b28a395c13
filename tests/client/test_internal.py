from mainstem.client.internal import (
    INTERNAL_TOPICS,
    job_group,
    job_key,
    job_transactional_id,
    source_transactional_id,
)
from mainstem.client.topics import describe_config


def test_nothing_that_we_keep_is_ever_deleted_but_by_a_newer_value(connection):
    """As the log says of the topics that were made: that an input has ended holds for ever."""
    for topic in INTERNAL_TOPICS:
        kept = describe_config(connection, topic.name)
        for_ever = (kept["retention.ms"], kept["retention.bytes"]) == ("-1", "-1")
        assert kept["cleanup.policy"] == "compact" or (kept["cleanup.policy"] == "delete" and for_ever), topic.name


def test_every_version_of_a_job_has_identities_of_its_own():
    assert job_key("enriched", "v2") == "enriched@v2"
    names = {
        function("enriched", version) for function in (job_group, job_transactional_id) for version in ("v1", "v2")
    }
    assert len(names) == 4
    assert source_transactional_id("enriched@v1") not in names
