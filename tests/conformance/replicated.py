"""A cluster with replication, and requests to its brokers one by one.

Every request here goes only to the named broker, so that a test sees what each broker knows.  Every
wait has a deadline, and a test that waits in vain says what it saw.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.log.dump import Damage, DumpedBatch, dump
from hightide.testing import Cluster
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from hightide.wire.messages.controller import ResignControllerRequest
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from hightide.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from hightide.wire.types import NO_UUID
from tests.conformance.raw import Raw, produce_request, produced
from tests.support.eventually import eventually

T = TypeVar("T")
LIMIT_S = 30.0
LATEST = -1
PREFERRED, UNCLEAN = 0, 1
TOPIC, BROKER = 2, 4

SETTINGS: Mapping[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "auto.create.topics.enable": False,
    "replica.lag.time.max.ms": 1500,
    "replica.fetch.backoff.ms": 100,
    "controlled.shutdown.retry.backoff.ms": 200,
    "log.retention.ms": -1,
    # Compaction soon; it compacts only synced records.
    "log.initial.task.delay.ms": 0,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.cleaner.backoff.ms": 200,
    # A consumer without a group also causes the creation of this topic, and each test waits for all
    # replicas of all topics.
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


class Replicated(Cluster):
    """A cluster with requests to single brokers."""

    patience_s = LIMIT_S
    """The limit of a request, and of the search for a broker that can serve it."""

    # -- asking ----------------------------------------------------------------------------

    def ask(self, broker_id: int, request: Any, **options: Any) -> Any:
        timeout_ms = int(self.patience_s * 1000)

        async def exchange() -> Any:
            connection = await Connection.open(
                self.host(broker_id), self.port(broker_id), timeout_ms=timeout_ms
            )
            try:
                return await connection.send(request, timeout_ms=timeout_ms, **options)
            finally:
                connection.close()

        return asyncio.run(exchange())

    def ask_controller(self, request: Any, codes: Callable[[Any], Iterable[int]]) -> Any:
        """Send a request to the controller, again after NOT_CONTROLLER."""

        def attempt() -> Any:
            try:
                controller = self.metadata(self.able()[0]).controller_id
                answer = self.ask(controller, request) if controller >= 0 else None
            except (ConnectionFailed, KafkaError, KeyError):
                return None
            if answer is None:
                return None
            return None if ErrorCode.NOT_CONTROLLER in codes(answer) else answer

        return eventually(attempt, self.patience_s)

    def able(self) -> list[int]:
        """The brokers that are running and awake."""
        return [
            broker_id
            for broker_id, broker in self._brokers.items()
            if broker.process.is_running() and not broker.process.is_paused
        ]

    def metadata(self, broker_id: int, *topics: str) -> Any:
        """Return one broker's Metadata, of these topics or of all."""
        named = [MetadataRequestTopic(name=topic) for topic in topics] if topics else None
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        return self.ask(broker_id, request)

    def partitions(self, broker_id: int, topic: str) -> dict[int, MetadataResponsePartition]:
        (found,) = self.metadata(broker_id, topic).topics
        return {partition.partition_index: partition for partition in found.partitions}

    def partition(self, topic: str, index: int = 0, broker_id: int = 0) -> Any:
        """Return a partition as one broker knows it: the given one, or any running one."""
        return self.partitions(broker_id or self.able()[0], topic)[index]

    def isrs(self, topic: str, index: int = 0) -> dict[int, list[int]]:
        """Return the ISR as each running broker knows it."""
        return {
            broker_id: sorted(self.partition(topic, index, broker_id).isr_nodes)
            for broker_id in self.able()
        }

    def all_say_isr(self, topic: str, isr: Iterable[int], index: int = 0) -> bool:
        return all(found == sorted(isr) for found in self.isrs(topic, index).values())

    def leader_now(self, topic: str, index: int = 0, *, not_any_of: Iterable[int] = ()) -> int:
        """Wait until all running brokers agree on a leader, and return it."""
        unwanted = {-1, *not_any_of}

        def look() -> int:
            try:
                found = {
                    self.partition(topic, index, broker_id).leader_id for broker_id in self.able()
                }
            except (ConnectionFailed, KeyError):
                return 0
            return found.pop() if len(found) == 1 and not found & unwanted else 0

        return eventually(look, self.patience_s)

    def followers(self, topic: str, index: int = 0) -> list[int]:
        found = self.partition(topic, index)
        return [
            replica_node for replica_node in found.replica_nodes if replica_node != found.leader_id
        ]

    # -- changes ---------------------------------------------------------------------------

    def place_topic(
        self, assignment: Mapping[int, Iterable[int]], name: str = "", **config: object
    ) -> str:
        """Create a topic with given replicas; in setting names, underscores stand for dots."""
        made = name or f"placed-{time.monotonic_ns()}"
        self._create(
            CreatableTopic(
                name=made,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                    for index, replicas in assignment.items()
                ],
                configs=[
                    CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                    for key, value in config.items()
                ],
            )
        )
        for index in assignment:
            self.leader_now(made, index)
        return made

    def spread_topic(self, name: str, partitions: int, replication_factor: int) -> None:
        """Create a topic whose replicas the controller places."""
        self._create(
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=[],
                configs=[],
            )
        )

    def _create(self, topic: CreatableTopic) -> None:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (result,) = self.ask_controller(
            request, lambda answer: [topic.error_code for topic in answer.topics]
        ).topics
        assert result.error_code == 0, (ErrorCode(result.error_code), result.error_message)

    def delete_topic(self, name: str) -> None:
        state = DeleteTopicState(name=name, topic_id=NO_UUID)
        request = DeleteTopicsRequest(topics=[state], timeout_ms=10_000)
        (result,) = self.ask_controller(
            request, lambda answer: [response.error_code for response in answer.responses]
        ).responses
        assert result.error_code == 0, ErrorCode(result.error_code)

    def configure(self, kind: int, resource: str, **values: object) -> None:
        """Change settings of a topic or a broker; return when all running brokers have them."""
        changes = [
            IncrementalAlterableConfig(
                name=name.replace("_", "."), config_operation=0, value=str(value)
            )
            for name, value in values.items()
        ]
        change = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=changes
        )
        request = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
        asked = [int(resource)] if kind == BROKER else self.able()
        (result,) = self.ask(asked[0], request).responses
        assert result.error_code == 0, (ErrorCode(result.error_code), result.error_message)
        wanted = {config.name: config.value for config in changes}
        for broker_id in asked:
            eventually(
                lambda broker_id=broker_id: (
                    self._settings_at(broker_id, kind, resource, wanted) == wanted
                )
            )

    def _settings_at(
        self, broker_id: int, kind: int, resource: str, names: Iterable[str]
    ) -> dict[str, str | None]:
        wanted = DescribeConfigsResource(
            resource_type=kind, resource_name=resource, configuration_keys=list(names)
        )
        (result,) = self.ask(broker_id, DescribeConfigsRequest(resources=[wanted])).results
        return {config.name: config.value for config in result.configs}

    def reassign(self, topic: str, replicas: Iterable[int] | None, index: int = 0) -> ErrorCode:
        """Start a reassignment, or cancel it with None."""
        wanted = ReassignablePartition(
            partition_index=index, replicas=None if replicas is None else list(replicas)
        )
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
        )
        answer = self.ask_controller(request, lambda answer: [answer.error_code])
        return ErrorCode(answer.error_code or answer.responses[0].partitions[0].error_code)

    def reassignments(self) -> dict[tuple[str, int], Any]:
        request = ListPartitionReassignmentsRequest(topics=None)
        answer = self.ask_controller(request, lambda answer: [answer.error_code])
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return {
            (topic.name, partition.partition_index): partition
            for topic in answer.topics
            for partition in topic.partitions
        }

    def elect(self, topic: str, index: int = 0, kind: int = PREFERRED) -> ErrorCode:
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
            timeout_ms=10_000,
        )
        answer = self.ask_controller(request, lambda answer: [answer.error_code])
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return ErrorCode(answer.replica_election_results[0].partition_result[0].error_code)

    def lead_with(self, topic: str, leader: int, index: int = 0) -> None:
        """Make this replica the leader, as the preferred replica."""
        found = self.partition(topic, index)
        if found.leader_id == leader:
            return
        replicas = [
            leader,
            *(replica_node for replica_node in found.replica_nodes if replica_node != leader),
        ]
        assert self.reassign(topic, replicas, index) is ErrorCode.NONE
        eventually(lambda: self.partition(topic, index).replica_nodes == replicas)
        assert self.elect(topic, index) in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
        eventually(lambda: self.leader_now(topic, index) == leader)

    def resign(self) -> tuple[int, int]:
        """Make the controller resign; return the old and the new controller."""
        before = self.metadata(self.able()[0]).controller_id
        answer = self.ask(before, ResignControllerRequest(), version=0)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
        return before, answer.controller_id

    # -- records ---------------------------------------------------------------------------

    def write(self, topic: str, *values: bytes, index: int = 0, acks: int = -1) -> int:
        """Write one batch to the leader; return its first offset."""
        with Raw(self, self.leader_now(topic, index)) as raw:
            answer = write(raw, topic, *values, index=index, acks=acks)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return answer.base_offset

    # -- healing ---------------------------------------------------------------------------

    def heal(self, *, limit_s: float = 60.0) -> None:
        """Resume and start all brokers, and wait until all replicas are in sync and all agree."""
        for broker_id, broker in self._brokers.items():
            if broker.process.is_paused:
                self.resume(broker_id)
            if not broker.process.is_running():
                self.restart(broker_id)
        began = time.monotonic()
        while problem := self.unsettled():
            assert time.monotonic() < began + limit_s, f"not healed in {limit_s} s: {problem}"
            time.sleep(0.05)

    def unsettled(self) -> str:
        """Return why the cluster is not at rest, or an empty text."""
        views = {}
        for broker_id in self.brokers:
            try:
                answer = self.metadata(broker_id)
            except (ConnectionFailed, KafkaError) as error:
                return f"broker {broker_id}: {error}"
            if sorted(broker.node_id for broker in answer.brokers) != self.brokers:
                return f"broker {broker_id} knows {[broker.node_id for broker in answer.brokers]}"
            for topic in answer.topics:
                for partition in topic.partitions:
                    if partition.leader_id < 0 or set(partition.isr_nodes) != set(
                        partition.replica_nodes
                    ):
                        return f"broker {broker_id}: {topic.name} {partition}"
            views[broker_id] = (
                answer.controller_id,
                sorted(
                    (
                        topic.name,
                        partition.partition_index,
                        partition.leader_id,
                        partition.leader_epoch,
                    )
                    for topic in answer.topics
                    for partition in topic.partitions
                ),
            )
        first = views[self.brokers[0]]
        different = [broker_id for broker_id, found in views.items() if found != first]
        return f"brokers {different} differ from broker {self.brokers[0]}" if different else ""

    def check_brokers_failed_at_nothing(self) -> None:
        """Check that no broker logged a traceback: it is a bug even if all clients recovered."""
        for broker_id in self.brokers:
            said = self.log(broker_id)
            at = said.find("Traceback")
            assert at < 0, f"broker {broker_id} logged:\n{said[max(0, at - 500) : at + 4000]}"

    # -- the disks -------------------------------------------------------------------------

    def folder(self, broker_id: int, topic: str, index: int = 0) -> Path:
        return self.data(broker_id) / f"{topic}-{index}"

    def log_bytes(self, broker_id: int, topic: str, index: int = 0) -> bytes:
        """Return a replica's batches as they are on disk, from all segments."""
        return segments_in(self.folder(broker_id, topic, index))

    def logged(self, broker_id: int, topic: str, index: int = 0) -> list[bytes | None]:
        """Return the values in a replica's log, committed or not."""
        found = []
        for segment in sorted(self.folder(broker_id, topic, index).glob("*.log")):
            for item in dump(segment):
                assert isinstance(item, DumpedBatch), item
                found += [record.value for record in item.records()]
        return found

    def check_equal_logs(self, topic: str, index: int = 0) -> None:
        """Check that all replicas have the same bytes, and that all batches are valid."""
        replicas = sorted(self.partition(topic, index).replica_nodes)
        eventually(
            lambda: len({self.log_bytes(replica, topic, index) for replica in replicas}) == 1
        )
        for segment in self.folder(replicas[0], topic, index).glob("*.log"):
            for item in dump(segment):
                assert not isinstance(item, Damage), item
                assert item.crc_ok, item
                assert not item.problems, item

    def check_equal_answers(self, topic: str, index: int = 0) -> None:
        """Check that all replicas serve the same bytes, from log start to high watermark."""
        replicas = sorted(self.partition(topic, index).replica_nodes)
        eventually(lambda: len({self.served(replica, topic, index) for replica in replicas}) == 1)

    def served(self, broker_id: int, topic: str, index: int = 0) -> bytes:
        """Return the values that a consumer gets from this replica."""
        found, offset = b"", 0
        with Raw(self, broker_id) as raw:
            while True:
                part = fetch(raw, topic, offset, index=index, rack_id="any")
                assert part.error_code == 0, ErrorCode(part.error_code)
                data = bytes(part.records or b"")
                for _, header in batch.batches(data):
                    offset = header.last_offset + 1
                found += data
                if not data:
                    return found


# -- single requests ---------------------------------------------------------------------------


def write(
    raw: Raw, topic: str, *values: bytes, index: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> Any:
    """Produce one batch; return the partition's response."""
    return produced(
        raw.ask(write_request(topic, *values, index=index, acks=acks, timeout_ms=timeout_ms), 9)
    )


def write_request(
    topic: str, *values: bytes, index: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> Any:
    now_ms = time.time_ns() // 1_000_000
    rows = [batch.Record(at, now_ms, None, value, ()) for at, value in enumerate(values)]
    return produce_request(
        topic, batch.build(rows), partition=index, acks=acks, timeout_ms=timeout_ms
    )


def fetch(
    raw: Raw, topic: str, offset: int, *, index: int = 0, version: int = 12, **given: Any
) -> Any:
    """Fetch one partition from an offset on; return the partition's response."""
    wanted = FetchPartition(
        partition=index,
        fetch_offset=offset,
        partition_max_bytes=2**20,
        current_leader_epoch=given.pop("current_leader_epoch", -1),
        last_fetched_epoch=given.pop("last_fetched_epoch", -1),
    )
    options = {"max_wait_ms": 0, "min_bytes": 1, **given}
    request = FetchRequest(topics=[FetchTopic(topic=topic, partitions=[wanted])], **options)
    answer = raw.ask(request, version)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return answer.responses[0].partitions[0]


def values_of(records: Any) -> list[bytes | None]:
    data = bytes(records or b"")
    return [
        record.value
        for at, header in batch.batches(data)
        for record in batch.records(data[at : at + header.size])
    ]


def list_offset(
    raw: Raw,
    topic: str,
    timestamp: int = LATEST,
    *,
    index: int = 0,
    current_leader_epoch: int = -1,
) -> Any:
    wanted = ListOffsetsPartition(
        partition_index=index, current_leader_epoch=current_leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
    )
    return raw.ask(request, 5).topics[0].partitions[0]


def segments_in(folder: Path) -> bytes:
    """Return the bytes of a log's segments, one after the other."""
    while True:
        try:
            return b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))
        except FileNotFoundError:
            # The broker cleaned or deleted it between the listing and the read.
            assert folder.exists(), folder
