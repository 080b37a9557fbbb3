"""Broker settings for ZooKeeper, replication, groups, transactions and quotas.

Some belong to a feature that is missing. They are declared so that the file of a Kafka broker
works, and say that they have no effect yet.
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
OWN_SETTINGS = "groups have no settings"
QUOTAS = "it needs quotas"
SHARE_GROUPS = "it needs share groups"
PURGATORY = "completed requests leave the purgatory at once"


class ZooKeeperSettings(Settings):
    """ZooKeeper, the controller and controlled shutdown."""

    zookeeper_connect: str | None = setting(
        default=None,
        doc="The ZooKeeper ensemble, as host:port,host:port/path; if not set, the broker runs an"
        " embedded ZooKeeper, which speaks the same protocol.",
    )
    zookeeper_session_timeout_ms: int = setting(
        default=18 * 1000,
        doc="Session timeout: ZooKeeper expires the session of a broker after this time without a"
        " heartbeat.",
        at_least=100,
    )
    zookeeper_connection_timeout_ms: int | None = setting(
        default=None,
        doc="How long a starting broker waits for ZooKeeper before it exits; if not set, it waits"
        " until ZooKeeper answers, and logs that it waits.",
        at_least=1,
    )
    zookeeper_max_in_flight_requests: int = setting(
        default=10,
        doc="Maximum number of ZooKeeper requests without a response.",
        at_least=1,
        ignored="requests are sent at once, and many znodes are read in groups",
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
        default=None, doc="PEM file with the CA certificates for ZooKeeper."
    )
    zookeeper_ssl_keystore_location: str | None = setting(
        default=None, doc="PEM file with the broker's key and certificate for ZooKeeper."
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
    coordinator_listen: str | None = setting(default=None, doc="The old name of zookeeper.listen.")
    coordinator_credentials: password | None = setting(
        default=None, doc="The old name of zookeeper.credentials."
    )
    controlled_shutdown_enable: bool = setting(
        default=True,
        doc="Whether a broker moves its leaderships to other brokers before it stops.",
    )
    controlled_shutdown_max_retries: int = setting(
        default=3, doc="Number of retries of a controlled shutdown."
    )
    controlled_shutdown_retry_backoff_ms: long = setting(
        default=5 * 1000, doc="Time between two attempts of a controlled shutdown."
    )
    controller_socket_timeout_ms: int = setting(
        default=30 * 1000,
        doc="Timeout of requests from the controller to brokers.",
    )
    auto_leader_rebalance_enable: bool = setting(
        default=True,
        doc="Whether the controller moves leadership back to preferred replicas.",
    )
    leader_imbalance_check_interval_seconds: long = setting(
        default=300,
        doc="Time between two checks of the leader balance.",
        at_least=1,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        default=10,
        doc="Percentage of a broker's preferred partitions that may have another leader before"
        " leadership moves back.",
    )
    inter_broker_protocol_version: str | None = setting(
        default=None,
        doc="Protocol version between brokers.",
        ignored="brokers agree on the version of each request",
    )


class ReplicationSettings(Settings):
    """Replication between leaders and followers."""

    default_replication_factor: int = setting(
        default=1, doc="Default replication factor of a new topic.", at_least=1
    )
    replica_lag_time_max_ms: long = setting(
        default=30 * 1000,
        doc="A follower that has not caught up for this time leaves the ISR.",
    )
    replica_fetch_max_bytes: int = setting(
        default=1024 * 1024,
        doc="Maximum bytes of each partition in a follower's fetch.",
        at_least=0,
    )
    replica_fetch_min_bytes: int = setting(
        default=1, doc="Minimum bytes of a fetch response for a follower."
    )
    replica_fetch_response_max_bytes: int = setting(
        default=10 * 1024 * 1024,
        doc="Maximum bytes of a fetch response for a follower.",
        at_least=0,
    )
    replica_fetch_wait_max_ms: int = setting(
        default=500, doc="Maximum time that a fetch waits for replica.fetch.min.bytes."
    )
    replica_fetch_backoff_ms: int = setting(
        default=1000, doc="Pause of a follower after a failed fetch.", at_least=0
    )
    replica_socket_timeout_ms: int = setting(
        default=30 * 1000, doc="Timeout of a follower's requests."
    )
    replica_socket_receive_buffer_bytes: int = setting(
        default=64 * 1024,
        doc="Receive buffer of a follower's connection.",
        ignored="the operating system sizes it as needed",
    )
    replica_high_watermark_checkpoint_interval_ms: long = setting(
        default=5 * 1000, doc="Time between two checkpoints of the high watermarks."
    )
    replica_selector_class: java_class | None = setting(
        default=None, doc="How the replica that a consumer reads from is selected."
    )
    num_replica_fetchers: int = setting(
        default=1,
        doc="Number of fetchers for each leader broker.",
        scope=CLUSTER,
        ignored="one connection to each leader has all its partitions",
    )
    num_replica_alter_log_dirs_threads: int | None = setting(
        default=None,
        doc="Number of threads that move replicas between log directories.",
        later="replicas cannot move between log directories",
    )
    unclean_recovery_timeout_ms: long = setting(
        default=5 * MINUTE_MS,
        doc="How long a partition waits for the logs of the last ISR and ELR before the controller"
        " logs an error that says what is missing. It goes on waiting.",
        at_least=1,
    )
    unclean_leader_election_interval_ms: long = setting(
        default=5 * MINUTE_MS,
        doc="Time between two checks for unclean leader elections.",
        at_least=1,
        ignored="the controller checks after every change, and every few seconds",
    )
    fetch_purgatory_purge_interval_requests: int = setting(
        default=1000,
        doc="Number of fetches after which completed ones are purged.",
        ignored=PURGATORY,
    )
    producer_purgatory_purge_interval_requests: int = setting(
        default=1000,
        doc="Number of produce requests after which completed ones are purged.",
        ignored=PURGATORY,
    )
    delete_records_purgatory_purge_interval_requests: int = setting(
        default=1,
        doc="Number of DeleteRecords after which completed ones are purged.",
        ignored=PURGATORY,
    )


class GroupSettings(Settings):
    """Consumer groups and their offsets."""

    group_initial_rebalance_delay_ms: int = setting(
        default=3000, doc="How long the first rebalance of a group waits for more members."
    )
    group_min_session_timeout_ms: int = setting(
        default=6000, doc="Minimum session timeout of a member."
    )
    group_max_session_timeout_ms: int = setting(
        default=30 * MINUTE_MS, doc="Maximum session timeout of a member."
    )
    group_max_size: int = setting(
        default=1000, doc="Maximum number of members of a group.", at_least=1
    )
    group_max_count: int = setting(
        default=10_000,
        doc="Maximum number of groups of a broker; a request that would create another one gets"
        " POLICY_VIOLATION.",
        at_least=1,
    )
    group_member_metadata_max_bytes: int = setting(
        default=1024 * 1024,
        doc="Maximum size of what a member stores when it joins (ids, protocols, subscription), and"
        " of its assignment; past it, the request gets INVALID_REQUEST.",
        at_least=1,
    )
    group_metadata_max_bytes: long = setting(
        default=256 * 1024 * 1024,
        doc="Maximum size of what all members with more than 16 KiB of metadata store in one"
        " broker; past it, another one gets GROUP_MAX_SIZE_REACHED.",
        at_least=1,
    )
    group_coordinator_rebalance_protocols: names = setting(
        default=("classic", "consumer"),
        doc="Group protocols that the broker supports.",
        one_of=("classic", "consumer", "share", "streams"),
    )
    group_coordinator_threads: int = setting(
        default=1,
        doc="Number of threads of the group coordinator.",
        at_least=1,
        ignored="one event loop serves all groups",
    )
    group_coordinator_append_linger_ms: int = setting(
        default=10,
        doc="How long records of a group wait for more, to be written together.",
        at_least=0,
        ignored="they are written at once",
    )
    group_consumer_session_timeout_ms: int = setting(
        default=45 * 1000, doc="Session timeout of members (consumer protocol).", at_least=1
    )
    group_consumer_min_session_timeout_ms: int = setting(
        default=45 * 1000,
        doc="Minimum session timeout of a group (consumer protocol).",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_session_timeout_ms: int = setting(
        default=60 * 1000,
        doc="Maximum session timeout of a group (consumer protocol).",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        default=5000,
        doc="Heartbeat interval of members (consumer protocol).",
        at_least=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        default=5000,
        doc="Minimum heartbeat interval of a group (consumer protocol).",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        default=15 * 1000,
        doc="Maximum heartbeat interval of a group (consumer protocol).",
        at_least=1,
        later=OWN_SETTINGS,
    )
    group_consumer_max_size: int = setting(
        default=1000, doc="Maximum number of members (consumer protocol).", at_least=1
    )
    group_consumer_assignors: names = setting(
        default=("uniform", "range"),
        doc="Assignors of the coordinator; the first one is the default.",
        one_of=("uniform", "range"),
    )
    group_consumer_migration_policy: str = setting(
        default="bidirectional",
        doc="Which migrations between the classic and the consumer protocol are allowed.",
        one_of=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offset_metadata_max_bytes: int = setting(
        default=4096, doc="Maximum size of the metadata of a committed offset."
    )
    offsets_commit_timeout_ms: int = setting(
        default=5000,
        doc="How long an offset commit waits for replication.",
        at_least=1,
    )
    offsets_load_buffer_size: int = setting(
        default=5 * 1024 * 1024,
        doc="Batch size of reads when committed offsets are loaded.",
        at_least=1,
        ignored="they are read in small pieces, and other requests are served in between",
    )
    offsets_retention_minutes: int = setting(
        default=7 * 24 * 60,
        doc="How long the committed offsets of an empty group are kept.",
        at_least=1,
    )
    offsets_retention_check_interval_ms: long = setting(
        default=10 * MINUTE_MS,
        doc="Time between two checks for expired offsets.",
        at_least=1,
    )
    offsets_topic_num_partitions: int = setting(
        default=50, doc="Number of partitions of __consumer_offsets.", at_least=1
    )
    offsets_topic_replication_factor: short = setting(
        default=3, doc="Replication factor of __consumer_offsets.", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        default=100 * 1024 * 1024,
        doc="Segment size of __consumer_offsets.",
        at_least=1,
    )
    offsets_topic_compression_codec: int = setting(
        default=0,
        doc="Compression codec of __consumer_offsets, by number.",
        at_least=0,
        at_most=4,
    )
    share_coordinator_state_topic_replication_factor: short = setting(
        default=3,
        doc="Replication factor of the topic of share groups.",
        at_least=1,
        later=SHARE_GROUPS,
    )
    share_coordinator_state_topic_min_isr: short = setting(
        default=2,
        doc="min.insync.replicas of the topic of share groups.",
        at_least=1,
        later=SHARE_GROUPS,
    )


class TransactionSettings(Settings):
    """Transactions and the transaction state log."""

    transaction_max_timeout_ms: int = setting(
        default=15 * MINUTE_MS,
        doc="Maximum transaction timeout of a producer.",
        at_least=1,
    )
    transaction_state_log_num_partitions: int = setting(
        default=50, doc="Number of partitions of __transaction_state.", at_least=1
    )
    transaction_state_log_replication_factor: short = setting(
        default=3, doc="Replication factor of __transaction_state.", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        default=2,
        doc="min.insync.replicas of __transaction_state.",
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        default=100 * 1024 * 1024,
        doc="Segment size of __transaction_state.",
        at_least=1,
    )
    transaction_state_log_load_buffer_size: int = setting(
        default=5 * 1024 * 1024,
        doc="Batch size of reads when transactions are loaded.",
        at_least=1,
        ignored="they are read in small pieces, and other requests are served in between",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        default=10 * 1000,
        doc="Time between two checks for transactions that timed out.",
        at_least=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        default=HOUR_MS,
        doc="Time between two checks for expired transactional ids.",
        at_least=1,
    )
    transaction_partition_verification_enable: bool = setting(
        default=True,
        doc="Whether a leader verifies with the coordinator that a partition is part of a"
        " transaction.",
        scope=CLUSTER,
    )
    transactional_id_expiration_ms: int = setting(
        default=7 * DAY_MS,
        doc="How long the coordinator keeps an idle transactional id.",
        at_least=1,
    )
    transactional_id_max_count: int = setting(
        default=100_000,
        doc="Maximum number of transactional ids of a broker; InitProducerId with another one gets"
        " POLICY_VIOLATION.",
        at_least=1,
    )


class QuotaSettings(Settings):
    """Quotas for clients and for replication."""

    quota_window_num: int = setting(
        default=11, doc="Number of windows for client quotas.", at_least=1, later=QUOTAS
    )
    quota_window_size_seconds: int = setting(
        default=1, doc="Length of a window for client quotas.", at_least=1, later=QUOTAS
    )
    controller_quota_window_num: int = setting(
        default=11,
        doc="Number of windows for controller mutation quotas.",
        at_least=1,
        later=QUOTAS,
    )
    controller_quota_window_size_seconds: int = setting(
        default=1,
        doc="Length of a window for controller mutation quotas.",
        at_least=1,
        later=QUOTAS,
    )
    replication_quota_window_num: int = setting(
        default=11,
        doc="Number of windows for replication quotas.",
        at_least=1,
    )
    replication_quota_window_size_seconds: int = setting(
        default=1, doc="Length of a window for replication quotas.", at_least=1
    )
    leader_replication_throttled_rate: long = setting(
        default=MAX_LONG,
        doc="Maximum bytes per second that a broker sends to followers of the replicas in"
        " leader.replication.throttled.replicas.",
        scope=CLUSTER,
        at_least=0,
    )
    follower_replication_throttled_rate: long = setting(
        default=MAX_LONG,
        doc="Maximum bytes per second that a broker fetches for the replicas in"
        " follower.replication.throttled.replicas.",
        scope=CLUSTER,
        at_least=0,
    )
    client_quota_callback_class: java_class | None = setting(
        default=None,
        doc="A class that decides the quota of a client.",
        ignored="Java classes cannot be loaded",
    )
