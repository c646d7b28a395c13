"""Settings of the broker; names are Kafka's with underscores, so that what operators know carries over."""

from typing import Annotated

import msgspec
from msgspec import Meta

Amount = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[broker]`: the embedded log as a server. Units are in the names.

    Attributes:
        host: the address it listens on; a log without authentication is not offered to the network by default.
        port: 0 lets the system choose.
        advertised_host: what clients are told to connect to; empty: `host`.
        advertised_port: 0: the port that is bound.
        node_id: the number that clients know it by.
        auto_create_topics_enable: whether a client that asks for an unknown topic gets it made.
        num_partitions: of a topic created without a count.
        socket_request_max_bytes: a longer request closes its connection.
        queued_max_requests: of one connection; further bytes stay in the socket until some are answered.
        queued_max_request_bytes: of all connections together, and as many of answers to fetches that clients have not
            taken yet; Kafka's default is no limit.
        max_connections: a further one is closed at once; the limit of open files counts too.
        connections_max_idle_ms: a connection without a request for so long is closed; 0: never.
        fetch_max_bytes: most bytes of one answer to a fetch, but for a first batch that is larger.
        max_incremental_fetch_session_cache_slots: fetch sessions kept;
            further fetchers send their partitions each time.
        stop_timeout_ms: how long requests in flight may take when the broker stops.
        offsets_topic_num_partitions: of `__consumer_offsets`; Kafka's 50 pays on a cluster only, where each is led by
            another broker.
        offset_metadata_max_bytes: of the text that a consumer commits with an offset.
        offsets_retention_minutes: a group without members keeps its offsets so long.
        offsets_retention_check_interval_ms: how often that is looked at.
        group_initial_rebalance_delay_ms: how long a new group waits for more members; Kafka's 3 s makes every first
            consumer wait.
        group_min_session_timeout_ms: the shortest `session.timeout.ms` that a member may ask for.
        group_max_session_timeout_ms: the longest.
        group_max_size: members of one group.
        transaction_state_log_num_partitions: of `__transaction_state`.
        transaction_max_timeout_ms: the longest `transaction.timeout.ms` that a producer may ask for.
        transactional_id_expiration_ms: a transactional id without a transaction is forgotten after this long.
        transaction_abort_timed_out_transaction_cleanup_interval_ms: how often transactions past their timeout are
            looked for, to abort them.
    """

    host: str = "127.0.0.1"
    port: Port = 9092
    advertised_host: str = ""
    advertised_port: Port = 0
    node_id: Amount = 1
    auto_create_topics_enable: bool = True
    num_partitions: Count = 1
    socket_request_max_bytes: Amount = 104_857_600
    queued_max_requests: Amount = 64
    queued_max_request_bytes: Amount = 134_217_728
    max_connections: Count = 2_147_483_647
    connections_max_idle_ms: Amount = 600_000
    fetch_max_bytes: Amount = 57_671_680
    max_incremental_fetch_session_cache_slots: Amount = 1_000
    stop_timeout_ms: Amount = 5_000

    # consumer groups
    offsets_topic_num_partitions: Count = 4
    offset_metadata_max_bytes: Amount = 4_096
    offsets_retention_minutes: Amount = 10_080
    offsets_retention_check_interval_ms: Amount = 600_000
    group_initial_rebalance_delay_ms: Amount = 0
    group_min_session_timeout_ms: Amount = 6_000
    group_max_session_timeout_ms: Amount = 1_800_000
    group_max_size: Amount = 2_147_483_647

    # transactions
    transaction_state_log_num_partitions: Count = 4
    transaction_max_timeout_ms: Amount = 900_000
    transactional_id_expiration_ms: Amount = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Amount = 1_000
