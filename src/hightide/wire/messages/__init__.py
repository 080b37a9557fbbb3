"""Kafka's messages: one typed class for all versions of a message.

`REQUESTS` and `RESPONSES` map an API key to the class. A module is imported when one of its keys is
first looked up: a broker starts before it has imported them all, and a client never needs most of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

# API key → the common name of request and response, and their module.
APIS: dict[int, tuple[str, str]] = {
    0: ("Produce", "produce"),
    1: ("Fetch", "fetch"),
    2: ("ListOffsets", "offsets"),
    3: ("Metadata", "metadata"),
    7: ("ControlledShutdown", "replication"),
    8: ("OffsetCommit", "offsets"),
    9: ("OffsetFetch", "offsets"),
    10: ("FindCoordinator", "groups"),
    11: ("JoinGroup", "groups"),
    12: ("Heartbeat", "groups"),
    13: ("LeaveGroup", "groups"),
    14: ("SyncGroup", "groups"),
    15: ("DescribeGroups", "groups"),
    16: ("ListGroups", "groups"),
    17: ("SaslHandshake", "sasl"),
    18: ("ApiVersions", "api_versions"),
    19: ("CreateTopics", "topics"),
    20: ("DeleteTopics", "topics"),
    21: ("DeleteRecords", "topics"),
    22: ("InitProducerId", "produce"),
    23: ("OffsetForLeaderEpoch", "offsets"),
    24: ("AddPartitionsToTxn", "transactions"),
    25: ("AddOffsetsToTxn", "transactions"),
    26: ("EndTxn", "transactions"),
    27: ("WriteTxnMarkers", "transactions"),
    28: ("TxnOffsetCommit", "transactions"),
    29: ("DescribeAcls", "acls"),
    30: ("CreateAcls", "acls"),
    31: ("DeleteAcls", "acls"),
    32: ("DescribeConfigs", "configs"),
    33: ("AlterConfigs", "configs"),
    35: ("DescribeLogDirs", "cluster"),
    36: ("SaslAuthenticate", "sasl"),
    37: ("CreatePartitions", "topics"),
    42: ("DeleteGroups", "groups"),
    43: ("ElectLeaders", "replicas"),
    44: ("IncrementalAlterConfigs", "configs"),
    45: ("AlterPartitionReassignments", "replicas"),
    46: ("ListPartitionReassignments", "replicas"),
    47: ("OffsetDelete", "offsets"),
    48: ("DescribeClientQuotas", "quotas"),
    49: ("AlterClientQuotas", "quotas"),
    50: ("DescribeUserScramCredentials", "users"),
    51: ("AlterUserScramCredentials", "users"),
    56: ("AlterPartition", "replication"),
    60: ("DescribeCluster", "cluster"),
    61: ("DescribeProducers", "transactions"),
    65: ("DescribeTransactions", "transactions"),
    66: ("ListTransactions", "transactions"),
    68: ("ConsumerGroupHeartbeat", "consumer_groups"),
    69: ("ConsumerGroupDescribe", "consumer_groups"),
    71: ("GetTelemetrySubscriptions", "telemetry"),
    72: ("PushTelemetry", "telemetry"),
    74: ("ListConfigResources", "configs"),
    75: ("DescribeTopicPartitions", "metadata"),
    # Requests that Kafka does not have; see the modules.
    30000: ("ResignController", "controller"),
    30001: ("PublishState", "replication"),
    30002: ("DescribeReplicas", "replicas"),
    30003: ("GroupStatus", "group_status"),
    30004: ("OpenMarkerConnection", "markers"),
    30005: ("ReportFailures", "replication"),
    30006: ("ReplicaLogInfo", "replication"),
    30007: ("ProveBroker", "proof"),
    30008: ("DescribeEvents", "events"),
    30009: ("DescribeConnections", "connections"),
}


class _ByKey(Mapping[int, type[Any]]):
    """API key → message class. The module of a class is imported on its first lookup."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._found: dict[int, type[Any]] = {}

    def __getitem__(self, key: int) -> type[Any]:
        found = self._found.get(key)
        if found is None:
            name, module = APIS[key]
            found = getattr(import_module(f"{__name__}.{module}"), name + self._suffix)
            self._found[key] = found
        return found

    def __contains__(self, key: object) -> bool:
        return key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)


REQUESTS: Mapping[int, type[Any]] = _ByKey("Request")
RESPONSES: Mapping[int, type[Any]] = _ByKey("Response")
