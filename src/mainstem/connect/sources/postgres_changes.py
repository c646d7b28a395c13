"""The server's messages turned into records of the log; no I/O. The caller sends what comes out and commits between.

What becomes of a change:

    insert                  c                                   key: the row's
    update                  u                                   key: the row's
    update of the key       d and a tombstone, then c           keys: the old row's; the new row's
    delete                  d and a tombstone                   key: the old row's
    truncate                t, to each partition                key: TRUNCATE_KEY

`before` is the whole old row with replica identity FULL; else it is null, and of a deleted row it holds the key alone.
A large value that an update did not touch is not in the WAL: with FULL it is taken from the old row, and where it is
part of the key, from the old key; else it is read from the database as it is then, and the header `mainstem-unchanged`
names the columns, so that a replica can leave them alone.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from mainstem.connect.sources.postgres_pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    CorruptReplicationMessage,
    Decoded,
    Delete,
    Insert,
    Relation,
    Row,
    Truncate,
    Update,
)
from mainstem.connect.sources.postgres_position import Part, SourcePosition
from mainstem.connect.sources.postgres_table import TRUNCATE_KEY, TableEncoder, Transaction, encode_begin, encode_end

UNCHANGED_HEADER = "mainstem-unchanged"


class Send(Protocol):
    """How a record leaves; without a partition its key chooses."""

    def __call__(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] = ...,
        /,
    ) -> None: ...


Describe = Callable[[Relation], TableEncoder | None]
"""A relation's encoder; None for a table that the source does not have."""
ReadColumns = Callable[[int, TableEncoder, Row, list[int]], Row]
"""The values of some columns of the row with this key, as transaction `xid` or a later one left them; nulls where the
row, or the column, is gone since. Never those from before: the record that comes of it may be the last one of its row.
"""


class ChangeTranslator:
    """Follows one replication stream from a position on.

    Attributes:
        position: after the last whole source transaction that was given to `handle`.
        pending: something was sent, or the position moved, since the last `committed`.
        sent: change records since the last `committed`.
        dropped: changes that the server sent again and that were in the log already.
    """

    def __init__(
        self,
        position: SourcePosition,
        *,
        transactions: tuple[str, int],
        partitions: int,
        send: Send,
        describe: Describe,
        read_columns: ReadColumns,
    ) -> None:
        self.position = position
        self.pending = False
        self.sent = 0
        self.dropped = 0
        self._transactions_topic, self._transactions_schema = transactions
        self._partitions = partitions
        self._single = 0 if partitions == 1 else None
        self._send = send
        self._describe = describe
        self._read_columns = read_columns
        self._tables: dict[int, TableEncoder | None] = {}
        self._transaction: Transaction | None = None
        self._xid = 0
        self._prefix = self._suffix = b""
        self._announced = False
        self._changes = 0  # of this source transaction, as the server counts them
        self._skip = 0  # so many of them are in the log already
        self._order = 0
        self._counts: dict[str, int] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            Insert: self._insert,
            Update: self._update,
            Delete: self._delete,
            Truncate: self._truncate,
            Begin: self._begin,
            Commit: self._commit,
            Relation: self._relation,
        }

    @property
    def in_transaction(self) -> bool:
        """A source transaction has begun and has not ended."""
        return self._transaction is not None

    def handle(self, message: Decoded) -> None:
        """Send the records of one message; types, origins and messages of others have none."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def checkpoint(self) -> SourcePosition:
        """What to write with the records sent so far: inside of a source transaction, how much of it they are."""
        if self._transaction is None or not self._announced:
            return self.position
        part = Part(self._transaction.position, self._changes, self._order, dict(self._counts))
        return msgspec.structs.replace(self.position, part=part)

    def advance(self, lsn: int) -> None:
        """The server has sent everything that it had for us below `lsn`, and all of it was given to `handle`."""
        if self._transaction is None and lsn > self.position.lsn:
            self.position = msgspec.structs.replace(self.position, lsn=lsn)
            self.pending = True

    def committed(self) -> None:
        """The log has everything up to the checkpoint."""
        self.pending, self.sent = False, 0

    def _begin(self, message: Begin) -> None:
        if self._transaction is not None:
            raise CorruptReplicationMessage("a transaction began inside of another")
        identity = f"{message.xid}:{message.commit_lsn}"
        self._transaction = Transaction(identity, message.commit_lsn, message.committed_at_us)
        self._xid = message.xid
        self._prefix, self._suffix = self._transaction.prefix(), self._transaction.suffix()
        self._announced, self._changes, self._skip, self._order, self._counts = False, 0, 0, 0, {}
        part = self.position.part
        if part is not None and part.commit_lsn == message.commit_lsn:
            self._announced, self._skip, self._order, self._counts = (
                True,
                part.changes,
                part.total_order,
                dict(part.counts),
            )

    def _commit(self, message: Commit) -> None:
        if self._transaction is None:
            raise CorruptReplicationMessage("a transaction ended that had not begun")
        if self._announced and not self._is_old():
            end = encode_end(self._transactions_schema, self._transaction, self._counts)
            self._send(self._transactions_topic, 0, None, end)
        self._transaction = None
        if message.end_lsn > self.position.lsn:
            self.position = msgspec.structs.replace(
                self.position, lsn=message.end_lsn, commit_lsn=message.commit_lsn, part=None
            )
            self.pending = True

    def _is_old(self) -> bool:
        """The transaction ended before the position: it is in the log, whole."""
        return self._transaction is not None and self._transaction.position < self.position.lsn

    def _relation(self, message: Relation) -> None:
        self._tables[message.oid] = self._describe(message)

    def _table(self, oid: int) -> TableEncoder | None:
        """The table of a change that is to be sent; None for one that is in the log already or not ours."""
        if self._transaction is None:
            raise CorruptReplicationMessage("a change came outside of a transaction")
        if oid not in self._tables:
            raise CorruptReplicationMessage(f"a change of relation {oid} came before its description")
        table = self._tables[oid]
        if table is None:
            return None
        self._changes += 1
        if self._changes <= self._skip or self._is_old():
            self.dropped += 1
            return None
        if not self._announced:
            self._announced = True
            self._send(self._transactions_topic, 0, None, encode_begin(self._transactions_schema, self._transaction))
        return table

    def _insert(self, message: Insert) -> None:
        table = self._table(message.oid)
        if table is not None:
            self._emit(table, "c", table.key(message.after), None, table.row(message.after))

    def _update(self, message: Update) -> None:
        table = self._table(message.oid)
        if table is None:
            return
        after = message.after
        headers: list[tuple[str, bytes]] = []
        if UNCHANGED in after:
            after, headers = self._complete(table, message)
        key = table.key(after)
        old = message.before or message.key
        old_key = key if old is None else table.key(old)
        before = None if message.before is None else table.row(message.before)
        if old_key == key:
            self._emit(table, "u", key, before, table.row(after), headers)
            return
        assert old is not None
        self._emit(table, "d", old_key, before or table.row(table.key_row(old)), None)
        self._send(table.topic, self._single, old_key, None)
        self._emit(table, "c", key, None, table.row(after), headers)

    def _delete(self, message: Delete) -> None:
        table = self._table(message.oid)
        if table is None:
            return
        if message.before is not None:
            key, before = table.key(message.before), message.before
        else:
            assert message.key is not None
            key, before = table.key(message.key), table.key_row(message.key)
        self._emit(table, "d", key, table.row(before), None)
        self._send(table.topic, self._single, key, None)

    def _truncate(self, message: Truncate) -> None:
        for oid in message.oids:
            table = self._table(oid)
            if table is not None:
                for partition in range(self._partitions):
                    self._emit(table, "t", TRUNCATE_KEY, None, None, partition=partition)

    def _emit(
        self,
        table: TableEncoder,
        operation: str,
        key: bytes,
        before: bytes | None,
        after: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        self._order += 1
        self.sent += 1
        self.pending = True
        topic = table.topic
        self._counts[topic] = self._counts.get(topic, 0) + 1
        value = table.change(operation, before, after, self._prefix, self._order, self._suffix)
        self._send(topic, self._single if partition is None else partition, key, value, headers or [])

    def _complete(self, table: TableEncoder, message: Update) -> tuple[Row, list[tuple[str, bytes]]]:
        """The new row with the values that the server did not send again."""
        old = message.before or message.key
        after = list(message.after)
        if old is not None:
            for place, value in enumerate(after):
                if value is UNCHANGED and (message.before is not None or place in table.table.key):
                    after[place] = old[place]
        missing = [place for place, value in enumerate(after) if value is UNCHANGED]
        if not missing:
            return after, []
        present = self._read_columns(self._xid, table, after, missing)
        for place, value in zip(missing, present, strict=True):
            after[place] = value
        names = [table.field_names[place] for place in missing]
        return after, [(UNCHANGED_HEADER, json.dumps(names).encode())]
