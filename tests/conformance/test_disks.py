"""Disks that are full, dead, or fail for a moment, under idempotent producers.

Three brokers, each with its log directory on a disk of its own.  A full disk is a small tmpfs; a
dead one, or one that fails for a moment, comes from a library that makes the broker's system calls
fail (`tests/chaos/meddler.c`).  While that happens, a librdkafka producer with its defaults writes
to all partitions: every acknowledged record is in the log, once and in order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from hightide.testing import Cluster
from tests.chaos.machine import Meddler
from tests.conformance.replicated import SETTINGS, Replicated
from tests.support.eventually import eventually

PARTITIONS = 6
DISK_MIB = 96

pytestmark = [pytest.mark.timeout(240), pytest.mark.extended]


class OnDisks(Replicated):
    """A cluster whose brokers have disks that fail."""

    meddlers: dict[int, Meddler]

    def wrapper(self, broker_id: int = 1) -> list[str]:
        environment = self.meddlers[broker_id].environment
        return ["env", *(f"{name}={value}" for name, value in environment.items())]


class SteadyProducer:
    """Writes numbered records to all partitions, and knows when each was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._topic = topic
        self._is_stopping = threading.Event()
        self.acked: dict[int, list[int]] = defaultdict(list)
        self.times: dict[int, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        self.wait_for_acks()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.is_set():
            for partition in range(PARTITIONS):
                with contextlib.suppress(BufferError):
                    self._producer.produce(
                        self._topic,
                        f"{number}".encode().ljust(200),
                        partition=partition,
                        on_delivery=self._delivered(partition, number),
                    )
            number += 1
            self._producer.poll(0.001)
        self._producer.flush(60)

    def _delivered(self, partition: int, number: int) -> Callable[[Any, Any], None]:
        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acked[partition].append(number)
                self.times[partition].append(time.monotonic())

        return delivered

    def wait_for_acks(self, timeout_s: float = 30) -> None:
        """Wait until every partition has acknowledged something more."""
        before = {partition: len(self.acked[partition]) for partition in range(PARTITIONS)}
        eventually(
            lambda: all(len(self.acked[index]) > count for index, count in before.items()),
            timeout_s,
        )

    def longest_gap_s(self) -> float:
        gaps = (
            after - before for times in self.times.values() for before, after in pairwise(times)
        )
        return max(gaps)


def stored(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """The numbers in each partition, in the order of the log."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "auto.offset.reset": "earliest"}
    )
    found: dict[int, list[int]] = defaultdict(list)
    try:
        for partition in range(PARTITIONS):
            at = TopicPartition(topic, partition)
            _, end = consumer.get_watermark_offsets(at, timeout=20)
            consumer.assign([TopicPartition(topic, partition, 0)])
            position = 0
            while position < end:
                message = consumer.poll(20)
                assert message is not None, f"nothing more at {topic}-{partition}@{position}"
                if message.error():
                    raise KafkaException(message.error())
                found[partition].append(int(message.value() or b""))
                position = (message.offset() or 0) + 1
    finally:
        consumer.close()
    return found


def check(producer: SteadyProducer, found: dict[int, list[int]]) -> None:
    assert producer.errors == []
    for partition, numbers in found.items():
        assert len(numbers) == len(set(numbers)), "a record is there twice"
        assert numbers == sorted(numbers), "records changed their order"
        assert set(producer.acked[partition]) <= set(numbers), "an acknowledged record is lost"


@contextlib.contextmanager
def small_disks(folder: Path) -> Iterator[dict[int, Path]]:
    """A file system of few bytes for each broker."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("small file systems need root and mount")
    mounted: dict[int, Path] = {}
    try:
        for broker_id in (1, 2, 3):
            path = folder / f"disk-{broker_id}"
            path.mkdir()
            options = f"size={DISK_MIB}m"
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=False
            )
            if done.returncode:
                pytest.skip("this machine does not let the test mount a tmpfs")
            mounted[broker_id] = path
        yield mounted
    finally:
        for path in mounted.values():
            subprocess.run(["umount", "-l", str(path)], check=False)


@contextlib.contextmanager
def cluster_on(disks: dict[int, Path], folder: Path) -> Iterator[OnDisks]:
    settings = {
        **SETTINGS,
        "zookeeper.session.timeout.ms": 4000,
        "replica.lag.time.max.ms": 20_000,
        "auto.leader.rebalance.enable": False,
        "log.segment.bytes": 4 << 20,
    }
    own = {broker_id: {"log.dirs": path / "logs"} for broker_id, path in disks.items()}
    cluster = OnDisks(3, settings=settings, broker_settings=own, data=folder / "cluster")
    (folder / "cluster").mkdir()
    cluster.meddlers = {
        broker_id: Meddler(folder / f"meddler-{broker_id}", path / "logs")
        for broker_id, path in disks.items()
    }
    with cluster:
        yield cluster


def fill(disk: Path) -> Path:
    """Take all the space that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return ballast


def health(cluster: Cluster) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "cluster", "health", "--bootstrap", cluster.bootstrap],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def leads_nothing(cluster: OnDisks, topic: str, broker_id: int) -> bool:
    other = next(other for other in cluster.able() if other != broker_id)
    return all(p.leader_id != broker_id for p in cluster.partitions(other, topic).values())


def is_whole(cluster: OnDisks, topic: str) -> bool:
    return all(sorted(p.isr_nodes) == [1, 2, 3] for p in cluster.partitions(1, topic).values())


def test_disks_fill_and_empty_under_idempotent_producers(tmp_path, record_testsuite_property):
    with small_disks(tmp_path) as disks, cluster_on(disks, tmp_path) as cluster:
        topic = cluster.create_topic(partitions=PARTITIONS, replication_factor=3)
        with SteadyProducer(cluster.bootstrap, topic) as producer:
            for broker_id in (1, 2, 3):
                ballast = fill(disks[broker_id])
                eventually(lambda b=broker_id: leads_nothing(cluster, topic, b), 20)
                producer.wait_for_acks()
                assert "is full" in health(cluster)
                ballast.unlink()
                eventually(lambda: is_whole(cluster, topic), 40)
                producer.wait_for_acks()
        check(producer, stored(cluster.bootstrap, topic))
        gap_s = producer.longest_gap_s()
        record_testsuite_property("longest gap s, full disk", gap_s)
        print("longest gap", gap_s, "records", sum(map(len, producer.acked.values())))
        assert gap_s < 10


@pytest.mark.parametrize(
    "fault", [{"write_error": errno.EIO}, {"sync_error": errno.EIO}, {"write_error": errno.EROFS}]
)
def test_a_disk_fails_and_works_again(tmp_path, fault, record_testsuite_property):
    disks = {broker_id: tmp_path / f"disk-{broker_id}" for broker_id in (1, 2, 3)}
    for path in disks.values():
        path.mkdir()
    with cluster_on(disks, tmp_path) as cluster:
        config = {"flush.messages": 1} if "sync_error" in fault else {}
        topic = cluster.create_topic(partitions=PARTITIONS, replication_factor=3, config=config)
        with SteadyProducer(cluster.bootstrap, topic) as producer:
            for broker_id in (1, 2, 3):
                cluster.meddlers[broker_id].harm(**fault)
                eventually(lambda b=broker_id: leads_nothing(cluster, topic, b), 20)
                producer.wait_for_acks()
                assert "is offline" in health(cluster)
                cluster.meddlers[broker_id].heal()
                eventually(lambda: is_whole(cluster, topic), 40)
                producer.wait_for_acks()
                assert cluster.is_running(broker_id)
        check(producer, stored(cluster.bootstrap, topic))
        gap_s = producer.longest_gap_s()
        record_testsuite_property(f"longest gap s, {fault}", gap_s)
        print("longest gap", gap_s, "records", sum(map(len, producer.acked.values())))
        assert gap_s < 10


def test_a_restart_on_a_full_disk_serves_reads(tmp_path):
    """With the embedded ZooKeeper on the same disk, after a clean stop and after a kill."""
    with small_disks(tmp_path) as disks:
        own = {1: {"log.dirs": disks[1] / "logs"}}
        (tmp_path / "cluster").mkdir()
        with Cluster(1, data=tmp_path / "cluster", broker_settings=own) as cluster:
            topic = cluster.create_topic(partitions=PARTITIONS, replication_factor=1)
            with SteadyProducer(cluster.bootstrap, topic) as producer:
                pass
            eventually((disks[1] / "logs" / ".reserve").exists)
            before = stored(cluster.bootstrap, topic)
            check(producer, before)
            ballast = fill(disks[1])
            eventually(lambda: "is full" in health(cluster))
            assert cluster.terminate(1) == 0
            assert (disks[1] / "logs" / ".kafka_cleanshutdown").exists()
            cluster.restart(1)
            assert stored(cluster.bootstrap, topic) == before
            cluster.kill(1)
            cluster.restart(1)
            eventually(lambda: all(cluster.leader(topic, i) == 1 for i in range(PARTITIONS)))
            assert stored(cluster.bootstrap, topic) == before
            assert "is full" in health(cluster)
            ballast.unlink()
            with SteadyProducer(cluster.bootstrap, topic) as producer:
                pass
            assert producer.errors == []
