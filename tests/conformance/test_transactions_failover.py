"""Transactions and idempotence while the brokers that carry them are killed."""

from __future__ import annotations

import pytest
from raw import Raw, produce_request, produced
from raw_transactions import (
    COMMITTED,
    GROUP,
    UNCOMMITTED,
    RawProducer,
    committed_values,
    describe_transaction,
    end_offset,
    find_coordinator,
    positions,
)
from replicated import eventually
from transaction_load import TransactionLoad

from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.produce import InitProducerIdRequest

NAMES = [f"failover-{number}" for number in range(50)]


def apart(cluster, *taken):
    """A transactional id whose coordinator is none of these brokers."""
    return next(each for each in NAMES if find_coordinator(cluster, each) not in taken)


def test_transactions_go_on_when_coordinators_and_leaders_are_killed(three_transacting):
    cluster = three_transacting
    topic = cluster.create_topic(partitions=3)
    with TransactionLoad(cluster, topic, 3) as load:
        writer = load.writers[0]
        for victim in (
            lambda: find_coordinator(cluster, writer.transactional_id),
            lambda: cluster.leader_now(topic, 0),
            lambda: find_coordinator(cluster, writer.group, GROUP),
        ):
            broker_id = victim()
            cluster.kill(broker_id)
            load.wait_for_commits()
            cluster.restart(broker_id)
            cluster.heal()
            load.wait_for_commits()
    for index in range(3):
        cluster.check_equal_logs(topic, index)


def test_an_open_transaction_outlives_its_leader_and_its_coordinator(three_transacting):
    cluster = three_transacting
    topic = cluster.place_topic({0: [1, 2, 3], 1: [2, 3, 1]})
    cluster.lead_with(topic, 1)
    producer = RawProducer(cluster, apart(cluster, 1))
    assert producer.init() == 0
    group = f"group-{topic}"
    producer.begin(topic, b"a0")
    producer.begin(topic, b"b0", index=1)
    assert producer.add_offsets(group) == 0
    assert producer.commit_offsets(group, {(topic, 0): 11}) == [0]
    cluster.kill(1)
    cluster.leader_now(topic, 0, not_any_of=[1])
    # The new leader knows the transaction, and how far its producer has come.
    again = producer.write(topic, b"a0", sequence=0)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert producer.write(topic, b"a1").error_code == 0
    assert end_offset(cluster, topic, COMMITTED) == 0
    cluster.restart(1)
    cluster.heal()
    coordinator = find_coordinator(cluster, producer.transactional_id)
    cluster.kill(coordinator)
    cluster.leader_now(topic, 0, not_any_of=[coordinator])
    cluster.leader_now(topic, 1, not_any_of=[coordinator])
    assert producer.write(topic, b"a2").error_code == 0
    assert producer.end() == 0
    eventually(lambda: committed_values(cluster, topic) == [b"a0", b"a1", b"a2"])
    eventually(lambda: committed_values(cluster, topic, 1) == [b"b0"])
    eventually(lambda: positions(cluster, group, topic, stable=True) == [(11, 0)])


@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_is_carried_out_by_whoever_coordinates_next(three_transacting, commit):
    cluster = three_transacting
    producer = RawProducer(cluster, NAMES[int(commit)])
    assert producer.init() == 0
    coordinator = find_coordinator(cluster, producer.transactional_id)
    leader, other = (each for each in cluster.brokers if each != coordinator)
    topic = cluster.place_topic({0: [leader, other, coordinator]})
    before = [cluster.leader(topic)]
    assert before == [leader]
    producer.begin(topic, b"x")
    # The leader sleeps, so its marker cannot be written.
    cluster.pause(leader)
    try:
        producer.end(commit=commit, again=False)
        prepared = "PrepareCommit" if commit else "PrepareAbort"
        found = describe_transaction(cluster, producer.transactional_id).transaction_state
        assert found == prepared
        cluster.kill(coordinator)
    finally:
        cluster.resume(leader)
    cluster.restart(coordinator)
    cluster.heal()
    expected = [b"x"] if commit else []
    eventually(lambda: end_offset(cluster, topic, COMMITTED) > 0)
    assert committed_values(cluster, topic) == expected
    assert end_offset(cluster, topic, UNCOMMITTED) == 2, "there is one marker"
    done = "CompleteCommit" if commit else "CompleteAbort"
    eventually(
        lambda: describe_transaction(cluster, producer.transactional_id).transaction_state == done
    )
    cluster.check_equal_logs(topic)


def test_a_new_leader_knows_from_its_log_what_was_written_already(three_transacting):
    """An idempotent producer repeats what it had no answer for, wherever the leader is now."""
    cluster = three_transacting
    topic = cluster.place_topic({0: [1, 2, 3]})
    cluster.lead_with(topic, 1)
    with Raw(cluster, 2) as raw:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        who = raw.ask(request, 4)

    def write(sequence, *values):
        rows = [batch.Record(at, 0, None, value, ()) for at, value in enumerate(values)]
        records = batch.build(
            rows,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
        )
        with Raw(cluster, cluster.leader_now(topic)) as raw:
            return produced(raw.ask(produce_request(topic, records, acks=-1), 9))

    for sequence in range(0, 10, 2):
        assert write(sequence, b"%d" % sequence, b"%d" % (sequence + 1)).base_offset == sequence
    cluster.kill(1)
    cluster.leader_now(topic, not_any_of=[1])
    for sequence in range(0, 10, 2):
        again = write(sequence, b"%d" % sequence, b"%d" % (sequence + 1))
        assert (again.error_code, again.base_offset) == (0, sequence)
    gap = write(12, b"12")
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(10, b"10").base_offset == 10
    assert end_offset(cluster, topic, UNCOMMITTED) == 11


def test_nobody_has_to_wait_for_a_producer_that_was_killed(three_transacting):
    """Its transaction is aborted after its timeout, even if its coordinator was killed with it."""
    cluster = three_transacting
    topic = cluster.create_topic()
    producer = RawProducer(cluster, apart(cluster, cluster.leader(topic)), timeout_ms=2000)
    assert producer.init() == 0
    producer.begin(topic, b"never ended")
    cluster.kill(find_coordinator(cluster, producer.transactional_id))
    eventually(lambda: end_offset(cluster, topic, COMMITTED) == 2, 20)
    assert committed_values(cluster, topic) == []
