"""A broker that is stopped or killed with transactions in every state knows them afterwards."""

from __future__ import annotations

import pytest

from hightide.wire.errors import ErrorCode
from tests.conformance.adapters import confluent, values
from tests.conformance.raw_transactions import (
    COMMITTED,
    RawProducer,
    committed_values,
    describe_producers,
    describe_transaction,
    end_offset,
    positions,
)
from tests.support.eventually import eventually


@pytest.mark.extended
@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_transactions_are_what_they_were_after_a_restart(transacting, how):
    cluster = transacting
    topic = cluster.create_topic(partitions=2)
    group = f"group-{topic}"
    done, lost, held = (RawProducer(cluster, f"{name}-{topic}") for name in ("a", "b", "c"))
    for producer in (done, lost, held):
        assert producer.init() == 0
    done.begin(topic, b"committed")
    lost.begin(topic, b"aborted")
    held.begin(topic, b"open")
    held.begin(topic, b"open", index=1)
    assert held.add_offsets(group) == 0
    assert held.commit_offsets(group, {(topic, 0): 42}) == [0]
    assert done.end() == 0
    assert lost.end(commit=False) == 0
    eventually(lambda: describe_transaction(cluster, lost.transactional_id).topics == [])
    before = sorted(describe_producers(cluster, topic).active_producers, key=str)
    getattr(cluster, how)()
    cluster.restart()
    assert sorted(describe_producers(cluster, topic).active_producers, key=str) == before
    assert end_offset(cluster, topic, COMMITTED) == 2
    assert describe_transaction(cluster, held.transactional_id).transaction_state == "Ongoing"
    assert positions(cluster, group, topic) == [(-1, 0)]
    ((_, code),) = positions(cluster, group, topic, stable=True)
    assert code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    # It continues where it was: it recognizes a repeated batch, and accepts the next one.
    again = held.write(topic, b"open", sequence=0)
    assert (again.error_code, again.base_offset) == (0, 2)
    assert held.write(topic, b"and on").error_code == 0
    assert held.end() == 0
    eventually(lambda: committed_values(cluster, topic) == [b"committed", b"open", b"and on"])
    eventually(lambda: positions(cluster, group, topic, stable=True) == [(42, 0)])
    found = confluent.read(cluster.bootstrap, topic, 3, isolation="read_committed")
    assert values(found) == [b"committed", b"open", b"and on"]
    # No producer has the producer id of another, or an epoch that was used before.
    epochs = {(producer.id, producer.epoch) for producer in (done, lost, held)}
    for producer in (done, lost, held):
        assert producer.init() == 0
        assert (producer.id, producer.epoch) not in epochs
        epochs.add((producer.id, producer.epoch))
    other = RawProducer(cluster, f"new-{topic}")
    assert other.init() == 0
    assert other.id not in {producer.id for producer in (done, lost, held)}
