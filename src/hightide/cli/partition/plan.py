"""A reassignment plan: the new replicas of each partition, as kafka-reassign-partitions has it:

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}

The first replica of each partition is the preferred leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hightide.client.model.cluster import Partition

Plan = dict[Partition, tuple[int, ...]]
ANYWHERE = "any"


def parse_brokers(text: str) -> tuple[int, ...]:
    """Parse `1,2,3`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not a list of brokers; it should be like 1,2,3")
    return _distinct([int(part) for part in parts], text)


def parse_plan(text: str) -> Plan:
    """Parse a plan; ValueError says what is wrong with it, and where."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("partitions"), list):
        raise ValueError('it should be an object with a list "partitions"')
    if found.get("version", 1) != 1:
        raise ValueError(f"the version should be 1, not {found['version']!r}")
    plan: Plan = {}
    for number, entry in enumerate(found["partitions"], 1):
        try:
            key, replicas = _entry(entry)
        except ValueError as error:
            raise ValueError(f"partition {number} of the list: {error}") from None
        if key in plan:
            raise ValueError(f"{key[0]}/{key[1]} is in it twice")
        plan[key] = replicas
    if not plan:
        raise ValueError("it has no partitions")
    return plan


def _entry(entry: Any) -> tuple[Partition, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise ValueError("it should be an object")
    topic, index, replicas = (entry.get(name) for name in ("topic", "partition", "replicas"))
    if not isinstance(topic, str) or not topic:
        raise ValueError('"topic" should be the name of a topic')
    if not isinstance(index, int) or not _is_whole(index):
        raise ValueError('"partition" should be a number')
    if not isinstance(replicas, list) or not all(map(_is_whole, replicas)):
        raise ValueError('"replicas" should be a list of broker ids')
    if any(folder != ANYWHERE for folder in entry.get("log_dirs") or ()):
        raise ValueError('"log_dirs" can only be "any": brokers choose their directories')
    return (topic, index), _distinct(replicas, replicas)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _distinct(brokers: list[int], text: object) -> tuple[int, ...]:
    if not brokers:
        raise ValueError("a partition needs at least one replica")
    if len(set(brokers)) < len(brokers):
        raise ValueError(f"{text!r} names a broker twice")
    return tuple(brokers)


def write_plan(plan: Mapping[Partition, Iterable[int]]) -> str:
    """The text of a plan."""
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(replicas)}
        for (topic, index), replicas in plan.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}) + "\n"


def spread(partitions: Iterable[Partition], brokers: tuple[int, ...]) -> Plan:
    """Assign all brokers to each partition, in turns of the preferred leader."""
    return {
        (topic, index): brokers[index % len(brokers) :] + brokers[: index % len(brokers)]
        for topic, index in partitions
    }
