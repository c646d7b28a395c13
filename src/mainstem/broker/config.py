"""Settings of the broker; names are Kafka's with underscores, so that what operators know carries over."""

import msgspec


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[broker]` of `mainstem.toml`. Units are in the names."""

    host: str = "127.0.0.1"  # loopback: a log without authentication is not offered to the network by default
    port: int = 9092  # 0 lets the system choose
    advertised_host: str = ""  # what clients are told to connect to; empty means `host`
    advertised_port: int = 0  # 0 means the port that is bound
    node_id: int = 1
    auto_create_topics_enable: bool = True
    num_partitions: int = 1  # of a topic created without a count
    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 64  # per connection; further bytes stay in the socket until some are answered
    queued_max_request_bytes: int = 67_108_864  # per connection, too
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1_000
    stop_timeout_ms: int = 5_000  # how long requests in flight may take when the broker stops

    # consumer groups
    offsets_topic_num_partitions: int = 4  # Kafka's 50 pays on a cluster only: each is a directory with files
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    group_initial_rebalance_delay_ms: int = 0  # Kafka's 3 s makes every first consumer wait; nothing here needs it
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647

    # transactions
    transaction_state_log_num_partitions: int = 4
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 1_000
