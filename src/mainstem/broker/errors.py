"""What the broker itself refuses; codes are in `wire.errors`; for one without a type here, raise `RequestError`."""

from mainstem.core.errors import MainstemError, UserError


class UnknownTopicOrPartition(MainstemError):
    """No topic of that name, or fewer partitions than asked for."""


class UnknownTopicId(MainstemError):
    """No topic with that id: it was deleted, and perhaps created again under the same name."""


class TopicAlreadyExists(UserError):
    """A topic of that name is there."""


class InvalidTopicName(UserError):
    """Kafka's rule: 1 to 249 of `a-zA-Z0-9._-`, and not `.` or `..`."""


class InternalTopic(UserError):
    """A topic in which the coordinators keep their state: clients may read it, and nothing else."""


class InvalidPartitions(UserError):
    """A partition count that is not positive, or not above the present one."""


class NotYetServed(Exception):
    """The broker is still starting; the request is taken as soon as it has started."""


class AddressInUse(UserError):
    """The listen address is taken, or is none of this machine's."""


class TooManyConnections(UserError):
    """`max_connections` are open, or as many as the limit of open files leaves room for."""
