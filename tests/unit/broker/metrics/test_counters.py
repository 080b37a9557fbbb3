"""Counting: exact numbers of requests and of what is appended, whatever is sampled."""

from __future__ import annotations

import uuid

import pytest

from hightide.broker.metrics.counters import EVERY, RECENT, UNTIMED, ApiCounts
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic
from hightide.wire import batch

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("run", [1, 3, 7, 8, 20, 5000])
def test_every_request_is_counted_and_some_are_samples(run: int) -> None:
    api = ApiCounts()
    counts = api.at(9)
    for _ in range(1000):
        counts.served(run, 0.001, run * 0.002)
    assert counts.requests == 1000 * run
    assert counts.local_s == pytest.approx(1000 * run * 0.002)
    assert min(1000, RECENT // run) <= api.samples <= 1000
    assert {round(value, 9) for value in api.local[: api.samples]} == {0.002}


def test_of_many_requests_each_eighth_is_a_sample() -> None:
    api = ApiCounts()
    for _ in range(RECENT + 80 * EVERY):
        api.at(0).served(1, 0.0, 0.001)
    assert api.samples == pytest.approx(RECENT + 80, abs=1)


def test_what_a_request_waits_for_is_added_to_its_sample() -> None:
    api = ApiCounts()
    counts = api.at(3)
    found = [counts.waits(0.0, 0.001) for _ in range(RECENT + 2 * EVERY)]
    assert found[:RECENT] == list(range(RECENT))
    assert found[RECENT:].count(UNTIMED) == 2 * EVERY - 2
    for sample in found:
        counts.has_waited(sample, 0.5)
    assert api.remote_s == pytest.approx(0.5 * len(found))
    assert len(api.remote) == RECENT
    assert max(number for number, _ in api.remote.values()) == api.samples - 1


def test_the_versions_of_an_api_share_errors_and_samples() -> None:
    api = ApiCounts()
    api.at(1).failed(3)
    api.at(2).failed(3)
    api.at(2).served(1, 0.0, 0.0)
    assert api.errors == {3: 2}
    assert {version: counted.requests for version, counted in api.versions.items()} == {1: 0, 2: 1}
    assert api.samples == 1


def built(records: int) -> bytearray:
    return batch.build([batch.Record(at, NOW_MS, None, b"v" * 50, ()) for at in range(records)])


class Appends:
    """A replica, and what was appended to it."""

    def __init__(self) -> None:
        self.manager = ReplicaManager()
        disk = MemoryDisk()
        disk.make_directory("t-0")
        config = Topic.effective(Settings(), {"segment.bytes": "1000", "retention.bytes": "1"})
        self.log = Log.create(disk, "t", 0, config, OpenFiles(10), NOW_MS)
        self.replica = self.manager.add(self.log, uuid.UUID(int=1), 0)
        self.epoch = 0

    def lead(self) -> None:
        self.epoch += 1
        state = PartitionState((1,), 1, self.epoch, (1,))
        self.replica.lead(state, 1, 1, {1: 1}, frozenset(), 1000, NOW_MS)

    def follow(self) -> None:
        self.epoch += 1
        self.replica.follow(PartitionState((1, 2), 2, self.epoch, (1, 2)))

    def append(self, records: int) -> int:
        made = built(records)
        self.replica.append(made, memoryview(made), 0, len(made), NOW_MS)
        return len(made)

    def copy(self, records: int) -> None:
        made = built(records)
        made[0:8] = self.log.end_offset.to_bytes(8, "big")
        made[12:16] = self.epoch.to_bytes(4, "big")
        self.log.append_fetched(memoryview(made), NOW_MS)


def test_a_leaders_appends_are_read_from_its_log_also_when_segments_are_rolled() -> None:
    appends = Appends()
    appends.lead()
    size = sum(appends.append(3) for _ in range(40))
    assert len(appends.log.segments) > 5
    appends.replica.count_appends()
    traffic = appends.manager.traffic.total()
    assert (traffic.messages_in, traffic.bytes_in) == (120, size)
    appends.replica.count_appends()
    assert appends.manager.traffic.total().messages_in == 120


def test_appends_are_counted_when_the_role_ends_and_copies_are_not() -> None:
    appends = Appends()
    appends.lead()
    size = appends.append(2)
    appends.lead()
    size += appends.append(5)
    appends.follow()
    appends.copy(7)
    appends.lead()
    size += appends.append(1)
    appends.manager.remove(appends.replica)
    traffic = appends.manager.traffic.total()
    assert (traffic.messages_in, traffic.bytes_in) == (8, size)
    assert appends.manager.traffic.topics == {}
