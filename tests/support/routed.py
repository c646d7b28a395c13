"""`RawClient` for logs of several brokers: each request goes to the broker that a client would ask."""

import zlib
from typing import Any

from tests.support.raw import RawClient

_GROUP, _TRANSACTION = 0, 1
_BY_LEADER = frozenset((0, 61))
_COORDINATED = {  # API key: the kind of its coordinator, and the field that names the group or transactional id
    8: (_GROUP, "group_id"),
    9: (_GROUP, "group_id", "groups"),
    11: (_GROUP, "group_id"),
    12: (_GROUP, "group_id"),
    13: (_GROUP, "group_id"),
    14: (_GROUP, "group_id"),
    15: (_GROUP, "groups"),
    22: (_TRANSACTION, "transactional_id"),
    24: (_TRANSACTION, "v3_and_below_transactional_id"),
    25: (_TRANSACTION, "transactional_id"),
    26: (_TRANSACTION, "transactional_id"),
    28: (_GROUP, "group_id"),
    42: (_GROUP, "groups_names"),
    47: (_GROUP, "group_id"),
    65: (_TRANSACTION, "transactional_ids"),
    68: (_GROUP, "group_id"),
    69: (_GROUP, "group_ids"),
    76: (_GROUP, "group_id"),
    77: (_GROUP, "group_ids"),
    88: (_GROUP, "group_id"),
    89: (_GROUP, "group_ids"),
    90: (_GROUP, "groups"),
    91: (_GROUP, "group_id"),
    92: (_GROUP, "group_id"),
}


class RoutedClient(RawClient):
    """A connection to each broker. Requests go to the leader of their topic, or the coordinator of their group or
    transactional id; all others to the broker that `bootstrap` names first."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._first = RawClient(bootstrap)
        self._asked = self._first
        found = self._first.call(3, 9, topics=[]).brokers
        self.brokers = {each.node_id: RawClient(f"{each.host}:{each.port}") for each in found}

    def close(self) -> None:
        for each in (self._first, *self.brokers.values()):
            each.close()
        super().close()

    def another(self) -> "RoutedClient":
        return RoutedClient("{}:{}".format(*self._address))

    def everywhere(self, api_key: int, version: int, /, **fields: Any) -> list[Any]:
        """The answer of every broker: of what each lists its own only."""
        return [each.call(api_key, version, **fields) for each in self.brokers.values()]

    def send(self, api_key: int, version: int, /, **fields: Any) -> int:
        self._asked = self._broker(api_key, fields)
        return self._asked.send(api_key, version, **fields)

    def receive(self, api_key: int, version: int) -> Any:
        return self._asked.receive(api_key, version)

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """A replica on each broker. One of them leads all partitions, so that one request may name them all."""
        replicas = sorted(self.brokers, key=lambda broker: zlib.crc32(f"{broker} {name}".encode()))
        assigned = [{"partition_index": number, "broker_ids": replicas} for number in range(partitions)]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assigned}
        self._first.call(19, 5, topics=[topic], timeout=30_000)
        for each in self.brokers.values():
            each.wait_for_topic(name, partitions)

    def _broker(self, api_key: int, fields: dict[str, Any]) -> RawClient:
        if api_key in _BY_LEADER:
            [topic] = fields.get("topic_data") or fields["topics"]
            found = self._first.call(3, 9, topics=[{"name": topic["name"]}]).topics[0]
            return self.brokers[found.partitions[0].leader_id]
        kind, *names = _COORDINATED.get(api_key, (_GROUP,))
        key = next((fields[name] for name in names if name in fields), None)
        if isinstance(key, list):  # of the ids in one request the first decides
            key = key[0]["group_id"] if isinstance(key[0], dict) else key[0]
        if not key:
            return self._first
        [found] = self._first.settled(10, 4, key_type=kind, coordinator_keys=[key]).coordinators
        return self.brokers[found.node_id]
