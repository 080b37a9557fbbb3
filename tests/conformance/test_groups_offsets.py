"""Committed offsets by raw requests: kept unchanged, refused where they must be, in the log."""

from __future__ import annotations

import pytest

from hightide.core.metadata.topic_names import CONSUMER_OFFSETS, partition_for
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.offsets import OffsetFetchRequest
from hightide.wire.records.consumer_offsets import GroupMetadataKey, OffsetCommitKey, decode
from tests.conformance.adapters import confluent, kafka_python
from tests.conformance.conftest import GROUP_SETTINGS
from tests.conformance.group_history import check_group_log, written_for
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    RawMember,
    commit,
    delete_groups,
    delete_offsets,
    describe,
    fetch_group,
    fetch_offsets,
    find,
    new_group,
    offsets_of,
    share,
)
from tests.support.eventually import eventually

NO_OFFSET = -1
STRANGER = "stranger-00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def topic(group_broker):
    return group_broker.create_topic(partitions=4)


@pytest.fixture
def raw(group_broker):
    with Raw(group_broker) as made:
        eventually(lambda: find(made, "any").error_code == 0)
        yield made


@pytest.fixture
def group():
    return new_group()


# -- commit and fetch ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_of_a_commit_is_kept(raw, group, topic, version):
    found = commit(raw, group, {(topic, 0): 7}, version, note="a note", epoch=0)
    assert found == [ErrorCode.NONE]
    (kept,) = fetch_offsets(raw, group, [(topic, 0)]).values()
    assert (kept.committed_offset, kept.metadata) == (7, "a note")
    assert kept.committed_leader_epoch == (0 if version >= 6 else -1)


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_of_a_fetch_tells_it(raw, group, topic, version):
    commit(raw, group, {(topic, 0): 7, (topic, 2): 0}, note="a note", epoch=0)
    found = fetch_offsets(raw, group, [(topic, 0), (topic, 1), (topic, 2)], version)
    assert {place: committed.committed_offset for place, committed in found.items()} == {
        (topic, 0): 7,
        (topic, 1): NO_OFFSET,
        (topic, 2): 0,
    }
    assert {committed.error_code for committed in found.values()} == {0}
    assert found[topic, 0].metadata == "a note"
    assert found[topic, 1].metadata == ""
    assert found[topic, 0].committed_leader_epoch == (0 if version >= 5 else -1)


@pytest.mark.parametrize("version", range(2, 10))
def test_all_offsets_of_a_group_are_told_when_none_are_named(raw, group, topic, version):
    commit(raw, group, {(topic, 0): 7, (topic, 2): 9})
    found = fetch_offsets(raw, group, None, version)
    assert {place: committed.committed_offset for place, committed in found.items()} == {
        (topic, 0): 7,
        (topic, 2): 9,
    }
    assert fetch_offsets(raw, new_group(), None, version) == {}


@pytest.mark.parametrize("version", [8, 9])
def test_offsets_of_several_groups_are_told_at_once(raw, topic, version):
    groups = [new_group() for _ in range(5)]
    for number, group in enumerate(groups):
        commit(raw, group, {(topic, 0): number})
    wanted = [fetch_group(group, {topic: [0]}) for group in groups[:-1]]
    wanted += [fetch_group(groups[-1], None), fetch_group("unknown", {topic: [0]})]
    answer = raw.ask(OffsetFetchRequest(groups=wanted), version)
    assert [group.group_id for group in answer.groups] == [*groups, "unknown"]
    assert [group.topics[0].partitions[0].committed_offset for group in answer.groups] == [
        *range(5),
        NO_OFFSET,
    ]


def test_a_commit_replaces_the_one_before(raw, group, topic):
    for offset in (7, 3, 12):
        commit(raw, group, {(topic, 0): offset}, note=f"at {offset}")
    (kept,) = fetch_offsets(raw, group, None).values()
    assert (kept.committed_offset, kept.metadata) == (12, "at 12")


def test_a_note_may_be_missing(raw, group, topic):
    assert commit(raw, group, {(topic, 0): 7}, note=None) == [ErrorCode.NONE]
    (kept,) = fetch_offsets(raw, group, None).values()
    assert kept.metadata == ""


@pytest.mark.parametrize("version", [2, 9])
def test_a_note_may_have_4096_bytes_and_no_more(raw, group, topic, version):
    offsets = {(topic, 0): 7}
    assert commit(raw, group, offsets, version, note="x" * 4096) == [ErrorCode.NONE]
    offsets = {(topic, 0): 8}
    too_large = [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert commit(raw, group, offsets, version, note="x" * 4097) == too_large
    assert offsets_of(raw, group) == {(topic, 0): 7}


@pytest.mark.parametrize("version", [2, 9])
def test_offsets_of_what_does_not_exist_are_not_kept(raw, group, topic, version):
    offsets = {(topic, 0): 7, (topic, 4): 8, ("no-such-topic", 0): 9, (topic, -1): 1}
    assert commit(raw, group, offsets, version) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert offsets_of(raw, group) == {(topic, 0): 7}


def test_a_commit_of_nothing_makes_no_group(raw, group):
    assert commit(raw, group, {}) == []
    assert describe(raw, group).group_state == "Dead"


def test_a_commit_as_a_member_of_a_group_without_members_is_refused(raw, group, topic):
    commit(raw, group, {(topic, 0): 7})
    offsets = {(topic, 0): 8}
    found = commit(raw, group, offsets, generation=1, member_id=STRANGER)
    assert found == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert offsets_of(raw, group) == {(topic, 0): 7}


def test_stable_offsets_are_told_when_nothing_is_open(raw, group, topic):
    commit(raw, group, {(topic, 0): 7})
    for version in (7, 8, 9):
        (kept,) = fetch_offsets(raw, group, [(topic, 0)], version, require_stable=True).values()
        assert (kept.error_code, kept.committed_offset) == (0, 7)


def test_fetching_changes_nothing(raw, group, topic):
    assert offsets_of(raw, group, (topic, 0)) == {(topic, 0): NO_OFFSET}
    assert offsets_of(raw, group, ("no-such-topic", 9)) == {("no-such-topic", 9): NO_OFFSET}
    assert describe(raw, group).group_state == "Dead"


# -- expiration ----------------------------------------------------------------------------------


def test_offsets_are_deleted(raw, group, topic):
    commit(raw, group, {(topic, 0): 7, (topic, 1): 8})
    answer = delete_offsets(raw, group, (topic, 0))
    assert answer.error_code == 0
    assert answer.topics[0].partitions[0].error_code == 0
    assert offsets_of(raw, group) == {(topic, 1): 8}


def test_offsets_of_what_does_not_exist_cannot_be_deleted(raw, group, topic):
    commit(raw, group, {(topic, 0): 7})
    answer = delete_offsets(raw, group, (topic, 9), ("no-such-topic", 0))
    assert answer.error_code == 0
    assert {topic.partitions[0].error_code for topic in answer.topics} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert offsets_of(raw, group) == {(topic, 0): 7}


def test_offsets_of_an_unknown_group_cannot_be_deleted(raw, group, topic):
    answer = delete_offsets(raw, group, (topic, 0))
    assert ErrorCode(answer.error_code) is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_subscribed_topics_cannot_be_deleted(group_broker, raw, group, topic):
    other = group_broker.create_topic()
    commit(raw, group, {(other, 0): 5})
    member = RawMember(raw, group, (topic,)).form((topic, 0))
    assert member.commit({(topic, 0): 7}) == [ErrorCode.NONE]
    answer = delete_offsets(raw, group, (topic, 0), (other, 0))
    assert answer.error_code == 0
    assert {topic.name: ErrorCode(topic.partitions[0].error_code) for topic in answer.topics} == {
        topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        other: ErrorCode.NONE,
    }
    assert offsets_of(raw, group) == {(topic, 0): 7}


def test_offsets_of_a_deleted_topic_are_forgotten(group_broker, raw, group, topic):
    doomed = group_broker.create_topic()
    commit(raw, group, {(doomed, 0): 5, (topic, 0): 6})
    confluent.delete_topic(group_broker.bootstrap, doomed)
    eventually(lambda: offsets_of(raw, group) == {(topic, 0): 6})


def test_deleted_groups_take_their_offsets_with_them(raw, topic):
    empty, busy, unknown = new_group(), new_group(), new_group()
    commit(raw, empty, {(topic, 0): 7})
    member = RawMember(raw, busy, (topic,)).form((topic, 0))
    member.commit({(topic, 0): 7})
    assert delete_groups(raw, empty, busy, unknown) == [
        ErrorCode.NONE,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert offsets_of(raw, empty) == {}
    assert offsets_of(raw, busy) == {(topic, 0): 7}
    assert member.heartbeat() is ErrorCode.NONE
    assert delete_groups(raw, empty) == [ErrorCode.GROUP_ID_NOT_FOUND]
    for version in (0, 1, 2):
        assert delete_groups(raw, unknown, version=version) == [ErrorCode.GROUP_ID_NOT_FOUND]


# -- in the log ----------------------------------------------------------------------------------


def test_the_topic_of_offsets_holds_what_kafka_would_write(group_broker, raw, group, topic):
    member = RawMember(raw, group, (topic,)).form((topic, 0), (topic, 1))
    member.commit({(topic, 0): 7}, note="a note", epoch=0)
    member.leave()
    found = eventually(
        lambda: [
            written
            for written in [written_for(group_broker.data(), group)]
            if isinstance(written[-1].key, GroupMetadataKey) and not written[-1].value.members
        ]
    )[0]
    commits = [value for key, value in found if isinstance(key, OffsetCommitKey)]
    assert [(commit.offset, commit.leader_epoch, commit.metadata) for commit in commits] == [
        (7, 0, "a note")
    ]
    states = [value for key, value in found if isinstance(key, GroupMetadataKey)]
    stable = next(state for state in states if state.members)
    assert (stable.generation, stable.protocol, stable.leader) == (1, "range", member.member_id)
    assert stable.members[0].member_id == member.member_id
    assert stable.members[0].assignment == share((topic, 0), (topic, 1))
    assert check_group_log(found, [(topic, 0), (topic, 1)]) == 2


def test_the_topic_of_offsets_is_compacted_and_can_be_read(group_broker, raw, group, topic):
    commit(raw, group, {(topic, 0): 7})
    config = kafka_python.get_config(group_broker.bootstrap, CONSUMER_OFFSETS)
    assert config["cleanup.policy"] == "compact"
    assert config["compression.type"] == "producer"
    assert config["segment.bytes"] == str(100 * 2**20)
    name, count = CONSUMER_OFFSETS, GROUP_SETTINGS["offsets.topic.num.partitions"]
    assert len(confluent.describe_topic(group_broker.bootstrap, name)) == count
    index = partition_for(group, count)
    _, end = kafka_python.bounds(group_broker.bootstrap, name, index)
    found = kafka_python.read(group_broker.bootstrap, name, end, partition=index)
    keys = [decode(partition.key, partition.value).key for partition in found]
    assert OffsetCommitKey(group=group, topic=topic, partition=0) in keys
