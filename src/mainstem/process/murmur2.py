"""The partition of a key, as an expression of Spark's."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


def partition_by(spark: "SparkSession", key: "Column", partitions: int) -> "Column":
    """The partition of a key in a topic, as Kafka's Java clients choose it; null for a key that is null."""
    from pyspark.sql import functions as F

    return _murmur2(spark, key).bitwiseAND(F.lit(0x7FFFFFFF)) % partitions


def _murmur2(spark: "SparkSession", key: "Column") -> "Column":
    """Kafka's own murmur2, called from the code that Spark generates: the connector's jars have it, and a Python
    function in this place would send every row through a worker once more, before the shuffle.
    """
    from pyspark.sql import Column

    jvm: Any = spark._jvm
    utils = jvm.org.apache.spark.util.Utils.classForName("org.apache.kafka.common.utils.Utils", True, False)
    expressions, to_seq = (
        jvm.org.apache.spark.sql.classic.ExpressionUtils,
        jvm.org.apache.spark.api.python.PythonUtils.toSeq,
    )
    arguments = to_seq([expressions.expression(key._jc)])
    integer, none = jvm.org.apache.spark.sql.types.DataType.fromDDL("int"), jvm.scala.Option.empty()
    # Arguments after the input types: propagate null, the result is nullable, it is deterministic.
    call = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        utils, integer, "murmur2", arguments, to_seq([]), True, True, True, none
    )
    return Column(expressions.column(call))
