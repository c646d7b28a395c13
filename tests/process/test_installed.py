import json

import msgspec

from mainstem.client.internal import job_key
from mainstem.process import installed
from mainstem.process.installed import LOCK_FILE, other_packages, write_lock
from mainstem.process.versions import RETIRED_FILE, Fixed, write_fixed


def started(data, job, version="1"):
    """The directory of a version that was started with what is installed."""
    home = data / "jobs" / job_key(job, version)
    write_lock(home)
    write_fixed(home, Fixed(job, version, "c0de", {}, "x", 1, 4))
    return home


def test_versions_that_run_with_other_packages_than_they_were_started_with_are_told(tmp_path, monkeypatch):
    home = started(tmp_path, "same")
    lock = json.loads((home / LOCK_FILE).read_text())
    assert lock["packages"]["msgspec"] == msgspec.__version__
    assert "msgspec" in lock["used"]
    assert "org.apache.kafka:kafka-clients" in lock["jars"]
    assert list(other_packages(tmp_path)) == []

    retired = started(tmp_path, "retired")
    (retired / RETIRED_FILE).touch()
    write_fixed(tmp_path / "jobs" / "of_before@1", Fixed("of_before", "1", "c0de", {}, "x", 1, 4))
    (unused,) = list(set(lock["packages"]) - set(lock["used"]))[:1]
    found = installed._installed()
    monkeypatch.setattr(installed, "_installed", lambda: found | {"msgspec": "99.0", unused: "99.0"})
    (told,) = other_packages(tmp_path)
    assert (told.job, told.changed) == ("same", [("msgspec", msgspec.__version__, "99.0")])
    assert (
        f"job same@1 runs with other packages than those it was first started with: msgspec 99.0 for {msgspec.__version__};"
        in str(told)
    )
    monkeypatch.setattr(installed, "_installed", dict)
    (told,) = other_packages(tmp_path)
    assert "none for" in str(told)
    assert f" and {len(lock['used']) - 5} more;" in str(told)


def test_a_file_that_says_nothing_is_told(tmp_path):
    home = started(tmp_path, "job")
    for damaged in (b"{", b"\xff", b"[1]", b'{"packages": {"\xff": ""}}'):
        (home / LOCK_FILE).write_bytes(damaged)
        (told,) = other_packages(tmp_path)
        assert str(told).startswith(f"{home / LOCK_FILE}: expected the packages that a job was started with: ")
