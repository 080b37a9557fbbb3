"""Requests that only brokers may send, from a client that plays broker or controller."""

from __future__ import annotations

import itertools

import pytest

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.api_versions import ApiVersionsRequest
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from hightide.wire.messages.markers import OpenMarkerConnectionRequest
from hightide.wire.messages.proof import ProveBrokerRequest
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    PublishStateRequest,
    ReplicaLogInfoRequest,
    ReportFailuresRequest,
)
from hightide.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from tests.conformance.raw import Raw
from tests.conformance.raw_transactions import RawProducer, committed_values, mark
from tests.conformance.replicated import fetch, write
from tests.conformance.test_replication_isr import asleep
from tests.support.eventually import eventually
from tests.support.proving import NONCE, first_step

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
HUGE = 2**31 - 1


def publish(controller_epoch: int, broker_epoch: int, controller_id: int = 9, **given):
    """A PublishState that says: this broker is alone, and there is no topic."""
    options = {"is_full": True, "brokers": [], "topics": [], **given}
    return PublishStateRequest(
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        sequence=2**62,
        **options,
    )


def forged(broker_id: int, epoch: int):
    """Every request that only brokers may send, and its version."""
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=1, producer_epoch=0, verify_only=True, topics=[]
    )
    return [
        (AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch, topics=[]), 3),
        (ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch), 3),
        (publish(HUGE, epoch), 0),
        (ReportFailuresRequest(broker_id=broker_id, broker_epoch=epoch, topics=[]), 0),
        (ReplicaLogInfoRequest(topics=[]), 0),
        (
            OpenMarkerConnectionRequest(
                sender_id=broker_id, sender_epoch=epoch, number=HUGE, broker_epoch=epoch
            ),
            0,
        ),
        (AddPartitionsToTxnRequest(transactions=[transaction]), 4),
    ]


@pytest.fixture
def topic(three):
    return three.create_topic()


def test_a_client_that_has_proved_nothing_cannot_play_broker(three, topic):
    """Whatever epoch it guesses, the one error tells it nothing."""
    controller = three.controller()
    with Raw(three, controller) as raw:
        for broker_id, epoch in itertools.product((controller, 77), (-1, 0, 2**62)):
            for request, version in forged(broker_id, epoch):
                assert raw.ask(request, version).error_code == REFUSED, type(request).__name__
        assert raw.ask(ApiVersionsRequest(), 0).error_code == 0, "it is a client as before"
    assert three.controller() == controller
    log = three.log(controller)
    assert "from 127.0.0.1 (client id 'raw'), which has not proved to be that broker" in log
    assert log.count("which has not proved to be") < 5, "the line comes at most every 10 seconds"


def test_a_forged_state_removes_nothing(three, topic):
    three.write(topic, b"kept")
    controller = three.controller()
    for broker_id in (1, 2, 3):
        with Raw(three, broker_id) as raw:
            for epoch in range(40):
                assert raw.ask(publish(HUGE, epoch), 0).error_code == REFUSED
    assert three.controller() == controller
    with Raw(three, three.leader_now(topic)) as raw:
        assert fetch(raw, topic, 0).high_watermark == 1


@pytest.mark.parametrize("version", [6, 12, 17])
def test_forged_fetches_of_followers_commit_nothing(three, version):
    """A write with acks=all must not succeed while both followers are stopped."""
    leader, first, second = 1, 2, 3
    topic = three.place_topic({0: [leader, first, second]}, min_insync_replicas=2)
    topic_id = three.metadata(leader, topic).topics[0].topic_id
    with asleep(three, first, second), Raw(three, leader) as raw:
        assert write(raw, topic, b"x", acks=1).error_code == 0
        for replica_id in (first, second):
            wanted = FetchPartition(
                partition=0, fetch_offset=1, current_leader_epoch=0, partition_max_bytes=1
            )
            state = ReplicaState(replica_id=replica_id, replica_epoch=2**62)
            request = FetchRequest(
                replica_id=replica_id if version < 15 else -1,
                replica_state=state if version >= 15 else None,
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
            )
            answer = raw.ask(request, version)
            codes = [p.error_code for t in answer.responses for p in t.partitions]
            assert (codes or [answer.error_code]) == [REFUSED]
        assert write(raw, topic, b"y", timeout_ms=300).error_code != 0
        assert fetch(raw, topic, 0).high_watermark == 0
    eventually(lambda: three.all_say_isr(topic, [1, 2, 3]))


def test_a_wrong_proof_opens_nothing(three):
    with Raw(three, 1) as raw:
        first = first_step(2)
        nonce = raw.ask(first, 0).nonce
        assert len(nonce) == 32
        for proof in (b"x" * 32, b"", nonce):
            wrong = ProveBrokerRequest(broker_id=2, broker_epoch=0, nonce=NONCE, proof=proof)
            answer = raw.ask(wrong, 0)
            assert answer.error_code != 0 or not answer.proof
            request = ControlledShutdownRequest(broker_id=2, broker_epoch=0)
            assert raw.ask(request, 3).error_code == REFUSED


def test_a_broker_speaks_for_itself_only(three, topic):
    controller = three.controller()
    other = next(one for one in (1, 2, 3) if one != controller)
    with Raw(three, controller) as raw:
        raw.prove(three, other)
        for broker_epoch in (-1, 0, 2**62):
            # Its own requests are judged: a wrong broker epoch, in either direction, is one error.
            for request, version in (
                (ControlledShutdownRequest(broker_id=other, broker_epoch=broker_epoch), 3),
                (AlterPartitionRequest(broker_id=other, broker_epoch=broker_epoch, topics=[]), 3),
                (ReportFailuresRequest(broker_id=other, broker_epoch=broker_epoch, topics=[]), 0),
            ):
                assert raw.ask(request, version).error_code == ErrorCode.STALE_BROKER_EPOCH
            # Others' are refused.
            request = ControlledShutdownRequest(broker_id=controller, broker_epoch=broker_epoch)
            assert raw.ask(request, 3).error_code == REFUSED
            message = publish(HUGE, broker_epoch, controller_id=controller)
            assert raw.ask(message, 0).error_code == REFUSED
        with pytest.raises(AssertionError, match=str(REFUSED.value)):
            fetch(raw, topic, 0, replica_id=controller)
    assert three.controller() == controller
    eventually(lambda: three.all_say_isr(topic, [1, 2, 3]))


def test_a_client_aborts_a_transaction_but_never_commits_it(transacting):
    """Kafka's tool against hanging transactions needs no proof; nothing else is served without."""
    topic = transacting.create_topic()
    holder = RawProducer(transacting, f"id-of-{topic}")
    assert holder.init() == 0
    holder.begin(topic, b"x")
    stranger = {"is_broker": False}
    assert mark(transacting, topic, holder, commit=True, **stranger) == REFUSED
    fencing = mark(transacting, topic, holder, commit=False, coordinator_epoch=9, **stranger)
    assert fencing == REFUSED
    assert mark(transacting, topic, holder, commit=False, **stranger) == 0
    assert mark(transacting, topic, holder, commit=False, **stranger) == 0, "a repetition"
    assert committed_values(transacting, topic) == []
    asked = f"abort the transaction of producer {holder.id}, epoch {holder.epoch}, in {topic}-0"
    assert f"127.0.0.1 (client id 'raw'), not a broker, asks to {asked}" in transacting.log()
