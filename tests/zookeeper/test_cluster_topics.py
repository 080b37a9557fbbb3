"""Topics in Kafka's znode layout: written by brokers, and read when other tools wrote them.

Three brokers with an Apache ZooKeeper serve the tests; each test uses its own topics.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.support.eventually import eventually
from tests.zookeeper import servers
from tests.zookeeper.broker_world import SESSION_S, Brokers, Tree, create, read, write

SOON_S = 1.0
CREATED_AT_THE_START = (
    "/consumers",
    "/brokers/ids",
    "/brokers/topics",
    "/config/changes",
    "/admin/delete_topics",
    "/brokers/seqid",
    "/isr_change_notification",
    "/latest_producer_id_block",
    "/log_dir_event_notification",
    *(f"/config/{kind}" for kind in ("topics", "clients", "users", "brokers", "ips")),
)


@pytest.fixture(scope="module")
def brokers(_shared):
    with Brokers(_shared("zookeeper").hosts, 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(brokers):
    """Three brokers that run and know each other."""
    for broker_id in brokers.brokers:
        if not brokers.is_running(broker_id):
            brokers.restart(broker_id)
    eventually(
        lambda: all(len(brokers.metadata(broker_id).brokers) == 3 for broker_id in brokers.brokers)
    )
    eventually(
        lambda: all(brokers.metadata(broker_id).controller_id > 0 for broker_id in brokers.brokers)
    )
    return brokers


@pytest.fixture
def name():
    return f"topic-{random.randbytes(4).hex()}"


def leaders_at(cluster: Brokers, broker_id: int, topic: str) -> dict[int, int]:
    return {index: leader for index, (leader, _) in cluster.partitions(broker_id, topic).items()}


def agreed(cluster: Brokers, topic: str, count: int) -> dict[int, int]:
    """Return the leaders if all brokers agree and every partition has one; else nothing."""
    seen = [leaders_at(cluster, broker_id, topic) for broker_id in cluster.brokers]
    one = seen[0]
    return one if len(one) == count and -1 not in one.values() and seen == [one] * 3 else {}


def answers_of(cluster: Brokers, broker_id: int, topic: str, count: int) -> list[ErrorCode]:
    """Return one broker's ListOffsets error for every partition."""
    partitions = [
        ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
        for partition in range(count)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=partitions)]
    )
    (answer,) = cluster.ask(broker_id, request).topics
    return [ErrorCode(partition.error_code) for partition in answer.partitions]


def controller_of(cluster: Brokers) -> str:
    return cluster.address(eventually(cluster.elected))


def delete(cluster: Brokers, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.delete_topics([topic], operation_timeout=30)[topic].result(30)


def grow(cluster: Brokers, topic: str, count: int) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    client.create_partitions([NewPartitions(topic, count)])[topic].result(30)


def traces_of(tree: Tree, topic: str) -> list[str]:
    places = ("/brokers/topics", "/config/topics", "/admin/delete_topics")
    return [place for place in places if topic in tree.children(place)]


# -- the layout -----------------------------------------------------------------------------------


def test_a_topic_has_kafkas_znodes(cluster, name):
    cluster.create_topic(name, partitions=4, config={"retention.ms": 12345})
    tree = cluster.tree
    found = tree.json(f"/brokers/topics/{name}")
    assert re.fullmatch(r"[\w-]{22}", found.pop("topic_id"))
    placed = found.pop("partitions")
    assert found == {"version": 3, "adding_replicas": {}, "removing_replicas": {}}
    assert list(placed) == ["0", "1", "2", "3"]
    assert sorted(map(tuple, placed.values()))[:3] != [placed["0"]] * 3, "all on one broker"
    assert tree.children(f"/brokers/topics/{name}") == ["partitions"]
    assert tree.children(f"/brokers/topics/{name}/partitions") == ["0", "1", "2", "3"]
    for index, replicas in placed.items():
        path = f"/brokers/topics/{name}/partitions/{index}"
        assert not tree.data(path)
        assert tree.children(path) == ["state"]
        assert tree.json(f"{path}/state") == {
            "version": 1,
            "leader": replicas[0],
            "leader_epoch": 0,
            "isr": replicas,
            "controller_epoch": cluster.controller_epoch(),
            # Kafka ignores fields that it does not know.
            "broker_epochs": {
                str(broker_id): str(cluster.epoch(broker_id)) for broker_id in replicas
            },
        }
        assert tree.stat(f"{path}/state").ephemeralOwner == 0, "the state outlives its writer"
    config = tree.json(f"/config/topics/{name}")
    assert config == {"version": 1, "config": {"retention.ms": "12345"}}
    for path in CREATED_AT_THE_START:
        assert tree.stat(path) is not None, path


def test_zookeepers_own_command_line_reads_the_cluster(cluster, name):
    cluster.create_topic(name, partitions=2)
    command = ["java", "-cp", servers.classpath(), "org.apache.zookeeper.ZooKeeperMain"]
    script = f"ls -R /brokers/topics/{name}\nget /brokers/topics/{name}/partitions/0/state\n"
    ended = subprocess.run(
        [*command, "-server", cluster.hosts],
        input=f"{script}get /controller\nget /brokers/ids/1\nget /cluster/id\nquit\n",
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    lines = ended.stdout.splitlines()
    for path in (
        "",
        "/partitions",
        *(f"/partitions/{n}{s}" for n in (0, 1) for s in ("", "/state")),
    ):
        assert f"/brokers/topics/{name}{path}" in lines, ended.stdout
    values = [json.loads(line) for line in lines if line.startswith("{")]
    assert [value["version"] for value in values] == [1, 1, 5, "1"]
    assert values[0]["leader_epoch"] == 0
    assert values[1]["brokerid"] == cluster.elected()
    assert values[2]["port"] == cluster.port(1)


# -- all brokers ----------------------------------------------------------------------------------


def test_partitions_are_served_where_they_were_placed_and_nowhere_else(cluster, name):
    cluster.create_topic(name, partitions=6)
    began = time.monotonic()
    leaders = eventually(lambda: agreed(cluster, name, 6), SOON_S)
    placed = cluster.tree.json(f"/brokers/topics/{name}")["partitions"]
    assert leaders == {int(index): replicas[0] for index, replicas in placed.items()}
    assert set(leaders.values()) == {1, 2, 3}
    for broker_id in cluster.brokers:
        expected = [
            ErrorCode.NONE if leaders[index] == broker_id else ErrorCode.NOT_LEADER_OR_FOLLOWER
            for index in range(6)
        ]
        # Its logs are created a moment after it learns of them.
        eventually(lambda at=broker_id, want=expected: answers_of(cluster, at, name, 6) == want, 2)
    assert time.monotonic() - began < 5
    for index in range(6):
        write(cluster.bootstrap, name, index, b"%d" % index)
        assert read(cluster.bootstrap, name, index) == b"%d" % index


def test_a_dead_leaders_partitions_have_no_leader_until_it_is_back(cluster, name):
    cluster.create_topic(name, partitions=3)
    leaders = eventually(lambda: agreed(cluster, name, 3))
    dead, other = 3, 1
    index = next(index for index, leader in leaders.items() if leader == dead)
    write(cluster.bootstrap, name, index, b"kept")
    before = cluster.tree.json(f"/brokers/topics/{name}/partitions/{index}/state")
    cluster.kill(dead)
    gone = (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    eventually(lambda: cluster.partitions(other, name)[index] == gone, SESSION_S + 3)
    alive = next(partition for partition in leaders if partition != index)
    assert cluster.partitions(other, name)[alive] == (leaders[alive], ErrorCode.NONE)
    (offline,) = [
        partition
        for partition in cluster.metadata(other, name).topics[0].partitions
        if partition.partition_index == index
    ]
    assert offline.offline_replicas == [dead]
    cluster.restart(dead)
    assert eventually(lambda: agreed(cluster, name, 3)) == leaders
    assert read(cluster.bootstrap, name, index) == b"kept"
    after = cluster.tree.json(f"/brokers/topics/{name}/partitions/{index}/state")
    assert after["leader_epoch"] > before["leader_epoch"]
    assert after["controller_epoch"] == cluster.controller_epoch()


def test_new_partitions_and_deletions_reach_all_also_under_another_controller(cluster, name):
    """The broker that created the topic follows it like the others after a controller change."""
    cluster.create_topic(name, partitions=1)
    eventually(lambda: agreed(cluster, name, 1))
    maker = cluster.elected()
    cluster.tree.client.delete("/controller")
    eventually(lambda: cluster.elected() not in (0, maker) or retry(cluster), every_s=0.05)
    eventually(
        lambda: all(cluster.metadata(n).controller_id == cluster.elected() for n in (1, 2, 3))
    )
    grow(cluster, name, 4)
    eventually(lambda: agreed(cluster, name, 4), SOON_S)
    grow(cluster, name, 7)
    leaders = eventually(lambda: agreed(cluster, name, 7), SOON_S)
    write(cluster.bootstrap, name, 6, b"in a new one")
    assert read(cluster.bootstrap, name, 6) == b"in a new one"
    delete(cluster, name)
    began = time.monotonic()
    for broker_id in cluster.brokers:
        eventually(lambda at=broker_id: not cluster.partitions(at, name))
    assert time.monotonic() - began < SOON_S
    for broker_id in set(leaders.values()):
        folder = cluster.data(broker_id)
        eventually(lambda at=folder: not list(at.glob(f"{name}-?")))
    assert traces_of(cluster.tree, name) == []


def retry(cluster: Brokers) -> bool:
    """The controller may win the election again; then another broker tries."""
    if cluster.elected():
        cluster.tree.client.delete("/controller")
    return False


def test_a_topic_can_be_made_again_at_once(cluster, name):
    for round_ in range(4):
        assert create(controller_of(cluster), name, 3) == ErrorCode.NONE
        eventually(lambda: agreed(cluster, name, 3))
        write(cluster.bootstrap, name, 0, b"%d" % round_)
        assert read(cluster.bootstrap, name, 0) == b"%d" % round_
        delete(cluster, name)


# -- by hand --------------------------------------------------------------------------------------


def test_a_deletion_that_was_marked_by_hand_is_carried_out(cluster, name):
    cluster.create_topic(name, partitions=3)
    eventually(lambda: agreed(cluster, name, 3))
    cluster.tree.client.create(f"/admin/delete_topics/{name}")
    cluster.tree.client.create(f"/admin/delete_topics/never-was-{name}")
    eventually(lambda: traces_of(cluster.tree, name) == [], 5)
    eventually(lambda: cluster.tree.children("/admin/delete_topics") == [], 5)
    for broker_id in cluster.brokers:
        eventually(lambda at=broker_id: not cluster.partitions(at, name))
        eventually(lambda at=broker_id: not list(cluster.data(at).glob(f"{name}-?")))


@pytest.mark.extended
def test_a_mark_is_taken_away_where_nothing_may_be_deleted(zookeeper, name):
    with Brokers(zookeeper.hosts, settings={"delete.topic.enable": False}) as cluster:
        cluster.create_topic(name)
        write(cluster.bootstrap, name, 0, b"kept")
        cluster.tree.client.create(f"/admin/delete_topics/{name}")
        eventually(lambda: cluster.tree.children("/admin/delete_topics") == [], 5)
        assert read(cluster.bootstrap, name, 0) == b"kept"
        assert f"topic {name} is not deleted" in cluster.log()
        cluster.terminate()
        cluster.tree.client.create(f"/admin/delete_topics/{name}")
        cluster.restart()
        eventually(lambda: cluster.tree.children("/admin/delete_topics") == [], 5)
        assert read(cluster.bootstrap, name, 0) == b"kept"


def test_a_deletion_without_running_brokers_is_finished_and_leaves_nothing(zookeeper, name):
    with Brokers(zookeeper.hosts, 2) as cluster:
        cluster.create_topic(name, partitions=2, replication_factor=2)
        write(cluster.bootstrap, name, 0, b"unwanted")
        for broker_id in cluster.brokers:
            cluster.terminate(broker_id)
        cluster.tree.client.create(f"/admin/delete_topics/{name}")
        for broker_id in cluster.brokers:
            cluster.launch(broker_id)
        for broker_id in cluster.brokers:
            cluster.wait_until_it_listens(broker_id)
            assert not cluster.partitions(broker_id, name)
        eventually(lambda: traces_of(cluster.tree, name) == [], 5)
        # The second broker may start after the topic is gone, without a StopReplica for it.
        first = cluster.elected()
        assert [
            path.name
            for path in cluster.data(first).glob(f"{name}-*")
            if "-delete" not in path.name
        ] == []
        assert f"{name}-0: deleting the log" in cluster.log(first)


@pytest.mark.parametrize(
    "old",
    [
        {"version": 1, "partitions": {"0": [1], "1": [2], "2": [3]}},
        {
            "version": 2,
            "partitions": {"2": [3, 1], "0": [2, 3], "1": [1, 2]},
            "adding_replicas": {},
            "removing_replicas": {},
        },
    ],
    ids=["version 1", "version 2"],
)
def test_a_topic_of_an_old_tool_is_completed_and_served(cluster, name, old):
    """Such a tool writes only the assignment and leaves the rest to the controller."""
    cluster.tree.client.create(f"/brokers/topics/{name}", json.dumps(old).encode())
    leaders = eventually(lambda: agreed(cluster, name, 3), 5)
    assert leaders == {int(index): replicas[0] for index, replicas in old["partitions"].items()}
    found = cluster.tree.json(f"/brokers/topics/{name}")
    assert found["version"] == 3
    assert {topic.name: topic.topic_id for topic in cluster.metadata(1, name).topics}[name].int
    ids = {
        str(cluster.metadata(broker_id, name).topics[0].topic_id) for broker_id in cluster.brokers
    }
    assert len(ids) == 1
    assert found["partitions"] == old["partitions"]
    for index, leader in leaders.items():
        state = cluster.tree.json(f"/brokers/topics/{name}/partitions/{index}/state")
        replicas = old["partitions"][str(index)]
        assert (state["leader"], state["leader_epoch"], state["isr"]) == (leader, 0, replicas)
        write(cluster.bootstrap, name, index, b"%d" % index)
        assert read(cluster.bootstrap, name, index) == b"%d" % index
    delete(cluster, name)
    eventually(lambda: traces_of(cluster.tree, name) == [])


JUNK_TOPICS = {
    "not-json": b"not json",
    "empty": b"",
    "no-partitions": b'{"version":1,"partitions":{}}',
    "a-gap": b'{"version":1,"partitions":{"0":[1],"2":[1]}}',
    "not-from-zero": b'{"version":1,"partitions":{"1":[1]}}',
    "negative": b'{"version":1,"partitions":{"-1":[1]}}',
    "nowhere": b'{"version":1,"partitions":{"0":[]}}',
    "twice": b'{"version":1,"partitions":{"0":[1,1]}}',
    "not an allowed name": b'{"version":1,"partitions":{"0":[1]}}',
    "x" * 250: b'{"version":1,"partitions":{"0":[1]}}',
}


def test_invalid_topics_are_reported_and_harm_no_others(cluster, name):
    for junk, data in JUNK_TOPICS.items():
        cluster.tree.client.create(f"/brokers/topics/{junk}", data)
    cluster.create_topic(name, partitions=3)
    eventually(lambda: agreed(cluster, name, 3), 5)
    cluster.restart(1)
    controller = cluster.elected()
    try:
        for junk in JUNK_TOPICS:
            assert f"topic {junk} cannot be used" in cluster.log(controller)
        for broker_id in cluster.brokers:
            shown = {topic.name for topic in cluster.metadata(broker_id).topics}
            assert not shown & JUNK_TOPICS.keys()
            assert name in shown
            assert "Traceback" not in cluster.log(broker_id)
        delete(cluster, name)
        eventually(lambda: not cluster.partitions(2, name))
    finally:
        for junk in JUNK_TOPICS:
            cluster.tree.client.create(f"/admin/delete_topics/{junk}")
        eventually(lambda: all(not traces_of(cluster.tree, topic) for topic in JUNK_TOPICS))


def test_znodes_that_are_spoiled_cost_no_data(zookeeper, name):
    """A broker that starts then keeps the logs until the znode is repaired."""
    with Brokers(zookeeper.hosts) as cluster:
        cluster.create_topic(name, partitions=2)
        write(cluster.bootstrap, name, 1, b"kept")
        missing = (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        for spoiled, shown in (
            (f"/brokers/topics/{name}/partitions/1/state", {0: (1, ErrorCode.NONE), 1: missing}),
            (f"/brokers/topics/{name}", {}),
        ):
            good = cluster.tree.data(spoiled)
            cluster.terminate()
            cluster.tree.client.set(spoiled, b"not json")
            cluster.restart()
            assert cluster.partitions(1, name) == shown
            cluster.terminate()
            cluster.tree.client.set(spoiled, good)
            cluster.restart()
            assert read(cluster.bootstrap, name, 1) == b"kept"


# -- size -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_two_thousand_partitions_come_and_go(cluster, record_testsuite_property):
    """More partitions than fit into one multi; the name has the maximum length."""
    count, name = 2000, "long-" + "x" * 244
    began = time.monotonic()
    assert create(controller_of(cluster), name, count) == ErrorCode.NONE
    record_testsuite_property(
        "2,000 partitions created after s", round(time.monotonic() - began, 2)
    )
    leaders = eventually(lambda: agreed(cluster, name, count), 20)
    record_testsuite_property("2,000 partitions agreed after s", round(time.monotonic() - began, 2))
    assert set(leaders.values()) == {1, 2, 3}
    write(cluster.bootstrap, name, count - 1, b"last")
    assert read(cluster.bootstrap, name, count - 1) == b"last"
    began = time.monotonic()
    delete(cluster, name)
    record_testsuite_property(
        "2,000 partitions deleted after s", round(time.monotonic() - began, 2)
    )
    eventually(lambda: traces_of(cluster.tree, name) == [])
    for broker_id in cluster.brokers:
        eventually(lambda at=broker_id: not cluster.partitions(at, name))
