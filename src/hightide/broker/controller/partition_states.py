"""A decision about a partition as the tree keeps it, and as the controller thinks of it.

The tree has it in two znodes: the topic's holds the assignments of all its partitions, also those
on the move; the partition's own holds the rest, and its version is the partition epoch.  Both are
written in one multi, so they belong together, unless somebody else wrote one of them: Kafka's own
controller, or a person.
"""

from __future__ import annotations

from collections.abc import Mapping

from hightide.core.partition.state import NOBODY, PartitionState
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import MalformedZnode


def encode_state(state: PartitionState, controller_epoch: int) -> bytes:
    """The bytes of the partition's own znode."""
    return znodes.PartitionState(
        state.leader,
        state.leader_epoch,
        state.isr,
        controller_epoch,
        state.is_recovering,
        state.elr,
        state.last_known_leader,
        state.broker_epochs,
        state.recovery_epoch,
    ).encode()


def decode_state(
    data: bytes, path: str, version: int, assignment: znodes.TopicAssignment, index: int
) -> PartitionState:
    """The decision; MalformedZnode if what is there cannot be one.

    Kafka leaves the last replicas in the ISR of a partition that nobody leads; here they are
    eligible.  The same is said of an ISR whose leader is not in it, or holds no replica any more.
    """
    found = znodes.PartitionState.decode(data, path)
    replicas = assignment.partitions[index]
    isr = tuple(each for each in found.isr if each in replicas)
    elr = tuple(each for each in found.elr if each in replicas and each not in isr)
    leader, last_known_leader = found.leader, found.last_known_leader
    if leader not in isr:
        isr, elr = (), isr + elr
        if leader in replicas:
            last_known_leader = leader
        leader = NOBODY
    state = PartitionState(
        replicas,
        leader,
        found.leader_epoch,
        isr,
        elr,
        last_known_leader,
        version,
        assignment.adding_replicas.get(index, ()),
        assignment.removing_replicas.get(index, ()),
        found.is_recovering,
        found.recovery_epoch,
        {each: life for each, life in found.broker_epochs.items() if each in isr + elr},
    )
    try:
        state.check()
    except AssertionError as wrong:
        raise MalformedZnode(path, f"it contradicts itself or its topic: {wrong}") from None
    return state


def assignment_of(
    topic: znodes.TopicAssignment, states: Mapping[int, PartitionState]
) -> znodes.TopicAssignment:
    """A topic's assignment with those of these partitions in it."""
    partitions, adding, removing = (
        dict(topic.partitions),
        dict(topic.adding_replicas),
        dict(topic.removing_replicas),
    )
    for index, state in states.items():
        partitions[index] = state.replicas
        for moving, brokers in ((adding, state.adding), (removing, state.removing)):
            moving.pop(index, None)
            if brokers:
                moving[index] = brokers
    return znodes.TopicAssignment(topic.topic_id, partitions, adding, removing)


def leaderless(replicas: tuple[int, ...], partition_epoch: int = 0) -> PartitionState:
    """What brokers are told of a partition about which nothing is decided, or can be."""
    return PartitionState(replicas, NOBODY, 0, (), partition_epoch=partition_epoch)
