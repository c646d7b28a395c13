"""The partition of a key, exactly as Kafka's Java clients choose it: murmur2, positive, modulo the partitions."""

from functools import lru_cache
from struct import iter_unpack

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), as an unsigned 32-bit number."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for (k,) in iter_unpack("<I", data[:whole]):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic of `partitions` partitions. Keys repeat, so answers for short ones are kept."""
    return _kept(key, partitions) if len(key) <= _KEPT_KEY_BYTES else _partition(key, partitions)


def _partition(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


_KEPT_KEY_BYTES = 128  # a key of any size in each place would take gigabytes
_kept = lru_cache(maxsize=100_000)(_partition)
