"""The bytes of messages that no other library knows, field by field."""

import uuid
from typing import Any

import pytest

from hightide.wire.codec import decode, encode
from hightide.wire.messages.connections import (
    DescribeConnectionsRequest,
    DescribeConnectionsResponse,
    DescribedConnection,
)
from hightide.wire.messages.controller import ResignControllerRequest, ResignControllerResponse
from hightide.wire.messages.events import (
    DescribedEvent,
    DescribeEventsRequest,
    DescribeEventsResponse,
)
from hightide.wire.messages.group_status import (
    GroupStatus,
    GroupStatusRequest,
    GroupStatusResponse,
    PartitionCommit,
    RebalanceStatus,
    TopicCommits,
)
from hightide.wire.messages.markers import OpenMarkerConnectionRequest, OpenMarkerConnectionResponse
from hightide.wire.messages.proof import ProveBrokerRequest, ProveBrokerResponse
from hightide.wire.messages.replicas import (
    DepartedBroker,
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    FollowerProgress,
    TopicPartitions,
)
from hightide.wire.messages.replication import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    FailedPartition,
    FailedTopic,
    LogInfoRequestTopic,
    LogInfoResponseTopic,
    PartitionLogInfo,
    PublishedBroker,
    PublishedEndpoint,
    PublishedPartition,
    PublishedTopic,
    PublishStateRequest,
    PublishStateResponse,
    RemainingPartition,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
    ReportFailuresRequest,
    ReportFailuresResponse,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
GONE = uuid.UUID(int=7)

BYTES = [
    (ControlledShutdownRequest(broker_id=3, broker_epoch=258), 2, "00000003 0000000000000102"),
    (ControlledShutdownRequest(broker_id=3, broker_epoch=258), 3, "00000003 0000000000000102 00"),
    (
        ControlledShutdownResponse(
            error_code=41,
            remaining_partitions=[RemainingPartition(topic_name="ab", partition_index=5)],
        ),
        2,
        "0029 00000001 0002 6162 00000005",
    ),
    (
        ControlledShutdownResponse(
            error_code=41,
            remaining_partitions=[RemainingPartition(topic_name="ab", partition_index=5)],
        ),
        3,
        "0029 02 03 6162 00000005 00 00",
    ),
    (ResignControllerRequest(), 0, "00"),
    (ResignControllerResponse(error_code=1, controller_id=2), 0, "0001 00 00000002 00"),
    (PublishStateResponse(error_code=11), 0, "000b 00"),
    (
        PublishStateRequest(
            controller_id=1,
            controller_epoch=2,
            broker_epoch=3,
            sequence=4,
            is_full=True,
            brokers=[
                PublishedBroker(
                    broker_id=5,
                    broker_epoch=6,
                    rack="r",
                    endpoints=[
                        PublishedEndpoint(
                            listener="L", host="h", port=9092, security_protocol="SSL"
                        )
                    ],
                    is_shutting_down=True,
                )
            ],
            topics=[
                PublishedTopic(
                    name="t",
                    topic_id=ID,
                    partitions=[
                        PublishedPartition(
                            partition_index=0,
                            replicas=[5, 6],
                            leader=5,
                            leader_epoch=7,
                            isr=[5],
                            partition_epoch=8,
                        ),
                        PublishedPartition(
                            partition_index=1,
                            replicas=[5],
                            leader=-1,
                            leader_epoch=7,
                            isr=[],
                            partition_epoch=8,
                            elr=[5],
                            last_known_leader=5,
                            adding=[6],
                            removing=[9],
                            is_recovering=True,
                        ),
                    ],
                )
            ],
            removed_topics=[GONE],
        ),
        0,
        "00000001 00000002 0000000000000003 0000000000000004 01"
        "02 00000005 0000000000000006 02 72 02 02 4c 02 68 00002384 04 53534c 00 01 00"
        "02 02 74 00112233445566778899aabbccddeeff"
        "  03 00000000 03 00000005 00000006 00000005 00000007 02 00000005 00000008 00"
        "     00000001 02 00000005 ffffffff 00000007 01 00000008"
        "     05 00 05 02 00000005 01 04 00000005 02 05 02 00000006 03 05 02 00000009 04 01 01"
        "  00"
        "02 00000000000000000000000000000007"
        "00",
    ),
    (DescribeReplicasRequest(), 0, "00 00"),
    (
        DescribeReplicasRequest(topics=[TopicPartitions(topic="t", partitions=[3])]),
        0,
        "02 02 74 02 00000003 00 00",
    ),
    (
        DescribeReplicasResponse(
            topics=[
                DescribedTopic(
                    name="t",
                    topic_id=ID,
                    partitions=[
                        DescribedReplica(
                            partition_index=0,
                            role=1,
                            leader_epoch=7,
                            log_start_offset=1,
                            high_watermark=2,
                            end_offset=3,
                            size_bytes=4,
                            state=PublishedPartition(
                                partition_index=0,
                                replicas=[5, 6],
                                leader=5,
                                leader_epoch=7,
                                isr=[5],
                                partition_epoch=8,
                            ),
                            is_under_min_isr=True,
                            maximal_isr=[5],
                            progress=[
                                FollowerProgress(
                                    broker_id=6, standing="BEHIND", end_offset=2, lag_records=1
                                )
                            ],
                        ),
                        DescribedReplica(
                            partition_index=1,
                            role=2,
                            leader_epoch=7,
                            log_start_offset=0,
                            high_watermark=9,
                            end_offset=9,
                            size_bytes=0,
                            is_waiting=True,
                            lost_records=8,
                        ),
                    ],
                )
            ]
        ),
        0,
        "0000 00 02 02 74 00112233445566778899aabbccddeeff"
        "  03 00000000 01 00000007 0000000000000001 0000000000000002 0000000000000003"
        "     0000000000000004 00 0000000000000000"
        "     01 00000000 03 00000005 00000006 00000005 00000007 02 00000005 00000008 00"
        "     01 02 00000005"
        "     02 00000006 07 424548494e44 0000000000000002 0000000000000001 ffffffffffffffff 00 00"
        "     00000001 02 00000007 0000000000000000 0000000000000009 0000000000000009"
        "     0000000000000000 01 0000000000000008 ff 00 01 01 00"
        "  00"
        "00",
    ),
    (GroupStatusRequest(group_ids=["g"]), 0, "02 02 67 00"),
    (
        GroupStatusResponse(
            groups=[
                GroupStatus(
                    group_id="g",
                    generation=4,
                    state_ms=5,
                    leader="m",
                    last_rebalance=RebalanceStatus(reason="r", at_ms=6, generation=3),
                    topics=[
                        TopicCommits(
                            name="t",
                            partitions=[
                                PartitionCommit(
                                    partition_index=1, committed_offset=2, committed_ms=3
                                )
                            ],
                        )
                    ],
                ),
                GroupStatus(group_id="h", error_code=16, error_message="no"),
            ]
        ),
        0,
        "03 02 67 0000 00 00000004 0000000000000005 02 6d"
        "     01 02 72 0000000000000006 00000003 00"
        "     02 02 74 02 00000001 0000000000000002 0000000000000003 00 00 00"
        "   02 68 0010 03 6e6f ffffffff ffffffffffffffff 00 ff 01 00 00",
    ),
    (
        OpenMarkerConnectionRequest(sender_id=1, sender_epoch=2, number=3, broker_epoch=4),
        0,
        "00000001 0000000000000002 0000000000000003 0000000000000004 00",
    ),
    (OpenMarkerConnectionResponse(error_code=77), 0, "004d 00"),
    (
        ReportFailuresRequest(
            broker_id=3,
            broker_epoch=258,
            topics=[
                FailedTopic(topic_id=ID, partitions=[FailedPartition(partition_index=5, kind=2)])
            ],
        ),
        0,
        "00000003 0000000000000102 02 00112233445566778899aabbccddeeff 02 00000005 02 00 00 00",
    ),
    (ReportFailuresResponse(error_code=41), 0, "0029 00"),
    (
        ReplicaLogInfoRequest(topics=[LogInfoRequestTopic(topic_id=ID, partitions=[5])]),
        0,
        "02 00112233445566778899aabbccddeeff 02 00000005 00 00",
    ),
    (
        ReplicaLogInfoResponse(
            broker_epoch=258,
            topics=[
                LogInfoResponseTopic(
                    topic_id=ID,
                    partitions=[
                        PartitionLogInfo(
                            partition_index=5, leader_epoch=7, last_epoch=6, end_offset=9
                        ),
                        PartitionLogInfo(partition_index=6, error_code=56),
                    ],
                )
            ],
        ),
        0,
        "0000 0000000000000102 02 00112233445566778899aabbccddeeff"
        " 03 00000005 0000 00000007 00000006 0000000000000009 00"
        "    00000006 0038 ffffffff ffffffff ffffffffffffffff 00 00 00",
    ),
    (
        ProveBrokerRequest(broker_id=3, broker_epoch=258, nonce=b"no", proof=b"yes"),
        0,
        "00000003 0000000000000102 03 6e6f 04 796573 00",
    ),
    (
        ProveBrokerResponse(error_code=31, broker_id=3, nonce=b"no", proof=b"yes"),
        0,
        "001f 00000003 03 6e6f 04 796573 00",
    ),
    (
        DescribeEventsRequest(
            start_id="s",
            after=3,
            limit=4,
            severity=2,
            kinds=["k"],
            topics=[TopicPartitions(topic="t", partitions=[5])],
        ),
        0,
        "02 73 0000000000000003 00000004 02 02 02 6b 02 02 74 02 00000005 00 00",
    ),
    (
        DescribeEventsResponse(
            start_id="s",
            position=3,
            has_more=True,
            dropped=1,
            events=[
                DescribedEvent(
                    sequence=2,
                    time_ms=4,
                    monotonic_ms=5,
                    kind="k",
                    severity=1,
                    text="w",
                    data="{}",
                )
            ],
            departed=[DepartedBroker(broker_id=6, host="h", port=7, last_seen_ms=8)],
        ),
        0,
        "0000 00 02 73 0000000000000003 01 0000000000000001"
        " 02 0000000000000002 0000000000000004 0000000000000005 02 6b 01 02 77 03 7b7d 00"
        " 01 00 14 02 00000006 02 68 00000007 0000000000000008 00",
    ),
    (DescribeConnectionsRequest(after=3, limit=4), 0, "0000000000000003 00000004 00"),
    (
        DescribeConnectionsResponse(
            open_connections=2,
            has_more=True,
            connections=[
                DescribedConnection(
                    number=1,
                    client_id="c",
                    software_name="n",
                    software_version="v",
                    address="a",
                    port=3,
                    listener="l",
                    connected_ms=4,
                    idle_ms=5,
                    requests=6,
                    last_api=7,
                    broker_id=8,
                )
            ],
        ),
        0,
        "0000 00 00000002 01"
        " 02 0000000000000001 02 63 02 6e 02 76 02 61 00000003 02 6c 0000000000000004"
        " 0000000000000005 0000000000000006 0007 00000008 00 00",
    ),
]


@pytest.mark.parametrize(("message", "version", "data"), BYTES)
def test_has_these_bytes(message: Any, version: int, data: str) -> None:
    assert encode(message, version).hex() == bytes.fromhex(data).hex()
    assert decode(type(message), bytes.fromhex(data), version) == message
