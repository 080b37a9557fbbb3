"""Replica placement: which brokers hold the replicas of new partitions.

Leaders are assigned round robin, so each broker leads as many partitions as the next.  Followers
are placed at a distance that grows with every round, so that the partitions which one broker leads
are not all followed by its neighbour, and all brokers share its load when it dies.

If every broker has a rack, the replicas of a partition are in as many racks as possible, so that
the partition survives the loss of a rack.  With racks of unequal size not every broker can hold
equally many replicas as well: leaders stay even, and followers go to the broker that holds least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hightide.wire.errors import ErrorCode, KafkaError

Racks = Mapping[int, str | None]
"""Broker ids and their racks, if set."""


def place(
    brokers: Racks,
    partition_count: int,
    replication_factor: int,
    first: int,
    existing: Sequence[Sequence[int]] = (),
) -> dict[int, list[int]]:
    """Return the replicas of each new partition, the preferred leader first.

    `first` chooses the broker to start with.  New partitions of a topic continue the round robin
    of its `existing` partitions.
    """
    check_counts(partition_count, replication_factor, len(brokers))
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    knows_racks = len(racks) == len(brokers) and len(set(racks.values())) > 1
    ring = _alternating(racks) if knows_racks else sorted(brokers)
    if existing and existing[0][0] in brokers:
        first = ring.index(existing[0][0])
    held = Counter(broker for replicas in existing for broker in replicas)
    assignment = {}
    for partition in range(len(existing), len(existing) + partition_count):
        leader, *neighbours = _walk(ring, first + partition, partition // len(ring))
        if knows_racks:
            neighbours = _apart(leader, neighbours, racks, replication_factor - 1, held)
        assignment[partition] = [leader, *neighbours[: replication_factor - 1]]
        held.update(assignment[partition])
    return assignment


def _walk(ring: Sequence[int], start: int, shift: int) -> list[int]:
    """Return all brokers: one, then the others from `shift` places after its neighbour on."""
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
    """Choose `count` neighbours in the racks with the fewest of these replicas; of each such rack
    the broker that holds least."""
    used = Counter([racks[leader]])
    chosen: list[int] = []
    for _ in range(count):
        left = [broker for broker in neighbours if broker not in chosen]
        chosen.append(min(left, key=lambda broker: (used[racks[broker]], held[broker])))
        used[racks[chosen[-1]]] += 1
    return chosen


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers, one from each rack in turn, so that successive leaders are apart."""
    turns: Counter[str] = Counter()
    ranked = []
    for broker in sorted(racks):
        rack = racks[broker]
        ranked.append((turns[rack], rack, broker))
        turns[rack] += 1
    return [broker for _, _, broker in sorted(ranked)]


def check_counts(partition_count: int, replication_factor: int, broker_count: int) -> None:
    """Raise KafkaError if a topic cannot be created with these numbers."""
    if partition_count < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic needs at least 1 partition, not {partition_count}",
        )
    if replication_factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor must be at least 1, not {replication_factor}",
        )
    if replication_factor > broker_count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} needs as many brokers,"
            f" but there are {broker_count}",
        )


def check_assignment(assignment: Mapping[int, Sequence[int]], brokers: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless a client's assignment is possible."""
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
