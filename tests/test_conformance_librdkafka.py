"""How librdkafka's tests are listed, run and read: conformance/librdkafka.py. `make conformance` runs the suite."""

import subprocess
import tarfile

import pytest

from conformance import librdkafka
from conformance.frame import Result, read_expected
from conformance.librdkafka import Entry, registry, results, unpack
from conformance.run import SUITES
from mainstem.core.errors import CorruptData
from tests.support.repository import ROOT

# As test.c lists them.
SOURCE = """
/** _TEST(00...., ..., */
struct test tests[] = {
    /* Special MAIN test to hold over-all timings, etc. */
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0000_unittests,
          TEST_F_LOCAL,
          /* heavy on memory */
          _THRES(.ucpu = 900.0, .rss = 900.0)),
    _TEST(0001_multiobj, 0),
    _TEST(0011_produce_batch,
          0,
          /* Produces a lot of messages */
          _THRES(.ucpu = 40.0, .scpu = 8.0)),
    _TEST(0047_partial_buf_tmout, TEST_F_KNOWN_ISSUE),
#if WITH_SOCKEM
    _TEST(0049_consume_conn_close, TEST_F_SOCKEM, TEST_BRKVER(0, 9, 0, 0)),
#endif
    _TEST(0066_plugins,
          TEST_F_LOCAL | TEST_F_KNOWN_ISSUE_WIN32 | TEST_F_KNOWN_ISSUE_OSX,
          .extra = "dynamic loading"),
    _TEST(0069_consumer_add_parts,
          TEST_F_KNOWN_ISSUE_WIN32,
          TEST_BRKVER(1, 0, 0, 0)),
    _TEST(0103_transactions,
          0,
          TEST_BRKVER(0, 11, 0, 0),
          .scenario = "default,ak23"),
    _TEST(0107_topic_recreate,
          0,
          TEST_BRKVER_TOPIC_ADMINAPI,
          .scenario = "noautocreate"),
    _TEST(0139_offset_validation_mock, 0),
    _TEST(8000_idle, TEST_F_MANUAL),

    {NULL}};
"""


def test_which_tests_need_a_broker_is_read_from_the_suites_own_registry():
    entries = registry(SOURCE)
    assert len(entries) == 11
    assert [(each.name, each.scenarios) for each in entries if each.needs_broker] == [
        ("0001_multiobj", "default"),
        ("0011_produce_batch", "default"),
        ("0069_consumer_add_parts", "default"),
        ("0103_transactions", "default,ak23"),
        ("0107_topic_recreate", "noautocreate"),
    ]
    assert entries[2].number == "0011"


def entries(*names: str) -> list[Entry]:
    return [Entry(name, ("0",), "default") for name in names]


PASSED = """\
\x1b[36m[<MAIN>                      /  0.000s] Tests to run     : 0045
[0m\x1b[36m[0045_subscribe_update       /  0.000s] ================= Running test 0045_subscribe_update =================
\x1b[0m\x1b[36m[0045_subscribe_update       / 12.345s] \x1b[32m================= Test 0045_subscribe_update PASSED ====\x1b[0m
\x1b[0m\x1b[33m[0045_resubscribe_with_regex /  0.002s] WARN: SKIPPING TEST: RapidJSON >=1.1.0 not available
\x1b[0m\x1b[36m[0045_resubscribe_with_regex /  0.002s] ================= Test 0045_resubscribe_with_regex SKIPPED ===
"""

FAILED = """\
\x1b[36m[0045_subscribe_update       /  2.043s] ================= Running test 0045_subscribe_update =================
\x1b[0m\x1b[36m[0045_subscribe_update       /  3.056s] TEST FAILURE
\x1b[0m\x1b[31m### Test "0045_subscribe_update (sub:1)" failed at 0045-subscribe_update.c:718:sub() at Tue Nov 24 02:48:05 2026: ###
Test assertion failed: "count == 10": found 9
\x1b[36m[<MAIN>                      /  4.203s] TEST FAILURE
\x1b[0m\x1b[31m### Test "<MAIN>" failed at test.c:1950:test_wait_exit() at Tue Nov 24 02:48:06 2026: ###
3 thread(s) still active in librdkafka
"""


def test_what_a_number_printed_is_read_test_by_test():
    found = results(entries("0045_subscribe_update", "0045_resubscribe_with_regex"), PASSED, "")
    assert found == [
        Result("0045_subscribe_update", "passed", 12.345),
        Result("0045_resubscribe_with_regex", "skipped", 0.002, "RapidJSON >=1.1.0 not available"),
    ]


def test_a_test_that_ends_the_process_fails_and_with_it_those_that_were_to_follow():
    found = results(entries("0045_subscribe_update", "0045_resubscribe_with_regex"), FAILED, "ended by SIGABRT")
    assert [(each.name, each.outcome, each.seconds) for each in found] == [
        ("0045_subscribe_update", "failed", 3.056),
        ("0045_resubscribe_with_regex", "failed", 0.0),
    ]
    first, said, ending = found[0].why.splitlines()
    assert "0045-subscribe_update.c:718" in first
    assert (said, ending) == ('Test assertion failed: "count == 10": found 9', "ended by SIGABRT")


def test_what_said_nothing_has_failed():
    assert results(entries("0001_multiobj"), "", "did not end in 600 s") == [
        Result("0001_multiobj", "failed", why="did not end in 600 s")
    ]


def test_a_number_is_ended_with_its_children_when_its_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(librdkafka, "SECONDS", 0.3)
    script = tmp_path / "runner"
    script.write_text("#!/bin/sh\nsleep 600 &\necho $!\nwait\n")
    script.chmod(0o755)
    printed = tmp_path / "printed"
    assert librdkafka.end_of([str(script)], tmp_path, {"PATH": "/usr/bin:/bin"}, printed) == "did not end in 0 s"
    child = printed.read_text().strip()
    listed = subprocess.run(["ps", "-o", "stat=", "-p", child], check=False, capture_output=True, text=True).stdout
    assert listed.strip()[:1] in ("", "Z")


@pytest.mark.parametrize(("command", "ending"), [("true", ""), ("exit 3", "ended with exit code 3")])
def test_how_a_number_ended(tmp_path, command, ending):
    assert librdkafka.end_of(["sh", "-c", command], tmp_path, {"PATH": "/usr/bin:/bin"}, tmp_path / "out") == ending


def test_one_directory_of_an_archive_is_unpacked_with_its_modes(tmp_path):
    (tmp_path / "in/deps/lib").mkdir(parents=True)
    (tmp_path / "in/deps/lib/configure").write_text("#!/bin/sh\n")
    (tmp_path / "in/deps/lib/configure").chmod(0o755)
    (tmp_path / "in/other").write_text("not this")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.add(tmp_path / "in", "package")
    unpack(tmp_path / "a.tgz", "package/deps/", tmp_path / "one")
    unpack(tmp_path / "a.tgz", "*/deps/lib/", tmp_path / "two")
    assert [str(each.relative_to(tmp_path / "one")) for each in tmp_path.glob("one/**/*") if each.is_file()] == [
        "lib/configure"
    ]
    assert (tmp_path / "two/configure").stat().st_mode & 0o111


def test_another_file_than_the_lock_names_is_refused(tmp_path):
    (tmp_path / "librdkafka.tgz").write_bytes(b"something else")
    with pytest.raises(CorruptData, match="expected sha256 00"):
        librdkafka.checked(tmp_path, "*.tgz", "00")


def test_the_lock_names_the_packages_with_their_hashes():
    packages = librdkafka.locked()
    assert [package.partition("@1")[0].partition("==")[0] for package in packages] == [
        "@confluentinc/kafka-javascript",
        "python-rapidjson",
        "zstd",
    ]
    assert all(len(sha256) == 64 for sha256 in packages.values())


def test_the_document_says_how_many_numbers_pass():
    passes: dict[str, bool] = {}
    for name in ("librdkafka", "librdkafka-noautocreate", "librdkafka-sasl"):
        expected = read_expected(SUITES[name].expected)
        for test in (test for each in expected.otherwise for test in each.tests):
            passes[test[:4]] = False
        for test in expected.passed:
            passes[test[:4]] = passes.get(test[:4], True) or name == "librdkafka-sasl"  # what left itself out elsewhere
    assert len(passes) == 106
    document = (ROOT / "docs/conformance.md").read_text()
    assert f"**{sum(passes.values())} of 106**" in document
    left = {number for number, passed in passes.items() if not passed}
    assert {number for number in left if f"{number}" not in document and not "0170" <= number <= "0185"} == set()
