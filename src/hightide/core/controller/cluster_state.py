"""The controller's view of the cluster: live brokers, topics, and which broker holds which replica.

Only facts are kept here; `controller.py` decides what follows from them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hightide.core.controller.leader_election import (
    NO_LOG,
    Broker,
    LogEnd,
    Logs,
    RecoveryStrategy,
)
from hightide.core.partition.state import NO_BROKER, FailureKind, PartitionState
from hightide.wire.errors import ErrorCode, KafkaError

Partition = tuple[str, int]
"""A topic name and a partition index."""

Failures = dict[tuple[uuid.UUID, int], FailureKind]
"""The failed replicas of a broker, by topic id and partition index."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The topic settings that elections depend on."""

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    recovery_strategy: RecoveryStrategy = RecoveryStrategy.BALANCED

    @property
    def strategy(self) -> RecoveryStrategy:
        """The strategy in force: unclean elections are an aggressive recovery."""
        if self.unclean_leader_election:
            return RecoveryStrategy.AGGRESSIVE
        return self.recovery_strategy


@dataclass(slots=True)
class Topic:
    """A topic, and the state of its partitions."""

    name: str
    id: uuid.UUID
    rules: TopicRules
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    new_partitions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Assignments of partitions without a state, because none of their replicas was alive yet."""

    @property
    def keys(self) -> list[Partition]:
        return [(self.name, index) for index in (*self.partitions, *self.new_partitions)]


class Cluster:
    """Brokers and topics, with an index of the partitions on each broker."""

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.live: dict[int, int] = {}
        """The broker epochs of the live brokers."""
        self.shutting_down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._held: dict[int, set[Partition]] = {}
        # The failed replicas of each broker, as it reported them in its present broker epoch.
        self._failures: dict[int, Failures] = {}
        self.leaderless: set[Partition] = set()
        self.recovery_changes = 0
        """Counts facts upon which the brokers to ask for their logs depend."""
        # How far the logs of partitions without a leader reach, by broker.  The broker epoch and
        # the leader epoch say what an answer is about.
        self._logs: dict[Partition, dict[int, tuple[int, int, LogEnd]]] = {}

    def state(self, topic: str, index: int) -> PartitionState | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def topic_of(self, topic_id: uuid.UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self.topics[name]

    def held_by(self, brokers: Iterable[int]) -> set[Partition]:
        """Return the partitions that any of these brokers is assigned."""
        held: set[Partition] = set()
        for broker_id in brokers:
            held |= self._held.get(broker_id, set())
        return held

    # -- brokers ---------------------------------------------------------------------------

    def put_brokers(self, found: Mapping[int, Broker]) -> set[int]:
        """Replace the live brokers, and return those that came, went or restarted.

        A broker that is shutting down stays so until its broker epoch changes.
        """
        known = self.brokers
        self.brokers = dict(found)
        for broker_id in self.shutting_down & found.keys():
            if known[broker_id].epoch == found[broker_id].epoch:
                self.brokers[broker_id] = replace(found[broker_id], is_shutting_down=True)
        self.recovery_changes += 1
        before, self.live = self.live, {i: broker.epoch for i, broker in self.brokers.items()}
        self.shutting_down = {i for i, broker in self.brokers.items() if broker.is_shutting_down}
        for broker_id in [b for b in self._failures if before.get(b) != self.live.get(b)]:
            del self._failures[broker_id]
        return {broker_id for broker_id, _ in before.items() ^ self.live.items()}

    def put_shutting_down(self, broker_id: int) -> None:
        self.brokers[broker_id] = replace(self.brokers[broker_id], is_shutting_down=True)
        self.shutting_down.add(broker_id)

    def put_failures(self, broker_id: int, failures: Failures) -> set[Partition]:
        """Replace the failed replicas of a broker; return the partitions that this concerns."""
        self.recovery_changes += 1
        before = self._failures.pop(broker_id, {})
        if failures:
            self._failures[broker_id] = dict(failures)
        changed = {key for key, _ in before.items() ^ failures.items()}
        return {
            (self._names[topic_id], index)
            for topic_id, index in changed
            if topic_id in self._names and index in self.topics[self._names[topic_id]].partitions
        }

    def failures(
        self, topic_id: uuid.UUID, index: int, replicas: tuple[int, ...]
    ) -> dict[int, FailureKind]:
        """Return the failed replicas of a partition, by broker."""
        if not self._failures:
            return {}
        reported = ((broker_id, self._failures.get(broker_id)) for broker_id in replicas)
        return {
            broker_id: failures[topic_id, index]
            for broker_id, failures in reported
            if failures is not None and (topic_id, index) in failures
        }

    # -- logs of partitions without a leader -----------------------------------------------

    def put_log(self, partition: Partition, broker_id: int, leader_epoch: int, log: LogEnd) -> None:
        """A live broker has answered, in the leader epoch in which it knows of no leader."""
        if partition in self.leaderless and broker_id in self.live:
            answers = self._logs.setdefault(partition, {})
            answers[broker_id] = (self.live[broker_id], leader_epoch, log)
            if log.last_epoch < 0:
                # Other replicas are asked if all of the last members have lost their logs.
                self.recovery_changes += 1

    def logs(self, partition: Partition, state: PartitionState) -> Logs:
        """Return the answers that are still true."""
        answers = self._logs.get(partition)
        if not answers:
            return {}
        return {
            broker_id: log
            for broker_id, (broker_epoch, leader_epoch, log) in answers.items()
            if self.live.get(broker_id) == broker_epoch and leader_epoch == state.leader_epoch
        }

    def forget_unanswered(self, partition: Partition) -> None:
        """Ask brokers again that did not answer."""
        answers = self._logs.get(partition, {})
        for broker_id in [b for b, (_, _, log) in answers.items() if log == NO_LOG]:
            del answers[broker_id]

    def check_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raise STALE_BROKER_EPOCH unless the broker is alive in this broker epoch."""
        if self.live.get(broker_id) != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} has broker epoch {self.live.get(broker_id)}, not"
                f" {broker_epoch}; it must register again",
            )

    # -- topics ----------------------------------------------------------------------------

    def put_topic(self, name: str, topic_id: uuid.UUID, rules: TopicRules) -> Topic:
        """Return the topic, added if unknown; it replaces one of the same name and another id."""
        topic = self.topics.get(name)
        if topic is not None and topic.id != topic_id:
            self.remove_topic(name)
            topic = None
        if topic is None:
            topic = self.topics[name] = Topic(name, topic_id, rules)
            self._names[topic_id] = name
        topic.rules = rules
        return topic

    def remove_topic(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            del self._names[topic.id]
            for index, state in topic.partitions.items():
                self._release((name, index), state.replicas)
                self._led((name, index))
            for index, replicas in topic.new_partitions.items():
                self._release((name, index), replicas)

    def put_state(self, topic: Topic, index: int, state: PartitionState) -> None:
        known = topic.partitions.get(index)
        before = topic.new_partitions.pop(index, ()) if known is None else known.replicas
        topic.partitions[index] = state
        if state.leader == NO_BROKER:
            self.recovery_changes += 1
            self.leaderless.add((topic.name, index))
        else:
            self._led((topic.name, index))
        if before != state.replicas:
            self._release((topic.name, index), before)
            self._hold((topic.name, index), state.replicas)

    def _led(self, partition: Partition) -> None:
        self.leaderless.discard(partition)
        self._logs.pop(partition, None)

    def put_new_partition(self, topic: Topic, index: int, replicas: tuple[int, ...]) -> None:
        self._release((topic.name, index), topic.new_partitions.get(index, ()))
        topic.new_partitions[index] = replicas
        self._hold((topic.name, index), replicas)

    def _hold(self, partition: Partition, replicas: tuple[int, ...]) -> None:
        for broker_id in replicas:
            self._held.setdefault(broker_id, set()).add(partition)

    def _release(self, partition: Partition, replicas: tuple[int, ...]) -> None:
        for broker_id in replicas:
            held = self._held[broker_id]
            held.remove(partition)
            if not held:
                del self._held[broker_id]

    def check(self) -> None:
        """Assert that every state is sound and every index is right."""
        held: dict[int, set[Partition]] = {}
        for name, topic in self.topics.items():
            assert topic.name == name
            assert self._names[topic.id] == name
            assert not topic.partitions.keys() & topic.new_partitions.keys()
            assignments = dict(topic.new_partitions)
            for index, state in topic.partitions.items():
                state.check()
                assert ((name, index) in self.leaderless) == (state.leader == NO_BROKER)
                assignments[index] = state.replicas
            for index, replicas in assignments.items():
                for broker_id in replicas:
                    held.setdefault(broker_id, set()).add((name, index))
        assert len(self._names) == len(self.topics)
        assert held == self._held
        assert {i: broker.epoch for i, broker in self.brokers.items()} == self.live
        assert self.shutting_down == {i for i, b in self.brokers.items() if b.is_shutting_down}
