"""The server-side assignors of the consumer protocol.

**uniform** gives members as equal a number of partitions as possible, and moves as few partitions
as that allows.  **range** gives each member a range of every topic it subscribes to.  The range is
the same in topics with the same number of partitions, so that co-partitioned topics stay together.

Both are pure functions of their input: every coordinator computes the same assignment.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import groupby

Partition = tuple[uuid.UUID, int]
Assignment = frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, as the assignors see it."""

    rank: tuple[str, str]
    """The sort key: a static member keeps its place when it restarts."""
    topics: frozenset[uuid.UUID]
    owned: Assignment
    """Its target assignment until now."""


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[uuid.UUID, int]
"""Topic id → number of partitions."""


def range_assignor(subscribers: Subscribers, counts: Counts) -> dict[str, Assignment]:
    assignments: dict[str, set[Partition]] = {member_id: set() for member_id in subscribers}
    ranked = sorted(subscribers, key=lambda member_id: subscribers[member_id].rank)
    # Most groups have one subscription, and few topics have a partition for every member.
    is_one = len({subscriber.topics for subscriber in subscribers.values()}) == 1
    for topic, count in counts.items():
        if is_one:
            members = ranked if topic in subscribers[ranked[0]].topics else []
        else:
            members = [member_id for member_id in ranked if topic in subscribers[member_id].topics]
        if not members:
            continue
        quota, extra = divmod(count, len(members))
        begin = 0
        for place, member in enumerate(members[:count]):
            end = begin + quota + (place < extra)
            assignments[member].update((topic, index) for index in range(begin, end))
            begin = end
    return {member: frozenset(assignment) for member, assignment in assignments.items()}


def uniform_assignor(subscribers: Subscribers, counts: Counts) -> dict[str, Assignment]:
    every = [(topic, index) for topic in sorted(counts) for index in range(counts[topic])]
    assignments = _retained(subscribers, every)
    owned = {partition for assignment in assignments.values() for partition in assignment}
    ranked = sorted(subscribers, key=lambda member_id: subscribers[member_id].rank)
    for topic, free in groupby(
        (partition for partition in every if partition not in owned), lambda partition: partition[0]
    ):
        takers = [
            (len(assignments[member]), place, member)
            for place, member in enumerate(ranked)
            if topic in subscribers[member].topics
        ]
        heapify(takers)
        for partition in free if takers else ():
            size, place, poorest = takers[0]
            assignments[poorest].add(partition)
            heapreplace(takers, (size + 1, place, poorest))
    _even_out(assignments, subscribers, ranked)
    return {member: frozenset(assignment) for member, assignment in assignments.items()}


def _retained(subscribers: Subscribers, every: list[Partition]) -> dict[str, set[Partition]]:
    """Keep what members own and still subscribe to; of two owners of a partition the first wins."""
    free = {*every}
    assignments: dict[str, set[Partition]] = {}
    for member, subscriber in sorted(subscribers.items(), key=lambda item: item[1].rank):
        wanted = {partition for partition in subscriber.owned if partition[0] in subscriber.topics}
        assignments[member] = wanted & free
        free -= wanted
    return assignments


def _even_out(
    assignments: dict[str, set[Partition]], subscribers: Subscribers, ranked: list[str]
) -> None:
    """Move partitions from members with more to members with fewer, while that evens them out."""
    moved = bool(ranked)
    while moved:
        moved = False
        most = max(len(assignment) for assignment in assignments.values())
        for poor in sorted(ranked, key=lambda member_id: len(assignments[member_id])):
            if most - len(assignments[poor]) < 2:
                break  # all members that follow have at least as many
            for rich in sorted(ranked, key=lambda member_id: -len(assignments[member_id])):
                if len(assignments[rich]) - len(assignments[poor]) < 2:
                    break
                topics = subscribers[poor].topics
                movable = sorted(
                    assignment for assignment in assignments[rich] if assignment[0] in topics
                )
                # Move as many as make the two equal: one by one would take long.
                count = min(len(movable), (len(assignments[rich]) - len(assignments[poor])) // 2)
                for partition in movable[len(movable) - count :]:
                    assignments[rich].remove(partition)
                    assignments[poor].add(partition)
                moved = moved or count > 0
            if moved:
                most = max(len(assignment) for assignment in assignments.values())


ASSIGNORS: Mapping[str, Callable[[Subscribers, Counts], dict[str, Assignment]]] = {
    "uniform": uniform_assignor,
    "range": range_assignor,
}
