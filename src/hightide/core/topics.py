"""Rules for topics that need no broker to decide: names, and which brokers hold which replicas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hightide.wire.errors import ErrorCode, KafkaError

LONGEST_NAME = 249
_LEGAL = re.compile(r"[A-Za-z0-9._-]+\Z")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, saying why, unless `name` can be a topic's name."""
    problem = None
    if not name:
        problem = "a topic needs a name"
    elif name in (".", ".."):
        problem = f"a topic cannot be named {name!r}"
    elif len(name) > LONGEST_NAME:
        problem = f"a topic's name has at most {LONGEST_NAME} characters, not {len(name)}"
    elif not _LEGAL.match(name):
        problem = f"{name!r}: a topic's name is made of letters, digits, '.', '_' and '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def collision(name: str, existing: Sequence[str]) -> str | None:
    """A topic that `name` would collide with where '.' and '_' mean the same, as in metrics."""
    plain = name.replace(".", "_")
    return next((other for other in existing if other.replace(".", "_") == plain), None)


def assign(
    brokers: Sequence[int], partition_count: int, replication_factor: int, first: int
) -> dict[int, list[int]]:
    """Replicas per partition, spread over the brokers beginning at `first`.

    The first replica walks round the brokers; the others follow it at a distance that grows with
    each round, so that a broker's followers are not all on the same neighbour.
    """
    check_counts(partition_count, replication_factor, len(brokers))
    ordered = sorted(brokers)
    count = len(ordered)
    assignment = {}
    for partition in range(partition_count):
        leader = (first + partition) % count
        shift = partition // count
        others = [
            ordered[(leader + 1 + (shift + replica) % (count - 1)) % count]
            for replica in range(replication_factor - 1)
        ]
        assignment[partition] = [ordered[leader], *others]
    return assignment


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
