"""Transactions and idempotence while their leaders and coordinators are killed."""

from __future__ import annotations

import pytest

from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.produce import InitProducerIdRequest
from tests.conformance.raw import Raw, produce_request, produced
from tests.conformance.raw_transactions import (
    COMMITTED,
    UNCOMMITTED,
    RawProducer,
    committed_values,
    describe_transaction,
    end_offset,
    find_coordinator,
    positions,
)
from tests.conformance.transaction_load import CLIENTS_DURING_OUTAGES, TransactionLoad
from tests.support.eventually import eventually

NAMES = [f"failover-{number}" for number in range(50)]


def apart(cluster, **given):
    """A topic and a producer whose coordinator is not the leader of the topic."""
    producer = RawProducer(cluster, NAMES[0], **given)
    coordinator = find_coordinator(cluster, NAMES[0])
    others = [broker for broker in cluster.brokers if broker != coordinator]
    topic = cluster.place_topic({0: [*others, coordinator]})
    assert producer.init() == 0
    return topic, producer


@pytest.mark.extended
def test_transactions_go_on_when_coordinators_and_leaders_are_killed(three_transacting):
    cluster = three_transacting
    topic = cluster.create_topic(partitions=3)
    with TransactionLoad(cluster, topic, 3) as load:
        writer = load.writers[0]
        for victim in (
            lambda: find_coordinator(cluster, writer.transactional_id),
            lambda: cluster.leader_now(topic, 0),
        ):
            broker_id = victim()
            cluster.kill(broker_id)
            load.wait_for_commits(clients=CLIENTS_DURING_OUTAGES)
            cluster.restart(broker_id)
            cluster.heal()
            load.wait_for_commits()
    for index in range(3):
        cluster.check_equal_logs(topic, index)


@pytest.mark.extended
def test_an_open_transaction_outlives_its_leader_and_its_coordinator(three_transacting):
    cluster = three_transacting
    topic, producer = apart(cluster)
    other = cluster.create_topic()
    group = f"group-{topic}"
    producer.begin(topic, b"a0")
    producer.begin(other, b"b0")
    assert producer.add_offsets(group) == 0
    assert producer.commit_offsets(group, {(topic, 0): 11}) == [0]
    leader = cluster.leader_now(topic)
    cluster.kill(leader)
    cluster.leader_now(topic, not_any_of=[leader])
    # The new leader knows the transaction, and the last sequence of its producer.
    again = producer.write(topic, b"a0", sequence=0)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert producer.write(topic, b"a1").error_code == 0
    assert end_offset(cluster, topic, COMMITTED) == 0
    cluster.restart(leader)
    cluster.heal()
    coordinator = find_coordinator(cluster, producer.transactional_id)
    cluster.kill(coordinator)
    cluster.leader_now(topic, not_any_of=[coordinator])
    cluster.leader_now(other, not_any_of=[coordinator])
    assert producer.write(topic, b"a2").error_code == 0
    assert producer.end() == 0
    eventually(lambda: committed_values(cluster, topic) == [b"a0", b"a1", b"a2"])
    eventually(lambda: committed_values(cluster, other) == [b"b0"])
    eventually(lambda: positions(cluster, group, topic, stable=True) == [(11, 0)])


@pytest.mark.extended
def test_a_decision_is_carried_out_by_the_next_coordinator(three_transacting):
    cluster = three_transacting
    coordinator = find_coordinator(cluster, NAMES[0])
    same = [name for name in NAMES if find_coordinator(cluster, name) == coordinator]
    commits, aborts = (RawProducer(cluster, name) for name in same[:2])
    leader = next(broker for broker in cluster.brokers if broker != coordinator)
    topic = cluster.place_topic({0: [leader]}, min_insync_replicas=1)
    for producer in (commits, aborts):
        assert producer.init() == 0
    commits.begin(topic, b"committed")
    aborts.begin(topic, b"aborted")
    # The only replica is paused, so no broker can write its markers.
    cluster.pause(leader)
    try:
        commits.end(again=False)
        aborts.end(commit=False, again=False)
        for producer, state in ((commits, "PrepareCommit"), (aborts, "PrepareAbort")):
            found = describe_transaction(cluster, producer.transactional_id).transaction_state
            assert found == state
        cluster.kill(coordinator)
    finally:
        cluster.resume(leader)
    cluster.restart(coordinator)
    cluster.heal()
    # One marker each, and perhaps a repeated one of the next coordinator.
    eventually(lambda: end_offset(cluster, topic, COMMITTED) >= 4)
    assert committed_values(cluster, topic) == [b"committed"]
    for producer, state in ((commits, "CompleteCommit"), (aborts, "CompleteAbort")):
        eventually(
            lambda producer=producer, state=state: (
                describe_transaction(cluster, producer.transactional_id).transaction_state == state
            )
        )
    cluster.check_equal_logs(topic)


@pytest.mark.extended
def test_a_new_leader_knows_from_its_log_what_was_written_already(three_transacting):
    """An idempotent producer repeats batches without a response, on any new leader."""
    cluster = three_transacting
    topic = cluster.place_topic({0: [1, 2, 3]})
    cluster.lead_with(topic, 1)
    with Raw(cluster, 2) as raw:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        identity = raw.ask(request, 4)

    def write(sequence, *values):
        rows = [batch.Record(at, 0, None, value, ()) for at, value in enumerate(values)]
        records = batch.build(
            rows,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
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


@pytest.mark.extended
def test_a_killed_producer_delays_no_other(three_transacting):
    """Its transaction is aborted after its timeout, even if its coordinator was killed with it."""
    cluster = three_transacting
    topic, producer = apart(cluster, timeout_ms=2000)
    producer.begin(topic, b"never ended")
    cluster.kill(find_coordinator(cluster, producer.transactional_id))
    eventually(lambda: end_offset(cluster, topic, COMMITTED) == 2, 20)
    assert committed_values(cluster, topic) == []
