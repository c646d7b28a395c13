"""What every measurement tells about itself: the machine, each line that it prints, and where both are kept."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """One line: when, what, on what, and how busy it was before."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = psutil.virtual_memory().total / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; commit {_commit()}; {os.cpu_count()} cores ({model[1] if model else platform.machine()}), "
        f"{memory:.0f} GB; Linux {platform.release()}; Python {platform.python_version()}; load before the run {load}"
    )


def _commit() -> str:
    """Of the tree that is measured; with a `+` where it has been changed since."""
    asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


class Report:
    """Prints lines and keeps them in `directory` (mostly RESULTS), as `<name>-<time>.txt`."""

    def __init__(self, name: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.txt"
        self.say(machine())

    def say(self, line: str) -> None:
        print(line, flush=True)
        with self.path.open("a") as out:
            out.write(line + "\n")

    def keep(self, title: str, text: str) -> None:
        """What a program that was run printed: into the file only."""
        with self.path.open("a") as out:
            out.write(f"== {title}\n{text.rstrip()}\n\n")
