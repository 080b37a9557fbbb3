"""ElectLeaders (43), ResignController (30000): elections on request.

ElectLeaders, per partition, and from version 1 on also for the whole request:
NOT_CONTROLLER                   another broker is the controller
UNKNOWN_TOPIC_OR_PARTITION       there is no such partition, or it never had a leader
ELECTION_NOT_NEEDED              the preferred replica leads; for an unclean election, any replica
PREFERRED_LEADER_NOT_AVAILABLE   the preferred replica is not alive or not in sync
ELIGIBLE_LEADERS_NOT_AVAILABLE   no replica is alive
INVALID_REQUEST                  an unknown kind of election
REQUEST_TIMED_OUT                ZooKeeper is unreachable

ResignController makes another broker the controller.  Kafka has no such request; there, operators
delete the znode `/controller`.
NOT_CONTROLLER                   this broker is not the controller
BROKER_NOT_AVAILABLE             there is no other broker, or none took over: this one is the
                                 controller again
REQUEST_TIMED_OUT                ZooKeeper is unreachable
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers.request_context import Context
from hightide.core.controller.cluster_state import Partition
from hightide.core.controller.controller import Decision, ElectionKind
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.controller import ResignControllerRequest, ResignControllerResponse
from hightide.wire.messages.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)


async def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: Context
) -> ElectLeadersResponse:
    partitions = None
    if request.topic_partitions is not None:
        partitions = [
            (topic.topic, index) for topic in request.topic_partitions for index in topic.partitions
        ]
    try:
        kind = _kind(request.election_type)
        decisions = await broker.controller.elect_leaders(
            kind, partitions, timeout_ms=request.timeout_ms
        )
        elected = sum(decision.error == ErrorCode.NONE for decision in decisions.values())
        if kind == ElectionKind.UNCLEAN and elected:  # records may be lost
            log.info("unclean elections of %d leaders, asked by %s", elected, context.sender)
    except CONTROLLER_ERRORS as error:
        failure = kafka_error(error)
        decisions = dict.fromkeys(partitions or (), Decision(failure.code, detail=failure.detail))
        code = failure.code if context.version >= 1 else ErrorCode.NONE
        return ElectLeadersResponse(error_code=code, replica_election_results=_results(decisions))
    return ElectLeadersResponse(replica_election_results=_results(decisions))


def _kind(election_type: int) -> ElectionKind:
    if election_type not in list(ElectionKind):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown election type {election_type}")
    return ElectionKind(election_type)


def _results(decisions: dict[Partition, Decision]) -> list[ReplicaElectionResult]:
    topics: dict[str, list[PartitionResult]] = {}
    for (topic, index), decision in decisions.items():
        topics.setdefault(topic, []).append(
            PartitionResult(
                partition_id=index,
                error_code=decision.error,
                error_message=decision.detail or None,
            )
        )
    return [
        ReplicaElectionResult(topic=topic, partition_result=results)
        for topic, results in topics.items()
    ]


async def resign_controller(
    broker: Broker, _request: ResignControllerRequest, context: Context
) -> ResignControllerResponse:
    try:
        controller_id = await _resign(broker)
    except CONTROLLER_ERRORS as error:
        failure = kafka_error(error)
        return ResignControllerResponse(
            error_code=failure.code, error_message=failure.detail or None, controller_id=NO_BROKER
        )
    log.info("broker %d is the controller; asked by %s", controller_id, context.sender)
    return ResignControllerResponse(controller_id=controller_id)


async def _resign(broker: Broker) -> int:
    if not broker.election.is_controller:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
    if broker.metadata.broker_ids == [broker.broker_id]:
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"broker {broker.broker_id} is the only broker, so no other can take over",
        )
    controller_id = await broker.election.resign()
    if controller_id in (NO_BROKER, broker.broker_id):
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"no other broker took over; broker {broker.broker_id} runs for controller again",
        )
    return controller_id
