import time

import pytest

from mainstem.broker.groups.streams.configured import MOST_TASKS, InvalidTopology, Status, StatusCode, configured
from mainstem.broker.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology


def part(subtopology_id, *sources, sinks=(), repartition=(), changelogs=(), joined=()):
    return Subtopology(
        subtopology_id=subtopology_id,
        source_topics=sources,
        repartition_sink_topics=sinks,
        repartition_source_topics=tuple(
            InternalTopic(name, partitions) for name, partitions in dict(repartition).items()
        ),
        changelog_topics=tuple(InternalTopic(name) for name in changelogs),
        copartition_groups=joined,
    )


def found(*parts, **topics):
    return configured(Topology(0, parts), topics.get)


def counts(result):
    """Partitions of every internal topic."""
    topics = {}
    for each in result.subtopologies.values():
        topics |= {topic.name: topic.partitions for topic in each.repartition_source_topics + each.changelog_topics}
    return topics


WORDS = (
    part("0", "lines", sinks=("by_word",)),
    part("1", repartition={"by_word": 0}, changelogs=("counts",)),
)


def test_a_part_has_as_many_tasks_as_the_largest_topic_that_it_reads_has_partitions():
    result = found(*WORDS, lines=3, by_word=3, counts=3)
    assert result.is_ready
    assert {name: each.tasks for name, each in result.subtopologies.items()} == {"0": 3, "1": 3}
    assert [each.is_stateful for each in result.subtopologies.values()] == [False, True]
    assert found(part("0", "a", "b"), a=2, b=5).subtopologies["0"].tasks == 5


def test_missing_topics_of_its_own_are_to_be_made():
    result = found(*WORDS, lines=3)
    assert result.missing == (InternalTopic("by_word", 3), InternalTopic("counts", 3))
    assert result.problem == Status(StatusCode.MISSING_INTERNAL_TOPICS, "Internal topics are missing: by_word, counts")
    assert found(*WORDS, lines=3, counts=3).missing == (InternalTopic("by_word", 3),)


def test_without_its_sources_nothing_is_made():
    result = found(part("0", *"dcbae"), e=1)
    assert (result.missing, result.subtopologies) == ((), {})
    assert result.problem == Status(
        StatusCode.MISSING_SOURCE_TOPICS, "Source topics a, b, c and 1 additional topics are missing."
    )


def test_a_topic_of_its_own_may_be_there_with_another_number_of_partitions():
    result = found(*WORDS, lines=3, by_word=3, counts=4)
    assert result.problem == Status(
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic counts has different number of partitions: expected 3, found 4",
    )
    assert result.subtopologies == {}


def test_numbers_go_through_a_chain_of_repartition_topics():
    chain = (
        part("2", repartition={"second": 0}, changelogs=("store",)),
        part("1", repartition={"first": 0}, sinks=("second",)),
        part("0", "lines", sinks=("first",)),
    )
    assert counts(found(*chain, lines=7)) == {"first": 7, "second": 7, "store": 7}


def test_a_long_chain_takes_no_longer_than_its_length():
    """From whichever end it is listed; each part was looked at once for each other one."""
    length = MOST_TASKS // 2
    chain = [part(f"{n:05}", repartition={f"r{n}": 0}, sinks=(f"r{n + 1}",)) for n in range(length)]
    ends = (part("a", "lines", sinks=("r0",)), part("z", repartition={f"r{length}": 0}))
    began = time.monotonic()
    for parts in (chain, chain[::-1]):
        assert len(found(*parts, *ends, lines=1).missing) == length + 1
    assert time.monotonic() - began < 20


def test_tasks_have_a_limit():
    assert found(part("0", "lines"), lines=MOST_TASKS).is_ready
    with pytest.raises(InvalidTopology, match="at most 10000 tasks"):
        found(part("0", "lines"), part("1", "more"), lines=MOST_TASKS, more=1)


def test_a_number_that_the_application_has_given_stays():
    result = found(part("0", "lines", sinks=("r",)), part("1", repartition={"r": 2}, changelogs=("store",)), lines=7)
    assert counts(result) == {"r": 2, "store": 2}


JOINED = (CopartitionGroup(source_topics=(0,), repartition_source_topics=(0,)),)


def test_what_is_joined_with_a_source_has_its_partitions():
    parts = (part("0", "big", sinks=("r",)), part("1", "small", repartition={"r": 0}, joined=JOINED))
    assert counts(found(*parts, big=9, small=4)) == {"r": 4}


def test_a_number_of_its_own_may_not_fit_to_what_it_is_joined_with():
    parts = (part("0", "big", sinks=("r",)), part("1", "small", repartition={"r": 5}, joined=JOINED))
    assert found(*parts, big=9, small=4).problem == Status(
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Number of partitions [5] of repartition topic [r] doesn't match number of partitions [4] of the source topic.",
    )


def test_joined_sources_have_to_be_alike():
    result = found(part("0", "a", "b", joined=(CopartitionGroup((0, 1)),)), a=2, b=3)
    assert result.problem == Status(
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{a=2, b=3}]",
    )


BOTH = (CopartitionGroup(repartition_source_topics=(0, 1)),)


def test_joined_repartition_topics_have_the_most_partitions_of_them():
    parts = (
        part("0", "small", sinks=("r",)),
        part("1", "big", sinks=("s",)),
        part("2", repartition={"r": 0, "s": 0}, joined=BOTH),
    )
    assert counts(found(*parts, small=2, big=6)) == {"r": 6, "s": 6}


@pytest.mark.parametrize(("s", "expected"), [(0, {"r": 3, "s": 3}), (3, {"r": 3, "s": 3}), (4, None)])
def test_joined_repartition_topics_have_the_number_that_one_of_them_was_given(s, expected):
    parts = (part("0", "a", sinks=("r", "s")), part("1", repartition={"r": 3, "s": s}, joined=BOTH))
    result = found(*parts, a=8)
    if expected is None:
        assert result.problem is not None
        assert result.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    else:
        assert counts(result) == expected


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((part("0", repartition={"r": 0}, sinks=("r",)),), "loops in the topology"),
        ((part("0", "lines"), part("1", repartition={"r": 0})), "never used as a sink topic"),
        ((part("0", "lines"), part("1", changelogs=("c",))), "No source topics found for subtopology 1"),
        ((part("0", "lines"), part("0", "lines")), "there twice"),
        ((part("0", "lines", sinks=("r",)), part("1", repartition={"r": -1})), "at least 1"),
        ((part("0", "lines", joined=(CopartitionGroup((1,)),)),), "names one that it has not"),
    ],
)
def test_what_no_topics_could_make_work_is_refused(parts, message):
    with pytest.raises(InvalidTopology, match=message):
        found(*parts, lines=3)


def test_epochs_begin_at_0():
    with pytest.raises(InvalidTopology, match="non-negative"):
        configured(Topology(-1), {}.get)


def test_a_group_of_no_topics_says_nothing():
    assert found(part("0", "lines", joined=(CopartitionGroup(),)), lines=3).is_ready
