"""Settings of the broker; names are Kafka's with underscores, so that what operators know carries over."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from mainstem.core.wrong_settings import SASL_PROTOCOLS, TLS_PROTOCOLS, without_effect

Amount = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
MOST_PARTITIONS = 10_000
Partitions = Annotated[int, Meta(ge=1, le=MOST_PARTITIONS)]
_INT32_MAX = 2**31 - 1

FIRST_LISTENER = "broker"

L = TypeVar("L", bound="ListenerConfig")

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_DEFAULT_SASL: tuple[Sasl, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ClientAuth = Literal["", "none", "requested", "required"]

_HOSTS = {"localhost": ("127.0.0.1", "::1"), "": ("0.0.0.0", "::")}  # noqa: S104 they are compared

_FILES = ("certificate_file", "key_file", "client_ca_file")
_SHARED = (*_FILES, "client_auth", "sasl_enabled_mechanisms")
"""What a listener that does not say it takes from `[broker]`."""


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[broker.listeners.NAME]`: one more address that the log listens on. A client is told of the address of the
    listener that it asks. Files, `client_auth` and mechanisms that a listener does not name are those of `[broker]`.

    Attributes:
        host: the address it listens on; loopback, unless you say otherwise.
        port: 0 lets the system choose.
        advertised_host: what clients are told to connect to; empty: `host`.
        advertised_port: 0: the port that is bound.
        protocol: Kafka's `security.protocol`.
        certificate_file: PEM of the log's certificate, with those between it and its authority; renewed on the disk, it
            is taken for new connections within a second.
        key_file: PEM of its private key, without a pass phrase.
        client_ca_file: PEM of the authorities that sign clients' certificates.
        client_auth: whether clients show a certificate: `none`, `requested` or `required`; empty: `required` where
            there is a `client_ca_file`. Who shows one is `User:` and its subject, as in `User:CN=app,O=Example`;
            with SASL a client is who it says there.
        sasl_enabled_mechanisms: how a client says who it is, where the protocol is one with SASL: `PLAIN`,
            `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`; empty: the two of SCRAM.
    """

    host: str = "127.0.0.1"
    port: Port = 9092
    advertised_host: str = ""
    advertised_port: Port = 0
    protocol: Protocol = "PLAINTEXT"
    certificate_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth: ClientAuth = ""
    sasl_enabled_mechanisms: tuple[Sasl, ...] = ()

    @property
    def tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


_TIMES = ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")
_BOUNDED = {
    "consumer": _TIMES,
    "share": (*_TIMES, "record_lock_duration_ms", "delivery_count_limit", "partition_max_record_locks"),
    "streams": _TIMES,
}
"""Settings of groups for which the broker has bounds."""


def check_listener(name: str, listener: ListenerConfig) -> None:
    """Refuse settings that do not fit together.

    Raises:
        ValueError: the message names the listener and what is missing.
    """
    where = "" if name == FIRST_LISTENER else f"listeners.{name}: "
    for field in ("host", "advertised_host"):
        if any(letter.isspace() for letter in getattr(listener, field)):
            raise ValueError(f"{where}{field}: expected a name or an address, found {getattr(listener, field)!r}")
    if name == FIRST_LISTENER and not listener.tls:
        return  # its files may be for the others
    for field in ("certificate_file", "key_file") if listener.tls else ():
        if not getattr(listener, field):
            raise ValueError(f"{where}protocol {listener.protocol} needs {field}, found none")
    if listener.client_auth in ("requested", "required") and not listener.client_ca_file:
        raise ValueError(f"{where}client_auth {listener.client_auth} needs client_ca_file, found none")


def check_used(where: str, listener: ListenerConfig, *, tls: bool, sasl: bool) -> None:
    """Refuse what says who may connect, or that nobody listens in, where it would have no effect.

    Raises:
        ValueError: the message names the listener and the setting.
    """
    for field in () if tls else (*_FILES, "client_auth"):
        if getattr(listener, field) not in ("", "none"):
            raise without_effect(f"{where}{field}", listener.protocol, TLS_PROTOCOLS)
    if listener.sasl_enabled_mechanisms and not sasl:
        raise without_effect(f"{where}sasl_enabled_mechanisms", listener.protocol, SASL_PROTOCOLS)


def check_addresses(listeners: Mapping[str, ListenerConfig]) -> None:
    """Refuse two that would listen at one address: the system lets the second bind, and never hear of a client.

    Raises:
        ValueError: the message names both.
    """
    for (one, first), (other, second) in itertools.combinations(listeners.items(), 2):
        pairs = itertools.product(*(_HOSTS.get(each.host, (each.host,)) for each in (first, second)))
        if first.port == second.port != 0 and any(_covers(*pair) or _covers(*pair[::-1]) for pair in pairs):
            raise ValueError(f"listeners.{other}: port {second.port} is that of listener {one}: give each its own")


def _covers(host: str, other: str) -> bool:
    return host == other or host == "::" or (host == "0.0.0.0" and ":" not in other)  # noqa: S104 they are compared


def _with_default_sasl(listener: ListenerConfig) -> ListenerConfig:
    return msgspec.structs.replace(listener, sasl_enabled_mechanisms=_DEFAULT_SASL)


def _below(listener: L, directory: Path) -> L:
    files = {field: getattr(listener, field) for field in _FILES}
    return msgspec.structs.replace(listener, **{field: str(directory / file) for field, file in files.items() if file})


class BrokerConfig(ListenerConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[broker]`: the embedded log as a server, and its first listener. Units are in the names.

    Attributes:
        listeners: tables `[broker.listeners.NAME]`: further ones.
        users: table `[broker.users]`: passwords by name, for SASL; better given as `MAINSTEM_BROKER__USERS__NAME`, or
            in `users_file`, than written here. Further ones are made while the log runs (`kafka-configs`).
        users_file: a file of lines `NAME:PASSWORD`, for SASL.
        authorizer_enable: whether clients may do only what access control lists allow (`kafka-acls`); off, everybody
            who connects may do everything.
        super_users: who may do everything, as `User:NAME`; who connects without saying who it is is `User:ANONYMOUS`.
        allow_everyone_if_no_acl_found: whether everybody may do everything to what no entry names.
        authentication_timeout_ms: a client that has not finished the TLS handshake, or not said who it is, after so
            long is cut off.
        connection_failed_authentication_delay_ms: how long who fails to say who it is waits for the answer.
        connections_max_reauth_ms: how long a client of SASL is known; it may say again who it is before. 0: for ever.
        sasl_oauthbearer_jwks_endpoint_url: where the keys are that sign tokens of `OAUTHBEARER`, a JWKS document: an
            address or a file.
        sasl_oauthbearer_jwks_endpoint_refresh_ms: how old keys of an address may become.
        sasl_oauthbearer_expected_issuer: who a token must be from; empty: anybody who has such a key.
        sasl_oauthbearer_expected_audience: for whom it must be, at least one of these; empty: anybody.
        sasl_oauthbearer_sub_claim_name: the claim that says who the client is.
        sasl_oauthbearer_clock_skew_seconds: how far the clock of who makes tokens may be off.
        sasl_oauthbearer_unsecured: whether tokens without a signature are taken. For development: anybody may be
            anyone.
        sasl_server_max_receive_size: most bytes of a request of a client that is not known yet.
        node_id: the number that clients know it by.
        auto_create_topics_enable: whether a client that asks for an unknown topic gets it made.
        num_partitions: of a topic created without a count.
        max_replication_factor: how many replicas a client may ask for when it creates a topic. It has one all the same:
            there is one node. 3 is for programs that ask for three everywhere.
        socket_request_max_bytes: a longer request closes its connection.
        queued_max_requests: of one connection; further bytes stay in the socket until some are answered.
        queued_max_request_bytes: of all connections together, and four times as many of answers to fetches that clients
            have not taken yet, and twice as many of other large ones; Kafka's default is no limit. More than the
            processor's caches hold makes producers of large batches slower.
        max_connections: a further one is closed at once; the limit of open files counts too.
        max_connections_per_ip: of one address, a further one is closed at once.
        connections_max_idle_ms: a connection without a request for so long is closed; 0: never.
        fetch_max_bytes: most bytes of one answer to a fetch, but for a first batch that is larger.
        max_incremental_fetch_session_cache_slots: fetch sessions kept;
            further fetchers send their partitions each time.
        stop_timeout_ms: how long requests in flight may take when the broker stops.
        topic_defaults: table `[broker.topic_defaults]`: what topics have that do not say otherwise, with Kafka's names,
            as `"retention.ms" = "-1"`. What clients set for the broker (`kafka-configs`) comes before it.
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
        group_consumer_session_timeout_ms: a member of a group of the consumer protocol that sends no heartbeat for so
            long is removed.
        group_consumer_min_session_timeout_ms: the shortest that can be set for a group.
        group_consumer_max_session_timeout_ms: the longest.
        group_consumer_heartbeat_interval_ms: how often such a member sends one: it is told with each answer.
        group_consumer_min_heartbeat_interval_ms: the shortest that can be set for a group.
        group_consumer_max_heartbeat_interval_ms: the longest.
        group_consumer_assignment_interval_ms: at least so long between two assignments of one group; Kafka's 1 s makes
            the second consumer of a group wait for its first partition until its next heartbeat.
        group_consumer_min_assignment_interval_ms: the shortest that can be set for a group.
        group_consumer_max_assignment_interval_ms: the longest.
        group_consumer_max_size: members of one group of the consumer protocol.
        group_consumer_migration_policy: which way groups with members may change their protocol: bidirectional, upgrade
            (from classic to consumer), downgrade, disabled.
        group_share_session_timeout_ms: a member of a share group that sends no heartbeat for so long is removed.
        group_share_min_session_timeout_ms: the shortest that can be set for a group.
        group_share_max_session_timeout_ms: the longest.
        group_share_heartbeat_interval_ms: how often such a member sends one: it is told with each answer.
        group_share_min_heartbeat_interval_ms: the shortest that can be set for a group.
        group_share_max_heartbeat_interval_ms: the longest.
        group_share_assignment_interval_ms: at least so long between two assignments of one share group; Kafka's is 1 s.
        group_share_min_assignment_interval_ms: the shortest that can be set for a group.
        group_share_max_assignment_interval_ms: the longest.
        group_share_record_lock_duration_ms: how long a member of a share group has for a record that it was given.
        group_share_min_record_lock_duration_ms: the shortest that can be set for a group.
        group_share_max_record_lock_duration_ms: the longest.
        group_share_delivery_count_limit: how often a record is given to members before it is given up.
        group_share_min_delivery_count_limit: the least that can be set for a group.
        group_share_max_delivery_count_limit: the most.
        group_share_partition_max_record_locks: how many records of one partition a share group may have in work.
        group_share_min_partition_max_record_locks: the least that can be set for a group.
        group_share_max_partition_max_record_locks: the most.
        group_share_max_size: members of one share group.
        group_share_max_share_sessions: connections of such members that fetch.
        share_coordinator_state_topic_num_partitions: of `__share_group_state`.
        share_coordinator_snapshot_update_records_per_snapshot: so many changes of a share partition are written as
            such, then all that is kept of it is written anew.
        group_streams_session_timeout_ms: a member of a streams group that sends no heartbeat for so long is removed.
        group_streams_min_session_timeout_ms: the shortest that can be set for a group.
        group_streams_max_session_timeout_ms: the longest.
        group_streams_heartbeat_interval_ms: how often such a member sends one: it is told with each answer.
        group_streams_min_heartbeat_interval_ms: the shortest that can be set for a group.
        group_streams_max_heartbeat_interval_ms: the longest.
        group_streams_assignment_interval_ms: at least so long between two assignments of one streams group; Kafka's is
            1 s.
        group_streams_min_assignment_interval_ms: the shortest that can be set for a group.
        group_streams_max_assignment_interval_ms: the longest.
        group_streams_initial_rebalance_delay_ms: how long a new streams group waits for more members; Kafka's 3 s makes
            the first one wait for its next heartbeat.
        group_streams_num_standby_replicas: how many further members have a copy of the state of each task.
        group_streams_max_standby_replicas: the most that can be set for a group.
        group_streams_max_size: members of one streams group.
        transaction_state_log_num_partitions: of `__transaction_state`.
        transaction_max_timeout_ms: the longest `transaction.timeout.ms` that a producer may ask for.
        transactional_id_expiration_ms: a transactional id without a transaction is forgotten after this long.
        transaction_abort_timed_out_transaction_cleanup_interval_ms: how often transactions past their timeout are
            looked for, to abort them.
    """

    listeners: dict[str, ListenerConfig] = {}
    users: dict[str, str] = {}
    users_file: str = ""
    authorizer_enable: bool = False
    super_users: tuple[str, ...] = ()
    allow_everyone_if_no_acl_found: bool = False
    authentication_timeout_ms: Count = 10_000
    connection_failed_authentication_delay_ms: Amount = 100
    connections_max_reauth_ms: Amount = 0
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Count = 3_600_000
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_expected_audience: tuple[str, ...] = ()
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_clock_skew_seconds: Amount = 30
    sasl_oauthbearer_unsecured: bool = False
    sasl_server_max_receive_size: Count = 524_288
    node_id: Annotated[int, Meta(ge=0, le=_INT32_MAX)] = 1
    auto_create_topics_enable: bool = True
    num_partitions: Partitions = 1
    max_replication_factor: Annotated[int, Meta(ge=1, le=32_767)] = 1
    socket_request_max_bytes: Annotated[int, Meta(ge=1, le=_INT32_MAX)] = 104_857_600
    queued_max_requests: Count = 64
    queued_max_request_bytes: Count = 33_554_432
    max_connections: Count = 2_147_483_647
    max_connections_per_ip: Count = 2_147_483_647
    connections_max_idle_ms: Amount = 600_000
    fetch_max_bytes: Amount = 57_671_680
    max_incremental_fetch_session_cache_slots: Amount = 1_000
    stop_timeout_ms: Amount = 5_000
    topic_defaults: dict[str, str] = {}

    # consumer groups
    offsets_topic_num_partitions: Partitions = 4
    offset_metadata_max_bytes: Amount = 4_096
    offsets_retention_minutes: Amount = 10_080
    offsets_retention_check_interval_ms: Amount = 600_000
    group_initial_rebalance_delay_ms: Amount = 0
    group_min_session_timeout_ms: Amount = 6_000
    group_max_session_timeout_ms: Amount = 1_800_000
    group_max_size: Amount = 2_147_483_647
    group_consumer_session_timeout_ms: Count = 45_000
    group_consumer_min_session_timeout_ms: Count = 45_000
    group_consumer_max_session_timeout_ms: Count = 60_000
    group_consumer_heartbeat_interval_ms: Count = 5_000
    group_consumer_min_heartbeat_interval_ms: Count = 5_000
    group_consumer_max_heartbeat_interval_ms: Count = 15_000
    group_consumer_assignment_interval_ms: Amount = 0
    group_consumer_min_assignment_interval_ms: Amount = 0
    group_consumer_max_assignment_interval_ms: Amount = 15_000
    group_consumer_max_size: Count = 2_147_483_647
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = "bidirectional"

    # share groups
    group_share_session_timeout_ms: Count = 45_000
    group_share_min_session_timeout_ms: Count = 45_000
    group_share_max_session_timeout_ms: Count = 60_000
    group_share_heartbeat_interval_ms: Count = 5_000
    group_share_min_heartbeat_interval_ms: Count = 5_000
    group_share_max_heartbeat_interval_ms: Count = 15_000
    group_share_assignment_interval_ms: Amount = 0
    group_share_min_assignment_interval_ms: Amount = 0
    group_share_max_assignment_interval_ms: Amount = 15_000
    group_share_record_lock_duration_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 30_000
    group_share_min_record_lock_duration_ms: Annotated[int, Meta(ge=1_000, le=30_000)] = 15_000
    group_share_max_record_lock_duration_ms: Annotated[int, Meta(ge=30_000, le=3_600_000)] = 60_000
    group_share_delivery_count_limit: Annotated[int, Meta(ge=2, le=10)] = 5
    group_share_min_delivery_count_limit: Annotated[int, Meta(ge=2, le=5)] = 2
    group_share_max_delivery_count_limit: Annotated[int, Meta(ge=5, le=25)] = 10
    group_share_partition_max_record_locks: Annotated[int, Meta(ge=100, le=10_000)] = 2_000
    group_share_min_partition_max_record_locks: Annotated[int, Meta(ge=100, le=2_000)] = 100
    group_share_max_partition_max_record_locks: Annotated[int, Meta(ge=2_000, le=10_000)] = 4_000
    group_share_max_size: Annotated[int, Meta(ge=1, le=1_000)] = 200
    group_share_max_share_sessions: Count = 2_000
    share_coordinator_state_topic_num_partitions: Partitions = 4
    share_coordinator_snapshot_update_records_per_snapshot: Annotated[int, Meta(ge=0, le=500)] = 500
    group_streams_session_timeout_ms: Count = 45_000
    group_streams_min_session_timeout_ms: Count = 45_000
    group_streams_max_session_timeout_ms: Count = 60_000
    group_streams_heartbeat_interval_ms: Count = 5_000
    group_streams_min_heartbeat_interval_ms: Count = 5_000
    group_streams_max_heartbeat_interval_ms: Count = 15_000
    group_streams_assignment_interval_ms: Amount = 0
    group_streams_min_assignment_interval_ms: Amount = 0
    group_streams_max_assignment_interval_ms: Amount = 15_000
    group_streams_initial_rebalance_delay_ms: Amount = 0
    group_streams_num_standby_replicas: Amount = 0
    group_streams_max_standby_replicas: Amount = 2
    group_streams_max_size: Count = 2_147_483_647

    # transactions
    transaction_state_log_num_partitions: Partitions = 4
    transaction_max_timeout_ms: Amount = 900_000
    transactional_id_expiration_ms: Amount = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Amount = 1_000

    def __post_init__(self) -> None:
        listeners = self.all_listeners()
        tls, sasl = (any(getattr(each, kind) for each in listeners.values()) for kind in ("tls", "sasl"))
        check_used("", self, tls=tls, sasl=sasl)
        self._check_users(sasl=sasl)
        for name, each in self.listeners.items():
            check_used(f"listeners.{name}: ", each, tls=each.tls, sasl=each.sasl)
        for name, each in listeners.items():
            check_listener(name, each)
        check_addresses(listeners)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ValueError(
                f"group_min_session_timeout_ms: expected at most {self.group_max_session_timeout_ms} "
                f"(group_max_session_timeout_ms), found {self.group_min_session_timeout_ms}"
            )
        if self.bearer and bool(self.sasl_oauthbearer_jwks_endpoint_url) is self.sasl_oauthbearer_unsecured:
            raise ValueError(
                "OAUTHBEARER needs sasl_oauthbearer_jwks_endpoint_url, or for development sasl_oauthbearer_unsecured: "
                f"found {'both' if self.sasl_oauthbearer_unsecured else 'none'}"
            )
        if self.authorizer_enable and not (self.super_users or self.allow_everyone_if_no_acl_found):
            raise ValueError(
                "authorizer_enable needs super_users, or allow_everyone_if_no_acl_found; found neither: nobody could"
                " give anybody a right"
            )
        for user in self.super_users:
            if ":" not in user:
                raise ValueError(f"super_users: expected User:NAME, found {user!r}")
        self._check_topic_defaults()
        for kind in _BOUNDED:
            self._check_groups(kind)
        if self.group_streams_num_standby_replicas > self.group_streams_max_standby_replicas:
            raise ValueError(
                f"group_streams_num_standby_replicas: expected at most {self.group_streams_max_standby_replicas} "
                f"(group_streams_max_standby_replicas), found {self.group_streams_num_standby_replicas}"
            )

    def _check_users(self, *, sasl: bool) -> None:
        for user, password in self.users.items():
            if not user or not password:
                name = f"a password for {user}" if user else "a name and a password each"
                raise ValueError(f"users: expected {name}, found an empty text")
        if not sasl and (self.users or self.users_file):
            setting = "users" if self.users else "users_file"
            raise without_effect(setting, self.protocol, SASL_PROTOCOLS)

    def _check_topic_defaults(self) -> None:
        if not self.topic_defaults:
            return
        from mainstem.broker.dynamic_settings import of_start  # here: most have none, and it needs the whole log
        from mainstem.log import InvalidTopicConfig

        try:
            of_start(self.topic_defaults)
        except InvalidTopicConfig as error:
            raise ValueError(f"topic_defaults: {error}{error.hint and f'; {error.hint}'}") from None

    @staticmethod
    def hint_for(unknown: str) -> str:
        """What to do about a setting that Kafka's brokers have, and this table does not; "" of every other."""
        from mainstem.broker.dynamic_settings import TOPIC_DEFAULTS  # here: good settings need none of it

        for name in (unknown.replace("_", "."), f"log.{unknown.replace('_', '.')}"):
            if name in TOPIC_DEFAULTS:
                return f'[broker.topic_defaults] has it for all topics, as "{TOPIC_DEFAULTS[name]}"'
        return ""

    def _check_groups(self, kind: str) -> None:
        for name in _BOUNDED[kind]:
            value, least, most = (getattr(self, f"group_{kind}_{each}{name}") for each in ("", "min_", "max_"))
            if not least <= value <= most:
                bounds = f"group_{kind}_min_{name} and group_{kind}_max_{name}"
                raise ValueError(f"group_{kind}_{name}: expected {least} to {most} ({bounds}), found {value}")
        session, interval = (getattr(self, f"group_{kind}_{name}") for name in _TIMES[:2])
        if session <= interval:
            raise ValueError(
                f"group_{kind}_session_timeout_ms: expected more than group_{kind}_heartbeat_interval_ms, which is "
                f"{interval}, found {session}"
            )

    def all_listeners(self) -> dict[str, ListenerConfig]:
        """The listeners by name, each with what it takes from `[broker]`; the first is that of `[broker]`: "broker"."""
        own = {field: getattr(self, field) for field in ListenerConfig.__struct_fields__}
        shared = {field: own[field] for field in _SHARED}
        listeners = {FIRST_LISTENER: ListenerConfig(**own)}
        for name, each in self.listeners.items():
            missing = {field: value for field, value in shared.items() if not getattr(each, field)}
            listeners[name] = msgspec.structs.replace(each, **missing)
        return {
            name: each if each.sasl_enabled_mechanisms else _with_default_sasl(each) for name, each in listeners.items()
        }

    def __repr__(self) -> str:  # without passwords
        return f"BrokerConfig({', '.join(f'{name}={each!r}' for name, each in self.all_listeners().items())})"

    @property
    def bearer(self) -> bool:
        """Whether a listener takes tokens."""
        return any(
            each.sasl and "OAUTHBEARER" in each.sasl_enabled_mechanisms for each in self.all_listeners().values()
        )

    def below(self, directory: Path) -> "BrokerConfig":
        """The same with relative file names below `directory`."""
        keys = self.sasl_oauthbearer_jwks_endpoint_url
        if keys and "://" not in keys:
            keys = str(directory / keys)
        listeners = {name: _below(each, directory) for name, each in self.listeners.items()}
        users_file = str(directory / self.users_file) if self.users_file else ""
        resolved = msgspec.structs.replace(
            self, listeners=listeners, users_file=users_file, sasl_oauthbearer_jwks_endpoint_url=keys
        )
        return _below(resolved, directory)
