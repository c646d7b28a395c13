"""Topics as groups see them, without a log."""

from collections.abc import Iterator
from uuid import UUID, uuid4


class FakeTopic:
    """A topic with that many partitions."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.topic_id = uuid4()
        self.logs: list[None] = [None] * partitions


class FakeTopics:
    """The topics that are there."""

    def __init__(self, **partitions: int) -> None:
        self.version = 1
        self._by_name = {name: FakeTopic(name, count) for name, count in partitions.items()}

    def __iter__(self) -> Iterator[FakeTopic]:
        return iter(self._by_name.values())

    def get(self, name: str) -> FakeTopic | None:
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID | None) -> FakeTopic | None:
        return next((topic for topic in self if topic.topic_id == topic_id), None)

    def id_of(self, name: str) -> UUID:
        return self._by_name[name].topic_id

    def create(self, name: str, partitions: int) -> None:
        self.version += 1
        self._by_name[name] = FakeTopic(name, partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._by_name[name]

    def grow(self, name: str, more: int = 1) -> None:
        self.version += 1
        self._by_name[name].logs += [None] * more
