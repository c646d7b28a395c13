import msgspec

from mainstem.client import splices
from mainstem.client.progress import Read, Written
from mainstem.client.splices import At, Part, Pending


def read(rows, start=0):
    return Read(start=start, end=start + rows, rows=rows, hash=rows)


def test_a_state_of_before_there_were_books_begins_them_where_it_is():
    old = msgspec.convert({"version": "1", "output": "a", "offsets": {"0": 5}, "move": None}, At, strict=False)
    begun = old.with_books(Written(5, 7))
    assert (begun.offsets, begun.read, begun.told) == ({0: 5}, {0: Read(start=5, end=5)}, Written(5, 7))
    assert begun.with_books(Written(9, 9)) == begun
    assert msgspec.convert(msgspec.to_builtins(begun, str_keys=True), At, strict=False) == begun


def test_what_was_read_of_each_version_is_kept_and_of_the_oldest_ones_the_counts(monkeypatch):
    monkeypatch.setattr(splices, "MOST_PARTS", 2)
    at = At("1", "a", {0: 3}, Pending("2", "b", {}, 0), read={0: read(3)}, other=Written(1, 1))
    for version in "234":
        at = at.then(version, "b", {0: 10})
        at = msgspec.structs.replace(at, offsets={0: 12}, read={0: read(2, 10)})
    assert at.parts == [Part("2", "b", {0: read(2, 10)}), Part("3", "b", {0: read(2, 10)})]
    assert (at.move, at.version, at.other) == (None, "4", Written(4, 4))
    assert at.told == Written(10, 10)  # 1 before, and all that was read
