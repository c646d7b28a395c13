"""Tools that write and read records."""

import json

from conformance.tools.kit import Tools, found, rows

FROM_THE_START = ("--from-beginning", "--timeout-ms", "30000")


def console_brings_keys_headers_and_nulls(tools: Tools) -> None:
    topic = tools.topic()
    reader = ("parse.key=true", "parse.headers=true", "null.marker=NULL", "key.separator=:")
    tools.run(
        "kafka-console-producer",
        *("--topic", topic, *(part for one in reader for part in ("--reader-property", one))),
        stdin="h1:v1,h2:v2\tk1:one\nh1:x\tk2:NULL\nNULL\tNULL:three\n",
    )
    formatter = (
        "print.key=true",
        "print.headers=true",
        "print.partition=true",
        "print.offset=true",
        "null.literal=NIL",
    )
    read = tools.run(
        "kafka-console-consumer",
        *("--topic", topic, *FROM_THE_START, "--max-messages", "3"),
        *(part for one in formatter for part in ("--formatter-property", one)),
    )
    assert [line.split("\t") for line in read.splitlines()] == [
        ["Partition:0", "Offset:0", "h1:v1,h2:v2", "k1", "one"],
        ["Partition:0", "Offset:1", "h1:x", "k2", "NIL"],
        ["Partition:0", "Offset:2", "NO_HEADERS", "NIL", "three"],
    ], read


def console_writes_with_every_compression(tools: Tools) -> None:
    topic = tools.topic()
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for codec in codecs:
        tools.run("kafka-console-producer", "--topic", topic, "--compression-codec", codec, stdin=f"{codec}\n" * 3)
    read = tools.run("kafka-console-consumer", "--topic", topic, *FROM_THE_START, "--max-messages", "15")
    assert read.split() == [codec for codec in codecs for _ in range(3)], read


def console_reads_one_partition_from_an_offset(tools: Tools) -> None:
    topic = tools.topic(partitions=2)
    tools.produce(topic, "a", "b", "c", partition=1)
    consumer = ("kafka-console-consumer", "--topic", topic, "--timeout-ms", "30000")
    read = tools.run(*consumer, "--partition", "1", "--offset", "1", "--max-messages", "2")
    assert read.split() == ["b", "c"], read
    stamped = tools.run(
        *consumer,
        "--partition",
        "1",
        "--offset",
        "earliest",
        "--max-messages",
        "1",
        "--formatter-property",
        "print.timestamp=true",
    )
    found(r"^CreateTime:\d{13}\ta$", stamped)


def console_goes_on_in_a_group_of_either_protocol(tools: Tools) -> None:
    topic = tools.topic()
    tools.produce(topic, "a", "b", "c", "d")
    for protocol in ("classic", "consumer"):
        group = (
            "--topic",
            topic,
            "--group",
            f"{tools.name}-{protocol}",
            "--command-property",
            f"group.protocol={protocol}",
        )
        for values in (["a", "b"], ["c", "d"]):
            read = tools.run("kafka-console-consumer", *group, *FROM_THE_START, "--max-messages", "2")
            assert read.split() == values, f"{protocol}: {read}"


def console_reads_topics_by_a_pattern(tools: Tools) -> None:
    for number in range(2):
        tools.produce(tools.topic(f"{tools.name}-{number}"), f"of {number}")
    tools.produce(tools.topic(f"{tools.name}-x"), "of x")
    read = tools.run(
        "kafka-console-consumer", "--include", f"{tools.name}-[0-9]", *FROM_THE_START, "--max-messages", "2"
    )
    assert sorted(read.splitlines()) == ["of 0", "of 1"], read


def console_reads_committed_records_only(tools: Tools) -> None:
    topic, producer = tools.topic(), tools.transactional()
    producer.init_transactions(30)
    for value in ("committed", "aborted", "open"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        if value == "committed":
            producer.commit_transaction(30)
        elif value == "aborted":
            producer.abort_transaction(30)
    consumer = ("kafka-console-consumer", "--topic", topic, "--from-beginning", "--timeout-ms", "8000")
    read = tools.run(*consumer, "--isolation-level", "read_committed")
    assert read.split() == ["committed"], read
    read = tools.run(*consumer, "--isolation-level", "read_uncommitted")
    assert read.split() == ["committed", "aborted", "open"], read
    producer.abort_transaction(30)


def console_is_refused_a_record_that_is_too_large(tools: Tools) -> None:
    topic = tools.topic(max_message_bytes="1000")
    said = tools.says("kafka-console-producer", "--topic", topic, stdin="x" * 5000 + "\n")
    found("RecordTooLargeException", said)


def a_producer_checks_what_was_acknowledged_and_a_consumer_what_it_reads(tools: Tools) -> None:
    topic = tools.topic(partitions=2)
    said = tools.run("kafka-verifiable-producer", "--topic", topic, "--max-messages", "1000", "--acks", "-1")
    summary = json.loads(said.splitlines()[-1])
    assert (summary["name"], summary["sent"], summary["acked"]) == ("tool_data", 1000, 1000), summary
    for protocol in ("CLASSIC", "CONSUMER"):
        said = tools.run(
            "kafka-verifiable-consumer",
            *("--topic", topic, "--group-id", f"{tools.name}-{protocol}", "--group-protocol", protocol),
            *("--max-messages", "1000", "--reset-policy", "earliest"),
        )
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
        assert consumed == 1000, f"{protocol}: {consumed} of 1000"
        commits = [event for event in events if event["name"] == "offsets_committed"]
        assert commits, f"{protocol}: it has committed nothing"
        assert all(event["success"] for event in commits), commits
        last = {one["partition"]: one["offset"] for event in commits for one in event["offsets"]}
        assert sum(last.values()) == 1000, f"{protocol}: committed {last}"


def speed_is_measured(tools: Tools) -> None:
    topic = tools.topic(partitions=3)
    written = ("--topic", topic, "--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    said = tools.run("kafka-producer-perf-test", *written, "--command-property", "acks=all", "compression.type=lz4")
    found(r"^20000 records sent, [\d.]+ records/sec", said)
    said = tools.run(
        "kafka-producer-perf-test", *written, "--transactional-id", tools.name, "--transaction-duration-ms", "100"
    )
    found(r"^20000 records sent", said)
    read = ("--topic", topic, "--num-records", "40000", "--timeout", "30000")
    for more in (
        (),
        ("--command-property", "isolation.level=read_committed"),
        ("--command-property", "group.protocol=consumer"),
    ):
        said = tools.run("kafka-consumer-perf-test", *read, *more, "--group", f"{tools.name}-{len(' '.join(more))}")
        found(r", 40000, ", said)
    said = tools.run("kafka-e2e-latency", tools.bootstrap, topic, "100", "all", "200", at=False)
    found(r"^Avg latency: [\d.]+ ms", said)
    found(r"^Percentiles: 50th = \d+", said)


def a_client_finds_what_it_expects_of_a_broker(tools: Tools) -> None:
    yes = (
        "offsets-for-times",
        "cluster-id",
        "create-topics",
        "describe-acls",
        "describe-configs",
        "idempotent-producer",
    )
    tools.run(
        "org.apache.kafka.tools.ClientCompatibilityTest",
        *("--topic", tools.topic(), "--num-cluster-nodes", "1", "--expect-record-too-large-exception", "false"),
        *(part for name in yes for part in (f"--{name}-supported", "true")),
    )


def what_is_compacted_keeps_the_last_value_of_each_key(tools: Tools) -> None:
    """Kafka's own tester: it writes keys again and again, with deletes, and holds what it reads against that."""
    said = tools.run(
        "org.apache.kafka.tools.LogCompactionTester",
        *("--messages", "50000", "--sleep", "5", "--duplicates", "10", "--percent-deletes", "10", "--topics", "2"),
    )
    found(r"^Data verification is completed", said)
    found(r", 0 mismatches", said)


def records_are_deleted_before_an_offset(tools: Tools) -> None:
    topic = tools.topic()
    tools.produce(topic, *(str(number) for number in range(10)))
    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}
    said = tools.run("kafka-delete-records", "--offset-json-file", tools.document("plan.json", plan))
    found(r"low_watermark: 4", said)
    plan["partitions"] = [{"topic": topic, "partition": 0, "offset": 11}]
    said = tools.says("kafka-delete-records", "--offset-json-file", tools.document("beyond.json", plan))
    found(r"OffsetOutOfRangeException|OFFSET_OUT_OF_RANGE|not within the range", said)
    said = tools.run("kafka-get-offsets", "--topic", topic, "--time", "earliest")
    assert said.strip() == f"{topic}:0:4", said


def offsets_are_found_by_every_kind_of_time(tools: Tools) -> None:
    topic = tools.topic(partitions=2, retention_ms="-1")
    tools.produce(topic, "a", "b", "c", timestamps=(1_700_000_000_000, 1_700_000_002_000, 1_700_000_001_000))
    times = {"latest": 3, "earliest": 0, "max-timestamp": 1, "-1": 3, "-2": 0, "-3": 1, "-4": 0, "1700000001500": 1}
    for time, offset in times.items():
        said = tools.run("kafka-get-offsets", "--topic-partitions", f"{topic}:0", "--time", time)
        assert said.strip() == f"{topic}:0:{offset}", f"{time}: {said}"
    said = tools.run("kafka-get-offsets", "--topic", f"{tools.name}.*", "--exclude-internal-topics")
    assert rows(said) == [[f"{topic}:0:3"], [f"{topic}:1:0"]], said


def a_share_group_takes_records(tools: Tools) -> None:
    topic, group = tools.topic(), tools.name
    tools.produce(topic, "a", "b", "c")
    tools.run("kafka-configs", "--group", group, "--alter", "--add-config", "share.auto.offset.reset=earliest")
    read = tools.run(
        "kafka-console-share-consumer",
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "3",
        "--timeout-ms",
        "30000",
    )
    assert read.split() == ["a", "b", "c"], read
    said = tools.run("kafka-share-groups", "--list")
    assert group in said.split(), said
    said = tools.run("kafka-share-groups", "--describe", "--group", group)
    found(rf"^{group} +{topic} +0 +\d+ +\d+", said)


def a_share_consumer_checks_what_it_reads(tools: Tools) -> None:
    topic, group = tools.topic(partitions=2), tools.name
    tools.run("kafka-configs", "--group", group, "--alter", "--add-config", "share.auto.offset.reset=earliest")
    tools.run("kafka-verifiable-producer", "--topic", topic, "--max-messages", "1000", "--acks", "-1")
    said = tools.run(
        "kafka-verifiable-share-consumer",
        *("--topic", topic, "--group-id", group, "--max-messages", "1000", "--acknowledgement-mode", "sync"),
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    acknowledged = sum(event["count"] for event in events if event["name"] == "offsets_acknowledged")
    assert acknowledged == 1000, f"{acknowledged} of 1000"


TESTS = (
    console_brings_keys_headers_and_nulls,
    console_writes_with_every_compression,
    console_reads_one_partition_from_an_offset,
    console_goes_on_in_a_group_of_either_protocol,
    console_reads_topics_by_a_pattern,
    console_reads_committed_records_only,
    console_is_refused_a_record_that_is_too_large,
    a_producer_checks_what_was_acknowledged_and_a_consumer_what_it_reads,
    speed_is_measured,
    a_client_finds_what_it_expects_of_a_broker,
    what_is_compacted_keeps_the_last_value_of_each_key,
    records_are_deleted_before_an_offset,
    offsets_are_found_by_every_kind_of_time,
    a_share_group_takes_records,
    a_share_consumer_checks_what_it_reads,
)
