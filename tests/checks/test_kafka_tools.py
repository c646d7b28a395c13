"""The names of Kafka's scripts that tests use lead to classes that are there: a new version may move them."""

import zipfile

from tests.support import kafka_tools


def test_every_tool_has_its_class() -> None:
    classes: set[str] = set()
    for jar in kafka_tools.classpath().split(":"):
        classes.update(zipfile.ZipFile(jar).namelist())
    assert [
        tool for tool, name in kafka_tools.CLASSES.items() if f"{name.replace('.', '/')}.class" not in classes
    ] == []
