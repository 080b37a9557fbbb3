"""What a step may do, and how all of it is undone.

    step ─▶ write, look, wait, act ─▶ brokers
                     │
                     └─ the stage remembers it ─▶ restore: brokers run, topic deleted, leaders back

A stage knows which brokers it has suspended, and never waits for them: a look asks only the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from hightide.client.admin import Admin
from hightide.client.admin.replicas import report_of
from hightide.client.broker_connection import ConnectionFailed, check
from hightide.client.model.cluster import Partition, ResourceType
from hightide.client.model.events import BrokerEvent, EventFilter
from hightide.client.model.health import listed
from hightide.client.model.replicas import PartitionReplicas, ReplicaReport, combine_reports
from hightide.console import commands
from hightide.console.learn import writing
from hightide.console.learn.scene import StepRun
from hightide.console.learn.writing import ALL, Acknowledged, Stream
from hightide.core.controller.controller import ElectionKind
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replicas import DescribeReplicasRequest, TopicPartitions

log = logging.getLogger(__name__)

FAILURES = (KafkaError, ConnectionFailed, TimeoutError, OSError)
LOOK_S = 0.05
REPORT_MS = 2_000
CONNECT_MS = 2_000
SOON_S = 30.0
"""How long a step waits for what should happen within moments, on a slow host too."""
BACK_S = 90.0
DELETED_S = 15.0
LEADERS_S = 20.0

DEFAULTS = (commands.DEFAULT_BOOTSTRAP, "127.0.0.1:9092")

Act = Callable[[str, int], Awaitable[str]]


class NotSeen(Exception):
    """The cluster did not do what the scene waits for; the text says what."""


class Stage:
    """One partition for one scene."""

    def __init__(self, bootstrap: str, act: Act, topic: str) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        first = bootstrap.split(",", maxsplit=1)[0]
        self._shown = commands.DEFAULT_BOOTSTRAP if first in DEFAULTS else bootstrap
        """The address in commands."""
        self.admin = Admin(bootstrap, client_id="hightide-learn", connect_timeout_ms=CONNECT_MS)
        # A write that waits for its acknowledgement holds up what follows on its connection.
        self._writers: list[Admin] = []
        self.producer = self._writer()
        self._waiting = self._writer()
        self._act = act
        self._paused: set[int] = set()
        self._ended: set[int] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._undo: list[Callable[[], Awaitable[None]]] = []
        self._is_created = False
        self._leaders: dict[Partition, int] = {}
        """Partitions that their preferred replica led before the scene."""
        self.brokers: list[int] = []
        self.notes: dict[str, Any] = {}
        """What a step leaves for the next ones."""
        self.step = StepRun("", "")

    def _writer(self) -> Admin:
        admin = Admin(self._bootstrap, client_id="hightide-learn", connect_timeout_ms=CONNECT_MS)
        self._writers.append(admin)
        return admin

    # -- what a step tells -----------------------------------------------------------------

    def command(self, *words: object) -> None:
        """The command that does what the step does."""
        self.step.commands.append(commands.command(self._shown, *words))

    def piped(self, producer: str, *words: object) -> None:
        """A command that reads what another one prints."""
        self.step.commands.append(f"{producer} | {commands.command(self._shown, *words)}")

    def sees(self, sentence: str, **facts: Any) -> None:
        """What is on the screen now, measured."""
        self.step.seen = sentence
        self.step.facts.update(facts)

    # -- look ------------------------------------------------------------------------------

    async def open(self) -> None:
        """Learn the brokers, and who leads what."""
        for topic in await self.admin.topics.list():
            for partition in topic.partitions:
                if partition.leader == partition.replicas[0]:
                    self._leaders[topic.name, partition.partition] = partition.leader
        self.brokers = sorted(self.admin.router.nodes)

    @property
    def controller(self) -> int:
        return self.admin.router.controller_id

    async def look(self) -> PartitionReplicas:
        """The partition, as all brokers report it that are not suspended."""
        topics = await self.admin.topics.describe([self.topic])
        live = sorted(self.admin.router.nodes)
        answering = [broker for broker in live if broker not in self._paused]
        found = await asyncio.gather(*(self._report(broker) for broker in answering))
        (partition,) = combine_reports(
            topics,
            [report for report in found if report is not None],
            live=live,
            eligible=await self.admin.replicas.eligible([self.topic]),
            silent=self._paused & set(live),
        )
        return partition

    async def _report(self, broker: int) -> ReplicaReport | None:
        request = DescribeReplicasRequest(
            topics=[TopicPartitions(topic=self.topic, partitions=[0])]
        )
        try:
            connection = await self.admin.router.broker(broker)
            answer = await connection.send(request, version=0, timeout_ms=REPORT_MS)
            check(answer.error_code, answer.error_message, about=f"broker {broker}")
        except FAILURES:
            return None
        for topic in answer.topics:
            for replica in topic.partitions:
                return report_of(broker, topic, replica)
        return None

    async def until(
        self,
        what: str,
        holds: Callable[[PartitionReplicas], bool],
        within_s: float = SOON_S,
    ) -> PartitionReplicas:
        """Look until something holds; NotSeen with the sentence `what` if it does not in time."""
        deadline = time.monotonic() + within_s
        failure: Exception | None = None
        while time.monotonic() < deadline:
            try:
                found = await self.look()
                if holds(found):
                    return found
            except FAILURES as error:
                failure = error
            await asyncio.sleep(LOOK_S)
        why = f" {failure}" if failure is not None else ""
        raise NotSeen(f"It did not happen within {within_s:.0f} s that {what}.{why}")

    async def event(self, kind: str, broker: int | None = None) -> BrokerEvent | None:
        """The newest event of a kind about this topic."""
        wanted = EventFilter(
            brokers=() if broker is None else (broker,),
            kinds=(kind,),
            topics=((self.topic, None),),
        )
        found = await self.admin.events.newest(1, wanted)
        return found.events[-1] if found.events else None

    async def until_event(self, kind: str, broker: int | None = None) -> BrokerEvent:
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            with contextlib.suppress(*FAILURES):
                if found := await self.event(kind, broker):
                    return found
            await asyncio.sleep(LOOK_S)
        raise NotSeen(f"No broker reported the event {kind} within {SOON_S:.0f} s.")

    async def broker_setting(self, name: str) -> int:
        broker = next(one for one in self.brokers if one not in self._paused | self._ended)
        (entry,) = await self.admin.configs.describe(ResourceType.BROKER, str(broker), [name])
        return int(entry.value or 0)

    # -- write -----------------------------------------------------------------------------

    async def create(self, replicas: int = 3, **config: object) -> PartitionReplicas:
        """Create the scene's topic with one partition; names have _ for the dot."""
        given = {name.replace("_", "."): str(value) for name, value in config.items()}
        self.step.commands.append(
            commands.create_topic(self._shown, self.topic, 1, replicas, given)
        )
        self._is_created = True
        await self.admin.topics.create(
            self.topic, partitions=1, replication_factor=replicas, config=given
        )
        found = await self.until(
            f"all replicas of {self.topic} are in sync",
            lambda now: (
                now.leader != NO_BROKER and len(now.state.isr) == replicas == len(now.reports)
            ),
        )
        # A producer that first connected later could pick a suspended broker, and wait for it.
        for writer in self._writers:
            await writer.router.metadata([])
            await writer.router.broker(found.leader)
        return found

    async def write(self, count: int, *, acks: int = ALL, timeout_ms: int = 10_000) -> Acknowledged:
        """Write records in one batch; a moved leader is looked up once more."""
        self.piped(f"seq {count}", "produce", self.topic, "--acks", "all" if acks == ALL else acks)
        deadline = time.monotonic() + SOON_S
        while True:
            try:
                return await writing.write(
                    self.producer, self.topic, count, acks=acks, timeout_ms=timeout_ms
                )
            except (KafkaError, ConnectionFailed) as error:
                moved = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
                is_moving = isinstance(error, ConnectionFailed) or error.code in moved
                if not is_moving or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)

    def write_unacknowledged(self, count: int, timeout_ms: int) -> asyncio.Task[Acknowledged]:
        """Begin a write with acks=all that waits for its acknowledgement.  A scene has one."""
        self.piped(f"seq {count}", "produce", self.topic, "--acks", "all")
        return self._start(writing.write(self._waiting, self.topic, count, timeout_ms=timeout_ms))

    async def stream(self) -> tuple[Stream, asyncio.Task[None]]:
        """Begin to write records steadily."""
        stream = await writing.open_stream(self._writer(), self.topic)
        return stream, self._start(stream.run())

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        # Its outcome is looked at by a later step, or not at all.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.append(task)
        return task

    # -- act -------------------------------------------------------------------------------

    async def pause(self, broker: int) -> None:
        self.command("broker", "pause", broker)
        self._paused.add(broker)
        await self._act("pause", broker)
        for admin in (self.admin, *self._writers):
            admin.router.disconnect(broker)

    async def resume(self, broker: int) -> None:
        self.command("broker", "resume", broker)
        await self._act("resume", broker)
        self._paused.discard(broker)

    async def kill(self, broker: int) -> None:
        self.command("broker", "kill", broker)
        self._ended.add(broker)
        await self._act("kill", broker)

    async def restart(self, broker: int) -> None:
        self.command("broker", "restart", broker)
        await self._act("restart", broker)
        self._ended.discard(broker)

    def at_end(self, undo: Callable[[], Awaitable[None]]) -> None:
        """Something to undo when the scene is over, before the topic is deleted."""
        self._undo.append(undo)

    # -- restore ---------------------------------------------------------------------------

    async def restore(self) -> AsyncIterator[str]:
        """Undo everything; yield a sentence for each thing that was done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for admin in self._writers:
            admin.close()
        async for sentence in self._restore_brokers():
            yield sentence
        for undo in reversed(self._undo):
            try:
                await undo()
            except FAILURES as error:
                yield f"✕ {error}"
        if self._is_created:
            yield await self._delete()
        moved = await self._return_leaders()
        if moved:
            yield f"{moved} partition{'s are' if moved > 1 else ' is'} led as before."
        self.admin.close()

    async def _restore_brokers(self) -> AsyncIterator[str]:
        for broker in sorted(self._paused):
            try:
                await self._act("resume", broker)
                yield f"Broker {broker} runs again."
            except Exception as error:  # the owner's refusals have several types
                yield f"✕ broker {broker}: {error}"
        self._paused.clear()
        alive = await self._alive()
        for broker in sorted(self._ended - alive):
            try:
                await self._act("restart", broker)
                yield f"Broker {broker} is started again."
            except Exception as error:
                yield f"✕ broker {broker}: {error}"
        if self.brokers:
            missing = await self._missing_brokers()
            if missing:
                yield f"✕ broker {listed(missing)} is not back; see `hightide cluster health`."

    async def _alive(self) -> set[int]:
        with contextlib.suppress(*FAILURES):
            await self.admin.router.metadata([])
            return {*self.admin.router.nodes}
        return set()

    async def _missing_brokers(self) -> list[int]:
        """Wait until all brokers are back; return those that are not."""
        deadline = time.monotonic() + BACK_S
        while True:
            missing = sorted(set(self.brokers) - await self._alive())
            if not missing or time.monotonic() > deadline:
                return missing
            await asyncio.sleep(LOOK_S * 4)

    async def _delete(self) -> str:
        deadline = time.monotonic() + DELETED_S
        while True:
            try:
                await self.admin.topics.delete(self.topic)
                return f"Topic {self.topic} is deleted."
            except FAILURES as error:
                is_gone = (
                    isinstance(error, KafkaError)
                    and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                if is_gone:
                    return f"Topic {self.topic} is deleted."
                if time.monotonic() > deadline:
                    return f"✕ topic {self.topic} is not deleted: {error}"
            await asyncio.sleep(LOOK_S * 4)

    async def _return_leaders(self) -> int:
        """Elect the leaders from before, when their replicas are in sync again."""
        deadline = time.monotonic() + LEADERS_S
        moved: set[Partition] = set()
        while self._leaders and time.monotonic() < deadline:
            try:
                now = {
                    (topic.name, partition.partition): partition
                    for topic in await self.admin.topics.list()
                    for partition in topic.partitions
                }
                away = [
                    key
                    for key, leader in self._leaders.items()
                    if key in now and now[key].leader != leader
                ]
                if not away:
                    break
                moved |= set(away)
                ready = [key for key in away if self._leaders[key] in now[key].isr]
                if ready:
                    await self.admin.replicas.elect_leaders(ElectionKind.PREFERRED, ready)
            except FAILURES as error:
                log.info("leaders are not back yet: %s", error)
            await asyncio.sleep(LOOK_S * 4)
        return len(moved)
