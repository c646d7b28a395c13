"""Settings of the broker; names are Kafka's with underscores, so that what operators know carries over."""

from typing import Annotated

import msgspec
from msgspec import Meta

Amount = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[broker]` of `mainstem.toml`. Units are in the names."""

    host: str = "127.0.0.1"  # loopback: a log without authentication is not offered to the network by default
    port: Port = 9092  # 0 lets the system choose
    advertised_host: str = ""  # what clients are told to connect to; empty means `host`
    advertised_port: Port = 0  # 0 means the port that is bound
    node_id: Amount = 1
    auto_create_topics_enable: bool = True
    num_partitions: Count = 1  # of a topic created without a count
    socket_request_max_bytes: Amount = 104_857_600
    queued_max_requests: Amount = 64  # per connection; further bytes stay in the socket until some are answered
    queued_max_request_bytes: Amount = 134_217_728  # of all connections together; Kafka's default is no limit
    max_connections: Count = 2_147_483_647  # a further one is closed at once
    connections_max_idle_ms: Amount = 600_000  # without a request; then it is closed. 0: never
    fetch_max_bytes: Amount = 57_671_680
    max_incremental_fetch_session_cache_slots: Amount = 1_000
    stop_timeout_ms: Amount = 5_000  # how long requests in flight may take when the broker stops

    # consumer groups
    offsets_topic_num_partitions: Count = 4  # Kafka's 50 pays on a cluster only: each is a directory with files
    offset_metadata_max_bytes: Amount = 4_096
    offsets_retention_minutes: Amount = 10_080
    offsets_retention_check_interval_ms: Amount = 600_000
    group_initial_rebalance_delay_ms: Amount = 0  # Kafka's 3 s makes every first consumer wait; nothing here needs it
    group_min_session_timeout_ms: Amount = 6_000
    group_max_session_timeout_ms: Amount = 1_800_000
    group_max_size: Amount = 2_147_483_647

    # transactions
    transaction_state_log_num_partitions: Count = 4
    transaction_max_timeout_ms: Amount = 900_000
    transactional_id_expiration_ms: Amount = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Amount = 1_000
