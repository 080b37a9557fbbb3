"""The controller service: what the rest of the broker calls, whether it is the controller or not.

Each time this broker is elected, an event queue starts and reads the whole cluster from ZooKeeper.
Only the message numbers continue from one queue to the next: a broker that stood down in doubt may
find itself still the controller, in the same controller epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.controller.event_queue import Dependencies, EventQueue
from hightide.broker.controller.publisher import Deliver, Sender
from hightide.broker.controller.recovery import ReadLogs
from hightide.core.controller.cluster_state import Failures, Partition
from hightide.core.controller.controller import Controller, Decision, ElectionKind
from hightide.core.controller.controller_events import leaders_elected
from hightide.core.controller.placement import place
from hightide.core.controller.reassignment import target_of
from hightide.core.partition.state import NO_BROKER, FailureKind, PartitionState
from hightide.event_log import record
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
    ReportFailuresRequest,
    ReportFailuresResponse,
)
from hightide.zookeeper.interface import ZooKeeper

log = logging.getLogger(__name__)

T = TypeVar("T")

_RESTART_S = 1.0
_BROKER_TIMEOUT_MS = 10_000  # for requests of brokers, which retry
_SHORTEST_TIMEOUT_MS = 5_000  # for clients that give a shorter timeout, or none
# How long a caller waits at least for the brokers to receive its change. Even a client with a
# timeout of 0 can then use a new topic at once, unless a broker hangs.
_SHORTEST_PUBLISH_S = 0.5
_SHUTDOWN_PUBLISH_S = 1.0
_LOGS_TIMEOUT_S = 5.0  # how long an unclean election waits for the log ends of the live brokers


class ControllerService:
    """The controller as its broker uses it."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        election: ControllerElection,
        broker_id: int,
        settings: Callable[[], Settings],
        deliver: Deliver,
        read_logs: ReadLogs,
        listener: str,
        *,
        random: Random,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self.unclean_elections = 0
        """Number of leaders elected although they may lack committed records."""
        self._election = election
        self._broker_id = broker_id
        self._deliver = deliver
        self._random = random
        self._numbers = itertools.count(1)
        self._dependencies = Dependencies(
            zookeeper, election, settings, listener, new_id, self._count_unclean, read_logs
        )
        self._queue: EventQueue | None = None
        self._is_stopping = False

    def _count_unclean(self) -> None:
        self.unclean_elections += 1

    # -- start and end of a controller epoch -----------------------------------------------

    def election_changed(self) -> None:
        """Start an event queue if this broker is the controller, or close the one that runs."""
        queue, election = self._queue, self._election
        if queue is not None and (
            not election.is_controller or queue.epoch != election.epoch or queue.is_closed
        ):
            queue.close()
            self._queue = None
        if election.is_controller and self._queue is None and not self._is_stopping:
            self._start_queue()

    def _start_queue(self) -> None:
        sender = Sender(self._broker_id, self._election.epoch, self._numbers, self._deliver)
        self._queue = queue = EventQueue(self._dependencies, sender)
        task = queue.start()
        task.add_done_callback(lambda done: self._queue_ended(queue, done))

    def _queue_ended(self, queue: EventQueue, done: asyncio.Task[None]) -> None:
        failure = None if done.cancelled() else done.exception()
        if failure is None:
            return
        # Its state cannot be trusted any more, so a new queue reads everything from ZooKeeper.
        log.error("the controller failed; it restarts in %.0f s", _RESTART_S, exc_info=failure)
        if self._queue is queue:
            self._queue = None
            asyncio.get_running_loop().call_later(_RESTART_S, self.election_changed)

    def reconnected(self) -> None:
        if self._queue is not None:
            self._queue.reconnected()

    def configuration_changed(self, entity_path: str) -> None:
        """Apply changed settings of `topics/NAME` or `brokers/…`: election rules may change."""
        kind, _, name = entity_path.partition("/")
        if self._queue is not None and kind in ("topics", "brokers"):
            self._queue.reconfigured(name if kind == "topics" else None)

    async def stop(self) -> None:
        self._is_stopping = True
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()
            await queue.wait_closed()

    # -- calls -----------------------------------------------------------------------------

    def _active_queue(self) -> EventQueue:
        if self._queue is None or self._queue.is_closed or not self._election.is_controller:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
        return self._queue

    async def _call(
        self, queue: EventQueue, work: Callable[[], Awaitable[T]], timeout_ms: float
    ) -> T:
        try:
            async with asyncio.timeout(max(timeout_ms, _SHORTEST_TIMEOUT_MS) / 1000):
                return await queue.call(work)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the controller did not finish in {timeout_ms} ms; the request may still succeed",
            ) from None

    async def _call_and_publish(
        self, work: Callable[[EventQueue], Awaitable[T]], timeout_ms: float
    ) -> T:
        """Run `work`, then wait until all brokers have received the change, or for the timeout.

        The change stands even if a broker has not received it in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        queue = self._active_queue()
        result = await self._call(queue, lambda: work(queue), timeout_ms)
        left_s = max(deadline - loop.time(), _SHORTEST_PUBLISH_S)
        await queue.publisher.wait_received(queue.publisher.count, left_s)
        return result

    async def state_machine(self, *, timeout_ms: float = _BROKER_TIMEOUT_MS) -> Controller:
        """Return the controller's state machine, for reading only."""
        queue = self._active_queue()

        async def look() -> Controller:
            return queue.context.machine

        return await self._call(queue, look, timeout_ms)

    # -- topics ----------------------------------------------------------------------------

    def place(
        self,
        racks: Mapping[int, str | None],
        partition_count: int,
        replication_factor: int,
        existing: Sequence[Sequence[int]] = (),
    ) -> dict[int, list[int]]:
        """Assign replicas of new partitions to these brokers, starting at a random one."""
        first = self._random.randrange(max(len(racks), 1))
        return place(racks, partition_count, replication_factor, first, existing)

    async def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        overrides: Mapping[str, str],
        *,
        timeout_ms: float,
    ) -> uuid.UUID:
        """Create a topic and return its id.  TOPIC_ALREADY_EXISTS."""

        async def create(queue: EventQueue) -> uuid.UUID:
            try:
                return await queue.topics.create(name, assignment, overrides)
            finally:
                queue.reread_topic(name)

        return await self._call_and_publish(create, timeout_ms)

    async def delete_topic(self, name: str, *, timeout_ms: float) -> None:
        """Delete a topic and its records.  UNKNOWN_TOPIC_OR_PARTITION."""
        await self._call_and_publish(lambda queue: queue.topics.delete(name), timeout_ms)

    async def add_partitions(
        self, name: str, assignment: Mapping[int, Sequence[int]], *, timeout_ms: float
    ) -> None:
        """Append partitions to a topic.  UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS."""
        await self._call_and_publish(
            lambda queue: queue.topics.add_partitions(name, assignment), timeout_ms
        )

    # -- requests of brokers ---------------------------------------------------------------

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Judge and write proposed ISRs.  Raises STALE_BROKER_EPOCH and NOT_CONTROLLER."""
        queue = self._active_queue()
        machine = queue.context.machine

        async def alter() -> AlterPartitionResponse:
            proposals = _proposals(request)
            decisions = machine.isr_proposed(request.broker_id, request.broker_epoch, proposals)
            await queue.writer.carry_out(
                [decision.change for decision in decisions.values() if decision.change is not None],
                f"broker {request.broker_id} asked for it",
                is_proposed=True,
            )
            return _alter_partition_response(machine, proposals, decisions)

        return await self._call(queue, alter, _BROKER_TIMEOUT_MS)

    async def report_failures(self, request: ReportFailuresRequest) -> ReportFailuresResponse:
        """Let other replicas lead where a broker's replica has failed, or works again."""
        queue = self._active_queue()
        machine = queue.context.machine

        failures = _failures(request)

        async def move_leaders() -> ReportFailuresResponse:
            plan = machine.replicas_failed(request.broker_id, request.broker_epoch, failures)
            why = f"broker {request.broker_id} reports {len(failures)} failed replicas"
            record(log, leaders_elected(plan, why, 0))
            await queue.writer.carry_out(plan, why)
            return ReportFailuresResponse()

        return await self._call(queue, move_leaders, _BROKER_TIMEOUT_MS)

    async def controlled_shutdown(
        self, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Move leadership away from a broker; respond when all brokers know, or after a second."""
        queue = self._active_queue()
        machine = queue.context.machine

        async def move_leaders() -> ControlledShutdownResponse:
            plan = machine.shutdown_asked(request.broker_id, request.broker_epoch).plan
            why = f"broker {request.broker_id} shuts down"
            record(log, leaders_elected(plan, why, 0))
            queue.publisher.brokers_changed()
            await queue.writer.carry_out(plan, why)
            return _remaining_partitions(machine, request.broker_id)

        response = await self._call(queue, move_leaders, _BROKER_TIMEOUT_MS)
        await queue.publisher.wait_received(queue.publisher.count, _SHUTDOWN_PUBLISH_S)
        return response

    # -- requests of administrators --------------------------------------------------------

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None, *, timeout_ms: float
    ) -> dict[Partition, Decision]:
        """Elect leaders of these partitions, or of all that need one; return each result."""

        partitions = None if partitions is None else list(partitions)
        if kind == ElectionKind.UNCLEAN:
            recovery = self._active_queue().recovery
            await recovery.read(partitions, _LOGS_TIMEOUT_S)

        async def elect(queue: EventQueue) -> dict[Partition, Decision]:
            decisions = queue.context.machine.election_asked(kind, partitions)
            return await _write_verdicts(queue, decisions, f"{kind.name.lower()} election asked")

        return await self._call_and_publish(elect, timeout_ms)

    async def alter_reassignments(
        self,
        targets: Mapping[Partition, tuple[int, ...] | None],
        *,
        keeps_counts: bool = False,
        timeout_ms: float,
    ) -> dict[Partition, Decision]:
        """Start or cancel (None) reassignments of partitions; return each result.

        With `keeps_counts` a reassignment may not change the number of replicas.
        """

        async def reassign(queue: EventQueue) -> dict[Partition, Decision]:
            machine = queue.context.machine
            refused = {
                key: Decision(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    detail="the request does not allow to change the number of replicas",
                )
                for key, target in targets.items()
                if keeps_counts and target is not None and _changes_count(machine, key, target)
            }
            allowed = {key: target for key, target in targets.items() if key not in refused}
            decisions = machine.reassignment_asked(allowed)
            return refused | await _write_verdicts(queue, decisions, "reassignment asked")

        return await self._call_and_publish(reassign, timeout_ms)

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None, *, timeout_ms: float
    ) -> dict[Partition, PartitionState]:
        """Return the reassignments in progress, of these partitions or of all."""
        found = (await self.state_machine(timeout_ms=timeout_ms)).reassignments()
        if partitions is None:
            return found
        return {key: found[key] for key in partitions if key in found}


async def _write_verdicts(
    queue: EventQueue, decisions: Mapping[Partition, Decision], why: str
) -> dict[Partition, Decision]:
    """Write the changes that the verdicts hold; return the verdicts, with errors for failures."""
    changes = {
        key: decision.change for key, decision in decisions.items() if decision.change is not None
    }
    await queue.writer.carry_out(changes.values(), why)
    unwritten = Decision(
        ErrorCode.UNKNOWN_SERVER_ERROR, detail="the change was not written to ZooKeeper"
    )
    machine = queue.context.machine
    return {
        key: unwritten
        if key in changes and machine.state(*key) in (None, changes[key].before)
        else decision
        for key, decision in decisions.items()
    }


def _changes_count(machine: Controller, key: Partition, target: tuple[int, ...]) -> bool:
    state = machine.state(*key)
    return state is not None and len(target) != len(target_of(state))


# -- AlterPartition and ControlledShutdown -----------------------------------------------------


_NOT_FETCHED = -1

Key = tuple[uuid.UUID, int]


class ProposedIsr(NamedTuple):
    """One partition of an AlterPartition request."""

    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    leader_epoch: int
    partition_epoch: int


def _proposals(request: AlterPartitionRequest) -> dict[Key, ProposedIsr]:
    proposals = {}
    for topic in request.topics:
        for partition in topic.partitions:
            # Versions 0 to 2 carry only the ids.
            broker_epochs = {
                state.broker_id: state.broker_epoch for state in partition.new_isr_with_epochs
            }
            isr = tuple(state.broker_id for state in partition.new_isr_with_epochs)
            proposals[topic.topic_id, partition.partition_index] = ProposedIsr(
                isr or tuple(partition.new_isr),
                broker_epochs or dict.fromkeys(partition.new_isr, _NOT_FETCHED),
                partition.leader_epoch,
                partition.partition_epoch,
            )
    return proposals


def _alter_partition_response(
    machine: Controller,
    proposals: Mapping[Key, ProposedIsr],
    decisions: Mapping[Key, Decision],
) -> AlterPartitionResponse:
    """Build the response after the accepted changes, or newer ones, have been written."""
    topics: dict[uuid.UUID, AlterPartitionResponseTopic] = {}
    for (topic_id, index), decision in decisions.items():
        topic = topics.setdefault(
            topic_id, AlterPartitionResponseTopic(topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            _altered_partition(machine, topic_id, index, proposals[topic_id, index], decision)
        )
    return AlterPartitionResponse(topics=list(topics.values()))


def _altered_partition(
    machine: Controller,
    topic_id: uuid.UUID,
    index: int,
    proposed: ProposedIsr,
    decision: Decision,
) -> AlterPartitionResponsePartition:
    topic = machine.cluster.topic_of(topic_id)
    state = None if topic is None else topic.partitions.get(index)
    code = decision.error
    if state is None and code == ErrorCode.NONE:
        code = ErrorCode.UNKNOWN_TOPIC_ID  # the topic was deleted meanwhile
    if state is not None and code == ErrorCode.NONE and set(state.isr) != set(proposed.isr):
        code = ErrorCode.INVALID_UPDATE_VERSION
    if state is None or code != ErrorCode.NONE:
        return AlterPartitionResponsePartition(
            partition_index=index,
            error_code=code,
            leader_id=NO_BROKER,
            leader_epoch=-1,
            isr=[],
            partition_epoch=-1,
        )
    return AlterPartitionResponsePartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=int(state.is_recovering),
        partition_epoch=state.partition_epoch,
    )


def _failures(request: ReportFailuresRequest) -> Failures:
    try:
        return {
            (topic.topic_id, partition.partition_index): FailureKind(partition.kind)
            for topic in request.topics
            for partition in topic.partitions
        }
    except ValueError as unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(unknown)) from None


def _remaining_partitions(machine: Controller, broker_id: int) -> ControlledShutdownResponse:
    """Return what a broker still leads, without the partitions that have no other replica."""
    led = []
    for name, index in sorted(machine.cluster.held_by([broker_id])):
        state = machine.state(name, index)
        if state is not None and state.leader == broker_id and len(state.replicas) > 1:
            led.append(RemainingPartition(topic_name=name, partition_index=index))
    return ControlledShutdownResponse(remaining_partitions=led)
