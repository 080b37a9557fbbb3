"""The leader's side of followers' fetches: what it looks at, responds and notes."""

import uuid
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

from hightide.broker.handlers import follower_fetch
from hightide.broker.handlers.follower_fetch import fetch_as_follower
from hightide.broker.metrics.counters import Requests
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.core.partition.fetch_session import Session
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import fetch_codec as hot
from hightide.wire.hot import replica_fetch_codec

TOPIC = uuid.UUID(int=7)
FOLLOWER, EPOCH = 2, 20
LIVE = {1: 10, FOLLOWER: EPOCH}
LAG_MS = 30_000
VERSION = hot.HIGHEST
BATCH_BYTES = 68


class Leader:
    """A broker that leads some partitions, and the connection of one follower to it."""

    def __init__(self, partitions: int, isr: tuple[int, ...] = (1, FOLLOWER)) -> None:
        self.time_ms = 1_700_000_000_000
        self.settings = Settings()
        self.replica_manager = ReplicaManager()
        self.requests = Requests()
        self.metadata = SimpleNamespace(get_by_id=lambda _: None, refusal=lambda *_: ANY)
        self.throttle = ReplicationThrottle(1, lambda: self.settings)
        self.responses: list[list[hot.Part]] = []
        self.session = Session(5, True, 1, 0)
        self.epoch = 0
        disk = MemoryDisk()
        for index in range(partitions):
            disk.make_directory(f"t-{index}")
            config = TopicSettings.effective(self.settings, {})
            log = Log.create(disk, "t", index, config, OpenFiles(10), self.time_ms)
            replica = self.replica_manager.add(log, TOPIC, 0)
            state = PartitionState((1, FOLLOWER), 1, 0, isr)
            replica.lead(state, 1, LIVE[1], LIVE, frozenset(), LAG_MS, self.time_ms)

    def monotonic_ms(self) -> int:
        return self.time_ms

    def addresses(self, _connection: object) -> list[object]:
        return []

    # The connection.
    def defer(self, cancel: object) -> object:
        return cancel

    def complete(self, _slot: object, parts: list[hot.Part]) -> None:
        self.responses.append(parts)

    def __getitem__(self, index: int) -> Replica:
        found = self.replica_manager.get_by_id(TOPIC.bytes, index)
        assert found is not None
        return found

    def append(self, index: int, count: int = 1) -> None:
        for _ in range(count):
            buf = batch.build([batch.Record(0, self.time_ms, None, b"", ())])
            assert len(buf) == BATCH_BYTES
            self[index].append(buf, memoryview(buf), 0, len(buf), self.time_ms)
        self.replica_manager.purgatory.wake()

    def ask(
        self,
        at: dict[int, int],
        *,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = 500,
        max_bytes: int = 1 << 20,
        is_listed: bool = True,
        leader_epoch: int = 0,
    ) -> dict[int, tuple[int, ...]] | None:
        """The response to a fetch with these offsets; None if the fetch is parked."""
        wanted = [
            hot.RequestedPartition(index, leader_epoch, offset, 0 if offset else -1, 0, 1 << 20)
            for index, offset in at.items()
        ]
        request = hot.Fetch(
            FOLLOWER,
            wait_ms,
            1,
            max_bytes,
            0,
            self.session.id if is_listed else 0,
            self.epoch,
            [(TOPIC.bytes, wanted)] if wanted else [],
            [(TOPIC.bytes, list(forgotten))] if forgotten else [],
            None,
            EPOCH,
        )
        session = self.session if is_listed else None
        if session is not None:
            self.epoch += 1
            session.update(request)
        parts = fetch_as_follower(self, self, VERSION, 1, request, session)  # type: ignore[arg-type]
        return None if parts is None else contents(parts)

    def news(self) -> dict[int, tuple[int, ...]]:
        """The response to the fetch that was parked."""
        (parts,) = self.responses
        self.responses.clear()
        return contents(parts)


def contents(parts: list[hot.Part]) -> dict[int, tuple[int, ...]]:
    """For each partition: error code, high watermark, batch count; or the diverging epoch."""
    frame = b"".join(
        part if isinstance(part, bytes) else part.file.read(part.position, part.length)  # type: ignore[attr-defined]
        for part in parts
    )
    response = replica_fetch_codec.decode(memoryview(frame)[4:])
    return {
        partition.partition: partition.diverging_epoch
        or (partition.error_code, partition.high_watermark, len(partition.records) // BATCH_BYTES)
        for _, results in response.topics
        for partition in results
    }


@pytest.fixture
def looked(monkeypatch) -> list[int]:
    """The partitions that were looked at."""
    found: list[int] = []
    look = follower_fetch.FollowerFetches._look

    def look_and_note(self, plan, key, *more):
        found.append(key[1])
        return look(self, plan, key, *more)

    monkeypatch.setattr(follower_fetch.FollowerFetches, "_look", look_and_note)
    return found


@pytest.fixture(autouse=True)
def loop(monkeypatch) -> None:
    """A loop without timers."""
    handle = SimpleNamespace(cancel=lambda: None)
    never = SimpleNamespace(call_later=lambda *_: handle, call_soon=lambda *_: handle)
    monkeypatch.setattr("asyncio.get_running_loop", lambda: never)


def test_idle_partitions_are_not_looked_at(looked):
    leader = Leader(100)
    first = leader.ask(dict.fromkeys(range(100), 0), wait_ms=0)
    assert first == dict.fromkeys(range(100), (0, 0, 0))
    looked.clear()
    assert leader.ask({}) is None
    assert looked == []
    leader.append(3)
    assert leader.news() == {3: (0, 0, 1)}
    leader.append(4)
    assert leader.ask({3: 1}) == {3: (0, 1, 0), 4: (0, 0, 1)}
    assert set(looked) == {3, 4}


def test_a_fetch_waits_for_records_and_gets_the_high_watermark_with_them_or_alone():
    leader = Leader(2)
    leader.ask({0: 0, 1: 0}, wait_ms=0)
    leader.append(0)
    assert leader.ask({}) == {0: (0, 0, 1)}
    assert leader.ask({0: 1}) is None, "the high watermark alone does not end the wait at once"
    assert leader[0].high_watermark == 1
    leader.append(1)
    assert leader.news() == {0: (0, 1, 0), 1: (0, 0, 1)}
    assert leader.ask({1: 1}) is None
    leader.replica_manager.purgatory._tell_followers()
    assert leader.news() == {1: (0, 1, 0)}
    assert leader.ask({}) is None
    leader.replica_manager.purgatory._tell_followers()
    assert leader.responses == []


def test_changes_that_are_not_announced_are_seen_from_time_to_time():
    leader = Leader(1)
    leader.append(0, 3)
    leader.ask({0: 3}, wait_ms=0)
    leader[0].log.start_at(2)
    assert leader.ask({}, wait_ms=0) == {}
    leader.time_ms += LAG_MS // 10
    assert leader.ask({}, wait_ms=0) == {0: (0, 3, 0)}


def test_a_follower_that_keeps_up_in_idle_partitions_is_not_late():
    leader = Leader(1)
    leader.ask({0: 0}, wait_ms=0)
    for _ in range(2 * LAG_MS // 500):
        leader.time_ms += 500
        leader.ask({}, wait_ms=0)
    leader.append(0)
    leader[0].tick(leader.time_ms)
    machine = leader[0].leader
    assert machine is not None
    assert machine.proposal is None


def test_a_follower_outside_the_isr_may_join_with_any_request():
    leader = Leader(1, isr=(1,))
    machine = leader[0].leader
    assert machine is not None
    leader[0].brokers_changed({1: 10}, frozenset())
    leader.ask({0: 0}, wait_ms=0)
    assert machine.proposal is None, "its broker is not known to be alive"
    leader[0].brokers_changed(LIVE, frozenset())
    leader.ask({}, wait_ms=0)
    assert machine.proposal is not None
    assert machine.proposal.isr == (1, FOLLOWER)


def test_partitions_without_room_in_a_response_come_first_in_the_next():
    leader = Leader(3)
    leader.ask({0: 0, 1: 0, 2: 0}, wait_ms=0)
    for index in range(3):
        leader.append(index, 2)
    limit = 2 * BATCH_BYTES
    assert leader.ask({}, max_bytes=limit) == {0: (0, 0, 2)}
    assert leader.ask({0: 2}, max_bytes=limit) == {1: (0, 0, 2), 0: (0, 2, 0)}
    leader.append(0)
    assert leader.ask({1: 2}, max_bytes=limit) == {2: (0, 0, 2), 1: (0, 2, 0)}
    assert leader.ask({2: 2}, max_bytes=limit) == {0: (0, 2, 1), 2: (0, 2, 0)}


def test_the_end_of_a_role_is_an_error_at_once_and_until_the_follower_leaves():
    leader = Leader(2)
    leader.ask({0: 0, 1: 0}, wait_ms=0)
    assert leader.ask({}) is None
    leader[1].follow(PartitionState((1, FOLLOWER), FOLLOWER, 1, (1, FOLLOWER)))
    leader.replica_manager.purgatory.wake()
    fenced = {1: (ErrorCode.FENCED_LEADER_EPOCH, -1, 0)}
    assert leader.news() == fenced
    assert leader.ask({}) == fenced
    assert leader.ask({}, forgotten=(1,)) is None


def test_a_diverging_log_gets_the_diverging_epoch():
    leader = Leader(1)
    leader.append(0, 2)
    state = PartitionState((1, FOLLOWER), 1, 3, (1, FOLLOWER))
    leader[0].lead(state, 1, LIVE[1], LIVE, frozenset(), LAG_MS, leader.time_ms)
    leader.append(0)
    assert leader.ask({0: 3}, leader_epoch=3, wait_ms=0) == {0: (0, 2)}
    assert leader[0].high_watermark == 0, "a diverging fetch offset is no progress"
    assert leader.ask({0: 2}, leader_epoch=3, wait_ms=0) == {0: (0, 2, 1)}


def test_a_session_leaves_partitions_that_it_forgets_and_all_when_it_ends():
    leader = Leader(2)
    leader.ask({0: 0, 1: 0}, wait_ms=0)
    leader.ask({}, forgotten=(1,), wait_ms=0)
    assert len(leader[0].purgatory.followers) == 1
    assert not leader[1].purgatory.followers
    assert leader.session.owner is not None
    leader.session.owner.end()
    assert not leader[0].purgatory.followers


def test_a_fetch_without_a_session_gets_everything_and_leaves_nothing_behind():
    leader = Leader(2)
    assert leader.ask({0: 0, 1: 0}, wait_ms=0, is_listed=False) == {0: (0, 0, 0), 1: (0, 0, 0)}
    assert not leader[0].purgatory.followers
    assert leader.ask({0: 0, 1: 0}, is_listed=False) is None
    leader.append(1)
    assert leader.news() == {0: (0, 0, 0), 1: (0, 0, 1)}
    assert not leader[0].purgatory.followers
    assert not leader[1].purgatory.followers


# -- what a request proves -------------------------------------------------------------------------


def heard_ms(broker: Leader) -> int | None:
    leader = broker[0].leader
    assert leader is not None
    return broker[0].purgatory.heard_ms(leader).get(FOLLOWER)


def test_a_request_proves_that_the_follower_followed_at_the_response_before_the_last():
    broker = Leader(1)
    times = []
    for nth in range(6):
        times.append(broker.time_ms)
        broker.ask({0: 0} if nth == 0 else {}, wait_ms=0)
        if nth >= 2:
            assert heard_ms(broker) == times[nth - 2]
        broker.time_ms += 100


def test_requests_that_waited_while_the_leader_was_paused_prove_nothing_new():
    broker = Leader(1)
    for nth in range(4):
        broker.ask({0: 0} if nth == 0 else {}, wait_ms=0)
        broker.time_ms += 100
    before = broker.time_ms
    broker.time_ms += 20_000
    # The follower sends at most one request ahead of a response.
    broker.ask({}, wait_ms=0)
    broker.ask({}, wait_ms=0)
    known = heard_ms(broker)
    assert known is not None
    assert known < before


def test_a_follower_that_has_left_the_partition_proves_nothing():
    broker = Leader(2)
    for nth in range(4):
        broker.ask({0: 0, 1: 0} if nth == 0 else {}, wait_ms=0)
    assert heard_ms(broker) is not None
    broker.ask({}, forgotten=(0,), wait_ms=0)
    assert heard_ms(broker) is None
