"""The consumer protocol (KIP-848): the coordinator assigns, and both kinds of members mix."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import Any

import pytest

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    OwnedTopicPartitions,
)
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.types import NO_UUID
from tests.conformance.adapters import DEADLINE_S, Record, Refused, confluent, kafka_python
from tests.conformance.consuming import Consuming, ConsumingProcess, told
from tests.conformance.group_history import GroupHistory
from tests.conformance.members import MEMBERS, ConfluentMember
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    RawMember,
    commit,
    delete_groups,
    describe,
    fetch_offsets,
    find,
    leave,
    listed,
    new_group,
    offsets_of,
)
from tests.support.eventually import eventually

NEWER: dict[str, Any] = {"group.protocol": "consumer"}
CLIENT = ConfluentMember.client
PARTITIONS = 4
RECORDS = 30
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2


@pytest.fixture
def topic(group_broker):
    """Four partitions with thirty records each."""
    made = group_broker.create_topic(partitions=PARTITIONS)
    write_more(group_broker, made)
    return made


def write_more(cluster, topic, count=RECORDS):
    for index in range(PARTITIONS):
        sent = [Record(b"%d" % at) for at in range(count)]
        confluent.produce(cluster.bootstrap, topic, sent, partition=index)


def ends_of(topic, count=RECORDS):
    return {(topic, index): count for index in range(PARTITIONS)}


@pytest.fixture
def raw(group_broker):
    with Raw(group_broker) as made:
        eventually(lambda: find(made, "any").error_code == 0)
        yield made


@pytest.fixture
def group():
    return new_group()


def newer(cluster, group, *topics, **settings):
    instance = settings.pop("instance", None)
    return ConfluentMember(cluster.bootstrap, group, topics, instance=instance, **NEWER, **settings)


def poll_until(condition, *members):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(0.05)


def described(raw, group, version=1):
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    return raw.ask(request, version).groups[0]


# -- with a client -------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_stopped(group_broker, raw, group, topic):
    with newer(group_broker, group, topic) as member:
        found = member.read(PARTITIONS * RECORDS)
        assert {(record.place, record.offset) for record in found} == {
            (place, offset) for place, end in ends_of(topic).items() for offset in range(end)
        }
        member.commit()
        assert member.committed(ends_of(topic)) == ends_of(topic)
        assert listed(raw)[group].group_type == "consumer"
    assert offsets_of(raw, group) == ends_of(topic)
    write_more(group_broker, topic, 3)
    with newer(group_broker, group, topic) as member:
        found = member.read(PARTITIONS * 3)
    assert {record.offset for record in found} == {RECORDS, RECORDS + 1, RECORDS + 2}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_partitions_are_shared_out_and_taken_over(group_broker, raw, group, topic, assignor):
    history = GroupHistory()
    with ExitStack() as stack:

        def join(name, kind=Consuming):
            made = kind(
                history,
                name,
                CLIENT,
                group_broker.bootstrap,
                group,
                [topic],
                **NEWER,
                **{"group.remote.assignor": assignor},
            )
            stack.callback(made.ended)
            return made

        join("one")
        told(history, one=4)
        doomed = join("doomed", ConsumingProcess)
        told(history, one=2, doomed=2)
        two = join("two")
        eventually(lambda: sorted(map(len, history.owned().values())) == [1, 1, 2])
        found = described(raw, group)
        assert (found.group_state, found.assignor_name) == ("Stable", assignor)
        assert len(found.members) == 3
        write_more(group_broker, topic, 5)
        eventually(lambda: history.committed() == ends_of(topic, RECORDS + 5))
        # A killed member is removed when its session expires, one that leaves at once.
        doomed.kill() if assignor == "uniform" else doomed.ended()
        write_more(group_broker, topic, 5)
        told(history, one=2, two=2)
        two.ended()
        told(history, one=4)
        eventually(lambda: history.committed() == ends_of(topic, RECORDS + 10))
    history.checked(ends_of(topic, RECORDS + 10))
    assert offsets_of(raw, group) == ends_of(topic, RECORDS + 10)


def test_topics_are_subscribed_by_an_expression_that_the_broker_knows(group_broker, group):
    name = f"expressed-{time.monotonic_ns()}"
    group_broker.create_topic(f"{name}-1", partitions=2)
    group_broker.create_topic(f"other-{name}", partitions=2)
    with newer(group_broker, group, f"^{name}-.*") as member:
        member.join(2)
        group_broker.create_topic(f"{name}-2", partitions=1)
        member.join(3)
        assert {topic for topic, _ in member.assignment()} == {f"{name}-1", f"{name}-2"}


def test_a_bad_expression_is_refused(raw, group):
    answer = heartbeat(raw, group, subscribed_topic_regex="a(")
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_static_member_comes_back_to_its_partitions(group_broker, raw, group, topic):
    with ExitStack() as stack:
        one = stack.enter_context(newer(group_broker, group, topic, instance="one"))
        two = stack.enter_context(newer(group_broker, group, topic, instance="two"))
        poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
        mine, changes = two.assignment(), len(one.changes)
        epoch = described(raw, group).group_epoch
        two.close()
        assert len(described(raw, group).members) == 2
        again = stack.enter_context(newer(group_broker, group, topic, instance="two"))
        again.join(2)
        assert again.assignment() == mine
        one.poll(0.3)
        assert len(one.changes) == changes
        assert described(raw, group).group_epoch == epoch


def test_partitions_that_are_added_are_shared_out(group_broker, group):
    topic = group_broker.create_topic(partitions=1)
    with newer(group_broker, group, topic) as member:
        member.join(1)
        confluent.add_partitions(group_broker.bootstrap, topic, 3)
        member.join(3)


def test_the_admin_clients_know_such_groups(group_broker, raw, group, topic):
    with newer(group_broker, group, topic) as member:
        member.join(4)
        for client in (confluent, kafka_python):
            assert client.groups(group_broker.bootstrap, kind="consumer")[group] == (
                "stable",
                "consumer",
            )
            assert group not in client.groups(group_broker.bootstrap, kind="classic")
        assert confluent.describe_group(group_broker.bootstrap, group) == (
            "stable",
            {member.member_id(): set(ends_of(topic))},
        )
        with pytest.raises(Refused) as refusal:
            confluent.delete_group(group_broker.bootstrap, group)
        assert refusal.value.name == "NON_EMPTY_GROUP"
    assert confluent.describe_group(group_broker.bootstrap, group) == ("empty", {})
    confluent.delete_group(group_broker.bootstrap, group)
    assert group not in listed(raw)


# -- from one protocol to the other --------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("other", MEMBERS)
def test_a_group_is_carried_over_and_back_while_it_works(group_broker, raw, group, topic, other):
    """Members change the protocol one by one, as in a rolling restart."""
    history = GroupHistory()
    options = {} if other != CLIENT else {"assignor": "cooperative-sticky"}
    with ExitStack() as stack:

        def join(name, kind, **given):
            made = Consuming(history, name, kind, group_broker.bootstrap, group, [topic], **given)
            stack.callback(made.ended)
            return made

        old = join("old", other, **options)
        told(history, old=4)
        new = join("new", CLIENT, **NEWER)
        told(history, old=2, new=2)
        assert listed(raw)[group].group_type == "consumer"
        old.ended()
        told(history, new=4)
        write_more(group_broker, topic, 5)
        eventually(lambda: history.committed() == ends_of(topic, RECORDS + 5))
        join("back", other, **options)
        told(history, back=2, new=2)
        new.ended()
        told(history, back=4)
        eventually(lambda: listed(raw)[group].group_type == "classic")
        write_more(group_broker, topic, 5)
        eventually(lambda: history.committed() == ends_of(topic, RECORDS + 10))
    history.checked(ends_of(topic, RECORDS + 10))
    assert offsets_of(raw, group) == ends_of(topic, RECORDS + 10)


# -- by hand -------------------------------------------------------------------------------------


def heartbeat(raw, group, member_id=None, epoch=JOIN, version=1, **given):
    values = {
        "group_id": group,
        "member_id": str(uuid.uuid4()) if member_id is None else member_id,
        "member_epoch": epoch,
    }
    if epoch == JOIN:
        values |= {"rebalance_timeout_ms": 5000, "topic_partitions": []}
    return raw.ask(ConsumerGroupHeartbeatRequest(**values | given), version)


def topic_id(raw, topic):
    answer = raw.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    return answer.topics[0].topic_id


def shares(answer):
    return {
        (topic_partition.topic_id, index)
        for topic_partition in answer.assignment.topic_partitions
        for index in topic_partition.partitions
    }


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_lives_in_every_version(raw, group, topic, version):
    given = None if version == 0 else str(uuid.uuid4())
    answer = heartbeat(raw, group, given or "", version=version, subscribed_topic_names=[topic])
    assert (answer.error_code, answer.member_epoch) == (0, 1)
    assert answer.heartbeat_interval_ms == 300
    member_id = answer.member_id
    assert member_id
    assert given in (None, member_id)
    wanted = {(topic_id(raw, topic), index) for index in range(PARTITIONS)}
    assert shares(answer) == wanted
    owned = [OwnedTopicPartitions(topic_id=topic_id(raw, topic), partitions=[0, 1, 2, 3])]
    answer = heartbeat(raw, group, member_id, 1, version, topic_partitions=owned)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 1, None)
    found = described(raw, group, version)
    assert (found.error_code, found.group_state, found.group_epoch) == (0, "Stable", 1)
    (member,) = found.members
    assert (member.member_id, member.member_epoch) == (member_id, 1)
    assert member.subscribed_topic_names == [topic]
    assert {
        topic_partition.topic_name for topic_partition in member.assignment.topic_partitions
    } == {topic}
    offsets = {(topic, 0): 7}
    assert commit(raw, group, offsets, generation=1, member_id=member_id) == [ErrorCode.NONE]
    kept = fetch_offsets(raw, group, [(topic, 0)], 9, member_id=member_id, member_epoch=1)
    assert kept[topic, 0].committed_offset == 7
    answer = heartbeat(raw, group, member_id, LEAVE, version)
    assert (answer.error_code, answer.member_epoch) == (0, LEAVE)
    assert described(raw, group).group_state == "Empty"


@pytest.fixture
def member(raw, group, topic):
    """Return id and epoch of the only member."""
    answer = heartbeat(raw, group, subscribed_topic_names=[topic])
    assert answer.error_code == 0, answer
    return answer.member_id, answer.member_epoch


def test_strangers_and_old_epochs_can_do_nothing(raw, group, topic, member):
    member_id, epoch = member
    stranger = str(uuid.uuid4())

    def heartbeat_error(*member, **given):
        return ErrorCode(heartbeat(raw, group, *member, **given).error_code)

    assert heartbeat_error(stranger, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat_error(stranger, LEAVE) is ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeat_error(member_id, epoch + 5) is ErrorCode.FENCED_MEMBER_EPOCH
    offsets = {(topic, 0): 7}
    for sender, generation, error in (
        (stranger, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (member_id, epoch - 1, ErrorCode.STALE_MEMBER_EPOCH),
        (member_id, epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert commit(raw, group, offsets, generation=generation, member_id=sender) == [error]
    # Versions before 9 have no epochs.
    old = commit(raw, group, offsets, 8, generation=epoch + 1, member_id=member_id)
    assert old == [ErrorCode.UNSUPPORTED_VERSION]
    assert offsets_of(raw, group) == {}
    with pytest.raises(AssertionError, match="STALE_MEMBER_EPOCH"):
        fetch_offsets(raw, group, None, 9, member_id=member_id, member_epoch=epoch + 1)
    with pytest.raises(AssertionError, match="UNKNOWN_MEMBER_ID"):
        fetch_offsets(raw, group, None, 9, member_id=stranger, member_epoch=epoch)
    assert heartbeat_error(member_id, epoch) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "nonsense"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (
            {"topic_partitions": [OwnedTopicPartitions(topic_id=NO_UUID, partitions=[0])]},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(raw, group, topic, wrong, error):
    values = {"subscribed_topic_names": [topic], **wrong}
    group_id = values.pop("group_id", group)
    answer = heartbeat(
        raw, group_id, values.pop("member_id", None), values.pop("member_epoch", JOIN), **values
    )
    assert ErrorCode(answer.error_code) is error
    assert group not in listed(raw)


def test_a_member_that_is_silent_is_dropped_when_its_session_ends(raw, group, member):
    eventually(lambda: described(raw, group).group_state == "Empty", 10)
    answer = heartbeat(raw, group, *member)
    assert ErrorCode(answer.error_code) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_members_name_is_taken_while_it_is_there(raw, group, topic):
    given = {"subscribed_topic_names": [topic], "instance_id": "one"}
    first = heartbeat(raw, group, **given)
    assert first.error_code == 0
    second = heartbeat(raw, group, **given)
    assert ErrorCode(second.error_code) is ErrorCode.UNRELEASED_INSTANCE_ID
    answer = heartbeat(raw, group, first.member_id, LEAVE_FOR_A_WHILE, instance_id="one")
    assert (answer.error_code, answer.member_epoch) == (0, LEAVE_FOR_A_WHILE)
    again = heartbeat(raw, group, **given)
    assert again.error_code == 0
    assert shares(again) == shares(first)


@pytest.mark.parametrize("name", [None, ""])
def test_what_a_member_is_given_is_looked_up_by_its_id(raw, topic, name):
    wanted = MetadataRequestTopic(topic_id=topic_id(raw, topic), name=name)
    (found,) = raw.ask(MetadataRequest(topics=[wanted]), 13).topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, topic, PARTITIONS)
    unknown = MetadataRequestTopic(topic_id=uuid.uuid4(), name=name)
    (found,) = raw.ask(MetadataRequest(topics=[unknown]), 13).topics
    assert ErrorCode(found.error_code) is ErrorCode.UNKNOWN_TOPIC_ID


def test_members_are_removed_by_their_names(raw, group, topic, member):
    named = heartbeat(raw, group, subscribed_topic_names=[topic], instance_id="one")
    assert named.error_code == 0
    wanted = [("", "one"), ("", "another"), (member[0], None)]
    answer = leave(raw, group, wanted)
    # In the requested order, not in that of the group: Java's admin client relies on it.
    assert [(member.member_id, member.group_instance_id) for member in answer.members] == wanted
    assert [ErrorCode(member.error_code) for member in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert described(raw, group).group_state == "Empty"


def test_each_kind_of_group_is_described_by_its_own_request(raw, group, topic, member):
    assert describe(raw, group, 5).group_state == "Dead"
    classic = new_group()
    RawMember(raw, classic, (topic,)).form((topic, 0))
    assert ErrorCode(described(raw, classic).error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    unknown = described(raw, new_group())
    assert ErrorCode(unknown.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_groups(raw, group) == [ErrorCode.NON_EMPTY_GROUP]
