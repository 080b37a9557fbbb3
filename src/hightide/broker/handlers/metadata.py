"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75): brokers, topics, leaders.

Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, and the
errors of automatic topic creation.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from hightide.broker.controller import announce_topic
from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.controller.topic_changes import default_counts
from hightide.broker.handlers.request_context import Context
from hightide.broker.metadata_cache import BrokerAddress
from hightide.broker.network.turn import Steps
from hightide.core.controller.placement import place
from hightide.core.metadata import topic_names as rules
from hightide.core.metadata.image import MetadataImage, Topic
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from hightide.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_NO_ID = uuid.UUID(int=0)
_TOPIC_IDS = 12  # from this version on a request may name topics by id
_NOT_ASKED = -(2**31)
_BROKER_ENDPOINTS = 1
_CREATION_S = 5.0  # how long a request creates topics and waits for them
_POLL_S = 0.005

# Every operation that a resource has: there is no authorization yet.
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12


def _operations(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _operations(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
CLUSTER_OPERATIONS = _operations(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)


async def metadata(broker: Broker, request: MetadataRequest, context: Context) -> MetadataResponse:
    topics = request.topics
    # Version 0 has no null: an empty array means all topics.
    if topics is None or (context.version == 0 and not topics):
        found = []
        for topic in list(broker.metadata):
            found.append(_known(broker, topic, request))
            await context.turn.pause()
    else:
        creation = _AutoCreation(broker, request, context)
        found = []
        for requested in topics:
            if context.version < _TOPIC_IDS and requested.topic_id != _NO_ID:
                error = ErrorCode.INVALID_REQUEST
                found.append(_missing(requested.name or "", requested.topic_id, error))
                continue
            found.append(await _find(broker, requested, request, creation))
            await context.turn.pause()
    if context.version < 10:
        # An old version cannot name a topic that is requested by id.
        found = [topic for topic in found if topic.name is not None]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=address.broker_id, host=address.host, port=address.port, rack=address.rack
            )
            for address in broker.addresses(context.connection)
        ],
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.metadata.controller_id,
        topics=found,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


async def _find(
    broker: Broker,
    requested: MetadataRequestTopic,
    request: MetadataRequest,
    creation: _AutoCreation,
) -> MetadataResponseTopic:
    # Java's consumer sends an id with an empty name instead of a null name.
    if requested.name is None or requested.topic_id != _NO_ID:
        topic = broker.metadata.get_by_id(requested.topic_id)
        if topic is None:
            return _missing(None, requested.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _known(broker, topic, request)
    topic = broker.metadata.get(requested.name)
    if topic is None:
        try:
            topic = await creation.create(requested.name)
        except CONTROLLER_ERRORS as error:
            return _missing(requested.name, _NO_ID, kafka_error(error).code)
    return _known(broker, topic, request)


class _AutoCreation:
    """The automatic creation of topics by one request.

    A request creates at most auto.create.topics.max.per.request topics, for five seconds, and none
    once its connection is closed.  The other unknown topics get LEADER_NOT_AVAILABLE, and the
    client asks again.
    """

    def __init__(self, broker: Broker, request: MetadataRequest, context: Context) -> None:
        settings = broker.settings
        creates = request.allow_auto_topic_creation or context.version < 4
        self._broker = broker
        self._connection = context.connection
        self._is_enabled = creates and settings.auto_create_topics_enable
        self._left = settings.auto_create_topics_max_per_request
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + _CREATION_S

    async def create(self, name: str) -> Topic:
        rules.check_name(name)
        if not self._is_enabled or name in rules.INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_late = self._loop.time() >= self._deadline_s
        if not self._left or is_late or self._connection.is_closed:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        self._left -= 1
        return await _create(self._broker, name, self._deadline_s)


async def _create(broker: Broker, name: str, deadline_s: float) -> Topic:
    racks, random = broker.metadata.racks, broker.environment.random
    first = random.randrange(len(racks))
    count, factor = default_counts(broker.settings, name, len(racks))
    assignment = place(racks, count, factor, first)
    # Any broker may create a topic; the controller elects its leaders and publishes them.
    try:
        new_id = broker.environment.new_id
        await announce_topic(broker.zookeeper, name, assignment, {}, new_id)
    except KafkaError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    loop = asyncio.get_running_loop()
    while loop.time() < deadline_s:
        topic = broker.metadata.get(name)
        if topic is not None:
            return topic
        await asyncio.sleep(_POLL_S)
    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)


def _known(broker: Broker, topic: Topic, request: MetadataRequest) -> MetadataResponseTopic:
    image = broker.metadata_image
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in rules.INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=_leader_error(image, state),
                partition_index=index,
                leader_id=image.leader(state),
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=image.offline_replicas(state),
            )
            for index, state in topic.partitions.items()
        ],
        topic_authorized_operations=(
            TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_ASKED
        ),
    )


def _leader_error(image: MetadataImage, state: PartitionState) -> ErrorCode:
    if image.leader(state) == NO_BROKER:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.NONE


def _missing(name: str | None, topic_id: uuid.UUID, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in rules.INTERNAL_TOPICS,
        partitions=[],
    )


def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: Context
) -> DescribeClusterResponse:
    """MISMATCHED_ENDPOINT_TYPE for controllers: a cluster with ZooKeeper has only brokers."""
    code, brokers = ErrorCode.NONE, broker.addresses(context.connection)
    if context.version >= 1 and request.endpoint_type != _BROKER_ENDPOINTS:
        code, brokers = ErrorCode.MISMATCHED_ENDPOINT_TYPE, []
    return DescribeClusterResponse(
        error_code=code,
        error_message=None if code == ErrorCode.NONE else "only brokers can be described",
        endpoint_type=_BROKER_ENDPOINTS,
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.metadata.controller_id,
        brokers=[_describe_broker(address) for address in brokers],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


def _describe_broker(address: BrokerAddress) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=address.broker_id, host=address.host, port=address.port, rack=address.rack
    )


def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, _context: Context
) -> Steps[DescribeTopicPartitionsResponse]:
    """Describe the partitions of the given topics, or of all, one page in the order of names.

    `next_cursor` is the first partition of the next page; the next request sends it back.
    """
    names = sorted({topic.name for topic in request.topics}) or broker.metadata.names()
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = max(request.cursor.partition_index, 0)
    limit = broker.settings.max_request_partition_size_limit
    room = max(1, min(request.response_partition_limit, limit))
    response = DescribeTopicPartitionsResponse(topics=[])
    for name in names:
        yield
        topic = broker.metadata.get(name)
        if topic is None:
            response.topics.append(_unknown_topic(name))
            continue
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        shown = list(topic.partitions.items())[first : first + room]
        response.topics.append(_described(broker.metadata_image, topic, shown))
        room -= len(shown)
        if first + len(shown) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=first + len(shown))
            break
        first = 0
    return response


def _described(
    image: MetadataImage, topic: Topic, partitions: list[tuple[int, PartitionState]]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in rules.INTERNAL_TOPICS,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=_leader_error(image, state),
                partition_index=index,
                leader_id=image.leader(state),
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=list(state.elr),
                last_known_elr=list(state.last_known_elr),
                offline_replicas=image.offline_replicas(state),
            )
            for index, state in partitions
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        rules.check_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_id=_NO_ID, is_internal=False, partitions=[]
    )
