"""The messages between the processes of a simulated cluster."""

from __future__ import annotations

from typing import NamedTuple

from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import PublishStateRequest
from tests.simulation.disk import Entry

Partition = tuple[str, int]
CONSUMER = -1


class WhoLeads(NamedTuple):
    """A client's Metadata request; the response is the leader's id, or NO_BROKER."""

    partition: Partition


class Produce(NamedTuple):
    partition: Partition
    value: str
    acks: int


class Produced(NamedTuple):
    code: ErrorCode
    offset: int = -1


class Fetch(NamedTuple):
    """A Fetch request of a follower or, with CONSUMER as its id, of a consumer."""

    partition: Partition
    offset: int
    replica: int = CONSUMER
    broker_epoch: int = -1
    leader_epoch: int = -1
    last_epoch: int = -1
    log_start_offset: int = 0
    may_be_sent_elsewhere: bool = False
    """A consumer that reads from followers (KIP-392)."""


class Fetched(NamedTuple):
    code: ErrorCode
    entries: tuple[Entry, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None
    """(epoch, end offset) where the follower's log diverges from the leader's."""
    preferred: int = NO_BROKER
    """The replica that a consumer should read from."""


class Latest(NamedTuple):
    """ListOffsets to the leader, for the latest offset.  The response is that of a produce."""

    partition: Partition


class DeleteRecords(NamedTuple):
    """DeleteRecords before an offset, or before the high watermark (-1).

    The response is that of a produce.
    """

    partition: Partition
    offset: int


class Propose(NamedTuple):
    """AlterPartition."""

    partition: Partition
    broker_id: int
    broker_epoch: int
    proposal: Proposal


class Decided(NamedTuple):
    code: ErrorCode
    state: PartitionState | None = None


class Publish(NamedTuple):
    request: PublishStateRequest


class ReadLogs(NamedTuple):
    """ReplicaLogInfo: the response is a `LogEnd` and a leader epoch for each partition."""

    partitions: tuple[Partition, ...]


class ShutDown(NamedTuple):
    """ControlledShutdown; the response is a code and the number of leaderships that remain."""

    broker_id: int
    broker_epoch: int
