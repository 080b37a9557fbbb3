"""Groups whose coordinator is killed, moved, paused or isolated: committed offsets stay."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
from hightide.testing import Cluster
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.offsets import OffsetFetchRequest
from tests.conformance.adapters import Record, confluent
from tests.conformance.conftest import GROUP_SETTINGS
from tests.conformance.consuming import Consuming, ConsumingProcess
from tests.conformance.group_history import UNKNOWN, GroupHistory, check_group_log, written_for
from tests.conformance.history import History
from tests.conformance.members import MEMBERS, KafkaPythonMember
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    RawMember,
    commit,
    commit_request,
    fetch_group,
    find,
    new_group,
    offsets_of,
)
from tests.conformance.replicated import SETTINGS, Replicated
from tests.conformance.workload import ConfluentWriting
from tests.support.eventually import eventually

PARTITIONS = 4
SESSION_MS = 10_000
"""Longer than a coordinator is down, so no member loses its partitions."""


pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def _trio():
    """Three brokers, one of which coordinates all groups."""
    settings = {
        **GROUP_SETTINGS,
        **SETTINGS,
        "zookeeper.session.timeout.ms": 2000,
        "auto.leader.rebalance.enable": False,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 3,
        "offsets.commit.timeout.ms": 1000,
    }
    with Replicated(3, settings=settings) as cluster:
        with Raw(cluster) as raw:
            eventually(lambda: find(raw, "any").error_code == 0)
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture
def trio(_trio):
    _trio.heal()
    return _trio


@pytest.fixture
def group():
    return new_group()


def coordinator(cluster, *, not_any_of=()):
    return cluster.leader_now(CONSUMER_OFFSETS, not_any_of=not_any_of)


def joined(stack, history, client, cluster, group, topic, name="one"):
    """Start a member that runs until the stack is closed."""
    # kafka-python leaks sockets to stopped brokers: not in this process.
    kind = ConsumingProcess if client == KafkaPythonMember.client else Consuming
    made = kind(history, name, client, cluster.bootstrap, group, [topic], session_ms=SESSION_MS)
    stack.callback(made.ended)


class Groups:
    """A group of each client that reads one topic while a producer writes."""

    def __init__(self, cluster, stack):
        self.cluster = cluster
        self.topic = cluster.create_topic(partitions=PARTITIONS)
        self.written = History()
        self.writing = ConfluentWriting(
            self.written, cluster.bootstrap, self.topic, range(PARTITIONS)
        )
        self.histories = {name: GroupHistory() for name in MEMBERS}
        self.names = {name: f"{new_group()}-{name}" for name in MEMBERS}
        self.writing.start()
        for client, history in self.histories.items():
            for member in ("one", "two"):
                joined(stack, history, client, cluster, self.names[client], self.topic, member)
        eventually(self.have_shared)

    def have_shared(self):
        return all(
            sorted(map(len, history.owned().values())) == [2, 2]
            for history in self.histories.values()
        )

    def go_on(self):
        """Wait until every member has committed more than before."""
        eventually(lambda: len(self.written.ends()) == PARTITIONS)
        ends = self.written.ends()
        eventually(lambda: all(self.written.ends()[end] > ends[end] for end in ends))
        eventually(
            lambda: all(
                history.committed().get(place, 0) > end
                for history in self.histories.values()
                for place, end in ends.items()
            )
        )

    def finish(self):
        self.writing.is_stopping.set()
        self.writing.ended()
        ends = self.written.ends()
        for history in self.histories.values():
            eventually(lambda history=history: history.committed() == ends)
        return ends


@pytest.fixture
def working(trio):
    """Running groups, checked after the test when all brokers are back."""
    with ExitStack() as stack:
        groups = Groups(trio, stack)
        yield groups
        trio.heal()
        groups.go_on()
        ends = groups.finish()
    trio.check_equal_logs(CONSUMER_OFFSETS)
    for client, history in groups.histories.items():
        history.checked(ends)
        for broker_id in trio.brokers:
            records = written_for(trio.data(broker_id), groups.names[client])
            check_group_log(records, ends)
        with Raw(trio, coordinator(trio)) as raw:
            assert offsets_of(raw, groups.names[client]) == ends


@pytest.mark.extended
def test_groups_survive_the_death_of_their_coordinator(trio, working):
    before = coordinator(trio)
    trio.kill(before)
    assert coordinator(trio, not_any_of=[before]) != before
    working.go_on()


@pytest.mark.extended
def test_a_group_does_not_notice_that_its_coordinator_moves(trio, group):
    topic = trio.create_topic(partitions=2)
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                kind(trio.bootstrap, f"{group}-{name}", [topic], session_ms=SESSION_MS)
            )
            for name, kind in MEMBERS.items()
        ]
        for member in members:
            member.join(2)
        before = [(member.generation(), member.member_id()) for member in members]
        changes = [len(member.changes) for member in members]
        moved = trio.followers(CONSUMER_OFFSETS)[0]
        trio.lead_with(CONSUMER_OFFSETS, moved)
        for index in (0, 1):
            sent = [Record(b"%d" % at) for at in range(5)]
            confluent.produce(trio.bootstrap, topic, sent, partition=index)
        for member in members:
            member.read(10)
            member.commit()
            assert member.committed([(topic, 0), (topic, 1)]) == {(topic, 0): 5, (topic, 1): 5}
        assert [(member.generation(), member.member_id()) for member in members] == before
        assert [len(member.changes) for member in members] == changes


@pytest.mark.extended
def test_a_commit_to_a_coordinator_that_is_one_no_more_is_not_accepted(trio, group):
    topic = trio.create_topic()
    place = (topic, 0)
    before = coordinator(trio)
    with Raw(trio, before) as raw:
        assert commit(raw, group, {place: 1}) == [ErrorCode.NONE]
        late = commit_request(group, {place: 2})
        trio.pause(before)
        raw.begin(late, 9)
        after = coordinator(trio, not_any_of=[before])
        with Raw(trio, after) as other:
            eventually(lambda: commit(other, group, {place: 3}) == [ErrorCode.NONE])
            trio.resume(before)
            answer = raw.end(late, 9)
            # It may also have closed the connection: then no response was sent.
            if answer is not None:
                assert answer.topics[0].partitions[0].error_code != 0
            trio.heal()
            assert offsets_of(other, group) == {place: 3}
            assert commit(raw, group, {place: 4}) == [ErrorCode.NOT_COORDINATOR]


@pytest.mark.extended
def test_a_coordinator_without_enough_replicas_keeps_nothing(trio, group):
    topic = trio.create_topic()
    leader = coordinator(trio)
    with Raw(trio, leader) as raw:
        assert commit(raw, group, {(topic, 0): 1}) == [ErrorCode.NONE]
        for broker_id in trio.followers(CONSUMER_OFFSETS):
            trio.kill(broker_id)
        trio.leader_now(CONSUMER_OFFSETS)
        eventually(lambda: trio.all_say_isr(CONSUMER_OFFSETS, [leader]))
        refused = commit(raw, group, {(topic, 0): 2})
        assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert offsets_of(raw, group) == {(topic, 0): 1}
        trio.heal()
        assert offsets_of(raw, group) == {(topic, 0): 1}
        eventually(lambda: commit(raw, group, {(topic, 0): 3}) == [ErrorCode.NONE])


def test_a_broker_that_does_not_coordinate_a_group_says_so(trio, group):
    other = trio.followers(CONSUMER_OFFSETS)[0]
    with Raw(trio, other) as raw:
        assert find(raw, group).node_id == coordinator(trio)
        assert RawMember(raw, group).join() is ErrorCode.NOT_COORDINATOR
        assert commit(raw, group, {("any", 0): 1}) != [ErrorCode.NONE]


# -- one broker ----------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_group_goes_on_when_its_broker_is_back(group):
    with Cluster(settings=GROUP_SETTINGS) as cluster, ExitStack() as stack:
        topic = cluster.create_topic()
        place = (topic, 0)
        histories = {name: GroupHistory() for name in MEMBERS}
        for client, history in histories.items():
            joined(stack, history, client, cluster, f"{group}-{client}", topic)
        with Raw(cluster) as raw:
            eventually(lambda: find(raw, group).error_code == 0)
            assert commit(raw, group, {place: 5}, note="a note", epoch=0) == [ErrorCode.NONE]
        confluent.produce(cluster.bootstrap, topic, [Record(b"1")])
        for committing in histories.values():
            eventually(lambda committing=committing: committing.committed() == {place: 1})
        cluster.kill()
        cluster.restart()
        with Raw(cluster) as raw:
            for client in histories:
                kept = eventually(lambda client=client: look(raw, f"{group}-{client}"))
                assert kept[place].committed_offset == 1
            kept = eventually(lambda: look(raw, group))[place]
            assert (kept.committed_offset, kept.metadata) == (5, "a note")
            assert kept.committed_leader_epoch == 0
        confluent.produce(cluster.bootstrap, topic, [Record(b"2")])
        for committing in histories.values():
            eventually(lambda committing=committing: committing.committed() == {place: 2})
            assert [event.kind for event in committing.events].count("assigned") == 1
            generations = {
                event.generation for event in committing.events if event.kind == "delivered"
            }
            assert len(generations - {UNKNOWN}) == 1
        assert "Traceback" not in cluster.log()


def look(raw, group):
    """Return the committed offsets, after the coordinator has loaded its log."""
    request = OffsetFetchRequest(groups=[fetch_group(group, None)])
    (answer,) = raw.ask(request, 9).groups
    return {
        (topic.name, partition.partition_index): partition
        for topic in answer.topics
        for partition in topic.partitions
    }
