"""Rows by their key, in RocksDB: one topic, its last row per key, and, where that is asked for, every row before it.

    a                                      state: commits, order, flushed, applied (JSON)
    f<commit, 8 bytes>                     the last commit that was flushed (below)
    k<text of the record's key>            where its row is: the bytes of its key's columns
    r<key>                                 [partition, offset, text of the record's key or null, row]
    v<key><partition, 4><2**63-1-offset, 8>  [order, row or null]: versions, the newest first; order counts them all

`<key>` is the key's columns as `serve/keys.py` writes them. A record whose row has another key than the last one with
the same record key moves the row; of two record keys with the same columns, the later one owns the row.

All is in one write, and so in one log file of RocksDB until it is flushed. Each flush is preceded by a mark (f), which
the state of later commits names: a database that has lost files in the middle, and not at its end, lacks that mark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from mainstem.client.progress import Read
from mainstem.core.prepared import prepared
from mainstem.serve.directory import IndexDirectory
from mainstem.serve.errors import BadQuery, IndexDamaged, NotApplied, NotKept, UnfitChanges
from mainstem.serve.index import MOST_BYTES, Applied, Change, Row
from mainstem.serve.keys import encode_key
from mainstem.serve.rows import UNPACKABLE, pack, packed, unpack

if TYPE_CHECKING:
    from rocksdict import Options, RdictIter, WriteBatch

KIND = "key-value"
_STATE = b"a"
_VERSION = Struct(">iQ")
_NEWEST = 2**63 - 1
_ABOVE = b"\xff"  # above the first byte of every value of a key
_FLUSH_BYTES = 32 << 20
"""So much of writes is held in memory, and read from RocksDB's log at the next start."""


class Found(msgspec.Struct, frozen=True):
    """A row, and the record that it comes from."""

    row: Row
    partition: int
    offset: int


class Page(msgspec.Struct, frozen=True):
    """Rows in the order of their keys, few or none where the time was over; `after` is where to go on, None at the
    end.
    """

    rows: list[Found]
    after: bytes | None


class _State(msgspec.Struct, frozen=True):
    commits: int
    order: int
    flushed: int
    applied: Applied


class KeyValueIndex:
    """The rows of one topic by their key; `apply` commits."""

    pending = False
    failure = None

    def __init__(self, directory: IndexDirectory, key_columns: Sequence[str], *, versions: bool) -> None:
        self.directory = directory
        self.key_columns = tuple(key_columns)
        self.versions = versions
        self._state: _State | None = None
        self._unflushed = 0

    @staticmethod
    def open(path: Path, *, key_columns: Sequence[str], versions: bool) -> "KeyValueIndex":
        """Open the index, or begin one.

        Raises:
            OtherShape: it has other key columns, or versions where none are wanted, or none.
            IndexDamaged, IndexInUse, IndexUnavailable: see there.
        """
        shape = {"key_columns": list(key_columns), "versions": versions}
        directory = IndexDirectory.open(path, KIND, shape)
        try:
            index = KeyValueIndex(directory, key_columns, versions=versions)
            with directory.explained():
                index._open()
        except BaseException:
            directory.close()
            raise
        return index

    @property
    def path(self) -> Path:
        """As in `Index`."""
        return self.directory.path

    @property
    def applied(self) -> Applied | None:
        """As in `Index`."""
        return None if self._state is None else self._state.applied

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """As in `Index`.

        Raises:
            UnfitChanges: rows without any column of the key, with a value there that no key can have, or with one
                anywhere that is too large.
        """
        if len(applied.reads) > 1:
            raise ValueError(f"a key-value index is of one topic, found {sorted(applied.reads)}")
        with self.directory.explained():
            before = self._state or _State(0, 0, 0, applied)
            state = _State(before.commits + 1, before.order + len(changes), before.flushed, applied)
            batch = _Batch(self, changes, before.order)
            self._write(batch.lay(changes), state)
        self.directory.committed()
        self._state = state
        if self._unflushed >= _FLUSH_BYTES:
            with self.directory.explained():
                self._flush()

    def commit(self) -> None:
        """Nothing waits for it."""

    def get(self, key: Sequence[Any], at: Mapping[int, int] | None = None) -> Found | None:
        """The row of a key, now, or `at` a position of the log (partition -> next offset).

        Nothing counts of a partition that `at` does not name.

        Raises:
            BadQuery: not as many values as the key has columns, or `at` of an index without versions.
            NotKept, NotApplied: `at` is before or after what was applied.
        """
        if len(key) != len(self.key_columns):
            expected = f"{len(self.key_columns)} values ({', '.join(self.key_columns)})"
            raise BadQuery(f"key: expected {expected}, found {len(key)}")
        encoded = encode_key(key)
        with self.directory.explained():
            if at is None:
                value = self._db.get(b"r" + encoded)
                return None if value is None else _found(value)
            self._check(at)
            found = _as_of(self._db.iter(), encoded, at)
            return None if found is None else found[0]

    def scan(
        self,
        prefix: Sequence[Any] = (),
        after: bytes | None = None,
        limit: int = 100,
        at: Mapping[int, int] | None = None,
        seconds: float = math.inf,
    ) -> Page:
        """Up to `limit` rows whose key begins with the values `prefix`, from behind `after`, in the order of the keys;
        of large rows fewer, about `MOST_BYTES`, and so many as are found in `seconds`: as of an old position there may
        be a row of one key in a million, and each is looked at.

        A page is of one moment; the next one may be of a later one, unless both have the same `at`.

        Raises:
            As `get`; BadQuery: `after` is from a scan of another prefix.
        """
        if len(prefix) > len(self.key_columns):
            raise BadQuery(f"prefix: expected up to {len(self.key_columns)} values, found {len(prefix)}")
        if limit < 1:
            raise BadQuery(f"limit: expected 1 or more, found {limit}")
        begin = encode_key(prefix)
        if after is not None and not after.startswith(begin):
            raise BadQuery("after: it is from a scan of another prefix")
        with self.directory.explained():
            if at is not None:
                self._check(at)
                if self._is_before_all(at):
                    return Page([], None)
            until = monotonic() + seconds
            rows: list[Found] = []
            last, left = None, MOST_BYTES
            for key, found in self._rows(begin, after) if at is None else self._rows_as_of(begin, after, at):
                if last is not None and monotonic() >= until:  # one key at least, or nobody comes to the end
                    return Page(rows, last)
                if found is not None:
                    row, size = found
                    if len(rows) == limit or (rows and size > left):
                        return Page(rows, last)
                    rows.append(row)
                    left -= size
                last = key
            return Page(rows, None)

    def snapshot(self, directory: Path) -> None:
        """As in `Index`; files that do not change any more are linked where the file system can."""
        from rocksdict import Checkpoint

        with self.directory.explained():
            self._flush()
            self.directory.copy_description(directory)
            Checkpoint(self._db).create_checkpoint(str(directory / self.directory.files.name))

    def close(self) -> None:
        """As in `Index`."""
        self._db.close()
        self.directory.close()

    def _open(self) -> None:
        from rocksdict import Rdict

        self._db: Rdict = Rdict(str(self.directory.files), _options())
        try:
            self._state = self._read_state()
            self.directory.check_found(self._state is not None)
            if self._state is not None:
                self._flush()
        except BaseException:
            self._db.close()
            raise

    def _read_state(self) -> _State | None:
        data = self._db.get(_STATE)
        if data is None:
            return None
        try:
            state = msgspec.json.decode(data, type=prepared(_State))
        except msgspec.MsgspecError as error:
            raise IndexDamaged(f"{self.directory.path}: its state: {error}") from error
        if state.flushed and self._db.get(_mark(state.flushed)) is None:
            lost = f"commit {state.commits} follows on {state.flushed}, which is lost"
            raise IndexDamaged(f"{self.directory.path}: {lost}")
        return state

    def _key_of(self, row: Row) -> bytes:
        try:
            values = [row[column] for column in self.key_columns]
        except KeyError:  # one that JSON has left out, or a row of something else
            if row.keys().isdisjoint(self.key_columns):
                expected = ", ".join(self.key_columns)
                raise BadQuery(f"expected a row with the columns of the key ({expected}), found none of them") from None
            values = [row.get(column) for column in self.key_columns]
        return encode_key(values)

    def _write(self, batch: "WriteBatch", state: _State) -> None:
        batch.put(_STATE, msgspec.json.encode(state))
        self._unflushed += batch.size_in_bytes()
        self._db.write(batch)

    def _flush(self) -> None:
        """Write all to tables, so that RocksDB's log is empty: there is never more than one log with commits in it."""
        from rocksdict import WriteBatch

        state = self._state
        if state is not None and state.commits != state.flushed:
            batch = WriteBatch(raw_mode=True)
            batch.delete(_mark(state.flushed))
            batch.put(_mark(state.commits), b"")
            state = msgspec.structs.replace(state, flushed=state.commits)
            self._write(batch, state)
            self._db.flush()
            self._state = state
            self._unflushed = 0

    def _check(self, at: Mapping[int, int]) -> None:
        if not self.versions:
            raise BadQuery("this index keeps no versions", hint="set versions = true for the view; it is built anew")
        reads = self._reads()
        for partition, offset in at.items():
            read = reads.get(partition)
            if read is not None and offset < read.start:
                kept = f"rows are kept as of offset {read.start} and later"
                raise NotKept(f"partition {partition}: {kept}, asked for {offset}")
            end = 0 if read is None else read.end
            if offset > end:
                raise NotApplied(f"partition {partition}: asked for offset {offset}, applied are those before {end}")

    def _is_before_all(self, at: Mapping[int, int]) -> bool:
        """Whether nothing was applied before `at`: then no key needs a look."""
        reads = self._reads()
        return all(partition not in reads or offset <= reads[partition].start for partition, offset in at.items())

    def _reads(self) -> Mapping[int, Read]:
        applied = self.applied
        return next(iter(applied.reads.values()), {}) if applied else {}

    def _rows(self, begin: bytes, after: bytes | None) -> Iterator[tuple[bytes, tuple[Found, int]]]:
        """Key, row, and its bytes."""
        iterator = self._db.iter()
        iterator.seek(b"r" + begin if after is None else b"r" + after + b"\0")
        end = b"r" + begin + _ABOVE
        while _valid(iterator) and (key := iterator.key()) < end:
            value = iterator.value()
            yield key[1:], (_found(value), len(value))
            iterator.next()

    def _rows_as_of(
        self, begin: bytes, after: bytes | None, at: Mapping[int, int]
    ) -> Iterator[tuple[bytes, tuple[Found, int] | None]]:
        """Likewise; None of a key that had no row then."""
        iterator = self._db.iter()
        iterator.seek(b"v" + begin if after is None else b"v" + after + _ABOVE)
        end = b"v" + begin + _ABOVE
        while _valid(iterator) and (key := iterator.key()) < end:
            encoded = key[1 : -_VERSION.size]
            yield encoded, _as_of(iterator, encoded, at)
            iterator.seek(b"v" + encoded + _ABOVE)


class _Batch:
    """One write for many changes; what it has changed already is looked up here, and else in the database."""

    def __init__(self, index: KeyValueIndex, changes: Sequence[Change], order: int) -> None:
        from rocksdict import WriteBatch

        self._index = index
        self._order = order
        self._batch = WriteBatch(raw_mode=True)
        texts = list({change.key for change in changes if change.key is not None})
        places: Any = index._db.get([b"k" + text.encode() for text in texts]) if texts else []
        self._places = dict(zip(texts, places, strict=True))
        self._owners: dict[bytes, tuple[str | None, int] | None] = {}  # the record's key and the partition of a row

    def lay(self, changes: Sequence[Change]) -> "WriteBatch":
        unfit: dict[int, str] = {}
        for place, change in enumerate(changes):
            self._order += 1
            if change.truncates:
                self._truncate(change)
            elif change.row is not None:
                try:
                    encoded, raw = self._index._key_of(change.row), packed(change.row)
                except UNPACKABLE as error:
                    unfit[place] = str(error)
                else:
                    self._set(change, encoded, raw)
            elif change.key is not None and (encoded := self._places[change.key]) is not None:
                self._remove(change, encoded)
                self._batch.delete(b"k" + change.key.encode())
                self._places[change.key] = None
        if unfit:
            raise UnfitChanges(unfit)
        return self._batch

    def _set(self, change: Change, encoded: bytes, raw: msgspec.Raw) -> None:
        if change.key is not None and (before := self._places[change.key]) != encoded:
            if before is not None:
                self._remove(change, before)
            self._batch.put(b"k" + change.key.encode(), encoded)
            self._places[change.key] = encoded
        self._owners[encoded] = change.key, change.partition
        self._batch.put(b"r" + encoded, pack(change.partition, change.offset, change.key, raw))
        self._version(change, encoded, raw)

    def _remove(self, change: Change, encoded: bytes) -> None:
        owner = self._owner(encoded)
        if owner is not None and owner[0] == change.key:
            self._delete(change, encoded)

    def _delete(self, change: Change, encoded: bytes) -> None:
        self._owners[encoded] = None
        self._batch.delete(b"r" + encoded)
        self._version(change, encoded, None)

    def _truncate(self, change: Change) -> None:
        """Every row of the partition, those of this batch and those of before."""
        rows = {each: owner[0] for each, owner in self._owners.items() if owner and owner[1] == change.partition}
        iterator = self._index._db.iter()
        iterator.seek(b"r")
        while _valid(iterator) and (key := iterator.key()).startswith(b"r"):
            if key[1:] not in self._owners:
                partition, _, text, _ = unpack(iterator.value())
                if partition == change.partition:
                    rows[key[1:]] = text
            iterator.next()
        for encoded, text in rows.items():
            self._delete(change, encoded)
            if text is not None:
                self._batch.delete(b"k" + text.encode())
                self._places[text] = None

    def _owner(self, encoded: bytes) -> tuple[str | None, int] | None:
        if encoded not in self._owners:
            value = self._index._db.get(b"r" + encoded)
            if value is None:
                self._owners[encoded] = None
            else:
                partition, _, text, _ = unpack(value)
                self._owners[encoded] = text, partition
        return self._owners[encoded]

    def _version(self, change: Change, encoded: bytes, row: msgspec.Raw | None) -> None:
        if self._index.versions:
            version = _VERSION.pack(change.partition, _NEWEST - change.offset)
            self._batch.put(b"v" + encoded + version, pack(self._order, row))


def _as_of(iterator: "RdictIter", encoded: bytes, at: Mapping[int, int]) -> tuple[Found, int] | None:
    """The newest version of a key below `at`, and its bytes. A key is in one partition, unless partitions were added:
    then the one counts that was applied last.
    """
    start = b"v" + encoded
    newest, found = -1, None
    iterator.seek(start)
    while _valid(iterator) and (key := iterator.key()).startswith(start):
        partition, _ = _VERSION.unpack(key[len(start) :])
        if next_offset := at.get(partition, 0):
            iterator.seek(start + _VERSION.pack(partition, _NEWEST - (next_offset - 1)))
            if _valid(iterator) and (key := iterator.key()).startswith(start):
                where, version = _VERSION.unpack(key[len(start) :])
                value = iterator.value()
                order, row = unpack(value)
                if where == partition and order > newest:
                    newest = order
                    found = None if row is None else (Found(row, partition, _NEWEST - version), len(value))
        iterator.seek(start + _VERSION.pack(partition, _NEWEST) + _ABOVE)
    return found


def _valid(iterator: "RdictIter") -> bool:
    """Whether it stands at an entry; it raises where it stands at none because a file could not be read."""
    if iterator.valid():
        return True
    iterator.status()
    return False


def _found(value: bytes) -> Found:
    partition, offset, _, row = unpack(value)
    return Found(row, partition, offset)


def _mark(commit: int) -> bytes:
    return b"f" + commit.to_bytes(8, "big")


def _options() -> "Options":
    from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(8 * _FLUSH_BYTES)  # never full: we flush
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    blocks.set_block_cache(Cache(64 << 20))
    options.set_block_based_table_factory(blocks)
    return options
