"""One term of a controller: everything that happens, one thing after the other.

    watches, timers ─▶ looks ─┐
    handlers ─▶ questions ────┴─▶ queue ─▶ machine plans ─▶ written ─▶ published

A look reads a part of the tree and draws the conclusions; what asks for the same look twice gets
one.  A call has somebody who waits for its answer, though not for ever: one that nobody waits
for any more is not begun.  The term loads the whole tree first.  It ends when another controller is
found to be in context, and whoever still waits is told so.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from hightide.broker.controller.context import ControllerContext
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.controller.errors import NotController, kafka_error, not_controller
from hightide.broker.controller.publisher import Publisher, Sender
from hightide.broker.controller.topic_changes import TopicChanges
from hightide.broker.controller.znode_reader import ZnodeReader
from hightide.broker.controller.znode_writer import ZnodeWriter
from hightide.core.controller.controller import PartitionChange
from hightide.settings import Broker as Settings
from hightide.wire.errors import KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import ConnectionLoss, SessionLost, ZooKeeperError
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.watch import WatchEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

_PREFIX = len(f"{znodes.TOPICS}/")
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_AUDIT_S = 5.0
# An audit looks at every partition: it takes at most this share of the time.
_AUDIT_SHARE = 0.01


class Dependencies(NamedTuple):
    """What a term finds outside of itself: the tree, the election, and the settings."""

    zookeeper: ZooKeeper
    election: ControllerElection
    settings: Callable[[], Settings]
    listener: str
    new_id: Callable[[], uuid.UUID]
    on_unclean: Callable[[], None]


class _Call(NamedTuple):
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]


class EventQueue:
    """From an election to the next one."""

    def __init__(self, dependencies: Dependencies, sender: Sender) -> None:
        zookeeper, election = dependencies.zookeeper, dependencies.election
        self.epoch = sender.epoch
        self.is_closed = False
        self.context = ControllerContext(dependencies.settings)
        self.publisher = Publisher(
            self.context, sender, dependencies.listener, dependencies.settings, self._fenced
        )
        self._reader = ZnodeReader(zookeeper, election, dependencies.new_id, self._topic_changed)
        self.writer = ZnodeWriter(
            zookeeper, election, self.context, self._reader, self.publisher, dependencies.on_unclean
        )
        self.topics = TopicChanges(
            zookeeper, election, self.context, self._reader, self.writer, dependencies.new_id
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
        }
        self._wanted: dict[str, None] = {}
        self._failures: Counter[str] = Counter()
        self._wakeup = asyncio.Event()
        # Topics whose own znode, or whose settings, may have changed since they were read.
        self._changed: dict[str, None] = {}
        self._reconfigured: dict[str, None] = {}
        self._audit_took_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin; the task is done when the term is over."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run())
        self._tasks = [task, loop.create_task(self._audits()), loop.create_task(self._balances())]
        return task

    def close(self) -> None:
        """Do nothing more.  What was being written may happen or not: the next term reads it."""
        if self.is_closed:
            return
        self.is_closed = True
        self.publisher.close()
        for task in self._tasks:
            task.cancel()
        for each in self._queue:
            if isinstance(each, _Call):
                _fail(each, not_controller())
        self._queue.clear()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _fenced(self) -> None:
        """A broker has heard of a newer controller."""
        self._election.stand_down("a broker knows of a newer controller")
        self._election.watch_loop.wake()
        self.close()

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
            log.info("the term of controller epoch %d is over", self.epoch)
        finally:
            self.close()

    async def _process(self, what: str | _Call) -> None:
        if isinstance(what, _Call):
            await self._run_call(what)
            return
        self._wanted.pop(what, None)
        try:
            await self._checks[what]()
            self._failures.pop(what, None)
        except NotController:
            raise
        except ZooKeeperError as failure:
            # A reconnect has everything looked at too; this is for a call that took too long.
            if not isinstance(failure, ConnectionLoss | SessionLost):
                log.error("the controller cannot look at %s: %s", what, failure)
            pause_s = min(_PAUSE_S * 2 ** self._failures[what], _LONGEST_PAUSE_S)
            self._failures[what] += 1
            asyncio.get_running_loop().call_later(pause_s, self.schedule, what)

    async def _run_call(self, call: _Call) -> None:
        if call.answer.done():
            return  # nobody waits for it any more
        try:
            result = await call.work()
        except NotController:
            _fail(call, not_controller())
            raise
        except (KafkaError, ZooKeeperError) as refused:
            _fail(call, kafka_error(refused))
        except BaseException:
            _fail(call, not_controller())
            raise
        else:
            if not call.answer.done():
                call.answer.set_result(result)

    # -- what there is to do ---------------------------------------------------------------

    def schedule(self, check: str, _event: object = None) -> None:
        """Look at a part of the tree as soon as may be."""
        if not self.is_closed and check not in self._wanted:
            self._wanted[check] = None
            if check == "brokers":
                # Deaths come first: what was asked for depends on who is alive.
                self._queue.appendleft(check)
            else:
                self._queue.append(check)
            self._wakeup.set()

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """The answer to a call; KafkaError NOT_CONTROLLER if the term ends before."""
        if self.is_closed:
            raise not_controller()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Call(work, answer))
        self._wakeup.set()
        return await answer

    def reread_topic(self, topic: str) -> None:
        """Read a topic's own znode, and so watch it, as it was not read to be known."""
        self._changed[topic] = None
        self.schedule("topics")

    def reconnected(self) -> None:
        """No watch has survived, so anything may have changed."""
        self._changed.update(dict.fromkeys(self.context.machine.topics))
        self.schedule("brokers")
        self.schedule("topics")

    def reconfigured(self, topic: str | None) -> None:
        """A topic's settings may be others; or, for None, those of brokers."""
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

    # -- looks -----------------------------------------------------------------------------

    async def _load_with_retry(self) -> None:
        while True:
            try:
                plan = await self._load()
                break
            except NotController:
                raise
            except ZooKeeperError as failure:
                log.warning("the controller cannot load the cluster yet: %s", failure)
                await asyncio.sleep(_PAUSE_S)
        with self.publisher.hold_newcomers():
            self.publisher.brokers_changed()
            await self._write_plan(plan)
            await self._process("topics")

    async def _load(self) -> list[PartitionChange]:
        names = await self._zookeeper.children(znodes.TOPICS, self._topics_changed)
        topics = await self._reader.topics(names)
        brokers = await self._reader.brokers(self._brokers_changed)
        for topic in topics.values():
            self.context.update_topic(topic)
        log.info(
            "in controller epoch %d there are %d topics and brokers %s",
            self.epoch,
            len(topics),
            sorted(brokers),
        )
        return self.context.update_brokers(brokers)

    async def _check_brokers(self) -> None:
        known = self.context.brokers
        found = await self._reader.brokers(self._brokers_changed)
        for broker_id, broker in sorted(found.items()):
            if broker_id not in known or known[broker_id].epoch != broker.epoch:
                log.info("broker %d is up, in broker epoch %d", broker_id, broker.epoch)
        for broker_id in sorted(known.keys() - found.keys()):
            log.info("broker %d is gone", broker_id)
        plan = self.context.update_brokers(found)
        with self.publisher.hold_newcomers():
            self.publisher.brokers_changed()
            await self._write_plan(plan)

    async def _write_plan(self, plan: list[PartitionChange]) -> None:
        """Write what follows from deaths and starts, and say how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.writer.carry_out(plan)
        if plan:
            took_ms = (loop.time() - began) * 1000
            log.info("%d partitions were decided anew in %.0f ms", len(plan), took_ms)

    async def _check_topics(self) -> None:
        zookeeper, known = self._zookeeper, self.context.machine.topics
        doomed = await zookeeper.children(znodes.DELETE_TOPICS, self._topics_changed)
        names = await zookeeper.children(znodes.TOPICS, self._topics_changed)
        if doomed and not self._settings().delete_topic_enable:
            await self.topics.reject_deletions(doomed)
            doomed = []
        going = {*doomed, *(known.keys() - set(names))}
        for name in sorted(known.keys() & going):
            log.info("topic %s is deleted", name)
            self.writer.remove_topic(name)
        changed, self._changed = self._changed, {}
        news = [each for each in names if each not in going]
        news = [each for each in news if each in changed or each not in known]
        try:
            plan = await self._read_changed(news)
        except BaseException:
            self._changed = {**changed, **self._changed}
            raise
        await self.writer.carry_out(plan)
        for name in doomed:
            await self.topics.delete_znodes(name)

    async def _read_changed(self, names: list[str]) -> list[PartitionChange]:
        """Read topics, those that are known only if their own znode is not as it was."""
        known, stored = self.context.machine.topics, self.context.topic_znodes
        versions = await self._reader.versions([each for each in names if each in known])
        unchanged = {
            name
            for name, (topic_id, version) in versions.items()
            if name in known and (known[name].id, stored[name].version) == (topic_id, version)
        }
        found = await self._reader.topics([each for each in names if each not in unchanged])
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
        await self.writer.carry_out(plan)

    async def _audit(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        plan = self.context.machine.audit()
        self._audit_took_s = loop.time() - began
        if plan:
            log.info("%d partitions are not as they should be", len(plan))
        damaged = [
            name for name, topic_znodes in self.context.topic_znodes.items() if topic_znodes.damaged
        ]
        plan += await self.writer.reread(damaged)
        await self.writer.carry_out(plan)

    async def _balance(self) -> None:
        plan = self.context.machine.balance(self._settings().leader_imbalance_per_broker_percentage)
        if plan:
            log.info("%d partitions go back to their preferred leaders", len(plan))
        await self.writer.carry_out(plan)


def _fail(call: _Call, error: KafkaError) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
