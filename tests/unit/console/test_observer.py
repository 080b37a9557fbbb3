"""The observer against brokers that answer, keep silent, are of another make, or are away."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

from hightide.client.xray import looks
from hightide.console import observer as observer_module
from hightide.console.observer import Observer
from hightide.wire import frame
from hightide.wire.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from hightide.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from hightide.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from hightide.wire.messages.replicas import (
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasResponse,
    FollowerProgress,
)
from hightide.wire.messages.replication import PublishedPartition
from tests.unit.client.fake_broker import ID, FakeBroker, cluster

OFFSETS, CONFIGS, LOG_DIRS, REPLICAS = 2, 32, 35, 30002
LIMIT_S = 30
KEY = "orders", 0


async def until(what, holds):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if found := holds():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


def configs(_):
    entry = DescribeConfigsResourceResult(
        name="min.insync.replicas", value="2", read_only=False, is_sensitive=False, synonyms=[]
    )
    result = DescribeConfigsResult(resource_type=2, resource_name="orders", configs=[entry])
    return DescribeConfigsResponse(results=[result])


class Hightide(FakeBroker):
    """Leads orders/0 if it is broker 1, else follows."""

    def __init__(self, broker_id):
        super().__init__(broker_id)
        self.end_offset = 7
        self.is_silent = False
        self.answers[REPLICAS] = self.replicas
        self.answers[CONFIGS] = configs

    def replicas(self, request):
        if self.is_silent:
            return None
        found = DescribedReplica(
            partition_index=0,
            role=1 if self.id == 1 else 2,
            leader_epoch=4,
            log_start_offset=0,
            high_watermark=5,
            end_offset=self.end_offset,
            size_bytes=10 * self.end_offset,
            last_stable_offset=3,
        )
        if self.id == 1:
            found.maximal_isr = [1, 2]
            found.state = PublishedPartition(
                partition_index=0,
                replicas=[1, 2],
                leader=1,
                leader_epoch=4,
                isr=[1, 2],
                partition_epoch=9,
            )
            found.progress = [
                FollowerProgress(
                    broker_id=1, standing="LEADER", end_offset=7, lag_records=0, lag_ms=0
                ),
                FollowerProgress(
                    broker_id=2, standing="IN_SYNC", end_offset=5, lag_records=2, lag_ms=4000
                ),
            ]
        topic = DescribedTopic(name="orders", topic_id=ID, partitions=[found])
        return DescribeReplicasResponse(topics=[topic], software_version="9.9")


@asynccontextmanager
async def observed(*brokers):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster(*brokers))
        address = f"127.0.0.1:{brokers[0].port}"
        yield await stack.enter_async_context(Observer(address, title="a test"))


def test_an_overview_and_a_topic_frame_have_what_the_brokers_report():
    async def test():
        async with observed(Hightide(1), Hightide(2)) as observer:
            overview = await until("a look", lambda: observer.frame and observer.frame.overview)
            assert [broker["id"] for broker in overview["brokers"]] == [1, 2]
            assert [broker["version"] for broker in overview["brokers"]] == ["9.9", "9.9"]
            assert [broker["leads"] for broker in overview["brokers"]] == [1, 0]
            (row,) = overview["partitions"]
            assert (row["level"], row["isr"], row["high_watermark"]) == ("ok", (1, 2), 5)
            (found,) = observer.topic_frame("orders")["partitions"]
            assert (found["leader"], found["leader_epoch"], found["min_isr"]) == (1, 4, 2)
            assert (found["high_watermark"], found["last_stable_offset"]) == (5, 3)
            assert (found["held_by"], found["accepts_all"]) == ((2,), True)
            assert "waits for replica 2" in found["held_why"]
            leader, follower = found["replicas"]
            assert (leader["role"], leader["end_offset"], leader["lag"]) == ("leader", 7, 0)
            assert (follower["role"], follower["lag"], follower["lag_ms"]) == ("follower", 2, 4000)
            assert len(observer.history.frames(KEY)) >= 1

    asyncio.run(test())


def test_a_watched_topic_is_sent_when_it_moves():
    async def test():
        one, two = Hightide(1), Hightide(2)
        async with observed(one, two) as observer, asyncio.timeout(LIMIT_S):
            ends = []
            async for message in observer.subscribe("orders"):
                if message["type"] == "topic":
                    ends.append(message["partitions"][0]["replicas"][1]["end_offset"])
                    if ends[-1] == 9:
                        return
                    two.end_offset = 9

    asyncio.run(test())


def test_a_broker_that_keeps_silent_does_not_stop_the_looks(monkeypatch):
    monkeypatch.setattr(looks, "SILENT_S", 0.2)
    # A fake broker forgets what it was asked; a paused one would answer.
    monkeypatch.setattr(looks, "REPLY_S", 1.0)

    async def test():
        one, two = Hightide(1), Hightide(2)
        async with observed(one, two) as observer:
            await until("a look", lambda: observer.frame and observer.overview["partitions"])
            two.is_silent = True
            with observer.watch("orders"):
                await until("silence", lambda: observer.overview["brokers"][1]["paused"])
                sentence = observer.overview["sentence"]
                assert "Broker 2" in sentence["text"]
                assert "does not answer" in sentence["text"]
                assert sentence["next"] == f"hightide doctor --bootstrap 127.0.0.1:{one.port}"
                one.end_offset = 8
                await until("a new look", lambda: observer.partition_frame(KEY).end_offset == 8)
                follower = observer.partition_frame(KEY).replicas[1]
                # What the leader knows of it.
                assert (follower.silent, follower.end_offset) == (True, 5)
                two.is_silent = False
                await until(
                    "an answer", lambda: not observer.partition_frame(KEY).replicas[1].silent
                )

    asyncio.run(test())


def test_a_cluster_that_is_away_is_said_and_looked_for_again():
    async def test():
        one = Hightide(1)
        async with cluster(one):
            address = f"127.0.0.1:{one.port}"
        async with Observer(address) as observer:
            sentence = await until(
                "a sentence", lambda: observer.frame and observer.overview["sentence"]
            )
            assert sentence["level"] == "off"
            assert address in sentence["text"]
            assert sentence["next"] == f"hightide doctor --bootstrap {address}"
            server = await asyncio.start_server(one.serve, "127.0.0.1", one.port)
            async with server:
                await until("a look", lambda: observer.overview["sentence"]["level"] != "off")
                assert len(observer.history.away) == 1

    asyncio.run(test())


# -- brokers of another make -------------------------------------------------------------------


def foreign(broker_id):
    broker = FakeBroker(broker_id)
    broker.answers[CONFIGS] = configs
    broker.answers[OFFSETS] = offsets
    broker.answers[LOG_DIRS] = lambda _: log_dirs(lag=0 if broker_id == 1 else 3)
    return broker


def offsets(request):
    (topic,) = request.topics
    (partition,) = topic.partitions
    offset = 2 if partition.timestamp == -2 else 8 if request.isolation_level else 10
    found = ListOffsetsPartitionResponse(partition_index=0, offset=offset, timestamp=-1)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])])


def log_dirs(lag):
    partition = DescribeLogDirsPartition(
        partition_index=0, partition_size=500, offset_lag=lag, is_future_key=False
    )
    topic = DescribeLogDirsTopic(name="orders", partitions=[partition])
    found = DescribeLogDirsResult(
        log_dir="/data", topics=[topic], total_bytes=1000, usable_bytes=400
    )
    return DescribeLogDirsResponse(results=[found])


def test_of_other_brokers_the_ends_are_approximate(monkeypatch):
    monkeypatch.setattr(observer_module, "SLOW_EVERY_S", 0.1)

    async def test():
        async with observed(foreign(1), foreign(2)) as observer:
            await until("foreign", lambda: observer.frame and observer.overview["is_foreign"])
            await until("offsets", lambda: observer.partition_frame(KEY).high_watermark)
            (row,) = observer.overview["partitions"]
            assert (row["leader"], row["high_watermark"]) == (1, 10)
            (found,) = observer.topic_frame("orders")["partitions"]
            assert (found["high_watermark"], found["last_stable_offset"]) == (10, 8)
            leader, follower = found["replicas"]
            assert leader["role"] == "leader"
            assert (leader["start_offset"], leader["end_offset"]) == (2, 10)
            assert (follower["end_offset"], follower["lag"]) == (7, 3)
            assert leader["approximate"]
            assert follower["approximate"]
            await until("disks", lambda: observer.overview["brokers"][0]["free_bytes"])
            assert [row["disk_bytes"] for row in observer.overview["brokers"]] == [500, 500]

    asyncio.run(test())


def test_who_may_not_read_configs_sees_the_rest():
    async def test():
        one = Hightide(1)
        del one.answers[CONFIGS]
        async with observed(one, Hightide(2)) as observer:
            await until("a look", lambda: observer.frame and observer.overview["partitions"])

    asyncio.run(test())


def test_a_request_with_the_same_answer_is_decoded_once(monkeypatch):
    decoded = []
    real = frame.decode_response

    def decode(cls, *rest):
        decoded.append(cls.__name__)
        return real(cls, *rest)

    monkeypatch.setattr(frame, "decode_response", decode)

    async def test():
        async with observed(Hightide(1), Hightide(2)) as observer:
            await until("a look", lambda: observer.frame and observer.overview["partitions"])
            with observer.watch("orders"):
                one = observer._looks.reporters[1]
                await until("looks", lambda: one._answers._answered.get((1, "orders", 0)))
                before = decoded.count("DescribeReplicasResponse")
                await asyncio.sleep(0.3)
                assert decoded.count("DescribeReplicasResponse") <= before + 1

    asyncio.run(test())
