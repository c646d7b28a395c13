"""Change what the catalog says already: nobody's change is lost, whoever writes at the same time, and from wherever.

1. Take the catalog's transactional id: who had it can commit no more, 2. read all that was committed before that,
3. write what follows from it, 4. commit. Whoever was fenced between the first step and the last begins again; where the
answer to the last was lost, the catalog itself says first whether the entries are in it.

A lock in a data directory would not do: several of them share a log, each with drivers of its own. And a process that
is killed at any step has changed nothing, and holds nobody up: the next one ends its transaction with the first step.
"""

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from mainstem.client.catalog import encoded, read_catalog
from mainstem.client.connection import Connection
from mainstem.client.errors import BrokerUnavailable, CommitUnknown, TransactionFailed
from mainstem.client.internal import CATALOG, CATALOG_TRANSACTIONAL_ID
from mainstem.client.reader import RangeReader
from mainstem.client.transaction import SharedTransaction
from mainstem.core import Clock, MainstemError, SystemClock, TopicPartition

PATIENCE_SECONDS = 60.0
TRANSACTION_MS = 10_000
"""What a process that is killed leaves open holds back those who follow the catalog for so long at most."""
_MOST_PAUSE_SECONDS = 0.5

Catalog = Mapping[str, dict[str, Any]]


def change_catalog(
    connection: Connection, change: Callable[[Catalog], Mapping[str, Any]], *, clock: Clock | None = None
) -> int:
    """Write what `change` makes of the catalog, as if nobody else wrote meanwhile.

    Args:
        connection: the log.
        change: from the catalog as it is to entries by key; None removes one. It is called again, with a catalog of
            later, where somebody else was faster. What it raises is raised; then nothing is written.
        clock: what records are dated with.

    Returns:
        The catalog's next offset after the entries, which are durable; 0 where there were none.

    Raises:
        UnknownTopic: there is no catalog.
        BrokerUnavailable: the log did not answer, and whether they are written is not known; or others were faster all
            the time, and nothing is.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + PATIENCE_SECONDS
    transaction = SharedTransaction(connection, CATALOG_TRANSACTIONAL_ID, timeout_ms=TRANSACTION_MS)
    try:
        while True:
            try:
                return _change(connection, transaction, change, clock)
            except TransactionFailed as error:  # nothing of it is ever visible
                if clock.monotonic() >= deadline:
                    raise BrokerUnavailable(
                        f"{CATALOG}: others have changed it at the same time for {PATIENCE_SECONDS:.0f} s; "
                        "nothing is changed",
                        hint="try again",
                    ) from error
            time.sleep(random.uniform(0, _MOST_PAUSE_SECONDS))  # so that two do not fence each other for ever
    finally:
        transaction.close()


def tell_catalog(connection: Connection, wanted: Mapping[str, Any]) -> None:
    """See that these entries, as JSON has them, are in the catalog; nothing is written where they are."""

    def missing(catalog: Catalog) -> dict[str, Any]:
        return {key: value for key, value in wanted.items() if catalog.get(key) != value}

    change_if_needed(connection, missing)


def change_if_needed(connection: Connection, change: Callable[[Catalog], Mapping[str, Any]]) -> None:
    """`change_catalog`, where `change` finds something to do: of what is as it should be a look is enough."""
    if change(read_catalog(connection)):
        change_catalog(connection, change)


def _change(
    connection: Connection,
    transaction: SharedTransaction,
    change: Callable[[Catalog], Mapping[str, Any]],
    clock: Clock,
) -> int:
    transaction.fence()
    records = encoded(change(read_catalog(connection, linearizable=True)))
    if not records:
        return 0
    partition = TopicPartition(CATALOG, 0)
    try:
        with transaction.writer(transaction.begin()) as writer:
            keys, values = zip(*records, strict=True)
            writer.append(partition, keys, values, None, clock.now_ms())
            written = writer.finish()[partition]
        try:
            transaction.commit({partition: written.count})
        except CommitUnknown as error:
            transaction.fence()  # from here on it is decided
            if not _is_committed(connection, written.last):
                raise TransactionFailed(str(error)) from error
    except BaseException:
        with contextlib.suppress(MainstemError):  # else the next one ends it
            transaction.abort()
        raise
    return written.last + 1


def _is_committed(connection: Connection, offset: int) -> bool:
    """Whether the record that was written at this offset of the catalog was committed; what others have written since
    does not matter. Compaction leaves what is younger than a minute: it is there if it was.
    """
    with contextlib.closing(RangeReader(connection, CATALOG, deleted="earliest")) as reader:
        return any(message.offset() == offset for message in reader.read({0: offset}, {0: offset + 1}))
