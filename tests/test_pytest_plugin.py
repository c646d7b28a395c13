import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from mainstem.embedded_log import ChildLog, EmbeddedLog
from tests.support.raw import RawClient


def test_a_users_test_gets_a_log_by_naming_the_fixture(mainstem_log: EmbeddedLog) -> None:
    """The installed package registers the fixture; nothing is imported for it."""
    admin = AdminClient({"bootstrap.servers": mainstem_log.bootstrap})
    assert len(admin.list_topics(timeout=30).brokers) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_gets_a_topic_of_its_own(mainstem_log: EmbeddedLog, mainstem_topic: str, number: int) -> None:
    with RawClient(mainstem_log.bootstrap) as raw:
        assert raw.produce(mainstem_topic, b"first") == 0
    assert mainstem_topic.startswith(f"test_each_test_gets_a_topic_of_its_own-{number}")


def test_a_test_may_kill_the_log_that_is_its_own(mainstem_child_log: ChildLog, mainstem_log: EmbeddedLog) -> None:
    assert mainstem_child_log.bootstrap != mainstem_log.bootstrap
    mainstem_child_log.create_topic("kept")
    mainstem_child_log.kill()
    mainstem_child_log.start()
    with RawClient(mainstem_child_log.bootstrap) as raw:
        assert raw.produce("kept", b"first") == 0


def test_what_is_wrong_with_a_setting_is_shown_with_its_hint(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n"
        "@pytest.fixture(scope='session')\n"
        "def mainstem_log_settings():\n"
        "    return {'broker': {'num_partition': 3}}\n"
    )
    (tmp_path / "test_it.py").write_text("def test_it(mainstem_log): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False).stdout
    assert re.search(r"unknown field `num_partition`\nE +hint: did you mean num_partitions\?\n\n", said), said


@pytest.mark.spark
def test_the_jobs_of_the_project_that_a_test_lies_in_are_fed_with_rows(tmp_path: Path) -> None:
    (tmp_path / "mainstem.toml").touch()
    (tmp_path / "jobs.py").write_text(
        "from mainstem.process import changelog, stream, topic\n"
        "orders = topic('orders')\n"
        "@stream(to='big')\n"
        "def big(orders):\n"
        "    return orders.where('cents > 100')\n"
    )
    (tmp_path / "order.avsc").write_text(
        '{"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}'
    )
    with (tmp_path / "mainstem.toml").open("a") as file:
        file.write("[topics.orders]\nschema = 'order.avsc'\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "def test_big(mainstem_jobs):\n"
        "    assert mainstem_jobs.start('big').feed(orders=[{'cents': 7}, {'cents': 700}]) == [{'cents': 700}]\n"
    )
    (tmp_path.parent / "test_lost.py").write_text("def test_lost(mainstem_jobs): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", "../test_lost.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False).stdout
    assert "1 passed, 1 error" in said, said
    assert "test_lost.py: expected a mainstem.toml in a directory above it, found none" in said
