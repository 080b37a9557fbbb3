"""Kafka's replication throttle (KIP-73): a limit to the traffic of a reassignment.

It has two kinds of configs.  Those of a topic name the replicas whose traffic is limited, as
`partition:broker`, on the sending side (`leader…`) and on the receiving side (`follower…`).  Those
of a broker say how many bytes per second all of these replicas together may use there.  They must
be removed after the reassignment, or the next replica that falls behind catches up slowly.
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
    """The limited replicas, by topic and config, and the brokers that hold them."""

    replicas: Mapping[str, Mapping[str, frozenset[str]]]
    brokers: frozenset[int]


def throttle_of(moves: Mapping[Partition, Reassignment]) -> Throttle:
    """The throttle of these reassignments: all replicas that may send, and all that receive."""
    replicas: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    brokers: set[int] = set()
    for (topic, index), move in moves.items():
        if move.adding:
            sending = [broker for broker in move.replicas if broker not in move.adding]
            replicas[topic][LEADERS] |= {f"{index}:{broker}" for broker in sending}
            replicas[topic][FOLLOWERS] |= {f"{index}:{broker}" for broker in move.adding}
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
    """A config value with more replicas; None if it has all of them."""
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
    """Limit these replicas, in addition to those that are limited already."""
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
    """Remove the limits of topics without a reassignment in progress, and the rates of brokers if
    there is no reassignment at all."""
    moving = await admin.replicas.reassignments()
    await _unlimit(admin, [topic for topic in topics if topic not in {key[0] for key in moving}])
    if not moving:
        await _unset_rates(admin)


async def remove_throttle(admin: Admin, topics: list[str] | None) -> list[str]:
    """Remove the limits of these topics, or of all, and the rates of all brokers.

    Returns the topics that had limits.
    """
    if topics is None:
        topics = [topic.name for topic in await admin.topics.list()]
    limited = await _unlimit(admin, topics, also_everything=True)
    await _unset_rates(admin)
    return limited


async def _unlimit(admin: Admin, topics: list[str], *, also_everything: bool = False) -> list[str]:
    """Remove limits, and return the topics that had some.

    A limit for all replicas (`*`) was not set by a reassignment, so it stays unless asked for.
    """
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
        unset = [
            entry.name for entry in found if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG
        ]
        if unset:
            await admin.configs.alter(ResourceType.BROKER, str(node.id), unset=unset)
