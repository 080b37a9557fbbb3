"""How many partitions and replicas a topic gets that nobody gave numbers for, and with which
settings the cluster's own topics are made.

The cluster's own topics have settings of their own.  Three replicas are what they are meant to
have; where nobody has said so and there are fewer brokers, one for each broker must do, so that a
single broker can serve groups and transactions.  What somebody has said is kept to.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.settings import Broker as Settings


class Counts(NamedTuple):
    """Numbers to place a topic by."""

    partitions: int
    replication_factor: int


def default_counts(settings: Settings, topic: str, broker_count: int) -> Counts:
    if topic == "__consumer_offsets":
        return Counts(
            settings.offsets_topic_num_partitions,
            _internal(
                settings,
                "offsets.topic.replication.factor",
                settings.offsets_topic_replication_factor,
                broker_count,
            ),
        )
    if topic == "__transaction_state":
        return Counts(
            settings.transaction_state_log_num_partitions,
            _internal(
                settings,
                "transaction.state.log.replication.factor",
                settings.transaction_state_log_replication_factor,
                broker_count,
            ),
        )
    return Counts(settings.num_partitions, settings.default_replication_factor)


def internal_overrides(settings: Settings, topic: str, replication_factor: int) -> dict[str, str]:
    """The settings of one of the cluster's own topics, which are Kafka's."""
    if topic == "__consumer_offsets":
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": f"{settings.offsets_topic_segment_bytes}",
        }
    assert topic == "__transaction_state", topic
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": f"{_least_in_sync(settings, replication_factor)}",
        "segment.bytes": f"{settings.transaction_state_log_segment_bytes}",
        "unclean.leader.election.enable": "false",
    }


def _least_in_sync(settings: Settings, replication_factor: int) -> int:
    name, value = "transaction.state.log.min.isr", settings.transaction_state_log_min_isr
    # Where there are fewer replicas than are meant to be in sync, nothing could be written.
    return value if _is_said(settings, name, value) else min(value, replication_factor)


def _internal(settings: Settings, name: str, value: int, broker_count: int) -> int:
    return value if _is_said(settings, name, value) else max(min(value, broker_count), 1)


def _is_said(settings: Settings, name: str, value: int) -> bool:
    return value != settings.declared[name].default or any(
        name in given for _, given in settings.layers
    )
