"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37).

Answers per topic:
NOT_CONTROLLER                another broker is the controller; clients know whom to ask then
INVALID_TOPIC_EXCEPTION       the name cannot be a topic's, or collides with another's
TOPIC_ALREADY_EXISTS          there is such a topic
UNKNOWN_TOPIC_OR_PARTITION    there is none; UNKNOWN_TOPIC_ID when it was named by id
INVALID_PARTITIONS            too few partitions, or fewer than there are
INVALID_REPLICATION_FACTOR    more replicas than brokers
INVALID_REPLICA_ASSIGNMENT    the client's own assignment cannot be carried out
INVALID_CONFIG                a setting that does not exist or cannot have its value
INVALID_REQUEST               a topic named twice, or counts beside an assignment
POLICY_VIOLATION              more partitions than one request may make
TOPIC_DELETION_DISABLED       delete.topic.enable is false
REQUEST_TIMED_OUT             the coordinator is away, so it may or may not have happened
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from hightide.broker.handlers.context import Context
from hightide.broker.handlers.refusals import REFUSALS, refusal
from hightide.broker.metadata import Topic
from hightide.core import topics as rules
from hightide.settings import InvalidSetting, Source
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_NO_ID = uuid.UUID(int=0)
_MOST_PARTITIONS = 10_000
_DEFAULT = -1


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, _context: Context
) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    room = _MOST_PARTITIONS
    results = []
    for topic in request.topics:
        if named[topic.name] == 0:
            continue  # a topic named twice is answered once
        try:
            if named[topic.name] > 1:
                named[topic.name] = 0
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this topic twice")
            _check_controller(broker)
            assignment, overrides = _planned(broker, topic)
            room -= len(assignment)
            if room < 0:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"one request makes at most {_MOST_PARTITIONS} partitions",
                )
            created = None
            if not request.validate_only:
                created = await broker.topics.create(topic.name, assignment, overrides)
            results.append(_created(broker, topic.name, created, assignment, overrides))
        except REFUSALS as error:
            results.append(_refused(topic.name, refusal(error)))
    return CreateTopicsResponse(topics=results)


def _check_controller(broker: Broker) -> None:
    if not broker.election.is_controller:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "ask the controller")


def _planned(broker: Broker, topic: CreatableTopic) -> tuple[dict[int, list[int]], dict[str, str]]:
    """What a topic would be, or why it cannot be."""
    rules.check_name(topic.name)
    if broker.metadata.get(topic.name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} already exists")
    if other := rules.collision(topic.name, broker.metadata.names()):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name} collides with topic {other}"
        )
    overrides = _overrides({config.name: config.value for config in topic.configs})
    if topic.assignments:
        if (topic.num_partitions, topic.replication_factor) != (_DEFAULT, _DEFAULT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "give either an assignment or the two counts, not both"
            )
        assignment = {each.partition_index: each.broker_ids for each in topic.assignments}
        if len(assignment) != len(topic.assignments):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
        rules.check_assignment(assignment, broker.metadata.broker_ids)
        return assignment, overrides
    partitions, replicas = topic.num_partitions, topic.replication_factor
    # In every version: KafkaJS leaves both to the broker although it speaks version 3.
    if partitions == _DEFAULT:
        partitions = broker.settings.num_partitions
    if replicas == _DEFAULT:
        replicas = broker.settings.default_replication_factor
    if partitions > _MOST_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"one request makes at most {_MOST_PARTITIONS} partitions"
        )
    return broker.topics.assign(partitions, replicas), overrides


def _overrides(configs: dict[str, str | None]) -> dict[str, str]:
    overrides = {name: value for name, value in configs.items() if value is not None}
    if len(overrides) != len(configs):
        missing = sorted(configs.keys() - overrides.keys())
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"no value given for {', '.join(missing)}")
    try:
        TopicSettings.check(overrides)
    except InvalidSetting as wrong:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(wrong)) from None
    return overrides


def _created(
    broker: Broker,
    name: str,
    topic: Topic | None,
    assignment: dict[int, list[int]],
    overrides: dict[str, str],
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=_NO_ID if topic is None else topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=[
            CreatableTopicConfigs(
                name=each.name,
                value=each.text,
                read_only=False,
                config_source=Source.TOPIC if each.name in overrides else each.source,
                is_sensitive=each.declared.secret,
            )
            for each in TopicSettings.effective(broker.settings, overrides).describe()
        ],
    )


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=_NO_ID,
        error_code=error.code,
        error_message=error.detail or None,
        configs=[],
    )


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: Context
) -> DeleteTopicsResponse:
    if context.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, _NO_ID) for name in request.topic_names]
    results = []
    for name, topic_id in wanted:
        code, message = ErrorCode.NONE, None
        try:
            _check_controller(broker)
            name, topic_id = _named(broker, name, topic_id)
            if not broker.settings.delete_topic_enable:
                raise KafkaError(
                    ErrorCode.TOPIC_DELETION_DISABLED
                    if context.version >= 3
                    else ErrorCode.INVALID_REQUEST,
                    "delete.topic.enable is false",
                )
            await broker.topics.delete(name)
        except REFUSALS as error:
            told = refusal(error)
            code, message = told.code, told.detail or None
        results.append(
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=message
            )
        )
    return DeleteTopicsResponse(responses=results)


def _named(broker: Broker, name: str | None, topic_id: uuid.UUID) -> tuple[str, uuid.UUID]:
    if name is not None and topic_id != _NO_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name a topic by name or by id, not by both")
    if name is None:
        topic = broker.metadata.get_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    else:
        topic = broker.metadata.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic.name, topic.topic_id


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, _context: Context
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in request.topics:
        code, message = ErrorCode.NONE, None
        try:
            if named[wanted.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this topic twice")
            _check_controller(broker)
            assignment = _more_partitions(broker, wanted)
            if not request.validate_only:
                await broker.topics.add_partitions(wanted.name, assignment)
        except REFUSALS as error:
            told = refusal(error)
            code, message = told.code, told.detail or None
        results.append(
            CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=message)
        )
    return CreatePartitionsResponse(results=results)


def _more_partitions(broker: Broker, wanted: CreatePartitionsTopic) -> dict[int, list[int]]:
    topic = broker.metadata.get(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {wanted.name}")
    had, more = len(topic.partitions), wanted.count - len(topic.partitions)
    if more <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {had} partitions; it cannot be given {wanted.count}",
        )
    if more > _MOST_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"one request makes at most {_MOST_PARTITIONS} partitions"
        )
    if wanted.assignments is None:
        chosen = broker.topics.assign(more, topic.replication_factor)
    else:
        chosen = {at: each.broker_ids for at, each in enumerate(wanted.assignments)}
        if len(chosen) != more:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{more} new partitions need as many assignments, not {len(chosen)}",
            )
        rules.check_assignment(chosen, broker.metadata.broker_ids)
        if any(len(replicas) != topic.replication_factor for replicas in chosen.values()):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {topic.name} has {topic.replication_factor} replicas of each partition",
            )
    return {had + at: replicas for at, replicas in chosen.items()}
