"""Kafka's own `kafka-dump-log`, unmodified, reads what the log writes and finds nothing to say against it."""

from mainstem.log import TopicConfig
from tests.log.support import batch, run, with_partition
from tests.support import kafka_tools

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")


def test_segments_and_indexes_are_kafkas(tmp_path):
    """It once said "Mismatches": the offset index named the first offset of a batch, Kafka's names the last."""

    async def fill(partition):
        for n in range(12):
            fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2 * n, "transactional": True}
            await partition.append(
                batch(b"v" * 300, b"w", compression=CODECS[n % 5], timestamp=1_700_000_000_000 + n, **fields)
            )
        await partition.append_marker(1, 0, commit=False, coordinator_epoch=0)

    run(with_partition(tmp_path, fill, topic=TopicConfig(index_interval_bytes=300)))
    files = [
        str(tmp_path / "orders-0" / f"{0:020d}{suffix}") for suffix in (".log", ".index", ".timeindex", ".txnindex")
    ]
    found = kafka_tools.run("kafka-dump-log", "--deep-iteration", "--files", ",".join(files))
    said = found.stdout + found.stderr
    assert "Mismatches" not in said
    assert "isvalid: false" not in said
    assert said.count("isvalid: true") == 13
    assert all(f"compresscodec: {codec}" in said for codec in CODECS)
    assert "endTxnMarker: ABORT" in said
    assert "producerId: 1 firstOffset: 0 lastOffset: 24" in said


def test_indexes_of_segments_that_have_few_entries_are_kafkas(tmp_path):
    """The tool ended with "Invalid max index size: -1" where a time index had no offset index beside it."""

    async def fill(partition):
        for n in range(40):
            await partition.append(batch(b"v" * 100, timestamp=1_700_000_000_000 + n))

    run(with_partition(tmp_path, fill, topic=TopicConfig(segment_bytes=1_000)))
    files = sorted((tmp_path / "orders-0").glob("*.timeindex"))
    assert len(files) > 3
    found = kafka_tools.run("kafka-dump-log", "--files", ",".join(map(str, files)))
    assert "Found" not in found.stdout + found.stderr
    assert (found.stdout + found.stderr).count("timestamp: 17000000000") == len(files)
