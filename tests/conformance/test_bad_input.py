"""Bytes that no client would send: the broker answers with an error or closes the connection.

Every test here also checks that other clients do not notice: a connection that was open before and
a new one must get responses, and a topic on disk must not change.
"""

from __future__ import annotations

import random
import struct
from typing import cast

import pytest

from hightide.broker.handlers.prove_broker import BROKER_REQUESTS
from hightide.testing import Cluster
from hightide.wire import batch
from hightide.wire.codec import decode
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.frame import decode_request_header, decode_response, encode_request
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.offsets import OffsetFetchRequest
from hightide.wire.types import api_of
from tests.conformance.raw import (
    FETCH,
    PRODUCE,
    Raw,
    advertised,
    filled,
    good_batch,
    produce_request,
    produced,
    resident_bytes,
    served,
)
from tests.conformance.raw_group import (
    RawMember,
    commit,
    commit_request,
    fetch_group,
    fetch_offsets,
    find,
    share,
)
from tests.support.eventually import eventually
from tests.support.proving import secret_at

MEGABYTE = 2**20
GROUP, TRANSACTION = 0, 1
PRIVATE = (30003, 30004, 30007, 30008, 30009)
"""Hightide's requests that a client may send; ApiVersions does not list them."""
NAMED = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


@pytest.fixture(scope="module")
def victim():
    """The broker that gets the bad input."""
    settings = {
        "log.retention.ms": -1,
        "offsets.topic.num.partitions": 2,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        # A random request that happens to join a group leaves it soon.
        "group.initial.rebalance.delay.ms": 0,
    }
    with Cluster(settings=settings) as cluster:
        with Raw(cluster) as raw:
            for kind in (GROUP, TRANSACTION):
                eventually(lambda kind=kind: find(raw, "standing", kind=kind).error_code == 0)
        yield cluster


@pytest.fixture(scope="module")
def victims_topic(victim):
    topic = victim.create_topic("standing")
    with Raw(victim) as raw:
        assert produced(raw.ask(produce_request(topic, good_batch()), 9)).error_code == 0
        assert commit(raw, "standing", {(topic, 0): 2}, note="a note") == [ErrorCode.NONE]
    return topic


@pytest.fixture(scope="module")
def old_connection(victim):
    with Raw(victim) as raw:
        yield raw


def on_disk(cluster):
    """Return the bytes of every log, except of internal topics: random bytes may be a commit."""
    return {
        file.relative_to(cluster.data()): file.read_bytes()
        for file in cluster.data().rglob("*.log")
        if not file.parent.name.startswith("__")
    }


@pytest.fixture(autouse=True)
def bystander(victim, victims_topic, old_connection):
    before = on_disk(victim)
    yield
    assert victim.is_running(), victim.log()
    everything = MetadataRequest(topics=None)
    for raw in (old_connection, Raw(victim)):
        answer = raw.ask(everything, 9)
        assert answer is not None, victim.log()
        names = [topic.name for topic in answer.topics if not topic.is_internal]
        assert names == [victims_topic]
        (kept,) = fetch_offsets(raw, "standing", None).values()
        assert (kept.committed_offset, kept.metadata) == (2, "a note")
    raw.__exit__()
    assert on_disk(victim) == before
    assert "Traceback" not in victim.log()


# -- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 101 * MEGABYTE])
def test_an_impossible_frame_size_ends_the_connection(victim, size):
    with Raw(victim) as raw:
        raw.send(struct.pack(">i", size) + b"x" * 100)
        assert raw.receive() is None


@pytest.mark.parametrize("size", range(8))
def test_a_frame_too_short_for_a_header_ends_the_connection(victim, size):
    with Raw(victim) as raw:
        raw.send_frame(b"\x00" * size)
        raw.finish()
        assert raw.receive() is None


@pytest.mark.parametrize(
    "talk",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 1000,
        b"\xff" * 1000,
    ],
)
def test_another_protocol_is_turned_away(victim, talk):
    with Raw(victim) as raw:
        raw.send(talk)
        raw.finish()
        assert raw.receive() is None


def test_garbage_is_turned_away(victim):
    chance = random.Random(1)
    for _ in range(100):
        with Raw(victim) as raw:
            raw.send(chance.randbytes(chance.randrange(1, 2000)))
            raw.finish()
            assert raw.receive() is None


def test_garbage_in_a_proper_frame_is_turned_away(victim):
    chance = random.Random(2)
    for _ in range(100):
        with Raw(victim) as raw:
            raw.send_frame(chance.randbytes(chance.randrange(1, 500)))
            raw.finish()
            assert raw.receive() is None


def test_garbage_behind_a_proper_header_is_turned_away(victim):
    """Unless it happens to be a request: then it gets one well-formed response."""
    chance = random.Random(3)
    refused = 0
    for key, version in served(advertised(victim)):
        for _ in range(3):
            header = struct.pack(">hhih", key, version, 7, -1) + b"\x00"
            sent = header + chance.randbytes(chance.randrange(1, 200))
            with Raw(victim) as raw:
                raw.send_frame(sent)
                raw.finish()
                answer = raw.receive()
                if is_request(sent):
                    assert (
                        answer is None or decode_response(RESPONSES[key], answer, version)[0] == 7
                    )
                else:
                    refused += 1
                    assert answer is None, (key, version, sent)
                assert raw.receive() is None
    assert refused > 100


def is_request(sent):
    """Return whether a frame begins with the request that its header names."""
    try:
        header, at = decode_request_header(memoryview(sent))
        decode(REQUESTS[header.api_key], sent[at:], header.api_version, exact=False)
    except WireError:
        return False
    return True


@pytest.mark.parametrize("sent", [1, 3, 4, 5, 17])
def test_half_a_frame_and_then_nothing_harms_no_other_client(victim, sent):
    whole = encode_request(ApiVersionsRequest(), 3, 7, "raw")
    with Raw(victim) as raw:
        raw.send(whole[:sent])
        raw.finish()
        assert raw.receive() is None


def test_a_frame_may_come_byte_by_byte(victim):
    with Raw(victim) as raw:
        for byte in encode_request(ApiVersionsRequest(), 0, 7, "raw"):
            raw.send(bytes((byte,)))
        assert raw.receive()[:4] == struct.pack(">i", 7)


def test_a_large_size_that_never_comes_takes_no_memory(victim):
    before = resident_bytes(victim)
    held = []
    for _ in range(20):
        raw = Raw(victim)
        raw.send(struct.pack(">ihhih", 99 * MEGABYTE, PRODUCE, 9, 7, -1))
        held.append(raw)
    with Raw(victim) as raw:
        assert raw.ask(ApiVersionsRequest(), 0) is not None
    assert resident_bytes(victim) - before < 32 * MEGABYTE
    for raw in held:
        raw.__exit__()


def test_requests_in_one_piece_are_answered_in_order(victim):
    with Raw(victim) as raw:
        raw.send(
            b"".join(encode_request(ApiVersionsRequest(), 0, number, None) for number in range(200))
        )
        for number in range(200):
            assert raw.receive()[:4] == struct.pack(">i", number)


# -- keys and versions -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [-1, 4, 5, 6, 7, 999, 2**15 - 1])
def test_an_unknown_api_ends_the_connection(victim, key):
    with Raw(victim) as raw:
        raw.send_frame(struct.pack(">hhih", key, 0, 7, -1))
        raw.finish()
        assert raw.receive() is None


def test_an_unsupported_version_is_refused(victim):
    for key, (low, high) in advertised(victim).items():
        if key == 18:
            continue
        for version in {low - 1, high + 1, 2**15 - 1, -1}:
            with Raw(victim) as raw:
                raw.send_frame(struct.pack(">hhih", key, version, 7, -1) + bytes(20))
                raw.finish()
                answer = raw.receive()
                # Kafka closes the connection; UNSUPPORTED_VERSION would be as good.  A version for
                # brokers only is refused as such.
                codes = [struct.pack(">h", code) for code in (35, 31)]
                assert answer is None or any(code in answer for code in codes), (key, version)


@pytest.mark.parametrize("version", [5, 6, 99, 2**15 - 1])
def test_api_versions_that_is_too_new_is_answered_with_what_is_known(victim, version):
    """KIP-511: the layout of version 0, error 35, and the range of this one request."""
    with Raw(victim) as raw:
        raw.send_frame(struct.pack(">hhih", 18, version, 7, -1) + b"\x00\x03ab\x03cd\x00")
        answer = raw.receive()
        assert answer[:4] == struct.pack(">i", 7)
        found = decode(ApiVersionsResponse, answer[4:], 0)
        assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
        ranges = {
            api_key.api_key: (api_key.min_version, api_key.max_version)
            for api_key in found.api_keys
        }
        assert ranges[18] == (0, 4)
        # The connection continues with a known version.
        assert raw.ask(NAMED, 3).error_code == 0


@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_the_same_in_every_version(victim, version):
    with Raw(victim) as raw:
        answer = raw.ask(NAMED, version)
    ranges = {
        api_key.api_key: (api_key.min_version, api_key.max_version) for api_key in answer.api_keys
    }
    assert ranges == advertised(victim)


@pytest.mark.parametrize("name", ["", "-x", "a b", "x\n"])
def test_a_client_without_a_proper_name_is_told_so(victim, name):
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    with Raw(victim) as raw:
        assert raw.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_what_works_is_advertised_and_nothing_else(victim):
    """A meaningless response is worse than none: clients would repeat the request for ever."""
    groups = {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69}
    transactions = {22, 24, 25, 26, 27, 28, 61, 65, 66}
    telemetry_share_and_streams_groups = {71, 72, *range(76, 80), *range(88, 93)}
    found = set(advertised(victim))
    assert groups | transactions <= found
    assert not telemetry_share_and_streams_groups & found
    assert max(found) < PRIVATE[0]


# -- bodies ----------------------------------------------------------------------------------------


def told(cluster):
    """Return the advertised requests, and Hightide's own that clients may send."""
    return advertised(cluster) | {key: api_of(REQUESTS[key]).versions for key in PRIVATE}


def request_for(key, version, kind):
    request = filled(REQUESTS[key], version, kind)
    if key == PRODUCE:
        request.acks = 1
    if key == FETCH:
        request.max_wait_ms = 0
    return request


@pytest.mark.parametrize("kind", ["empty", "null", "one"])
def test_every_version_of_every_api_answers_blank_requests(victim, kind):
    """Empty arrays, nulls where they are allowed, and elements in which everything is blank."""
    for key, version in served(told(victim)):
        with Raw(victim) as raw:
            answer = raw.ask(request_for(key, version, kind), version)
            assert answer is not None, f"{REQUESTS[key].__name__} v{version}\n{victim.log()}"
            # The connection still works.
            assert raw.ask(ApiVersionsRequest(), 0) is not None


@pytest.mark.parametrize("kind", ["empty", "one"])
def test_a_request_cut_off_at_any_byte_is_refused(victim, kind):
    secret = secret_at(victim.zookeeper)
    for key, (_, high) in told(victim).items():
        high = min(high, api_of(REQUESTS[key]).versions[1])
        whole = encode_request(request_for(key, high, kind), high, 7, "raw")[4:]
        for end in range(8, len(whole)):
            with Raw(victim) as raw:
                if key in BROKER_REQUESTS:
                    raw.prove(victim, 0, secret=secret)
                raw.send_frame(whole[:end])
                raw.finish()
                answer = raw.receive()
                assert answer is None or is_request(whole[:end]), (key, end)


@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
def test_a_request_with_any_byte_overwritten_is_survived(victim, byte):
    """Every length in turn becomes negative, null or enormous."""
    for key, (_, high) in told(victim).items():
        high = min(high, api_of(REQUESTS[key]).versions[1])
        whole = encode_request(request_for(key, high, "one"), high, 7, "raw")[4:]
        for at in range(14, len(whole)):
            with Raw(victim) as raw:
                raw.send_frame(whole[:at] + bytes((byte,)) + whole[at + 1 :])
                raw.finish()
                raw.receive()


def plausible_requests():
    """Yield requests of group members, so that the code behind a broken field runs too."""
    group = "fuzzed"
    member = RawMember(cast(Raw, None), group, ("standing",), instance="one", session_ms=6000)
    member.member_id, member.generation = "fuzzed-1", 1
    place = ("standing", 0)
    yield member.join_request(), 9
    yield member.sync_request({"fuzzed-1": share(place)}), 5
    yield commit_request(group, {place: 1}, generation=1, member_id="fuzzed-1", note="x"), 9
    yield OffsetFetchRequest(groups=[fetch_group(group, {"standing": [0]})]), 9
    yield (
        ConsumerGroupHeartbeatRequest(
            group_id=f"{group}-newer",
            member_id="fuzzed-2",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["standing"],
            subscribed_topic_regex="stand.*",
            topic_partitions=[],
        ),
        1,
    )


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_a_members_request_with_any_byte_overwritten_is_survived(victim, byte):
    for request, version in plausible_requests():
        whole = encode_request(request, version, 7, "raw")[4:]
        for at in range(14, len(whole)):
            with Raw(victim) as raw:
                # Some of them join a group and would wait for other members: do not wait for the
                # response.
                raw.send_frame(whole[:at] + bytes((byte,)) + whole[at + 1 :])


@pytest.mark.parametrize("code", [b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"])
def test_a_giant_array_takes_no_memory(victim, code):
    before = resident_bytes(victim)
    for key, version in served(told(victim)):
        with Raw(victim) as raw:
            raw.send_frame(struct.pack(">hhih", key, version, 7, -1) + b"\x00" + code * 4)
            raw.finish()
            raw.receive()
    assert resident_bytes(victim) - before < 32 * MEGABYTE


def test_bytes_after_the_end_of_a_request_are_ignored_as_kafka_does(victim):
    """librdkafka leaves three of them behind a Metadata request for all topics."""
    with Raw(victim) as raw:
        whole = encode_request(MetadataRequest(topics=None), 13, 7, "raw")[4:]
        raw.send_frame(whole + b"\x01\x00\x00")
        assert raw.receive()[:4] == struct.pack(">i", 7)


def test_unknown_tags_are_skipped(victim):
    with Raw(victim) as raw:
        header = struct.pack(">hhih", 18, 3, 7, -1)
        raw.send_frame(header + b"\x01\x05\x02hi" + b"\x02a\x02b" + b"\x01\x63\x03xyz")
        assert raw.receive()[:4] == struct.pack(">i", 7)


def test_text_that_is_no_text_is_refused(victim):
    with Raw(victim) as raw:
        raw.send_frame(struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">ih2s", 1, 2, b"\xff\xfe"))
        raw.finish()
        assert raw.receive() is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "../../etc", "ü", "x" * 250, "a\x00b"]
)
def test_a_bad_topic_name_is_refused_everywhere(victim, name):
    with Raw(victim) as raw:
        for version in (1, 4, 9, 12):
            answer = raw.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), version)
            assert answer.topics[0].error_code in {
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
        answer = raw.ask(produce_request(name, good_batch()), 9)
        assert produced(answer).error_code in {
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


# -- batches ---------------------------------------------------------------------------------------


def refused(victim, records, **options):
    """Produce a bad batch; return the error."""
    with Raw(victim) as raw:
        answer = raw.ask(produce_request("standing", records, **options), 9)
    assert answer is not None, "the broker hung up instead of answering"
    return ErrorCode(produced(answer).error_code)


def changed(at, value, *, with_crc=True):
    """Return a good batch with some bytes replaced, with a valid CRC on request."""
    data = bytearray(good_batch())
    data[at : at + len(value)] = value
    if with_crc:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def test_a_batch_whose_crc_is_wrong_is_corrupt(victim):
    assert refused(victim, changed(70, b"!", with_crc=False)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_another_magic_is_refused(victim, magic):
    assert refused(victim, changed(16, bytes((magic,)))) in {
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.CORRUPT_MESSAGE,
    }


def test_an_unknown_codec_is_refused(victim):
    assert refused(victim, changed(21, struct.pack(">h", 7))) in {
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
    }


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 2**31 - 1])
def test_a_count_that_does_not_fit_the_offsets_is_refused(victim, count):
    assert refused(victim, changed(57, struct.pack(">i", count))) in {
        ErrorCode.INVALID_RECORD,
        ErrorCode.CORRUPT_MESSAGE,
    }


@pytest.mark.parametrize("length", [-1, 0, 48, 10, 2**31 - 1])
def test_a_length_that_does_not_fit_is_refused(victim, length):
    assert refused(victim, changed(8, struct.pack(">i", length), with_crc=False)) in {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
    }


@pytest.mark.parametrize("records", [None, b"", b"x", bytes(60), good_batch()[:-1]])
def test_records_that_are_no_batch_are_refused(victim, records):
    assert refused(victim, records) in {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }


def test_two_batches_for_one_partition_are_refused(victim):
    assert refused(victim, good_batch() + good_batch()) == ErrorCode.INVALID_RECORD


def test_a_control_batch_from_a_client_is_refused(victim):
    control = batch.build([batch.Record(0, 0, b"\x00\x00\x00\x01", bytes(6), ())], control=True)
    assert refused(victim, control) in {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}


def test_an_unknown_partition_is_refused(victim):
    for partition in (-1, 1, 2**31 - 1):
        assert refused(victim, good_batch(), partition=partition) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_impossible_acks_are_refused(victim, acks):
    assert refused(victim, good_batch(), acks=acks) == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_batch_larger_than_the_topic_allows_is_refused(victim):
    rows = [batch.Record(0, 0, None, b"x" * 1_100_000, ())]
    assert refused(victim, batch.build(rows)) == ErrorCode.MESSAGE_TOO_LARGE


def test_bad_records_are_not_written_with_acks_0_either(victim):
    with Raw(victim) as raw:
        request = produce_request("standing", changed(70, b"!", with_crc=False), acks=0)
        raw.send(encode_request(request, 9, 7, "raw"))
        raw.finish()
        raw.receive()


def test_a_batch_of_an_unknown_transaction_is_refused(victim):
    records = good_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    with Raw(victim) as raw:
        answer = raw.ask(produce_request("standing", records, transactional_id="t"), 9)
    assert answer is None or produced(answer).error_code != 0
