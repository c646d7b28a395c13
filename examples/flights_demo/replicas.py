"""The replicated arithmetic service (examples/arithmetic), on the demo's log: its own demo, and what it found."""

import os
import subprocess
import sys
from collections.abc import Callable

from check import Line
from truth import HERE

from mainstem.core.process import PARENT, start_child

MODELS = 2
SAID = {
    "answers of a model are plain Python's, of 2": ("all answers are those of plain Python", MODELS),
    "a model's nodes in one state, of 2": ("also after all were killed: yes", MODELS),
    "update undone by a zombie, fence off": (": the 10 that were acknowledged are lost", 1),
    "the operation that is not deterministic": ("the operation at offset", 1),
}
"""By the name of its line: what that demo says, and how often."""


def replicas(bootstrap: str, tell: Callable[[str], None]) -> list[Line]:
    """Run both models of the service while their nodes are killed, stopped and woken up."""
    command = [sys.executable, "-u", "-m", "examples.arithmetic.demo", "--bootstrap", bootstrap]
    environment = os.environ | {PARENT: str(os.getpid())}
    process = start_child(
        command, cwd=HERE.parents[1], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    with process:
        for line in process.stdout:
            said.append(line)
            tell(f"  {line.rstrip()}")
    fine = process.returncode == 0
    output = "".join(said)
    note = "" if fine else "".join(said[-1:]).strip()
    return [
        Line("replicas", name, None, output.count(text), times, fine and output.count(text) == times, note)
        for name, (text, times) in SAID.items()
    ]
