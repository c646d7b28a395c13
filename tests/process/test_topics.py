from pathlib import Path

import msgspec
import pytest

from mainstem.client.errors import TopicMismatch
from mainstem.client.topics import alter_config, describe_config, ensure_topic, topic_settings
from mainstem.core.config import BadSetting
from mainstem.process.project import Project, TopicSpec
from mainstem.process.topics import (
    create_topic,
    losses,
    other_settings,
    read_schema,
    register_schema,
    settings_of_topics,
)
from mainstem.registry.client import Registry

SPEC = TopicSpec("made.orders", "stream", (), None, None, 2, {"retention.ms": "7000"}, None)


def test_a_topic_is_made_as_the_project_says(log_connection):
    for _ in range(2):
        assert create_topic(log_connection, SPEC, Path("/p")).partitions == 2
    assert create_topic(log_connection, SPEC, Path("/p"), "made.orders.v2").name == "made.orders.v2"
    assert describe_config(log_connection, "made.orders.v2")["retention.ms"] == "7000"
    more = msgspec.structs.replace(SPEC, partitions=3)
    with pytest.raises(TopicMismatch) as mismatch:
        create_topic(log_connection, more, Path("/p"))
    at = f"--bootstrap {log_connection.bootstrap} --project /p"
    assert f"`mainstem topic delete made.orders {at}` deletes it with its records" in mismatch.value.hint
    with pytest.raises(TopicMismatch) as mismatch:  # a job would go on in the middle of a topic that is empty
        create_topic(log_connection, msgspec.structs.replace(more, producer="totals"), Path("/p"))
    assert "delete" not in mismatch.value.hint


def test_a_topic_that_a_client_made_first_is_told(log_connection):
    """It kept the log's week of retention, and nobody said so."""
    ensure_topic(log_connection, "found.orders", 2)
    ensure_topic(log_connection, "found.made", 1, topic_settings("changelog", {}))
    specs = [
        msgspec.structs.replace(SPEC, name="found.orders", config={}),
        msgspec.structs.replace(SPEC, name="found.made", kind="changelog", config={}),
        msgspec.structs.replace(SPEC, name="found.absent"),
    ]
    project = Project("p", Path("/p"), {}, {}, {spec.name: spec for spec in specs}, {}, (), ())
    [line] = other_settings(log_connection, project, settings_of_topics(log_connection, project))
    assert line.startswith("topic found.orders was made with retention.ms = 604800000, and keeps it")
    assert "the project would have made it with -1" in line
    told = f"`mainstem topic alter found.orders retention.ms=-1 --bootstrap {log_connection.bootstrap}` changes it"
    assert told in line


def test_a_topic_that_a_power_cut_takes_records_from_is_told(log_connection):
    """Only a list of all its settings said so."""
    ensure_topic(log_connection, "lost.altered", 1, {"flush.messages": "1"})
    ensure_topic(log_connection, "lost.mended", 1, {"flush.messages": "1"})
    alter_config(log_connection, "lost.altered", {"flush.messages": "500"})
    declared = {"lost.altered": {}, "lost.mended": {"flush.messages": "1000"}, "lost.new": {"flush.messages": "1000"}}
    specs = {name: msgspec.structs.replace(SPEC, name=name, config=config) for name, config in declared.items()}
    project = Project("p", Path("/p"), {}, {}, specs, {}, (), ())
    for connection, names in ((None, ["mended", "new"]), (log_connection, ["altered", "new"])):
        assert [
            line.split()[1] for line in losses(project, settings_of_topics(connection, project) if connection else {})
        ] == [f"lost.{name}" for name in names]


@pytest.mark.parametrize("setting", [("retenshun.ms", "1"), ("retention.ms", "soon")])
def test_a_setting_that_the_log_refuses_is_named_with_its_file(log_connection, setting):
    """It was "no broker", and tried again for ever."""
    wrong = msgspec.structs.replace(SPEC, name="made.not", config=dict([setting]))
    with pytest.raises(
        BadSetting, match=rf"^/p/mainstem\.toml: \[topics\.made\.not\]: create topic .*: .*{setting[0]}"
    ):
        create_topic(log_connection, wrong, Path("/p"))


def test_the_schema_of_frozen_code_is_named_where_its_user_has_it(registry_url, tmp_path):
    frozen = Project("p", tmp_path / "frozen", {}, {}, {}, {}, (), ())
    file = frozen.directory / "schemas" / "made.avsc"
    file.parent.mkdir(parents=True)
    spec = msgspec.structs.replace(SPEC, name="made.frozen", schema_file=file)
    file.write_text('"string"')
    assert register_schema(Registry(registry_url), frozen, spec, Path("/p")) == "made.frozen-value"
    file.write_text('"int"')
    with pytest.raises(BadSetting, match=r"^/p/schemas/made\.avsc: schema of topic made\.frozen: .*incompatible"):
        register_schema(Registry(registry_url), frozen, spec, Path("/p"))
    file.write_text('"strng"')
    with pytest.raises(
        BadSetting, match=r"^/p/schemas/made\.avsc: schema of topic made\.frozen: /: unknown type 'strng'"
    ):
        read_schema(frozen, spec, Path("/p"))
    file.write_text('{"type": "record", "name": "R", "doc": "\\ud800", "fields": []}')
    with pytest.raises(BadSetting, match=r"^/p/schemas/made\.avsc: schema of topic made\.frozen: /: a text holds"):
        read_schema(frozen, spec, Path("/p"))
