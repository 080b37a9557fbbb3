"""Damaged, cut and lost files of real brokers: no consumer sees damage, and replicas heal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.conformance.adapters import confluent, kafka_python, values
from tests.conformance.replicated import BROKER, SETTINGS, Replicated
from tests.support.eventually import eventually

ALL = [1, 2, 3]
BATCHES = 120

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def _cluster() -> Iterator[Replicated]:
    settings = {**SETTINGS, "auto.leader.rebalance.enable": False}
    with Replicated(3, settings=settings) as cluster:
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture
def cluster(_cluster: Replicated) -> Replicated:
    _cluster.heal()
    return _cluster


def filled(cluster: Replicated, replicas: list[int]) -> tuple[str, list[bytes]]:
    """Create a topic with several segments; return its name and values."""
    topic = cluster.place_topic({0: replicas}, segment_bytes=20_000, min_insync_replicas=1)
    written = [b"%d:" % at + bytes([at]) * 700 for at in range(BATCHES)]
    for value in written:
        cluster.write(topic, value)
    return topic, written


def segments(cluster: Replicated, broker_id: int, topic: str) -> list[Path]:
    return sorted(cluster.folder(broker_id, topic).glob("*.log"))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_a_bit(path: Path) -> None:
    flip(path, random.Random(7).randrange(path.stat().st_size * 8))


def zero_a_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose(path: Path) -> None:
    path.unlink()


def is_repaired(cluster: Replicated, topic: str, broker_id: int) -> bool:
    logs = {cluster.log_bytes(replica, topic) for replica in ALL}
    return len(logs) == 1 and broker_id in cluster.partition(topic).isr_nodes


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        pytest.param(flip_a_bit, 1, id="flip-sealed"),
        *(
            pytest.param(damage, number, marks=pytest.mark.extended)
            for damage in (flip_a_bit, zero_a_page, cut, lose)
            for number in (1, -1)
            if (damage, number) != (flip_a_bit, 1)
        ),
    ],
)
def test_a_damaged_leader_serves_no_damage_and_is_repaired(
    cluster: Replicated, damage: Callable[[Path], None], number: int
) -> None:
    """The broker is stopped cleanly, so nothing tells the next start to check its files."""
    topic, written = filled(cluster, ALL)
    cluster.lead_with(topic, 1)
    assert cluster.terminate(1) == 0
    damage(segments(cluster, 1, topic)[number])
    cluster.restart(1)
    cluster.heal()
    if 1 in cluster.partition(topic).isr_nodes:
        cluster.lead_with(topic, 1)
    assert values(confluent.read(cluster.bootstrap, topic, BATCHES)) == written
    eventually(lambda: is_repaired(cluster, topic, 1), limit_s=60)
    assert f"{topic}-0: copied the records at offsets" in cluster.log(1)
    cluster.check_equal_logs(topic)
    cluster.lead_with(topic, 1)
    assert values(kafka_python.read(cluster.bootstrap, topic, BATCHES)) == written


@pytest.mark.extended
def test_a_leader_finds_its_damage_when_a_follower_copies_it(cluster: Replicated) -> None:
    """The follower tells damaged records by their CRC, and fetches them again and again."""
    topic, written = filled(cluster, ALL)
    cluster.lead_with(topic, 1)
    assert cluster.terminate(3) == 0
    lost = cluster.folder(3, topic)
    for path in lost.iterdir():
        path.unlink()
    lost.rmdir()
    flip_a_bit(segments(cluster, 1, topic)[2])
    cluster.restart(3)
    eventually(lambda: is_repaired(cluster, topic, 3), limit_s=90)
    eventually(lambda: is_repaired(cluster, topic, 1), limit_s=60)
    assert "fetches offset" in cluster.log(1)
    assert f"{topic}-0: copied the records at offsets" in cluster.log(1)
    cluster.check_equal_logs(topic)
    assert values(confluent.read(cluster.bootstrap, topic, BATCHES)) == written


@pytest.mark.extended
def test_the_scrub_finds_damage_that_is_not_read(cluster: Replicated) -> None:
    topic, written = filled(cluster, ALL)
    follower = cluster.followers(topic)[0]
    flip_a_bit(segments(cluster, follower, topic)[1])
    cluster.configure(BROKER, str(follower), log_scrub_interval_ms=1000)
    try:
        said = f"{topic}-0: copied the records at offsets"
        eventually(lambda: said in cluster.log(follower), limit_s=60)
        eventually(lambda: is_repaired(cluster, topic, follower), limit_s=60)
    finally:
        cluster.configure(BROKER, str(follower), log_scrub_interval_ms=7 * 24 * 3_600_000)
    cluster.check_equal_logs(topic)
    assert values(confluent.read(cluster.bootstrap, topic, BATCHES)) == written


class TestTheOnlyCopy:
    """Nothing can bring the records back: they are refused, and all others are served."""

    @pytest.mark.parametrize(
        "damage",
        [
            zero_a_page,
            *(pytest.param(other, marks=pytest.mark.extended) for other in (flip_a_bit, cut, lose)),
        ],
    )
    def test_only_the_damaged_records_are_refused(
        self, cluster: Replicated, damage: Callable[[Path], None]
    ) -> None:
        topic, written = filled(cluster, [2])
        assert cluster.terminate(2) == 0
        damage(segments(cluster, 2, topic)[1])
        cluster.restart(2)
        cluster.leader_now(topic)
        found, errors = read_around(cluster.bootstrap, topic)
        assert errors, "the application learns that records are missing"
        assert set(errors) <= {KafkaError.INVALID_MSG, KafkaError._TRANSPORT}
        assert KafkaError.INVALID_MSG in errors
        right = dict(enumerate(written))
        assert all(right[offset] == value for offset, value in found.items())
        assert min(found) == 0
        assert max(found) == BATCHES - 1
        assert len(found) < BATCHES
        # Writes go on.
        assert cluster.write(topic, b"new") == BATCHES


def read_around(bootstrap: str, topic: str) -> tuple[dict[int, bytes], list[int]]:
    """Read a topic with librdkafka, one offset further after each error; return the values by
    offset, and the errors that the application got."""
    source = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "around",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.error.backoff.ms": 20,
        }
    )
    found: dict[int, bytes] = {}
    errors: list[int] = []
    offset = 0
    try:
        source.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while offset < BATCHES:
            message = source.poll(20)
            assert message is not None, f"nothing comes at offset {offset}"
            error, at, value = message.error(), message.offset(), message.value()
            if error is None:
                assert at is not None
                assert value is not None
                found[at] = value
                offset = at + 1
            else:
                errors.append(error.code())
                if errors[-1] == KafkaError.INVALID_MSG:
                    offset += 1
                    source.seek(TopicPartition(topic, 0, offset))
    finally:
        source.close()
    return found, errors
