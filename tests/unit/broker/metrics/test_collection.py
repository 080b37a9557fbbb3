"""A collection from a broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from hightide.broker.metrics import collection
from hightide.broker.metrics.collection import Collector, add_from_system, error_name
from hightide.broker.metrics.counters import ApiCounts, TopicTraffic, Traffic, count_errors
from hightide.broker.metrics.group_lag import GroupLags, timestamp_at
from hightide.broker.metrics.loop_watch import LoopWatch
from hightide.broker.metrics.samples import Samples
from hightide.broker.network.turn import Turn
from hightide.wire import batch
from hightide.wire.compression import Codec
from hightide.wire.messages.topics import CreatableTopicResult, CreateTopicsResponse
from tests.support.broker_thread import BrokerThread
from tests.support.scrape import Scrape, get, scrape

PARTITIONS = 400


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread(metrics_listeners="HTTP://127.0.0.1:0")
    assignment = {index: [thread.broker.broker_id] for index in range(PARTITIONS)}
    thread.run(thread.broker.controller.create_topic("wide", assignment, {}, timeout_ms=30_000))
    yield thread
    thread.stop()


def url(broker: BrokerThread, path: str = "/metrics") -> str:
    metrics = broker.broker._metrics
    assert metrics is not None
    host, port = metrics.addresses[0]
    return f"http://{host}:{port}{path}"


class CountingTurn(Turn):
    """A turn that counts how often others could have one."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await asyncio.sleep(0)


def test_a_collection_of_many_partitions_is_many_short_turns(broker: BrokerThread) -> None:
    async def collect() -> tuple[CountingTurn, Samples]:
        watch, turn = LoopWatch(lambda: 0.0, lambda: 0.0), CountingTurn()
        inside = broker.broker
        collector = Collector(inside, inside._server, watch, GroupLags(inside))
        metrics = inside._metrics
        assert metrics is not None
        samples = await collector.collect(metrics._parts, turn, is_stopping=False)
        return turn, samples

    turn, samples = broker.run(collect())
    assert turn.pauses >= PARTITIONS / collection._STEPS
    data, _ = samples.text("", False)
    found = Scrape(data.decode())
    assert len(found.all("kafka_log_log_size", topic="wide")) == PARTITIONS
    assert found.value("kafka_topic_partitions", topic="wide") == PARTITIONS


def test_a_topic_that_is_deleted_during_a_collection_does_no_harm(broker: BrokerThread) -> None:
    inside = broker.broker

    class Deleting(CountingTurn):
        async def pause(self) -> None:
            self.pauses += 1
            if self.pauses == 5:
                await inside.controller.delete_topic("passing", timeout_ms=30_000)
            await asyncio.sleep(0)

    async def collect() -> Samples:
        assignment = {index: [inside.broker_id] for index in range(50)}
        await inside.controller.create_topic("passing", assignment, {}, timeout_ms=30_000)
        collector = Collector(
            inside, inside._server, LoopWatch(lambda: 0.0, lambda: 0.0), GroupLags(inside)
        )
        metrics = inside._metrics
        assert metrics is not None
        return await collector.collect(metrics._parts, Deleting(), is_stopping=False)

    broker.run(collect()).text("", False)
    assert scrape(url(broker)).value("kafka_topic_partitions", topic="passing") is None


def test_a_disk_in_memory_has_no_size(broker: BrokerThread) -> None:
    samples = Samples()
    add_from_system(samples, broker.broker.log_manager.disks)
    found = Scrape(samples.text("", False)[0].decode())
    assert found.all("hightide_log_directory_total_bytes") == {}
    assert (found.value("process_open_fds") or 0) > 0


def test_liveness_fails_when_the_broker_must_stop(broker: BrokerThread) -> None:
    assert get(url(broker, "/livez")).status == 200
    assert get(url(broker, "/readyz")).status == 200
    failed, broker.broker.failed = broker.broker.failed, broker.loop.create_future()
    broker.broker.failed.set_exception(OSError("the disk is gone"))
    page = get(url(broker, "/livez"))
    broker.broker.failed = failed
    assert (page.status, page.text) == (503, "the broker must stop: the disk is gone\n")


def test_readiness_fails_while_the_broker_stops_and_leaves_out_what_is_excluded(
    broker: BrokerThread,
) -> None:
    metrics = broker.broker._metrics
    assert metrics is not None
    metrics.is_stopping = True
    try:
        page = get(url(broker, "/readyz"))
        assert (page.status, page.text) == (503, "[-] stop: the broker stops\nnot ready\n")
        assert get(url(broker, "/readyz?exclude=stop")).status == 200
        assert get(url(broker, "/readyz?exclude=replicas,stop&verbose")).status == 200
        assert get(url(broker, "/readyz?exclude=replicas")).status == 503
        assert scrape(url(broker)).value("kafka_server_kafkaserver_brokerstate") == 6
    finally:
        metrics.is_stopping = False


# -- counters ------------------------------------------------------------------------------------


def test_the_totals_keep_what_a_topic_has_counted_when_it_leaves() -> None:
    traffic = Traffic()
    first, second = traffic.replica_added("t"), traffic.replica_added("t")
    assert first is second
    first.messages_in = 7
    traffic.replica_removed("t")
    assert "t" in traffic.topics
    traffic.replica_removed("t")
    assert "t" not in traffic.topics
    traffic.replica_added("t").messages_in = 1
    assert traffic.total().messages_in == 8


def test_all_counters_of_a_topic_are_added() -> None:
    one, other = TopicTraffic(), TopicTraffic()
    for at, name in enumerate(TopicTraffic.__slots__):
        setattr(one, name, at)
        setattr(other, name, 100)
    one.add(other)
    assert [getattr(one, name) for name in TopicTraffic.__slots__] == [
        100 + at for at in range(len(TopicTraffic.__slots__))
    ]


def test_errors_of_a_response_and_of_its_parts_are_counted() -> None:
    counts = ApiCounts()
    topics = [CreatableTopicResult(name="t", error_code=code) for code in (36, 0, 36)]
    count_errors(counts, CreateTopicsResponse(topics=topics))
    assert counts.errors == {36: 2}
    assert error_name(36) == "TOPIC_ALREADY_EXISTS"
    assert error_name(9999) == "9999"


# -- group lag -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_timestamp_of_a_record_is_found_in_its_batch(codec: Codec) -> None:
    records = [batch.Record(at, 1000 + 10 * at, None, b"v", ()) for at in range(5)]
    data = bytes(batch.build(records, codec=codec))
    assert timestamp_at(data, 0) == 1000
    assert timestamp_at(data, 3) == 1030
    # Only the batch's head is there: it says how old the record is at most.
    assert timestamp_at(data[: batch.HEADER_BYTES], 3) == 1040
