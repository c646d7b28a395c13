"""The audit's hash of a record: the same bits that Spark's `xxhash64(key, value)` gives in the JVM."""

from collections.abc import Iterable

from xxhash import xxh64_intdigest

_SPARK_SEED = 42
MODULUS = 2**64


def fingerprint(key: bytes | None, value: bytes | None) -> int:
    """XXH64 of the value, seeded with that of the key, unsigned; a null is skipped, as Spark does.

    Spark shows the same bits as a signed long: add 2**64 to a negative one.
    """
    seed = _SPARK_SEED if key is None else xxh64_intdigest(key, _SPARK_SEED)
    return seed if value is None else xxh64_intdigest(value, seed)


def fingerprint_sum(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> int:
    """The sum of the fingerprints modulo 2**64: the same for any order, so partial sums can be added."""
    return sum(fingerprint(key, value) for key, value in pairs) % MODULUS
