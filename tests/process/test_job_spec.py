"""What a version of a job is made of."""

from contextlib import closing

import msgspec
import pytest

from mainstem.client.internal import checkpoint_topic
from mainstem.client.topics import ensure_internal_topics, ensure_topic, topic_ids
from mainstem.process.job_spec import sink_of, table_reads, tables_of, topics_of
from mainstem.process.outputs import Quarantine
from mainstem.registry.spark import TopicSchema
from tests.support.job_specs import STATEFUL, STATELESS, spec_of

ROW = '{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}'


@pytest.mark.parametrize("rejects", [False, True])
def test_a_version_writes_its_results_and_has_a_quarantine_where_rows_may_be_rejected(
    log_connection, live_registry, tmp_path, rejects
):
    ensure_internal_topics(log_connection)
    (result,) = STATELESS.results
    analysis = msgspec.structs.replace(STATELESS, results=(msgspec.structs.replace(result, rejects=rejects),))
    spec = spec_of(tmp_path, f"made-{rejects}".lower(), "1", analysis=analysis)
    quarantine = Quarantine(log_connection, live_registry, spec.job, "1", spec.fixed.output)
    with closing(sink_of(spec, log_connection, quarantine, spec.checkpoint)) as sink:
        own = [each.topic for each in spec.results]
        assert [each.topic for each in sink.outputs] == ([*own, quarantine.output.topic] if rejects else own)
    found = topic_ids(log_connection, [f"{spec.fixed.output}.quarantine"])
    assert bool(found) is rejects


@pytest.mark.parametrize("stateful", [False, True])
def test_only_a_state_of_its_own_checkpoint_is_copied_into_the_log(log_connection, live_registry, tmp_path, stateful):
    ensure_internal_topics(log_connection)
    spec = spec_of(tmp_path, f"copied-{stateful}".lower(), "1", analysis=STATEFUL if stateful else STATELESS)
    spec = msgspec.structs.replace(spec, config=msgspec.structs.replace(spec.config, checkpoint_in_log=True))
    quarantine = Quarantine(log_connection, live_registry, spec.job, "1", spec.fixed.output)

    def copies():
        return topic_ids(log_connection, [checkpoint_topic(spec.name, "1")])

    with closing(sink_of(spec, log_connection, quarantine, tmp_path / "of a slice")):
        assert not copies()
    with closing(sink_of(spec, log_connection, quarantine, spec.checkpoint)):
        assert bool(copies()) is stateful


def test_a_version_is_bound_to_its_streams_and_outputs_and_reads_its_tables_anew(log_connection, tmp_path):
    spec = spec_of(tmp_path, "bound", "1", analysis=STATELESS)
    for topic in ("orders", "customers", *spec.fixed.outputs):
        ensure_topic(log_connection, topic, 1)
    topics = topics_of(spec, log_connection)
    topics.begin(None)
    assert set(topics.kept) == {"orders", *spec.fixed.outputs}


def test_what_was_read_of_a_table_is_told_once(log_connection, live_registry, tmp_path):
    spec = spec_of(tmp_path, "joined", "1", analysis=STATELESS)
    ensure_topic(log_connection, "customers", 1)
    schemas = {each.parameter: TopicSchema(each.topic, ROW, 1, {1: ROW}) for each in spec.inputs}
    tables = tables_of(spec, log_connection, live_registry, schemas)
    assert list(tables) == ["c"]
    with closing(tables["c"]) as table:
        table.move()
        assert list(table_reads(tables)) == ["c"]
        assert table_reads(tables) == {}
