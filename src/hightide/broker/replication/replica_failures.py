"""Replicas that this broker cannot serve although it is alive, reported to the controller.

    a disk is full, fails or has damaged records ─▶ failed ─┐
                                                            ├─▶ ReportFailures ─▶ controller
    the replica works again ─────────────────▶ recovered ───┘

The controller lets another replica lead and removes the failed one from the ISR; a failed replica
joins no ISR (`core/controller/leader_election.py`).  The report names all failed replicas of this
broker, so that repeating it does no harm.  It is sent again until the controller has answered, to
each new controller, and in each new broker epoch.

A failed follower does not fetch: a fetch says that the log has every record before its offset, and
would make the high watermark wait for a log that cannot be appended to.  A damaged replica fetches
again when it has dropped what is damaged (`copying`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hightide.client.broker_connection import ConnectionFailed
from hightide.client.retry import Backoff
from hightide.core.events import Event, Severity, partition_name
from hightide.core.partition.state import FailureKind
from hightide.event_log import record
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    FailedPartition,
    FailedTopic,
    ReportFailuresRequest,
    ReportFailuresResponse,
)
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.replication.replica import Replica

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

Send = Callable[[ReportFailuresRequest], Awaitable[ReportFailuresResponse]]


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """Why a replica cannot be served."""

    kind: FailureKind
    why: str
    is_copying: bool = False
    """The damaged part is dropped, and copied from the leader."""


@dataclass(frozen=True, slots=True)
class ReplicaFailed(Event):
    """A replica on this broker cannot be served as it should."""

    topic: str
    partition: int
    failure: FailureKind
    why: str

    @property
    def level(self) -> Severity:
        """The monitor of the disks logs a full disk once, and not for each replica on it."""
        return Severity.DEBUG if self.failure is FailureKind.FULL else Severity.ERROR

    def __str__(self) -> str:
        name = partition_name(self.topic, self.partition)
        return f"{name} is {self.failure.name.lower()}: {self.why}"


@dataclass(frozen=True, slots=True)
class ReplicaRecovered(Event):
    """A replica that had failed can be read and written again."""

    topic: str
    partition: int
    failure: FailureKind

    @property
    def level(self) -> Severity:
        return Severity.DEBUG if self.failure is FailureKind.FULL else Severity.INFO

    def __str__(self) -> str:
        return f"{partition_name(self.topic, self.partition)} works again"


class ReplicaFailures:
    """The failed replicas of this broker, and what the controller knows of them."""

    def __init__(self) -> None:
        self.on_change: Callable[[Replica], None] = lambda _replica: None
        """The failure of a replica has begun, changed or ended."""
        self._failed: dict[Replica, None] = {}
        self._broker_id = -1
        self._broker_epoch: Callable[[], int] = lambda: -1
        self._send: Send | None = None
        # Counts what there is to report, and what the controller has answered.
        self._changes = 0
        self._reported = 0
        self._task: asyncio.Task[None] | None = None

    def connect(self, broker_id: int, broker_epoch: Callable[[], int], send: Send) -> None:
        """Report over `send`, which raises ConnectionFailed or KafkaError without a response."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._report()

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._failed))

    def failed(self, replica: Replica, kind: FailureKind, why: str) -> None:
        """The replica cannot be served as it should.  Repeating this changes nothing."""
        before = replica.failure
        if before is not None and before.kind is kind:
            return
        record(log, ReplicaFailed(replica.topic, replica.partition, kind, why))
        replica.failure = ReplicaFailure(kind, why)
        self._failed[replica] = None
        self._changed(replica)

    def copying(self, replica: Replica) -> None:
        """What is damaged was dropped from the log: copy it from the leader.  Call `recovered` when
        the leader has answered a fetch from the new end of the log."""
        assert replica.failure is not None
        replica.failure = replace(replica.failure, is_copying=True)
        self.on_change(replica)

    def recovered(self, replica: Replica) -> None:
        """The replica can be read and written, and has no damaged records."""
        if replica.failure is not None:
            kind = replica.failure.kind
            record(log, ReplicaRecovered(replica.topic, replica.partition, kind))
            replica.failure = None
            self._failed.pop(replica, None)
            self._changed(replica)

    def failure(self, replica: Replica) -> ReplicaFailure | None:
        return replica.failure

    def removed(self, replica: Replica) -> None:
        """The replica has left this broker."""
        if self._failed.pop(replica, self) is None:
            self._report()

    def controller_changed(self) -> None:
        """A new controller knows of no failures.  The same holds for a new broker epoch."""
        if self._failed:
            self._report()

    def _changed(self, replica: Replica) -> None:
        self.on_change(replica)
        self._report()

    def _report(self) -> None:
        self._changes += 1
        if self._task is None and self._send is not None and (self._failed or self._reported):
            self._task = asyncio.get_running_loop().create_task(self._run(self._send))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, send: Send) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        try:
            while self._reported != self._changes:
                changes = self._changes
                if await self._sent(send):
                    self._reported = changes
                else:
                    await backoff.pause()
        except Exception:
            log.exception("failed replicas are not reported until the next failure")
        finally:
            self._task = None

    async def _sent(self, send: Send) -> bool:
        """Report once; return whether the controller has the report."""
        try:
            response = await send(self._request())
        except (ConnectionFailed, KafkaError, ZooKeeperError) as failure:
            log.info("the controller did not answer ReportFailures: %s", failure)
            return False
        return response.error_code == ErrorCode.NONE

    def _request(self) -> ReportFailuresRequest:
        topics: dict[bytes, FailedTopic] = {}
        for replica in self._failed:
            failure = replica.failure
            assert failure is not None
            topic = topics.setdefault(
                replica.topic_id.bytes, FailedTopic(topic_id=replica.topic_id, partitions=[])
            )
            topic.partitions.append(
                FailedPartition(partition_index=replica.partition, kind=failure.kind)
            )
        return ReportFailuresRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )
