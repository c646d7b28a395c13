"""The main job, as `make demo` runs it, on the first 20,000 flights."""

import pytest

from tests.support.demo import run_demo


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_stage_is_equal_to_the_truth(tmp_path):
    output = run_demo("--flights", "20000", "--work", str(tmp_path / "work"), seconds=840)
    assert "all equal" in output.splitlines()
    assert "the books balance" in output
