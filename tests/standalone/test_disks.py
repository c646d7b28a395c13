from collections import namedtuple

import pytest

from mainstem.standalone import disks
from mainstem.standalone.disks import GIB, Disk, DiskAlarm, disk_of


@pytest.mark.parametrize(
    ("free", "size", "low"), [(6 * GIB, 500 * GIB, False), (4 * GIB, 500 * GIB, True), (2 * GIB, 10 * GIB, False)]
)
def test_little_is_less_on_a_small_disk(free, size, low):
    assert Disk("/d", free, size).is_low is low


def test_a_directory_need_not_be_there_yet(tmp_path):
    found = disk_of(tmp_path / "not" / "yet")
    assert found.directory == str(tmp_path)
    assert 0 < found.free_bytes <= found.bytes


def test_it_is_told_once_that_a_disk_is_nearly_full_and_once_that_there_is_room_again(tmp_path, monkeypatch):
    free = 100 * GIB
    monkeypatch.setattr(disks.shutil, "disk_usage", lambda _: namedtuple("usage", "total free")(500 * GIB, free))
    (tmp_path / "tables").mkdir()
    alarm = DiskAlarm()

    def news():
        """Of one disk."""
        return [line for name in ("", "tables", "later") for line in alarm.look(tmp_path / name)()]

    assert news() == []
    free = 4 * GIB
    (line,) = news()
    assert line.startswith(f"disk: 4.0 GiB of 500.0 GiB are free at {tmp_path}: ")
    assert "retention.ms" in line
    for free in (3 * GIB, int(5.5 * GIB)):  # noqa: B007  disk_usage has it
        assert news() == []
    free = 7 * GIB
    assert news() == [f"disk: 7.0 GiB of 500.0 GiB are free at {tmp_path}: there is room again"]
