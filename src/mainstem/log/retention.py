"""Retention: which segments a topic's settings let go. Pure: the partition does the deleting."""

from collections.abc import Sequence

from mainstem.log.config import TopicConfig
from mainstem.log.segment import Segment


def expired_before(
    segments: Sequence[Segment], log_start_offset: int, high_watermark: int, config: TopicConfig, now_ms: int
) -> int:
    """The offset before which everything may be deleted: by time, then by size; only whole segments go.

    The active segment goes by time only, when its last record is too old; its successor begins at the result.
    """
    start = log_start_offset
    if not config.deletes:
        return start
    kept = list(segments)
    if config.retention_ms >= 0:
        before_ms = now_ms - config.retention_ms
        while kept and _is_old(kept[0], before_ms, segments[-1]) and kept[0].next_offset <= high_watermark:
            start = max(start, kept.pop(0).next_offset)
    if config.retention_bytes >= 0:
        surplus = sum(segment.size for segment in kept) - config.retention_bytes
        while len(kept) > 1 and surplus >= kept[0].size and kept[0].next_offset <= high_watermark:
            surplus -= kept[0].size
            start = max(start, kept.pop(0).next_offset)
    return start


def _is_old(segment: Segment, before_ms: int, active: Segment) -> bool:
    if segment.size == 0:  # compaction left nothing of it, so it holds up nothing behind it
        return segment is not active
    return 0 <= segment.max_timestamp < before_ms
