"""The broker's settings for what it does with others: coordination, replication, groups,
transactions and quotas.

Much of it waits for its feature.  A setting is declared before that so that the file of a Kafka
broker can be used, and says that it does nothing yet.
"""

from __future__ import annotations

from hightide.settings.declaration import (
    Scope,
    Settings,
    java_class,
    long,
    names,
    password,
    setting,
    short,
)
from hightide.settings.topic import DAY_MS, HOUR_MS, MAX_LONG, MINUTE_MS

CLUSTER = Scope.CLUSTER
OWN_SETTINGS = "a group cannot be given settings of its own"
QUOTAS = "it needs quotas"
SHARE_GROUPS = "it needs share groups"
PURGATORY = "waiting requests hang on what they wait for and are never left over"


class ZooKeeperSettings(Settings):
    """ZooKeeper, the controller and a broker's leave-taking."""

    zookeeper_connect: str | None = setting(
        default=None,
        doc="The ZooKeeper ensemble, as host:port,host:port/path; without it the broker runs an"
        " embedded ZooKeeper, which speaks the same protocol.",
    )
    zookeeper_session_timeout_ms: int = setting(
        default=18 * 1000,
        doc="Silence after which ZooKeeper takes a broker for dead.",
        at_least=100,
    )
    zookeeper_connection_timeout_ms: int | None = setting(
        default=None,
        doc="How long connecting to ZooKeeper may take; zookeeper.session.timeout.ms if not set.",
        at_least=1,
    )
    zookeeper_max_in_flight_requests: int = setting(
        default=10,
        doc="Requests to ZooKeeper without an answer.",
        at_least=1,
        ignored="requests are sent as they come, and reading many znodes is done in groups",
    )
    zookeeper_set_acl: bool = setting(
        default=False,
        doc="Whether only brokers may write the cluster's znodes.",
        later="zookeeper.credentials keeps other clients out",
    )
    zookeeper_ssl_client_enable: bool = setting(
        default=False, doc="Whether the connection to ZooKeeper is encrypted."
    )
    zookeeper_ssl_truststore_location: str | None = setting(
        default=None, doc="PEM file with the certificates that ZooKeeper's must be signed by."
    )
    zookeeper_ssl_keystore_location: str | None = setting(
        default=None, doc="PEM file with the broker's own key and certificate for ZooKeeper."
    )
    zookeeper_listen: str | None = setting(
        default=None,
        doc="Address of the embedded ZooKeeper, as host:port, which the broker runs if"
        " zookeeper.connect is not set; port 0 picks a free one. If not set, 127.0.0.1:2181, or a"
        " free port if that is in use.",
    )
    zookeeper_credentials: password | None = setting(
        default=None,
        doc="user:password with which this broker authenticates to ZooKeeper (scheme digest), and"
        " which its embedded ZooKeeper requires of all clients.",
    )
    coordinator_listen: str | None = setting(
        default=None, doc="The earlier name of zookeeper.listen."
    )
    coordinator_credentials: password | None = setting(
        default=None, doc="The earlier name of zookeeper.credentials."
    )
    controlled_shutdown_enable: bool = setting(
        default=True,
        doc="Whether a broker hands over its partitions before it stops.",
    )
    controlled_shutdown_max_retries: int = setting(
        default=3, doc="How often handing over is tried again."
    )
    controlled_shutdown_retry_backoff_ms: long = setting(
        default=5 * 1000, doc="Time between two tries to hand over."
    )
    controller_socket_timeout_ms: int = setting(
        default=30 * 1000,
        doc="How long a request of the controller to a broker may take.",
    )
    auto_leader_rebalance_enable: bool = setting(
        default=True,
        doc="Whether leadership goes back to the preferred replicas by itself.",
    )
    leader_imbalance_check_interval_seconds: long = setting(
        default=300,
        doc="Time between two looks at the balance of leaders.",
        at_least=1,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        default=10,
        doc="Share of a broker's partitions that may be led elsewhere before leadership goes back.",
    )
    inter_broker_protocol_version: str | None = setting(
        default=None,
        doc="Version that brokers speak among themselves.",
        ignored="brokers agree on the version of each request",
    )


class ReplicationSettings(Settings):
    """Replicas and how they follow."""

    default_replication_factor: int = setting(
        default=1, doc="Replicas of a topic that is created without a number.", at_least=1
    )
    replica_lag_time_max_ms: long = setting(
        default=30 * 1000,
        doc="Time without catching up after which a follower is no longer in sync.",
    )
    replica_fetch_max_bytes: int = setting(
        default=1024 * 1024,
        doc="Bytes that a follower asks for of each partition.",
        at_least=0,
    )
    replica_fetch_min_bytes: int = setting(default=1, doc="Bytes that a follower waits for.")
    replica_fetch_response_max_bytes: int = setting(
        default=10 * 1024 * 1024,
        doc="Bytes that a follower asks for in one request.",
        at_least=0,
    )
    replica_fetch_wait_max_ms: int = setting(
        default=500, doc="How long a follower waits for replica.fetch.min.bytes."
    )
    replica_fetch_backoff_ms: int = setting(
        default=1000, doc="Pause of a follower after an error.", at_least=0
    )
    replica_socket_timeout_ms: int = setting(
        default=30 * 1000, doc="How long a follower's request may take."
    )
    replica_socket_receive_buffer_bytes: int = setting(
        default=64 * 1024,
        doc="Size of a follower's receive buffer.",
        ignored="the operating system sizes it as needed",
    )
    replica_high_watermark_checkpoint_interval_ms: long = setting(
        default=5 * 1000, doc="Time between two writes of the high watermarks."
    )
    replica_selector_class: java_class | None = setting(
        default=None, doc="Which replica a consumer should read from."
    )
    num_replica_fetchers: int = setting(
        default=1,
        doc="Connections to each broker that is followed.",
        scope=CLUSTER,
        ignored="one connection to each leader carries all its partitions",
    )
    num_replica_alter_log_dirs_threads: int | None = setting(
        default=None,
        doc="Threads that move replicas between log directories.",
        later="replicas cannot be moved between directories",
    )
    unclean_leader_election_interval_ms: long = setting(
        default=5 * MINUTE_MS,
        doc="Time between two looks for partitions to elect uncleanly.",
        at_least=1,
        ignored="they are looked at whenever something changes, and every few seconds",
    )
    fetch_purgatory_purge_interval_requests: int = setting(
        default=1000, doc="Fetches after which finished ones are dropped.", ignored=PURGATORY
    )
    producer_purgatory_purge_interval_requests: int = setting(
        default=1000, doc="Produces after which finished ones are dropped.", ignored=PURGATORY
    )
    delete_records_purgatory_purge_interval_requests: int = setting(
        default=1, doc="Deletions after which finished ones are dropped.", ignored=PURGATORY
    )


class GroupSettings(Settings):
    """Consumer groups and their offsets."""

    group_initial_rebalance_delay_ms: int = setting(
        default=3000, doc="How long a new group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        default=6000, doc="Shortest session that a member may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        default=30 * MINUTE_MS, doc="Longest session that a member may ask for."
    )
    group_max_size: int = setting(default=1000, doc="Most members of a group.", at_least=1)
    group_coordinator_rebalance_protocols: names = setting(
        default=("classic", "consumer"),
        doc="Kinds of groups that are served.",
        one_of=("classic", "consumer", "share", "streams"),
    )
    group_coordinator_threads: int = setting(
        default=1,
        doc="Threads that serve groups.",
        at_least=1,
        ignored="one event loop serves all groups",
    )
    group_coordinator_append_linger_ms: int = setting(
        default=10,
        doc="How long a group's records wait to be written together.",
        at_least=0,
        ignored="they are written at once",
    )
    group_consumer_session_timeout_ms: int = setting(
        default=45 * 1000, doc="Session of a consumer group's member.", at_least=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        default=45 * 1000,
        doc="Shortest session that a consumer group may be given.",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_session_timeout_ms: int = setting(
        default=60 * 1000,
        doc="Longest session that a consumer group may be given.",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        default=5000,
        doc="Time between a consumer group member's heartbeats.",
        at_least=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        default=5000,
        doc="Shortest heartbeat that a consumer group may be given.",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        default=15 * 1000,
        doc="Longest heartbeat that a consumer group may be given.",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_size: int = setting(
        default=1000, doc="Most members of a consumer group.", at_least=1
    )
    group_consumer_assignors: names = setting(
        default=("uniform", "range"),
        doc="How partitions are given to members; the first is the default.",
        one_of=("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        default="bidirectional",
        doc="Which way a group may change between the classic and the consumer kind.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offset_metadata_max_bytes: int = setting(
        default=4096, doc="Longest note beside a committed offset."
    )
    offsets_commit_timeout_ms: int = setting(
        default=5000,
        doc="How long a commit waits until all replicas have it.",
        at_least=1,
    )
    offsets_load_buffer_size: int = setting(
        default=5 * 1024 * 1024,
        doc="Bytes that are read at once when committed offsets are loaded.",
        at_least=1,
        ignored="they are read in pieces between which others are served",
    )
    offsets_retention_minutes: int = setting(
        default=7 * 24 * 60,
        doc="How long the offsets of a group without members are kept.",
        at_least=1,
    )
    offsets_retention_check_interval_ms: long = setting(
        default=10 * MINUTE_MS,
        doc="Time between two looks for offsets to forget.",
        at_least=1,
    )
    offsets_topic_num_partitions: int = setting(
        default=50, doc="Partitions of the topic of offsets.", at_least=1
    )
    offsets_topic_replication_factor: short = setting(
        default=3, doc="Replicas of the topic of offsets.", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        default=100 * 1024 * 1024,
        doc="Segment size of the topic of offsets.",
        at_least=1,
    )
    offsets_topic_compression_codec: int = setting(
        default=0,
        doc="Codec of the topic of offsets, by number.",
        at_least=0,
        at_most=4,
    )
    share_coordinator_state_topic_replication_factor: short = setting(
        default=3, doc="Replicas of the topic of share groups.", at_least=1, later=SHARE_GROUPS
    )
    share_coordinator_state_topic_min_isr: short = setting(
        default=2,
        doc="Fewest in-sync replicas of the topic of share groups.",
        at_least=1,
        later=SHARE_GROUPS,
    )


class TransactionSettings(Settings):
    """Transactions and their log."""

    transaction_max_timeout_ms: int = setting(
        default=15 * MINUTE_MS,
        doc="Longest timeout that a transaction may ask for.",
        at_least=1,
    )
    transaction_state_log_num_partitions: int = setting(
        default=50, doc="Partitions of the topic of transactions.", at_least=1
    )
    transaction_state_log_replication_factor: short = setting(
        default=3, doc="Replicas of the topic of transactions.", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        default=2,
        doc="Fewest in-sync replicas of the topic of transactions.",
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        default=100 * 1024 * 1024,
        doc="Segment size of the topic of transactions.",
        at_least=1,
    )
    transaction_state_log_load_buffer_size: int = setting(
        default=5 * 1024 * 1024,
        doc="Bytes that are read at once when transactions are loaded.",
        at_least=1,
        ignored="they are read in small pieces, so that other requests get their turns",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        default=10 * 1000,
        doc="Time between two looks for transactions that took too long.",
        at_least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        default=HOUR_MS,
        doc="Time between two looks for transactional ids to forget.",
        at_least=1,
    )
    transaction_partition_verification_enable: bool = setting(
        default=True,
        doc="Whether a partition asks the coordinator if a transaction really contains it.",
        scope=CLUSTER,
    )
    transactional_id_expiration_ms: int = setting(
        default=7 * DAY_MS,
        doc="How long an idle transactional id is remembered.",
        at_least=1,
    )


class QuotaSettings(Settings):
    """Quotas for clients and for replication."""

    quota_window_num: int = setting(
        default=11, doc="Windows that a client's rate is taken over.", at_least=1, later=QUOTAS
    )
    quota_window_size_seconds: int = setting(
        default=1, doc="Length of such a window.", at_least=1, later=QUOTAS
    )
    controller_quota_window_num: int = setting(
        default=11,
        doc="Windows that the rate of topic changes is taken over.",
        at_least=1,
        later=QUOTAS,
    )
    controller_quota_window_size_seconds: int = setting(
        default=1, doc="Length of such a window.", at_least=1, later=QUOTAS
    )
    replication_quota_window_num: int = setting(
        default=11,
        doc="Windows that the rate of replication is taken over.",
        at_least=1,
    )
    replication_quota_window_size_seconds: int = setting(
        default=1, doc="Length of such a window.", at_least=1
    )
    leader_replication_throttled_rate: long = setting(
        default=MAX_LONG,
        doc="Bytes per second that a broker gives away of the replicas in"
        " leader.replication.throttled.replicas.",
        scope=CLUSTER,
        at_least=0,
    )
    follower_replication_throttled_rate: long = setting(
        default=MAX_LONG,
        doc="Bytes per second that a broker copies of the replicas in"
        " follower.replication.throttled.replicas.",
        scope=CLUSTER,
        at_least=0,
    )
    client_quota_callback_class: java_class | None = setting(
        default=None,
        doc="A class that decides a client's quota.",
        ignored="Java classes cannot be loaded",
    )
