"""That the topics of a job are still the ones that it began with.

A topic that was deleted and made anew has its name, and offsets that mean other records: a job at offset 100 would pass
over the first hundred of them, a table would keep the rows of the old one, an output would go on without what was in
it. So a version's marker has the ids of what it reads and writes. They are compared when it starts, and last of all
before each commit: an id never comes back, so that look speaks of all that the batch has read and written.
"""

from collections.abc import Collection, Mapping

from mainstem.client.connection import Connection
from mainstem.client.errors import UnknownTopic
from mainstem.client.progress import Marker
from mainstem.client.topics import topic_ids
from mainstem.core import Retriable, UserError
from mainstem.process.another_version import start_another


class TopicLost(UserError):
    """A topic that a version has read or written was deleted; it cannot go on."""


class TableMadeAnew(Retriable):
    """A table that a job joins was deleted and made anew: the job starts again, and with it the table."""


class SameTopics:
    """The topics of one running version. `begin`, then `check` before each commit.

    Args:
        connection: the log.
        job: its name.
        streams: topics that it goes on reading where it was.
        tables: topics that it reads from the beginning at each start.
        outputs: the topics that it writes.
    """

    def __init__(
        self,
        connection: Connection,
        job: str,
        *,
        streams: Collection[str],
        tables: Collection[str],
        outputs: Collection[str],
    ) -> None:
        self._connection, self._job = connection, job
        self._streams, self._tables, self._outputs = streams, tables, outputs
        self._ids: dict[str, str] = {}

    @property
    def kept(self) -> dict[str, str]:
        """Topic -> id, for the marker."""
        return {name: self._ids[name] for name in (*self._streams, *self._outputs)}

    def begin(self, marker: Marker | None) -> None:
        """Before the query starts: those that `marker` has used must be there; of others, these are they.

        A marker of before ids were kept has none: then, too, these are they.

        Raises:
            TopicLost: one that it has used was deleted, and may have been made anew.
            UnknownTopic: another one is not there any more.
        """
        names = (*self._streams, *self._tables, *self._outputs)
        now = topic_ids(self._connection, names)
        self._ids = dict(now)
        if marker is not None:
            used = used_topics(marker) & set(names)  # a quarantine is none of them: it may be made anew
            self._ids |= {name: of for name, of in marker.topics.items() if name in used}
        self._compare(now)
        if missing := next((name for name in names if name not in now), None):
            raise UnknownTopic(f"topic {missing}: no such topic")

    def check(self) -> None:
        """What was read and written until now was of these topics.

        Raises:
            TopicLost: it may not have been.
            TableMadeAnew: rows may have been joined with those of a table that is gone.
        """
        self._compare(topic_ids(self._connection, self._ids))

    def _compare(self, now: Mapping[str, str]) -> None:
        for name, of in self._ids.items():
            if now.get(name) == of:
                continue
            if name in self._tables:
                raise TableMadeAnew(f"table {name} was deleted, or made anew: it is read from its beginning")
            if name in self._outputs:
                raise lost_output(self._job, name)
            raise lost_input(self._job, name)


def lost_input(job: str, topic: str) -> TopicLost:
    """The input of a version is not there any more, or has other records."""
    return TopicLost(
        f"topic {topic} was deleted since job {job} has read it; of one that was made anew it would leave out the first "
        "records",
        hint=start_another(job),
    )


def lost_output(job: str, topic: str) -> TopicLost:
    """The output of a version is not there any more, or has another's records."""
    return TopicLost(
        f"topic {topic} was deleted with what job {job} has written; it would go on without that",
        hint=start_another(job),
    )


def used_topics(marker: Marker) -> set[str]:
    """Those that a version has read from, but for tables, or written to: of others no offset means anything yet."""
    used = set(marker.written) | {topic for topic, ends in marker.ends.items() if any(ends.values())}
    for by_topic in marker.end_offsets.values():
        used |= {topic for topic, offsets in by_topic.items() if any(offsets.values())}
    return used
