"""The replica manager: all replicas on this broker, found by topic name or topic id.

Its seven duties, and where each of them is:

    expiry       propose to remove late followers from the ISR   `check_isrs`, then `isr_changes.py`
    append       write producers' records, wait for the ISR      `Replica.append`, `purgatory.py`
    fetch        serve consumers and followers                   `handlers/fetch.py`
    follow       copy from the leaders                           `replica_fetcher.py`
    role change  become leader or follower                       `state_changes.py`
    stop         remove a replica, delete its log                `remove`, `state_changes.py`
    failure      report replicas that cannot be served           `replica_failures.py`
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Set

from hightide.broker.metrics.counters import Traffic
from hightide.broker.replication.purgatory import Purgatory
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_failures import ReplicaFailures
from hightide.core.partition.fetch_session import TopicPartition
from hightide.core.partition.isr import Proposal
from hightide.core.partition.stall import StallWatch
from hightide.event_log import record
from hightide.log.log import Log

log = logging.getLogger(__name__)


class ReplicaManager:
    """The replicas, and the purgatory of the requests that wait for them."""

    def __init__(self) -> None:
        self.by_name: dict[TopicPartition, Replica] = {}
        self.by_id: dict[TopicPartition, Replica] = {}
        self.purgatory = Purgatory()
        self.traffic = Traffic()
        self.failures = ReplicaFailures()
        self._stall_watch = StallWatch()
        self.on_change: Callable[[], None] = lambda: None
        """Replicas or roles have changed.  Produce forgets the request shapes that it knows."""
        self.on_log: Callable[[Replica], None] = lambda _replica: None
        """A replica was added, or its log was opened again."""
        self.on_role: Callable[[Replica], None] = lambda _replica: None
        """A replica of an internal topic has another role, or none."""
        self.on_proposal: Callable[[Replica, Proposal], None] = lambda _replica, _proposal: None
        self.in_doubt: Callable[[], bool] = lambda: False
        """Whether other brokers may have been elected in place of this one (`contact.py`)."""
        self.now_ms: Callable[[], int] = lambda: 0
        """The clock that never goes back, in milliseconds."""
        self.since_ms: Callable[[], int] = lambda: 0
        """A session timeout ago, in milliseconds of the clock that never goes back."""

    def add(self, log: Log, topic_id: uuid.UUID, high_watermark: int) -> Replica:
        replica = Replica(log, topic_id, high_watermark, self)
        self.by_name[log.topic.encode(), log.partition] = replica
        self.by_id[topic_id.bytes, log.partition] = replica
        self.on_change()
        self.on_log(replica)
        return replica

    def remove(self, replica: Replica) -> None:
        """Stop serving a partition."""
        del self.by_name[replica.topic.encode(), replica.partition]
        del self.by_id[replica.topic_id.bytes, replica.partition]
        replica.rest(None)
        self.traffic.replica_removed(replica.topic)
        self.failures.removed(replica)

    def get(self, topic: bytes, partition: int) -> Replica | None:
        return self.by_name.get((topic, partition))

    def get_by_id(self, topic_id: bytes, partition: int) -> Replica | None:
        return self.by_id.get((topic_id, partition))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.by_name.values())

    def check_isrs(self, now_ms: int) -> None:
        """Propose to remove followers that are late from their ISRs."""
        for replica in self:
            replica.tick(now_ms)

    def check_high_watermarks(self, now_ms: int) -> None:
        """Record the high watermarks that stand still, and those that move again."""
        leaders = (
            ((replica.topic, replica.partition), replica.leader)
            for replica in self
            if replica.leader is not None
        )
        for event in self._stall_watch.look(leaders, now_ms):
            record(log, event)

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> None:
        """Other brokers are alive (by their broker epochs), or shutting down."""
        for replica in self:
            replica.brokers_changed(live, shutting_down)

    def end_waits(self) -> None:
        """Respond to every parked fetch with what there is."""
        for replica in self:
            replica.purgatory.end_waits()
