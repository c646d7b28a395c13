"""Plans of Spark are walked through from the top."""

import pytest

from mainstem.process.plan_nodes import ATTRIBUTE, class_of, items_of, nodes_of


@pytest.mark.spark
def test_nodes_come_before_those_below_them(spark):
    rows = spark.range(3)
    joined = rows.where("id > 1").join(rows.selectExpr("id as other"), rows["id"] == 1)
    plan = joined._jdf.queryExecution().analyzed()
    assert [class_of(node) for node in nodes_of(plan)] == ["Join", "Filter", "Range", "Project", "Range"]
    assert {class_of(column) for column in items_of(plan.output())} == {ATTRIBUTE}
    assert len(list(items_of(plan.output()))) == 2
