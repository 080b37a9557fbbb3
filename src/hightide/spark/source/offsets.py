"""Offsets of many partitions, and how Spark keeps them.

A query's progress is written as Spark's Kafka source writes it, `{"orders": {"0": 23, "1": 40}}`,
so checkpoints and progress reports read as people know them.  Spark compares offsets as text and
runs a batch when the text differs, so what is written here is always in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
Written = dict[str, dict[str, int]]

EARLIEST = -2
LATEST = -1

# Where a query stands whose start is not decided yet.  No topic has an empty name.
UNDECIDED: Written = {"": {}}


def written(offsets: Mapping[TopicPartition, int]) -> Written:
    """What goes to the checkpoint."""
    found: Written = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def parsed(text: Mapping[str, Mapping[str, int]]) -> Offsets:
    """What the checkpoint holds."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in text.items()
        for partition, offset in partitions.items()
    }


def name(where: TopicPartition) -> str:
    """A partition in a sentence."""
    return f"{where[0]}/{where[1]}"


def names(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    return ", ".join(map(name, sorted(partitions)))
