"""What docs/clusters.md has as settings, they are."""

import re
import tomllib

import pytest

from mainstem.core.config import convert
from mainstem.process.project_config import JobConfig
from mainstem.process.session import SparkConfig
from tests.support.repository import ROOT

BLOCKS = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_settings_are_taken(block):
    tables = tomllib.loads(block)
    spark = convert(tables.pop("spark"), SparkConfig, where="[spark]")
    jobs = [convert(each, JobConfig, where="[jobs]") for each in tables.pop("jobs", {}).values()]
    assert tables == {}
    assert spark.applications.keys() == {each.application for each in jobs}
    assert not spark.of("heavy").master.startswith("local")
