"""The controller's task, as the rest of the broker sees it.

A broker is in office from time to time; each time is a queue of its own (`queue`), which reads the
whole tree anew.  Only the numbers of its messages go on from one to the next: a broker that stood
down in doubt may find itself still in context, in the same controller epoch.
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
from hightide.core.controller.cluster_state import Partition
from hightide.core.controller.controller import Controller, ElectionKind, Verdict
from hightide.core.controller.placement import place
from hightide.core.controller.reassignment import target_of
from hightide.core.partition.state import NOBODY, PartitionState
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
)
from hightide.zookeeper.interface import ZooKeeper

log = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 1.0
# What brokers ask for is asked again; a client that gives no time is given this much.
_ASKED_BY_BROKERS_MS = 10_000
_LEAST_MS = 5_000
# Also somebody who wants no time to be lost can use it at once then, unless a broker hangs.
_LEAST_KNOWN_S = 0.5
_SHUTDOWN_KNOWN_S = 1.0


class ControllerService:
    """Lives as long as the broker."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        election: ControllerElection,
        broker_id: int,
        settings: Callable[[], Settings],
        deliver: Deliver,
        listener: str,
        *,
        random: Random,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self.unclean_elections = 0
        """Leaders that were elected although they may lack committed records."""
        self._election = election
        self._broker_id = broker_id
        self._deliver = deliver
        self._random = random
        self._numbers = itertools.count(1)
        self._dependencies = Dependencies(
            zookeeper, election, settings, listener, new_id, self._count_unclean
        )
        self._queue: EventQueue | None = None
        self._ending: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False

    def _count_unclean(self) -> None:
        self.unclean_elections += 1

    # -- in office and out of it -----------------------------------------------------------

    def election_changed(self) -> None:
        """Begin a queue, or end it."""
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
        # What it knows cannot be trusted any more; the tree can, so all is read anew.
        log.error("the controller failed, and begins again", exc_info=failure)
        if self._queue is queue:
            self._queue = None
            asyncio.get_running_loop().call_later(_AGAIN_S, self.election_changed)

    def reconnected(self) -> None:
        if self._queue is not None:
            self._queue.reconnected()

    def configuration_changed(self, entity_path: str) -> None:
        """`topics/NAME` or `brokers/…`: the rules of topics may have changed."""
        kind, _, name = entity_path.partition("/")
        if self._queue is not None and kind in ("topics", "brokers"):
            self._queue.reconfigured(name if kind == "topics" else None)

    async def stop(self) -> None:
        self._is_stopping = True
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()
            await queue.wait_closed()

    # -- asking ----------------------------------------------------------------------------

    def _active_queue(self) -> EventQueue:
        if self._queue is None or self._queue.is_closed or not self._election.is_controller:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
        return self._queue

    async def _call(
        self, queue: EventQueue, work: Callable[[], Awaitable[T]], timeout_ms: float
    ) -> T:
        try:
            async with asyncio.timeout(max(timeout_ms, _LEAST_MS) / 1000):
                return await queue.call(work)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller was not done in {timeout_ms} ms"
            ) from None

    async def _call_and_publish(
        self, work: Callable[[EventQueue], Awaitable[T]], timeout_ms: float
    ) -> T:
        """Do it, then wait until all brokers know of it or the time is up: done it is anyway."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        queue = self._active_queue()
        result = await self._call(queue, lambda: work(queue), timeout_ms)
        left_s = max(deadline - loop.time(), _LEAST_KNOWN_S)
        await queue.publisher.wait_received(queue.publisher.count, left_s)
        return result

    async def state_machine(self, *, timeout_ms: float = _ASKED_BY_BROKERS_MS) -> Controller:
        """What the controller knows, to be looked at and left as it is."""
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
        """Replicas of new partitions on these brokers, beginning at a random one."""
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
        """Make a topic; its id.  TOPIC_ALREADY_EXISTS."""

        async def create(queue: EventQueue) -> uuid.UUID:
            try:
                return await queue.topics.create(name, assignment, overrides)
            finally:
                queue.reread_topic(name)

        return await self._call_and_publish(create, timeout_ms)

    async def delete_topic(self, name: str, *, timeout_ms: float) -> None:
        """Remove a topic and its records.  UNKNOWN_TOPIC_OR_PARTITION."""
        await self._call_and_publish(lambda queue: queue.topics.delete(name), timeout_ms)

    async def add_partitions(
        self, name: str, assignment: Mapping[int, Sequence[int]], *, timeout_ms: float
    ) -> None:
        """More partitions, numbered on.  UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS."""
        await self._call_and_publish(
            lambda queue: queue.topics.add_partitions(name, assignment), timeout_ms
        )

    # -- what brokers ask for --------------------------------------------------------------

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Judge and write what a leader proposes.  Raises STALE_BROKER_EPOCH and NOT_CONTROLLER."""
        queue = self._active_queue()
        machine = queue.context.machine

        async def alter() -> AlterPartitionResponse:
            proposals = _proposals(request)
            verdicts = machine.isr_proposed(request.broker_id, request.broker_epoch, proposals)
            await queue.writer.carry_out(
                [each.change for each in verdicts.values() if each.change is not None]
            )
            return _alter_partition_response(machine, proposals, verdicts)

        return await self._call(queue, alter, _ASKED_BY_BROKERS_MS)

    async def controlled_shutdown(
        self, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        """Let others lead; answered when all brokers know who, or after a second."""
        queue = self._active_queue()
        machine = queue.context.machine

        async def let_go() -> ControlledShutdownResponse:
            plan = machine.shutdown_asked(request.broker_id, request.broker_epoch).plan
            log.info("broker %d is about to stop", request.broker_id)
            queue.publisher.brokers_changed()
            await queue.writer.carry_out(plan)
            return _remaining_partitions(machine, request.broker_id)

        response = await self._call(queue, let_go, _ASKED_BY_BROKERS_MS)
        await queue.publisher.wait_received(queue.publisher.count, _SHUTDOWN_KNOWN_S)
        return response

    # -- what people ask for ---------------------------------------------------------------

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None, *, timeout_ms: float
    ) -> dict[Partition, Verdict]:
        """Elections of some partitions, or of all that need one; what became of each."""

        async def elect(queue: EventQueue) -> dict[Partition, Verdict]:
            return await _write_verdicts(
                queue, queue.context.machine.election_asked(kind, partitions)
            )

        return await self._call_and_publish(elect, timeout_ms)

    async def alter_reassignments(
        self,
        targets: Mapping[Partition, tuple[int, ...] | None],
        *,
        keeps_counts: bool = False,
        timeout_ms: float,
    ) -> dict[Partition, Verdict]:
        """Begin moves of partitions, or give them up; what became of each.

        With `keeps_counts` none may get more replicas or fewer.
        """

        async def reassign(queue: EventQueue) -> dict[Partition, Verdict]:
            machine = queue.context.machine
            refused = {
                key: Verdict(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    detail="the number of replicas may not be changed by this request",
                )
                for key, target in targets.items()
                if keeps_counts and target is not None and _changes_count(machine, key, target)
            }
            asked = {key: target for key, target in targets.items() if key not in refused}
            return refused | await _write_verdicts(queue, machine.reassignment_asked(asked))

        return await self._call_and_publish(reassign, timeout_ms)

    async def list_reassignments(
        self, partitions: Iterable[Partition] | None, *, timeout_ms: float
    ) -> dict[Partition, PartitionState]:
        """The moves under way, of these partitions or of all."""
        found = (await self.state_machine(timeout_ms=timeout_ms)).reassignments()
        if partitions is None:
            return found
        return {key: found[key] for key in partitions if key in found}


async def _write_verdicts(
    queue: EventQueue, verdicts: Mapping[Partition, Verdict]
) -> dict[Partition, Verdict]:
    """Have the changes written; what became of each."""
    changes = {key: each.change for key, each in verdicts.items() if each.change is not None}
    await queue.writer.carry_out(changes.values())
    unwritten = Verdict(ErrorCode.UNKNOWN_SERVER_ERROR, detail="the decision was not written")
    machine = queue.context.machine
    return {
        key: unwritten
        if key in changes and machine.state(*key) in (None, changes[key].before)
        else verdict
        for key, verdict in verdicts.items()
    }


def _changes_count(machine: Controller, key: Partition, target: tuple[int, ...]) -> bool:
    state = machine.state(*key)
    return state is not None and len(target) != len(target_of(state))


# -- AlterPartition and ControlledShutdown -----------------------------------------------------


_NOT_FETCHED = -1

Key = tuple[uuid.UUID, int]


class ProposedIsr(NamedTuple):
    """One partition of AlterPartition, as the controller judges it."""

    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    leader_epoch: int
    partition_epoch: int


def _proposals(request: AlterPartitionRequest) -> dict[Key, ProposedIsr]:
    proposals = {}
    for topic in request.topics:
        for each in topic.partitions:
            # Up to version 2 only the ids were told.
            broker_epochs = {
                state.broker_id: state.broker_epoch for state in each.new_isr_with_epochs
            }
            isr = tuple(state.broker_id for state in each.new_isr_with_epochs)
            proposals[topic.topic_id, each.partition_index] = ProposedIsr(
                isr or tuple(each.new_isr),
                broker_epochs or dict.fromkeys(each.new_isr, _NOT_FETCHED),
                each.leader_epoch,
                each.partition_epoch,
            )
    return proposals


def _alter_partition_response(
    machine: Controller, proposals: Mapping[Key, ProposedIsr], verdicts: Mapping[Key, Verdict]
) -> AlterPartitionResponse:
    """The answer, when all that was accepted has been written, or something else was."""
    topics: dict[uuid.UUID, AlterPartitionResponseTopic] = {}
    for (topic_id, index), verdict in verdicts.items():
        topic = topics.setdefault(
            topic_id, AlterPartitionResponseTopic(topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            _altered_partition(machine, topic_id, index, proposals[topic_id, index], verdict)
        )
    return AlterPartitionResponse(topics=list(topics.values()))


def _altered_partition(
    machine: Controller, topic_id: uuid.UUID, index: int, proposed: ProposedIsr, verdict: Verdict
) -> AlterPartitionResponsePartition:
    topic = machine.cluster.topic_of(topic_id)
    state = None if topic is None else topic.partitions.get(index)
    code = verdict.error
    if state is None and code == ErrorCode.NONE:
        code = ErrorCode.UNKNOWN_TOPIC_ID  # it was deleted meanwhile
    if state is not None and code == ErrorCode.NONE and set(state.isr) != set(proposed.isr):
        code = ErrorCode.INVALID_UPDATE_VERSION
    if state is None or code != ErrorCode.NONE:
        return AlterPartitionResponsePartition(
            partition_index=index,
            error_code=code,
            leader_id=NOBODY,
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


def _remaining_partitions(machine: Controller, broker_id: int) -> ControlledShutdownResponse:
    """What a broker leads still, without what nobody else could lead."""
    led = []
    for name, index in sorted(machine.cluster.held_by([broker_id])):
        state = machine.state(name, index)
        if state is not None and state.leader == broker_id and len(state.replicas) > 1:
            led.append(RemainingPartition(topic_name=name, partition_index=index))
    return ControlledShutdownResponse(remaining_partitions=led)
