"""The ISR, the high watermark and what each reader sees, by raw requests."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from hightide.wire.errors import ErrorCode
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from hightide.wire.messages.produce import ProduceResponse
from tests.conformance.adapters import Record, confluent, values
from tests.conformance.raw import Raw, produced
from tests.conformance.replicated import LATEST, fetch, list_offset, values_of, write, write_request
from tests.support.eventually import eventually, seconds_until

LAG_S = 1.5
ALL = [1, 2, 3]


@contextmanager
def asleep(cluster, *broker_ids):
    for broker_id in broker_ids:
        cluster.pause(broker_id)
    try:
        yield
    finally:
        for broker_id in broker_ids:
            cluster.resume(broker_id)


@pytest.fixture
def topic(three):
    return three.create_topic()


@pytest.fixture
def governed(racked):
    """A topic that the controller leads: its followers can be paused, and the ISR still changes."""
    controller = racked.controller()
    return racked.place_topic({0: [controller, *({*ALL} - {controller})]})


# -- acks --------------------------------------------------------------------------------------


@pytest.mark.needs("produce", "read")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_what_is_written_with_any_acks_is_read(three, topic, client, acks):
    sent = [Record(b"%d" % at) for at in range(20)]
    client.produce(three.bootstrap, topic, sent, acks=acks)
    assert values(client.read(three.bootstrap, topic, 20)) == values(sent)
    three.check_equal_logs(topic)


def test_a_write_with_acks_1_does_not_wait_for_followers(racked, governed):
    topic = governed
    with asleep(racked, *racked.followers(topic)), Raw(racked, racked.leader_now(topic)) as raw:
        assert seconds_until(lambda: write(raw, topic, b"x", acks=1).error_code == 0) < 1


def test_a_write_with_all_acks_waits_for_the_followers_in_sync(racked, governed):
    topic = governed
    leader = racked.leader_now(topic)
    with Raw(racked, leader) as raw:
        with asleep(racked, *racked.followers(topic)):
            raw.send(encode_request(write_request(topic, b"x"), 9, 1, "raw"))
            raw._socket.settimeout(1)
            with pytest.raises(TimeoutError):
                raw.receive()
            assert racked.logged(leader, topic) == [b"x"]
        raw._socket.settimeout(25)
        _, answer = decode_response(ProduceResponse, raw.receive(), 9)
    assert (produced(answer).error_code, produced(answer).base_offset) == (0, 0)


def test_a_write_that_is_not_replicated_in_time_is_told_so(racked, governed):
    topic = governed
    with asleep(racked, *racked.followers(topic)), Raw(racked, racked.leader_now(topic)) as raw:
        began = time.monotonic()
        answer = write(raw, topic, b"x", timeout_ms=500)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert 0.4 < time.monotonic() - began < 1.4
    # It was written after all, and is there when the followers are back.
    eventually(lambda: confluent.bounds(racked.bootstrap, topic) == (0, 1))


def test_writes_of_one_connection_wait_together(racked, governed):
    """Responses come in order, but the second write need not wait for the first response."""
    topic = governed
    leader = racked.leader_now(topic)
    requests = [write_request(topic, b"%d" % at) for at in range(50)]
    with Raw(racked, leader) as raw:
        with asleep(racked, *racked.followers(topic)):
            raw.send(
                b"".join(
                    encode_request(request, 9, at, "raw") for at, request in enumerate(requests)
                )
            )
            eventually(lambda: len(racked.logged(leader, topic)) == 50, 5)
        answers = [decode_response(ProduceResponse, raw.receive(), 9) for _ in requests]
    assert [correlation for correlation, _ in answers] == list(range(50))
    assert [produced(answer).base_offset for _, answer in answers] == list(range(50))
    assert {produced(answer).error_code for _, answer in answers} == {0}


# -- the ISR -----------------------------------------------------------------------------------


def test_a_follower_that_sleeps_leaves_the_isr_and_comes_back(
    racked, governed, record_testsuite_property
):
    """Its session does not expire meanwhile: only replica.lag.time.max.ms matters here."""
    topic = governed
    leader = racked.leader_now(topic)
    sleeper = racked.followers(topic)[0]
    awake = sorted({*ALL} - {sleeper})

    def is_out(broker_id):
        return sorted(racked.partition(topic, 0, broker_id).isr_nodes) == awake

    with asleep(racked, sleeper):
        racked.write(topic, b"x", acks=1)
        shrunk_s = seconds_until(lambda: is_out(leader), LAG_S * 1.5 + 1.5)
        assert shrunk_s > LAG_S / 2
        told_s = seconds_until(lambda: racked.all_say_isr(topic, awake), 1)
        assert sorted(broker.node_id for broker in racked.metadata(leader).brokers) == ALL
        # Two of three are enough to commit.
        assert racked.write(topic, b"y") == 1
    back_s = seconds_until(lambda: sorted(racked.partition(topic, 0, leader).isr_nodes) == ALL, 5)
    assert seconds_until(lambda: racked.all_say_isr(topic, ALL), 1) < 1
    racked.check_equal_logs(topic)
    for name, value in (("shrunk", shrunk_s), ("told", told_s), ("back", back_s)):
        record_testsuite_property(f"isr s, {name}", round(value, 3))


@pytest.mark.extended
def test_an_idle_follower_stays_in_sync(racked, governed):
    """Long polls that bring nothing are not a lag."""
    topic = governed
    racked.write(topic, b"x")
    epoch = racked.partition(topic).leader_epoch
    deadline = time.monotonic() + 3 * LAG_S
    while time.monotonic() < deadline:
        assert racked.all_say_isr(topic, ALL)
        time.sleep(0.2)
    assert racked.partition(topic).leader_epoch == epoch


def test_too_few_in_sync_are_told_and_it_recovers(three, topic):
    leader = three.leader_now(topic)
    first, second = three.followers(topic)
    three.write(topic, b"committed")
    three.kill(first)
    three.kill(second)
    three.leader_now(topic)
    eventually(lambda: three.all_say_isr(topic, [leader]))
    with Raw(three, leader) as raw:
        assert write(raw, topic, b"refused").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        # acks=1 is served, but nothing can be committed.
        answer = write(raw, topic, b"alone", acks=1)
        assert (answer.error_code, answer.base_offset) == (0, 1)
        found = fetch(raw, topic, 0)
        assert values_of(found.records) == [b"committed"]
        assert found.high_watermark == 1
        three.restart(first)
        eventually(lambda: len(three.partition(topic, 0, leader).isr_nodes) == 2)
        assert eventually(lambda: written(three, leader, topic, b"again")) == 2
        expected = [b"committed", b"alone", b"again"]
        eventually(lambda: values_of(fetch(raw, topic, 0).records) == expected)
    three.heal()
    three.check_equal_logs(topic)


def test_the_last_broker_serves_what_it_has(three, topic):
    three.write(topic, b"a", b"b")
    last = three.followers(topic)[-1]
    # Followers learn the high watermark with their next fetch.
    with Raw(three, last) as raw:
        eventually(lambda: fetch(raw, topic, 0).high_watermark == 2)
    for broker_id in {*ALL} - {last}:
        three.kill(broker_id)
    assert three.leader_now(topic, not_any_of={*ALL} - {last}) == last
    eventually(lambda: three.controller() == last)
    with Raw(three, last) as raw:
        assert values_of(fetch(raw, topic, 0).records) == [b"a", b"b"]
        assert list_offset(raw, topic).offset == 2
        assert write(raw, topic, b"c").error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert values(confluent.read(three.bootstrap, topic, 2)) == [b"a", b"b"]


# -- committed records -------------------------------------------------------------------------


def test_nothing_that_is_not_committed_is_shown(racked, governed):
    """Neither while the leader waits for followers, nor when there are too few of them."""
    topic = governed
    leader = racked.leader_now(topic)
    racked.write(topic, b"committed")
    with Raw(racked, leader) as raw, asleep(racked, *racked.followers(topic)):
        assert write(raw, topic, b"not yet", acks=1).error_code == 0
        deadline = time.monotonic() + 2 * LAG_S
        while time.monotonic() < deadline:
            found = fetch(raw, topic, 0)
            assert values_of(found.records) == [b"committed"]
            assert found.high_watermark == found.last_stable_offset == 1
            assert values_of(fetch(raw, topic, 1, max_wait_ms=100).records) == []
            assert list_offset(raw, topic, LATEST).offset == 1
        assert sorted(racked.partition(topic, 0, leader).isr_nodes) == [leader]
    eventually(lambda: confluent.bounds(racked.bootstrap, topic) == (0, 2))
    assert values(confluent.read(racked.bootstrap, topic, 2)) == [b"committed", b"not yet"]


@pytest.mark.extended
def test_a_leader_that_returns_follows_and_drops_what_was_never_committed(three, topic):
    """Records that a paused follower had requested are in flight and may survive; no others."""
    old = three.leader_now(topic)
    followers = three.followers(topic)
    three.write(topic, b"committed")
    with asleep(three, *followers):
        with Raw(three, old) as raw:
            for value in (b"on its way", b"perhaps", b"lost", b"lost too"):
                assert write(raw, topic, value, acks=1).error_code == 0
        three.kill(old)
        assert three.logged(old, topic)[-1] == b"lost too"
    new = three.leader_now(topic, not_any_of=[old])
    assert new in followers
    assert eventually(lambda: written(three, new, topic, b"kept")) in (1, 2, 3)
    three.restart(old)
    eventually(lambda: three.all_say_isr(topic, ALL))
    assert three.leader_now(topic) == new
    three.check_equal_logs(topic)
    kept = three.logged(old, topic)
    assert (kept[0], kept[-1]) == (b"committed", b"kept")
    assert {b"lost", b"lost too"}.isdisjoint(kept)
    # It can lead again, with the records that it has now.
    three.lead_with(topic, old)
    assert values(confluent.read(three.bootstrap, topic, len(kept))) == kept
    assert three.write(topic, b"more") == len(kept)
    three.check_equal_logs(topic)


def written(cluster, broker_id, topic, value):
    """Return the end offset; None while the new leader waits for its followers."""
    with Raw(cluster, broker_id) as raw:
        answer = write(raw, topic, value)
    return answer.base_offset if answer.error_code == 0 else None


# -- epochs ------------------------------------------------------------------------------------


@pytest.fixture
def twice_led(three, topic):
    """Write three records in one epoch and two in another; return leader, first and last epoch."""
    first = three.partition(topic).leader_epoch
    three.write(topic, b"a", b"b", b"c")
    three.lead_with(topic, three.followers(topic)[0])
    three.write(topic, b"d", b"e")
    return three.leader_now(topic), first, three.partition(topic).leader_epoch


def epoch_end(raw, topic, epoch, current=-1):
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )
    return raw.ask(request, 4).topics[0].partitions[0]


def test_a_reader_with_another_epoch_is_told_so(three, topic, twice_led):
    leader, first, last = twice_led
    assert last > first
    expected = {
        first: ErrorCode.FENCED_LEADER_EPOCH,
        last: ErrorCode.NONE,
        last + 1: ErrorCode.UNKNOWN_LEADER_EPOCH,
        -1: ErrorCode.NONE,
    }
    with Raw(three, leader) as raw:
        for epoch, code in expected.items():
            assert fetch(raw, topic, 0, current_leader_epoch=epoch).error_code == code
            assert list_offset(raw, topic, current_leader_epoch=epoch).error_code == code
            assert epoch_end(raw, topic, last, current=epoch).error_code == code


def test_the_end_of_an_epoch_is_told(three, topic, twice_led):
    leader, first, last = twice_led
    with Raw(three, leader) as raw:
        for asked, expected in ((first, (first, 3)), (last, (last, 5)), (last + 1, (-1, -1))):
            found = epoch_end(raw, topic, asked)
            assert (found.leader_epoch, found.end_offset) == expected, asked
        assert list_offset(raw, topic).leader_epoch == last


def test_a_reader_whose_log_diverged_is_told_where(three, topic, twice_led):
    leader, first, last = twice_led
    with Raw(three, leader) as raw:
        found = fetch(raw, topic, 5, last_fetched_epoch=first)
        assert found.error_code == 0
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (first, 3)
        found = fetch(raw, topic, 3, last_fetched_epoch=first)
        assert found.diverging_epoch is None
        assert values_of(found.records) == [b"d", b"e"]
        assert fetch(raw, topic, 5, last_fetched_epoch=last).diverging_epoch is None


def test_a_follower_says_that_it_does_not_lead(three, topic, twice_led):
    _, _, last = twice_led
    (follower, _) = three.followers(topic)
    with Raw(three, follower) as raw:
        assert write(raw, topic, b"x").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert list_offset(raw, topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert epoch_end(raw, topic, last).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Old clients read from leaders only; new ones may get a preferred read replica.
        assert fetch(raw, topic, 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        eventually(lambda: len(values_of(fetch(raw, topic, 0).records)) == 5)


def test_a_broker_without_a_replica_says_so(three):
    topic = three.place_topic({0: [1, 2]})
    with Raw(three, 3) as raw:
        assert write(raw, topic, b"x").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert fetch(raw, topic, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_only_a_broker_can_fetch_as_a_follower(three, topic):
    """A forged replica id must not move the high watermark."""
    leader = three.leader_now(topic)
    first, second = three.followers(topic)
    with asleep(three, first, second), Raw(three, leader) as raw:
        assert write(raw, topic, b"x", acks=1).error_code == 0
        for forged in (7, leader, first):
            with pytest.raises(AssertionError, match="31"):
                fetch(raw, topic, 1, replica_id=forged)
            assert fetch(raw, topic, 1, replica_id=forged, version=6).error_code != 0
        assert fetch(raw, topic, 0).high_watermark == 0


# -- elections that lose records ---------------------------------------------------------------


@pytest.fixture
def out_of_sync(three):
    """A partition whose one replica in sync is dead, and whose other one lacks a record."""
    whole, behind, other = 1, 2, 3
    topic = three.place_topic({0: [whole, behind]}, min_insync_replicas=1)
    three.write(topic, b"a")
    three.kill(behind)
    eventually(lambda: three.all_say_isr(topic, [whole]))
    three.write(topic, b"b")
    three.kill(whole)
    three.restart(behind)
    eventually(lambda: three.controller() in (behind, other))
    eventually(lambda: three.partition(topic, 0, other).leader_id == -1)
    return topic


@pytest.mark.extended
def test_a_replica_that_is_not_in_sync_does_not_lead_by_itself(three, out_of_sync):
    topic = out_of_sync
    time.sleep(1)
    for broker_id in three.able():
        found = three.partition(topic, 0, broker_id)
        assert (found.leader_id, found.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert three.elect(topic) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    three.restart(1)
    assert three.leader_now(topic) == 1
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    assert values(confluent.read(three.bootstrap, topic, 2)) == [b"a", b"b"]
    three.check_equal_logs(topic)


@pytest.mark.extended
def test_a_topic_may_allow_an_unclean_election(three, out_of_sync):
    topic = out_of_sync
    three.configure(2, topic, unclean_leader_election_enable="true")
    assert three.leader_now(topic) == 2
    assert eventually(lambda: written(three, 2, topic, b"c")) == 1
    three.restart(1)
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    assert three.leader_now(topic) == 2
    three.check_equal_logs(topic)
    assert three.logged(1, topic) == [b"a", b"c"]


@pytest.mark.extended
def test_an_administrator_may_ask_for_an_unclean_election(three, out_of_sync):
    topic = out_of_sync
    assert three.elect(topic, kind=1) is ErrorCode.NONE
    assert three.leader_now(topic) == 2
    three.restart(1)
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    three.check_equal_logs(topic)
    assert three.logged(1, topic) == [b"a"]
