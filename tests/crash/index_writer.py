"""Applies changes to an index until it is killed, and prints what it has applied: `applied <changes>`.

    index_writer.py KIND DIRECTORY [SNAPSHOTS]

The changes are the same in every run; the index says how many of them it has. With a directory for snapshots it writes
one now and then, and says `snapshot <changes>`.
"""

import random
import sys
from pathlib import Path
from typing import Any

from mainstem.client.progress import Read
from mainstem.serve import Applied, Change, Index
from mainstem.serve.snapshot import store, take

TOPIC, PARTITIONS = "t", 3
WORDS = ("red", "green", "blue")


def stored(index: Index, directory: Path) -> bool:
    """Whether there was anything to take a snapshot of."""
    taken = take(index)
    return taken is not None and bool(store(*taken, directory))


def open_index(kind: str, directory: Path) -> Any:
    if kind == "key-value":
        from mainstem.serve import key_value

        key_value._FLUSH_BYTES = 200_000
        return key_value.KeyValueIndex.open(directory, key_columns=["id"], versions=True)
    if kind == "search":
        from mainstem.serve.search import SearchIndex

        return SearchIndex.open(directory, {"id": "integer", "n": "integer", "word": "keyword", "text": "text"})
    if kind in ("stream", "changelog"):
        from mainstem.serve.columns import TableShape
        from mainstem.serve.sql import SqlIndex

        columns = {"id": "INTEGER", "n": "BIGINT", "word": "VARCHAR", "text": "VARCHAR"}
        return SqlIndex.open(directory, {TOPIC: TableShape(columns, kind)})
    raise ValueError(kind)


def change(number: int) -> Change:
    """The `number`th change: a row is set, set again, or deleted."""
    mixed = (number * 2654435761 + 12345) % 2**32  # many are made: a generator for each would take longer than the rest
    key = mixed // 2**8 % 500
    row = {"id": key, "n": number, "word": WORDS[mixed // 2**20 % 3], "text": "x" * (mixed % 200)}
    return Change(TOPIC, key % PARTITIONS, number, str(key), row if mixed // 2**4 % 5 else None)


def applied(count: int) -> Applied:
    """Where an index is that has the first `count` changes."""
    return Applied("log", {TOPIC: "id"}, {TOPIC: {partition: Read(end=count) for partition in range(PARTITIONS)}})


def count_of(index: Index) -> int:
    return 0 if index.applied is None else index.applied.position[TOPIC][0]


def main(kind: str, directory: Path, snapshots: Path | None = None) -> None:
    index = open_index(kind, directory)
    count = count_of(index)
    print("opened", 1, flush=True)
    draw = random.Random(count)
    while True:
        batch = [change(count + n) for n in range(draw.randint(1, 60))]
        count += len(batch)
        index.apply(batch, applied(count))
        if index.pending and draw.random() < 0.5:
            index.commit()
        if kind in ("stream", "changelog") and draw.random() < 0.1:
            index._writer.execute("CHECKPOINT")  # which else happens every 16 MB
        print("applied", count_of(index), flush=True)
        if snapshots is not None and draw.random() < 0.2 and stored(index, snapshots):
            print("snapshot", count_of(index), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
