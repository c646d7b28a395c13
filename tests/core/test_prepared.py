"""Threads that decode into one type for the first time, at the same moment."""

import re
import signal
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

PLAIN = ("prepared", "dict", "tuple", "NextOffsets")

RACE = """
import sys, threading
import msgspec
from mainstem.core.prepared import prepared

sys.setswitchinterval(1e-6)

class Part(msgspec.Struct):
    number: int

class Whole(msgspec.Struct):
    parts: dict[str, dict[int, Part]] = {}
    more: list[Part] = []

data = b'{"parts": {"a": {"1": {"number": 1}}}, "more": [{"number": 2}]}'
ready = threading.Barrier(8)

def run():
    ready.wait()
    for _ in range(3):
        assert msgspec.json.decode(data, type=KIND).more[0].number == 2

threads = [threading.Thread(target=run) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def ended(kind, tries):
    """How processes end in which threads decode so."""
    command = [sys.executable, "-c", RACE.replace("KIND", kind)]
    return [subprocess.run(command, check=False, capture_output=True).returncode for _ in range(tries)]


def test_threads_may_decode_into_a_type_that_is_prepared():
    assert set(ended("prepared(Whole)", 20)) == {0}


@pytest.mark.long
def test_without_it_the_process_ends():
    """The control. Where it fails, msgspec has been mended, and `prepared` may go."""
    assert -signal.SIGSEGV in ended("Whole", 200)


def test_every_type_of_ours_that_is_decoded_into_is_prepared():
    """Of Python's own types nothing has to be worked out."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        calls = re.findall(r"msgspec\.(?:json|msgpack)\.decode\(.*?type=([A-Za-z_]\w*)", text)
        calls += re.findall(r"msgspec\.convert\([^\n]*?, ([A-Za-z_]\w*)(?:\)|,|\[)", text)
        found += [f"{path.relative_to(ROOT)}: {each}" for each in calls if each not in PLAIN]
    assert found == []
