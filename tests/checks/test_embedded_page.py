"""docs/embedded.md: its examples, run in their order, and its test files by pytest."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainstem import pytest_plugin
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "embedded.md").read_text()
BLOCK = re.compile(r"(?:`(\w+\.py)`[^\n]*:\n\n)?```python\n(.*?)```", re.DOTALL)


def test_the_examples_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    examples = [text for file, text in BLOCK.findall(PAGE) if not file]
    assert len(examples) >= 5
    for text in examples:
        exec(compile(text, "docs/embedded.md", "exec"), names)
    names.clear()  # its clients look for logs that have ended
    assert (tmp_path / "shop-data").is_dir()


def test_the_test_files_pass_and_the_settings_are_taken(tmp_path: Path) -> None:
    for file, text in BLOCK.findall(PAGE):
        if file:
            (tmp_path / file).write_text(text)
    (tmp_path / "test_settings.py").write_text(
        "def test_no_topic_comes_by_itself(mainstem_log):\n"
        "    from confluent_kafka import Producer\n"
        "    quick = {'message.timeout.ms': 1000, 'topic.metadata.propagation.max.ms': 100}\n"
        "    producer = Producer(mainstem_log.client | quick)\n"
        "    told = []\n"
        "    producer.produce('nobodys', b'v', on_delivery=lambda error, _: told.append(error.name()))\n"
        "    producer.flush(10)\n"
        "    assert told in (['UNKNOWN_TOPIC_OR_PART'], ['_UNKNOWN_TOPIC'])\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_every_fixture_is_named() -> None:
    fixtures = {name for name in vars(pytest_plugin) if name.startswith("mainstem_")}
    assert set(re.findall(r"\| `(mainstem_\w+)` \|", PAGE)) == fixtures
