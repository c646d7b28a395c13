"""The APIs that are served: the module of each handler and its versions. ApiVersions tells clients these."""

from collections.abc import Mapping
from typing import Final

import msgspec


class Served(msgspec.Struct, frozen=True):
    """One API. Versions are from min to max, both included."""

    module: str
    """In `broker.handlers`; it registers the handler."""
    min_version: int
    max_version: int
    advertised_from: int = -1
    """What clients are told instead of the lowest version that is served."""

    @property
    def advertised(self) -> int:
        """The lowest version that clients are told."""
        return self.min_version if self.advertised_from < 0 else self.advertised_from


SERVED: Final[Mapping[int, Served]] = {
    0: Served("produce", 3, 13, advertised_from=0),  # KAFKA-18659
    1: Served("fetch", 4, 18),
    2: Served("list_offsets", 1, 11),
    3: Served("metadata", 0, 13),
    8: Served("offset_commit", 2, 10),
    9: Served("offset_fetch", 1, 10),
    10: Served("find_coordinator", 0, 6),
    11: Served("join_group", 0, 9),
    12: Served("heartbeat", 0, 4),
    13: Served("leave_group", 0, 5),
    14: Served("sync_group", 0, 5),
    15: Served("describe_groups", 0, 6),
    16: Served("list_groups", 0, 5),
    17: Served("sasl_handshake", 0, 1),
    18: Served("api_versions", 0, 4),
    19: Served("create_topics", 2, 7),
    20: Served("delete_topics", 1, 6),
    21: Served("delete_records", 0, 2),
    22: Served("init_producer_id", 0, 5),
    23: Served("offset_for_leader_epoch", 2, 4),
    24: Served("add_partitions_to_txn", 0, 3),
    25: Served("add_offsets_to_txn", 0, 4),
    26: Served("end_txn", 0, 5),
    27: Served("write_txn_markers", 1, 2),
    28: Served("txn_offset_commit", 0, 5),
    29: Served("describe_acls", 1, 3),
    30: Served("create_acls", 1, 3),
    31: Served("delete_acls", 1, 3),
    32: Served("describe_configs", 1, 4),
    33: Served("alter_configs", 0, 2),
    34: Served("alter_replica_log_dirs", 1, 2),
    35: Served("describe_log_dirs", 1, 5),
    36: Served("sasl_authenticate", 0, 2),
    37: Served("create_partitions", 0, 3),
    38: Served("delegation_tokens", 1, 3),
    39: Served("delegation_tokens", 1, 2),
    40: Served("delegation_tokens", 1, 2),
    41: Served("delegation_tokens", 1, 3),
    42: Served("delete_groups", 0, 2),
    43: Served("elect_leaders", 0, 2),
    44: Served("incremental_alter_configs", 0, 1),
    45: Served("alter_partition_reassignments", 0, 1),
    46: Served("list_partition_reassignments", 0, 0),
    47: Served("offset_delete", 0, 0),
    48: Served("describe_client_quotas", 0, 1),
    49: Served("alter_client_quotas", 0, 1),
    50: Served("describe_user_scram_credentials", 0, 0),
    51: Served("alter_user_scram_credentials", 0, 0),
    55: Served("describe_quorum", 0, 2),
    57: Served("update_features", 0, 2),
    60: Served("describe_cluster", 0, 2),
    61: Served("describe_producers", 0, 0),
    64: Served("unregister_broker", 0, 0),
    65: Served("describe_transactions", 0, 0),
    66: Served("list_transactions", 0, 2),
    68: Served("consumer_group_heartbeat", 0, 1),
    69: Served("consumer_group_describe", 0, 1),
    74: Served("list_config_resources", 0, 1),
    75: Served("describe_topic_partitions", 0, 0),
    76: Served("share_group_heartbeat", 1, 1),
    77: Served("share_group_describe", 1, 1),
    78: Served("share_fetch", 1, 2),
    79: Served("share_acknowledge", 1, 2),
    88: Served("streams_group_heartbeat", 0, 0),
    89: Served("streams_group_describe", 0, 0),
    90: Served("describe_share_group_offsets", 0, 1),
    91: Served("alter_share_group_offsets", 0, 0),
    92: Served("delete_share_group_offsets", 0, 0),
}
"""By API key."""
