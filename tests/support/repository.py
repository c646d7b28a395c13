"""The repository as its own checks see it."""

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "mainstem"


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git tracks and is there, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file())


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
