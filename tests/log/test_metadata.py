import errno
from uuid import UUID, uuid4

import pytest

from mainstem.log import SystemDisk
from mainstem.log.errors import CorruptFile
from mainstem.log.metadata import (
    META_PROPERTIES,
    PARTITION_METADATA,
    UnsupportedFormat,
    _with_crc,
    create_files,
    decode_topic_id,
    encode_topic_id,
    open_directory_metadata,
)
from tests.log.simulated_disk import SimulatedDisk


def test_a_topic_id_in_kafkas_text():
    topic_id = UUID("e0c0f1a8-3f5e-4b1e-9d43-1c2f5d6a7b8c")
    text = encode_topic_id(topic_id)
    assert len(text) == 22
    assert decode_topic_id(f"version: 0\ntopic_id: {text}\n".encode()) == topic_id


@pytest.mark.parametrize("data", [b"", b"topic_id:", b"topic_id: short", b"\xff\xfe", b"version: 0\n"])
def test_a_file_without_a_topic_id(data):
    with pytest.raises(CorruptFile, match="no topic id"):
        decode_topic_id(data)


def test_a_directory_keeps_its_cluster_id(tmp_path):
    made = open_directory_metadata(SystemDisk(), tmp_path)
    assert open_directory_metadata(SystemDisk(), tmp_path) == made
    assert made.cluster_id != made.directory_id
    lines = (tmp_path / META_PROPERTIES).read_text().splitlines()
    assert "version=1" in lines  # Kafka's own tools read the file


def test_a_directory_of_a_later_program(tmp_path):
    open_directory_metadata(SystemDisk(), tmp_path)
    path = tmp_path / META_PROPERTIES
    head = path.read_bytes().rpartition(b"mainstem.crc32c=")[0].replace(b"mainstem.format=1", b"mainstem.format=2")
    path.write_bytes(_with_crc(head))
    with pytest.raises(UnsupportedFormat, match=r"meta\.properties: format 2, this program reads up to 1"):
        open_directory_metadata(SystemDisk(), tmp_path)


@pytest.mark.parametrize(
    "content", ["", "cluster.id=abc\n", "mainstem.format=1\n", "mainstem.format=x\ncluster.id=a\n"]
)
def test_a_damaged_file(tmp_path, content):
    (tmp_path / META_PROPERTIES).write_text(content)
    with pytest.raises(CorruptFile, match=r"expected cluster\.id and mainstem\.format"):
        open_directory_metadata(SystemDisk(), tmp_path)


def test_each_flipped_bit_is_found(tmp_path):
    """It was another cluster then, or another directory."""
    open_directory_metadata(SystemDisk(), tmp_path)
    path = tmp_path / META_PROPERTIES
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises((CorruptFile, UnsupportedFormat), match=META_PROPERTIES):
            open_directory_metadata(SystemDisk(), tmp_path)


def test_a_file_of_before_has_no_crc(tmp_path):
    made = open_directory_metadata(SystemDisk(), tmp_path)
    path = tmp_path / META_PROPERTIES
    path.write_bytes(path.read_bytes().rpartition(b"mainstem.crc32c=")[0])
    assert open_directory_metadata(SystemDisk(), tmp_path) == made


def test_two_directories_are_two_clusters(tmp_path):
    ids = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ids.add(open_directory_metadata(SystemDisk(), tmp_path / name).cluster_id)
    assert len(ids) == 2
    assert uuid4() not in ids


def test_a_directory_that_a_full_disk_has_no_room_for_leaves_nothing(tmp_path):
    """It was ignored at every start, since nothing said whose it was."""
    disk = SimulatedDisk(tmp_path)
    disk.refuse("write", errno.ENOSPC, PARTITION_METADATA)
    with pytest.raises(OSError, match="No space"):
        create_files(disk, tmp_path / "t-0", UUID(int=7))
    assert not disk.exists(tmp_path / "t-0")
