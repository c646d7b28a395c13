"""A key's partition is the one that Kafka's clients choose."""

import random

import pytest

from mainstem.client.partitioner import partition_for
from mainstem.process.murmur2 import partition_by

pytestmark = pytest.mark.spark


def test_spark_and_python_choose_the_same_partition(spark):
    from pyspark.sql import functions as F

    chance = random.Random(7)
    keys = [chance.randbytes(chance.randrange(40)) for _ in range(500)]
    rows = spark.createDataFrame([(key,) for key in [*keys, None]], "key binary")
    for partitions in (1, 2, 7, 50):
        found = rows.select("key", partition_by(spark, F.col("key"), partitions).alias("at")).collect()
        assert {bytes(row["key"]): row["at"] for row in found if row["key"] is not None} == {
            key: partition_for(key, partitions) for key in keys
        }
        assert [row["at"] for row in found if row["key"] is None] == [None]
