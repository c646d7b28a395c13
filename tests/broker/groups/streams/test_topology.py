from mainstem.broker.groups.streams.topology import InternalTopic, Subtopology, Topology

READS = Subtopology(subtopology_id="0", source_topics=("lines",), repartition_sink_topics=("by-word",))
COUNTS = Subtopology(
    subtopology_id="1",
    repartition_source_topics=(InternalTopic("by-word"),),
    changelog_topics=(InternalTopic("counts", configs=(("cleanup.policy", "compact"),)),),
)


def test_what_a_topology_needs_and_who_reads_it():
    topology = Topology(3, (READS, COUNTS))
    assert topology.required_topics == {"lines", "by-word", "counts"}
    assert topology.readers() == {"lines": "0", "by-word": "1"}
    assert READS.all_topics == ("lines", "by-word")


def test_the_order_of_the_parts_means_nothing():
    assert Topology(3, (READS, COUNTS)).is_as(Topology(3, (COUNTS, READS)))
    assert not Topology(3, (READS, COUNTS)).is_as(Topology(4, (READS, COUNTS)))
    assert not Topology(3, (READS, COUNTS)).is_as(Topology(3, (READS,)))
