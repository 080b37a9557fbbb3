"""Consumer groups as users see them: partitions are shared and taken over, and none is left out."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.conformance.adapters import DEADLINE_S, Record, Refused, confluent, kcat
from tests.conformance.consuming import Consuming, ConsumingProcess, told
from tests.conformance.group_history import GroupHistory, check_group_log, written_for
from tests.conformance.members import MEMBERS, ConfluentMember
from tests.conformance.raw import Raw
from tests.conformance.raw_group import describe, fetch_offsets, new_group, offsets_of
from tests.support.eventually import eventually

PARTITIONS = 4
RECORDS = 50
SHORT_MS = 1000

everyone = pytest.mark.parametrize("kind", MEMBERS.values(), ids=MEMBERS)
every_way = pytest.mark.parametrize(
    ("kind", "assignor"),
    [(kind, assignor) for kind in MEMBERS.values() for assignor in sorted(kind.ASSIGNORS)],
    ids=lambda value: value if isinstance(value, str) else value.client,
)


@pytest.fixture
def topic(group_broker):
    """Four partitions with fifty records each."""
    made = group_broker.create_topic(partitions=PARTITIONS)
    write_more(group_broker, made)
    return made


@pytest.fixture
def group():
    return new_group()


def write_more(cluster, topic, count=RECORDS):
    for index in range(PARTITIONS):
        sent = [Record(b"%d" % at) for at in range(count)]
        confluent.produce(cluster.bootstrap, topic, sent, partition=index)


def ends_of(topic, count=RECORDS):
    return {(topic, index): count for index in range(PARTITIONS)}


class Crew:
    """Members of one group, and their history."""

    def __init__(self, cluster, group, topic, stack):
        self.cluster, self.group, self.topic = cluster, group, topic
        self.history = GroupHistory()
        self._stack = stack

    def join(self, name, client, *, process=False, **options):
        made = (ConsumingProcess if process else Consuming)(
            self.history, name, client, self.cluster.bootstrap, self.group, [self.topic], **options
        )
        self._stack.callback(made.ended)
        return made

    def has(self, **wanted):
        told(self.history, **wanted)

    def has_read(self, count=RECORDS):
        eventually(lambda: not self.history.missing(ends_of(self.topic, count)))


@contextmanager
def working(cluster, group, topic, count=RECORDS):
    """A crew whose history is checked at the end, together with the coordinator's log."""
    with ExitStack() as stack:
        crew = Crew(cluster, group, topic, stack)
        yield crew
        ends = ends_of(topic, count)
        eventually(lambda: not crew.history.missing(ends))
        eventually(lambda: crew.history.committed() == ends)
    crew.history.checked(ends)
    records = written_for(cluster.data(), group)
    assert records
    check_group_log(records, ends)
    with Raw(cluster) as raw:
        assert offsets_of(raw, group) == ends


# -- alone ---------------------------------------------------------------------------------------


@everyone
def test_a_group_goes_on_where_it_stopped(group_broker, group, topic, kind):
    with kind(group_broker.bootstrap, group, [topic]) as member:
        found = member.read(PARTITIONS * RECORDS)
        assert {(record.place, record.offset) for record in found} == {
            (place, offset) for place, end in ends_of(topic).items() for offset in range(end)
        }
        member.commit()
        assert member.committed(ends_of(topic)) == ends_of(topic)
    write_more(group_broker, topic, 3)
    with kind(group_broker.bootstrap, group, [topic]) as member:
        found = member.read(PARTITIONS * 3)
    assert {record.offset for record in found} == {RECORDS, RECORDS + 1, RECORDS + 2}


@everyone
def test_what_is_not_committed_is_read_again(group_broker, group, topic, kind):
    with kind(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * RECORDS)
        member.commit({(topic, 1): 20}, "as far as this")
    with kind(group_broker.bootstrap, group, [topic]) as member:
        found = member.read(PARTITIONS * RECORDS - 20)
        assert min(record.offset for record in found if record.place == (topic, 1)) == 20
    with Raw(group_broker) as raw:
        ((place, kept),) = fetch_offsets(raw, group, None).items()
    assert (place, kept.committed_offset) == ((topic, 1), 20)
    # confluent-kafka ends metadata with a zero byte.
    assert kept.metadata.rstrip("\0") == "as far as this"


@everyone
def test_offsets_are_committed_by_themselves(group_broker, group, topic, kind):
    with kind(group_broker.bootstrap, group, [topic], auto_commit=True) as member:
        member.read(PARTITIONS * RECORDS)
    with Raw(group_broker) as raw:
        assert offsets_of(raw, group) == ends_of(topic)


@everyone
def test_a_new_group_begins_where_it_wants_to(group_broker, topic, kind):
    with kind(group_broker.bootstrap, new_group(), [topic], reset="earliest") as member:
        assert min(record.offset for record in member.read(1)) == 0
    with kind(group_broker.bootstrap, new_group(), [topic], reset="latest") as member:
        assert member.join() == []
        # The member has its position after it has asked for the end offset.
        eventually(lambda: member.poll(0.2) == [])
        write_more(group_broker, topic, 1)
        write_more(group_broker, topic, 1)
        assert member.read(1)[0].offset >= RECORDS


@everyone
def test_without_a_reset_a_new_group_is_told_that_it_has_no_offset(
    group_broker, group, topic, kind
):
    def complaint(member):
        try:
            member.poll(0.2)
        except Refused as refusal:
            return refusal.name
        return member.errors[0].name() if getattr(member, "errors", []) else ""

    with kind(group_broker.bootstrap, group, [topic], reset="error") as member:
        found = eventually(lambda: complaint(member))
    assert found in {"_AUTO_OFFSET_RESET", "NoOffsetForPartitionError"}


@everyone
def test_a_note_that_is_too_long_is_refused(group_broker, group, topic, kind):
    with kind(group_broker.bootstrap, group, [topic]) as member:
        member.join()
        member.commit({(topic, 0): 1}, "x" * 4000)
        with pytest.raises(Refused) as refusal:
            member.commit({(topic, 0): 2}, "x" * 4100)
        assert refusal.value.name == "OFFSET_METADATA_TOO_LARGE"
        assert member.committed([(topic, 0)]) == {(topic, 0): 1}


def test_commits_need_not_be_waited_for(group_broker, group, topic):
    with ConfluentMember(group_broker.bootstrap, group, [topic]) as member:
        member.read(PARTITIONS * RECORDS)
        member._consumer.commit(asynchronous=True)
        with Raw(group_broker) as raw:
            eventually(lambda: offsets_of(raw, group) == ends_of(topic))


# -- together ------------------------------------------------------------------------------------


@every_way
def test_partitions_are_shared_out_and_taken_over(group_broker, group, topic, kind, assignor):
    with working(group_broker, group, topic, RECORDS + 5) as crew:
        crew.join("one", kind.client, assignor=assignor)
        crew.has(one=4)
        two = crew.join("two", kind.client, assignor=assignor)
        crew.has(one=2, two=2)
        write_more(group_broker, topic, 5)
        crew.has_read(RECORDS + 5)
        two.ended()
        crew.has(one=4)
    if assignor == "cooperative-sticky":
        # It kept the partitions that no other member was to get.
        given_back = [
            event.offsets
            for event in crew.history.events
            if (event.member, event.kind) == ("one", "revoked")
        ]
        assert len(given_back[0]) == 2


def test_clients_of_all_kinds_work_in_one_group(group_broker, group, topic):
    with working(group_broker, group, topic, RECORDS + 5) as crew:
        for client in MEMBERS:
            crew.join(client, client)
        eventually(lambda: sorted(map(len, crew.history.owned().values())) == [1, 1, 2])
        write_more(group_broker, topic, 5)
        crew.has_read(RECORDS + 5)


@pytest.mark.extended
@everyone
def test_the_work_of_members_that_were_killed_or_slept_is_taken_over(
    group_broker, group, topic, kind
):
    with working(group_broker, group, topic, RECORDS + 10) as crew:
        options: dict[str, Any] = {"session_ms": SHORT_MS, "poll_interval_ms": 10_000}
        doomed = crew.join("doomed", kind.client, process=True, **options)
        sleeper = crew.join("sleeper", kind.client, process=True, **options)
        crew.has(doomed=2, sleeper=2)
        crew.join("other", kind.client, **options)
        eventually(lambda: crew.history.owned().get("other"))
        doomed.kill()
        sleeper.pause()
        write_more(group_broker, topic, 5)
        crew.has(other=4)
        crew.has_read(RECORDS + 5)
        sleeper.resume()
        # It is a member of a later generation, and requests of the former one are refused.
        crew.has(sleeper=2, other=2)
        write_more(group_broker, topic, 5)


@pytest.mark.extended
def test_a_member_that_does_not_poll_leaves(group_broker, group, topic):
    options: dict[str, Any] = {"session_ms": SHORT_MS, "poll_interval_ms": 1500}
    with ExitStack() as stack:
        busy = stack.enter_context(
            ConfluentMember(group_broker.bootstrap, group, [topic], **options)
        )
        busy.join(4)
        other = stack.enter_context(ConfluentMember(group_broker.bootstrap, group, [topic]))
        other.join(4)
        # The first learns of it with its next poll, and rejoins.
        together(busy, other)
        assert [error.name() for error in busy.errors] == ["_MAX_POLL_EXCEEDED"]


def together(one, two):
    """Poll until both have half of the topic."""

    def has_half(member):
        # aiokafka calls its listener after it has changed its assignment.
        is_told = bool(member.changes) and member.changes[-1].kind == "assigned"
        return is_told and len(member.assignment()) == 2

    deadline = time.monotonic() + DEADLINE_S
    while not (has_half(one) and has_half(two)):
        assert time.monotonic() < deadline, (one.assignment(), two.assignment())
        one.poll(0.05)
        two.poll(0.05)


# -- static members ------------------------------------------------------------------------------


@everyone
def test_a_static_member_restarts_without_a_rebalance(group_broker, group, topic, kind):
    def member(name):
        return kind(group_broker.bootstrap, group, [topic], instance=name, session_ms=20_000)

    with ExitStack() as stack:
        one = stack.enter_context(member("one"))
        two = stack.enter_context(member("two"))
        together(one, two)
        mine, generation, changes = two.assignment(), two.generation(), len(one.changes)
        two.close()
        with Raw(group_broker) as raw:
            assert len(describe(raw, group).members) == 2
        again = stack.enter_context(member("two"))
        again.join(2)
        assert (again.assignment(), again.generation()) == (mine, generation)
        one.poll(0.2)
        assert one.generation() == generation
        assert len(one.changes) == changes


# -- topics that change --------------------------------------------------------------------------


def test_new_topics_and_partitions_are_noticed(group_broker, group):
    name = f"grows-{time.monotonic_ns()}"
    group_broker.create_topic(f"{name}-1", partitions=1)
    quick: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 200, "metadata.max.age.ms": 600}
    pattern = [f"^{name}-.*"]
    with ConfluentMember(group_broker.bootstrap, group, pattern, **quick) as member:
        member.join(1)
        group_broker.create_topic(f"{name}-2", partitions=2)
        member.join(3)
        confluent.add_partitions(group_broker.bootstrap, f"{name}-1", 3)
        member.join(5)


# -- kcat ----------------------------------------------------------------------------------------


def kcat_in_group(cluster, group, topic, count):
    command = ["kcat", "-b", cluster.bootstrap, "-G", group, "-q", "-c", str(count)]
    command += ["-f", "%p %o\n", "-X", "auto.offset.reset=earliest", topic]
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
    return sorted(tuple(map(int, line.split())) for line in done.stdout.splitlines())


@pytest.mark.skipif(not kcat.is_installed(), reason="kcat is not installed")
def test_kcat_goes_on_where_it_stopped(group_broker, group, topic):
    everything = [(index, at) for index in range(PARTITIONS) for at in range(RECORDS)]
    first = kcat_in_group(group_broker, group, topic, 60)
    rest = kcat_in_group(group_broker, group, topic, len(everything) - 60)
    assert len(first) == 60
    assert sorted(first + rest) == everything
