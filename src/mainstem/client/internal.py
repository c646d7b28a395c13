"""Names, keys and settings of the topics that Mainstem keeps for itself, and the identities of a job.

A user's topic never has a name that starts with `__mainstem.`; nothing of ours is written into users' topics.
"""

import msgspec

CATALOG = "__mainstem.catalog"
SOURCES = "__mainstem.sources"
COMMITS = "__mainstem.commits"
PROGRESS = "__mainstem.progress"
HEARTBEATS = "__mainstem.heartbeats"
AUDIT = "__mainstem.audit"
SCHEMAS = "_schemas"
CATALOG_TRANSACTIONAL_ID = "mainstem.catalog"
"""Whoever initialises this id is the one who may change the catalog."""

# Small segments: the active one is never compacted, and who starts reads all of it.
_STATE = {"cleanup.policy": "compact", "min.compaction.lag.ms": "60000", "segment.bytes": str(16 * 1024 * 1024)}
_HISTORY = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class InternalTopic(msgspec.Struct, frozen=True):
    """What an internal topic is created with; all of them have one partition.

    One partition keeps the order of all statements, and a reader of one key reads them all in any case. The records
    are small and few: one or two per batch of a job.
    """

    name: str
    config: dict[str, str]


INTERNAL_TOPICS = (
    InternalTopic(CATALOG, _STATE),
    InternalTopic(SOURCES, _STATE),
    InternalTopic(COMMITS, _STATE),
    InternalTopic(PROGRESS, _HISTORY),
    InternalTopic(HEARTBEATS, _STATE),  # an end holds for ever: also for a job that reads its input years later
    InternalTopic(AUDIT, _STATE),
    InternalTopic(SCHEMAS, {"cleanup.policy": "compact"}),
)


def job_key(job: str, version: str) -> str:
    """The key under which a version of a job speaks in `__mainstem.commits` and `.progress`."""
    return f"{job}@{version}"


def checkpoint_topic(job: str, version: str) -> str:
    """The topic with the copy of a version's checkpoint."""
    return f"__mainstem.checkpoint.{job}.{version}"


def job_transactional_id(job: str, version: str) -> str:
    """Whoever initialises this id fences every older driver of that version."""
    return f"mainstem.job.{job_key(job, version)}"


def job_group(job: str, version: str) -> str:
    """The consumer group whose committed offsets show the lag; it never has members."""
    return f"mainstem.{job_key(job, version)}"


def source_transactional_id(source: str) -> str:
    """Whoever initialises this id fences every older writer of that source."""
    return f"mainstem.source.{source}"
