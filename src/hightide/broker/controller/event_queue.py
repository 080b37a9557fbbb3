"""One term of a controller: everything that happens, one thing after the other.

    watches, timers ─▶ looks ─┐
    handlers ─▶ questions ────┴─▶ queue ─▶ machine plans ─▶ written ─▶ published

A look reads a part of the tree and draws the conclusions; what asks for the same look twice gets
one.  A question has somebody who waits for its answer, though not for ever: one that nobody waits
for any more is not begun.  The term loads the whole tree first.  It ends when another controller is
found to be in office, and whoever still waits is told so.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from hightide.broker.controller.context import ControllerContext
from hightide.broker.controller.controller_election import Election
from hightide.broker.controller.errors import NotController, kafka_error, not_controller
from hightide.broker.controller.publisher import Publisher, Sender
from hightide.broker.controller.topic_changes import TopicChanges
from hightide.broker.controller.znode_reader import TreeReader
from hightide.broker.controller.znode_writer import Writer
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


class Outside(NamedTuple):
    """What a term finds outside of itself: the tree, the election, and the settings."""

    zookeeper: ZooKeeper
    election: Election
    settings: Callable[[], Settings]
    listener: str
    new_id: Callable[[], uuid.UUID]
    on_unclean: Callable[[], None]


class _Question(NamedTuple):
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]


class EventQueue:
    """From an election to the next one."""

    def __init__(self, outside: Outside, sender: Sender) -> None:
        zookeeper, election = outside.zookeeper, outside.election
        self.epoch = sender.epoch
        self.is_over = False
        self.office = ControllerContext(outside.settings)
        self.publisher = Publisher(
            self.office, sender, outside.listener, outside.settings, self._deposed
        )
        self._reader = TreeReader(zookeeper, election, outside.new_id, self._topic_changed)
        self.writer = Writer(
            zookeeper, election, self.office, self._reader, self.publisher, outside.on_unclean
        )
        self.topics = TopicChanges(
            zookeeper, election, self.office, self._reader, self.writer, outside.new_id
        )
        self._zookeeper = zookeeper
        self._election = election
        self._settings = outside.settings
        self._queue: deque[str | _Question] = deque()
        self._looks: dict[str, Callable[[], Awaitable[None]]] = {
            "brokers": self._look_at_brokers,
            "topics": self._look_at_topics,
            "settings": self._look_at_settings,
            "audit": self._audit,
            "balance": self._balance,
        }
        self._wanted: dict[str, None] = {}
        self._failures: Counter[str] = Counter()
        self._something = asyncio.Event()
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

    def end(self) -> None:
        """Do nothing more.  What was being written may happen or not: the next term reads it."""
        if self.is_over:
            return
        self.is_over = True
        self.publisher.stop()
        for task in self._tasks:
            task.cancel()
        for each in self._queue:
            if isinstance(each, _Question):
                _answer(each, not_controller())
        self._queue.clear()

    async def ended(self) -> None:
        """Wait until nothing of it runs any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _deposed(self) -> None:
        """A broker has heard of a newer controller."""
        self._election.stand_down("a broker knows of a newer controller")
        self._election.reading.wake()
        self.end()

    async def _run(self) -> None:
        try:
            await self._load_patiently()
            while True:
                await self._something.wait()
                if not self._queue:
                    self._something.clear()
                    continue
                await self._do(self._queue.popleft())
        except NotController:
            log.info("the term of controller epoch %d is over", self.epoch)
        finally:
            self.end()

    async def _do(self, what: str | _Question) -> None:
        if isinstance(what, _Question):
            await self._answer(what)
            return
        self._wanted.pop(what, None)
        try:
            await self._looks[what]()
            self._failures.pop(what, None)
        except NotController:
            raise
        except ZooKeeperError as failure:
            # A reconnect has everything looked at too; this is for a call that took too long.
            if not isinstance(failure, ConnectionLoss | SessionLost):
                log.error("the controller cannot look at %s: %s", what, failure)
            pause_s = min(_PAUSE_S * 2 ** self._failures[what], _LONGEST_PAUSE_S)
            self._failures[what] += 1
            asyncio.get_running_loop().call_later(pause_s, self.look, what)

    async def _answer(self, question: _Question) -> None:
        if question.answer.done():
            return  # nobody waits for it any more
        try:
            result = await question.work()
        except NotController:
            _answer(question, not_controller())
            raise
        except (KafkaError, ZooKeeperError) as refused:
            _answer(question, kafka_error(refused))
        except BaseException:
            _answer(question, not_controller())
            raise
        else:
            if not question.answer.done():
                question.answer.set_result(result)

    # -- what there is to do ---------------------------------------------------------------

    def look(self, at: str, _event: object = None) -> None:
        """Look at a part of the tree as soon as may be."""
        if not self.is_over and at not in self._wanted:
            self._wanted[at] = None
            if at == "brokers":
                # Deaths come first: what was asked for depends on who is alive.
                self._queue.appendleft(at)
            else:
                self._queue.append(at)
            self._something.set()

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question; KafkaError NOT_CONTROLLER if the term ends before."""
        if self.is_over:
            raise not_controller()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_Question(work, answer))
        self._something.set()
        return await answer

    def follow(self, topic: str) -> None:
        """Read a topic's own znode, and so watch it, as it was not read to be known."""
        self._changed[topic] = None
        self.look("topics")

    def reconnected(self) -> None:
        """No watch has survived, so anything may have changed."""
        self._changed.update(dict.fromkeys(self.office.machine.topics))
        self.look("brokers")
        self.look("topics")

    def reconfigured(self, topic: str | None) -> None:
        """A topic's settings may be others; or, for None, those of brokers."""
        if topic is not None:
            self._reconfigured[topic] = None
        self.look("settings")

    def _brokers_changed(self, _event: WatchEvent) -> None:
        self.look("brokers")

    def _topics_changed(self, _event: WatchEvent) -> None:
        self.look("topics")

    def _topic_changed(self, event: WatchEvent) -> None:
        self.follow(event.path[_PREFIX:])

    async def _audits(self) -> None:
        while True:
            await asyncio.sleep(max(_AUDIT_S, self._audit_took_s / _AUDIT_SHARE))
            self.look("audit")

    async def _balances(self) -> None:
        while True:
            await asyncio.sleep(self._settings().leader_imbalance_check_interval_seconds)
            if self._settings().auto_leader_rebalance_enable:
                self.look("balance")

    # -- looks -----------------------------------------------------------------------------

    async def _load_patiently(self) -> None:
        while True:
            try:
                plan = await self._load()
                break
            except NotController:
                raise
            except ZooKeeperError as failure:
                log.warning("the controller cannot load the cluster yet: %s", failure)
                await asyncio.sleep(_PAUSE_S)
        with self.publisher.deciding():
            self.publisher.brokers_changed()
            await self._carry_out(plan)
            await self._do("topics")

    async def _load(self) -> list[PartitionChange]:
        names = await self._zookeeper.children(znodes.TOPICS, self._topics_changed)
        topics = await self._reader.topics(names)
        brokers = await self._reader.brokers(self._brokers_changed)
        for topic in topics.values():
            self.office.take(topic)
        log.info(
            "in controller epoch %d there are %d topics and brokers %s",
            self.epoch,
            len(topics),
            sorted(brokers),
        )
        return self.office.see_brokers(brokers)

    async def _look_at_brokers(self) -> None:
        known = self.office.brokers
        found = await self._reader.brokers(self._brokers_changed)
        for broker_id, broker in sorted(found.items()):
            if broker_id not in known or known[broker_id].epoch != broker.epoch:
                log.info("broker %d is up, in broker epoch %d", broker_id, broker.epoch)
        for broker_id in sorted(known.keys() - found.keys()):
            log.info("broker %d is gone", broker_id)
        plan = self.office.see_brokers(found)
        with self.publisher.deciding():
            self.publisher.brokers_changed()
            await self._carry_out(plan)

    async def _carry_out(self, plan: list[PartitionChange]) -> None:
        """Write what follows from deaths and starts, and say how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.writer.carry_out(plan)
        if plan:
            took_ms = (loop.time() - began) * 1000
            log.info("%d partitions were decided anew in %.0f ms", len(plan), took_ms)

    async def _look_at_topics(self) -> None:
        zookeeper, known = self._zookeeper, self.office.machine.topics
        doomed = await zookeeper.children(znodes.DELETE_TOPICS, self._topics_changed)
        names = await zookeeper.children(znodes.TOPICS, self._topics_changed)
        if doomed and not self._settings().delete_topic_enable:
            await self.topics.spare(doomed)
            doomed = []
        going = {*doomed, *(known.keys() - set(names))}
        for name in sorted(known.keys() & going):
            log.info("topic %s is deleted", name)
            self.writer.bury(name)
        changed, self._changed = self._changed, {}
        news = [each for each in names if each not in going]
        news = [each for each in news if each in changed or each not in known]
        try:
            plan = await self._news_of(news)
        except BaseException:
            self._changed = {**changed, **self._changed}
            raise
        await self.writer.carry_out(plan)
        for name in doomed:
            await self.topics.clear(name)

    async def _news_of(self, names: list[str]) -> list[PartitionChange]:
        """Read topics, those that are known only if their own znode is not as it was."""
        known, notes = self.office.machine.topics, self.office.notes
        versions = await self._reader.versions([each for each in names if each in known])
        unchanged = {
            name
            for name, (topic_id, version) in versions.items()
            if name in known and (known[name].id, notes[name].version) == (topic_id, version)
        }
        found = await self._reader.topics([each for each in names if each not in unchanged])
        plan: list[PartitionChange] = []
        for topic in found.values():
            plan += self.writer.take(self.office.take(topic))
        return plan

    async def _look_at_settings(self) -> None:
        reconfigured, self._reconfigured = self._reconfigured, {}
        try:
            for name in reconfigured:
                if name in self.office.notes:
                    self.office.notes[name].overrides = await self._reader.overrides(name)
        except BaseException:
            self._reconfigured = {**reconfigured, **self._reconfigured}
            raise
        plan: list[PartitionChange] = []
        for name, topic in self.office.machine.topics.items():
            rules = self.office.rules(self.office.notes[name].overrides)
            if rules != topic.rules:
                plan += self.office.machine.settings_changed(name, rules)
        await self.writer.carry_out(plan)

    async def _audit(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        plan = self.office.machine.audit()
        self._audit_took_s = loop.time() - began
        if plan:
            log.info("%d partitions are not as they should be", len(plan))
        damaged = [name for name, notes in self.office.notes.items() if notes.damaged]
        plan += await self.writer.learn(damaged)
        await self.writer.carry_out(plan)

    async def _balance(self) -> None:
        plan = self.office.machine.balance(self._settings().leader_imbalance_per_broker_percentage)
        if plan:
            log.info("%d partitions go back to their preferred leaders", len(plan))
        await self.writer.carry_out(plan)


def _answer(question: _Question, error: KafkaError) -> None:
    if not question.answer.done():
        question.answer.set_exception(error)
