"""Recovery of partitions without a trusted replica: asks the brokers how far their logs reach.

    no leader, ISR and ELR empty ─▶ ReplicaLogInfo to each candidate ─▶ Controller.logs_read
                                                                   └─▶ the longest log is elected

The brokers are asked outside the event queue, one request per broker at a time, so that a broker
that does not answer delays no other decision.  `core/controller/leader_election.py` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from hightide.broker.controller.context import ControllerContext
from hightide.client.broker_connection import ConnectionFailed
from hightide.core.controller.cluster_state import Partition
from hightide.core.controller.leader_election import NO_LOG, LogEnd
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    LogInfoRequestTopic,
    PublishedEndpoint,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
)

log = logging.getLogger(__name__)

# A broker that has not heard yet that a partition has no leader is asked again after this time.
_ASK_AGAIN_S = 0.1

ReadLogs = Callable[
    [int, PublishedEndpoint | None, ReplicaLogInfoRequest], Awaitable[ReplicaLogInfoResponse]
]
LogsOfPartitions = dict[Partition, tuple[int, LogEnd]]


class Recovery:
    """The questions of one controller epoch to the brokers."""

    def __init__(
        self,
        context: ControllerContext,
        read_logs: ReadLogs,
        listener: str,
        settings: Callable[[], Settings],
        on_answer: Callable[[int, int, LogsOfPartitions], None],
        look_again: Callable[[], None],
    ) -> None:
        """`on_answer` gets a broker, its broker epoch and its logs."""
        self._context = context
        self._read_logs = read_logs
        self._listener = listener
        self._settings = settings
        self._on_answer = on_answer
        self._look_again = look_again
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._waiting_since_s: dict[Partition, float] = {}
        self._reported: set[Partition] = set()

    def look(self) -> None:
        """Ask the brokers whose logs are needed and that are not being asked already."""
        machine = self._context.machine
        if machine.cluster.leaderless:
            for broker_id, partitions in machine.logs_needed().items():
                self._ask(broker_id, partitions)

    def audit(self, now_s: float) -> None:
        """Ask brokers again that did not answer, and report partitions that wait for too long."""
        cluster = self._context.machine.cluster
        for partition in cluster.leaderless:
            cluster.forget_unanswered(partition)
        waits = self._context.machine.recovery_waits() if cluster.leaderless else {}
        self._waiting_since_s = {
            partition: self._waiting_since_s.get(partition, now_s) for partition in waits
        }
        self._reported &= waits.keys()
        limit_s = self._settings().unclean_recovery_timeout_ms / 1000
        for partition, missing in waits.items():
            is_late = now_s - self._waiting_since_s[partition] >= limit_s
            if is_late and partition not in self._reported:
                self._reported.add(partition)
                _report(partition, missing, limit_s)
        self.look()

    async def read(self, partitions: Iterable[Partition] | None, timeout_s: float) -> None:
        """Ask all live replicas of partitions that an administrator wants to be recovered: these,
        or all that have no leader."""
        machine = self._context.machine
        wanted = list(machine.cluster.leaderless if partitions is None else partitions)
        # Twice: a broker may just be answering a question about other partitions.
        for _ in range(2):
            needed = machine.logs_needed(wanted)
            for broker_id, asked in needed.items():
                self._ask(broker_id, asked)
            if needed:
                tasks = [self._asking[broker_id] for broker_id in needed]
                await asyncio.wait(tasks, timeout=timeout_s)

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _ask(self, broker_id: int, partitions: Mapping[Partition, int]) -> None:
        if broker_id not in self._asking and broker_id in self._context.brokers:
            task = asyncio.get_running_loop().create_task(self._run(broker_id, partitions))
            self._asking[broker_id] = task

    async def _run(self, broker_id: int, partitions: Mapping[Partition, int]) -> None:
        try:
            epoch = self._context.brokers[broker_id].epoch
            logs = await self._logs(broker_id, epoch, partitions)
            self._on_answer(broker_id, epoch, logs)
            if len(logs) < len(partitions):
                asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._look_again)
        except Exception:
            log.exception("cannot read the log ends of broker %d", broker_id)
        finally:
            del self._asking[broker_id]

    async def _logs(
        self, broker_id: int, epoch: int, partitions: Mapping[Partition, int]
    ) -> LogsOfPartitions:
        """Return what the broker answers; without an answer it has no logs."""
        machine = self._context.machine
        by_topic: dict[str, list[int]] = {}
        for name, index in partitions:
            by_topic.setdefault(name, []).append(index)
        topics = [
            LogInfoRequestTopic(topic_id=machine.topics[name].id, partitions=indexes)
            for name, indexes in by_topic.items()
            if name in machine.topics
        ]
        names = {machine.topics[name].id: name for name in by_topic if name in machine.topics}
        registration = self._context.brokers[broker_id].registration
        endpoints = (e for e in registration.endpoints if e.listener == self._listener)
        found = next(endpoints, None)
        endpoint = None if found is None else PublishedEndpoint(**found._asdict())
        try:
            response = await self._read_logs(
                broker_id, endpoint, ReplicaLogInfoRequest(topics=topics)
            )
        except (ConnectionFailed, KafkaError) as failure:
            log.warning("broker %d does not say how far its logs reach: %s", broker_id, failure)
            return {partition: (leader, NO_LOG) for partition, leader in partitions.items()}
        if response.broker_epoch != epoch:
            return {}
        logs: LogsOfPartitions = {}
        for topic in response.topics:
            for info in topic.partitions:
                key = (names.get(topic.topic_id, ""), info.partition_index)
                if key not in partitions:
                    continue
                if info.error_code == ErrorCode.NONE:
                    logs[key] = (info.leader_epoch, LogEnd(info.last_epoch, info.end_offset))
                elif info.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    logs[key] = (partitions[key], NO_LOG)
        return logs


def _report(partition: Partition, missing: tuple[int, ...], limit_s: float) -> None:
    what = f"the logs of brokers {list(missing)} are missing" if missing else "no strategy is set"
    log.error(
        "%s-%d has no leader for %.0f s: no live replica is known to have all committed records,"
        " and %s; start these brokers, or accept the loss of what only they have with"
        " 'hightide partition elect --topic %s/%d --unclean'",
        *partition,
        limit_s,
        what,
        *partition,
    )
