"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): topics.

Errors per topic:
NOT_CONTROLLER                another broker is the controller; the client then asks that one
INVALID_TOPIC_EXCEPTION       the name is not valid, or collides with another topic's
TOPIC_ALREADY_EXISTS          there is such a topic
UNKNOWN_TOPIC_OR_PARTITION    there is none; UNKNOWN_TOPIC_ID when it was named by id
INVALID_PARTITIONS            too few partitions, or fewer than there are
INVALID_REPLICATION_FACTOR    more replicas than brokers
INVALID_REPLICA_ASSIGNMENT    the assignment in the request is not possible
REASSIGNMENT_IN_PROGRESS      a topic that is being reassigned cannot get more partitions
INVALID_CONFIG                a setting that does not exist or has an invalid value
INVALID_REQUEST               a topic named twice, or counts beside an assignment
POLICY_VIOLATION              more partitions than one request may create
TOPIC_DELETION_DISABLED       delete.topic.enable is false
REQUEST_TIMED_OUT             ZooKeeper is unreachable; the change may or may not have happened

The topics of a request run concurrently, so that a broker that hangs delays the request only once.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.controller.topic_changes import default_counts
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import gather_in_turns
from hightide.core.controller.cluster_state import Topic
from hightide.core.controller.controller import Controller
from hightide.core.controller.placement import check_assignment
from hightide.core.metadata import topic_names as rules
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

log = logging.getLogger(__name__)

_NO_ID = uuid.UUID(int=0)
_MOST_PARTITIONS = 10_000
_DEFAULT = -1


async def _outcome(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`, or its error."""
    try:
        return await work
    except CONTROLLER_ERRORS as error:
        return kafka_error(error)


async def _error_of(work: Coroutine[Any, Any, Any]) -> tuple[ErrorCode, str | None]:
    outcome = await _outcome(work)
    if isinstance(outcome, KafkaError):
        return outcome.code, outcome.detail or None
    return ErrorCode.NONE, None


# -- creation -------------------------------------------------------------------------------------


class _Creation:
    """The topics of one request, which may also collide with each other."""

    def __init__(self, broker: Broker, request: CreateTopicsRequest, known: Controller) -> None:
        self._broker = broker
        self._request = request
        self._known = known
        self._names = list(known.topics)
        self._room = _MOST_PARTITIONS

    def begin(self, topic: CreatableTopic) -> Coroutine[Any, Any, CreatableTopicResult]:
        """Check a topic, before any is created; return the coroutine that creates it."""
        assignment, overrides = self._plan(topic)
        self._room -= len(assignment)
        if self._room < 0:
            raise _too_many()
        self._names.append(topic.name)
        return self._create(topic.name, assignment, overrides)

    async def _create(
        self, name: str, assignment: dict[int, list[int]], overrides: dict[str, str]
    ) -> CreatableTopicResult:
        topic_id = _NO_ID
        if not self._request.validate_only:
            topic_id = await self._broker.controller.create_topic(
                name, assignment, overrides, timeout_ms=self._request.timeout_ms
            )
        return _created(self._broker, name, topic_id, assignment, overrides)

    def _plan(self, topic: CreatableTopic) -> tuple[dict[int, list[int]], dict[str, str]]:
        """Return a topic's assignment and settings; KafkaError if it cannot be created."""
        rules.check_name(topic.name)
        if topic.name in self._known.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} already exists")
        if other := rules.collision(topic.name, self._names):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name} collides with topic {other}"
            )
        overrides = _overrides({config.name: config.value for config in topic.configs})
        if topic.assignments:
            return self._assigned(topic), overrides
        # In every version: KafkaJS sends -1 for both although it speaks version 3.
        default = default_counts(self._broker.settings, topic.name, len(self._known.brokers))
        partitions, replicas = topic.num_partitions, topic.replication_factor
        if partitions == _DEFAULT:
            partitions = default.partitions
        if replicas == _DEFAULT:
            replicas = default.replication_factor
        if partitions > _MOST_PARTITIONS:
            raise _too_many()
        return self._broker.controller.place(_racks(self._known), partitions, replicas), overrides

    def _assigned(self, topic: CreatableTopic) -> dict[int, list[int]]:
        """Return the assignment in the request."""
        if (topic.num_partitions, topic.replication_factor) != (_DEFAULT, _DEFAULT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "give either an assignment or the two counts, not both"
            )
        assignment = {chosen.partition_index: chosen.broker_ids for chosen in topic.assignments}
        if len(assignment) != len(topic.assignments):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
        check_assignment(assignment, sorted(self._known.brokers))
        return assignment


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: Context
) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    known = await _outcome(broker.controller.state_machine(timeout_ms=request.timeout_ms))
    if isinstance(known, KafkaError):
        return CreateTopicsResponse(topics=[_refused(name, known) for name in named])
    creation = _Creation(broker, request, known)
    results: dict[str, CreatableTopicResult] = {}
    begun: dict[str, Coroutine[Any, Any, CreatableTopicResult]] = {}
    for topic in request.topics:
        await context.turn.pause()
        try:
            if named[topic.name] > 1:
                raise _named_twice()
            begun[topic.name] = creation.begin(topic)
        except KafkaError as error:
            results[topic.name] = _refused(topic.name, error)
    outcomes = await gather_in_turns(context.turn, map(_outcome, begun.values()))
    for name, outcome in zip(begun, outcomes, strict=True):
        is_error = isinstance(outcome, KafkaError)
        results[name] = _refused(name, outcome) if is_error else outcome
    return CreateTopicsResponse(topics=[results[name] for name in named])


def _racks(known: Controller) -> dict[int, str | None]:
    return {broker_id: broker.rack for broker_id, broker in sorted(known.brokers.items())}


def _named_twice() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "the request names this topic twice")


def _too_many() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, f"one request creates at most {_MOST_PARTITIONS} partitions"
    )


def _overrides(configs: dict[str, str | None]) -> dict[str, str]:
    overrides = {name: value for name, value in configs.items() if value is not None}
    if len(overrides) != len(configs):
        missing = sorted(configs.keys() - overrides.keys())
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"no value for {', '.join(missing)}")
    try:
        TopicSettings.check(overrides)
    except InvalidSetting as wrong:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(wrong)) from None
    return overrides


def _created(
    broker: Broker,
    name: str,
    topic_id: uuid.UUID,
    assignment: dict[int, list[int]],
    overrides: dict[str, str],
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=[
            CreatableTopicConfigs(
                name=setting.name,
                value=setting.text,
                read_only=False,
                config_source=Source.TOPIC if setting.name in overrides else setting.source,
                is_sensitive=setting.declared.secret,
            )
            for setting in TopicSettings.effective(broker.settings, overrides).describe()
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


# -- deletion -------------------------------------------------------------------------------------


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: Context
) -> DeleteTopicsResponse:
    if context.version >= 6:
        topics = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        topics = [(name, _NO_ID) for name in request.topic_names]
    known = await _outcome(broker.controller.state_machine(timeout_ms=request.timeout_ms))

    async def delete(name: str | None, topic_id: uuid.UUID) -> DeletableTopicResult:
        code, message = ErrorCode.NONE, None
        try:
            if isinstance(known, KafkaError):
                raise known
            name, topic_id = _named(known, name, topic_id)
            if not broker.settings.delete_topic_enable:
                raise KafkaError(
                    ErrorCode.TOPIC_DELETION_DISABLED
                    if context.version >= 3
                    else ErrorCode.INVALID_REQUEST,
                    "delete.topic.enable is false",
                )
            log.info("topic %s: deletion asked by %s", name, context.sender)
            await broker.controller.delete_topic(name, timeout_ms=request.timeout_ms)
        except CONTROLLER_ERRORS as error:
            failure = kafka_error(error)
            code, message = failure.code, failure.detail or None
        return DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=code, error_message=message
        )

    results = await gather_in_turns(context.turn, (delete(*topic) for topic in topics))
    return DeleteTopicsResponse(responses=results)


def _named(known: Controller, name: str | None, topic_id: uuid.UUID) -> tuple[str, uuid.UUID]:
    if name is not None and topic_id != _NO_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name a topic by name or by id, not by both")
    if name is None:
        topic = known.cluster.topic_of(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    else:
        topic = known.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic.name, topic.id


# -- more partitions ------------------------------------------------------------------------------


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: Context
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    known = await _outcome(broker.controller.state_machine(timeout_ms=request.timeout_ms))

    async def grow(topic: CreatePartitionsTopic) -> None:
        if isinstance(known, KafkaError):
            raise known
        if named[topic.name] > 1:
            raise _named_twice()
        assignment = _more_partitions(broker, known, topic)
        if not request.validate_only:
            await broker.controller.add_partitions(
                topic.name, assignment, timeout_ms=request.timeout_ms
            )

    work = (_error_of(grow(topic)) for topic in request.topics)
    errors = await gather_in_turns(context.turn, work)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic, (code, message) in zip(request.topics, errors, strict=True)
        ]
    )


def _more_partitions(
    broker: Broker, known: Controller, requested: CreatePartitionsTopic
) -> dict[int, list[int]]:
    topic = known.topics.get(requested.name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {requested.name}"
        )
    existing = _existing(topic)
    count, more = len(existing), requested.count - len(existing)
    if more <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {count} partitions; {requested.count} is not more",
        )
    if more > _MOST_PARTITIONS:
        raise _too_many()
    replication_factor = len(existing[0])
    if requested.assignments is None:
        return broker.controller.place(_racks(known), more, replication_factor, existing)
    chosen = {at: chosen.broker_ids for at, chosen in enumerate(requested.assignments)}
    if len(chosen) != more:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{more} new partitions need as many assignments, not {len(chosen)}",
        )
    check_assignment(chosen, sorted(known.brokers))
    if any(len(replicas) != replication_factor for replicas in chosen.values()):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name} has {replication_factor} replicas of each partition",
        )
    return {count + at: replicas for at, replicas in chosen.items()}


def _existing(topic: Topic) -> list[tuple[int, ...]]:
    """Return the assignments of a topic's partitions, in order."""
    if any(state.is_reassigning for state in topic.partitions.values()):
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"topic {topic.name} is being reassigned; try again later",
        )
    assigned = {index: state.replicas for index, state in topic.partitions.items()}
    assigned |= topic.new_partitions
    return [assigned[index] for index in sorted(assigned)]
