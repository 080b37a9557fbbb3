"""Who shall have which partitions: the assignors that the coordinator offers.

**uniform** gives all members as much as it can be made equal, and leaves with everybody what he has
as far as that allows.  **range** gives each member a piece of every topic it subscribes to, the
same piece of topics that have as many partitions, so that what belongs together is read together.

Both are functions of their input alone: any coordinator comes to the same shares.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import groupby

Partition = tuple[uuid.UUID, int]
Share = frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as assignors see it."""

    rank: tuple[str, str]
    """What it is sorted by: a static member keeps its place when it restarts."""
    topics: frozenset[uuid.UUID]
    has: Share
    """Its share until now."""


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[uuid.UUID, int]
"""Topic id → number of partitions."""


def in_ranges(subscribers: Subscribers, counts: Counts) -> dict[str, Share]:
    shares: dict[str, set[Partition]] = {each: set() for each in subscribers}
    ranked = sorted(subscribers, key=lambda each: subscribers[each].rank)
    for topic, count in counts.items():
        members = [each for each in ranked if topic in subscribers[each].topics]
        if not members:
            continue
        each_gets, more = divmod(count, len(members))
        begin = 0
        for place, member in enumerate(members):
            end = begin + each_gets + (place < more)
            shares[member].update((topic, index) for index in range(begin, end))
            begin = end
    return {member: frozenset(share) for member, share in shares.items()}


def uniformly(subscribers: Subscribers, counts: Counts) -> dict[str, Share]:
    every = [(topic, index) for topic in sorted(counts) for index in range(counts[topic])]
    shares = _kept(subscribers, every)
    owned = {each for share in shares.values() for each in share}
    ranked = sorted(subscribers, key=lambda each: subscribers[each].rank)
    for topic, free in groupby((each for each in every if each not in owned), lambda each: each[0]):
        takers = [
            (len(shares[member]), place, member)
            for place, member in enumerate(ranked)
            if topic in subscribers[member].topics
        ]
        heapify(takers)
        for partition in free if takers else ():
            size, place, poorest = takers[0]
            shares[poorest].add(partition)
            heapreplace(takers, (size + 1, place, poorest))
    _even_out(shares, subscribers, ranked)
    return {member: frozenset(share) for member, share in shares.items()}


def _kept(subscribers: Subscribers, every: list[Partition]) -> dict[str, set[Partition]]:
    """What everybody has and still wants; a partition that two claim stays with the first."""
    free = {*every}
    shares: dict[str, set[Partition]] = {}
    for member, subscriber in sorted(subscribers.items(), key=lambda each: each[1].rank):
        wanted = {each for each in subscriber.has if each[0] in subscriber.topics}
        shares[member] = wanted & free
        free -= wanted
    return shares


def _even_out(
    shares: dict[str, set[Partition]], subscribers: Subscribers, ranked: list[str]
) -> None:
    """Move partitions from who has more to who has less, until no move makes it more equal."""
    moved = bool(ranked)
    while moved:
        moved = False
        most = max(len(each) for each in shares.values())
        for poor in sorted(ranked, key=lambda each: len(shares[each])):
            if most - len(shares[poor]) < 2:
                break  # and so it is for all that come after
            for rich in sorted(ranked, key=lambda each: -len(shares[each])):
                if len(shares[rich]) - len(shares[poor]) < 2:
                    break
                topics = subscribers[poor].topics
                movable = sorted(each for each in shares[rich] if each[0] in topics)
                # As many as make the two equal at once: one by one would take long.
                count = min(len(movable), (len(shares[rich]) - len(shares[poor])) // 2)
                for partition in movable[len(movable) - count :]:
                    shares[rich].remove(partition)
                    shares[poor].add(partition)
                moved = moved or count > 0
            if moved:
                most = max(len(each) for each in shares.values())


ASSIGNORS: Mapping[str, Callable[[Subscribers, Counts], dict[str, Share]]] = {
    "uniform": uniformly,
    "range": in_ranges,
}
