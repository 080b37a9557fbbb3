"""Incremental fetch sessions, against a client that keeps the state it should keep."""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hightide.core.partition.fetch_session import FetchSessions
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot.fetch_codec import Fetch, FetchedPartition, RequestedPartition


def request(session_id=0, epoch=-1, requested=(), forgotten=()) -> Fetch:
    topics = [
        (topic, [RequestedPartition(index, -1, offset, -1, -1, 100)])
        for topic, index, offset in requested
    ]
    dropped = [(topic, [index]) for topic, index in forgotten]
    return Fetch(-1, 0, 1, 1000, 0, session_id, epoch, topics, dropped, None)


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, 1_000, Random(1))


def keys(session) -> list[tuple[bytes, int]]:
    return [
        (topic, partition.partition)
        for topic, requested in session.topics()
        for partition in requested
    ]


class Data:
    length = 1


def test_a_fetch_without_a_session_stays_without():
    assert sessions().begin(request(requested=[(b"t", 0, 0)]), 12, 0) is None


def test_an_incremental_fetch_is_served_all_that_was_ever_asked_for():
    all_sessions = sessions()
    session = all_sessions.begin(request(0, 0, [(b"t", 0, 5), (b"t", 1, 6)]), 12, 0)
    assert session is not None
    again = all_sessions.begin(request(session.id, 1, [(b"t", 1, 7), (b"u", 0, 0)]), 12, 0)
    assert again is session
    assert keys(session) == [(b"t", 0), (b"t", 1), (b"u", 0)]
    assert session.partitions[b"t", 1].requested.fetch_offset == 7


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ((77, 1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((None, 2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_a_fetch_out_of_step_is_refused(asked, code):
    all_sessions = sessions()
    session = all_sessions.begin(request(0, 0, [(b"t", 0, 5)]), 12, 0)
    session_id, epoch = asked
    with pytest.raises(KafkaError) as refused:
        all_sessions.begin(request(session_id or session.id, epoch), 12, 0)
    assert refused.value.code == code


def test_no_other_client_uses_or_ends_the_session_of_a_follower():
    all_sessions, wanted = sessions(), [(b"t", 0, 5)]
    followers = all_sessions.begin(request(0, 0, wanted)._replace(replica_id=2), 12, 0)
    assert followers is not None
    for replica_id in (-1, 3):
        with pytest.raises(KafkaError) as refused:
            all_sessions.begin(
                request(followers.id, 1, [(b"t", 0, 9)])._replace(replica_id=replica_id), 12, 0
            )
        assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        ending = request(followers.id, -1)._replace(replica_id=replica_id)
        assert all_sessions.begin(ending, 12, 0) is None
    assert followers.partitions[b"t", 0].requested.fetch_offset == 5
    following = request(followers.id, 1)._replace(replica_id=2)
    assert all_sessions.begin(following, 12, 0) is followers


def test_a_session_keeps_to_names_or_to_ids():
    all_sessions = sessions()
    session = all_sessions.begin(request(0, 0, [(b"t", 0, 5)]), 12, 0)
    with pytest.raises(KafkaError) as refused:
        all_sessions.begin(request(session.id, 1), 13, 0)
    assert refused.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_full_cache_evicts_only_what_was_idle_for_long():
    all_sessions = sessions(slots=1)
    first = all_sessions.begin(request(0, 0, [(b"t", 0, 5)]), 12, 0)
    assert all_sessions.begin(request(0, 0, [(b"t", 0, 5)]), 12, 999) is None
    second = all_sessions.begin(request(0, 0, [(b"t", 0, 5)]), 12, 1_000)
    assert second is not None
    assert [session.id for session in all_sessions] == [second.id] != [first.id]


def test_no_slots_means_no_sessions():
    assert sessions(slots=0).begin(request(0, 0, [(b"t", 0, 5)]), 12, 0) is None


def wide(count: int, replica_id: int = -1, first: int = 0) -> Fetch:
    wanted = [(b"t", index, 0) for index in range(first, first + count)]
    return request(0, 0, wanted)._replace(replica_id=replica_id)


def test_past_the_limit_of_partitions_a_fetch_has_no_session():
    known = FetchSessions(10, 1_000, Random(1), most_partitions=10)
    first = known.begin(wide(6), 12, 0)
    assert first is not None
    assert known.begin(wide(5), 12, 999) is None
    assert known.partition_count == 6
    assert known.begin(wide(11), 12, 5_000) is None
    assert len(known) == 1
    assert known.begin(wide(5), 12, 5_000) is not None
    assert first not in list(known)
    assert known.partition_count == 5


def test_a_session_that_grows_past_the_limit_ends():
    known = FetchSessions(10, 1_000, Random(1), most_partitions=10)
    session = known.begin(wide(6), 12, 0)
    growth = wide(5, first=6)._replace(session_id=session.id, session_epoch=1)
    with pytest.raises(KafkaError) as refused:
        known.begin(growth, 12, 0)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(known), known.partition_count) == (0, 0)


def test_a_follower_takes_the_place_of_consumers():
    known = FetchSessions(10, 1_000, Random(1), most_partitions=10)
    consumers = [known.begin(wide(4), 12, 0), known.begin(wide(4), 12, 1)]
    follower = known.begin(wide(6, replica_id=2), 12, 2)
    assert list(known) == [consumers[1], follower]
    assert known.begin(wide(4), 12, 3) is None
    assert known.begin(wide(9, replica_id=3), 12, 3) is None  # a follower evicts no follower
    assert follower in list(known)


def test_names_that_no_topic_can_have_are_not_remembered():
    assert sessions().begin(request(0, 0, [(b"t" * 30_000, 0, 0)]), 12, 0) is None


def test_partitions_that_gave_records_go_to_the_end_of_the_line():
    session = sessions().begin(request(0, 0, [(b"t", 0, 0), (b"t", 1, 0), (b"u", 0, 0)]), 12, 0)
    session.news([(b"t", [FetchedPartition(0, 0, 1, 1, 0, Data())])], everything=False)
    assert keys(session) == [(b"t", 1), (b"u", 0), (b"t", 0)]


def test_an_error_is_told_every_time_and_the_recovery_once():
    session = sessions().begin(request(0, 0, [(b"t", 0, 0)]), 12, 0)
    good, bad = [(b"t", [FetchedPartition(0, 0, 5, 5, 0)])], [(b"t", [FetchedPartition(0, 3)])]
    assert session.news(good, everything=True) == good
    assert session.news(good, everything=False) == []
    assert session.news(bad, everything=False) == bad
    assert session.news(bad, everything=False) == bad
    assert session.news(good, everything=False) == good
    assert session.news(good, everything=False) == []


@pytest.mark.parametrize(
    ("news", "is_used"),
    [({"diverging_epoch": (3, 4)}, False), ({"preferred_read_replica": 2}, True)],
)
def test_what_a_reader_must_act_on_is_told_every_time(news, is_used):
    """A client that had to truncate its log has not used the rest of the response."""
    session = sessions().begin(request(0, 0, [(b"t", 0, 0)]), 12, 0)
    plain = [(b"t", [FetchedPartition(0, 0, 5, 5, 0)])]
    urgent = [(b"t", [FetchedPartition(0, 0, 5, 5, 0, **news)])]
    assert session.news(plain, everything=True) == plain
    assert session.news(urgent, everything=False) == urgent
    assert session.news(urgent, everything=False) == urgent
    assert session.news(plain, everything=False) == ([] if is_used else plain)
    assert session.news(plain, everything=False) == []


def test_a_partition_that_starts_over_is_sent_whole_again():
    known = sessions()
    session = known.begin(request(0, 0, [(b"t", 0, 0)]), 12, 0)
    plain = [(b"t", [FetchedPartition(0, 0, 5, 5, 0)])]
    assert session.news(plain, everything=True) == plain
    again = request(session.id, 1, [])._replace(
        topics=[(b"t", [RequestedPartition(0, 9, 0, -1, -1, 100)])]
    )
    assert known.begin(again, 12, 0) is session
    assert session.news(plain, everything=False) == plain


class ClientAndBroker(RuleBasedStateMachine):
    """However partitions come, go and change, the client's state is the broker's."""

    @initialize()
    def begin(self):
        self.sessions = sessions()
        self.truth = {(b"t", index): 0 for index in range(4)}
        self.asked: dict[tuple[bytes, int], int] = {}
        self.told: dict[tuple[bytes, int], int] = {}
        self.session_id, self.epoch = 0, 0

    @rule(
        added=st.sets(st.integers(0, 3), max_size=2),
        dropped=st.sets(st.integers(0, 3), max_size=1),
    )
    def fetch(self, added, dropped):
        requested = [(b"t", index, 0) for index in sorted(added)]
        gone = [(b"t", index) for index in sorted(dropped - added) if (b"t", index) in self.asked]
        if self.epoch == 0:
            gone = []
            requested += [(b"t", index, 0) for (_, index) in self.asked if index not in added]
        session = self.sessions.begin(request(self.session_id, self.epoch, requested, gone), 12, 0)
        for topic, index, _ in requested:
            self.asked[topic, index] = 0
        for key in gone:
            del self.asked[key]
            self.told.pop(key, None)
        if session is None or not self.asked:
            self.session_id, self.epoch = 0, 0
            self.told.clear()
            self.asked.clear()
            return
        assert set(keys(session)) == set(self.asked)
        full = [
            (
                topic,
                [
                    FetchedPartition(
                        partition.partition, 0, self.truth[topic, partition.partition], 0, 0
                    )
                ],
            )
            for topic, wanted_ in session.topics()
            for partition in wanted_
        ]
        for topic, results in session.news(full, everything=self.epoch == 0):
            for result in results:
                self.told[topic, result.partition] = result.high_watermark
        self.session_id, self.epoch = session.id, session.epoch
        assert {key: self.truth[key] for key in self.asked} == self.told

    @rule(index=st.integers(0, 3))
    def append(self, index):
        self.truth[b"t", index] += 1

    @precondition(lambda self: self.epoch > 0)
    @rule()
    def lose_the_session(self):
        self.sessions.begin(request(self.session_id, -1), 12, 0)
        with pytest.raises(KafkaError):
            self.sessions.begin(request(self.session_id, self.epoch), 12, 0)
        self.session_id, self.epoch = 0, 0
        self.told.clear()


TestClientAndBroker = ClientAndBroker.TestCase
TestClientAndBroker.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
