"""No request keeps the event loop for 100 ms, and no request's memory stays.

Every API and version that the broker serves gets the largest legal requests, requests that repeat a
name, and 256 KiB of pipelined requests (`tests/support/legal_requests.py`).  The turns are measured
by the CPU clock of the broker's thread, so a busy machine does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.network.dispatch import served_versions
from hightide.client.broker_connection import Connection
from hightide.wire.batch import Record, build
from hightide.wire.compression import Codec
from hightide.wire.frame import encode_request
from hightide.wire.messages import APIS, REQUESTS
from hightide.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.metadata import MetadataRequest
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.types import api_of
from tests.conformance.raw import produce_request, resident_bytes
from tests.support import legal_requests as legal
from tests.support.broker_thread import NAME, BrokerThread
from tests.support.turns import Turns, measured_iterations, measured_turns

TURN_S = 0.1
KEPT_BYTES = 32 * 1024 * 1024
TOPICS, GROUPS, TRANSACTIONS = 200, 200, 100
DEADLINE_S = 60


@pytest.fixture(scope="module")
def measured() -> Iterator[BrokerThread]:
    thread = BrokerThread(
        offsets_topic_num_partitions=4,
        transaction_state_log_num_partitions=4,
        group_initial_rebalance_delay_ms=0,
        auto_create_topics_enable=False,
        metrics_listeners="HTTP://127.0.0.1:0",
    )
    thread.run(populate(thread))
    yield thread
    thread.stop()


async def populate(thread: BrokerThread) -> None:
    """Create what large requests name."""
    broker = thread.broker
    for number in range(TOPICS):
        await create(broker, legal.topic(number), 2)
    client = await Connection.open(*thread.address)
    for kind, key in ((0, legal.group(0)), (1, legal.transaction(0))):
        answer: Any = None
        while answer is None or answer.coordinators[0].error_code:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer = await client.send(request)
            await asyncio.sleep(0.05)
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name=legal.topic(0), partitions=[partition])
    for number in range(GROUPS):
        await retried(
            client,
            OffsetCommitRequest(group_id=legal.group(number), member_id="", topics=[topic]),
            9,
        )
    for number in range(TRANSACTIONS):
        new = InitProducerIdRequest(
            transactional_id=legal.transaction(number), transaction_timeout_ms=60_000
        )
        await retried(client, new, 4)
    client.close()


async def create(
    broker: Broker, name: str, partitions: int, config: Mapping[str, str] = MappingProxyType({})
) -> None:
    replicas = {index: [broker.broker_id] for index in range(partitions)}
    await broker.controller.create_topic(name, replicas, dict(config), timeout_ms=5000)


async def retried(client: Connection, request: Any, version: int) -> None:
    while True:
        response: Any = await client.send(request, version=version)
        codes = [getattr(response, "error_code", 0)]
        for found in getattr(response, "topics", ()):
            codes += [partition.error_code for partition in found.partitions]
        if not any(codes):
            return
        await asyncio.sleep(0.05)


class Client:
    """One connection, which the broker may close."""

    def __init__(self, broker: BrokerThread | tuple[str, int]) -> None:
        self._broker = broker
        address = broker if isinstance(broker, tuple) else broker.address
        self._socket = socket.create_connection(address, DEADLINE_S)

    def exchange(self, data: bytes, count: int) -> int:
        """Send requests, and return how many of them were answered."""
        answered = 0
        with contextlib.closing(self._socket), contextlib.suppress(ConnectionError):
            self._socket.sendall(data)
            while answered < count and (head := self._exactly(4)):
                self._exactly(struct.unpack(">i", head)[0])
                answered += 1
        if isinstance(self._broker, BrokerThread):
            # The turn that has sent the last response must end to be measured.
            self._broker.run(asyncio.sleep(0))
        return answered

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(min(count - len(found), 1 << 20))
            if not part:
                return b""
            found += part
        return bytes(found)


def encoded(request: Any, version: int) -> bytes:
    return encode_request(request, version, 1, "budget")


def assert_short(turns: Turns, what: str) -> None:
    assert turns.count
    assert turns.worst_s < TURN_S, f"{what}: {turns.worst_s * 1000:.0f} ms, {turns.worst}"


# DeleteTopics, DeleteGroups and OffsetDelete come last: the others need what they delete.
LAST = (47, 42, 20)
SERVED = sorted(served_versions(), key=lambda key: (key in LAST, key))
every_api = pytest.mark.parametrize("key", SERVED, ids=lambda key: APIS[key][0])
every_version = pytest.mark.parametrize(
    "is_newest", [True, pytest.param(False, marks=pytest.mark.extended)], ids=["newest", "older"]
)


def versions(key: int, is_newest: bool) -> range:
    """Return the newest version, or all others; ApiVersions lists older ones of Produce."""
    low, high = served_versions()[key]
    low = max(low, api_of(REQUESTS[key]).versions[0])
    return range(high, high + 1) if is_newest else range(low, high)


@every_api
@every_version
def test_no_legal_request_takes_a_long_turn(
    measured: BrokerThread, key: int, is_newest: bool
) -> None:
    for version in versions(key, is_newest):
        for kind in (legal.largest, legal.repeated):
            for number, request in enumerate(kind(REQUESTS[key], version)):
                data = encoded(request, version)
                with measured_turns(NAME) as turns:
                    assert Client(measured).exchange(data, 1) == 1
                assert_short(turns, f"{APIS[key][0]} {version}, {kind.__name__} {number}")


@every_api
@every_version
def test_pipelined_requests_take_no_long_turn(
    measured: BrokerThread, key: int, is_newest: bool
) -> None:
    for version in versions(key, is_newest):
        frame = encoded(legal.small(REQUESTS[key], version), version)
        data = legal.pipelined(frame)
        with measured_turns(NAME) as turns:
            count = len(data) // len(frame)
            assert Client(measured).exchange(data, count) == count
        assert_short(turns, f"{APIS[key][0]} {version}")


# -- many clients at once -----------------------------------------------------------------------

CROWD = 60


def crowded(name: str) -> bytes:
    """Return a request that takes milliseconds, and less than a turn or more than one."""
    topics = [legal.topic(number) for number in range(TOPICS)]
    match name:
        case "Metadata":
            return encoded(MetadataRequest(topics=None), 9)
        case "DescribeConfigs":
            resources = [
                DescribeConfigsResource(
                    resource_type=2, resource_name=topic, configuration_keys=None
                )
                for topic in topics
            ]
            return encoded(DescribeConfigsRequest(resources=resources), 4)
        case "Fetch":
            partitions = [
                FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=1)
                for at in range(2_000)
            ]
            topic = FetchTopic(topic=topics[0], partitions=partitions)
            return encoded(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic]), 11)
        case _:
            return encoded(legal.small(FetchRequest, 11), 11) * 2_000


@pytest.mark.parametrize("name", ["Metadata", "DescribeConfigs", "Fetch", "pipelined"])
def test_many_clients_at_once_share_the_loop_with_a_request_that_arrives(
    measured: BrokerThread, name: str
) -> None:
    """Each turn is short. But with one for each client, a request would wait for all of them."""
    data = crowded(name)
    clients = [Client(measured) for _ in range(CROWD)]
    count = 2_000 if name == "pipelined" else 1
    with ThreadPoolExecutor(CROWD) as pool, measured_iterations(measured.loop) as turns:
        assert set(pool.map(lambda client: client.exchange(data, count), clients)) == {count}
    assert_short(turns, f"{CROWD} x {name}")


# -- requests that inflate, compress or scan ---------------------------------------------------


def large_batch() -> bytes:
    """Return 300,000 tiny records, which zstd compresses to a few kilobytes."""
    records = (Record(at, 1_700_000_000_000 + at, b"k", b"v", ()) for at in range(300_000))
    return bytes(build(records, codec=Codec.ZSTD))


def test_a_search_by_time_and_large_batches_take_no_long_turn(measured: BrokerThread) -> None:
    batch = large_batch()
    settings: tuple[dict[str, str], ...] = (
        {},
        {"cleanup.policy": "compact"},
        {"compression.type": "gzip", "max.message.bytes": "4000000"},
    )
    for number, config in enumerate(settings):
        name = f"large-{number}"
        measured.run(create(measured.broker, name, 1, config))
        with measured_turns(NAME) as turns:
            assert Client(measured).exchange(encoded(produce_request(name, batch), 9), 1) == 1
        assert_short(turns, f"Produce to a topic with {config}")
        replica = measured.broker.replica_manager.get(name.encode(), 0)
        assert replica is not None
        assert replica.log.end_offset == 300_000
    wanted = ListOffsetsPartition(partition_index=0, timestamp=1_700_000_299_999)
    for count in (1, 10):
        topic = ListOffsetsTopic(name="large-0", partitions=[wanted] * count)
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        with measured_turns(NAME) as turns:
            assert Client(measured).exchange(encoded(request, 5), 1) == 1
        assert_short(turns, f"ListOffsets by time, {count} times")


def test_an_expression_that_is_slow_to_match_takes_no_long_turn(measured: BrokerThread) -> None:
    """It takes 6 ms for each of these names; both members and new topics resolve it."""
    for number in range(60):
        measured.run(create(measured.broker, "a" * 240 + str(number), 1))
    expression = "(?:a{0,30}){0,30}b|a*5."
    for member, name in (("one", ""), ("two", "a" * 240 + "5x")):
        if name:
            measured.run(create(measured.broker, name, 1))
        request = ConsumerGroupHeartbeatRequest(
            group_id=legal.group(0) + "-slow",
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex=expression,
            topic_partitions=[],
        )
        with measured_turns(NAME) as turns:
            assert Client(measured).exchange(encoded(request, 1), 1) == 1
        assert_short(turns, f"a subscription, member {member}")
    (group,) = [
        found
        for partition in measured.broker.groups
        for found in partition.coordinator.consumer_groups.groups.values()
        if found.id == legal.group(0) + "-slow"
    ]
    assert len(group.expressions[expression]) == 10 + 1


def test_too_many_names_close_the_connection_before_they_cost_a_turn(
    measured: BrokerThread,
) -> None:
    brokers = [
        DescribeConfigsResource(resource_type=4, resource_name=str(at), configuration_keys=None)
        for at in range(20_000)
    ]
    names = encoded(DescribeConfigsRequest(resources=brokers), 4)
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    many = FetchTopic(topic="topic-0", partitions=[partition] * 300_000)
    commit = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    commits = OffsetCommitRequestTopic(name="topic-0", partitions=[commit] * 99_000)
    group = OffsetCommitRequest(group_id=legal.group(0), member_id="", topics=[commits])
    requests = [names, encoded(group, 8)]
    for replica_id in (-1, 1):
        fetch = FetchRequest(
            replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=[many], rack_id=""
        )
        requests.append(encoded(fetch, 4))
    for data in requests:
        with measured_turns(NAME) as turns:
            assert Client(measured).exchange(data, 1) == 0
        assert_short(turns, f"a request of {len(data)} bytes")


# -- memory ------------------------------------------------------------------------------------


def test_memory_returns_after_the_largest_requests(broker: Any) -> None:
    address = (broker.host(1), broker.port(1))
    sizes = []
    for _ in range(3):
        for key in served_versions():
            (version,) = versions(key, True)
            for request in legal.largest(REQUESTS[key], version):
                Client(address).exchange(encoded(request, version), 1)
        sizes.append(resident_bytes(broker))
    # The first round loads codecs and fills caches.
    assert sizes[-1] - sizes[0] < KEPT_BYTES, sizes
