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
from hightide.client.model import Reassignment, ResourceType
from hightide.client.replicas import Partition

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


def without_names(value: str, removed: Collection[str]) -> str:
    """A setting's value without these replicas."""
    return ",".join(name for name in names_of(value) if name not in removed)


def _in_order(name: str) -> tuple[int, int]:
    index, _, broker = name.partition(":")
    return int(index), int(broker)


async def set_throttle(
    admin: Admin, throttle: Throttle, bytes_per_s: int, live: Collection[int]
) -> None:
    """Limit these replicas, besides those that are limited already."""
    for broker in sorted(throttle.brokers & set(live)):
        rates = dict.fromkeys(RATES, str(bytes_per_s))
        await admin.alter_configs(ResourceType.BROKER, str(broker), values=rates)
    found = await admin.topic_values(list(throttle.replicas), [LEADERS, FOLLOWERS])
    for topic, settings in throttle.replicas.items():
        values = {
            key: with_names(found[topic].get(key, ""), names) for key, names in settings.items()
        }
        changed = {key: value for key, value in values.items() if value is not None}
        if changed:
            await admin.alter_configs(ResourceType.TOPIC, topic, values=changed)


async def lift_throttle(admin: Admin, throttle: Throttle, live: Iterable[int]) -> None:
    """Take the limit from these replicas, and the rates from the brokers if nothing else moves."""
    found = await admin.topic_values(list(throttle.replicas), [LEADERS, FOLLOWERS])
    for topic, settings in throttle.replicas.items():
        values, unset = {}, []
        for key, names in settings.items():
            value = found[topic].get(key, "")
            rest = without_names(value, names)
            if not rest:
                unset.append(key)
            elif rest != value:
                values[key] = rest
        await admin.alter_configs(ResourceType.TOPIC, topic, values=values, unset=unset)
    if not await admin.list_reassignments():
        await unset_rates(admin, throttle.brokers & set(live))


async def unset_rates(admin: Admin, brokers: Iterable[int]) -> None:
    for broker in sorted(brokers):
        await admin.alter_configs(ResourceType.BROKER, str(broker), unset=RATES)


async def remove_throttle(admin: Admin, topics: list[str] | None) -> list[str]:
    """Take the limits from these topics, or all, and the rates from all brokers; the topics that
    had any."""
    if topics is None:
        topics = [each.name for each in await admin.list_topics()]
    found = await admin.topic_values(topics, [LEADERS, FOLLOWERS])
    limited = [topic for topic in topics if any(found[topic].values())]
    for topic in limited:
        await admin.alter_configs(ResourceType.TOPIC, topic, unset=[LEADERS, FOLLOWERS])
    await unset_rates(admin, [node.id for node in (await admin.describe_cluster()).nodes])
    return limited
