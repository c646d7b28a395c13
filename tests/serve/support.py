"""Changes, the rows they lead to, and how far that is."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from hypothesis import strategies as st

from mainstem.client.progress import Read
from mainstem.serve import Applied, Change
from mainstem.serve.snapshot import store, take

TOPIC = "t"
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes().map(lambda value: value.replace(fold=0)),
    st.datetimes(timezones=st.just(UTC)).map(lambda value: value.replace(fold=0)),
    st.dates(),
    st.times().map(lambda value: value.replace(fold=0)),
    st.uuids(),
)
NESTED = st.recursive(VALUES, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each))


@st.composite
def histories(draw, *, apart: bool = False, topics: Sequence[str] = (TOPIC,)):
    """Changes with columns a and b in two partitions, whose offsets grow with gaps. Record keys and the columns do not
    go together; `apart`: none of them is in two partitions. Some delete all that was in their partition.
    """
    changes, ends = [], {}
    for _ in range(draw(st.integers(0, 25))):
        topic, partition = draw(st.sampled_from(topics)), draw(st.integers(0, 1))
        offset = ends.get((topic, partition), 0) + draw(st.sampled_from([0, 0, 0, 1, 7]))
        ends[topic, partition] = offset + 1
        key = draw(st.sampled_from(["x", "y", "", "\0", "\0x", None]))
        row = draw(
            st.none() | st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.sampled_from(["", "u"]), "c": VALUES})
        )
        if apart:
            key = None if key is None else f"{key}{partition}"
            row = row and row | {"a": 10 * partition + row["a"]}
        if draw(st.integers(0, 9)) == 0:
            changes.append(Change(topic, partition, offset, None, None, truncates=True))
        else:
            changes.append(Change(topic, partition, offset, key, row))
    return changes


@st.composite
def cuts(draw, changes: Sequence[Change]):
    """`changes` in batches, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(changes)), max_size=6)))
    return [list(changes[a:b]) for a, b in zip([0, *places], [*places, len(changes)], strict=True)]


def applied_after(changes: Iterable[Change], *, log: str = "log") -> Applied:
    """Where an index is that has applied `changes`."""
    reads: dict[str, dict[int, Read]] = {}
    for change in changes:
        reads.setdefault(change.topic, {})[change.partition] = Read(end=change.offset + 1)
    return Applied(log, {topic: f"id of {topic}" for topic in reads}, reads)


def before(changes: Iterable[Change], at: Mapping[int, int]) -> list[Change]:
    """Those that the log had at a position."""
    return [change for change in changes if change.offset < at.get(change.partition, 0)]


def fold_keys(changes: Iterable[Change], columns: Sequence[str]) -> dict[tuple, tuple[dict, int, int]]:
    """Key's columns -> row, partition, offset: the plain way of what a key-value index does."""
    rows, owners, places = {}, {}, {}
    for change in changes:
        if change.truncates:
            for each in [each for each, (_, partition, _) in rows.items() if partition == change.partition]:
                places.pop(owners[each], None)
                del rows[each], owners[each]
        if change.row is None and change.key is None:
            continue
        new = None if change.row is None else tuple(change.row.get(column) for column in columns)
        old = places.pop(change.key, None) if change.key is not None else None
        if old is not None and old != new and owners.get(old) == change.key:
            del rows[old], owners[old]
        if new is not None:
            rows[new], owners[new] = (change.row, change.partition, change.offset), change.key
            if change.key is not None:
                places[change.key] = new
    return rows


def fold_rows(changes: Iterable[Change]) -> list[Change]:
    """The last change of each topic and record key that set a row, and all of those without a key."""
    rows: dict[tuple, Change] = {}
    for number, change in enumerate(changes):
        place = (change.topic, number if change.key is None else change.key)
        if change.truncates:
            rows = {k: v for k, v in rows.items() if (v.topic, v.partition) != (change.topic, change.partition)}
        elif change.row is None:
            rows.pop(place, None)
        else:
            rows[place] = change
    return [*rows.values()]


def rows_of(count: int, start: int = 0, *, keys: int = 0) -> list[Change]:
    """As flights are: records from offset `start` on, of as many keys as records, or of `keys`."""
    return [
        Change(TOPIC, 0, number, str(number % keys if keys else number), flight(number, keys))
        for number in range(start, start + count)
    ]


def flight(number: int, keys: int = 0) -> dict:
    return {
        "id": number % keys if keys else number,
        "year": 2013,
        "month": number % 12 + 1,
        "day": number % 28 + 1,
        "dep_time": 517 + number % 1000,
        "sched_dep_time": 515,
        "dep_delay": float(number % 50),
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11.0,
        "carrier": ("UA", "AA", "B6", "DL")[number % 4],
        "flight": number % 6000,
        "tailnum": f"N{number % 4000}",
        "origin": ("EWR", "JFK", "LGA")[number % 3],
        "dest": ("IAH", "MIA", "BQN", "ATL", "ORD")[number % 5],
        "air_time": 227.0,
        "distance": 1400.0,
        "fare": Decimal(number % 90000) / 100,
        "time_hour": datetime(2013, 1, 1, number % 24, tzinfo=UTC),
    }


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def tear(path: Path, how: str) -> None:
    """A file that is missing, cut in half or empty."""
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, 0 if how == "empty" else path.stat().st_size // 2)


def write_snapshot(index, directory: Path) -> Path | None:
    """In one step what a keeper does in two threads; None: nothing is committed yet."""
    taken = take(index)
    return None if taken is None else store(*taken, directory)
