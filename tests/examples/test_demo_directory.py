"""The demo empties its directory at the start: never another one, and never under a demo that still runs."""

import subprocess
import sys
from pathlib import Path

from mainstem.core.locks import DirectoryLock

DEMO = Path("examples/flights_demo/demo.py").resolve()


def refused(work):
    done = subprocess.run(
        [sys.executable, DEMO, "--work", work], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_directory_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "precious").touch()
    for _ in range(2):
        assert "expected a directory for the demo, found precious there; give another --work" in refused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_demo_that_is_kept_running_keeps_its_data(tmp_path):
    with DirectoryLock(tmp_path, ".flights_demo"):
        (tmp_path / "node").mkdir()
        assert "a demo still runs there; end it, or give another --work" in refused(tmp_path)
    assert (tmp_path / "node").is_dir()
