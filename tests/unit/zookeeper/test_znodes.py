"""Kafka's znode payloads: byte for byte as Kafka writes them, and safe to decode."""

import contextlib
import json
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.zookeeper import znodes
from hightide.zookeeper.znodes import (
    BrokerRegistration,
    ClusterId,
    ConfigChange,
    Controller,
    Endpoint,
    EntityConfig,
    LogDirEvent,
    PartitionList,
    PartitionState,
    ProducerIdBlock,
    Reassignment,
    TopicAssignment,
)
from hightide.zookeeper.zookeeper_errors import MalformedZnode

TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_ID_TEXT = "ABEiM0RVZneImaq7zN3u_w"

PAYLOADS = [
    (Controller(1, 1700000000000), b'{"version":1,"brokerid":1,"timestamp":"1700000000000"}'),
    (
        BrokerRegistration((Endpoint("PLAINTEXT", "h", 9092),), 1700000000000),
        b'{"version":5,"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"],'
        b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"jmx_port":-1,'
        b'"timestamp":"1700000000000","features":{}}',
    ),
    (
        BrokerRegistration(
            (Endpoint("SECURE", "::1", 9093, "SASL_SSL"),), 5, "r1", 99, {"f": (1, 2)}
        ),
        b'{"version":5,"host":null,"port":-1,"endpoints":["SECURE://[::1]:9093"],'
        b'"listener_security_protocol_map":{"SECURE":"SASL_SSL"},"jmx_port":99,'
        b'"timestamp":"5","rack":"r1","features":{"f":{"min_version":1,"max_version":2}}}',
    ),
    (
        TopicAssignment(TOPIC_ID, {0: (1, 2, 3)}),
        b'{"version":3,"topic_id":"ABEiM0RVZneImaq7zN3u_w","partitions":{"0":[1,2,3]},'
        b'"adding_replicas":{},"removing_replicas":{}}',
    ),
    (
        TopicAssignment(None, {0: (1,), 10: (2,)}, {0: (4,)}, {10: (1,)}),
        b'{"version":2,"partitions":{"0":[1],"10":[2]},'
        b'"adding_replicas":{"0":[4]},"removing_replicas":{"10":[1]}}',
    ),
    (
        BrokerRegistration((Endpoint("PLAINTEXT", "h", 1),), 5, previous_epoch=2**32 + 7),
        b'{"version":5,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],'
        b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"jmx_port":-1,'
        b'"timestamp":"5","features":{},"previous_epoch":"4294967303"}',
    ),
    (
        PartitionState(1, 0, (1, 2, 3), 1),
        b'{"version":1,"leader":1,"leader_epoch":0,"isr":[1,2,3],"controller_epoch":1}',
    ),
    (
        PartitionState(2, 4, (2,), 1, is_recovering=True),
        b'{"version":1,"leader":2,"leader_epoch":4,"isr":[2],"controller_epoch":1,'
        b'"leader_recovery_state":1}',
    ),
    (
        PartitionState(-1, 4, (), 1, False, (3, 2), 2, {2: 2**33, 3: 9}),
        b'{"version":1,"leader":-1,"leader_epoch":4,"isr":[],"controller_epoch":1,'
        b'"elr":[3,2],"last_known_leader":2,"broker_epochs":{"2":"8589934592","3":"9"}}',
    ),
    (
        PartitionState(2, 7, (2,), 1, recovery_epoch=4),
        b'{"version":1,"leader":2,"leader_epoch":7,"isr":[2],"controller_epoch":1,'
        b'"recovery_epoch":4}',
    ),
    (
        PartitionList((("t", 0),)),
        b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
    ),
    (LogDirEvent(1), b'{"version":1,"broker":1,"event":1}'),
    (
        Reassignment({("t", 0): (1, 2)}),
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}',
    ),
    (EntityConfig({"k": "v"}), b'{"version":1,"config":{"k":"v"}}'),
    (ConfigChange("topics/T"), b'{"version":2,"entity_path":"topics/T"}'),
    (ClusterId(TOPIC_ID_TEXT), b'{"version":"1","id":"ABEiM0RVZneImaq7zN3u_w"}'),
    (
        ProducerIdBlock(1, 0, 999),
        b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}',
    ),
]
KINDS = sorted({type(value) for value, _ in PAYLOADS}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize(("value", "data"), PAYLOADS, ids=lambda v: type(v).__name__)
def test_a_payload_is_written_byte_for_byte_and_read_back(value, data):
    assert value.encode() == data
    assert type(value).decode(data, "/somewhere") == value


def test_older_versions_of_a_topic_are_understood():
    v1 = TopicAssignment.decode(b'{"version":1,"partitions":{"1":[2],"0":[1,2]}}', "/t")
    v2 = TopicAssignment.decode(
        b'{"version":2,"partitions":{"0":[1]},"adding_replicas":{"0":[3]},"removing_replicas":{}}',
        "/t",
    )
    assert v1 == TopicAssignment(None, {0: (1, 2), 1: (2,)})
    assert list(v1.partitions) == [0, 1]
    assert v2 == TopicAssignment(None, {0: (1,)}, {0: (3,)})


def test_older_versions_of_a_broker_are_understood():
    v1 = b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"7"}'
    v2 = b'{"version":2,"host":"h","port":1,"endpoints":["SSL://h:9093"],"timestamp":"7"}'
    assert BrokerRegistration.decode(v1, "/b") == BrokerRegistration(
        (Endpoint("PLAINTEXT", "h", 9092),), 7, jmx_port=9999
    )
    assert BrokerRegistration.decode(v2, "/b").endpoints == (Endpoint("SSL", "h", 9093, "SSL"),)


def test_a_partition_as_kafka_writes_it_has_nothing_of_what_only_we_know():
    data = b'{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}'
    state = PartitionState.decode(data, "/p")
    assert state == PartitionState(1, 3, (1, 2), 7)
    assert (state.elr, state.last_known_leader, state.broker_epochs) == ((), -1, {})
    assert not state.is_recovering
    recovered = data[:-1] + b',"leader_recovery_state":0}'
    assert PartitionState.decode(recovered, "/p") == state


def test_a_registration_that_does_not_tell_vouches_for_nothing():
    data = b'{"version":5,"endpoints":["A://h:1"],"timestamp":"7","features":{}}'
    assert BrokerRegistration.decode(data, "/b").previous_epoch == -1


def test_the_controller_of_a_newer_kafka_is_understood():
    data = b'{"version":2,"brokerid":4,"timestamp":"9","kraftControllerEpoch":-1}'
    assert Controller.decode(data) == Controller(4, 9)


def test_the_first_form_of_a_config_change_is_understood():
    data = b'{"version":1,"entity_type":"topics","entity_name":"T"}'
    assert ConfigChange.decode(data, "/c") == ConfigChange("topics/T")


def test_empty_znodes_mean_no_overrides_and_no_producer_ids_yet():
    assert EntityConfig.decode(b"", "/c") == EntityConfig({})
    assert ProducerIdBlock.decode(b"") is None


STATE = b'{"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":1'
BAD = [
    (TopicAssignment, b""),
    (TopicAssignment, b"\xff\xfe"),
    (TopicAssignment, b"[" * 100_000),
    (TopicAssignment, b'{"version":3}'),
    (TopicAssignment, b'{"partitions":{"0":"1"}}'),
    (TopicAssignment, b'{"partitions":{"zero":[1]}}'),
    (TopicAssignment, b'{"partitions":{"0":[true]}}'),
    (TopicAssignment, b'{"partitions":{"0":[2147483648]}}'),
    (TopicAssignment, b'{"partitions":{},"topic_id":"short"}'),
    (TopicAssignment, b'{"partitions":{},"topic_id":"ABEiM0RVZneImaq7zN3u_x"}'),
    (PartitionState, b'{"leader":1.0,"leader_epoch":0,"isr":[1],"controller_epoch":1}'),
    (PartitionState, b'{"leader":1,"leader_epoch":0,"isr":null,"controller_epoch":1}'),
    (PartitionState, STATE + b',"elr":1}'),
    (PartitionState, STATE + b',"elr":["1"]}'),
    (PartitionState, STATE + b',"last_known_leader":"1"}'),
    (PartitionState, STATE + b',"leader_recovery_state":true}'),
    (PartitionState, STATE + b',"broker_epochs":[1]}'),
    (PartitionState, STATE + b',"broker_epochs":{"x":"1"}}'),
    (PartitionState, STATE + b',"broker_epochs":{"1":"x"}}'),
    (PartitionState, STATE + b',"broker_epochs":{"1":null}}'),
    (BrokerRegistration, b'{"version":5,"endpoints":[],"previous_epoch":"x"}'),
    (BrokerRegistration, b'{"version":5,"endpoints":[],"previous_epoch":9223372036854775808}'),
    (EntityConfig, b'{"config":{"k":1}}'),
    (EntityConfig, b'{"config":{"k":"\\ud800"}}'),
    (EntityConfig, b"[]"),
    (ProducerIdBlock, b'{"broker":1,"block_start":"9","block_end":"1"}'),
    (ProducerIdBlock, b'{"broker":1,"block_start":"0","block_end":"' + b"9" * 5000 + b'"}'),
    (BrokerRegistration, b'{"version":4,"endpoints":["nowhere"]}'),
    (BrokerRegistration, b'{"version":4,"endpoints":["A://h:99999"]}'),
]


@pytest.mark.parametrize(("kind", "data"), BAD, ids=range(len(BAD)))
def test_a_damaged_payload_is_refused_with_the_path(kind, data):
    with pytest.raises(MalformedZnode) as refusal:
        kind.decode(data, "/the/path")
    assert refusal.value.path == "/the/path"
    assert "/the/path" in str(refusal.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = sorted({word for _, data in PAYLOADS for word in data.decode().split('"')[1::2]})


@settings(max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    fields=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6) | JSON,
)
def test_any_json_gives_a_value_that_can_be_written_or_the_one_error(kind, fields):
    value = decoded(kind, json.dumps(fields).encode())
    if value is not None:
        assert kind.decode(value.encode(), "/p") == value


@settings(max_examples=300)
@given(kind=st.sampled_from(KINDS), data=st.binary(max_size=60))
def test_any_bytes_give_a_value_or_the_one_error(kind, data):
    decoded(kind, data)


def decoded(kind, data):
    with contextlib.suppress(MalformedZnode):
        return kind.decode(data, "/p")


@given(st.uuids())
def test_an_id_is_22_characters_and_comes_back(value):
    text = znodes.id_text(value)
    assert len(text) == 22
    assert znodes.id_of(text) == value


@pytest.mark.parametrize(
    "data", [b"", b"-1", b"1.5", b"x", b"9" * 5000, b"2147483648", b"\xd9\xa1"]
)
def test_a_controller_epoch_is_a_plain_number(data):
    assert znodes.decode_controller_epoch(znodes.encode_controller_epoch(7)) == 7
    with pytest.raises(MalformedZnode):
        znodes.decode_controller_epoch(data)


def test_paths_are_kafkas():
    assert znodes.broker_path(3) == "/brokers/ids/3"
    assert znodes.topic_path("t") == "/brokers/topics/t"
    assert znodes.partitions_path("t") == "/brokers/topics/t/partitions"
    assert znodes.partition_path("t", 2) == "/brokers/topics/t/partitions/2"
    assert znodes.partition_state_path("t", 2) == "/brokers/topics/t/partitions/2/state"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"
    assert znodes.topic_config_path("t") == znodes.config_path("topics/t") == "/config/topics/t"
    assert znodes.broker_config_path(1) == "/config/brokers/1"
    assert znodes.broker_config_path(None) == "/config/brokers/<default>"
    assert znodes.ISR_CHANGE_PREFIX == "/isr_change_notification/isr_change_"
    assert znodes.LOG_DIR_EVENT_PREFIX == "/log_dir_event_notification/log_dir_event_"
    assert znodes.CONFIG_CHANGE_PREFIX == "/config/changes/config_change_"


def test_a_sequence_number_is_read_from_the_end_of_a_name():
    assert znodes.sequence_of("config_change_0000000042") == 42
    with pytest.raises(MalformedZnode):
        znodes.sequence_of("config_change_42")


@given(st.text(max_size=20))
def test_user_names_become_znode_names_and_come_back(name):
    znode = znodes.sanitized(name)
    assert "/" not in znode
    assert znodes.desanitized(znode) == name
