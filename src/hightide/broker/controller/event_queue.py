"""The event queue of one controller epoch: everything the controller does, one event at a time.

    watches, timers ─▶ checks ─┐
    requests ─▶ calls ─────────┴─▶ queue ─▶ Controller plans ─▶ written ─▶ published

A check reads a part of ZooKeeper and acts on it; a check that is scheduled twice runs once.  A call
has a caller that waits for its result; a call whose caller has given up is not started.  The queue
loads the whole cluster first.  It closes when another controller is elected, and every call that is
still queued fails with NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from hightide.broker.controller.context import ControllerContext
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.controller.controller_errors import NotController, kafka_error, not_controller
from hightide.broker.controller.publisher import Publisher, Sender
from hightide.broker.controller.recovery import LogsOfPartitions, ReadLogs, Recovery
from hightide.broker.controller.topic_changes import TopicChanges
from hightide.broker.controller.znode_reader import ZnodeReader
from hightide.broker.controller.znode_writer import ZnodeWriter
from hightide.client.retry import Backoff
from hightide.core.controller.controller import PartitionChange
from hightide.core.controller.controller_events import (
    BrokersChanged,
    StatePublished,
    TopicDeleted,
    brokers_found,
    leaders_elected,
)
from hightide.event_log import record
from hightide.settings import Broker as Settings
from hightide.wire.errors import KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, SessionLost, ZooKeeperError

log = logging.getLogger(__name__)

T = TypeVar("T")

_PREFIX = len(f"{znodes.TOPICS}/")
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_PUBLISH_S = 10.0
_AUDIT_S = 5.0
# An audit looks at every partition, so it takes at most this share of the time.
_AUDIT_SHARE = 0.01


class Dependencies(NamedTuple):
    """What every event queue of this broker needs."""

    zookeeper: ZooKeeper
    election: ControllerElection
    settings: Callable[[], Settings]
    listener: str
    new_id: Callable[[], uuid.UUID]
    on_unclean: Callable[[], None]
    read_logs: ReadLogs


class _Call(NamedTuple):
    work: Callable[[], Awaitable[Any]]
    result: asyncio.Future[Any]


class EventQueue:
    """The events of one controller epoch, in order."""

    def __init__(self, dependencies: Dependencies, sender: Sender) -> None:
        zookeeper, election = dependencies.zookeeper, dependencies.election
        self.epoch = sender.epoch
        self.is_closed = False
        self.context = ControllerContext(dependencies.settings)
        self.publisher = Publisher(
            self.context,
            sender,
            dependencies.listener,
            dependencies.settings,
            election.doubted,
        )
        self._reader = ZnodeReader(zookeeper, election, dependencies.new_id, self._topic_changed)
        self.writer = ZnodeWriter(
            zookeeper, election, self.context, self._reader, self.publisher, dependencies.on_unclean
        )
        self.topics = TopicChanges(
            zookeeper, election, self.context, self._reader, self.writer, dependencies.new_id
        )
        self.recovery = Recovery(
            self.context,
            dependencies.read_logs,
            dependencies.listener,
            dependencies.settings,
            self._logs_read,
            lambda: self.schedule("recovery"),
        )
        self._zookeeper = zookeeper
        self._election = election
        self._settings = dependencies.settings
        self._queue: deque[str | _Call] = deque()
        self._checks: dict[str, Callable[[], Awaitable[None]]] = {
            "brokers": self._check_brokers,
            "topics": self._check_topics,
            "settings": self._check_configs,
            "audit": self._audit,
            "balance": self._balance,
            "recovery": self._recover,
        }
        self._scheduled: dict[str, None] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._wakeup = asyncio.Event()
        # Topics whose znode, or whose settings, may have changed since they were read.
        self._changed: dict[str, None] = {}
        self._reconfigured: dict[str, None] = {}
        self._audit_took_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and close -------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Start; the returned task ends when the queue closes."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run())
        self._tasks = [task, loop.create_task(self._audits()), loop.create_task(self._balances())]
        return task

    def close(self) -> None:
        """Stop.  A write under way may happen or not; the next controller reads the outcome."""
        if self.is_closed:
            return
        self.is_closed = True
        self.publisher.close()
        self.recovery.close()
        for task in self._tasks:
            task.cancel()
        for event in self._queue:
            if isinstance(event, _Call):
                _fail(event, not_controller())
        self._queue.clear()

    async def wait_closed(self) -> None:
        """Wait until all tasks of the queue have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        try:
            await self._load_with_retry()
            while True:
                await self._wakeup.wait()
                if not self._queue:
                    self._wakeup.clear()
                    continue
                await self._process(self._queue.popleft())
        except NotController:
            log.info("controller epoch %d is over", self.epoch)
        finally:
            self.close()

    async def _process(self, event: str | _Call) -> None:
        changes = self.context.machine.cluster.recovery_changes
        await self._process_event(event)
        if self.context.machine.cluster.recovery_changes != changes:
            self.recovery.look()

    async def _process_event(self, event: str | _Call) -> None:
        if isinstance(event, _Call):
            await self._run_call(event)
            return
        self._scheduled.pop(event, None)
        try:
            await self._checks[event]()
            self._backoffs.pop(event, None)
        except NotController:
            raise
        except ZooKeeperError as failure:
            # A reconnect schedules all checks as well; the timer is for a call that timed out.
            if not isinstance(failure, ConnectionLoss | SessionLost):
                log.error("the controller cannot read %s from ZooKeeper: %s", event, failure)
            backoff = self._backoffs.setdefault(event, Backoff(_PAUSE_S, _LONGEST_PAUSE_S))
            pause_s = backoff.next_s() or _LONGEST_PAUSE_S
            asyncio.get_running_loop().call_later(pause_s, self.schedule, event)

    async def _run_call(self, call: _Call) -> None:
        if call.result.done():
            return  # the caller has given up
        try:
            outcome = await call.work()
        except NotController:
            _fail(call, not_controller())
            raise
        except (KafkaError, ZooKeeperError) as refused:
            _fail(call, kafka_error(refused))
        except BaseException:
            _fail(call, not_controller())
            raise
        else:
            if not call.result.done():
                call.result.set_result(outcome)

    # -- scheduling ------------------------------------------------------------------------

    def schedule(self, check: str, _event: object = None) -> None:
        """Queue a check, unless it is queued already."""
        if not self.is_closed and check not in self._scheduled:
            self._scheduled[check] = None
            if check == "brokers":
                # Broker failures come first: the calls depend on which brokers are alive.
                self._queue.appendleft(check)
            else:
                self._queue.append(check)
            self._wakeup.set()

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Queue `work` and return its result; KafkaError NOT_CONTROLLER if the queue closes."""
        if self.is_closed:
            raise not_controller()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Call(work, result))
        self._wakeup.set()
        return await result

    def reread_topic(self, topic: str) -> None:
        """Read a topic's znode, and so set its watch: a topic created here was never read."""
        self._changed[topic] = None
        self.schedule("topics")

    def reconnected(self) -> None:
        """Read everything again: a lost connection loses all watches."""
        self._changed.update(dict.fromkeys(self.context.machine.topics))
        self.schedule("brokers")
        self.schedule("topics")

    def reconfigured(self, topic: str | None) -> None:
        """Read the settings of a topic, or of the brokers if `topic` is None."""
        if topic is not None:
            self._reconfigured[topic] = None
        self.schedule("settings")

    def _brokers_changed(self, _event: WatchEvent) -> None:
        self.schedule("brokers")

    def _topics_changed(self, _event: WatchEvent) -> None:
        self.schedule("topics")

    def _topic_changed(self, event: WatchEvent) -> None:
        self.reread_topic(event.path[_PREFIX:])

    async def _audits(self) -> None:
        while True:
            await asyncio.sleep(max(_AUDIT_S, self._audit_took_s / _AUDIT_SHARE))
            self.schedule("audit")

    async def _balances(self) -> None:
        while True:
            await asyncio.sleep(self._settings().leader_imbalance_check_interval_seconds)
            if self._settings().auto_leader_rebalance_enable:
                self.schedule("balance")

    # -- checks ----------------------------------------------------------------------------

    async def _load_with_retry(self) -> None:
        backoff = Backoff.every(_PAUSE_S)
        while True:
            try:
                plan, why = await self._load()
                break
            except NotController:
                raise
            except ZooKeeperError as failure:
                log.warning("the controller cannot load the cluster yet: %s", failure)
                await backoff.pause()
        with self.publisher.hold_newcomers():
            self.publisher.brokers_changed()
            await self._elect(plan, why)
            await self._process("topics")
        self.recovery.look()

    async def _load(self) -> tuple[list[PartitionChange], str]:
        """Read the cluster; return the elections that are due, and their cause."""
        names = await self._zookeeper.children(znodes.TOPICS, self._topics_changed)
        topics = await self._reader.topics(names)
        brokers = await self._reader.brokers(self._brokers_changed)
        for topic in topics.values():
            self.context.update_topic(topic)
        log.info(
            "controller epoch %d: loaded %d topics, live brokers are %s",
            self.epoch,
            len(topics),
            sorted(brokers),
        )
        found = brokers_found(self.context.machine.topics.values(), brokers)
        if found is not None:
            record(log, found)
        why = f"controller epoch {self.epoch}" if found is None else found.cause
        return self.context.update_brokers(brokers), why

    async def _check_brokers(self) -> None:
        known = self.context.brokers
        found = await self._reader.brokers(self._brokers_changed)
        up = {
            broker_id: broker.epoch
            for broker_id, broker in sorted(found.items())
            if broker_id not in known or known[broker_id].epoch != broker.epoch
        }
        gone = tuple(sorted(known.keys() - found.keys()))
        changed = BrokersChanged(gone, tuple(up), tuple(up.values()), tuple(sorted(found)))
        if gone or up:
            record(log, changed)
        plan = self.context.update_brokers(found)
        with self.publisher.hold_newcomers():
            self.publisher.brokers_changed()
            await self._elect(plan, changed.cause)

    async def _elect(self, plan: list[PartitionChange], why: str) -> None:
        """Write the elections that a broker's failure or start causes, and record how long they
        take until they are written, and until all brokers know."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await self.writer.carry_out(plan, why or "a broker has changed")
        if why:
            record(log, leaders_elected(plan, why, int((loop.time() - start_s) * 1000)))
            task = loop.create_task(self._publish(why, start_s))
            self._tasks.append(task)
            task.add_done_callback(self._tasks.remove)

    async def _publish(self, why: str, start_s: float) -> None:
        loop = asyncio.get_running_loop()
        is_complete = await self.publisher.wait_received(self.publisher.count, _PUBLISH_S)
        record(log, StatePublished(why, int((loop.time() - start_s) * 1000), is_complete))

    async def _check_topics(self) -> None:
        zookeeper, known = self._zookeeper, self.context.machine.topics
        deleted = await zookeeper.children(znodes.DELETE_TOPICS, self._topics_changed)
        names = await zookeeper.children(znodes.TOPICS, self._topics_changed)
        if deleted and not self._settings().delete_topic_enable:
            await self.topics.reject_deletions(deleted)
            deleted = []
        gone = {*deleted, *(known.keys() - set(names))}
        for name in sorted(known.keys() & gone):
            record(log, TopicDeleted(name))
            self.writer.remove_topic(name)
        changed, self._changed = self._changed, {}
        unread = [
            name for name in names if name not in gone and (name in changed or name not in known)
        ]
        try:
            plan = await self._read_changed(unread)
        except BaseException:
            self._changed = {**changed, **self._changed}
            raise
        await self.writer.carry_out(plan, "the topic's znode has changed")
        for name in deleted:
            await self.topics.delete_znodes(name)

    async def _read_changed(self, names: list[str]) -> list[PartitionChange]:
        """Read new topics, and known topics whose znode has another version."""
        known, stored = self.context.machine.topics, self.context.topic_znodes
        versions = await self._reader.versions([name for name in names if name in known])
        unchanged = {
            name
            for name, (topic_id, version) in versions.items()
            if name in known and (known[name].id, stored[name].version) == (topic_id, version)
        }
        found = await self._reader.topics([name for name in names if name not in unchanged])
        plan: list[PartitionChange] = []
        for topic in found.values():
            plan += self.writer.publish(self.context.update_topic(topic))
        return plan

    async def _check_configs(self) -> None:
        reconfigured, self._reconfigured = self._reconfigured, {}
        try:
            for name in reconfigured:
                if name in self.context.topic_znodes:
                    self.context.topic_znodes[name].overrides = await self._reader.overrides(name)
        except BaseException:
            self._reconfigured = {**reconfigured, **self._reconfigured}
            raise
        plan: list[PartitionChange] = []
        for name, topic in self.context.machine.topics.items():
            rules = self.context.rules(self.context.topic_znodes[name].overrides)
            if rules != topic.rules:
                plan += self.context.machine.settings_changed(name, rules)
        await self.writer.carry_out(plan, "its settings have changed")

    async def _audit(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        plan = self.context.machine.audit()
        self._audit_took_s = loop.time() - began
        if plan:
            record(log, leaders_elected(plan, "audit", 0))
        damaged = [name for name, topic in self.context.topic_znodes.items() if topic.damaged]
        plan += await self.writer.reread(damaged)
        await self.writer.carry_out(plan, "audit")
        self.recovery.audit(loop.time())

    async def _recover(self) -> None:
        self.recovery.look()

    def _logs_read(self, broker_id: int, broker_epoch: int, logs: LogsOfPartitions) -> None:
        """A broker has answered: queue the elections that follow."""

        async def elect() -> None:
            plan = self.context.machine.logs_read(broker_id, broker_epoch, logs)
            await self._elect(plan, "recovery" if plan else "")

        if not self.is_closed:
            result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # If the queue closes, the next controller asks again.
            result.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._queue.append(_Call(elect, result))
            self._wakeup.set()

    async def _balance(self) -> None:
        plan = self.context.machine.balance(self._settings().leader_imbalance_per_broker_percentage)
        if plan:
            log.info("%d partitions return to their preferred leaders", len(plan))
        await self.writer.carry_out(plan, "it is the preferred leader")


def _fail(call: _Call, error: KafkaError) -> None:
    if not call.result.done():
        call.result.set_exception(error)
