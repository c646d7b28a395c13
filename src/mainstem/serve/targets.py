"""What the names in a view's settings mean: a topic that a job writes stands for the output of its current version.

delays_hourly   version 1 is current   delays_hourly
                version 2 is current   delays_hourly.v2
delays_hourly.v2, fleet.planes         themselves
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mainstem.client.catalog import current_versions, cutovers, entries, named_outputs, previous_versions
from mainstem.client.progress import NextOffsets

Catalog = Mapping[str, dict[str, Any]]


class Target(msgspec.Struct, frozen=True):
    """What a view is made of while its names mean this.

    Attributes:
        topics: by the view's name for each.
        versions: of those that a job writes, by the same name.
    """

    topics: dict[str, str]
    versions: dict[str, str] = {}

    @property
    def label(self) -> str:
        """What tells it apart from others of the same view, as a part of a directory's name: `@2`; "" where all names
        are those of topics.
        """
        if all(name == topic for name, topic in self.topics.items()):
            return ""
        return "@" + "+".join(self.versions.get(name, "") for name in self.topics)

    @property
    def told(self) -> str:
        """The topics, for people."""
        return ", ".join(self.topics.values())


def target(catalog: Catalog, names: Iterable[str], now: Target | None = None) -> Target:
    """What these names mean by the catalog. A name whose job has no version left means what it did `now`.

    Raises:
        CorruptData: the record of current versions is none of ours.
    """
    written = _outputs(catalog, current_versions(catalog))
    before = now or Target({})
    topics, versions = {}, {}
    for name in names:
        topics[name], version = written.get(name) or (before.topics.get(name, name), before.versions.get(name))
        if version is not None:
            versions[name] = version
    return Target(topics, versions)


def places(catalog: Catalog, wanted: Target) -> NextOffsets:
    """From where on the topics have what readers had seen of the versions before, as the record says."""
    found: NextOffsets = {}
    for moved in cutovers(catalog).values():
        found |= {topic: moved.at[topic] for topic in wanted.topics.values() if topic in moved.at}
    return found


def is_kept(catalog: Catalog, old: Target) -> bool:
    """Whether readers may come back to it: each name means this now, or did before its last cutover."""
    current, previous = (_outputs(catalog, which(catalog)) for which in (current_versions, previous_versions))
    return all(
        topic in (current.get(name, (name, ""))[0], previous.get(name, ("", ""))[0])
        for name, topic in old.topics.items()
    )


def _outputs(catalog: Catalog, versions: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Plain name -> topic and version, of these versions of jobs."""
    found: dict[str, tuple[str, str]] = {}
    for job, entry in entries(catalog, "job").items():
        version = versions.get(job, "")
        named = named_outputs(version, entry.get("versions", {}).get(version, {}))
        found |= {name: (topic, version) for name, topic in named.items()}
    return found
