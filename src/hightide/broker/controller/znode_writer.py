"""Writes decisions to ZooKeeper: compare-and-set, fenced by the controller epoch, many per multi.

    plan ─▶ multi of up to 500 ─▶ Controller.changed ─▶ published ─▶ follow-up changes

A change that was planned from an outdated state is dropped: whatever changed the state has planned
again.  If a multi is refused, the topic of the refused operation is read again and the other
operations are retried.  If the outcome of a multi is unknown, every topic in it is read again until
that succeeds: a controller that does not know the current state can decide nothing.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hightide.broker.controller.context import ControllerContext, TopicUpdate, encode_state
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.controller.controller_errors import NotController
from hightide.broker.controller.publisher import Publisher
from hightide.broker.controller.znode_reader import ZnodeReader
from hightide.broker.membership.watch_loop import in_groups
from hightide.client.retry import Backoff
from hightide.core.controller.controller import PartitionChange
from hightide.core.controller.controller_events import UncleanLeaderElected, events_of
from hightide.core.controller.leader_election import RecoveryStrategy
from hightide.core.partition.state import PartitionState
from hightide.event_log import record
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.node import Stat
from hightide.zookeeper.operation import Create, Operation, SetData
from hightide.zookeeper.zookeeper_errors import (
    ConnectionLoss,
    MultiFailed,
    NoNode,
    SessionLost,
    ZooKeeperError,
)

log = logging.getLogger(__name__)

# A multi must fit into a megabyte, and a topic's name has up to 249 bytes.
CHANGES_PER_MULTI = 500
_ASSIGNMENT_BYTES = 400_000
_PARTITION_BYTES = 60
_PAUSE_S = 0.2
_TRIES = 3
_LOGGED_EVENTS = 20
"""The failure of a broker may change thousands of partitions; the ring has all of them.  The log
has more than that only of elections that may have lost records."""


class _Write(NamedTuple):
    """An operation and its change; None for a topic's znode, which serves several changes."""

    operation: Operation
    topic: str
    change: PartitionChange | None


@dataclass(slots=True)
class _Cause:
    """Why a plan is carried out."""

    why: str
    is_proposed: bool = False
    events: int = 0


class ZnodeWriter:
    """Writes plans, one multi after the other."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        election: ControllerElection,
        context: ControllerContext,
        reader: ZnodeReader,
        publisher: Publisher,
        on_unclean: Callable[[], None],
    ) -> None:
        self._zookeeper = zookeeper
        self._election = election
        self._context = context
        self._reader = reader
        self._publisher = publisher
        self._on_unclean = on_unclean

    async def carry_out(
        self, plan: Iterable[PartitionChange], why: str, *, is_proposed: bool = False
    ) -> None:
        """Write a plan and all follow-up changes.  Raises NotController.

        `why` is the cause of the plan, for events; `is_proposed`: leaders asked for these ISRs.
        """
        cause = _Cause(why, is_proposed)
        pending = deque(plan)
        limit = CHANGES_PER_MULTI
        failures_by_topic: Counter[str] = Counter()
        while batch := self._batch(pending, limit):
            try:
                pending.extend(await self._write(batch, cause))
                limit = CHANGES_PER_MULTI
            except NotController:
                raise
            except _Refused as refused:
                if refused.write.change is None:
                    failures_by_topic[refused.write.topic] += 1
                pending.extendleft(reversed(_retriable(batch, refused, failures_by_topic)))
                pending.extend(await self._reread_refused(refused))
            except (ConnectionLoss, SessionLost) as unknown:
                log.warning("%d changes may not have been written: %s", len(batch), unknown)
                pending.extendleft(reversed(batch))
                pending.extend(await self.reread({change.topic: None for change in batch}))
            except ZooKeeperError as failure:
                if len(batch) == 1:
                    _give_up(batch[0], failure)
                else:
                    limit = len(batch) // 2
                    pending.extendleft(reversed(batch))

    def _batch(self, pending: deque[PartitionChange], limit: int) -> list[PartitionChange]:
        """Take the next changes that fit into one multi; drop the outdated ones."""
        batch: dict[tuple[str, int], PartitionChange] = {}
        assigned: dict[str, None] = {}
        assignment_bytes = 0
        while pending and len(batch) < limit:
            change = pending[0]
            key = (change.topic, change.index)
            if self._context.is_current(change):
                if key in batch:
                    break
                if change.changes_assignment and change.topic not in assigned:
                    count = len(self._context.topic_znodes[change.topic].assignment.partitions)
                    assignment_bytes += count * _PARTITION_BYTES
                    if assigned and assignment_bytes > _ASSIGNMENT_BYTES:
                        break
                    assigned[change.topic] = None
                batch[key] = change
            pending.popleft()
        return list(batch.values())

    # -- one multi -------------------------------------------------------------------------

    async def _write(
        self, batch: Sequence[PartitionChange], cause: _Cause
    ) -> list[PartitionChange]:
        writes = [
            *self._assignments(batch),
            *await self._parent_znodes_of_new(batch),
            *(self._state_write(change) for change in batch),
        ]
        try:
            results = await self._election.fenced([write.operation for write in writes])
        except MultiFailed as failed:
            raise _Refused(writes[failed.index], failed.cause) from failed
        follow_up: list[PartitionChange] = []
        for write, result in zip(writes, results, strict=True):
            version = result.version if isinstance(result, Stat) else 0
            if write.change is not None:
                follow_up += self._written(write.change, version, cause)
            elif isinstance(write.operation, SetData):
                topic_znodes = self._context.topic_znodes[write.topic]
                path = znodes.topic_path(write.topic)
                data = write.operation.data or b""
                topic_znodes.assignment = znodes.TopicAssignment.decode(data, path)
                topic_znodes.version = version
        return follow_up

    def _written(
        self, change: PartitionChange, version: int, cause: _Cause
    ) -> list[PartitionChange]:
        topic = self._context.machine.topics.get(change.topic)
        follow_up = self._context.machine.changed(change, version)
        self._publisher.changed((change.topic, change.index))
        strategy = RecoveryStrategy.NONE if topic is None else topic.rules.strategy
        for event in events_of(change, cause.why, strategy, is_proposed=cause.is_proposed):
            cause.events += 1
            is_unclean = isinstance(event, UncleanLeaderElected)
            record(log, event, is_logged=is_unclean or cause.events <= _LOGGED_EVENTS)
            if is_unclean:
                self._on_unclean()
        return follow_up

    def _state_write(self, change: PartitionChange) -> _Write:
        path = znodes.partition_state_path(change.topic, change.index)
        data = self.encoded(change.after)
        operation: Operation
        if change.before is None:
            operation = Create(path, data)
        else:
            operation = SetData(path, data, change.before.partition_epoch)
        return _Write(operation, change.topic, change)

    def encoded(self, state: PartitionState) -> bytes:
        return encode_state(state, self._election.epoch)

    def _assignments(self, batch: Sequence[PartitionChange]) -> list[_Write]:
        """Return the writes to the znodes of topics whose assignments change."""
        moved: dict[str, dict[int, PartitionState]] = {}
        for change in batch:
            if change.changes_assignment:
                moved.setdefault(change.topic, {})[change.index] = change.after
        return [
            _Write(
                SetData(
                    znodes.topic_path(topic),
                    self._context.with_assignments(topic, after).encode(),
                    self._context.topic_znodes[topic].version,
                ),
                topic,
                None,
            )
            for topic, after in moved.items()
        ]

    async def _parent_znodes_of_new(self, batch: Sequence[PartitionChange]) -> list[_Write]:
        """Return the missing parent znodes of new partitions' state znodes."""
        new: dict[str, list[int]] = {}
        for change in batch:
            if change.before is None:
                new.setdefault(change.topic, []).append(change.index)
        return await self._missing_parents(new)

    async def _missing_parents(self, new: Mapping[str, Sequence[int]]) -> list[_Write]:
        existing = await in_groups(list(new), self._partition_names)
        writes: list[_Write] = []
        for (topic, indexes), names in zip(new.items(), existing, strict=True):
            if names is None:
                writes.append(_Write(Create(znodes.partitions_path(topic)), topic, None))
            writes += [
                _Write(Create(znodes.partition_path(topic, index)), topic, None)
                for index in indexes
                if names is None or str(index) not in names
            ]
        return writes

    async def _partition_names(self, topic: str) -> set[str] | None:
        try:
            return set(await self._zookeeper.children(znodes.partitions_path(topic)))
        except NoNode:
            return None

    # -- failures --------------------------------------------------------------------------

    async def _reread_refused(self, refused: _Refused) -> list[PartitionChange]:
        """Read the topic of a refused write again; return the new plan.

        If the change is still due, another party has spoiled its znode: the change is given up, and
        the next audit plans it again.
        """
        write = refused.write
        log.warning("ZooKeeper refused a change of topic %s: %s", write.topic, refused.cause)
        follow_up = await self.reread([write.topic])
        if write.change is not None and self._context.is_current(write.change):
            _give_up(write.change, refused.cause)
        return follow_up

    async def reread(self, topics: Iterable[str]) -> list[PartitionChange]:
        """Read topics again, retrying until it succeeds; return the changes that follow."""
        names = list(topics)
        backoff = Backoff.every(_PAUSE_S)
        while True:
            try:
                found = await self._reader.topics(names)
                break
            except NotController:
                raise
            except ZooKeeperError as failure:
                if not isinstance(failure, ConnectionLoss | SessionLost):
                    log.error("cannot read topics %s: %s", names[:10], failure)
                await backoff.pause()
        plan: list[PartitionChange] = []
        lost: dict[str, None] = {}
        for name in names:
            if name in found:
                update = self._context.update_topic(found[name])
                plan += self.publish(update)
                for index in update.lost:
                    await self._restore(name, index)
                    lost[name] = None
            elif name not in self._reader.unusable:
                log.warning("topic %s is gone from ZooKeeper", name)
                self.remove_topic(name)
        return [*plan, *await self.reread(lost)] if lost else plan

    async def _restore(self, name: str, index: int) -> None:
        """Restore a deleted state znode, with as many writes as its version had.

        The version is the partition epoch, and brokers ignore a state with a lower one.
        """
        state = self._context.machine.state(name, index)
        assert state is not None
        log.error("the state znode of %s-%d is missing; restoring it", name, index)
        path, data = znodes.partition_state_path(name, index), self.encoded(state)
        writes = [parent.operation for parent in await self._missing_parents({name: [index]})]
        writes.append(Create(path, data))
        writes += [SetData(path, data, version) for version in range(state.partition_epoch + 1)]
        try:
            for start in range(0, len(writes), CHANGES_PER_MULTI):
                await self._election.fenced(writes[start : start + CHANGES_PER_MULTI])
        except (MultiFailed, ConnectionLoss) as failure:
            log.error("cannot restore the state znode of %s-%d: %s", name, index, failure)

    def publish(self, update: TopicUpdate) -> list[PartitionChange]:
        """Publish what an update has changed; return its plan."""
        if update.replaced is not None:
            self._publisher.topic_removed(update.replaced)
        for partition in update.changed:
            self._publisher.changed(partition)
        return update.plan

    def remove_topic(self, name: str) -> None:
        """Forget a deleted topic, and publish its removal."""
        topic_id = self._context.remove_topic(name)
        if topic_id is not None:
            self._publisher.topic_removed(topic_id)


class _Refused(Exception):
    """ZooKeeper refused a multi because of one write."""

    def __init__(self, write: _Write, cause: ZooKeeperError) -> None:
        super().__init__(str(cause))
        self.write = write
        self.cause = cause


def _retriable(
    batch: Sequence[PartitionChange], refused: _Refused, failures_by_topic: Mapping[str, int]
) -> list[PartitionChange]:
    """Return the changes of a refused multi that are worth a retry.

    A write that serves several changes, such as a topic's assignment, may fail because another
    party wrote there; after a few failures all changes of that topic are given up.
    """
    topic, culprit = refused.write.topic, refused.write.change
    others = [change for change in batch if change is not culprit]
    if failures_by_topic[topic] <= _TRIES:
        return others
    for change in others:
        if change.topic == topic:
            _give_up(change, refused.cause)
    return [change for change in others if change.topic != topic]


def _give_up(change: PartitionChange, why: ZooKeeperError) -> None:
    log.error("cannot write the new state of %s-%d: %s", change.topic, change.index, why)
