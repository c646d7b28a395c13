"""A topic that was deleted and made anew is another one, under the same name and with offsets that look the same."""

import itertools

import pytest

from mainstem.client.errors import UnknownTopic
from mainstem.client.progress import Marker, Written
from mainstem.client.topics import delete, ensure_topic, topic_ids
from mainstem.process.identity import SameTopics, TableMadeAnew, TopicLost

NUMBERS = itertools.count()


@pytest.fixture
def names(log_connection):
    number = next(NUMBERS)
    found = [f"same{number}.{what}" for what in ("orders", "customers", "enriched")]
    for name in found:
        ensure_topic(log_connection, name, 1)
    return found


def make_anew(connection, name):
    delete(connection, [name])
    ensure_topic(connection, name, 1)


def begun(connection, names, marker=None):
    stream, table, output = names
    topics = SameTopics(connection, "enriched", streams=[stream], tables=[table], outputs=[output])
    topics.begin(marker)
    return topics


def marker_of(names, topics, *, read=5, written=True):
    stream, _, output = names
    outputs = {output: {0: Written(3, 1)}} if written else {}
    return Marker(
        "enriched", "1", "uuid", 4, {stream: {stream: {0: read}}}, written=outputs, topics=topics.kept if topics else {}
    )


def test_topics_that_stay_are_passed(log_connection, names):
    topics = begun(log_connection, names)
    topics.check()
    stream, _, output = names
    assert topics.kept == topic_ids(log_connection, [stream, output])
    begun(log_connection, names, marker_of(names, topics)).check()


def test_input_that_was_made_anew_is_refused_in_a_batch_and_at_the_start(log_connection, names):
    """Its first records, up to where the old one had been read, were passed over."""
    topics = begun(log_connection, names)
    make_anew(log_connection, names[0])
    for look in (topics.check, lambda: begun(log_connection, names, marker_of(names, topics))):
        with pytest.raises(TopicLost, match=f"topic {names[0]} was deleted since job enriched has read it") as lost:
            look()
        assert "`mainstem job reprocess enriched --anyway`" in lost.value.hint
    begun(log_connection, names, marker_of(names, topics, read=0)).check()  # nothing was read of it
    begun(log_connection, names, marker_of(names, None)).check()  # of before ids were kept


def test_an_output_that_was_made_anew_is_not_gone_on_with(log_connection, names):
    topics = begun(log_connection, names)
    make_anew(log_connection, names[2])
    for look in (topics.check, lambda: begun(log_connection, names, marker_of(names, topics))):
        with pytest.raises(TopicLost, match=f"topic {names[2]} was deleted with what job enriched has written"):
            look()
    begun(log_connection, names, marker_of(names, topics, written=False)).check()


def test_a_table_that_was_made_anew_starts_the_job_again(log_connection, names):
    """Its new rows were laid over the old ones."""
    topics = begun(log_connection, names)
    make_anew(log_connection, names[1])
    with pytest.raises(TableMadeAnew, match=f"table {names[1]} was deleted, or made anew"):
        topics.check()
    begun(log_connection, names, marker_of(names, topics)).check()


def test_a_topic_that_is_not_there_is_told(log_connection, names):
    delete(log_connection, [names[1]])
    with pytest.raises(UnknownTopic, match=names[1]):
        begun(log_connection, names)
