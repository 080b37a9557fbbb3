"""Leader elections, reassignments of partitions, and the state of replicas.

Kafka does not have DescribeReplicas, which returns the progress of each replica and why it is out
of sync. ApiVersions does not list it, since clients do not know it.
"""

from __future__ import annotations

import uuid

from hightide.wire.messages.replication import PublishedPartition
from hightide.wire.types import field, i8, i16, i32, i64, message, part


@part
class TopicPartitions:
    topic: str
    partitions: list[i32]


@message(key=43, versions=(0, 2), flexible=2)
class ElectLeadersRequest:
    """Elect leaders of partitions; of all partitions if the list is null."""

    election_type: i8 = field(since=1, default=0)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: i32 = 60000


@part
class PartitionResult:
    partition_id: i32
    error_code: i16 = 0
    error_message: str | None = None


@part
class ReplicaElectionResult:
    topic: str
    partition_result: list[PartitionResult]


@message(key=43, versions=(0, 2), flexible=2)
class ElectLeadersResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = 0
    error_code: i16 = field(since=1, default=0)
    replica_election_results: list[ReplicaElectionResult]


@part
class ReassignablePartition:
    partition_index: i32
    replicas: list[i32] | None = None


@part
class ReassignableTopic:
    name: str
    partitions: list[ReassignablePartition]


@message(key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsRequest:
    """Reassign partitions to brokers, or cancel the reassignment if the replicas are null."""

    timeout_ms: i32 = 60000
    allow_replication_factor_change: bool = field(since=1, default=True)
    topics: list[ReassignableTopic]


@part
class ReassignablePartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    error_message: str | None = None


@part
class ReassignableTopicResponse:
    name: str
    partitions: list[ReassignablePartitionResponse]


@message(key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsResponse:
    """The result for each partition."""

    throttle_time_ms: i32 = 0
    allow_replication_factor_change: bool = field(since=1, ignorable=True, default=True)
    error_code: i16 = 0
    error_message: str | None = None
    responses: list[ReassignableTopicResponse]


@part
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: list[i32]


@message(key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsRequest:
    """Request the reassignments in progress."""

    timeout_ms: i32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@part
class OngoingPartitionReassignment:
    partition_index: i32
    replicas: list[i32]
    adding_replicas: list[i32]
    removing_replicas: list[i32]


@part
class OngoingTopicReassignment:
    name: str
    partitions: list[OngoingPartitionReassignment]


@message(key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsResponse:
    """The reassignments in progress, with the replicas to add and to remove."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment]


@message(key=30002, versions=(0, 0), flexible=0)
class DescribeReplicasRequest:
    """Request the state of the replicas on a broker; of all if `topics` is null."""

    topics: list[TopicPartitions] | None = None


@part
class FollowerProgress:
    """The progress of a follower as its leader sees it; -1 means unknown."""

    broker_id: i32
    standing: str
    """A name of `core.progress.Standing`."""
    end_offset: i64 = -1
    lag_records: i64 = -1
    lag_ms: i64 = -1


@part
class DescribedReplica:
    """One replica, as its own broker sees it.

    `role` is 0 without a leader, 1 for the leader, 2 for a follower. `is_waiting` says that a
    follower stopped fetching and waits for a newer leader epoch. `lost_records` counts the
    committed records that this replica truncated since its broker started because its leader did
    not have them, and no election that accepts loss explains it.
    """

    partition_index: i32
    role: i8
    leader_epoch: i32
    log_start_offset: i64
    high_watermark: i64
    end_offset: i64
    size_bytes: i64
    is_waiting: bool = False
    lost_records: i64 = 0
    state: PublishedPartition | None = None
    """The partition state that the broker has applied."""
    is_under_min_isr: bool = False
    maximal_isr: list[i32] = field(default=[])
    progress: list[FollowerProgress] = field(default=[])
    """Only a leader fills in the last three fields."""
    failure: str = field(tag=0, default="")
    """Why the broker cannot serve the replica: "full: …", "offline: …", "damaged: …", or ""."""
    last_epoch: i32 = field(tag=1, default=-1)
    """The newest leader epoch in its log."""
    last_stable_offset: i64 = field(tag=2, default=-1)
    """Up to where consumers of committed transactions read; -1 from a broker without this field."""


@part
class DescribedTopic:
    name: str
    topic_id: uuid.UUID
    partitions: list[DescribedReplica]


@part
class DepartedBroker:
    """A broker that is gone since the sender started; the host is "" if it had no such listener."""

    broker_id: i32
    host: str
    port: i32
    last_seen_ms: i64
    """When the controller published the cluster without it, by the clock of the sender."""


@message(key=30002, versions=(0, 0), flexible=0)
class DescribeReplicasResponse:
    """The replicas on the broker. Partitions without a replica on it are left out."""

    error_code: i16 = 0
    error_message: str | None = None
    topics: list[DescribedTopic]
    software_version: str = field(tag=0, default="")
    departed: list[DepartedBroker] = field(tag=1, default=[])
