"""A small project for tests: a topic with a schema, a file source, no Spark."""

SETTINGS = """
[project]
name = "small"

[topics.lines]
schema = "lines.avsc"

[topics.orders]
partitions = 2
key = "number"
schema = "orders.avsc"

[sources.access]
type = "file"
path = "access.log"
topic = "lines"
"""
LINES = '{"type": "record", "name": "Line", "fields": [{"name": "line", "type": "string"}]}'
ORDERS = """{"type": "record", "name": "Order", "fields": [
  {"name": "number", "type": "long"}, {"name": "amount", "type": "double"}]}"""


def write_project(directory):
    directory.mkdir(exist_ok=True)
    (directory / "mainstem.toml").write_text(SETTINGS)
    (directory / "jobs.py").write_text("")
    (directory / "lines.avsc").write_text(LINES)
    (directory / "orders.avsc").write_text(ORDERS)
    return directory
