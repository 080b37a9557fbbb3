"""Which brokers hold the replicas of new partitions.

Leaders go round the brokers, so each leads as many partitions as the next.  Followers follow at a
distance that grows with every round, so that what one broker leads is not all on its neighbour, and
its load is shared by all when it dies.

Where every broker says in which rack it stands, replicas of a partition stand in as many racks as
possible, so that a rack can burn.  Racks of unequal size make it impossible that all brokers hold
equally much as well; the leaders stay even, and followers go to whoever holds least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hightide.wire.errors import ErrorCode, KafkaError

Racks = Mapping[int, str | None]
"""Brokers and where they stand, if they said it."""


def place(
    brokers: Racks,
    partition_count: int,
    replication_factor: int,
    first: int,
    existing: Sequence[Sequence[int]] = (),
) -> dict[int, list[int]]:
    """Replicas per new partition, the preferred leader first.

    `first` chooses the broker to begin with.  New partitions of a topic that has some `existing`
    ones go on with the round that those began.
    """
    check_counts(partition_count, replication_factor, len(brokers))
    racks = {each: rack for each, rack in brokers.items() if rack is not None}
    knows_racks = len(racks) == len(brokers) and len(set(racks.values())) > 1
    ring = _alternating(racks) if knows_racks else sorted(brokers)
    if existing and existing[0][0] in brokers:
        first = ring.index(existing[0][0])
    held = Counter(each for replicas in existing for each in replicas)
    assignment = {}
    for partition in range(len(existing), len(existing) + partition_count):
        leader, *neighbours = _walk(ring, first + partition, partition // len(ring))
        if knows_racks:
            neighbours = _apart(leader, neighbours, racks, replication_factor - 1, held)
        assignment[partition] = [leader, *neighbours[: replication_factor - 1]]
        held.update(assignment[partition])
    return assignment


def _walk(ring: Sequence[int], start: int, shift: int) -> list[int]:
    """All brokers: one of them, then the others beginning `shift` places after its neighbour."""
    at = start % len(ring)
    others = [*ring[at + 1 :], *ring[:at]]
    skipped = shift % len(others) if others else 0
    return [ring[at], *others[skipped:], *others[:skipped]]


def _apart(
    leader: int,
    neighbours: Sequence[int],
    racks: Mapping[int, str],
    count: int,
    held: Mapping[int, int],
) -> list[int]:
    """Of the neighbours, so many in racks that have fewest of the replicas; the idlest of those."""
    used = Counter([racks[leader]])
    chosen: list[int] = []
    for _ in range(count):
        left = [each for each in neighbours if each not in chosen]
        chosen.append(min(left, key=lambda each: (used[racks[each]], held[each])))
        used[racks[chosen[-1]]] += 1
    return chosen


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """The brokers, one from each rack in turn, so that leaders that follow each other are apart."""
    turns: Counter[str] = Counter()
    ranked = []
    for broker in sorted(racks):
        rack = racks[broker]
        ranked.append((turns[rack], rack, broker))
        turns[rack] += 1
    return [broker for _, _, broker in sorted(ranked)]


def check_counts(partition_count: int, replication_factor: int, broker_count: int) -> None:
    """Raise the error of a topic that cannot be made with these numbers."""
    if partition_count < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic needs at least 1 partition, not {partition_count}",
        )
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor is at least 1, not {replication_factor}",
        )
    if replication_factor > broker_count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} needs as many brokers,"
            f" there are {broker_count}",
        )


def check_assignment(assignment: Mapping[int, Sequence[int]], brokers: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless a client's own assignment can be carried out."""
    problem = None
    if sorted(assignment) != list(range(len(assignment))):
        problem = "partitions must be numbered from 0 without gaps"
    elif len({len(replicas) for replicas in assignment.values()}) != 1:
        problem = "every partition must have the same number of replicas"
    for partition, replicas in assignment.items():
        if not replicas:
            problem = f"partition {partition} has no replica"
        elif len(set(replicas)) != len(replicas):
            problem = f"partition {partition} names a broker twice: {list(replicas)}"
        elif unknown := sorted(set(replicas) - set(brokers)):
            problem = f"partition {partition} names brokers that do not exist: {unknown}"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
