"""DescribeReplicas (30002): the progress of this broker's replicas, and what delays them.

Kafka has no such request; there, it takes the metrics of every broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hightide import __version__
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.core.metadata.image import published_partition
from hightide.core.partition.follower_progress import Progress
from hightide.core.partition.leader import Leader
from hightide.wire.messages.replicas import (
    DepartedBroker,
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    FollowerProgress,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker
    from hightide.broker.replication.replica import Replica

WAITS, LEADS, FOLLOWS = 0, 1, 2


def describe_replicas(
    broker: Broker, request: DescribeReplicasRequest, context: Context
) -> Steps[DescribeReplicasResponse]:
    now_ms = broker.monotonic_ms()
    topics: dict[str, DescribedTopic] = {}
    for replica in list(_requested(broker, request)):
        yield
        topic = topics.setdefault(
            replica.topic,
            DescribedTopic(name=replica.topic, topic_id=replica.topic_id, partitions=[]),
        )
        topic.partitions.append(_described(replica, now_ms))
    return DescribeReplicasResponse(
        topics=list(topics.values()),
        software_version=__version__,
        departed=departed_brokers(broker, context),
    )


def departed_brokers(broker: Broker, context: Context) -> list[DepartedBroker]:
    """Return the brokers that this one saw leave since it started."""
    now_ms, now_monotonic_ms = broker.now_ms(), broker.monotonic_ms()
    departed = broker.metadata_image.departed.endpoints(context.connection.listener)
    return [
        DepartedBroker(
            broker_id=broker_id,
            host=endpoint.host if endpoint else "",
            port=endpoint.port if endpoint else 0,
            last_seen_ms=now_ms - (now_monotonic_ms - at_ms),
        )
        for broker_id, endpoint, at_ms in departed
    ]


def _requested(broker: Broker, request: DescribeReplicasRequest) -> Iterator[Replica]:
    if request.topics is None:
        yield from broker.replica_manager
        return
    for topic in request.topics:
        name = topic.topic.encode()
        for index in topic.partitions:
            replica = broker.replica_manager.get(name, index)
            if replica is not None:
                yield replica


def _described(replica: Replica, now_ms: int) -> DescribedReplica:
    leader, follower, log = replica.leader, replica.follower, replica.log
    # A leader knows the response of the controller before the controller publishes it.
    state = replica.state if leader is None else leader.state
    found = DescribedReplica(
        partition_index=replica.partition,
        role=WAITS,
        leader_epoch=replica.leader_epoch,
        log_start_offset=log.start_offset,
        high_watermark=replica.high_watermark,
        end_offset=log.end_offset,
        size_bytes=log.size_bytes,
        lost_records=replica.lost_records,
        last_epoch=log.epochs.latest,
        last_stable_offset=log.last_stable_offset,
        state=None if state is None else published_partition(replica.partition, state),
    )
    if (failure := replica.failure) is not None:
        found.failure = f"{failure.kind.name.lower()}: {failure.why}"
    if leader is not None:
        found.role = LEADS
        found.is_under_min_isr = leader.is_under_min_isr
        found.maximal_isr = sorted(leader.maximal_isr)
        found.progress = _progress(leader, now_ms)
    elif follower is not None:
        found.role = FOLLOWS
        found.is_waiting = follower.is_waiting
    return found


def _progress(leader: Leader, now_ms: int) -> list[FollowerProgress]:
    return [
        _follower_progress(leader.progress(replica, now_ms)) for replica in leader.state.replicas
    ]


def _follower_progress(progress: Progress) -> FollowerProgress:
    def known(value: int | None) -> int:
        return -1 if value is None else value

    return FollowerProgress(
        broker_id=progress.replica,
        standing=progress.standing.name,
        end_offset=known(progress.end_offset),
        lag_records=known(progress.lag_records),
        lag_ms=known(progress.lag_ms),
    )
