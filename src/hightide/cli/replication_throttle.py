"""Kafka's replication throttle (KIP-73): a limit to the traffic of a reassignment.

It takes two kinds of settings.  A topic's name the replicas whose traffic is limited, on the side
that sends (`leader…`) and on the side that receives (`follower…`), as `partition:broker`.  A
broker's say how many bytes a second all of these together may take there.  Whoever sets them must
take them away again, or the next replica that falls behind is slow to return.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hightide.client.admin import Admin
from hightide.client.model.cluster import ConfigSource, Partition, ResourceType
from hightide.client.model.replicas import Reassignment

LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Throttle:
    """Which replicas are limited, by topic and setting, and the brokers that hold them."""

    replicas: Mapping[str, Mapping[str, frozenset[str]]]
    brokers: frozenset[int]


def throttle_of(moves: Mapping[Partition, Reassignment]) -> Throttle:
    """What limits these moves: whoever may send, and whoever receives."""
    replicas: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    brokers: set[int] = set()
    for (topic, index), move in moves.items():
        if move.adding:
            sending = [each for each in move.replicas if each not in move.adding]
            replicas[topic][LEADERS] |= {f"{index}:{each}" for each in sending}
            replicas[topic][FOLLOWERS] |= {f"{index}:{each}" for each in move.adding}
            brokers |= {*move.replicas}
    return Throttle(
        {
            topic: {key: frozenset(named) for key, named in settings.items()}
            for topic, settings in replicas.items()
        },
        frozenset(brokers),
    )


def names_of(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def with_names(value: str, added: Collection[str]) -> str | None:
    """A setting's value with more replicas; None if it has them all already."""
    known = names_of(value)
    if EVERYTHING in known or set(added) <= set(known):
        return None
    return ",".join([*known, *sorted(set(added) - set(known), key=_in_order)])


def _in_order(name: str) -> tuple[int, int]:
    index, _, broker = name.partition(":")
    return int(index), int(broker)


async def set_throttle(
    admin: Admin, throttle: Throttle, bytes_per_s: int, live: Collection[int]
) -> None:
    """Limit these replicas, besides those that are limited already."""
    for broker in sorted(throttle.brokers & set(live)):
        rates = dict.fromkeys(RATES, str(bytes_per_s))
        await admin.configs.alter(ResourceType.BROKER, str(broker), values=rates)
    found = await admin.configs.topic_values(list(throttle.replicas), [LEADERS, FOLLOWERS])
    for topic, settings in throttle.replicas.items():
        values = {
            key: with_names(found[topic].get(key, ""), names) for key, names in settings.items()
        }
        changed = {key: value for key, value in values.items() if value is not None}
        if changed:
            await admin.configs.alter(ResourceType.TOPIC, topic, values=changed)


async def lift_throttle(admin: Admin, topics: Iterable[str]) -> None:
    """Take the limits from those of these topics that move no more, and when nothing moves at all
    the rates from the brokers."""
    moving = await admin.replicas.reassignments()
    await _unlimit(admin, [topic for topic in topics if topic not in {key[0] for key in moving}])
    if not moving:
        await _unset_rates(admin)


async def remove_throttle(admin: Admin, topics: list[str] | None) -> list[str]:
    """Take the limits from these topics, or all, and the rates from all brokers; the topics that
    had any."""
    if topics is None:
        topics = [each.name for each in await admin.topics.list()]
    limited = await _unlimit(admin, topics, also_everything=True)
    await _unset_rates(admin)
    return limited


async def _unlimit(admin: Admin, topics: list[str], *, also_everything: bool = False) -> list[str]:
    """Which of the topics had limits.  One for all replicas is nobody's who moves some."""
    found = await admin.configs.topic_values(topics, [LEADERS, FOLLOWERS])
    limited = []
    for topic in topics:
        unset = [
            key
            for key, value in found[topic].items()
            if value and (also_everything or EVERYTHING not in names_of(value))
        ]
        if unset:
            await admin.configs.alter(ResourceType.TOPIC, topic, unset=unset)
            limited.append(topic)
    return limited


async def _unset_rates(admin: Admin) -> None:
    for node in (await admin.cluster.describe()).nodes:
        found = await admin.configs.describe(ResourceType.BROKER, str(node.id), RATES)
        unset = [each.name for each in found if each.source is ConfigSource.DYNAMIC_BROKER_CONFIG]
        if unset:
            await admin.configs.alter(ResourceType.BROKER, str(node.id), unset=unset)
