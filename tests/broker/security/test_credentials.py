"""Credentials: what is kept of a password, where users come from, and what a wrong file is told."""

import asyncio
import os

import pytest
import structlog

from mainstem.broker.facts import METADATA, Facts
from mainstem.broker.security.credentials import Credentials, Mechanism, read_users
from mainstem.core import ManualClock
from mainstem.core.config import BadSetting
from mainstem.log import LogConfig, LogDirectory
from mainstem.wire.errors import Code, RequestError


def with_facts(tmp_path, check):
    async def run() -> None:
        directory = await LogDirectory.open(tmp_path, LogConfig(), clock=ManualClock())
        try:
            await check(directory, await Facts.load(directory, ManualClock()))
        finally:
            await directory.close()

    asyncio.run(run())


def test_a_credential_is_kept_without_the_password_and_taken_before_the_settings(tmp_path):
    async def check(directory, facts) -> None:
        credentials = Credentials(facts, {"alice": "from-settings", "bob": "bobs"})
        assert credentials.check_password("alice", "from-settings")
        assert not credentials.check_password("alice", "bobs")
        assert not credentials.check_password("nobody", "bobs")
        salted = Mechanism.SHA_512.iterated(b"changed-secret", b"salt", 5000)
        await credentials.change(iter(()), iter([("alice", 2, 5000, b"salt", salted)]))
        assert credentials.described() == {"alice": [(2, 5000)]}
        assert credentials.check_password("alice", "changed-secret")
        assert not credentials.check_password("alice", "from-settings")
        again = Credentials(await Facts.load(directory, ManualClock()), {})
        assert again.check_password("alice", "changed-secret")
        kept = b"".join(each.read_bytes() for each in directory.partitions[METADATA].directory.glob("*.log"))
        assert b"alice" in kept
        assert not any(secret in kept for secret in (b"changed-secret", b"bobs", b"from-settings", salted))
        assert "salt" not in repr(again.find_or_pretend("alice", Mechanism.SHA_512)[0])
        await again.change(iter([("alice", 2)]), iter(()))
        assert again.described() == {}
        assert Credentials(await Facts.load(directory, ManualClock()), {}).described() == {}

    with_facts(tmp_path, check)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("", 1, 4096, b"s"), Code.unacceptable_credential),
        (("a", 3, 4096, b"s"), Code.unsupported_sasl_mechanism),
        (("a", 1, 4095, b"s"), Code.unacceptable_credential),
        (("a", 1, 16385, b"s"), Code.unacceptable_credential),
        (("a", 1, 4096, b""), Code.unacceptable_credential),
    ],
)
def test_what_may_not_be_kept(arguments, code):
    with pytest.raises(RequestError) as refused:
        Credentials.check_upsertion(*arguments)
    assert refused.value.code is code


def test_a_file_of_users(tmp_path):
    file = tmp_path / "users"
    file.write_text("# ours\n\nalice:secret: with colon \nbob:b\n")
    file.chmod(0o600)
    with structlog.testing.capture_logs() as told:
        assert read_users(str(file)) == {"alice": "secret: with colon ", "bob": "b"}
    assert told == []
    file.chmod(0o640)
    with structlog.testing.capture_logs() as told:
        read_users(str(file))
    assert [entry["hint"] for entry in told] == [f"others may read the passwords: chmod 600 {file}"]


@pytest.mark.parametrize("text", ["alice\n", ":hidden\n", "alice:\n", "alice:hidden\nalice:hidden\n"])
def test_a_line_that_is_none_is_named_and_not_shown(tmp_path, text):
    file = tmp_path / "users"
    file.write_text(text)
    with pytest.raises(BadSetting, match=r"users, line \d: expected") as refused:
        read_users(str(file))
    assert "hidden" not in str(refused.value)
    with pytest.raises(BadSetting, match="expected a file to read") as refused:
        read_users(str(tmp_path / "nowhere"))
    assert "NAME:PASSWORD" in refused.value.hint


def test_a_pipe_that_nobody_writes_to_is_no_file_of_users(tmp_path):
    """The start waited for its writer, and SIGTERM did not end it."""
    os.mkfifo(tmp_path / "users")
    with pytest.raises(BadSetting, match="users: expected a file to read: Is a pipe"):
        read_users(str(tmp_path / "users"))
