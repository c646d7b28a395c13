import contextlib
import io
import json

import pytest
import structlog

from mainstem.core.logging import configure, get_logger


@pytest.fixture(autouse=True)
def as_before():
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def test_lines_are_json_with_the_process_bound(capsys):
    configure("log", as_json=True)
    get_logger().info("segment_rolled", topic="t")
    get_logger().debug("quiet")
    (line,) = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["topic"], event["process"], event["level"]) == ("segment_rolled", "t", "log", "info")


def test_a_line_goes_to_the_stderr_of_now(capsys, monkeypatch):
    """A program that replaces `sys.stderr`, as pytest does, must not leave us writing to a closed file."""
    configure("log", as_json=True)
    replaced = io.StringIO()
    monkeypatch.setattr("sys.stderr", replaced)
    get_logger().info("segment_rolled")
    assert "segment_rolled" in replaced.getvalue()


def test_a_line_that_cannot_be_printed_is_dropped(monkeypatch):
    configure("log", as_json=True)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        get_logger().warning("segment_rolled")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
