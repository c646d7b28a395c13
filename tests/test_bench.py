"""The programs under bench/ still run: `make bench` takes too long for every change."""

import importlib
import re
import subprocess
import sys

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


@pytest.mark.parametrize("program", [p for p in PROGRAMS if "argparse" in (ROOT / "bench" / f"{p}.py").read_text()])
def test_every_program_says_what_it_takes(program):
    assert "usage:" in run(f"bench.{program}", "--help")


def test_every_program_that_make_bench_runs_is_there():
    makefile = (ROOT / "Makefile").read_text()
    run_by_make = {line.split("-m bench.")[1].split()[0] for line in makefile.splitlines() if "-m bench." in line}
    assert run_by_make
    assert run_by_make <= set(PROGRAMS)


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
    from bench.log_vs_kafka import Server, table

    many = [1_234_567.0, 904_159.0, 10_481_037.0]
    ours = Server("mainstem", "", 0, {"produce 100 B (records/s)": many, "start (s)": [0.1]})
    kafka = Server("kafka", "", 0, {"produce 100 B (records/s)": [508_906.0, 1.0, 12_000_000.0], "start (s)": [4.0]})
    head, produced, started = table([ours, kafka]).splitlines()
    assert len({len(line) for line in (head, produced, started)}) == 1
    assert re.split("  +", produced) == [
        "produce 100 B (records/s)", "1,234,567 (904,159–10,481,037)", "508,906 (1–12,000,000)", "2.43",
    ]  # fmt: skip
    assert started.split() == ["start", "(s)", "0.10", "4.00", "0.03"]
