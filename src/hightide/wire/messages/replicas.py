"""Moving leadership and replicas: elections, and reassignments of partitions to brokers."""

from __future__ import annotations

from hightide.wire.types import field, i8, i16, i32, message, part


@part
class TopicPartitions:
    topic: str
    partitions: list[i32]


@message(key=43, versions=(0, 2), flexible=2)
class ElectLeadersRequest:
    """Has partitions elect a leader; all partitions when the list is null."""

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
    """Whether each partition elected a leader."""

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
    """Moves partitions to other brokers, or stops moving them when the replicas are null."""

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
    """Whether each move was started or stopped."""

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
    """Asks which partitions are being moved."""

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
    """The partitions that are being moved, and from where to where."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    topics: list[OngoingTopicReassignment]
