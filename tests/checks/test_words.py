"""What must not stand in tracked files: places of one machine, addresses of package registries, unfinished work."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT, tracked_files

# Brackets in the patterns keep this file from matching itself.
FORBIDDEN = {
    "a path of one machine": r"(^|[^a-z])/(w[o]rk|f[a]rm|r[o]ot|h[o]me/[a-z]+)/",
    "the host of a package registry": r"py[p]i\.org|pythonh[o]sted|repo1?\.m[a]ven|registry\.n[p]mjs|crates\.[i]o/|proxy\.g[o]lang",
    "unfinished work": r"\bT[O]DO\b|\bF[I]XME\b|\bX[X]X\b|raise NotImpl[e]mentedError",
    "a number that only the tracker knows": r"\b[Ii]ssue #?\d+\b",
}
LARGE: dict[str, str] = {}
"""Tracked files above 1 MB, each with its reason."""


def text_files() -> list[Path]:
    return [path for path in tracked_files() if b"\0" not in (ROOT / path).read_bytes()[:4096]]


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_no_tracked_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in text_files()
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_large_files_have_a_reason() -> None:
    large = [str(path) for path in tracked_files() if (ROOT / path).stat().st_size > 1_000_000]
    assert [path for path in large if path not in LARGE] == []


def test_nothing_that_a_run_makes_is_tracked() -> None:
    ignored = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert ignored == ""
