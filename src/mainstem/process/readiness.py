"""Whether readers can be moved from one version of a job to another and none of them goes back in time.

    version 1 has read   orders 0:5120        the pin: what readers may have seen something of
    version 2 has read   orders 0:4980        140 offsets to go; at 5120 it is ready, whatever has come meanwhile

A version that keeps windows must have closed those that the other one has closed, too: it writes them a batch after it
has read their rows.

A position is pinned once, when somebody asks. A small lag says nothing: a version that is slower than its input never
is done with what was there, and one that has just started has none. A version that reads other topics than the current
one is measured by what they are made of, through the jobs that write them; where nobody's job writes one, by its end.

State holders without I/O but for `look`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mainstem.client.basis import furthest
from mainstem.client.catalog import current_versions, entries, outputs_of, read_catalog
from mainstem.client.connection import Connection
from mainstem.client.internal import COMMITS, job_key
from mainstem.client.progress import Marker, NextOffsets, merge_positions, read_markers
from mainstem.client.topics import list_topics, stable_offsets

_AGES_MS = 100 * 365 * 86_400_000


class Look(msgspec.Struct, frozen=True):
    """What the log says at one moment; `ends` of the topics that jobs read or write were asked for last."""

    catalog: dict[str, dict[str, Any]]
    markers: dict[str, Marker]
    ends: NextOffsets

    @property
    def current(self) -> dict[str, str]:
        """The current version of each job."""
        return current_versions(self.catalog)

    def about(self, job: str, version: str) -> dict[str, Any]:
        """What the catalog says of a version; nothing where it has none."""
        found: dict[str, Any] = entries(self.catalog, "job").get(job, {}).get("versions", {}).get(version, {})
        return found

    def basis(self, job: str, version: str) -> NextOffsets:
        """Up to where a version has read its streams."""
        marker = self.markers.get(job_key(job, version))
        return merge_positions(marker.end_offsets) if marker is not None else {}

    def batch(self, job: str, version: str) -> int | None:
        """The last one that a version has committed."""
        marker = self.markers.get(job_key(job, version))
        return marker.batch if marker is not None else None

    def event_time(self, job: str, version: str) -> int:
        """Up to which a version knows that all has come, in ms since 1970; 0: it knows nothing, or has no need to."""
        marker = self.markers.get(job_key(job, version))
        return marker.event_time if marker is not None else 0

    def windows_by(self, job: str, version: str) -> str:
        """The column of the windows that a version keeps; empty: none."""
        return str(self.about(job, version).get("windows_by", ""))

    def streams(self, job: str, version: str) -> list[str]:
        """The topics that a version reads record by record."""
        about = self.about(job, version)
        return sorted(set(about.get("inputs", {}).values()) - set(about.get("tables", ())))

    def end(self, topic: str) -> dict[int, int]:
        """Where a topic ends, with all that the last commits of those that write it say: a broker marks a transaction
        as committed in one partition after the other.
        """
        found = {topic: self.ends.get(topic, {})}
        for marker in self.markers.values():
            if topic in marker.ends:
                found = furthest(found, {topic: marker.ends[topic]})
        return found[topic]

    def says_ends(self, job: str, version: str) -> bool:
        """Whether the last batch of a version says where its outputs ended; none does of before that was kept."""
        marker = self.markers.get(job_key(job, version))
        return marker is not None and bool(marker.ends)

    def written(self, job: str, version: str, topic: str = "") -> dict[int, int]:
        """Where the output of a version, or another `topic` that it writes, ended with the batch that is its last one
        here, as that says itself: the topic was asked for its end later, and may have more. Where it does not say, that
        end; see `is_of_one_moment`.
        """
        output = topic or str(self.about(job, version)["output"])
        if not self.says_ends(job, version):
            return self.end(output)
        own = self.markers[job_key(job, version)].ends.get(output, {})
        return dict.fromkeys(self.ends.get(output, {}), 0) | own

    def writer(self, topic: str) -> tuple[str, str] | None:
        """Job and version that write a topic."""
        for job, entry in entries(self.catalog, "job").items():
            for version, about in entry.get("versions", {}).items():
                if topic in outputs_of(about).values():
                    return job, version
        return None


def look(connection: Connection, *, decided: bool = False) -> Look:
    """See how far all versions are.

    Args:
        connection: the log.
        decided: do not wait for open transactions: of a version, an older batch than its last may be seen.
    """
    existing = list_topics(connection)
    markers = read_markers(connection, decided=decided) if COMMITS in existing else {}
    catalog = read_catalog(connection)
    versions = [about for entry in entries(catalog, "job").values() for about in entry.get("versions", {}).values()]
    wanted = {topic for about in versions for topic in (*outputs_of(about).values(), *about.get("inputs", {}).values())}
    ends = stable_offsets(connection, {name: existing[name].partitions for name in sorted(wanted & existing.keys())})
    return Look(catalog, markers, ends)


def look_at_held(connection: Connection, batches: Mapping[str, Mapping[str, int]]) -> Look:
    """See how far all versions are, some of them at these batches at least, by job and version, which are committed:
    where an open transaction of somebody else hides one, it is waited for. What later looks show is no older.
    """
    now = look(connection, decided=True)
    for job, each in batches.items():
        for version, batch in each.items():
            found = now.batch(job, version)
            if found is None or found < batch:
                return look(connection)
    return now


def is_of_one_moment(connection: Connection, seen: Look, job: str, versions: Iterable[str]) -> bool:
    """Whether outputs end in `seen` with the batches that are the last ones there.

    A batch that says where it ended does. Of others the markers are read once more, past open transactions: a batch
    may have come after the marker was read and before its topic was asked for its end.
    """
    silent = [version for version in versions if not seen.says_ends(job, version)]
    if not silent:
        return True
    markers = read_markers(connection) if COMMITS in list_topics(connection) else {}
    found = {version: markers.get(job_key(job, version)) for version in silent}
    return all((each.batch if each else None) == seen.batch(job, version) for version, each in found.items())


class Pin:
    """A position that a version has to reach: what readers of another one may have seen something of.

    Attributes:
        positions: of the topics that are known so far; what a version reads that the other one does not is added once
            it is known from where on it covers the rest.
    """

    def __init__(self, seen: Look, job: str, version: str) -> None:
        self.positions = _seen_by(seen, job, version, frozenset())
        self._windows = seen.windows_by(job, version), seen.event_time(job, version)

    def open_ms(self, now: Look, job: str, version: str) -> int:
        """How far a version of the same job still has to close windows, in ms of event time; 0: as far as the pin says.
        Windows by another column are not comparable.
        """
        column, closed = self._windows
        return max(0, closed - now.event_time(job, version)) if column == now.windows_by(job, version) else 0

    def open_windows(self, now: Look, job: str, version: str) -> str:
        """What `open_ms` means, after the version's name: `has windows of 90 s to close`; "": there are none."""
        open_ms = self.open_ms(now, job, version)
        if not open_ms:
            return ""
        if not now.event_time(job, version):
            return "has closed no window yet"
        if open_ms > _AGES_MS:  # the other one has closed all that there can be: the end of its input is stated
            return "has its last windows to close"
        return f"has windows of {open_ms / 1000:,.0f} s to close"

    def missing(self, now: Look, job: str, version: str) -> int:
        """How many offsets a version, and those that it reads from, still have to read; 0: it has reached the pin."""
        return self._missing(now, job, version, frozenset())

    def _missing(self, now: Look, job: str, version: str, above: frozenset[str]) -> int:
        key, basis, total = job_key(job, version), now.basis(job, version), 0
        if key in above:  # no job reads itself; whoever wrote such a catalog shall not hold us up
            return 0
        for topic in now.streams(job, version):
            if topic not in self.positions:
                writer = now.writer(topic)
                upstream = 0 if writer is None else self._missing(now, *writer, above | {key})
                if upstream:
                    total += upstream
                    continue
                self.positions[topic] = now.end(topic)  # all that was written until now covers the pin
            total += lacks(basis.get(topic, {}), self.positions[topic])
        return total


def lacks(position: Mapping[int, int], wanted: Mapping[int, int]) -> int:
    """How many offsets lie between a position of a topic and one that is wanted."""
    return sum(max(0, offset - position.get(partition, 0)) for partition, offset in wanted.items())


def _seen_by(seen: Look, job: str, version: str, above: frozenset[str]) -> NextOffsets:
    """What a version has read, and what those have read that write that: at least what came into it."""
    key = job_key(job, version)
    found = seen.basis(job, version)
    for topic in () if key in above else seen.streams(job, version):
        writer = seen.writer(topic)
        if writer is not None:
            found = furthest(found, _seen_by(seen, *writer, above | {key}))
    return found
