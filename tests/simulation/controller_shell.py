"""The controller inside a simulated broker: it handles one event after the other.

event ─▶ queue ─▶ state machine plans ─▶ conditional write to ZooKeeper ─▶ state machine applies
                                                                       └─▶ published
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hightide.core.controller.cluster_state import TopicRules
from hightide.core.controller.controller import Controller, ElectionKind, PartitionChange
from hightide.core.controller.leader_election import NO_LOG, UNCLEAN, Broker, LogEnd
from hightide.core.metadata.image import published_partition
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    PublishedBroker,
    PublishedEndpoint,
    PublishedTopic,
    PublishStateRequest,
)
from hightide.zookeeper.operation import Check, Create, Operation, SetData
from hightide.zookeeper.zookeeper_errors import MultiFailed, NoNode, ZooKeeperError
from tests.simulation.messages import Decided, Partition, Propose, Publish, ReadLogs
from tests.simulation.world import Reply
from tests.simulation.zookeeper import failed

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker

PUBLISH_MS = 400

Overwrite = SetData

__all__ = ["UNCLEAN", "Control"]


def state_path(partition: Partition) -> str:
    return f"/topics/{partition[0]}-{partition[1]}"


def encode(state: PartitionState) -> bytes:
    return json.dumps(asdict(state)).encode()


def decode(data: bytes, version: int) -> PartitionState:
    fields = json.loads(data)
    for name in ("replicas", "isr", "elr", "adding", "removing", "last_known_elr"):
        fields[name] = tuple(fields[name])
    fields["broker_epochs"] = {int(key): value for key, value in fields["broker_epochs"].items()}
    fields["partition_epoch"] = version
    return PartitionState(**fields)


class Control:
    """One controller, in one controller epoch."""

    def __init__(self, broker: SimBroker, epoch: int, epoch_version: int) -> None:
        self._broker = broker
        self._epoch = epoch
        self._epoch_version = epoch_version
        self._machine = Controller()
        self._queue: deque[Callable[[Callable[[], None]], None]] = deque()
        self._is_busy = False
        self._is_loaded = False
        self._brokers_due = False
        # Per broker id: the broker epoch that got the full state, what it lacks, what is in flight.
        self._reached: dict[int, int] = {}
        self._due: dict[int, dict[Partition, None]] = {}
        self._sending: dict[int, None] = {}
        self._lacks_brokers: dict[int, None] = {}
        self._asking: dict[int, None] = {}

    def start(self) -> None:
        self._broker.world.tell(f"{self._broker.name} is the controller in epoch {self._epoch}")
        self._enqueue(self._load)
        self.brokers_may_have_changed()

    @property
    def is_in_office(self) -> bool:
        return self._broker.control is self

    # -- the event queue -------------------------------------------------------------------

    def _enqueue(self, work: Callable[[Callable[[], None]], None]) -> None:
        self._queue.append(work)
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = False
        if self._queue and self.is_in_office:
            self._is_busy = True
            self._queue.popleft()(self._done)

    def _done(self) -> None:
        # Never deeper than one call: a queue may be long.
        self._broker.after(0, self._next)

    # -- loading ---------------------------------------------------------------------------

    def _load(self, done: Callable[[], None]) -> None:
        partitions = list(self._broker.partitions)
        found: dict[Partition, PartitionState] = {}

        def read(at: int) -> None:
            if at == len(partitions):
                self._loaded(found)
                done()
                return

            def answered(answer: Any) -> None:
                if answer is None:
                    self._broker.after(100, read, at)
                    return
                if not isinstance(answer, NoNode):
                    found[partitions[at]] = decode(answer[0], answer[1].version)
                read(at + 1)

            self._broker.tree.read(state_path(partitions[at]), answered)

        read(0)

    def _rules(self) -> TopicRules:
        return TopicRules(self._broker.min_isr, self._broker.unclean)

    def _loaded(self, found: dict[Partition, PartitionState]) -> None:
        for name, topic_id in self._broker.topic_ids.items():
            mine = {
                index: replicas
                for (topic, index), replicas in self._broker.partitions.items()
                if topic == name
            }
            states = {index: found[name, index] for index in mine if (name, index) in found}
            new_partitions = {
                index: replicas for index, replicas in mine.items() if index not in states
            }
            self._machine.topic_found(name, topic_id, self._rules(), states, new_partitions)
        self._is_loaded = True

    # -- brokers ---------------------------------------------------------------------------

    def brokers_may_have_changed(self) -> None:
        if self.is_in_office and not self._brokers_due:
            self._brokers_due = True
            self._enqueue(self._read_brokers)

    def _read_brokers(self, done: Callable[[], None]) -> None:
        self._brokers_due = False
        tree = self._broker.tree
        found: dict[int, Broker] = {}

        def listed(names: Any) -> None:
            if failed(names):
                self._broker.after(200, self.brokers_may_have_changed)
                done()
                return
            read(names, 0)

        def read(names: list[str], at: int) -> None:
            if at == len(names):
                self._seen(found, done)
                return

            def answered(answer: Any) -> None:
                if answer is None:
                    self._broker.after(200, self.brokers_may_have_changed)
                    done()
                    return
                if not isinstance(answer, NoNode):
                    data, stat = answer
                    leaving = self._machine.brokers.get(int(names[at]))
                    found[int(names[at])] = Broker(
                        stat.czxid,
                        previous_epoch=int(data),
                        is_shutting_down=leaving is not None
                        and leaving.epoch == stat.czxid
                        and leaving.is_shutting_down,
                    )
                read(names, at + 1)

            tree.read(f"/brokers/ids/{names[at]}", answered)

        tree.read("/brokers/ids", listed, self.brokers_may_have_changed, children=True)

    def _seen(self, found: dict[int, Broker], done: Callable[[], None]) -> None:
        plan = self._machine.brokers_seen(found)
        self._machine.check()
        self._write(plan, lambda: self._publish_all(done))

    def audit(self) -> None:
        def work(done: Callable[[], None]) -> None:
            for partition in self._machine.cluster.leaderless:
                self._machine.cluster.forget_unanswered(partition)
            self._write(self._machine.audit(), done)

        if self._is_loaded:
            self._enqueue(work)

    # -- recovery --------------------------------------------------------------------------

    def _recover(self) -> None:
        """Ask brokers how far their logs of partitions without a leader reach."""
        for broker_id, partitions in self._machine.logs_needed().items():
            if broker_id not in self._asking:
                self._ask_for_logs(broker_id, partitions)

    def _ask_for_logs(self, broker_id: int, partitions: dict[Partition, int]) -> None:
        self._asking[broker_id] = None

        def answered(answer: Any) -> None:
            del self._asking[broker_id]
            epoch = self._machine.cluster.live.get(broker_id, -1)
            logs = {partition: (leader, NO_LOG) for partition, leader in partitions.items()}
            if answer is not None:
                epoch, logs = answer
            self._enqueue(lambda done: self._write(read(epoch, logs), done))
            if len(logs) < len(partitions):
                self._broker.after(50, self._look_again)

        def read(epoch: int, logs: dict[Partition, tuple[int, LogEnd]]) -> list[PartitionChange]:
            return self._machine.logs_read(broker_id, epoch, logs)

        request = ReadLogs(tuple(partitions))
        self._broker.ask(f"broker-{broker_id}", request, PUBLISH_MS, answered)

    def _look_again(self) -> None:
        if self.is_in_office:
            self._recover()

    # -- requests of brokers ---------------------------------------------------------------

    def proposed(self, request: Propose, answer: Reply) -> None:
        def work(done: Callable[[], None]) -> None:
            key = (self._broker.topic_ids[request.partition[0]], request.partition[1])
            try:
                verdict = self._machine.isr_proposed(
                    request.broker_id, request.broker_epoch, {key: request.proposal}
                )[key]
            except KafkaError as error:
                answer(Decided(error.code))
                done()
                return
            if verdict.change is None:
                answer(Decided(verdict.error, self._machine.state(*request.partition)))
                done()
                return

            def written() -> None:
                state = self._machine.state(*request.partition)
                accepted = state is not None and set(state.isr) == set(request.proposal.isr)
                if self.is_in_office:
                    code = ErrorCode.NONE if accepted else ErrorCode.INVALID_UPDATE_VERSION
                    # A response on the wire lacks the ELR, so the leader waits for the published
                    # state.
                    is_whole = self._broker.world.random.random() < 0.7
                    answer(Decided(code, state if accepted and is_whole else None))
                done()

            self._write([verdict.change], written)

        self._enqueue(work)

    def shuts_down(self, broker_id: int, broker_epoch: int, answer: Reply) -> None:
        def work(done: Callable[[], None]) -> None:
            try:
                shutdown = self._machine.shutdown_asked(broker_id, broker_epoch)
            except KafkaError as error:
                answer(error.code)
                done()
                return

            def written() -> None:
                answer(ErrorCode.NONE)
                self._publish_all(done)

            self._write(shutdown.plan, written)

        self._enqueue(work)

    def moves(self, partition: Partition, target: tuple[int, ...] | None) -> None:
        """A client starts or cancels a reassignment."""

        def work(done: Callable[[], None]) -> None:
            verdict = self._machine.reassignment_asked({partition: target})[partition]
            self._write([] if verdict.change is None else [verdict.change], done)

        if self._is_loaded:
            self._enqueue(work)

    def elects(self, partition: Partition, kind: ElectionKind) -> None:
        """A client asks for a preferred or an unclean election."""

        def work(done: Callable[[], None]) -> None:
            verdict = self._machine.election_asked(kind, [partition])[partition]
            self._write([] if verdict.change is None else [verdict.change], done)

        if not self._is_loaded:
            return
        if kind == ElectionKind.UNCLEAN:
            for broker_id, partitions in self._machine.logs_needed([partition]).items():
                if broker_id not in self._asking:
                    self._ask_for_logs(broker_id, partitions)
            self._broker.after(PUBLISH_MS, self._enqueue, work)
        else:
            self._enqueue(work)

    def settings_changed(self) -> None:
        def work(done: Callable[[], None]) -> None:
            plan: list[PartitionChange] = []
            for topic in self._machine.topics:
                plan += self._machine.settings_changed(topic, self._rules())
            self._write(plan, done)

        if self._is_loaded:
            self._enqueue(work)

    # -- writing ---------------------------------------------------------------------------

    def _write(self, plan: list[PartitionChange], done: Callable[[], None]) -> None:
        """Write one change after the other, and the changes that follow from them."""
        pending = deque(plan)

        def step() -> None:
            if not self.is_in_office:
                return
            if not pending:
                done()
                self._recover()
                return
            change = pending.popleft()
            path = state_path((change.topic, change.index))
            write: Operation = (
                Create(path, encode(change.after))
                if change.before is None
                else Overwrite(path, encode(change.after), change.before.partition_epoch)
            )
            check = Check("/controller_epoch", self._epoch_version)

            def written(answer: Any) -> None:
                if not self.is_in_office:
                    return
                if isinstance(answer, MultiFailed) and answer.index == 0:
                    self._broker.fenced()
                elif answer is None or isinstance(answer, ZooKeeperError):
                    # The write may have happened after all: ZooKeeper has the truth.
                    self._read_again((change.topic, change.index), step)
                else:
                    pending.extend(self._machine.changed(change, _version(answer[1])))
                    self._changed((change.topic, change.index))
                    step()

            self._broker.tree.write([check, write], written)

        step()

    def _read_again(self, partition: Partition, then: Callable[[], None]) -> None:
        def answered(answer: Any) -> None:
            if not self.is_in_office:
                return
            if answer is None:
                self._broker.after(100, self._read_again, partition, then)
                return
            if not isinstance(answer, NoNode):
                state = decode(answer[0], answer[1].version)
                topic, index = partition
                topic_id = self._broker.topic_ids[topic]
                self._machine.topic_found(topic, topic_id, self._rules(), {index: state})
                self._changed(partition)
                self.audit()
            then()

        self._broker.tree.read(state_path(partition), answered)

    # -- publishing ------------------------------------------------------------------------

    def _changed(self, partition: Partition) -> None:
        for broker_id in self._machine.brokers:
            self._due.setdefault(broker_id, {})[partition] = None
            self._send(broker_id)

    def _publish_all(self, done: Callable[[], None]) -> None:
        for broker_id in self._machine.brokers:
            self._lacks_brokers[broker_id] = None
            self._send(broker_id)
        done()

    def _send(self, broker_id: int) -> None:
        broker = self._machine.brokers.get(broker_id)
        if broker is None or broker_id in self._sending or not self.is_in_office:
            return
        is_full = self._reached.get(broker_id) != broker.epoch
        due = self._due.get(broker_id, {})
        if not (is_full or due or broker_id in self._lacks_brokers):
            return
        self._due[broker_id] = {}
        self._lacks_brokers.pop(broker_id, None)
        self._sending[broker_id] = None
        self._broker.publications += 1
        request = self._message(broker, is_full, due)

        def answered(code: ErrorCode | None) -> None:
            del self._sending[broker_id]
            if not self.is_in_office:
                return
            if code == ErrorCode.NONE:
                self._reached[broker_id] = broker.epoch
                self._send(broker_id)
            elif code == ErrorCode.STALE_CONTROLLER_EPOCH:
                self._broker.fenced()
            else:
                self._reached.pop(broker_id, None)
                self._broker.after(60, self._send, broker_id)

        self._broker.ask(f"broker-{broker_id}", Publish(request), PUBLISH_MS, answered)

    def _message(
        self, receiver: Broker, is_full: bool, due: dict[Partition, None]
    ) -> PublishStateRequest:
        topics = []
        for topic in self._machine.topics.values():
            partitions = [
                published_partition(index, state)
                for index, state in sorted(topic.partitions.items())
                if is_full or (topic.name, index) in due
            ]
            if partitions or is_full:
                topics.append(
                    PublishedTopic(name=topic.name, topic_id=topic.id, partitions=partitions)
                )
        return PublishStateRequest(
            controller_id=self._broker.id,
            controller_epoch=self._epoch,
            broker_epoch=receiver.epoch,
            sequence=self._broker.publications,
            is_full=is_full,
            brokers=[
                PublishedBroker(
                    broker_id=broker_id,
                    broker_epoch=broker.epoch,
                    endpoints=[
                        PublishedEndpoint(
                            listener="L",
                            host=f"broker-{broker_id}",
                            port=1,
                            security_protocol="PLAINTEXT",
                        )
                    ],
                    is_shutting_down=broker.is_shutting_down,
                )
                for broker_id, broker in sorted(self._machine.brokers.items())
            ],
            topics=topics,
        )


def _version(result: Any) -> int:
    """Return the version of the znode after a write; a new znode has 0."""
    stat = getattr(result, "stat", result)
    version: int = stat.version
    return version
