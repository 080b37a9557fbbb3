"""Helpers for tests of brokers with ZooKeeper: brokers, a view of the znodes, clients.

Sessions are short, so that a test need not wait long for one to expire, and long enough for two
busy cores. Every wait has a deadline, and a failed wait reports what it saw.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from hightide.client.broker_connection import Connection
from hightide.process import BrokerProcess
from hightide.testing import Cluster
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.support.eventually import eventually

T = TypeVar("T")

HOST = "127.0.0.1"
SESSION_MS = 2000
SESSION_S = SESSION_MS / 1000
LIMIT_S = 30.0
TOPIC, BROKER = 2, 4


class Tree:
    """The znodes as another client sees them, after a sync."""

    def __init__(self, hosts: str) -> None:
        self.client = KazooClient(
            hosts,
            timeout=10,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5},
            command_retry={"max_tries": 20, "delay": 0.05, "max_delay": 0.5},
        )
        self.client.start(timeout=LIMIT_S)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def data(self, path: str) -> bytes | None:
        """Return the data; None if there is no such znode."""
        try:
            self.client.retry(self.client.sync, "/")
            return self.client.retry(self.client.get, path)[0]
        except NoNodeError:
            return None

    def many(self, paths: list[str]) -> list[tuple[bytes, Any]]:
        """Return data and Stat of all paths, pipelined; raise NoNodeError if one is missing."""
        self.client.retry(self.client.sync, "/")
        return [pending.get(LIMIT_S) for pending in [self.client.get_async(path) for path in paths]]

    def json(self, path: str) -> Any:
        data = self.data(path)
        return None if data is None else json.loads(data)

    def stat(self, path: str) -> Any:
        self.client.retry(self.client.sync, "/")
        return self.client.retry(self.client.exists, path)

    def children(self, path: str) -> list[str]:
        try:
            self.client.retry(self.client.sync, "/")
            return sorted(self.client.retry(self.client.get_children, path))
        except NoNodeError:
            return []

    def everything(self, path: str = "/") -> dict[str, bytes]:
        """Return all persistent znodes, except those of the server."""
        found = {}
        for name in self.children(path):
            below = f"{path.rstrip('/')}/{name}"
            if below == "/zookeeper":
                continue
            data, stat = self.client.get(below)
            if stat.ephemeralOwner == 0:
                found[below] = data
            found |= self.everything(below)
        return found

    def notify(self, entity_path: str) -> None:
        """Announce a change of settings, as Kafka's tools do."""
        notification = json.dumps({"version": 2, "entity_path": entity_path}).encode()
        self.client.create("/config/changes/config_change_", notification, sequence=True)


class Brokers(Cluster):
    """Broker processes with a ZooKeeper that the test runs, and a view of its znodes."""

    def __init__(
        self,
        hosts: str,
        brokers: int = 1,
        *,
        session_ms: int = SESSION_MS,
        data: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            brokers,
            zookeeper_connect=hosts,
            ends_sessions=False,
            data=data,
            settings={
                "zookeeper.session.timeout.ms": session_ms,
                "default.replication.factor": 1,
                **(settings or {}),
            },
        )
        self.hosts = hosts
        self.kind = ""

    def start(self) -> Self:
        self.tree = Tree(self.hosts)
        try:
            return super().start()
        except BaseException:
            self.tree.close()
            raise

    def stop(self) -> None:
        super().stop()
        self.tree.close()

    def address(self, broker_id: int) -> str:
        return f"{HOST}:{self.port(broker_id)}"

    def launch(self, broker_id: int) -> None:
        """Start a broker again without waiting for it."""
        self._brokers[broker_id].process.launch()

    def wait_until_it_listens(self, broker_id: int) -> None:
        self._brokers[broker_id].process.wait_until_it_listens(LIMIT_S)

    def wait_until_it_ends(self, broker_id: int) -> int:
        """Wait for a broker that stops by itself, and return its exit code."""
        process = self._brokers[broker_id].process
        eventually(lambda: not process.is_running())
        return process.wait()

    # -- identities -----------------------------------------------------------------------

    def registration(self, broker_id: int = 1) -> Any:
        return self.tree.json(f"/brokers/ids/{broker_id}")

    def epoch(self, broker_id: int = 1) -> int:
        """Return the broker epoch, the czxid of its znode; 0 while there is none."""
        stat = self.tree.stat(f"/brokers/ids/{broker_id}")
        return 0 if stat is None else stat.czxid

    def epochs_logged(self, broker_id: int = 1) -> list[int]:
        pattern = rf"registered as broker {broker_id}, in epoch (\d+)"
        return [int(found) for found in re.findall(pattern, self.log(broker_id))]

    def is_connected(self, broker_id: int) -> bool:
        """Return whether the broker's log shows a connected session last."""
        states = re.findall(r"ZooKeeper session (\w+) \(", self.log(broker_id))
        return states[-1:] == ["connected"]

    def elected(self) -> int:
        """Return the controller according to ZooKeeper; 0 while there is none."""
        found = self.tree.json("/controller")
        return 0 if found is None else found["brokerid"]

    def controller_epoch(self) -> int:
        return int(self.tree.data("/controller_epoch") or b"0")

    def others(self, broker_id: int) -> list[int]:
        return [other for other in self.brokers if other != broker_id]

    # -- requests to one broker --------------------------------------------------------------

    def ask(self, broker_id: int, request: Any, timeout_s: float = LIMIT_S) -> Any:
        return ask(self.address(broker_id), request, timeout_s)

    def metadata(self, broker_id: int, *topics: str) -> Any:
        """Return one broker's metadata of these topics or of all, without creating any."""
        return metadata(self.address(broker_id), *topics)

    def partitions(self, broker_id: int, topic: str) -> dict[int, tuple[int, ErrorCode]]:
        """Return leader and error by partition from one broker's metadata."""
        (found,) = self.metadata(broker_id, topic).topics
        return {
            partition.partition_index: (partition.leader_id, ErrorCode(partition.error_code))
            for partition in found.partitions
        }

    def setting(self, broker_id: int, topic: str, name: str) -> str | None:
        """Return a topic's setting as one broker describes it."""
        return setting(self.address(broker_id), TOPIC, topic, name)

    def configure(self, broker_id: int, kind: int, name: str, **values: str) -> ErrorCode:
        """Change settings through one broker; underscores stand for dots."""
        return configure(self.address(broker_id), kind, name, **values)

    def create(self, broker_id: int, topic: str, partitions: int = 1) -> ErrorCode:
        return create(self.address(broker_id), topic, partitions)


# -- requests to one broker, without routing ------------------------------------------------------


def ask(address: str, request: Any, timeout_s: float = LIMIT_S) -> Any:
    host, _, port = address.rpartition(":")
    timeout_ms = int(timeout_s * 1000)

    async def exchange() -> Any:
        connection = await Connection.open(host, int(port), timeout_ms=timeout_ms)
        try:
            return await connection.send(request, timeout_ms=timeout_ms)
        finally:
            connection.close()

    return asyncio.run(exchange())


def metadata(address: str, *topics: str) -> Any:
    named = [MetadataRequestTopic(name=topic) for topic in topics] if topics else None
    return ask(address, MetadataRequest(topics=named, allow_auto_topic_creation=False))


def setting(address: str, kind: int, resource: str, name: str) -> str | None:
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=resource, configuration_keys=[name]
    )
    (result,) = ask(address, DescribeConfigsRequest(resources=[wanted])).results
    return result.configs[0].value if result.configs else None


def configure(address: str, kind: int, resource: str, **values: str) -> ErrorCode:
    changes = [
        IncrementalAlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in values.items()
    ]
    wanted = IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=resource, configs=changes
    )
    request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)
    return ErrorCode(ask(address, request).responses[0].error_code)


def create_request(topic: str, partitions: int = 1) -> CreateTopicsRequest:
    wanted = CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)


def create(address: str, topic: str, partitions: int = 1) -> ErrorCode:
    """Ask one broker to create a topic; it need not be the controller."""
    answer = ask(address, create_request(topic, partitions))
    return ErrorCode(answer.topics[0].error_code)


# -- records -----------------------------------------------------------------------------------


def write(bootstrap: str, topic: str, partition: int, value: bytes) -> None:
    """Produce one record with librdkafka."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 30_000})
    producer.produce(
        topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error)
    )
    producer.flush(40)
    assert errors == [None]


def read(bootstrap: str, topic: str, partition: int) -> bytes:
    """Read the first record of a partition with librdkafka."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None
    value = message.value()
    assert value is not None
    return value


# -- a broker outside a cluster ---------------------------------------------------------------


@contextmanager
def lone_broker(
    hosts: str, folder: Path, settings: Mapping[str, object], *arguments: str
) -> Iterator[BrokerProcess]:
    """Launch a broker with these settings, without waiting until it serves."""
    given = {"zookeeper.connect": hosts, "log.dirs": folder / "data", **settings}
    words = [word for name, value in given.items() for word in ("--override", f"{name}={value}")]
    process = BrokerProcess([*arguments, *words], folder / "broker.log")
    process.launch()
    try:
        yield process
    finally:
        if process.is_running():
            process.stop()
        elif process.has_pipes:
            process.wait()


def end_of(process: BrokerProcess) -> tuple[int, str]:
    """Wait for a broker that stops by itself; return its exit code and its log."""
    eventually(lambda: not process.is_running())
    return process.wait(), process.log.read_text()
