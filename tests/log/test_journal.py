from pathlib import Path
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstem.log import SystemDisk
from mainstem.log.disk import File
from mainstem.log.errors import CorruptFile
from mainstem.log.journal import (
    DATA,
    DELETE,
    LOG_START,
    NAMES,
    PAGE,
    Entry,
    Journal,
    decode_frame,
    decode_frames,
    encode_frame,
    generation_of,
    next_generation,
    read_frames,
    write_frames,
)
from tests.log.simulated_disk import SimulatedDisk

entries = st.lists(
    st.builds(
        Entry,
        kind=st.sampled_from([DATA, LOG_START, DELETE]),
        topic_id=st.uuids(),
        partition=st.integers(0, 2**31 - 1),
        number=st.integers(0, 2**62),
        position=st.integers(0, 2**31),
        payload=st.lists(st.binary(max_size=3_000), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
)
sizes = st.lists(st.integers(0, 9_000), min_size=1, max_size=6)


def files_of(*contents: bytes) -> list[File]:
    disk = SimulatedDisk(Path("/log"))
    files = [disk.open(Path(f"/log/{number}"), create=True) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write([content], 0)
    return files


def file_of(content: bytes) -> File:
    return files_of(content)[0]


def frame(sequence: int, size: int, generation: int = 1) -> bytes:
    entry = Entry(DATA, UUID(int=1), 0, payload=(bytes([sequence % 251]) * size,))
    return b"".join(encode_frame(generation, sequence, [entry]))


def plain(entry: Entry) -> tuple:
    return (entry.kind, entry.topic_id, entry.partition, entry.number, entry.position, entry.data)


@given(st.integers(1, 2**40), st.integers(1, 2**40), entries)
def test_decode_gives_what_encode_was_given(generation, sequence, given_entries):
    data = b"".join(encode_frame(generation, sequence, given_entries))
    assert len(data) % PAGE == 0
    found = decode_frame(file_of(b"x" * PAGE + data), PAGE, PAGE + len(data))
    assert (found.generation, found.sequence, found.size) == (generation, sequence, len(data))
    assert [plain(e) for e in found.entries] == [plain(e) for e in given_entries]


@given(sizes, st.data())
def test_rounds_that_are_held_in_a_file_are_all_there_or_it_is_damaged(given_sizes, data):
    content = b"".join(frame(10 + number, size) for number, size in enumerate(given_sizes))
    found = decode_frames(file_of(content))
    assert [each.sequence for each in found] == list(range(10, 10 + len(given_sizes)))
    again = file_of(b"")
    write_frames(found, again)
    assert again.read(len(content) + 1, 0) == content
    place = data.draw(st.integers(0, len(given_sizes) - 1), label="damaged round")
    start = sum(each.size for each in found[:place])
    with pytest.raises(CorruptFile, match=f"byte {start}: no round of a journal"):
        decode_frames(file_of(content[:start] + b"?" + content[start + 1 :]))


@given(sizes, st.data())
def test_any_cut_leaves_the_whole_frames_before_it(given_sizes, data):
    content, ends = b"", [0]
    for number, size in enumerate(given_sizes):
        content += frame(10 + number, size)
        ends.append(len(content))
    cut = data.draw(st.integers(0, len(content)))
    frames = read_frames(files_of(content[:cut], b""), generation=1, sequence=10)
    # Padding at the end of the last page does not matter.
    assert len(frames) in (sum(end <= cut for end in ends) - 1, sum(end <= cut for end in ends))
    assert [f.sequence for f in frames] == list(range(10, 10 + len(frames)))


@given(st.lists(st.integers(0, 9_000), min_size=2, max_size=5), st.data())
def test_damage_before_the_last_frame_is_found(given_sizes, data):
    frames = [bytearray(frame(1 + n, size)) for n, size in enumerate(given_sizes)]
    damaged = data.draw(st.integers(0, len(frames) - 2))
    byte = data.draw(st.integers(0, 77 + given_sizes[damaged] - 1), label="up to the padding")
    frames[damaged][byte] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptFile, match=f"round {damaged + 1} is missing or damaged"):
        read_frames(files_of(b"".join(frames)), generation=1, sequence=1)


def test_the_last_frame_may_be_torn():
    torn = bytearray(frame(2, 5_000))
    torn[4_500:4_600] = bytes(100)
    assert [f.sequence for f in read_frames(files_of(frame(1, 10) + torn), generation=1, sequence=1)] == [1]


def test_two_generations_follow_each_other_and_older_ones_are_over():
    old = frame(5, 100, generation=1) + frame(6, 100, generation=1)
    first = frame(8, 10, generation=3) + old[PAGE:]
    second = frame(7, 10, generation=2)
    assert [f.sequence for f in read_frames(files_of(first, second), generation=2, sequence=7)] == [7, 8]
    with pytest.raises(CorruptFile, match="round 7 is missing"):
        read_frames(files_of(first, b""), generation=2, sequence=7)


def test_frames_are_appended_to_two_files_in_turn(tmp_path):
    journal = Journal(tmp_path, SystemDisk(), generation=4, sequence=20)
    for n in range(3):
        journal.append([Entry(LOG_START, UUID(int=n), 0, number=n)])
        journal.sync()
        if n == 1:
            journal.switch()
    assert journal.sequence == 23
    contents = [(tmp_path / name).read_bytes() for name in NAMES]
    assert [len(content) for content in contents] == [2 * PAGE, PAGE]
    frames = read_frames(files_of(*contents), generation=4, sequence=20)
    assert [(f.generation, f.entries[0].number) for f in frames] == [(4, 0), (4, 1), (5, 2)]


@given(st.binary(max_size=300))
def test_random_bytes_are_no_frame(data):
    assert read_frames([file_of(data)], generation=0, sequence=0) == []
    assert decode_frame(file_of(b"MSJ1" + data), 0, 4 + len(data)) is None


def test_rounds_of_earlier_runs_are_forgotten(tmp_path):
    journal = Journal(tmp_path, SystemDisk(), generation=1, sequence=1)
    journal.append([Entry(DELETE, UUID(int=1), 0)])
    journal.switch()
    journal.append([Entry(DELETE, UUID(int=2), 0)])
    again = Journal(tmp_path, SystemDisk(), generation=3, sequence=3)
    again.empty()
    assert [(tmp_path / name).read_bytes() for name in NAMES] == [b"", b""]


@given(written=st.lists(st.integers(0, 3), max_size=8))
def test_without_a_checkpoint_the_last_rounds_are_found_whatever_becomes_of_the_next(written):
    """The first round of a generation was torn, or taken back, and the generation before had no rounds: older ones
    passed for the last.
    """
    path = Path("/log")
    disk = SimulatedDisk(path)
    journal = Journal(path, disk, generation=1, sequence=1)
    for rounds in written:
        for _ in range(rounds):
            journal.append([Entry(LOG_START, UUID(int=1), 0, number=journal.sequence)])
        journal.switch()
    last = journal.sequence - 1
    next_round = [Entry(LOG_START, UUID(int=1), 0, number=last + 1, payload=(bytes(PAGE),))]
    journal.append(next_round)
    journal.size -= 2 * PAGE
    journal.sequence -= 1
    journal.take_back()
    frames = read_frames([disk.open(path / name) for name in NAMES], generation=None, sequence=None)
    assert not frames or frames[-1].sequence == last


@pytest.mark.parametrize(("content", "generation"), [
    (b"", None), (bytes(PAGE), None), (b"MSJ1", None), (frame(1, 10, generation=3), 3),
    (frame(1, 10, generation=3)[:40], 3), (b"x" + frame(1, 10, generation=3), None),
])  # fmt: skip
def test_a_file_says_what_it_was_used_for_last(content, generation):
    assert generation_of(file_of(content)) == generation


def test_generations_of_starts_follow_each_other_and_cannot_be_guessed():
    seen = [next_generation(7) for _ in range(20)]
    assert len(set(seen)) == 20
    assert min(seen) >= 2**40
    assert next_generation(seen[0]) > seen[0]


MADE_UP = frame(2**62, 10, generation=2**62)
"""What somebody who may produce could send, and have lie where a page begins."""


@pytest.mark.parametrize("place", ["in a torn frame", "behind the last frame"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_what_a_client_makes_look_like_a_frame_is_none(place, has_checkpoint):
    """A start took it for damage, and without a checkpoint for the last round that there was."""
    mine = [frame(number, 10, generation=70) for number in (5, 6)]
    payload = bytes(PAGE - 77) + MADE_UP + bytes(PAGE)
    whole = b"".join(encode_frame(70, 7, [Entry(DATA, UUID(int=1), 0, payload=(payload,))]))
    assert whole[PAGE : PAGE + len(MADE_UP)] == MADE_UP
    rest = bytes(PAGE) + whole[PAGE:] if place == "in a torn frame" else MADE_UP
    generation, sequence = (70, 5) if has_checkpoint else (None, None)
    found = read_frames(files_of(b"".join(mine) + rest), generation=generation, sequence=sequence)
    assert [each.sequence for each in found] == [5, 6]


def test_what_a_client_makes_look_like_the_beginning_of_a_large_frame_is_not_gone_through():
    """Each such page had the whole file read."""
    made_up = frame(2**62, 10, generation=2**62)
    made_up = made_up[:8] + (PAGE * 50).to_bytes(4, "big") + made_up[12:]
    file = file_of(frame(5, 10, generation=70) + made_up * 100)
    read = 0

    class Counting:
        path = file.path

        def size(self):
            return file.size()

        def read(self, size, position):
            nonlocal read
            read += size
            return file.read(size, position)

    assert [each.sequence for each in read_frames([Counting()], generation=70, sequence=5)] == [5]
    assert read <= file.size() + PAGE
