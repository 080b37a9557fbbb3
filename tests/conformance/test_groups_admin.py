"""Groups described and changed with admin clients and with raw requests."""

from __future__ import annotations

import pytest

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from tests.conformance.adapters import Record, Refused, confluent, values
from tests.conformance.members import MEMBERS
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    RawMember,
    commit,
    describe,
    find,
    listed,
    new_group,
    offsets_of,
    share,
)
from tests.support.eventually import eventually


@pytest.fixture(scope="module")
def topic(group_broker):
    """Two partitions with ten records each."""
    made = group_broker.create_topic(partitions=2)
    for index in (0, 1):
        sent = [Record(b"%d" % at) for at in range(10)]
        confluent.produce(group_broker.bootstrap, made, sent, partition=index)
    return made


@pytest.fixture
def raw(group_broker):
    with Raw(group_broker) as made:
        eventually(lambda: find(made, "any").error_code == 0)
        yield made


@pytest.fixture
def group():
    return new_group()


@pytest.fixture
def member(raw, group, topic):
    """A member that has both partitions."""
    return RawMember(raw, group, (topic,)).form((topic, 0), (topic, 1))


# -- listing and describing ----------------------------------------------------------------------


@pytest.mark.needs("groups")
def test_groups_are_listed_and_described(group_broker, raw, group, topic, client):
    member = RawMember(raw, group, (topic,)).form((topic, 0), (topic, 1))
    assert client.groups(group_broker.bootstrap)[group] == ("stable", "classic")
    assert client.describe_group(group_broker.bootstrap, group) == (
        "stable",
        {member.member_id: {(topic, 0), (topic, 1)}},
    )
    member.leave()
    assert client.groups(group_broker.bootstrap)[group] == ("empty", "classic")
    assert client.describe_group(group_broker.bootstrap, group) == ("empty", {})


@pytest.mark.needs("groups")
def test_an_unknown_group_is_dead(group_broker, client):
    assert client.describe_group(group_broker.bootstrap, new_group()) == ("dead", {})


@pytest.mark.needs("groups")
def test_groups_are_listed_by_state_and_kind(group_broker, raw, topic, client):
    stable, empty = new_group(), new_group()
    RawMember(raw, stable, (topic,)).form((topic, 0))
    commit(raw, empty, {(topic, 0): 1})

    def found(**filters):
        names = client.groups(group_broker.bootstrap, **filters)
        return stable in names, empty in names

    assert found(state="Stable") == (True, False)
    assert found(state="Empty") == (False, True)
    assert found(state="Dead") == (False, False)
    assert found(kind="Classic") == (True, True)
    assert found(kind="Consumer") == (False, False)
    assert found(state="Empty", kind="Classic") == (False, True)


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists_groups(raw, member, version):
    found = listed(raw, version)[member.group]
    assert found.protocol_type == "consumer"
    assert found.group_state == ("Stable" if version >= 4 else "")
    assert found.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("states", [["stable"], ["STABLE"], ["Stable", "Empty"]])
def test_states_are_asked_for_in_any_letters(raw, member, states):
    assert member.group in listed(raw, states_filter=states)


def test_unknown_states_and_kinds_are_those_of_no_group(raw, member):
    assert listed(raw, states_filter=["Nonsense"]) == {}
    assert listed(raw, types_filter=["nonsense"]) == {}


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes_groups(raw, topic, member, version):
    unknown = new_group()
    request = DescribeGroupsRequest(groups=[member.group, unknown])
    answered = {group.group_id: group for group in raw.ask(request, version).groups}
    known, other = answered[member.group], answered[unknown]
    assert (known.error_code, known.group_state) == (0, "Stable")
    assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
    (found,) = known.members
    assert (found.member_id, found.client_id) == (member.member_id, "raw")
    assert found.client_host == "/127.0.0.1"
    assert found.member_assignment == share((topic, 0), (topic, 1))
    assert found.member_metadata
    assert (other.group_state, other.members) == ("Dead", [])
    assert ErrorCode(other.error_code) is (
        ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    )


def test_allowed_operations_are_told_when_they_are_asked_for(raw, member):
    for asked in (False, True):
        request = DescribeGroupsRequest(groups=[member.group], include_authorized_operations=asked)
        found = raw.ask(request, 5).groups[0].authorized_operations
        assert (found == -(2**31)) is not asked


def test_a_group_of_offsets_alone_is_empty_and_of_no_protocol(raw, group, topic):
    commit(raw, group, {(topic, 0): 3})
    found = listed(raw)[group]
    assert (found.group_state, found.protocol_type) == ("Empty", "")
    assert describe(raw, group).group_state == "Empty"


def test_a_group_that_is_not_the_consumers_is_served_too(raw, group):
    """Kafka Connect and the schema registry use groups with other protocols."""
    member = RawMember(raw, group, protocol_type="connect", protocols=("sessioned",))
    assert member.join() is ErrorCode.NONE
    assert member.sync({member.member_id: b"\x01\x02"}).assignment == b"\x01\x02"
    assert listed(raw)[group].protocol_type == "connect"
    assert describe(raw, group).members[0].member_assignment == b"\x01\x02"
    assert raw.ask(ListGroupsRequest(), 0).error_code == 0


# -- offsets from outside ------------------------------------------------------------------------


@pytest.mark.needs("group-offsets")
def test_committed_offsets_are_told(group_broker, raw, group, topic, client):
    commit(raw, group, {(topic, 0): 3}, note="a note")
    commit(raw, group, {(topic, 1): 9})
    found = client.group_offsets(group_broker.bootstrap, group)
    assert {place: offset for place, (offset, _) in found.items()} == {(topic, 0): 3, (topic, 1): 9}
    assert found[topic, 0][1] in (None, "a note")


@pytest.mark.needs("group-changes")
def test_a_group_is_set_back_and_reads_again(group_broker, raw, group, topic, client):
    commit(raw, group, {(topic, 0): 10, (topic, 1): 10})
    wanted = {(topic, 0): 4, (topic, 1): 8}
    client.set_group_offsets(group_broker.bootstrap, group, wanted)
    assert offsets_of(raw, group) == wanted
    with MEMBERS[client.NAME](group_broker.bootstrap, group, [topic]) as member:
        found = member.read(8)
    assert sorted(record.value or b"" for record in found) == sorted(b"4 5 6 7 8 9 8 9".split())


@pytest.mark.needs("group-changes")
def test_offsets_of_a_group_with_members_cannot_be_changed(
    group_broker, raw, group, topic, member, client
):
    with pytest.raises(Refused) as refusal:
        client.set_group_offsets(group_broker.bootstrap, group, {(topic, 0): 4})
    assert refusal.value.name in {"UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP"}
    assert offsets_of(raw, group) == {}


@pytest.mark.needs("group-offset-deletion")
def test_offsets_are_deleted_unless_a_member_subscribes_to_the_topic(
    group_broker, raw, group, topic, client
):
    commit(raw, group, {(topic, 0): 3, (topic, 1): 4})
    client.delete_group_offsets(group_broker.bootstrap, group, [(topic, 0)])
    assert offsets_of(raw, group) == {(topic, 1): 4}
    RawMember(raw, group, (topic,)).form((topic, 0))
    with pytest.raises(Refused) as refusal:
        client.delete_group_offsets(group_broker.bootstrap, group, [(topic, 1)])
    assert refusal.value.name == "GROUP_SUBSCRIBED_TO_TOPIC"
    assert offsets_of(raw, group) == {(topic, 1): 4}


@pytest.mark.needs("group-changes")
def test_a_group_is_deleted_when_it_is_empty(group_broker, raw, group, topic, client):
    with pytest.raises(Refused) as refusal:
        client.delete_group(group_broker.bootstrap, group)
    assert refusal.value.name == "GROUP_ID_NOT_FOUND"
    member = RawMember(raw, group, (topic,)).form((topic, 0))
    member.commit({(topic, 0): 7})
    with pytest.raises(Refused) as refusal:
        client.delete_group(group_broker.bootstrap, group)
    assert refusal.value.name == "NON_EMPTY_GROUP"
    assert member.heartbeat() is ErrorCode.NONE
    member.leave()
    client.delete_group(group_broker.bootstrap, group)
    assert group not in client.groups(group_broker.bootstrap)
    assert offsets_of(raw, group) == {}


def test_the_records_are_still_there(group_broker, topic):
    """Group requests change nothing but groups."""
    found = confluent.read(group_broker.bootstrap, topic, 10)
    assert values(found) == [b"%d" % at for at in range(10)]
