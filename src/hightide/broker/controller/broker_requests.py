"""What leaders and leaving brokers ask of the controller, from their messages and back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from hightide.core.controller.controller import Controller, Verdict
from hightide.core.partition.state import NOBODY
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    ControlledShutdownResponse,
    RemainingPartition,
)

_NOT_FETCHED = -1

Key = tuple[uuid.UUID, int]


class Proposed(NamedTuple):
    """One partition of AlterPartition, as the controller judges it."""

    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    leader_epoch: int
    partition_epoch: int


def proposals_of(request: AlterPartitionRequest) -> dict[Key, Proposed]:
    proposals = {}
    for topic in request.topics:
        for each in topic.partitions:
            # Up to version 2 only the ids were told.
            lives = {state.broker_id: state.broker_epoch for state in each.new_isr_with_epochs}
            isr = tuple(state.broker_id for state in each.new_isr_with_epochs)
            proposals[topic.topic_id, each.partition_index] = Proposed(
                isr or tuple(each.new_isr),
                lives or dict.fromkeys(each.new_isr, _NOT_FETCHED),
                each.leader_epoch,
                each.partition_epoch,
            )
    return proposals


def alteration(
    machine: Controller, proposals: Mapping[Key, Proposed], verdicts: Mapping[Key, Verdict]
) -> AlterPartitionResponse:
    """The answer, when all that was accepted has been written, or something else was."""
    topics: dict[uuid.UUID, AlterPartitionResponseTopic] = {}
    for (topic_id, index), verdict in verdicts.items():
        topic = topics.setdefault(
            topic_id, AlterPartitionResponseTopic(topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            _altered(machine, topic_id, index, proposals[topic_id, index], verdict)
        )
    return AlterPartitionResponse(topics=list(topics.values()))


def _altered(
    machine: Controller, topic_id: uuid.UUID, index: int, proposed: Proposed, verdict: Verdict
) -> AlterPartitionResponsePartition:
    topic = machine.cluster.topic_of(topic_id)
    state = None if topic is None else topic.partitions.get(index)
    code = verdict.error
    if state is None and code == ErrorCode.NONE:
        code = ErrorCode.UNKNOWN_TOPIC_ID  # it was deleted meanwhile
    if state is not None and code == ErrorCode.NONE and set(state.isr) != set(proposed.isr):
        code = ErrorCode.INVALID_UPDATE_VERSION
    if state is None or code != ErrorCode.NONE:
        return AlterPartitionResponsePartition(
            partition_index=index,
            error_code=code,
            leader_id=NOBODY,
            leader_epoch=-1,
            isr=[],
            partition_epoch=-1,
        )
    return AlterPartitionResponsePartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=int(state.is_recovering),
        partition_epoch=state.partition_epoch,
    )


def remaining(machine: Controller, broker_id: int) -> ControlledShutdownResponse:
    """What a broker leads still, without what nobody else could lead."""
    led = []
    for name, index in sorted(machine.cluster.held_by([broker_id])):
        state = machine.state(name, index)
        if state is not None and state.leader == broker_id and len(state.replicas) > 1:
            led.append(RemainingPartition(topic_name=name, partition_index=index))
    return ControlledShutdownResponse(remaining_partitions=led)
