"""The frame under conformance/: what it reads of a suite, and how a run is held against a list. `make conformance` runs
the suites themselves.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance import kgo
from conformance.door import Door
from conformance.frame import (
    Difference,
    Expected,
    LogServer,
    Otherwise,
    Result,
    differences,
    read_expected,
    write_expected,
)
from conformance.run import SUITES, table
from mainstem.core.errors import UserError
from tests.support.raw import RawClient
from tests.support.repository import ROOT

MARK = "\x16"

# As a program of Go's tests prints it with -test.v=test2json; a client logs between.
PRINTED = f"""\
{MARK}=== RUN   TestOne
{MARK}=== PAUSE TestOne
{MARK}=== RUN   TestTwo
{MARK}=== RUN   TestTwo/part
[INFO] a line that is not ended{MARK}--- PASS: TestTwo/part (1.50s)
{MARK}=== NAME  TestTwo
    two_test.go:12: expected 1, found 2
[INFO] fetching
{MARK}--- FAIL: TestTwo (1.75s)
{MARK}=== CONT  TestOne
    one_test.go:5: broker does not support it
{MARK}--- SKIP: TestOne (0.00s)
{MARK}=== RUN   TestThree
panic: test timed out after 1s
"""


def test_what_go_prints_is_read_test_by_test():
    assert list(kgo.results(PRINTED.splitlines(keepends=True))) == [
        Result("TestTwo/part", "passed", 1.5),
        Result("TestTwo", "failed", 1.75, "two_test.go:12: expected 1, found 2"),
        Result("TestOne", "skipped", 0.0, "one_test.go:5: broker does not support it"),
        Result(
            "TestThree",
            "failed",
            why="did not end\n[INFO] a line that is not ended\n[INFO] fetching\npanic: test timed out after 1s",
        ),
    ]


EXPECTED = Expected(
    passed=("a", "b"),
    otherwise=(Otherwise("skipped", "passed", "no share groups", ("c",)), Otherwise("failed", "failed", "why", ("d",))),
)


def is_worse(*results, whole=False):
    return {found.name: found.is_worse for found in differences(EXPECTED, results, whole=whole)}


def test_a_run_as_the_list_says_has_no_differences():
    run = (Result("a", "passed"), Result("b", "passed"), Result("c", "skipped"), Result("d", "failed"))
    assert differences(EXPECTED, run, whole=True) == []


def test_a_test_that_does_not_pass_any_more_is_worse():
    assert is_worse(Result("a", "failed"), Result("b", "skipped")) == {"a": True, "b": True}
    assert is_worse(Result("c", "failed")) == {"c": True}


def test_a_test_that_the_list_does_not_name_has_to_pass():
    assert is_worse(Result("new", "failed"), Result("left", "skipped")) == {"new": True, "left": True}
    assert is_worse(Result("new", "passed")) == {}


def test_what_passes_against_the_list_is_told_and_no_fault():
    assert is_worse(Result("c", "passed"), Result("d", "skipped")) == {"c": False, "d": False}


def test_what_was_not_run_is_worse_where_all_was_to_be():
    """A suite that ends early, or renames its tests, passed in silence."""
    run = (Result("a", "passed"), Result("c", "skipped"))
    assert is_worse(*run, whole=True) == {"b": True, "d": True}
    assert is_worse(*run) == {}


def test_the_table_says_why():
    results = [Result("a", "failed", 2.0, "found 2"), Result("b", "passed", 9.0), Result("c", "skipped")]
    lines = "\n".join(table(EXPECTED, results, [Difference("a", "failed; the list says passed", is_worse=True)]))
    assert re.search(r"! failed +2\.0 s  a\n +failed; the list says passed\n +\| found 2", lines)
    assert re.search(r"  skipped +0\.0 s  c\n +no share groups \(Apache Kafka 4\.3\.0: passed\)", lines)
    assert " b" not in lines


NAMES = ("plain", 'quoted "%v{re[a]}"', "back\\slash", "ünïcode", "\ufffd\x7f", "emoji \U0001f600")


def test_a_list_is_written_and_keeps_what_people_wrote(tmp_path):
    path = tmp_path / "suite.toml"
    write_expected(path, [Result(name, "passed") for name in NAMES])
    assert set(read_expected(path).passed) == set(NAMES)

    kept = '\n# a reason\n[[otherwise]]\noutcome = "skipped"\nkafka = "passed"\nwhy = "w"\ntests = ["t"]\n'
    path.write_text(path.read_text() + kept)
    write_expected(path, [Result("only", "passed"), Result("t", "skipped")])
    assert path.read_text() == 'passed = [\n  "only",\n]\n' + kept
    assert read_expected(path).of("t") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('passed = ["a", "b", "a"]', "expected each test once, found a again"),
        ("passes = []", "unknown field `passes`"),
        ("passed = [", "suite.toml: "),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, text, said):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        read_expected(path)


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_its_list(name):
    expected = read_expected(SUITES[name].expected)
    assert expected.passed or expected.otherwise
    assert all(each.why for each in expected.otherwise)


def test_the_log_of_a_suite_is_killed_and_comes_back_with_its_data(tmp_path):
    with Door() as door:
        server = LogServer(tmp_path, advertised=door.port)
        door.target = server.port
        server.start()
        try:
            first = metadata(server.bootstrap)
            assert [broker.port for broker in first.brokers] == [door.port]
            server.kill()
            with ThreadPoolExecutor(1) as other:
                asked = other.submit(metadata, server.bootstrap)  # while the broker is away
                server.start()
                assert asked.result().cluster_id == first.cluster_id
        finally:
            server.close()
    assert server.said.read_text().count("listening on") == 2


def metadata(bootstrap):
    with RawClient(bootstrap) as client:
        return client.call(3, 9, topics=(), allow_auto_topic_creation=False)


def test_without_go_one_line_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "conformance.run", "kgo"],
        cwd=ROOT, check=False, capture_output=True, text=True, timeout=120,
        env={"PATH": str(tmp_path), "MAINSTEM_CACHE": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("kgo: expected the command go")
    assert done.stderr.count("\n") == 1


def test_the_lock_is_of_a_module_with_its_hash():
    module, version, checksum = kgo.locked()
    assert (module, version[0]) == ("github.com/twmb/franz-go", "v")
    assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", checksum)
