"""What a job means is found by running its function on empty inputs; what cannot run is told with the user's line."""

from textwrap import dedent

import msgspec
import pytest

from mainstem.process.analysis import Determinism, milliseconds, recall, remember
from mainstem.process.declare import BadDeclaration
from mainstem.process.project_config import JobConfig
from mainstem.process.session import job_session
from tests.support.analyses import check_refused, found

pytestmark = pytest.mark.spark


def test_a_job_of_rows_depends_on_its_rows_alone(spark, tmp_path):
    it = found(spark, tmp_path, """
        @stream(to="big", key="customer")
        def job(orders):
            return orders.filter("cents > 100").withColumn("euros", F.col("cents") / 100)
    """)  # fmt: skip
    assert it.output.simpleString() == (
        "struct<id:bigint,customer:bigint,cents:bigint,at:timestamp,note:string,euros:double>"
    )
    assert (it.stateful, it.determinism, it.keeps_order, it.event_time) == (None, Determinism.PREFIX, True, "at")


def test_a_join_with_a_table_depends_on_the_pinned_position(spark, tmp_path):
    it = found(spark, tmp_path, """
        @stream(to="enriched", key="customer")
        def job(orders, customers):
            return orders.join(customers.withColumnRenamed("id", "customer"), "customer", "left")
    """)  # fmt: skip
    assert it.determinism is Determinism.BATCH
    assert "customers: read at the position" in it.reason


def test_a_job_that_asks_for_the_time_or_for_chance_says_so(spark, tmp_path):
    for expression, reason in (
        ("F.current_timestamp()", "asks for the time (current_timestamp)"),
        ("F.lit(datetime.datetime.now())", "asks for the time (20"),
        ("F.col('id') - int(time.time())", "asks for the time (1"),
        ("F.rand()", "another result each time"),
    ):
        it = found(spark, tmp_path, f"""
            import datetime
            import time

            @stream(to="x")
            def job(orders):
                return orders.withColumn("x", {expression})
        """)  # fmt: skip
        assert reason in it.reason
        assert it.determinism is Determinism.BATCH


INDEX = """from mainstem.process import LocalIndex, indexed
kept = changelog("kept", key="id")
class Kept(LocalIndex):
    columns = returns = "id long"
    open = apply = process = None
"""


@pytest.mark.parametrize(
    ("jobs", "line", "message"),
    [
        ('@stream(to="t", key="nothing")\ndef job(orders):\n    return orders', 1, "the key column 'nothing' is not among"),
        ('@stream(to="t", key="x")\ndef job(orders):\n    return orders.selectExpr("1.5D x")', 1, "the key column 'x' is double"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.selectExpr("id a", "at a")', 1, "has the column 'a' twice"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.selectExpr("id `a b`")', 1, "letters, digits and '_'"),
        ('@stream(to="t", event_time="when")\ndef job(orders):\n    return orders', 1, "the event time 'when' is not among"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.select("idd")', 3, "UNRESOLVED_COLUMN"),
        ('def helper(rows):\n    return rows.nothing_such()\n@stream(to="t")\ndef job(orders):\n    return helper(orders)', 2,
         "job: [ATTRIBUTE_NOT_SUPPORTED] Attribute `nothing_such` is not supported"),
        ('@stream(to="t")\ndef job(orders):\n    return 7', 1, "expected a DataFrame or SQL as result, found int"),
        (('@stream(to="t", watermark=("at", "1 hour"))\ndef job(orders, refunds):\n    r = refunds.withColumnsRenamed('
          '{n: "r_" + n for n in ("customer", "cents", "at", "note")})\n    return orders.join(r, "id")'), 1,
         "has the column '_position' twice"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.withColumn("_rejected", F.lit(7))', 1,
         "column _rejected is int, expected string"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.withColumn("_headers", F.lit("a"))', 1,
         "column _headers is string, expected array<struct<key:string,value:binary>>"),
        ('@stream(to="t")\ndef job(orders):\n    return orders.withColumn("_deleted", F.lit(True))', 1,
         "the result has the column _deleted, and is a stream: only a table's rows can go"),
        ('@table(to="t", key="id")\ndef job(orders):\n    return orders.withColumn("_deleted", F.lit("a"))', 1,
         "column _deleted is string, expected boolean"),
        (INDEX + '@stream(to="t")\ndef job(orders):\n    return indexed(kept, Kept(), by_key=orders)[0]', 8,
         "job: indexed: the job does not write table kept"),
        ('@stream(to="t", also=[changelog("u", key="nobody")])\ndef job(orders):\n    return orders, orders', 1,
         "the key column 'nobody' is not among"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_told_with_the_line(spark, tmp_path, jobs, line, message):
    check_refused(spark, tmp_path, jobs, line, message)


def test_of_several_results_each_has_its_columns_and_event_time(spark, tmp_path):
    it = found(spark, tmp_path, """
        @stream(to="paid", also=[topic("notes", event_time="day")])
        def job(orders):
            return orders.drop("note"), orders.selectExpr("note", "at as day", "_position")
    """)  # fmt: skip
    assert [(each.columns.fieldNames(), each.event_time) for each in it.results] == [
        (["id", "customer", "cents", "at"], "at"), (["note", "day"], "day"),
    ]  # fmt: skip
    assert (it.reads_again, it.keeps_order) == (True, True)


@pytest.mark.parametrize(
    ("result", "needs", "rejects"),
    [
        ("orders", False, False),
        ("orders.select('id')", False, False),
        ("orders.withColumn('k', F.decode('_record.key', 'UTF-8'))", True, False),
        ("orders.withColumn('_rejected', F.when(F.col('cents') < 0, 'below 0'))", True, True),
        ("orders.select('id', F.lit(None).alias('_rejected'))", False, True),
    ],
)
def test_the_record_is_carried_along_only_where_the_function_uses_it(spark, tmp_path, result, needs, rejects):
    it = found(spark, tmp_path, f"""
        @stream(to="t")
        def job(orders):
            return {result}
    """)  # fmt: skip
    assert (it.needs_record, it.rejects) == (needs, rejects)
    assert not {"_record", "_rejected", "_position"} & set(it.output.fieldNames())


def test_an_analysis_is_remembered_until_spark_or_its_settings_change(spark, tmp_path, monkeypatch):
    import pyspark

    it = found(spark, tmp_path, """
        @table(to="hourly", key=["customer", "start"], watermark=("at", "10 minutes"))
        def job(orders):
            hours = orders.groupBy("customer", F.window("at", "1 hour")).agg(F.sum("cents").alias("cents"))
            return hours.select("customer", F.col("window.start").alias("start"), "cents")
    """)  # fmt: skip
    settings = {"spark.sql.ansi.enabled": "true"}
    remembered = msgspec.json.decode(msgspec.json.encode(remember(it, settings)))
    assert recall(remembered, settings) == it
    assert recall(remembered, {}) is None
    assert recall(None, settings) is None
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    assert recall(remembered, settings) is None


def test_durations():
    assert milliseconds("10 minutes") == 600_000
    assert milliseconds("1 hour 30 minutes") == 5_400_000
    assert milliseconds("2 weeks, 1 day") == 15 * 86_400_000
    assert milliseconds("1500 milliseconds") == 1500
    assert [milliseconds(each) for each in ("", "soon", "10", "10 parsecs", "minutes 10")] == [None] * 5


STATE = """
kept = changelog("kept", key={key})

@table(to="t", key="customer", watermark=("at", "1 minute"), emit="changes", state=kept)
"""


def test_the_state_has_the_columns_that_its_operator_keeps_called_as_what_they_make(spark, tmp_path):
    it = found(spark, tmp_path, STATE.format(key='["window_start", "window_end", "customer"]') + dedent("""
        def job(orders):
            return orders.groupBy(F.window("at", "1 hour"), "customer").agg(
                (F.sum("cents") / F.count("*")).alias("ratio"), F.avg("id").alias("mean"), F.sum("cents").alias("total"),
                F.percentile_approx("cents", 0.5).alias("median"),
            ).select("customer", "ratio", "total", "mean", "median")
    """))  # fmt: skip
    assert it.results[-1].columns.simpleString() == (
        "struct<window_start:timestamp,window_end:timestamp,customer:bigint,"
        "total:bigint,ratio_count:bigint,mean_sum:double,mean_count:bigint,median:binary>"
    )


@pytest.mark.parametrize(
    ("key", "body", "reason"),
    [
        ('"id"', 'orders.groupBy("customer").count()', r"the state of job has the key \['customer'\], found \['id'\]"),
        ('"id"', 'orders.select("customer")', "keeps no state"),
        (
            '"id"',
            """orders.join(
                refunds.selectExpr("id as refund", "at as since"),
                F.expr("id = refund and since between at and at + interval 1 hour"),
            )""",
            "a join of two streams keeps rows of its inputs",
        ),
    ],
)
def test_a_state_that_cannot_be_published_is_told(spark, tmp_path, key, body, reason):
    parameters = "orders, refunds" if "refunds" in body else "orders"
    text = STATE.format(key=key) + f"def job({parameters}):\n    return {body}\n"
    if "refunds" in body:
        text = text.replace(', emit="changes"', "").replace("@table", "@stream")
    with pytest.raises(BadDeclaration, match=reason):
        found(spark, tmp_path, text)


def test_a_state_of_timers_alone_is_not_published(spark, tmp_path):
    with pytest.raises(
        BadDeclaration, match="job: its state function keeps neither values nor maps nor lists: there is no state"
    ):
        found(job_session(spark, "job", JobConfig()), tmp_path, """
            from pyspark.sql.streaming.stateful_processor import StatefulProcessor

            class Last(StatefulProcessor):
                def init(self, handle):
                    self._handle = handle

                def handleInputRows(self, key, rows, timerValues):
                    self._handle.registerTimer(1)
                    return iter(())

                def close(self):
                    pass

            @stream(to="t", watermark=("at", "1 hour"), state=changelog("kept", key="customer"))
            def job(orders):
                return orders.groupBy("customer").transformWithState(Last(), "id long", "Append", "EventTime")
        """)  # fmt: skip


def test_a_local_index_is_as_it_was_when_the_batch_began(spark, tmp_path):
    it = found(spark, tmp_path, INDEX + """
@stream(to="t", key="id", also=[kept])
def job(orders):
    return indexed(kept, Kept(), by_key=orders, to_all=orders.select(F.col("id").alias("other")))
""")  # fmt: skip
    assert (it.indexes, it.determinism, it.keeps_order, it.stateful) == (("kept",), Determinism.BATCH, True, None)
    assert it.reason == "kept: its local index is as it was when the batch began"
    assert [each.columns.simpleString() for each in it.results] == ["struct<id:bigint>"] * 2
    assert recall(msgspec.json.decode(msgspec.json.encode(remember(it, {}))), {}) == it
