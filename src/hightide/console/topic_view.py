"""Topics as the console shows them: sizes, rates, health, settings.  Pure: no requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hightide.client.model.cluster import (
    ConfigEntry,
    ConfigSource,
    Extent,
    LogDir,
    Partition,
    PartitionDescription,
    TopicDescription,
)
from hightide.settings.declaration import Declaration, DescribedSetting, Source
from hightide.settings.topic import Topic

SHOWN_CONFIGS = ("min.insync.replicas", "retention.ms", "retention.bytes", "cleanup.policy")
RATE_SECONDS = 30.0
SHORTEST_RATE_SECONDS = 0.5
LOOKS = 64

SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "this topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "the broker, changed while it runs",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, changed while they run",
    ConfigSource.STATIC_BROKER_CONFIG: "the broker's file",
    ConfigSource.DEFAULT_CONFIG: "the built-in default",
}


class Rate(NamedTuple):
    """What is written in a second; None where it is not known."""

    messages: float | None
    bytes: float | None


class Look(NamedTuple):
    at_s: float
    ends: Mapping[Partition, int]
    bytes: Mapping[Partition, int]


class Rates:
    """The last looks at end offsets and sizes, from which rates follow."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=LOOKS)

    def add(
        self, at_s: float, ends: Mapping[Partition, int], sizes: Mapping[Partition, int]
    ) -> None:
        self._looks.append(Look(at_s, ends, sizes))

    def of(self, partitions: Iterable[Partition]) -> Rate:
        """The rate of these partitions together, over at most the last 30 seconds."""
        if not self._looks:
            return Rate(None, None)
        wanted, newest = list(partitions), self._looks[-1]
        for oldest in self._looks:
            seconds = newest.at_s - oldest.at_s
            known = all(key in oldest.ends and key in newest.ends for key in wanted)
            if SHORTEST_RATE_SECONDS <= seconds <= RATE_SECONDS and known:
                grown = _grown(wanted, oldest.ends, newest.ends)
                heavier = _grown(wanted, oldest.bytes, newest.bytes)
                return Rate(
                    None if grown is None else grown / seconds,
                    None if heavier is None else heavier / seconds,
                )
        return Rate(None, None)


def _grown(
    keys: Iterable[Partition], before: Mapping[Partition, int], after: Mapping[Partition, int]
) -> int | None:
    """How much the values grew; None if one shrank or is not known, as after a deletion."""
    grown = 0
    for key in keys:
        if key not in before or key not in after or after[key] < before[key]:
            return None
        grown += after[key] - before[key]
    return grown


class Sizes(NamedTuple):
    """Bytes of the leader's replica and of all replicas, by partition."""

    leader: dict[Partition, int]
    replicas: dict[Partition, int]


def sizes(directories: Iterable[LogDir], topics: Iterable[TopicDescription]) -> Sizes:
    leaders = {
        (topic.name, partition.partition): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    found = Sizes({}, {})
    for directory in directories:
        for replica in directory.replicas:
            key = replica.topic, replica.partition
            if replica.is_future:
                continue
            found.replicas[key] = found.replicas.get(key, 0) + replica.size_bytes
            if leaders.get(key) == directory.broker:
                found.leader[key] = replica.size_bytes
    return found


def partition_health(partition: PartitionDescription, min_isr: int) -> tuple[str, str]:
    """A level and what is wrong, in words."""
    if partition.leader < 0:
        return "off", "offline: no leader"
    if len(partition.isr) < min_isr:
        return "bad", f"{len(partition.isr)} in sync, {min_isr} needed for acks=all"
    if len(partition.isr) < len(partition.replicas):
        missing = ", ".join(str(r) for r in partition.replicas if r not in partition.isr)
        return "warn", f"replica {missing} is not in sync"
    return "ok", "all replicas in sync"


def topic_health(topic: TopicDescription, min_isr: int) -> tuple[str, str]:
    """The worst level of the partitions, and how many have it."""
    levels = [partition_health(partition, min_isr)[0] for partition in topic.partitions]
    for level, text in (
        ("off", "offline"),
        ("bad", "under min ISR"),
        ("warn", "under-replicated"),
    ):
        if count := levels.count(level):
            return level, f"{count} of {len(levels)} {text}"
    return "ok", "all in sync"


def topic_row(
    topic: TopicDescription,
    configs: Mapping[str, str],
    extents: Mapping[Partition, Extent],
    found: Sizes,
    rates: Rates,
) -> dict[str, Any]:
    """A row of the list of topics."""
    keys = [(topic.name, partition.partition) for partition in topic.partitions]
    known = [extents[key] for key in keys if key in extents]
    level, text = topic_health(topic, int(configs.get("min.insync.replicas") or 1))
    rate = rates.of(keys)
    return {
        "name": topic.name,
        "internal": topic.internal,
        "partitions": len(keys),
        "replication": topic.replication_factor,
        "offsets": sum(e.end_offset - e.start_offset for e in known)
        if len(known) == len(keys)
        else None,
        "size_bytes": _total(keys, found.leader),
        "disk_bytes": _total(keys, found.replicas),
        "messages_in_s": rate.messages,
        "bytes_in_s": rate.bytes,
        "retention_ms": _number(configs.get("retention.ms")),
        "retention_bytes": _number(configs.get("retention.bytes")),
        "cleanup_policy": configs.get("cleanup.policy") or None,
        "level": level,
        "text": text,
    }


def partition_row(
    name: str,
    partition: PartitionDescription,
    min_isr: int,
    extent: Extent | None,
    found: Sizes,
    rates: Rates,
) -> dict[str, Any]:
    """A row of a topic's partitions."""
    key = name, partition.partition
    level, text = partition_health(partition, min_isr)
    rate = rates.of([key])
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "offline": partition.offline,
        "start_offset": None if extent is None else extent.start_offset,
        "end_offset": None if extent is None else extent.end_offset,
        "size_bytes": found.leader.get(key),
        "disk_bytes": found.replicas.get(key),
        "messages_in_s": rate.messages,
        "bytes_in_s": rate.bytes,
        "level": level,
        "text": text,
    }


def setting_row(entry: ConfigEntry) -> dict[str, Any]:
    """A setting of a topic with its value, its source and its meaning."""
    about = Topic.declared.get(entry.name)
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "sensitive": entry.sensitive,
        "read_only": entry.read_only,
        "changed": entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
        "source": SOURCES.get(entry.source, "unknown"),
        "type": entry.type.name.lower(),
        "meaning": _meaning(about) or entry.documentation or "",
        "default": None if about is None else about.text(about.default),
        "choices": [] if about is None else [str(value) for value in about.one_of],
        "at_least": None if about is None else about.at_least,
        "at_most": None if about is None else about.at_most,
        "inherits": [] if about is None else list(about.inherits),
    }


def declared_settings() -> list[dict[str, Any]]:
    """All settings that a new topic can have, with their meaning."""
    return [
        {
            "name": about.name,
            "type": about.kind.name.lower(),
            "meaning": _meaning(about),
            "default": about.text(about.default),
            "choices": [str(value) for value in about.one_of],
        }
        for about in sorted(Topic.declared.values(), key=lambda about: about.name)
    ]


def _meaning(about: Declaration | None) -> str:
    return "" if about is None else DescribedSetting(about, None, Source.DEFAULT, ()).doc


def _total(keys: Iterable[Partition], values: Mapping[Partition, int]) -> int | None:
    known = [values[key] for key in keys if key in values]
    return sum(known) if known else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
