"""The main job, as `make demo KEEP=1` runs it, on the first 20,000 flights."""

import re
import signal

import psutil
import pytest

from tests.support.commands import mainstem
from tests.support.demo import names_of, running_demo
from tests.support.node import wait_for

# How long a new topic takes to become a table is judged by the demo. This machine does other work, too.
GENEROUS = ("--new-table-seconds", "300")


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_every_stage_is_equal_to_the_truth_and_it_runs_until_it_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    options = ("--flights", "20000", "--changes", "150", "--keep", *GENEROUS, "--work", str(tmp_path / "work"))
    with running_demo(*options, seconds=1140) as demo:
        output = ""
        for line in demo.stdout:
            output += line
            if " tail " in line:  # the last of the ways in
                break
        assert "all equal" in output.splitlines(), said_of(output)
        assert "the books balance" in output
        assert re.search("^tables +seconds until a new one, at most 300 .* yes$", output, re.MULTILINE), output

        ways_in(output)
        started = psutil.Process(demo.pid).children(recursive=True)
        names = names_of(started)
        assert {"java", "postgres"} <= names, names
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait() == 0, rest
    order = re.findall(r"([\w-]+) +stopped", rest)
    second, *order = order  # of the job's second version
    assert second.startswith("spark-"), rest
    assert order == ["spark", "connect", "serve-answers-2", "serve-answers-1", "gateway", "log"], rest
    wait_for(lambda: not any(each.is_running() for each in started))


def said_of(output):
    """What is not equal, and the end of the rest."""
    return "\n".join([*re.findall("^(?:NOT EQUAL|demo): .*$", output, re.MULTILINE), output[-8000:]])


def ways_in(output):
    """What the demo says of how to look at what it keeps running, taken at its word."""
    status, tail = re.findall(r"^  \S*mainstem (.*)$", output, re.MULTILINE)
    done = mainstem(*status.split())
    assert done.returncode == 0, done
    assert len(re.findall(r"^(?:log|gateway|connect|spark\S*|serve-\S+) .*running", done.stdout, re.MULTILINE)) == 7, (
        done.stdout
    )
    done = mainstem(*tail.split(), "--from", "earliest", "-n", "3")
    assert done.returncode == 0, done
    assert done.stdout.count('"airline":') == 3, done.stdout
