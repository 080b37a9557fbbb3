"""Transaction requests that no client sends: too late, twice, or with wrong content.

Errors are Kafka's, and a refused request changes nothing: neither the state of the transaction nor
the log.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages import REQUESTS
from hightide.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.raw import Raw, advertised, filled, good_batch, produce_request, produced
from tests.conformance.raw_transactions import (
    COMMITTED,
    GROUP,
    UNCOMMITTED,
    RawProducer,
    committed_values,
    describe_producers,
    describe_transaction,
    end_offset,
    fetch_part,
    find_coordinator,
    list_transactions,
    mark,
    positions,
    transactional_batch,
)
from tests.support.eventually import eventually

SERVED = {22: (0, 5), 24: (0, 3), 25: (0, 4), 26: (0, 4), 27: (1, 2), 28: (0, 4), 61: (0, 0)}
SERVED |= {65: (0, 0), 66: (0, 1)}
VERSIONS = [
    (key, version) for key, (low, high) in SERVED.items() for version in range(low, high + 1)
]
FENCED_SINCE = {22: 4, 24: 2, 25: 2, 26: 2}


@pytest.fixture
def topic(transacting):
    return transacting.create_topic(partitions=2)


@pytest.fixture
def holder(transacting, topic):
    """A producer with a transactional id."""
    made = RawProducer(transacting, f"raw-{topic}")
    assert made.init() == 0
    return made


@pytest.fixture
def zombie(holder):
    """The previous producer of the id."""
    former = RawProducer(holder.cluster, holder.transactional_id)
    former.id, former.epoch = holder.id, holder.epoch
    assert holder.init() == 0
    assert (holder.id, holder.epoch) == (former.id, former.epoch + 1)
    return former


def state(holder):
    found = describe_transaction(holder.cluster, holder.transactional_id)
    return found.transaction_state, found.producer_id, found.producer_epoch, found.topics


# -- versions ------------------------------------------------------------------------------------


def test_the_versions_of_transactions_are_told(transacting):
    told = advertised(transacting)
    assert {key: told.get(key) for key in SERVED} == SERVED


@pytest.mark.parametrize("kind", ["empty", "null", "one"])
def test_blank_requests_are_answered_in_every_version(transacting, kind):
    for key, version in VERSIONS:
        with Raw(transacting) as raw:
            answer = raw.ask(filled(REQUESTS[key], version, kind), version)
        assert answer is not None, f"{REQUESTS[key].__name__} v{version}\n{transacting.log()}"


@pytest.mark.parametrize("version", range(5))
def test_every_version_carries_a_transaction(transacting, topic, version):
    """Of whatever each request has of it."""
    holder = RawProducer(transacting, f"version-{version}-{topic}")
    assert holder.init(version) == 0
    assert holder.add((topic, 0), version=min(version, 3)) == [0]
    assert holder.write(topic, b"x", version=(3, 7, 9, 10, 11)[version]).error_code == 0
    group = f"group-{topic}"
    assert holder.add_offsets(group, version) == 0
    assert holder.commit_offsets(group, {(topic, 0): 7}, version) == [0]
    assert holder.end(version=version) == 0
    eventually(lambda: committed_values(transacting, topic) == [b"x"])
    assert positions(transacting, group, topic, stable=True) == [(7, 0)]


# -- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 2**31 - 1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 0}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 0}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_question_for_an_id_is_refused(transacting, given, expected):
    request = InitProducerIdRequest(
        **{"transactional_id": "some", "transaction_timeout_ms": 1000, **given}
    )
    with Raw(transacting) as raw:
        for version in range(3 if "producer" in str(given) else 0, 6):
            answer = raw.ask(request, version)
            assert (ErrorCode(answer.error_code), answer.producer_id) == (expected, -1)


def test_an_epoch_is_given_once_and_grows(holder):
    first = (holder.id, holder.epoch)
    assert first[1] == 0
    for bump in range(1, 4):
        assert holder.init() == 0
        assert (holder.id, holder.epoch) == (first[0], bump)
    # KIP-360: a producer that sends its id keeps it, too.
    assert holder.init(keeps=True) == 0
    assert (holder.id, holder.epoch) == (first[0], 4)


def test_a_zombie_gets_no_new_epoch(holder, zombie):
    before = state(holder)
    assert zombie.init(keeps=True, version=4) == ErrorCode.PRODUCER_FENCED
    assert zombie.init(keeps=True, version=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state(holder) == before


def test_a_new_producer_aborts_what_is_open(transacting, holder, topic):
    holder.begin(topic, b"open")
    other = RawProducer(transacting, holder.transactional_id)
    assert other.init() == 0
    # The abort took an epoch too.
    assert (other.id, other.epoch) == (holder.id, holder.epoch + 2)
    assert committed_values(transacting, topic) == []
    assert end_offset(transacting, topic) == 2


# -- fencing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_a_zombie_is_told_so_in_the_words_of_its_version(holder, zombie, topic, version):
    before = state(holder)

    def expected(key):
        fenced = version >= FENCED_SINCE[key]
        return ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.INVALID_PRODUCER_EPOCH

    add_version = min(version, 3)
    code = ErrorCode.PRODUCER_FENCED if add_version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.add((topic, 0), version=add_version) == [code]
    assert zombie.add_offsets("g", version) == expected(25)
    assert zombie.end(version=version) == expected(26)
    assert zombie.end(commit=False, version=version) == expected(26)
    assert state(holder) == before


def test_a_zombie_writes_nothing(transacting, holder, zombie, topic):
    assert holder.add((topic, 0)) == [0]
    answer = zombie.write(topic, b"zombie")
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    # After a batch of its successor, the partition itself knows.
    assert holder.write(topic, b"heir").error_code == 0
    assert zombie.write(topic, b"zombie").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_offset(transacting, topic, UNCOMMITTED) == 1
    assert holder.end() == 0


@pytest.mark.parametrize("version", range(5))
def test_no_producer_acts_for_the_id_of_another(holder, topic, version):
    before = state(holder)
    stranger = RawProducer(holder.cluster, holder.transactional_id)
    stranger.id, stranger.epoch = holder.id + 1000, 0
    unknown = RawProducer(holder.cluster, "unknown-id")
    unknown.id, unknown.epoch = holder.id, holder.epoch
    wrong = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for producer in (stranger, unknown):
        assert producer.add((topic, 0), version=min(version, 3)) == [wrong]
        assert producer.add_offsets("g", version) == wrong
        assert producer.end(version=version) == wrong
    assert state(holder) == before


# -- omitted, repeated and late steps ------------------------------------------------------------


def test_nothing_is_ended_that_was_not_begun(holder):
    before = state(holder)
    assert holder.end() == ErrorCode.INVALID_TXN_STATE
    assert holder.end(commit=False) == ErrorCode.INVALID_TXN_STATE
    assert state(holder) == before


def test_an_end_may_be_repeated_and_not_be_changed(transacting, holder, topic):
    holder.begin(topic, b"x")
    assert holder.end() == 0
    assert holder.end() == 0
    assert holder.end(commit=False) == ErrorCode.INVALID_TXN_STATE
    assert end_offset(transacting, topic, UNCOMMITTED) == 2
    assert committed_values(transacting, topic) == [b"x"]


def test_unknown_partitions_are_added_to_no_transaction(holder, topic):
    before = state(holder)
    codes = holder.add((topic, 0), (topic, 99), ("no-such-topic", 0))
    assert codes == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert state(holder) == before


@pytest.mark.parametrize("version", [3, 9, 10])
def test_a_partition_that_is_not_in_the_transaction_takes_no_record(
    transacting, holder, topic, version
):
    answer = holder.write(topic, b"never", version=version)
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    holder.begin(topic, b"x", index=1)
    # The transaction is open, but without this partition.
    answer = holder.write(topic, b"never", version=version)
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    assert end_offset(transacting, topic, UNCOMMITTED, 0) == 0
    assert holder.end() == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_record_that_comes_after_the_end_is_refused(transacting, holder, topic, commit):
    """It would be part of the next transaction, or hang for ever if there is none (KIP-890)."""
    holder.begin(topic, b"x")
    assert holder.end(commit=commit) == 0
    eventually(lambda: end_offset(transacting, topic, UNCOMMITTED) == 2)
    answer = holder.write(topic, b"late")
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    # Nor is it accepted in the next transaction without this partition.
    holder.begin(topic, b"y", index=1)
    assert holder.write(topic, b"late").error_code == ErrorCode.INVALID_TXN_STATE
    assert holder.end() == 0
    assert end_offset(transacting, topic, UNCOMMITTED) == end_offset(transacting, topic, COMMITTED)
    assert describe_producers(transacting, topic).active_producers[0].current_txn_start_offset == -1


def test_a_batch_is_recognised_when_it_comes_again(transacting, holder, topic):
    first = holder.begin(topic, b"a", b"b")
    again = holder.write(topic, b"a", b"b", sequence=0)
    assert (again.error_code, again.base_offset) == (0, first)
    gap = holder.write(topic, b"z", sequence=9)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert holder.end() == 0
    assert committed_values(transacting, topic) == [b"a", b"b"]


def test_what_belongs_to_no_transaction_is_not_written_into_one(transacting, holder, topic):
    """A producer with a transaction open cannot write beside it with the same producer id."""
    holder.begin(topic, b"x")
    rows = [batch.Record(0, 0, None, b"plain", ())]
    plain = batch.build(rows, producer_id=holder.id, producer_epoch=holder.epoch, base_sequence=1)
    with Raw(transacting) as raw:
        answer = produced(raw.ask(produce_request(topic, plain, acks=-1), 9))
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    assert holder.end() == 0
    assert committed_values(transacting, topic) == [b"x"]


@pytest.mark.parametrize("name", [None, "", "another"])
def test_a_transactional_batch_needs_its_transactional_id(transacting, holder, topic, name):
    assert holder.add((topic, 0)) == [0]
    request = produce_request(
        topic, transactional_batch(holder, b"x"), acks=-1, transactional_id=name
    )
    with Raw(transacting) as raw:
        answer = raw.ask(request, 9)
    assert answer is None or produced(answer).error_code != 0
    assert end_offset(transacting, topic, UNCOMMITTED) == 0
    assert holder.end() == 0


# -- markers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_of_a_former_coordinator_is_refused(transacting, holder, topic, version):
    assert holder.init() == 0
    holder.begin(topic, b"x")
    assert mark(transacting, topic, holder, coordinator_epoch=7, version=version) == 0
    assert committed_values(transacting, topic) == [b"x"]
    holder.write(topic, b"y")
    end = end_offset(transacting, topic, UNCOMMITTED)
    code = mark(transacting, topic, holder, coordinator_epoch=6, version=version)
    assert code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    old = SimpleNamespace(id=holder.id, epoch=holder.epoch - 1)
    code = mark(transacting, topic, old, coordinator_epoch=8, version=version)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_offset(transacting, topic, UNCOMMITTED) == end
    # A repetition is confirmed without another record.
    assert mark(transacting, topic, holder, coordinator_epoch=7, version=version) == 0


def test_a_marker_for_nothing_is_told_so(transacting, holder):
    code = mark(transacting, "no-such-topic", holder)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_marker_is_in_the_log_as_kafka_writes_it(transacting, holder, topic):
    holder.begin(topic, b"x")
    assert holder.end() == 0
    data = bytes(fetch_part(transacting, topic, 1, UNCOMMITTED).records)
    ((at, header),) = [found for found in batch.batches(data) if found[1].base_offset == 1]
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (holder.id, holder.epoch)
    assert (header.base_sequence, header.record_count) == (-1, 1)
    (record,) = batch.records(data[at : at + header.size])
    assert record.key == b"\x00\x00\x00\x01"  # version 0, commit
    assert record.value is not None
    assert record.value[:2] == b"\x00\x00"
    assert len(record.value) == 6


# -- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_no_transaction_are_refused(transacting, holder, topic, version):
    """The group was not added to the transaction, so nothing would ever end them (KIP-890)."""
    group = f"group-{topic}"
    (code,) = holder.commit_offsets(group, {(topic, 0): 5}, version)
    # Clients know the abortable error since version 4.
    assert code == (ErrorCode.INVALID_TXN_STATE if version < 4 else ErrorCode.TRANSACTION_ABORTABLE)
    assert positions(transacting, group, topic, stable=True) == [(-1, 0)]


def join(cluster, group):
    """One member of a group whose generation has begun; its id."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with Raw(cluster, find_coordinator(cluster, group, GROUP)) as raw:
        answer = raw.ask(request, 3)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return answer.member_id, answer.generation_id


def test_offsets_are_taken_from_members_of_this_generation(transacting, holder, topic):
    group = f"group-{topic}"
    member, generation = join(transacting, group)
    assert holder.add_offsets(group) == 0
    for given, expected in (
        ({"member_id": member, "generation_id": generation + 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": member, "generation_id": generation - 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "who?", "generation_id": generation}, ErrorCode.UNKNOWN_MEMBER_ID),
        (
            {"member_id": member, "generation_id": generation, "group_instance_id": "static"},
            ErrorCode.UNKNOWN_MEMBER_ID,
        ),
        ({"member_id": member, "generation_id": generation}, ErrorCode.NONE),
    ):
        assert holder.commit_offsets(group, {(topic, 0): 5}, **given) == [expected], given
    assert positions(transacting, group, topic) == [(-1, 0)]
    assert holder.end() == 0
    eventually(lambda: positions(transacting, group, topic, stable=True) == [(5, 0)])


def test_a_zombie_commits_no_offsets(transacting, holder, zombie, topic):
    group = f"group-{topic}"
    assert holder.add_offsets(group) == 0
    assert holder.commit_offsets(group, {(topic, 0): 5}) == [0]
    (code,) = zombie.commit_offsets(group, {(topic, 0): 9})
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert holder.end() == 0
    eventually(lambda: positions(transacting, group, topic, stable=True) == [(5, 0)])


def test_an_unknown_topic_has_no_offsets(transacting, holder, topic):
    group = f"group-{topic}"
    assert holder.add_offsets(group) == 0
    codes = holder.commit_offsets(group, {("no-such-topic", 0): 5, (topic, 0): 5})
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert holder.end(commit=False) == 0


@pytest.mark.parametrize("version", range(5))
def test_a_group_without_a_name_has_no_offsets(holder, topic, version):
    (code,) = holder.commit_offsets("", {(topic, 0): 5}, version)
    assert code == ErrorCode.INVALID_GROUP_ID


# -- describing and listing ----------------------------------------------------------------------


def test_a_transaction_is_described_from_its_beginning_to_its_end(transacting, holder, topic):
    name = holder.transactional_id
    assert state(holder) == ("Empty", holder.id, holder.epoch, [])
    holder.begin(topic, b"x")
    holder.begin(topic, b"y", index=1)
    found = describe_transaction(transacting, name)
    assert found.transaction_state == "Ongoing"
    assert found.transaction_timeout_ms == holder.timeout_ms
    assert found.transaction_start_time_ms > 1_700_000_000_000
    assert [(topic.topic, sorted(topic.partitions)) for topic in found.topics] == [(topic, [0, 1])]
    assert holder.end() == 0
    eventually(lambda: state(holder)[0] == "CompleteCommit")
    assert describe_transaction(transacting, name).topics == []


def test_an_unknown_id_is_not_described(transacting):
    found = describe_transaction(transacting, "no-such-id")
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_transactions_are_listed_by_state_producer_and_age(transacting, holder, topic):
    name = holder.transactional_id
    holder.begin(topic, b"x")

    def listed(**given):
        answer = list_transactions(transacting, **given)
        assert answer.error_code == 0
        return {
            transaction_state.transactional_id: transaction_state
            for transaction_state in answer.transaction_states
        }

    assert listed()[name].transaction_state == "Ongoing"
    assert listed()[name].producer_id == holder.id
    assert name in listed(states=["Ongoing"])
    assert name not in listed(states=["Empty", "PrepareCommit"])
    assert set(listed(producers=[holder.id])) == {name}
    assert name not in listed(duration_filter=60_000)
    assert name in listed(duration_filter=0)
    answer = list_transactions(transacting, states=["Ongoing", "Dancing"])
    assert answer.unknown_state_filters == ["Dancing"]
    assert holder.end(commit=False) == 0


def test_the_producers_of_a_partition_are_described(transacting, holder, topic):
    assert describe_producers(transacting, topic).active_producers == []
    first = holder.begin(topic, b"x", b"y")
    (found,) = describe_producers(transacting, topic).active_producers
    assert (found.producer_id, found.producer_epoch) == (holder.id, holder.epoch)
    assert (found.last_sequence, found.current_txn_start_offset) == (1, first)
    assert holder.end() == 0
    (found,) = describe_producers(transacting, topic).active_producers
    assert found.current_txn_start_offset == -1
    assert found.coordinator_epoch >= 0
    missing = describe_producers(transacting, "no-such-topic", broker_id=1)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- wrong requests ------------------------------------------------------------------------------

NUMBERS = (-1, 0, 2**15 - 1)


def liars(key, topic):
    """Yield requests that are impossible, or that are true of another producer."""
    names = ["", "liar", "x" * 30_000]
    for name, epoch, index in product(names, NUMBERS, (-1, 0, 99)):
        producer: dict[str, Any] = {
            "transactional_id": name,
            "producer_id": 12345,
            "producer_epoch": epoch,
        }
        added = [AddPartitionsToTxnTopic(name=topic, partitions=[index, index])]
        if key == 24:
            yield AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=12345,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=added,
            )
        elif key == 25:
            yield AddOffsetsToTxnRequest(**producer, group_id="g")
        elif key == 26:
            yield EndTxnRequest(**producer, committed=index == 0)
        elif key == 28:
            place = TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=epoch, committed_metadata=name or None
            )
            topics = [TxnOffsetCommitRequestTopic(name=topic, partitions=[place])]
            yield TxnOffsetCommitRequest(**producer, group_id="g" if epoch else "", topics=topics)


@pytest.mark.parametrize("key", [24, 25, 26, 28])
def test_lies_are_refused_and_change_nothing(transacting, topic, key):
    positions(transacting, "g", topic)
    before = list_transactions(transacting).transaction_states
    data = transacting.data()
    logs = {file: file.read_bytes() for file in data.glob("__*/*.log")}
    low, high = SERVED[key]
    with Raw(transacting) as raw:
        for version in range(low, high + 1):
            for request in liars(key, topic):
                answer = raw.ask(request, version)
                assert answer is not None, (request, transacting.log())
                assert codes_of(answer) == {code for code in codes_of(answer) if code}, answer
    assert list_transactions(transacting).transaction_states == before
    assert {file: file.read_bytes() for file in data.glob("__*/*.log")} == logs


def codes_of(answer):
    if hasattr(answer, "results_by_topic_v3_and_below"):
        return {
            result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
    if hasattr(answer, "topics"):
        return {partition.error_code for topic in answer.topics for partition in topic.partitions}
    return {answer.error_code}


def test_a_control_batch_of_a_client_ends_no_transaction(transacting, holder, topic):
    holder.begin(topic, b"x")
    forged = batch.build(
        [batch.Record(0, 0, b"\x00\x00\x00\x01", bytes(6), ())],
        producer_id=holder.id,
        producer_epoch=holder.epoch,
        base_sequence=1,
        transactional=True,
        control=True,
    )
    request = produce_request(topic, forged, acks=-1, transactional_id=holder.transactional_id)
    with Raw(transacting) as raw:
        assert produced(raw.ask(request, 9)).error_code == ErrorCode.INVALID_RECORD
    assert end_offset(transacting, topic, COMMITTED) == 0
    assert holder.end() == 0


def test_a_client_writes_into_no_internal_topic(transacting, topic):
    """No coordinator knows the ids that a client made up."""
    positions(transacting, "g", topic)
    for name in ("__transaction_state", "__consumer_offsets"):
        with Raw(transacting) as raw:
            answer = produced(raw.ask(produce_request(name, good_batch(), acks=-1), 9))
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
