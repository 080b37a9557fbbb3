"""/metrics, /livez and /readyz of real brokers: as Prometheus, a probe and bad clients see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from hightide.broker.metrics import http_server
from hightide.broker.metrics.declarations import METRICS, Kind
from hightide.client.admin import Admin
from hightide.client.model.cluster import ResourceType
from hightide.testing import Cluster
from tests.support.eventually import eventually
from tests.support.scrape import OPEN_METRICS, Page, Scrape, get, scrape

TRAFFIC = "kafka_server_brokertopicmetrics"
REQUESTS = "kafka_network_requestmetrics_requests_total"
HOSTILE = 'a"b\\c\nd{e="f"} 1\n# TYPE g counter\n'


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    settings = {"log.retention.ms": -1, "offsets.topic.num.partitions": 3}
    with Cluster(metrics=True, settings=settings) as cluster:
        yield cluster
        assert "Traceback" not in cluster.log(), cluster.log()


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    settings = {
        "zookeeper.session.timeout.ms": 2000,
        "replica.lag.time.max.ms": 1500,
        "auto.leader.rebalance.enable": False,
        "log.retention.ms": -1,
    }
    with Cluster(2, metrics=True, settings=settings) as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, values: list[bytes], timestamp: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0


def reader(cluster: Cluster, group: str = "readers") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def consume(cluster: Cluster, topic: str, count: int) -> None:
    with contextlib.closing(reader(cluster)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read = 0
        while read < count:
            message = consumer.poll(30)
            assert message is not None
            read += 1


def configure(cluster: Cluster, kind: ResourceType, name: str, **values: str | None) -> None:
    named = {key.replace("_", "."): value for key, value in values.items()}

    async def alter() -> None:
        async with Admin(cluster.bootstrap) as admin:
            await admin.configs.alter(
                kind,
                name,
                values={key: value for key, value in named.items() if value is not None},
                unset=[key for key, value in named.items() if value is None],
            )

    asyncio.run(alter())


# -- values --------------------------------------------------------------------------------------


def test_what_clients_write_and_read_is_counted_exactly(one: Cluster) -> None:
    topic = one.create_topic()
    produce(one, topic, [b"x" * 100] * 1000)
    consume(one, topic, 1000)
    found = scrape(one.metrics())
    assert found.value(f"{TRAFFIC}_messagesin_total", topic=topic) == 1000
    size = found.value("kafka_log_log_size", topic=topic, partition="0")
    assert size is not None
    assert size > 100_000
    assert found.value(f"{TRAFFIC}_bytesin_total", topic=topic) == size
    assert found.value(f"{TRAFFIC}_bytesout_total", topic=topic) == size
    for name in ("failedproducerequests", "failedfetchrequests"):
        assert found.value(f"{TRAFFIC}_{name}_total", topic=topic) == 0
    where = {"topic": topic, "partition": "0"}
    for name, value in {
        "kafka_log_log_logstartoffset": 0,
        "kafka_log_log_logendoffset": 1000,
        "kafka_topic_partition_current_offset": 1000,
        "kafka_topic_partition_oldest_offset": 0,
        "kafka_topic_partition_leader": 1,
        "kafka_topic_partition_in_sync_replica": 1,
        "kafka_cluster_partition_underreplicated": 0,
    }.items():
        assert found.value(name, **where) == value, name
    assert found.value("kafka_topic_partitions", topic=topic) == 1


def test_every_request_is_counted_once_with_its_times(one: Cluster) -> None:
    topic = one.create_topic()
    before = scrape(one.metrics())
    producer = Producer({"bootstrap.servers": one.bootstrap})
    for _ in range(20):
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(30) == 0
    after = scrape(one.metrics())

    def grown(name: str, **labels: str) -> float:
        return sum(after.all(name, **labels).values()) - sum(before.all(name, **labels).values())

    assert grown(REQUESTS, request="Produce") == 20
    assert grown(f"{TRAFFIC}_totalproducerequests_total", topic=topic) == 20
    for part in ("totaltimems", "requestqueuetimems", "localtimems", "remotetimems"):
        assert grown(f"kafka_network_requestmetrics_{part}_count", request="Produce") == 20
    quantile = {"request": "Produce", "quantile": "0.99"}
    total = after.value("kafka_network_requestmetrics_totaltimems", **quantile)
    local = after.value("kafka_network_requestmetrics_localtimems", **quantile)
    assert total is not None
    assert local is not None
    assert total >= local > 0


def test_a_request_that_waits_for_records_spends_that_time_remote(one: Cluster) -> None:
    topic = one.create_topic()

    def waited_ms(found: Scrape) -> float:
        name = "kafka_network_requestmetrics_remotetimems_sum"
        return sum(found.all(name, request="FetchConsumer").values())

    before = waited_ms(scrape(one.metrics()))
    # A long poll of librdkafka waits half a second for the first record.
    with contextlib.closing(reader(one)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def has_waited() -> bool:
            consumer.poll(0.1)
            return waited_ms(scrape(one.metrics())) >= before + 500

        eventually(has_waited)
    found = scrape(one.metrics())
    parts = ("requestqueuetimems", "localtimems", "remotetimems", "responsequeuetimems")
    for quantile in ("0.5", "0.99"):
        labels = {"request": "FetchConsumer", "quantile": quantile}
        total, *times = (
            found.value(f"kafka_network_requestmetrics_{name}", **labels) or 0.0
            for name in ("totaltimems", *parts)
        )
        assert total >= max(times)


def test_flushes_that_producers_wait_for_are_timed(one: Cluster) -> None:
    topic = one.create_topic(config={"flush.messages": 1})
    name = "kafka_log_logflushstats_logflushrateandtimems"
    before = scrape(one.metrics()).value(f"{name}_count")
    assert before is not None
    for _ in range(3):
        produce(one, topic, [b"x"])
    found = scrape(one.metrics())
    assert found.value(f"{name}_count") == before + 3
    assert (found.value(f"{name}_sum") or 0) > 0


def test_refused_requests_are_counted_by_their_error(one: Cluster) -> None:
    topic = one.create_topic(config={"max.message.bytes": 1000})
    producer = Producer({"bootstrap.servers": one.bootstrap})
    producer.produce(topic, b"x" * 5000)
    producer.flush(30)
    found = scrape(one.metrics())
    assert found.value(f"{TRAFFIC}_failedproducerequests_total", topic=topic) == 1
    assert found.value(f"{TRAFFIC}_messagesin_total", topic=topic) == 0
    errors = "kafka_network_requestmetrics_errors_total"
    assert found.value(errors, request="Produce", error="MESSAGE_TOO_LARGE") == 1


def test_connections_are_counted_while_they_are_open(one: Cluster) -> None:
    def count() -> float:
        name = "kafka_server_socket_server_metrics_connection_count"
        return scrape(one.metrics()).value(name, listener="PLAINTEXT") or 0.0

    before = count()
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection((one.host(), one.port())))
        eventually(lambda: count() >= before + 5)
    eventually(lambda: count() < before + 5)


def test_a_group_is_behind_in_records_and_in_seconds(one: Cluster) -> None:
    topic = one.create_topic()
    minute_ago_ms = int(time.time() * 1000) - 60_000
    produce(one, topic, [b"x"] * 100, timestamp=minute_ago_ms)
    with contextlib.closing(reader(one, HOSTILE)) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 40)], asynchronous=False)
        where = {"consumergroup": HOSTILE, "topic": topic, "partition": "0"}
        for accept in ("", OPEN_METRICS):
            found = scrape(one.metrics(), accept)
            assert found.value("kafka_consumergroup_current_offset", **where) == 40
            assert found.value("kafka_consumergroup_lag", **where) == 60
            assert (
                found.value("kafka_consumergroup_lag_sum", consumergroup=HOSTILE, topic=topic) == 60
            )
            seconds = found.value("kafka_consumergroup_lag_seconds", **where)
            assert seconds is not None
            assert seconds >= 60
        consumer.commit(offsets=[TopicPartition(topic, 0, 100)], asynchronous=False)
        found = scrape(one.metrics())
        assert found.value("kafka_consumergroup_lag", **where) == 0
        assert found.value("kafka_consumergroup_lag_seconds", **where) == 0


def test_members_and_states_of_groups_are_counted(one: Cluster) -> None:
    topic = one.create_topic()
    group = f"group-of-{topic}"
    with contextlib.closing(reader(one, group)) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.05) is None and consumer.assignment())
        found = scrape(one.metrics())
        assert found.value("kafka_consumergroup_members", consumergroup=group) == 1
        stable = "kafka_coordinator_group_groupmetadatamanager_numgroupsstable"
        assert found.value(stable) == 1
    assert scrape(one.metrics()).value("kafka_consumergroup_members", consumergroup=group) == 0


def test_an_open_transaction_is_seen_until_it_ends(one: Cluster) -> None:
    topic = one.create_topic()
    producer = Producer({"bootstrap.servers": one.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    found = scrape(one.metrics())
    assert found.value("hightide_open_transactions") == 1
    assert found.value("hightide_transactional_ids", state="Ongoing") == 1
    producer.commit_transaction()
    eventually(lambda: scrape(one.metrics()).value("hightide_open_transactions") == 0)


def test_requests_that_wait_are_in_the_purgatory(one: Cluster) -> None:
    topic = one.create_topic()
    with contextlib.closing(reader(one)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        name = "kafka_server_delayedoperationpurgatory_purgatorysize"

        def waits() -> bool:
            consumer.poll(0)
            return bool(scrape(one.metrics()).value(name, delayedoperation="Fetch"))

        eventually(waits)


# -- formats -------------------------------------------------------------------------------------


def test_each_format_has_the_same_metrics(one: Cluster) -> None:
    plain = scrape(one.metrics())
    assert get(one.metrics()).content_type.startswith("text/plain; version=0.0.4")
    page = get(one.metrics(), Accept=f"{OPEN_METRICS},text/plain;q=0.5")
    assert page.content_type.startswith("application/openmetrics-text")
    assert page.text.endswith("# EOF\n")
    packed = get(one.metrics(), Accept_Encoding="gzip")
    assert {*Scrape(packed.text).families} == {*plain.families}
    assert {*Scrape(page.text, is_open_metrics=True).families} == {*plain.families}


def test_the_metrics_of_clients_stand_beside_ours_while_they_live(one: Cluster) -> None:
    configure(one, ResourceType.CLIENT_METRICS, "all", metrics="*", interval_ms="100")
    push_metrics(one)
    eventually(lambda: scrape(one.metrics()).value("hightide_client_instances") == 0)
    configure(one, ResourceType.CLIENT_METRICS, "all", metrics=None, interval_ms=None)


def push_metrics(one: Cluster) -> None:
    """Run clients of librdkafka until /metrics has what they push."""
    topic = one.create_topic()
    producer = Producer({"bootstrap.servers": one.bootstrap, "client.id": HOSTILE})
    consumer = reader(one, "pushing")
    consumer.subscribe([topic])
    sent = "org_apache_kafka_producer_connection_creation_total"
    fetched = "org_apache_kafka_consumer_fetch_manager_fetch_latency_avg"

    def seen() -> Scrape | None:
        producer.produce(topic, b"x")
        producer.poll(0)
        consumer.poll(0.01)
        found = scrape(one.metrics(), OPEN_METRICS)
        return found if {sent, fetched} <= found.names() else None

    with contextlib.closing(consumer):
        found = eventually(seen)
        ((labels, value),) = found.all(sent, client_id=HOSTILE).items()
        assert value >= 1
        assert dict(labels)["client_source_address"] == "127.0.0.1"
        assert found.all(fetched, group_id="pushing")
        assert found.value("hightide_client_instances") == 2
        taken = found.value("hightide_client_pushes_total", result="taken")
        assert taken is not None
        assert taken >= 2
        assert {*found.families} >= {*scrape(one.metrics()).families} - {"hightide_events"}
    producer.flush(30)


def test_every_declared_metric_is_served_and_no_other(one: Cluster) -> None:
    topic = one.create_topic()
    # A flush, a response of several writes, a transactional id, a member, a committed offset.
    produce(one, one.create_topic(config={"flush.messages": 1}), [b"x"])
    produce(one, topic, [b"x" * 900_000] * 20)
    consume(one, topic, 20)
    producer = Producer({"bootstrap.servers": one.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    refused = one.create_topic(config={"max.message.bytes": 1000})
    produce(one, refused, [b"x" * 5000])
    with contextlib.closing(reader(one, f"group-of-{topic}")) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        served = scrape(one.metrics()).names()
    declared = set()
    for metric in METRICS.values():
        declared.add(metric.name)
        if metric.kind is Kind.SUMMARY:
            declared |= {f"{metric.name}_count", f"{metric.name}_sum"}
    ours = {name for name in served if not name.startswith(("org_", "kafka_client_"))}
    assert ours - declared == set()
    assert {metric.name for metric in METRICS.values()} - served == set()


# -- replication ---------------------------------------------------------------------------------


def isr_of(cluster: Cluster, broker_id: int, topic: str) -> float | None:
    found = scrape(cluster.metrics(broker_id))
    return found.value("kafka_topic_partition_in_sync_replica", topic=topic, partition="0")


def test_a_killed_follower_is_missed_and_is_ready_when_it_has_caught_up(two: Cluster) -> None:
    topic = two.create_topic()
    leader = two.leader(topic)
    follower = 3 - leader
    wait_until_ready(two)
    before = scrape(two.metrics(leader))
    assert before.value("kafka_server_replicamanager_underreplicatedpartitions") == 0
    configure(
        two,
        ResourceType.TOPIC,
        topic,
        leader_replication_throttled_replicas="*",
        follower_replication_throttled_replicas="*",
    )
    configure(two, ResourceType.BROKER, str(follower), follower_replication_throttled_rate="1")
    two.kill(follower)
    eventually(lambda: isr_of(two, leader, topic) == 1)
    found = scrape(two.metrics(leader))
    assert (found.value("kafka_server_replicamanager_underreplicatedpartitions") or 0) > 0
    where = {"topic": topic, "partition": "0"}
    assert found.value("kafka_cluster_partition_underreplicated", **where) == 1
    assert found.value("kafka_topic_partition_under_replicated_partition", **where) == 1
    shrinks = "kafka_server_replicamanager_isrshrinks_total"
    assert (found.value(shrinks) or 0) > (before.value(shrinks) or 0)
    eventually(lambda: scrape(two.metrics(leader)).value("kafka_brokers") == 1)
    # More than a follower may fetch at once, so that it does not catch up before it is allowed to.
    produce(two, topic, [bytes(100_000)] * 200)
    two.restart(follower)
    ready = two.metrics(follower, "/readyz")
    page = eventually(lambda: unready(ready, "replicas"))
    assert f"{topic}-0" in page.text
    lag = "kafka_topic_partition_replica_lag_records"
    far = {**where, "broker": str(follower)}
    # The leader learns of it with the first fetch.
    eventually(lambda: scrape(two.metrics(leader)).value(lag, **far))
    assert (scrape(two.metrics(leader)).value("kafka_server_replicafetchermanager_maxlag") or 0) > 0
    configure(two, ResourceType.BROKER, str(follower), follower_replication_throttled_rate=None)
    eventually(lambda: get(ready).status == 200)
    eventually(lambda: isr_of(two, leader, topic) == 2)
    found = scrape(two.metrics(leader))
    assert found.value(lag, **far) == 0
    assert (found.value("kafka_server_replicamanager_isrexpands_total") or 0) > 0
    # No consumer was there: what followers are refused counts as theirs.
    errors = "kafka_network_requestmetrics_errors_total"
    assert found.all(errors, request="FetchConsumer") == {}
    assert found.value(f"{TRAFFIC}_failedfetchrequests_total") == 0


def test_partitions_without_a_leader_are_offline(two: Cluster) -> None:
    wait_until_ready(two)
    controller = two.controller()
    topics = (two.create_topic(replication_factor=1) for _ in range(100))
    topic = next(topic for topic in topics if two.leader(topic) != controller)
    other = two.leader(topic)
    offline = "kafka_controller_kafkacontroller_offlinepartitionscount"
    assert scrape(two.metrics(controller)).value(offline) == 0
    two.kill(other)
    eventually(lambda: scrape(two.metrics(controller)).value(offline))
    where = {"topic": topic, "partition": "0"}
    found = scrape(two.metrics(controller))
    assert found.value("kafka_topic_partition_leader", **where) == -1
    assert found.value("kafka_topic_partition_replicas", **where) == 1
    assert found.value("kafka_topic_partition_under_replicated_partition", **where) == 1
    two.restart(other)
    eventually(lambda: scrape(two.metrics(controller)).value(offline) == 0)
    found = scrape(two.metrics(controller))
    assert found.value("kafka_topic_partition_leader", **where) is None
    wait_until_ready(two)


def test_the_lag_of_a_group_is_known_where_the_partition_is_not(two: Cluster) -> None:
    wait_until_ready(two)
    topic = two.create_topic(replication_factor=1)
    minute_ago_ms = int(time.time() * 1000) - 60_000
    produce(two, topic, [b"x"] * 10, timestamp=minute_ago_ms)
    other = 3 - two.leader(topic)

    def lag_at_the_other(group: str) -> dict[str, float | None]:
        found = scrape(two.metrics(other))
        where = {"consumergroup": group, "topic": topic, "partition": "0"}
        names = ("current_offset", "lag", "lag_seconds")
        return {name: found.value(f"kafka_consumergroup_{name}", **where) for name in names}

    for number in range(100):
        group = f"far-{number}"
        with contextlib.closing(reader(two, group)) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        if lag_at_the_other(group)["current_offset"] is not None:
            break
    # The leader may have been asked before the records were written, and is asked again then.
    eventually(lambda: lag_at_the_other(group)["lag"] == 6)
    eventually(lambda: (lag_at_the_other(group)["lag_seconds"] or 0) >= 60)


# -- health --------------------------------------------------------------------------------------


def wait_until_ready(cluster: Cluster) -> None:
    for broker_id in cluster.brokers:
        url = cluster.metrics(broker_id, "/readyz")
        eventually(lambda url=url: get(url).status == 200)


def unready(url: str, check: str) -> Page | None:
    """The response, if this check fails."""
    with contextlib.suppress(OSError):
        page = get(url)
        if page.status == 503 and f"[-] {check}: " in page.text:
            return page
    return None


def test_a_broker_says_that_it_is_alive_and_ready(one: Cluster) -> None:
    assert get(one.metrics(path="/livez")).text == "alive\n"
    assert get(one.metrics(path="/readyz")).text == "ready\n"
    lines = get(one.metrics(path="/readyz?verbose")).text.splitlines()
    assert lines[0] == "[+] start"
    assert lines[-1] == "ready"
    found = json.loads(get(one.metrics(path="/readyz"), Accept="application/json").text)
    assert found["ready"] is True
    assert {check["name"] for check in found["checks"]} >= {"zookeeper", "replicas", "roles"}
    assert get(one.metrics(path="/nothing")).status == 404


def test_a_broker_without_zookeeper_is_alive_but_not_ready(two: Cluster) -> None:
    wait_until_ready(two)
    two.kill_zookeeper()
    url = two.metrics(1, "/readyz")
    page = eventually(lambda: unready(url, "zookeeper"))
    assert page.text.endswith("not ready\n")
    found = json.loads(get(url, Accept="application/json").text)
    assert found["ready"] is False
    assert get(two.metrics(1, "/livez")).status == 200
    state = "hightide_zookeeper_session_state"
    assert scrape(two.metrics(1)).value(state, state="connected") == 0
    two.restart_zookeeper()
    wait_until_ready(two)
    found_again = scrape(two.metrics(1))
    assert found_again.value(state, state="connected") == 1
    disconnects = "kafka_server_sessionexpirelistener_zookeeperdisconnects_total"
    assert (found_again.value(disconnects) or 0) > 0
    calls = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count"
    assert (found_again.value(calls) or 0) > 0


def test_a_broker_that_starts_says_what_it_waits_for(two: Cluster) -> None:
    wait_until_ready(two)
    two.terminate(2)
    two.kill_zookeeper()
    restart = threading.Thread(target=two.restart, args=(2,))
    restart.start()
    url = two.metrics(2, "/readyz")
    page = eventually(lambda: unready(url, "start"))
    assert "ZooKeeper" in page.text
    assert get(two.metrics(2, "/livez")).status == 200
    assert scrape(two.metrics(2)).value("kafka_server_kafkaserver_brokerstate") == 1
    two.restart_zookeeper()
    restart.join(60)
    wait_until_ready(two)
    assert scrape(two.metrics(2)).value("kafka_server_kafkaserver_brokerstate") == 3


def test_a_broker_that_is_stuck_does_not_say_that_it_is_alive(one: Cluster) -> None:
    one.pause()
    try:
        with pytest.raises(TimeoutError):
            get(one.metrics(path="/livez"), timeout_s=0.5)
    finally:
        one.resume()
    assert get(one.metrics(path="/livez")).status == 200


# -- bad clients ---------------------------------------------------------------------------------


def connected(cluster: Cluster) -> socket.socket:
    port = urllib.parse.urlsplit(cluster.metrics()).port
    assert port is not None
    return socket.create_connection((cluster.host(), port), 30)


def answer(cluster: Cluster, data: bytes) -> bytes:
    """Send bytes; return what comes until the broker closes the connection."""
    with connected(cluster) as connection, contextlib.suppress(ConnectionResetError):
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found
    return b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
            b"400",
        ),
        (b"GET http://[::1/metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x00\x00\x00\x10\x00\x12\x00\x00\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, b"400"),
    ],
)
def test_a_request_that_is_no_get_is_refused(one: Cluster, data: bytes, status: bytes) -> None:
    found = answer(one, data)
    assert found.split(b" ")[1:2] in ([status], []), found[:200]
    assert get(one.metrics(path="/livez")).status == 200


def test_scrapes_at_the_same_time_share_a_collection(one: Cluster) -> None:
    pages: list[Page] = []
    threads = [threading.Thread(target=lambda: pages.append(get(one.metrics()))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [page.status for page in pages] == [200] * 20


def test_many_silent_connections_do_not_keep_prometheus_out(one: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3 * http_server.MOST_CONNECTIONS):
            stack.enter_context(connected(one))
        assert scrape(one.metrics()).value("kafka_brokers") == 1


def test_clients_that_do_not_read_do_not_hold_the_broker(one: Cluster) -> None:
    topic = one.create_topic(partitions=200)
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(http_server.MOST_CONNECTIONS - 4):
            connection = stack.enter_context(connected(one))
            connection.sendall(request * 50)
        produce(one, topic, [b"x"] * 10)
        # A scrape may join a collection that has begun before.
        name = f"{TRAFFIC}_messagesin_total"
        eventually(lambda: scrape(one.metrics()).value(name, topic=topic) == 10)
