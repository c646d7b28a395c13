"""Kafka's own decoder reads what our coordinators store."""

import asyncio
import re
from pathlib import Path

import mainstem
from mainstem.broker.groups.share.persister import STATE_TOPIC
from mainstem.broker.groups.share.records import PartitionKey
from mainstem.broker.groups.share.state import Change, RecordState, ShareState, StateBatch
from mainstem.core import ManualClock
from tests.support import kafka_tools
from tests.support.broker import running
from tests.support.raw import RawClient, producer_of
from tests.support.streams_groups import HEARTBEAT, a_part, a_topic, a_topology, joins, lives, reports

SUBSCRIPTION = b"\0\0\0\0\0\1\0\5facts\xff\xff\xff\xff"
ASSIGNMENT = b"\0\0\0\0\0\1\0\5facts\0\0\0\1\0\0\0\0\xff\xff\xff\xff"


def dump(data: Path, topic: str, decoder: str) -> str:
    files = [path for path in sorted(data.rglob("*.log")) if path.parent.name.startswith(topic) and path.stat().st_size]
    return kafka_tools.run("kafka-dump-log", "--files", ",".join(map(str, files)), decoder, "--deep-iteration").stdout


def test_kafka_dump_log_decodes_groups_offsets_and_transactions(tmp_path: Path) -> None:
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("facts")
        producer = producer_of(raw.init("t", version=5))
        raw.produce("facts", b"v", transactional_id="t", producer=producer, sequence=0, version=12)
        raw.commit_in_transaction("t", producer, "g", "facts", 5, version=5)
        raw.end("t", producer, commit=True, version=5)
        entry = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_metadata": "mé",
            "committed_leader_epoch": 2,
        }
        raw.call(8, 8, group_id="h", topics=[{"name": "facts", "partitions": [entry]}])
        member = raw.call(
            11,
            3,
            group_id="m",
            session_timeout=10_000,
            rebalance_timeout=20_000,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
        ).member_id
        assignments = [{"member_id": member, "assignment": ASSIGNMENT}]
        raw.call(14, 3, group_id="m", generation_id=1, member_id=member, assignments=assignments)
        raw.call(42, 2, groups_names=["h"])

    offsets = dump(tmp_path, "__consumer_offsets", "--offsets-decoder")
    assert '"offset":7,"leaderEpoch":2,"metadata":"mé"' in offsets
    assert re.search(r'"group":"h","topic":"facts","partition":0}} payload: <DELETE>', offsets)
    assert '"subscription":{"topics":["facts"],"userData":null}' in offsets
    assert '"assignment":{"assignedPartitions":[{"topic":"facts","partitions":[0]}]' in offsets
    assert re.search(r'"group":"g".*"offset":5', offsets)
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in offsets

    transactions = dump(tmp_path, "__transaction_state", "--transaction-log-decoder")
    states = re.findall(r'"transactionalId":"t".*?"transactionStatus":(\d)', transactions)
    assert states == ["0", "1", "1", "2", "4"], "Empty, two implicit adds, PrepareCommit, CompleteCommit"
    assert '"clientTransactionVersion":2' in transactions
    for said in (offsets, transactions):
        assert "isvalid: false" not in said


def test_kafka_dump_log_decodes_groups_of_the_consumer_protocol(tmp_path: Path) -> None:
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("facts", 2)
        full = {"group_id": "g", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": []}
        raw.call(68, 1, **full, member_id="a", subscribed_topic_names=["facts"], instance_id="i", rack_id="r")
        raw.call(68, 1, **full, member_id="b", subscribed_topic_names=None, subscribed_topic_regex="fa.*")
        raw.call(
            11,
            3,
            group_id="g",
            session_timeout=10_000,
            rebalance_timeout=20_000,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
        )
        raw.call(68, 1, group_id="g", member_id="b", member_epoch=-1)
    said = dump(tmp_path, "__consumer_offsets", "--offsets-decoder")
    for key in (3, 5, 6, 7, 8, 16):
        assert re.search(rf'key: {{"type":"?{key}"?,"data":{{"groupId":"g"', said), key
    assert re.search(r'"epoch":2,"metadataHash":-?\d+', said)
    assert '"instanceId":"i","rackId":"r","clientId":"raw"' in said
    assert '"subscribedTopicNames":["facts"],"subscribedTopicRegex":""' in said
    assert '"classicMemberMetadata":{"sessionTimeoutMs":10000,"supportedProtocols":[{"name":"range"' in said
    assert re.search(r'"assignmentEpoch":2,"assignmentTimestamp":\d+', said)
    assert re.search(r'"memberEpoch":2,"previousMemberEpoch":0,"state":0,"assignedPartitions":\[{"topicId"', said)
    assert '"partitions":[0,1],"assignmentEpochs":[2,2]' in said
    assert re.search(r'"regularExpression":"fa\.\*".*"topics":\["facts"\]', said)
    assert re.search(r'"memberId":"b"}} payload: <DELETE>', said)
    assert "Error" not in said
    assert "isvalid: false" not in said


def test_kafka_dump_log_decodes_share_groups(tmp_path: Path) -> None:
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        raw.create_topic("facts", 2)
        full = {"group_id": "g", "member_epoch": 0, "subscribed_topic_names": ["facts"]}
        raw.call(76, 1, **full, member_id="a", rack_id="r")
        raw.call(76, 1, **full, member_id="b")
        raw.call(76, 1, group_id="g", member_id="b", member_epoch=-1)
    said = dump(tmp_path, "__consumer_offsets", "--offsets-decoder")
    for key in range(10, 16):
        assert re.search(rf'key: {{"type":"?{key}"?,"data":{{"groupId":"g"', said), key
    assert re.search(r'"epoch":2,"metadataHash":-?\d+', said)
    assert '"rackId":"r","clientId":"raw"' in said
    assert '"subscribedTopicNames":["facts"]' in said
    assert re.search(r'"assignmentEpoch":2,"assignmentTimestamp":\d+', said)
    assert re.search(r'"memberEpoch":2,"previousMemberEpoch":0,"state":0,"assignedPartitions":\[{"topicId"', said)
    assert re.search(r'"initializedTopics":\[{"topicId":"[^"]+","topicName":"facts","partitions":\[0,1\]}\]', said)
    assert re.search(r'"memberId":"b"}} payload: <DELETE>', said)
    assert "Error" not in said
    assert "isvalid: false" not in said


def test_kafka_dump_log_decodes_states_of_share_partitions(tmp_path: Path) -> None:
    async def story() -> str:
        async with running(tmp_path, ManualClock()) as broker:
            topic = await broker.topics.create("facts", 1, {})
            key, persister = PartitionKey("g", topic.topic_id, 0), broker.groups.share.persister
            await persister.set(key, ShareState(start_offset=5, state_epoch=2))
            change = Change(7, 3, (StateBatch(9, 11, RecordState.ACKNOWLEDGED, 1),))
            await persister.update(key, change, state_epoch=2, leader_epoch=4)
            await persister.delete([key])
        return dump(tmp_path, STATE_TOPIC, "--share-group-state-decoder")

    said = asyncio.run(story())
    assert re.search(r'"type":"?0"?,"data":{"groupId":"g","topicId":"[\w-]+","partition":0}', said)
    assert '"snapshotEpoch":0,"stateEpoch":2,"leaderEpoch":0,"startOffset":5,"deliveryCompleteCount":0,"createT' in said
    assert '"snapshotEpoch":0,"leaderEpoch":4,"startOffset":7,"deliveryCompleteCount":3' in said
    assert '"firstOffset":9,"lastOffset":11,"deliveryState":2,"deliveryCount":1' in said
    assert re.search(r'"type":"?0"?,.* payload: <DELETE>', said)
    assert "isvalid: false" not in said


def test_kafka_dump_log_decodes_streams_groups(tmp_path: Path) -> None:
    with mainstem.embedded(tmp_path) as log, RawClient(log.bootstrap) as raw:
        for name in ("lines", "by-word", "counts"):
            raw.create_topic(name, 2)
        compacted = [{"key": "cleanup.policy", "value": "compact"}]
        group = {"source_topics": [0], "source_topic_regex": [], "repartition_source_topics": []}
        topology = a_topology(
            a_part("0", "lines", repartition_sink_topics=["by-word"], copartition_groups=[group]),
            a_part(
                "1",
                repartition_source_topics=[a_topic("by-word", 2)],
                state_changelog_topics=[a_topic("counts", topic_configs=compacted)],
            ),
        )
        who = {
            "rack_id": "r",
            "user_endpoint": {"host": "here", "port": 65_535},
            "client_tags": [{"key": "zone", "value": "z"}],
        }
        raw.call(HEARTBEAT, 0, **joins("g", "a", topology, **who))
        raw.call(HEARTBEAT, 0, **joins("g", "b", topology))
        raw.call(HEARTBEAT, 0, **lives("g", "a", 2, **reports({"0": [0, 1], "1": [0, 1]})))
        raw.call(HEARTBEAT, 0, **lives("g", "b", -1))
    said = dump(tmp_path, "__consumer_offsets", "--offsets-decoder")
    for key in (17, 19, 20, 21, 22, 23):
        assert re.search(rf'key: {{"type":"?{key}"?,"data":{{"groupId":"g"', said), key
    assert re.search(
        r'"epoch":2,"metadataHash":-?\d+,"validatedTopologyEpoch":0,'
        r'"lastAssignmentConfigs":\[{"key":"num.standby.replicas","value":"0"}\]',
        said,
    )
    assert '"instanceId":null,"rackId":"r","clientId":"raw"' in said
    assert '"rebalanceTimeoutMs":60000,"topologyEpoch":0,"processId":"a"' in said
    assert '"userEndpoint":{"host":"here","port":65535},"clientTags":[{"key":"zone","value":"z"}]' in said
    assert re.search(r'"assignmentEpoch":2,"assignmentTimestamp":\d+', said)
    assert '"activeTasks":[{"subtopologyId":"0","partitions":[0,1]},{"subtopologyId":"1","partitions":[0,1]}]' in said
    assert '"memberEpoch":2,"previousMemberEpoch":0,"state":1' in said
    assert '"subtopologyId":"0","partitions":[0,1],"assignmentEpochs":[2,2]' in said
    assert re.search(r'"state":2,.*"activeTasksPendingRevocation":\[{"subtopologyId":"[01]"', said)
    assert '"sourceTopics":["lines"],"sourceTopicRegex":[],"stateChangelogTopics":[],"repartitionSinkTopics":' in said
    assert '"copartitionGroups":[{"sourceTopics":[0],"sourceTopicRegex":[],"repartitionSourceTopics":[]}]' in said
    assert '"name":"counts","partitions":0,"replicationFactor":0,"topicConfigs":[{"key":"cleanup.policy"' in said
    assert re.search(r'"memberId":"b"}} payload: <DELETE>', said)
    assert "Error" not in said
    assert "isvalid: false" not in said
