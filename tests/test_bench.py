"""The programs under bench/ still run: `make bench` takes too long for every change."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PROGRAMS = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem != "report")


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_can_be_imported(program):
    """What it takes from the rooms and from the tests' support is still there."""
    importlib.import_module(f"bench.{program}")


@pytest.mark.parametrize("program", [p for p in PROGRAMS if "parse_args()" in (ROOT / "bench" / f"{p}.py").read_text()])
def test_every_program_says_what_it_takes(program):
    assert "usage:" in run(f"bench.{program}", "--help")


def test_every_program_that_make_bench_runs_is_there():
    makefile = (ROOT / "Makefile").read_text()
    run_by_make = set(re.findall(r"^BENCH \?= (.+)$", makefile, re.MULTILINE)[0].split())
    assert run_by_make - {"sink_vs_spark_on_kafka"} <= set(PROGRAMS)
    assert all(f"`bench/{each}.py`" in (ROOT / "docs/long-runs.md").read_text() for each in run_by_make & set(PROGRAMS))


def test_flights_are_posted_to_the_collector(tmp_path):
    options = ("--flights", "200", "--batch", "50", "--runs", "1", "--keep", str(tmp_path))
    said = run("bench.collector", *options)
    assert "200 events of" in said
    assert "median" in said
    [kept] = tmp_path.iterdir()
    assert kept.read_text() == said


def test_every_way_to_write_is_measured(tmp_path):
    few = ("--directory", str(tmp_path), "--seconds", "0.01", "--repeat", "1", "--partitions", "1")
    lines = run("bench.log_write_path", *few).splitlines()
    from bench.log_write_path import WAYS

    assert len(lines) == 1 + 2 * len(WAYS)  # a sync as it is, and one that takes 3 ms longer


def test_the_log_is_measured_by_itself(tmp_path):
    said = run("bench.log_append", "--directory", str(tmp_path), "--partitions", "30", "--seconds", "0.01")
    assert said.count("start after it") == 2  # a sync as it is, and one that takes 3 ms longer
    assert list(tmp_path.iterdir()) == []


def test_the_columns_of_the_table_stay_apart():
    """Spreads of millions were wider than their column: `(481,037–904,159)508,906`."""
    from bench.servers import Server, table

    many = [1_234_567.0, 904_159.0, 10_481_037.0]
    ours = Server("mainstem", "", 0, measured={"produce 100 B (records/s)": many, "start (s)": [0.1]})
    kafka = Server(
        "kafka", "", 0, measured={"produce 100 B (records/s)": [508_906.0, 1.0, 12_000_000.0], "start (s)": [4.0]}
    )
    head, produced, started = table([ours, kafka]).splitlines()
    assert len({len(line) for line in (head, produced, started)}) == 1
    assert re.split("  +", produced) == [
        "produce 100 B (records/s)", "1,234,567 (904,159–10,481,037)", "508,906 (1.00–12,000,000)", "2.43",
    ]  # fmt: skip
    assert started.split() == ["start", "(s)", "0.10", "4.00", "0.03"]


def test_one_server_alone_has_a_table_too():
    from bench.servers import Server, table

    assert table([Server("mainstem", "", 0, measured={"replay (MB/s)": [300.0, 1_500.0, 100.0], "of it": [0.5]})]) == (
        "replay (MB/s)  300 (100–1,500)\nof it                  0.50"
    )


def test_waits_are_told_by_their_shares():
    from bench.waits import Waits

    assert Waits.of([n / 1000 for n in range(999, -1, -1)]) == Waits(1000, 500.0, 990.0, 999.0, 999.0)
    assert Waits.of([0.002]) == Waits(1, 2.0, 2.0, 2.0, 2.0)


def test_the_perf_tool_s_figures_are_those_after_its_warm_up():
    from bench.servers import last_figures

    said = """\
4000 records sent, 991.8 records/sec (0.95 MB/sec), 7.03 ms avg latency, 373.00 ms max latency, 1 ms 50th, 42 ms 95th, \
57 ms 99th, 72 ms 99.9th.
3000 steady state records sent, 986.5 records/sec (0.94 MB/sec), 2.05 ms avg latency, 57.00 ms max latency, 1 ms 50th, \
8 ms 95th, 31 ms 99th, 56 ms 99.9th.
"""
    assert last_figures(said).groups() == ("3000", "986.5", "0.94", "2.05", "57.00", "1", "8", "31", "56")


def test_a_compaction_has_ended_when_its_files_are_smaller_and_rest():
    """They are written beside the old ones first: neither that nor a pause before it is the end."""
    from bench.compaction import wait_until_quiet

    old, new, last = Path("0.log"), Path("0.log.cleaned"), Path("9.log")
    before = {old: (100, 1), last: (10, 1)}
    states = iter([before, before, before | {new: (40, 2)}, before | {new: (50, 3)}, {old: (50, 4), last: (10, 1)}])
    now = before

    def look():
        nonlocal now
        now = next(states, now)
        return now

    wait_until_quiet(look, 110, quiet=0.01, seconds=30, every=0.001)
    assert now == {old: (50, 4), last: (10, 1)}
    with pytest.raises(AssertionError, match="no compaction ended"):
        wait_until_quiet(lambda: before, 110, quiet=0, seconds=0.01, every=0.001)


def test_keyed_records_are_the_same_each_time_and_of_one_size():
    from bench.compaction import keyed

    first, again = (keyed(50, 100)(3000, 1000) for _ in range(2))
    assert first == again
    assert {len(each["key"] + each["value"]) for each in first} == {100}
    assert len({each["key"] for each in first}) <= 50 < len({each["value"] for each in first})


SMALL = {
    "compaction": ("--records", "30000", "--keys", "100", "--segment-bytes", str(2**20), "--alone-seconds", "0.2",
                   "--quiet-seconds", "0.2", "--rounds", "1", "--rate", "50", "--heap-mb", "0"),
    "replay": ("--memory-mb", "256", "--times", "0.02", "--rate", "50", "--alone-seconds", "0.2", "--rounds", "1"),
    "scale": ("--partitions", "20", "--producers", "2", "--records", "500", "--connections", "20", "--groups", "30",
              "--commits", "2", "--data-mb", "2", "--rounds", "1", "--heap-mb", "0"),
    "slow_disk": ("--partitions", "20", "--records", "2000", "--compacted-records", "20000", "--rate", "50",
                  "--seconds", "1", "--rounds", "1"),
}  # fmt: skip
FOUND = {
    "compaction": "compaction (records/s)",
    "replay": "Fetch: replay, of the disk's rate",
    "scale": "20 partitions: start after SIGKILL (s)",
    "slow_disk": "20 partitions, compaction: produce (records/s)",
}


@pytest.mark.parametrize("program", SMALL)
def test_the_log_is_measured_on_a_little(program, tmp_path):
    """Without Kafka: what it takes is measured by `make bench`."""
    said = run(f"bench.{program}", *SMALL[program], "--keep", str(tmp_path))
    assert FOUND[program] in said
    assert len(list(tmp_path.iterdir())) == 1


def test_plain_fetches_read_every_byte_of_a_partition():
    """Also where an answer ends amid a batch: the next one begins with it."""
    import mainstem
    from bench.clients import consume_all, fetch_all, produce_all
    from bench.servers import Server, create_topic

    with mainstem.embedded() as log:
        create_topic(Server("mainstem", log.bootstrap, 0), "fetched")
        produce_all(log.bootstrap, "fetched", 3_000, 1_000)
        read, seconds = fetch_all(log.bootstrap, "fetched", 3_000_000, at_once=70_000)
        assert 3_000_000 <= read < 3_200_000
        assert seconds > 0
        assert consume_all(log.bootstrap, "fetched")[:2] == (3_000, 3_000_000)
        with pytest.raises(AssertionError, match="of 9000000 bytes"):
            fetch_all(log.bootstrap, "fetched", 9_000_000, at_once=70_000)


def test_producers_share_the_partitions_or_each_has_all():
    import mainstem
    from bench.clients import produce_all
    from bench.servers import Server, create_topic, end_offsets

    with mainstem.embedded() as log:
        create_topic(Server("mainstem", log.bootstrap, 0), "shared", 8)
        produce_all(log.bootstrap, "shared", 8_001, 100, handles=4, partitions=8)
        assert end_offsets(log.bootstrap, "shared", 8) == 8_001
        produce_all(log.bootstrap, "shared", 8_000, 100, handles=2, partitions=8, everywhere=True)
        assert end_offsets(log.bootstrap, "shared", 8) == 16_001
