from mainstem.client.internal import (
    CATALOG,
    HEARTBEATS,
    INTERNAL_TOPICS,
    PROGRESS,
    job_group,
    job_key,
    job_transactional_id,
    source_transactional_id,
)


def test_state_is_compacted_and_history_is_kept_for_ever():
    config = {topic.name: topic.config for topic in INTERNAL_TOPICS}
    assert config[CATALOG]["cleanup.policy"] == "compact"
    assert config[HEARTBEATS]["cleanup.policy"] == "compact"  # that an input has ended holds for ever
    assert (config[PROGRESS]["cleanup.policy"], config[PROGRESS]["retention.ms"]) == ("delete", "-1")


def test_every_version_of_a_job_has_identities_of_its_own():
    assert job_key("enriched", "v2") == "enriched@v2"
    names = {
        function("enriched", version) for function in (job_group, job_transactional_id) for version in ("v1", "v2")
    }
    assert len(names) == 4
    assert source_transactional_id("enriched@v1") not in names
