"""`hightide group` beside real consumers: members, lag, and resets."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

from hightide.client.admin import Admin
from hightide.testing import Cluster
from tests.conformance.adapters import Record, confluent
from tests.conformance.commands import runner
from tests.conformance.members import MEMBERS, ConfluentMember
from tests.conformance.raw_group import new_group
from tests.support.eventually import eventually
from tests.support.processes import hightide

PARTITIONS = 3
OLD_S = 100


@pytest.fixture
def run(group_broker, capfd, monkeypatch):
    return runner(group_broker.bootstrap, capfd, monkeypatch)


@pytest.fixture
def group():
    return new_group()


@pytest.fixture
def topic(group_broker):
    """Ten old records in each partition."""
    made = group_broker.create_topic(partitions=PARTITIONS)
    write(group_broker, made, 10)
    return made


def write(cluster, topic, count, ago_s=OLD_S, partitions=range(PARTITIONS)):
    at_ms = int((time.time() - ago_s) * 1000)
    for index in partitions:
        sent = [Record(b"%d" % at, timestamp=at_ms) for at in range(count)]
        confluent.produce(cluster.bootstrap, topic, sent, partition=index)


def delete_records(bootstrap, topic, before):
    async def ask():
        async with Admin(bootstrap) as admin:
            await admin.records.delete({(topic, 0): before})

    asyncio.run(ask())


def lag_of(run, group):
    (found,) = run("group", "lag", group, "-o", "json").json
    return found


def described(run, group):
    (found,) = run("group", "describe", group, "-o", "json").json
    return found


def resumes_at(cluster, group, topic, count):
    """Return the first offset that a new member gets in each partition."""
    with ConfluentMember(cluster.bootstrap, group, [topic]) as member:
        found = {}
        for record in member.read(count):
            found.setdefault(record.partition, record.offset)
    return found


# -- describing --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MEMBERS.values(), ids=MEMBERS)
def test_a_group_is_listed_and_described_whatever_its_client(group_broker, run, group, topic, kind):
    with kind(group_broker.bootstrap, group, [topic]) as member:
        member.join(PARTITIONS)
        found = eventually(lambda: (it := described(run, group))["state"] == "Stable" and it)
        assert (found["type"], found["protocol"], found["assignor"]) == (
            "Classic",
            "consumer",
            "range",
        )
        (shown,) = found["members"]
        assert (shown["host"], shown["partitions"]) == ("127.0.0.1", PARTITIONS)
        assert shown["assignment"] == {topic: [0, 1, 2]}
        assert shown["member"].startswith(shown["client_id"])
        assert "joined" in found["last_rebalance"]["reason"]
        assert found["generation"] == found["last_rebalance"]["ended_generation"] + 1
        rows = {row["group"]: row for row in run("group", "list", "-o", "json").json}
        assert (rows[group]["state"], rows[group]["coordinator"]) == ("Stable", 1)
        assert group in run("group", "list", "--state", "stable").out
        assert group not in run("group", "list", "--state", "empty", "--state", "dead").out


def test_the_newer_protocol_is_described_too(group_broker, run, group, topic):
    settings: dict[str, Any] = {"group.protocol": "consumer"}
    with ConfluentMember(group_broker.bootstrap, group, [topic], **settings) as member:
        member.read(PARTITIONS * 10)
        member.commit()
        found = eventually(lambda: (it := described(run, group))["state"] == "Stable" and it)
        assert (found["type"], found["assignor"]) == ("Consumer", "uniform")
        (shown,) = found["members"]
        assert shown["assignment"] == shown["target"] == {topic: [0, 1, 2]}
        assert shown["epoch"] == found["generation"]
        assert found["last_rebalance"]["reason"]
        assert group in run("group", "list", "--type", "consumer").out
        lag = lag_of(run, group)
        assert (lag["lag_records"], lag["members"]) == (0, 1)
        assert {partition["owner"] for partition in lag["partitions"]} == {shown["member"]}


def test_the_reason_of_the_last_rebalance_follows_who_comes_and_goes(
    group_broker, run, group, topic
):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as first:
        first.join(PARTITIONS)
        before = described(run, group)
        with ConfluentMember(group_broker.bootstrap, group, [topic], instance="desk") as second:
            while len(first.assignment()) == PARTITIONS or not second.assignment():
                first.poll(0.05)
                second.poll(0.05)
            after = eventually(lambda: (it := described(run, group))["state"] == "Stable" and it)
            assert after["generation"] > before["generation"]
            assert after["last_rebalance"]["at"] > before["last_rebalance"]["at"]
            assert "desk" in after["last_rebalance"]["reason"]
            page = run("group", "describe", group).out
            assert "last rebalance" in page
            assert "desk" in page
            assert [member["instance_id"] for member in after["members"]].count("desk") == 1


def test_lag_is_told_in_records_and_in_seconds(group_broker, run, group, topic):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * 10)
        member.commit()
        whole = lag_of(run, group)
        assert (whole["lag_records"], whole["lag_seconds"]) == (0, 0)
        assert [partition["committed_offset"] for partition in whole["partitions"]] == [
            10
        ] * PARTITIONS
        write(group_broker, topic, 4, ago_s=50, partitions=[1])
        write(group_broker, topic, 4, ago_s=5, partitions=[1])
        behind = lag_of(run, group)
        assert behind["lag_records"] == 8
        assert 50 <= behind["lag_seconds"] < 80
        rows = behind["partitions"]
        assert [row["lag_records"] for row in rows] == [0, 8, 0]
        assert [row["lag_seconds"] for row in rows] == [0, behind["lag_seconds"], 0]
        assert [row["end_offset"] for row in rows] == [10, 18, 10]
        assert {row["owner"] for row in rows} == {member.member_id()}
        assert all(row["committed_at"] and row["commit_age"] for row in rows)
        page = run("group", "lag", group).out.splitlines()
        assert page[0].startswith(f"{group}: Stable, 1 member, 8 records behind, ")
        heading = "TOPIC PARTITION COMMITTED END LAG LAG-S LAST-COMMIT OWNER HOST"
        assert page[2].split() == heading.split()
        assert run("group", "lag", "-t", "nothing", "-o", "json").code == 0


def test_what_was_deleted_does_not_count_as_lag(group_broker, run, group, topic):
    run("group", "reset", group, "--to-earliest", "--topic", f"{topic}:0")
    assert lag_of(run, group)["lag_records"] == 10
    delete_records(group_broker.bootstrap, topic, 7)
    (row,) = lag_of(run, group)["partitions"]
    assert (row["committed_offset"], row["start_offset"], row["lag_records"]) == (0, 7, 3)
    assert row["lag_seconds"] >= OLD_S


def test_watching_looks_again_until_it_is_stopped(group_broker, run, group, topic):
    run("group", "reset", group, "--to-latest", "--topic", topic)
    arguments = ("group", "lag", group, "--watch", "--interval", "0.1", "-o", "json")
    with hightide(*arguments, bootstrap=group_broker.bootstrap) as child:

        def next_lag():
            return json.loads(child.stdout.readline())[0]["lag_records"]

        assert next_lag() == 0
        write(group_broker, topic, 5, partitions=[0])
        eventually(lambda: next_lag() == 5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert (child.returncode, errors) == (0, b"")


def test_what_does_not_exist_is_said(run, group, topic):
    for verb in ("describe", "lag", "delete"):
        missing = run("group", verb, group)
        assert (missing.code, missing.out) == (1, "")
        assert missing.err == f"hightide: There is no group '{group}' (GROUP_ID_NOT_FOUND).\n"
    assert run("group", "reset", group, "--to-latest").code == 1
    absent = run("group", "reset", group, "--to-latest", "--topic", f"{topic}:9")
    assert f"Topic '{topic}' has no partition 9" in absent.err
    assert run("group", "delete", group, "--if-exists", "-o", "json").json == [
        {"group": group, "result": "does not exist", "partitions": 0}
    ]


# -- resetting and deleting --------------------------------------------------------------------


def test_a_group_with_members_is_neither_reset_nor_deleted(group_broker, run, group, topic):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * 10)
        member.commit()
        for arguments in (("reset", group, "--to-earliest"), ("delete", group, "--yes")):
            refused = run("group", *arguments)
            assert (refused.code, refused.out) == (1, "")
            assert f"while it has 1 member: {member.member_id()} at 127.0.0.1" in refused.err
            assert "Stop them first" in refused.err
        assert member.committed([(topic, 0)]) == {(topic, 0): 10}


def test_a_consumer_goes_on_from_where_its_group_was_set(group_broker, run, group, topic):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * 10)
        member.commit()
    write(group_broker, topic, 2, ago_s=20)

    def offsets():
        return [partition["committed_offset"] for partition in lag_of(run, group)["partitions"]]

    would = run("group", "reset", group, "--shift", "-4", "--dry-run", "-o", "json").json
    assert [(row["before"], row["after"], row["moved"]) for row in would] == [(10, 6, -4)] * 3
    assert {row["result"] for row in would} == {"would be reset"}
    assert offsets() == [10] * 3
    # A minute ago is between the ten records and the two.
    assert run("group", "reset", group, "--to-time", "1m").code == 0
    assert offsets() == [10] * 3
    assert run("group", "reset", group, "--to-time", "1m", "--topic", f"{topic}:1").code == 0
    assert run("group", "reset", group, "--shift", "-3", "--topic", f"{topic}/0").code == 0
    past = run("group", "reset", group, "--to-offset", "999", "--topic", f"{topic}:1")
    assert "offset 999 becomes its end, 12" in past.err
    assert run("group", "reset", group, "--to-earliest", "--topic", f"{topic}:2").code == 0
    assert offsets() == [7, 12, 0]
    assert resumes_at(group_broker, group, topic, 5 + 12) == {0: 7, 2: 0}


def test_a_group_can_be_given_offsets_before_it_exists(group_broker, run, group, topic):
    shifted = run("group", "reset", group, "--shift", "1", "--topic", topic)
    assert shifted.code == 1
    assert "cannot be shifted: the group has no commit there" in shifted.err
    assert run("group", "reset", group, "--to-offset", "8", "--topic", topic).code == 0
    assert resumes_at(group_broker, group, topic, 6) == dict.fromkeys(range(3), 8)


def test_groups_are_deleted_with_their_offsets(run, topic):
    one, two = new_group(), new_group()
    for name in (one, two):
        run("group", "reset", name, "--to-latest", "--topic", topic)
    none = run("group", "delete", one, "nowhere")
    assert none.code == 1
    would = run("group", "delete", one, "--dry-run", "-o", "json").json
    assert would == [{"group": one, "result": "would be deleted", "partitions": PARTITIONS}]
    gone = run("group", "delete", one, two, "-o", "json").json
    assert [row["result"] for row in gone] == ["deleted", "deleted"]
    listed = run("group", "list").out
    assert one not in listed
    assert two not in listed


def test_some_offsets_of_a_group_are_deleted(group_broker, run, group, topic):
    run("group", "reset", group, "--to-offset", "8", "--topic", topic)

    def committed():
        found = lag_of(run, group)["partitions"]
        return {row["partition"]: row["committed_offset"] for row in found}

    would = run("group", "offset-delete", group, f"{topic}/0,2", "--dry-run", "-o", "json").json
    assert [(row["partition"], row["offset"], row["result"]) for row in would] == [
        (0, 8, "would be deleted"),
        (2, 8, "would be deleted"),
    ]
    gone = run("group", "offset-delete", group, f"{topic}/0,2", "-o", "json").json
    assert [row["result"] for row in gone] == ["deleted", "deleted"]
    assert committed() == {1: 8}
    again = run("group", "offset-delete", group, f"{topic}/0")
    assert (again.code, again.out) == (1, "")
    assert f"has no committed offset in {topic}/0." in again.err
    assert run("group", "offset-delete", new_group(), topic).code == 1


def test_offsets_that_a_member_relies_on_are_kept(group_broker, run, group, topic):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * 10)
        member.commit()
        refused = run("group", "offset-delete", group, f"{topic}/0", "--yes")
        assert refused.code == 1
        assert "a member subscribes to the topic" in refused.out
        assert "1 of 1 offsets were not deleted" in refused.err


# -- reading -----------------------------------------------------------------------------------


def test_consuming_as_a_member_goes_on_where_the_group_left_off(group_broker, run, group, topic):
    def consumed(*options):
        done = run("consume", topic, "--group", group, "-f", r"%p/%o\n", *options)
        assert done.code == 0, done.err
        return sorted(done.out.split())

    first = consumed("-n", "7")
    assert len(first) == 7
    assert (
        sum(partition["committed_offset"] or 0 for partition in lag_of(run, group)["partitions"])
        == 7
    )
    rest = consumed()
    assert sorted(first + rest) == [f"{at}/{offset}" for at in range(3) for offset in range(10)]
    assert consumed() == []
    write(group_broker, topic, 1, partitions=[2])
    assert consumed() == ["2/10"]
    assert described(run, group)["members"] == []
    wrong = run("consume", topic, "--group", group, "--from", "5")
    assert wrong.code == 2
    assert "hightide group reset" in wrong.err
    assert run("consume", topic, "--group", group, "-p", "1").code == 2


# -- several brokers ---------------------------------------------------------------------------


@pytest.mark.extended
def test_a_coordinator_that_dies_is_looked_for_until_another_has_taken_over(capfd, monkeypatch):
    settings = {
        "offsets.topic.num.partitions": 6,
        "default.replication.factor": 3,
        "zookeeper.session.timeout.ms": 2000,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        run = runner(cluster.bootstrap, capfd, monkeypatch)
        topic = cluster.create_topic(partitions=1)
        groups = [new_group() for _ in range(8)]
        for name in groups:
            assert run("group", "reset", name, "--to-latest", "--topic", topic).code == 0
        rows = {row["group"]: row for row in run("group", "list", "-o", "json").json}
        assert set(rows) == set(groups)
        assert len({row["coordinator"] for row in rows.values()}) > 1
        name = groups[0]
        cluster.kill(rows[name]["coordinator"])
        after = described(run, name)
        assert after["coordinator"] != rows[name]["coordinator"]
        # It may have been the leader of the topic too; the next leader is known a moment later.
        eventually(lambda: run("group", "lag", name, "-o", "json").code == 0)
        assert lag_of(run, name)["partitions"][0]["committed_at"]
