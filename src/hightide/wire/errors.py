"""Kafka's error codes, and the three exceptions of the wire protocol.

An `ErrorCode` is a field of a response. `KafkaError` carries a code to the place that builds the
response. `WireError` means that the bytes are not a valid message; the broker closes the
connection. `Corrupt` means that records are damaged; they must not be stored or served.

Each code is declared once, with its meaning in one sentence and whether a client should retry.
Messages for people use these sentences.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Every error code of the Kafka protocol: its number, whether it is retriable, its meaning."""

    retriable: bool
    meaning: str

    # The defaults are for type checkers: `ErrorCode(3)` looks a member up, and never comes here.
    def __new__(cls, code: int, retriable: bool = False, meaning: str = "") -> ErrorCode:
        self = int.__new__(cls, code)
        self._value_ = code
        self.retriable = retriable
        self.meaning = meaning
        return self

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed unexpectedly; see its log."
    NONE = 0, False, "There was no error."
    OFFSET_OUT_OF_RANGE = 1, False, "The partition holds no records at this offset."
    CORRUPT_MESSAGE = 2, True, "The records are damaged or are not a well-formed batch."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker knows no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the leader or follower of the partition."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed within its time limit."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is expected on this broker but is not ready."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The sender is no longer the controller."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata committed with an offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection closed before the response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still reading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "Another broker is the coordinator."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic's name or this use of it is not allowed."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas are in sync to accept the write."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The write is in the log, but too few replicas were in sync to confirm it.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "The acks of the request are not -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member shares no protocol with its group."
    INVALID_GROUP_ID = 24, False, "The group id is not allowed."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's bounds."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing, and members must rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The committed offset is too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The principal may not do this with the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The principal may not do this with the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The principal may not do this with the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is outside what the topic accepts."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not speak this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is not allowed here."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A setting is unknown or its value is not allowed."
    NOT_CONTROLLER = 41, True, "Another broker is the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or breaks a rule of the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The format of the records does not allow this."
    POLICY_VIOLATION = 44, False, "A policy of this cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence number leaves a gap."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's sequence number was used before."
    INVALID_PRODUCER_EPOCH = 47, False, "A newer producer with the same id has taken over."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "The producer id does not belong to this transactional id.",
    )
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above the broker's bound."
    CONCURRENT_TRANSACTIONS = 51, True, "The previous transaction of this producer is not finished."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        False,
        "The principal may not use this transactional id.",
    )
    SECURITY_DISABLED = 54, False, "Security is not turned on at this broker."
    OPERATION_NOT_ATTEMPTED = (
        55,
        False,
        "An earlier part of the request failed, so this part was skipped.",
    )
    KAFKA_STORAGE_ERROR = 56, True, "The disk under the log failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials were not accepted."
    UNKNOWN_PRODUCER_ID = 59, False, "The partition has no state of this producer."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is already being moved."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are turned off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token has another owner."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "This connection may not request delegation tokens.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "The principal may not use this token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "Principals of this type are not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker does not have this fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session expected another epoch."
    LISTENER_NOT_FOUND = (
        72,
        True,
        "The leader has no listener with the name of the one that got the request.",
    )
    TOPIC_DELETION_DISABLED = 73, False, "This cluster does not allow topics to be deleted."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch of the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch of the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression type cannot be used here."
    STALE_BROKER_EPOCH = 77, False, "The broker has registered again since the request was made."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader has not caught up with the high watermark."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the member id of the response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader cannot lead at the moment."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has reached its maximum number of members."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica may become leader at the moment."
    ELECTION_NOT_NEEDED = 84, True, "The partition already has the requested leader."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group still subscribes to the topic."
    INVALID_RECORD = 87, False, "A record breaks a rule of its topic."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction that commits these offsets is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The client has used up its quota for now."
    PRODUCER_FENCED = 90, False, "A newer producer with the same transactional id exists."
    RESOURCE_NOT_FOUND = 91, False, "There is no such resource."
    DUPLICATE_RESOURCE = 92, False, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, False, "The sender or receiver is not one of the voters."
    INVALID_UPDATE_VERSION = 95, False, "The version to change to is not allowed."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker knows no topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A live broker has registered with this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker has registered with this id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic's id in the log differs from the request's."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, False, "The change has led to the election of another leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The records have moved to remote storage."
    FENCED_MEMBER_EPOCH = 110, False, "The coordinator has fenced the member's epoch."
    UNRELEASED_INSTANCE_ID = 111, False, "The group instance id belongs to a member still present."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group's members share no such assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old, and it must heartbeat first."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to an endpoint of the wrong type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "Endpoints of this type are not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The client's telemetry subscription is outdated."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, False, "The controller rejects the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction failed, and the client must abort it."
    INVALID_RECORD_STATE = 121, False, "The shared record is not in a state that allows this."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker does not have this share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session expected another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator has a newer state epoch."
    INVALID_VOTER_KEY = 125, False, "The voter's key is not that of the receiver."
    DUPLICATE_VOTER = 126, False, "The voter is already one of the voters."
    VOTER_NOT_FOUND = 127, False, "The voter is not one of the voters."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression cannot be used."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must start again from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The streams topology is older than the group's."
    SHARE_SESSION_LIMIT_REACHED = (
        133,
        True,
        "The broker has reached its maximum number of share sessions.",
    )


class KafkaError(Exception):
    """An error for the client: a code for programs and a sentence for people."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail or code.meaning

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}"

    def copied(self) -> KafkaError:
        """Return the same error without a traceback, to keep it or to raise it again.

        A traceback keeps the local variables of its frames, such as the buffers of a request.
        """
        return KafkaError(self.code, self.detail)


class WireError(Exception):
    """Bytes that are not a valid message of the given version."""


class Corrupt(Exception):
    """Damaged records, in a request or on disk."""
