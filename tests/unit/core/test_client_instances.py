"""Client instances: subscriptions, push times, ids (KIP-714)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.core.telemetry import subscription as subscriptions
from hightide.core.telemetry.client_instances import (
    KEPT_MS,
    ClientInstance,
    ClientInstances,
    Push,
)
from hightide.settings import InvalidSetting
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode

Value = TypeVar("Value")

ONE, OTHER = uuid.UUID(int=1 << 100), uuid.UUID(int=2 << 100)
MAX_BYTES = 1000
SHOP = {"client_id": "shop-1", "client_software_name": "librdkafka"}


def done(steps: Generator[None, None, Value]) -> Value:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: Value = stop.value
            return value


def subscription(**config: str) -> subscriptions.Subscription:
    return subscriptions.parse(
        {name.replace("_", "."): value for name, value in config.items()}, compile_pattern
    )


class World:
    """A machine and a clock."""

    def __init__(self, most: int = 10, **config: str) -> None:
        self.machine = ClientInstances(most)
        self.now_ms = 1_000_000
        if config:
            self.machine.configured("all", subscription(**config))

    def find(self, client: uuid.UUID = ONE, attributes: dict[str, str] = SHOP) -> ClientInstance:
        return done(self.machine.find(client, attributes, self.now_ms))

    def subscribe(self, client: uuid.UUID = ONE) -> ErrorCode:
        return self.machine.subscribed(self.find(client), self.now_ms)

    def push(self, client: uuid.UUID = ONE, **facts: Any) -> ErrorCode:
        instance = self.find(client)
        given: dict[str, Any] = {"subscription_id": instance.subscription_id, "compression_type": 4}
        push = Push(**{**given, "size_bytes": 10, **facts})
        return self.machine.pushed(instance, push, MAX_BYTES, self.now_ms)


# -- what a client is subscribed to --------------------------------------------------------------


def test_a_client_without_a_subscription_pushes_nothing() -> None:
    instance = World().find()
    assert instance.metrics == ()
    assert instance.interval_ms == 300_000
    assert not instance.wants("org.apache.kafka.producer.x")


def test_several_subscriptions_of_a_client_are_merged() -> None:
    world = World(metrics="a,b", interval_ms="5000")
    world.machine.configured("more", subscription(metrics="b,c", interval_ms="2000"))
    world.machine.configured(
        "others", subscription(metrics="*", interval_ms="100", match="client_id=bank")
    )
    instance = world.find()
    assert (instance.metrics, instance.interval_ms) == (("a", "b", "c"), 2000)
    assert instance.wants("apple")
    assert not instance.wants("d")


def test_a_star_stands_for_all_metrics() -> None:
    world = World(metrics="a,*", interval_ms="5000")
    assert world.find().metrics == ("*",)
    assert world.find().wants("anything")


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("client_id=shop-.*", True),
        ("client_id=shop", False),
        ("client_id=shop-1,client_software_name=lib.*", True),
        ("client_id=shop-1,client_software_name=java", False),
        ("client_source_address=.*", False),
        (" client_id = shop-[0-9] ", True),
    ],
)
def test_every_expression_must_match_the_whole_attribute(match: str, matches: bool) -> None:
    world = World(metrics="*", match=match)
    assert bool(world.find().metrics) == matches


def test_all_brokers_compute_the_same_subscription_id_as_kafka() -> None:
    # CRC-32C of "[a, b]1000", and Java's hash of the id.
    world = World(metrics="b,a", interval_ms="1000")
    text_checksum = crc32c(b"[a, b]1000")
    hashed = (ONE.int >> 64) >> 32
    expected = (text_checksum ^ hashed) & 0xFFFFFFFF
    assert world.find().subscription_id & 0xFFFFFFFF == expected


@given(st.uuids(), st.lists(st.text(max_size=5), max_size=5), st.integers(100, 3_600_000))
@settings(max_examples=50, deadline=None)
def test_a_subscription_id_fits_its_field(
    client: uuid.UUID, metrics: list[str], interval_ms: int
) -> None:
    found = subscriptions.subscription_id(metrics, interval_ms, client)
    assert -(1 << 31) <= found < 1 << 31


# -- configs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"topics": "a"}, "Unknown client metrics configuration: topics"),
        ({"interval.ms": "99"}, "Invalid value 99 for interval.ms, interval must be between 100"),
        ({"interval.ms": "3600001"}, "must be between 100 and 3600000 (1 hour)"),
        ({"interval.ms": "soon"}, "interval.ms must be a whole number"),
        ({"match": "client_id"}, "Illegal client matching pattern: client_id"),
        ({"match": "color=red"}, "Illegal client matching pattern: color=red"),
        ({"match": "client_id=a=b"}, "Illegal client matching pattern: client_id=a=b"),
        ({"match": "client_id=[a"}, "Illegal client matching pattern: client_id=[a"),
        ({"match": "client_id="}, "Illegal client matching pattern: client_id="),
        ({"metrics": ",".join(["a"] * 101)}, "100 entries"),
        ({"metrics": "a" * 256}, "255 characters"),
    ],
)
def test_an_invalid_config_is_refused_in_kafkas_words(config: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(problem)):
        subscriptions.parse(config, compile_pattern)


# -- when a client may ask and push --------------------------------------------------------------


def test_the_first_push_may_come_early_and_the_next_after_an_interval() -> None:
    world = World(metrics="*", interval_ms="1000")
    assert world.subscribe() == ErrorCode.NONE
    world.now_ms += 500
    assert world.push() == ErrorCode.NONE
    world.now_ms += 999
    assert world.push() == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 1
    assert world.push() == ErrorCode.NONE


def test_a_push_in_the_millisecond_of_its_subscription_is_taken() -> None:
    world = World(metrics="*", interval_ms="1000")
    world.subscribe()
    assert world.push() == ErrorCode.NONE
    world.now_ms += 1000
    world.subscribe()
    assert world.push() == ErrorCode.NONE


def test_a_client_that_asks_too_early_is_throttled() -> None:
    world = World(metrics="*", interval_ms="1000")
    world.subscribe()
    world.now_ms += 999
    assert world.subscribe() == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    world.now_ms += 1
    assert world.subscribe() == ErrorCode.NONE


def test_a_push_of_a_client_that_the_broker_has_not_met_is_taken() -> None:
    assert World(metrics="*").push() == ErrorCode.NONE


def test_a_changed_subscription_is_given_at_once() -> None:
    world = World(metrics="*", interval_ms="1000")
    world.subscribe()
    former = world.find().subscription_id
    world.machine.configured("all", subscription(metrics="a", interval_ms="2000"))
    assert world.push(subscription_id=former) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert world.subscribe() == ErrorCode.NONE
    assert world.push() == ErrorCode.NONE


def test_a_deleted_subscription_ends() -> None:
    world = World(metrics="*", interval_ms="1000")
    assert world.find().metrics
    world.machine.configured("all", None)
    assert not world.find().metrics


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"compression_type": -1}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"size_bytes": MAX_BYTES + 1}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"size_bytes": MAX_BYTES}, ErrorCode.NONE),
    ],
)
def test_what_a_push_says_of_its_payload_is_checked(
    facts: dict[str, Any], error: ErrorCode
) -> None:
    assert World(metrics="*").push(**facts) == error


def test_the_last_push_may_come_early_and_no_other_comes_after_it() -> None:
    world = World(metrics="*", interval_ms="1000")
    world.push()
    assert world.push(is_terminating=True) == ErrorCode.NONE
    world.now_ms += 5000
    assert world.push() == ErrorCode.INVALID_REQUEST
    assert world.push() == ErrorCode.INVALID_REQUEST


# -- how many ------------------------------------------------------------------------------------


def test_the_instance_that_has_been_silent_for_longest_is_forgotten() -> None:
    world = World(most=2, metrics="*")
    for number in (1, 2):
        world.find(uuid.UUID(int=number))
    world.find(uuid.UUID(int=1))
    world.find(uuid.UUID(int=3))
    assert uuid.UUID(int=1) in world.machine
    assert uuid.UUID(int=2) not in world.machine


def test_an_instance_is_forgotten_after_three_intervals() -> None:
    world = World(metrics="*", interval_ms="100000")
    world.find(ONE)
    world.now_ms += 3 * 100_000 - 1
    world.find(OTHER)
    assert ONE in world.machine
    world.now_ms += 1
    world.find(uuid.UUID(int=3))
    assert ONE not in world.machine


def test_an_instance_is_kept_for_a_minute_at_least() -> None:
    world = World(metrics="*", interval_ms="100")
    assert world.find().expires_at_ms == world.now_ms + KEPT_MS


def test_a_client_that_comes_back_may_ask_at_once() -> None:
    world = World(metrics="*")
    world.subscribe()
    world.machine.disconnected(ONE)
    assert world.subscribe() == ErrorCode.NONE


def test_a_push_counts_once_it_has_been_read() -> None:
    world = World(metrics="*")
    world.push()
    assert world.machine.counts.pushed == 0
    world.machine.has_read(world.find(), ErrorCode.NONE)
    world.machine.has_read(world.find(), ErrorCode.INVALID_RECORD)
    assert (world.machine.counts.pushed, world.machine.counts.invalid) == (1, 1)
    assert world.find().last_error == ErrorCode.INVALID_RECORD


# -- any history ---------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "push", "last push", "configure", "disconnect"]),
        st.sampled_from([ONE, OTHER, uuid.UUID(int=3), uuid.UUID(int=4)]),
        st.integers(0, 1500),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_a_client_that_keeps_to_its_times_is_never_throttled(
    steps: list[tuple[str, uuid.UUID, int]],
) -> None:
    """Whatever happens to the subscriptions, and to other clients."""
    world = World(most=3, metrics="*", interval_ms="1000")
    last_ms: dict[uuid.UUID, int] = {}
    ended: set[uuid.UUID] = set()
    for what, client, pause_ms in steps:
        world.now_ms += pause_ms
        waited = world.now_ms - last_ms.get(client, 0) >= 1000
        match what:
            case "configure":
                world.machine.configured("all", subscription(metrics="*", interval_ms="1000"))
            case "disconnect":
                world.machine.disconnected(client)
            case "subscribe" if waited:
                assert world.subscribe(client) == ErrorCode.NONE
                last_ms[client] = world.now_ms
            case "push" if waited and client not in ended:
                assert world.push(client) == ErrorCode.NONE
                last_ms[client] = world.now_ms
            case "last push" if client not in ended:
                assert world.push(client, is_terminating=True) == ErrorCode.NONE
                last_ms[client] = world.now_ms
                ended.add(client)
        assert len(world.machine) <= 3
