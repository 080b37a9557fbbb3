"""The group coordinator of a partition that this broker leads, with or without a follower."""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.groups.batches import decoded, encoded
from hightide.broker.groups.group_partition import GroupPartition
from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.groups import offset_requests, responses
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.offsets import TopicPartition, tombstone
from hightide.core.groups.turn import Client
from hightide.core.partition.state import PartitionState
from hightide.core.transactions.transaction import Producer
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire.batch import Record, batches, build
from hightide.wire.compression import Codec
from hightide.wire.errors import Corrupt, ErrorCode
from hightide.wire.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
    decode,
    encode,
)

NOW_MS = 1_700_000_000_000
LIVE = {1: 10, 2: 20}
ALONE, PAIR = (1,), (1, 2)
TIMEOUT_MS = 5000
VERSION = 8


class World:
    """A partition that broker 1 leads; broker 2 follows if it is in the ISR."""

    def __init__(self, isr: tuple[int, ...] = ALONE) -> None:
        disk = MemoryDisk()
        disk.make_directory("__consumer_offsets-0")
        config = TopicSettings.effective(Settings(), {"cleanup.policy": "compact"})
        log = Log.create(disk, "__consumer_offsets", 0, config, OpenFiles(10), NOW_MS)
        self.replica: Replica = ReplicaManager().add(log, uuid.UUID(int=7), 0)
        self.reloads: list[str] = []
        self.now_ms = NOW_MS
        self._epochs = itertools.count()
        self.lead(isr)

    def lead(self, isr: tuple[int, ...] = ALONE) -> None:
        state = PartitionState(PAIR, 1, next(self._epochs), isr, partition_epoch=0)
        self.replica.lead(state, 1, LIVE[1], LIVE, frozenset(), 1000, NOW_MS)

    def lose(self) -> None:
        state = PartitionState(PAIR, 2, next(self._epochs), PAIR, partition_epoch=0)
        self.replica.follow(state)

    def replicate(self) -> None:
        """Let the follower copy the whole log."""
        self.replica.fetched(2, self.replica.log.end_offset, LIVE[2], NOW_MS, 0)

    def begin(self, **rules: Any) -> GroupPartition:
        return GroupPartition(
            CoordinatorLog(self.replica, Flusher(lambda: None)),
            Rules(**rules),
            Random(1),
            lambda: self.now_ms,
            codec=Codec.NONE,
            on_inconsistent=lambda _, why: self.reloads.append(why),
        )

    async def loaded(self, **rules: int) -> GroupPartition:
        partition = self.begin(**rules)
        partition.load(dict)
        assert partition._loading is not None
        await partition._loading
        return partition

    def batches(self) -> list[int]:
        """Return the number of records of each batch in the log."""
        log = self.replica.log
        found = log.read(log.start_offset, 1 << 20, log.end_offset)
        if found is None:
            return []
        data = found.file.read(found.position, found.length)
        return [header.record_count for _, header in batches(data)]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def settled() -> None:
    """Wait for the turn that flushes buffered commits, and the one that sends the responses."""
    for _ in range(3):
        await asyncio.sleep(0)


def commit_request(offset: int, partition: int = 0, **given: Any) -> OffsetCommitRequest:
    requested = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="note"
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[requested])
    return OffsetCommitRequest(group_id="g", member_id="", topics=[topic], **given)


def code(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


class PendingRequest:
    """Records the response to a commit."""

    def __init__(self, request: OffsetCommitRequest, commits: dict[int, int]) -> None:
        self.request = request
        self.commits = commits

    def reply(self, response: Any) -> None:
        self.commits[self.request.topics[0].partitions[0].committed_offset] = code(response)

    def refusal(self, error: ErrorCode) -> Any:
        return offset_requests.commit_response(self.request, error)


class CommitClient:
    """Sends commits, and records their responses in order."""

    def __init__(self, partition: GroupPartition) -> None:
        self.partition = partition
        self.answers: dict[int, int] = {}

    def commit(self, offset: int, partition: int = 0, note: str = "", **given: Any) -> None:
        request = commit_request(offset, partition, **given)
        request.topics[0].partitions[0].committed_metadata = note
        pending = PendingRequest(request, self.answers)
        answer = self.partition.commit(request, VERSION, pending, TIMEOUT_MS)
        if answer is not None:
            pending.reply(answer)


def fetched(partition: GroupPartition, index: int = 0, *, stable: bool = False) -> int:
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    group = partition.coordinator.fetch_asked(request, require_stable=stable)
    found = {
        partition.partition_index: partition
        for topic in group.topics
        for partition in topic.partitions
    }
    return found[index].committed_offset if index in found else -1


def join(partition: GroupPartition, group_id: str = "g") -> Any:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        member_id="",
        protocol_type="other",
        protocols=[protocol],
    )
    return partition.ask(
        lambda coordinator, ticket, now_ms: coordinator.join_asked(
            ticket, request, 3, Client("c", "/h"), now_ms
        ),
        responses.join_error,
    )


# -- commits -------------------------------------------------------------------------------------


def test_commits_that_come_together_are_one_batch():
    async def scenario() -> None:
        world = World()
        partition = await world.loaded()
        commits = CommitClient(partition)
        for offset in range(5):
            commits.commit(offset, partition=offset)
        assert not commits.answers
        await settled()
        # A connection sends its responses in one write if the first comes last.
        assert list(commits.answers.items()) == [(4, 0), (3, 0), (2, 0), (1, 0), (0, 0)]
        assert world.batches() == [5]
        assert [fetched(partition, index) for index in range(5)] == [0, 1, 2, 3, 4]

    run(scenario)


def test_commits_with_long_metadata_are_several_batches():
    async def scenario() -> None:
        world = World()
        partition = await world.loaded(offset_metadata_max_bytes=100_000)
        commits = CommitClient(partition)
        for offset in range(7):
            commits.commit(offset, note="n" * 30_000)
        await settled()
        assert world.batches() == [3, 3, 1]
        assert commits.answers == dict.fromkeys(range(7), 0)

    run(scenario)


def test_other_requests_are_handled_after_the_commits_before_them():
    async def scenario() -> None:
        world = World()
        partition = await world.loaded()
        commits = CommitClient(partition)
        commits.commit(1)
        answer = partition.ask(
            lambda coordinator, ticket, now_ms: coordinator.leave_asked(
                ticket, LeaveGroupRequest(group_id="g", member_id="m"), 0, now_ms
            ),
            lambda _: None,
        )
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert world.batches() == [1]
        await settled()
        assert commits.answers == {1: 0}

    run(scenario)


def test_a_commit_is_answered_when_the_followers_have_it():
    async def scenario() -> None:
        world = World(PAIR)
        partition = await world.loaded()
        commits = CommitClient(partition)
        commits.commit(3)
        await asyncio.sleep(0.01)
        assert (commits.answers, fetched(partition)) == ({}, -1)
        world.replicate()
        await settled()
        assert (commits.answers, fetched(partition)) == ({3: 0}, 3)

    run(scenario)


def test_a_commit_that_takes_too_long_may_still_take_effect(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        monkeypatch.setattr(f"{__name__}.TIMEOUT_MS", 20)
        world = World(PAIR)
        partition = await world.loaded()
        commits = CommitClient(partition)
        commits.commit(3)
        await asyncio.sleep(0.1)
        assert commits.answers == {3: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        commits.answers.clear()
        world.replicate()
        assert (commits.answers, fetched(partition)) == ({}, 3)
        assert not partition._pending

    run(scenario)


def test_commits_are_refused_while_too_few_replicas_are_in_sync(
    caplog: pytest.LogCaptureFixture,
):
    async def scenario() -> None:
        world = World()
        world.replica.log.reconfigure(
            TopicSettings.effective(Settings(), {"min.insync.replicas": "2"})
        )
        world.replica.configured(1000)
        partition = await world.loaded()
        commits = CommitClient(partition)
        for offset in (1, 2):
            commits.commit(offset)
            await settled()
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert commits.answers == {1: unavailable, 2: unavailable}
        assert fetched(partition) == -1
        assert caplog.text.count("writing failed") == 1

    run(scenario)


def test_a_commit_that_is_not_allowed_is_answered_at_once():
    async def scenario() -> None:
        commits = CommitClient(await World().loaded())
        commits.commit(1, generation_id_or_member_epoch=4)
        assert commits.answers == {1: ErrorCode.ILLEGAL_GENERATION}

    run(scenario)


# -- loading -------------------------------------------------------------------------------------


def test_a_successor_knows_what_was_committed():
    async def scenario() -> None:
        world = World()
        commits = CommitClient(await world.loaded())
        for offset in (1, 2, 3):
            commits.commit(offset)
            await asyncio.sleep(0)
        world.lead()
        assert fetched(await world.loaded()) == 3

    run(scenario)


def test_nothing_is_answered_before_the_whole_log_is_committed():
    async def scenario() -> None:
        world = World(PAIR)
        commits = CommitClient(await world.loaded())
        commits.commit(5)
        await asyncio.sleep(0)
        world.lead(PAIR)
        partition = world.begin()
        partition.load(dict)
        await asyncio.sleep(0.02)
        assert partition.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.replicate()
        await asyncio.sleep(0.02)
        assert (partition.refusal, fetched(partition)) == (ErrorCode.NONE, 5)

    run(scenario)


def test_offsets_in_a_topic_that_is_deleted_during_the_load_are_forgotten():
    async def scenario() -> None:
        world = World()
        CommitClient(await world.loaded()).commit(5)
        await settled()
        world.lead()
        partition = world.begin()
        partition.load(dict)
        partition.topic_deleted("t")
        await asyncio.sleep(0.02)
        assert (partition.refusal, fetched(partition)) == (ErrorCode.NONE, -1)

    run(scenario)


def test_a_partition_that_cannot_be_read_is_not_served(caplog: pytest.LogCaptureFixture):
    async def scenario() -> None:
        world = World()
        key = encode(GroupRecord(GroupMetadataKey(group="g"), None))[0]
        broken = build([Record(0, NOW_MS, key, b"\0\x09", ())])
        world.replica.append_own(broken, NOW_MS)
        partition = await world.loaded()
        assert partition.refusal is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "loading failed" in caplog.text

    run(scenario)


# -- transactions --------------------------------------------------------------------------------


def transactional(offset: int, producer: Producer) -> TxnOffsetCommitRequest:
    requested = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[requested])],
    )


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_successor", [True, False])
def test_offsets_of_a_transaction_take_effect_with_its_marker(is_commit: bool, is_successor: bool):
    async def scenario() -> None:
        world = World()
        partition = await world.loaded()
        producer, log = Producer(9, 0), world.replica.log
        guard = log.transactions.begin_verification(producer, -1, NOW_MS)
        request = transactional(4, producer)
        answer = partition.ask(
            lambda coordinator, ticket, now_ms: coordinator.transactional_commit_asked(
                ticket, request, now_ms
            ),
            lambda error: offset_requests.commit_response(request, error),
            TIMEOUT_MS,
            guard,
        )
        assert (code(answer), fetched(partition)) == (0, -1)
        world.replica.append_marker(producer, 0, is_commit, 0, NOW_MS)
        world.replica.markers_appended()
        if is_successor:
            world.lead()
            partition = await world.loaded()
        assert fetched(partition) == (4 if is_commit else -1)

    run(scenario)


def test_offsets_of_a_transaction_that_was_not_verified_are_refused():
    async def scenario() -> None:
        world = World()
        partition = await world.loaded()
        request = transactional(4, Producer(9, 0))
        world.replica.log.transactions.verifies = True
        answer = partition.ask(
            lambda coordinator, ticket, now_ms: coordinator.transactional_commit_asked(
                ticket, request, now_ms
            ),
            lambda error: offset_requests.commit_response(request, error),
            TIMEOUT_MS,
        )
        assert code(answer) == ErrorCode.INVALID_TXN_STATE
        assert world.batches() == []

    run(scenario)


# -- members, time -------------------------------------------------------------------------------


def test_a_join_is_answered_when_the_time_for_others_is_up():
    async def scenario() -> None:
        partition = await World().loaded(initial_rebalance_delay_ms=30)
        answer = join(partition)
        assert isinstance(answer, asyncio.Future)
        assert (await answer).generation_id == 1
        assert not partition._pending

    run(scenario)


def test_a_session_ends_without_heartbeats():
    async def scenario() -> None:
        partition = await World().loaded(initial_rebalance_delay_ms=0, min_session_timeout_ms=1)
        await join(partition)
        group = partition.coordinator.classic_groups["g"]
        partition._began_ms += 7_000  # as if this much time had passed
        partition._time_of_day_ms = partition.now_ms
        partition._time_passed()
        assert not group.members

    run(scenario)


def test_pending_requests_are_refused_when_another_broker_leads():
    async def scenario() -> None:
        world = World(PAIR)
        partition = await world.loaded(initial_rebalance_delay_ms=5000)
        commits = CommitClient(partition)
        waiting = join(partition, "another")
        commits.commit(1)
        await asyncio.sleep(0)
        commits.commit(2)  # accepted and not appended yet
        world.lose()
        partition.resign()
        not_coordinator = ErrorCode.NOT_COORDINATOR
        assert (await waiting).error_code == not_coordinator
        await settled()
        assert commits.answers == {1: not_coordinator, 2: not_coordinator}
        assert not partition._pending
        await asyncio.sleep(0)
        assert (
            partition.ask(lambda *_: pytest.fail("asked"), lambda error: error) is not_coordinator
        )

    run(scenario)


def test_a_wall_clock_that_was_set_makes_the_partition_load_again():
    async def scenario() -> None:
        world = World()
        partition = await world.loaded(initial_rebalance_delay_ms=10)
        waiting = join(partition)
        world.now_ms += 3_600_000
        await asyncio.sleep(0.05)
        assert world.reloads == ["the wall clock was set"]
        partition.resign()
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_a_committed_write_that_cannot_be_applied_makes_the_partition_load_again(
    monkeypatch: pytest.MonkeyPatch,
):
    async def scenario() -> None:
        world = World()
        partition = await world.loaded()
        monkeypatch.setattr(partition.coordinator, "written", lambda *_: 1 // 0)
        CommitClient(partition).commit(1)
        await asyncio.sleep(0.01)
        assert world.reloads == ["a committed write was not applied"]

    run(scenario)


# -- records -------------------------------------------------------------------------------------


def some_records() -> Iterator[GroupRecord]:
    key = OffsetCommitKey(group="grüppe", topic="t", partition=7)
    for note, expires in itertools.product(["", "x", "ö" * 300], [-1, 5]):
        yield GroupRecord(
            key,
            OffsetCommitValue(
                offset=2**40,
                leader_epoch=3,
                metadata=note,
                commit_timestamp=NOW_MS,
                expire_timestamp=expires,
            ),
        )
    yield tombstone("g", TopicPartition("t", 1))
    yield GroupRecord(GroupMetadataKey(group="g"), None)


def test_the_hand_written_codec_agrees_with_the_generated_one():
    for record in some_records():
        assert encoded(record) == encode(record)
        assert decoded(*encode(record)) == decode(*encode(record))


@given(st.data())
def test_the_hand_written_codec_agrees_about_damaged_records(data: st.DataObject):
    record = data.draw(st.sampled_from([*some_records()]))
    parts = [bytearray(encoded_part or b"") for encoded_part in encode(record)]
    part = data.draw(st.sampled_from([part for part in parts if part]))
    if data.draw(st.booleans()):
        del part[data.draw(st.integers(0, len(part) - 1)) :]
    else:
        part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    key, value = map(bytes, parts)
    assert outcome(decoded, key, value) == outcome(decode, key, value)


def outcome(read: Callable[[bytes, bytes], Any], key: bytes, value: bytes) -> Any:
    try:
        return read(key, value)
    except Corrupt:
        return Corrupt
