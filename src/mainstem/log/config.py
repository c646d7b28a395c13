"""Settings: of the log directory, and of a topic (Kafka's names with underscores, defaults stated once, here)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mainstem.core.prepared import prepared
from mainstem.core.wrong_settings import in_one_line, in_parts, suggestion
from mainstem.log.errors import InvalidTopicConfig

FOREVER = 2**63 - 1
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
_MOST_INDEXED = 65_536
"""Bytes that a read goes through on the event loop: 4 ms where batches are as small as can be."""

Milliseconds = Annotated[int, Meta(ge=0, le=FOREVER)]
Count = Annotated[int, Meta(ge=1, le=FOREVER)]
OrUnlimited = Annotated[int, Meta(ge=-1, le=FOREVER)]
SegmentBytes = Annotated[int, Meta(ge=14, le=2**31 - 1)]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[log]`: settings of a log directory.

    Attributes:
        journal_bytes: a checkpoint is taken after so many bytes in the journal, and in segments that are not in the
            journal; a start after a crash reads at most a few times that.
        sync_threads: threads that bring segments to the disk at a checkpoint.
        compaction_keys: different keys that one compaction of a partition holds in memory; what is beyond waits for the
            next.
        housekeeping_interval_ms: how often retention, compaction and rolling by time are looked at.
        producer_id_expiration_ms: a producer without an open transaction is forgotten after this long without a batch.
        read_threads: threads for reads that are not in the page cache, and for files that are opened,
            created or deleted.
        open_files: segment files kept open at most; the process's own limit counts too.
    """

    journal_bytes: Annotated[int, Meta(ge=4096, le=2**40)] = 64 * 2**20
    sync_threads: Annotated[int, Meta(ge=1, le=64)] = 8
    compaction_keys: Count = 2_000_000
    housekeeping_interval_ms: Count = 15_000
    producer_id_expiration_ms: Count = DAY_MS
    read_threads: Annotated[int, Meta(ge=1, le=64)] = 4
    open_files: Annotated[int, Meta(ge=16)] = 16_384

    @staticmethod
    def hint_for(unknown: str) -> str:
        """What to do about a setting that is one of topics; "" of every other."""
        is_of_topics = unknown.replace(".", "_") in TopicConfig.__struct_fields__
        return "it is a topic's: [broker.topic_defaults] says what they have by default" if is_of_topics else ""


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kafka 4.3's topic settings; `cleanup.policy` is `cleanup_policy` here.

    Attributes:
        cleanup_policy: what happens to old records: `delete`, they go by time and size; `compact`, the last one of each
            key stays; both; or neither, empty.
        compression_gzip_level: kept and shown; a topic that compresses itself uses one level per codec.
        compression_lz4_level: kept and shown.
        compression_type: how batches are stored: `producer`, as they come; `uncompressed`; or by one codec.
        compression_zstd_level: kept and shown.
        delete_retention_ms: how long a compacted topic keeps tombstones, and the ends of transactions.
        file_delete_delay_ms: kept and shown; files go at once, and readers that have them open finish.
        flush_messages: after so many records a partition is brought to the disk; with 1 every record is on the disk
            when it is acknowledged.
        flush_ms: at the latest after so long a partition is brought to the disk.
        follower_replication_throttled_replicas: kept and shown; there are no followers.
        index_interval_bytes: one entry of the offset index for so many bytes of batches, or for 64 KB where it is more:
            who looks for an offset goes through so many.
        leader_replication_throttled_replicas: kept and shown; there are no followers.
        local_retention_bytes: kept and shown; there is no tiered storage.
        local_retention_ms: kept and shown; there is no tiered storage.
        max_compaction_lag_ms: at the latest after so long a record that has been replaced is compacted away.
        max_message_bytes: the largest batch that is taken, as it comes.
        message_timestamp_after_max_ms: how far ahead of the log's clock the timestamp of a record may be.
        message_timestamp_before_max_ms: how far behind it.
        message_timestamp_type: whose time a record bears: `CreateTime`, its producer's; `LogAppendTime`, the log's.
        min_cleanable_dirty_ratio: a partition is compacted when this part of it is new since the last time.
        min_compaction_lag_ms: a younger record is never compacted away.
        min_insync_replicas: kept and shown; there is one replica, and what it acknowledges is on its disk.
        preallocate: kept and shown.
        remote_log_copy_disable: kept and shown; there is no tiered storage.
        remote_log_delete_on_disable: kept and shown; there is no tiered storage.
        remote_storage_enable: false; there is no tiered storage.
        retention_bytes: the oldest segments of a partition go when it is larger; -1: never for its size.
        retention_ms: a segment goes when its newest record is older; -1: never for its age.
        segment_bytes: a segment of a partition is closed before it is larger.
        segment_index_bytes: kept and shown; an index grows with its segment.
        segment_jitter_ms: kept and shown.
        segment_ms: a segment is closed when it is this old, so that it can be deleted or compacted.
        unclean_leader_election_enable: kept and shown; there is one node.
    """

    cleanup_policy: Annotated[str, Meta(pattern=r"^((delete|compact)(,(delete|compact))?)?$")] = "delete"
    compression_gzip_level: Annotated[int, Meta(ge=-1, le=9)] = -1
    compression_lz4_level: Annotated[int, Meta(ge=1, le=17)] = 9
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = "producer"
    compression_zstd_level: Annotated[int, Meta(ge=-131072, le=22)] = 3
    delete_retention_ms: Milliseconds = DAY_MS
    file_delete_delay_ms: Milliseconds = 60_000
    flush_messages: Count = 1  # Kafka: never, the page cache is trusted. Here an acknowledged record is on the disk.
    flush_ms: Milliseconds = FOREVER
    follower_replication_throttled_replicas: str = ""
    index_interval_bytes: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 4096
    leader_replication_throttled_replicas: str = ""
    local_retention_bytes: Annotated[int, Meta(ge=-2, le=FOREVER)] = -2
    local_retention_ms: Annotated[int, Meta(ge=-2, le=FOREVER)] = -2
    max_compaction_lag_ms: Count = FOREVER
    max_message_bytes: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1_048_588
    message_timestamp_after_max_ms: Milliseconds = HOUR_MS
    message_timestamp_before_max_ms: Milliseconds = FOREVER
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    min_cleanable_dirty_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5
    min_compaction_lag_ms: Milliseconds = 0
    min_insync_replicas: Annotated[int, Meta(ge=1)] = 1
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: OrUnlimited = -1
    retention_ms: OrUnlimited = 7 * DAY_MS
    segment_bytes: SegmentBytes = 2**30
    segment_index_bytes: Annotated[int, Meta(ge=4, le=2**31 - 1)] = 10 * 2**20
    segment_jitter_ms: Milliseconds = 0
    segment_ms: Count = 7 * DAY_MS
    unclean_leader_election_enable: bool = False

    @property
    def indexed_bytes(self) -> int:
        """`index_interval_bytes`, as it is used."""
        return min(self.index_interval_bytes, _MOST_INDEXED)

    @property
    def compacts(self) -> bool:
        """Of every key the last record stays: each record needs one."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Records go by `retention.ms` and `retention.bytes`, and on request."""
        return "delete" in self.cleanup_policy

    @property
    def syncs_every_append(self) -> bool:
        """An append is acknowledged only when it is on the disk."""
        return self.flush_messages == 1 or self.flush_ms == 0

    @property
    def lost_by_power_cut(self) -> str:
        """What of the acknowledged records a power cut may take, in words; a kill takes none."""
        if self.syncs_every_append:
            return "nothing"
        lost = f"the last {self.flush_messages:,} records of a partition" if self.flush_messages < FOREVER else ""
        time = f"the last {self.flush_ms:,} ms" if self.flush_ms < FOREVER else ""
        return " or ".join(filter(None, (lost, time))) or "what came since the last checkpoint"

    @classmethod
    def from_kafka(cls, settings: Mapping[str, str], *, base: "TopicConfig | None" = None) -> "TopicConfig":
        """The settings with Kafka's names and text values laid over `base` (or the defaults).

        Raises:
            InvalidTopicConfig: the message names the setting, and begins as Kafka's: clients' tests look for that.
        """
        tree: dict[str, Any] = msgspec.to_builtins(base or cls())
        for name, value in settings.items():
            field = name.replace(".", "_")
            if field not in cls.__struct_fields__ or "_" in name:
                known = (each.replace("_", ".") for each in cls.__struct_fields__)
                raise InvalidTopicConfig(f"Unknown topic config name: {name}", hint=suggestion(name, known))
            tree[field] = _clean(value)
        try:
            return msgspec.convert(tree, prepared(cls), strict=False)
        except msgspec.ValidationError as error:
            field, reason, _ = in_parts(str(error))
            name = field.replace("_", ".")
            if field == "cleanup_policy":
                reason = "expected delete, compact, or compact,delete"
            elif reason.startswith("Invalid enum"):
                reason = in_one_line(str(error), tree, cls).partition(": ")[2].partition(", found")[0]
            raise InvalidTopicConfig(f"Invalid value {settings.get(name)} for configuration {name}: {reason}") from None

    def to_kafka(self) -> dict[str, str]:
        """Every setting with Kafka's name and text value, defaults included."""
        return {field.replace("_", "."): _to_text(getattr(self, field)) for field in self.__struct_fields__}


def _clean(value: str) -> str:
    text = value.strip()
    return ",".join(part.strip() for part in text.split(",")) if "," in text else text


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
