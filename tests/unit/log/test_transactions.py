"""A log knows its open and aborted transactions and its last stable offset, for any sequence of
operations."""

from __future__ import annotations

from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from hightide.core.transactions.aborted_index import AbortedTransaction
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard
from hightide.log import dump
from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.log.flush import flush
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.log.recovery import CheckpointedState, load
from hightide.log.segment import SNAPSHOT, TRANSACTION_INDEX, OpenFiles
from hightide.wire.batch import Record, records
from hightide.wire.control import ControlType, Marker, build_marker
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    end_transaction,
    open_log_manager,
    run_jobs,
    topic,
)
from tests.unit.log.test_log_model import LogAgainstList
from tests.unit.log.transaction_history import TransactionHistory, read_committed

CONFIG = topic(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=-1)


def new_log(disk: Disk, **changes: object) -> tuple[LogManager, Log]:
    config = topic(**{"segment_bytes": 400, "file_delete_delay_ms": 0, **changes})
    log_manager = open_log_manager(disk, config)
    return log_manager, log_manager.create("t", 0, UUID(int=3))


def write(log: Log, producer_id: int, sequence: int, *values: bytes, **fields: Any) -> int:
    """Append a batch of a transaction; return its base offset."""
    options: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": sequence,
        "transactional": True,
        **fields,
    }
    return append(log, batch(values or [b"x"], **options))[0]


# ---- refused batches


def test_the_first_batch_of_a_transaction_must_have_been_verified(disk: Disk) -> None:
    _, log = new_log(disk)
    buf = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    for guard in (None, VerificationGuard(0, 0, NOW)):
        with pytest.raises(KafkaError) as caught:
            log.append(buf, memoryview(buf), 0, len(buf), 0, NOW, guard)
        assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert (log.end_offset, len(log.producers)) == (0, 0)
    write(log, 1, 0)
    buf = batch([b"b"], producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    log.append(buf, memoryview(buf), 0, len(buf), 0, NOW)
    assert log.end_offset == 2


def test_a_marker_makes_what_was_verified_before_void(disk: Disk) -> None:
    _, log = new_log(disk)
    guard = log.transactions.begin_verification(Producer(1, 0), 0, NOW)
    end_transaction(log, 1, commits=False)
    buf = batch([b"late"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(KafkaError) as caught:
        log.append(buf, memoryview(buf), 0, len(buf), 0, NOW, guard)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert log.last_stable_offset == log.end_offset == 1


def test_a_plain_batch_of_a_producer_in_a_transaction_is_refused(disk: Disk) -> None:
    _, log = new_log(disk)
    write(log, 1, 0)
    plain = batch([b"b"], producer_id=1, producer_epoch=0, base_sequence=1)
    with pytest.raises(KafkaError) as caught:
        append(log, plain)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    append(log, batch([b"c"], producer_id=2, producer_epoch=0, base_sequence=0))
    end_transaction(log, 1, commits=True)
    assert append(log, plain)[0] == 3


@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_with_the_sequences_of_an_ended_transaction_is_refused(
    disk: Disk, commits: bool
) -> None:
    _, log = new_log(disk)
    write(log, 1, 0, b"a")
    end_transaction(log, 1, commits=commits)
    with pytest.raises(KafkaError) as caught:
        write(log, 1, 0, b"other")
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
    assert log.end_offset == log.last_stable_offset == 2, "it opens no transaction"


def test_sequences_of_an_ended_transaction_are_refused_in_the_next_one(disk: Disk) -> None:
    _, log = new_log(disk)
    write(log, 1, 0, b"a")
    end_transaction(log, 1, commits=False)
    write(log, 1, 1, b"b")
    with pytest.raises(KafkaError) as caught:
        write(log, 1, 0, b"other")
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
    assert write(log, 1, 1, b"b") == 2, "a repetition within the open transaction"


def test_an_ended_transaction_is_known_after_a_restart(disk: Disk) -> None:
    log_manager, log = new_log(disk)
    write(log, 1, 0, b"a")
    end_transaction(log, 1, commits=False)
    write(log, 1, 1, b"b")
    log_manager.sync_names()
    log_manager.close(NOW)
    log = open_log_manager(disk, CONFIG).logs["t", 0]
    assert write(log, 1, 1, b"b") == 2
    with pytest.raises(KafkaError) as caught:
        write(log, 1, 0, b"other")
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER_ID


def test_a_marker_is_written_once_and_fenced(disk: Disk) -> None:
    _, log = new_log(disk)
    write(log, 1, 0, producer_epoch=3)
    with pytest.raises(KafkaError) as caught:
        end_transaction(log, 1, commits=True, epoch=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_transaction(log, 1, commits=True, epoch=3, coordinator_epoch=5) == 1
    assert end_transaction(log, 1, commits=True, epoch=3, coordinator_epoch=5) is None
    with pytest.raises(KafkaError) as caught:
        end_transaction(log, 1, commits=True, epoch=3, coordinator_epoch=4)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.end_offset == 2


def test_a_marker_is_kafkas_bytes(disk: Disk) -> None:
    _, log = new_log(disk, message_timestamp_type="CreateTime")
    write(log, 1, 0)
    log.append_marker(Producer(1, 4), 7, False, 2, 9, NOW)
    found = log.read(1, 1000, 2)
    assert found is not None
    wanted = build_marker(
        Marker(ControlType.ABORT, 7),
        offset=1,
        timestamp=NOW,
        producer_id=1,
        producer_epoch=4,
        leader_epoch=9,
    )
    assert found.file.read(found.position, found.length) == wanted
    # The producer now has the epoch of the marker, and its sequences begin at 0.
    assert write(log, 1, 0, producer_epoch=4) == 2


# ---- batches of the broker


def test_own_batches_have_no_sequence_and_may_be_of_a_transaction(disk: Disk) -> None:
    log_manager, log = new_log(disk, cleanup_policy="compact")
    plain = batch([b"1", b"2"], keys=[b"a", b"b"])
    assert log.append_own(plain, 4, NOW) == (0, 2)
    producer = Producer(9, 0)
    for sequence in range(3):
        guard = log.transactions.begin_verification(producer, -1, NOW)
        assert (guard is None) == (sequence > 0)
        own = batch([b"%d" % sequence], keys=[b"k"], producer_id=9, producer_epoch=0,
                    transactional=True)  # fmt: skip
        assert log.append_own(own, 4, NOW, guard) == (2 + sequence, 3 + sequence)
    assert log.last_stable_offset == 2
    assert end_transaction(log, 9, commits=True, leader_epoch=4) == 5
    assert log.epochs.latest == 4
    log_manager.close(NOW)
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    state = again.producers.get(9)
    assert state is not None
    assert (state.epoch, state.next_sequence, state.last_offset) == (0, -1, 4)
    old = batch([b"x"], keys=[b"k"], producer_id=9, producer_epoch=-1, transactional=True)
    with pytest.raises(KafkaError) as caught:
        again.append_own(old, 4, NOW)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_own_batches_are_checked_like_others(disk: Disk) -> None:
    _, log = new_log(disk, cleanup_policy="compact", max_message_bytes=200)
    unverified = batch([b"x"], keys=[b"k"], producer_id=9, producer_epoch=0, transactional=True)
    for bad, code in (
        (batch([bytes(300)], keys=[b"k"]), ErrorCode.MESSAGE_TOO_LARGE),
        (unverified, ErrorCode.INVALID_TXN_STATE),
    ):
        with pytest.raises(KafkaError) as caught:
            log.append_own(bad, 0, NOW)
        assert caught.value.code is code
    assert log.end_offset == 0


# ---- last stable offset


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed(disk: Disk) -> None:
    _, log = new_log(disk)
    log.high_watermark = 0
    append(log, batch([b"plain"]))
    write(log, 1, 0)
    write(log, 2, 0)
    end_transaction(log, 1, commits=True)
    write(log, 3, 0)
    seen = []
    for log.high_watermark in range(6):
        seen.append(log.last_stable_offset)
    assert seen == [0, 1, 1, 1, 2, 2]
    end_transaction(log, 2, commits=False)
    end_transaction(log, 3, commits=False)
    assert log.last_stable_offset == 2
    seen = []
    for log.high_watermark in range(5, 8):
        seen.append(log.last_stable_offset)
    assert seen == [2, 4, 7]
    assert log.transactions.are_all_decided


def test_what_is_deleted_is_decided(disk: Disk) -> None:
    _, log = new_log(disk)
    write(log, 1, 0)
    append(log, batch([b"a", b"b"]))
    assert log.last_stable_offset == 0
    log.delete_records(2)
    assert log.last_stable_offset == 2
    assert log.transactions.opened == {1: 0}


def test_a_marker_that_may_be_lost_decides_nothing_after_a_restart(disk: Disk) -> None:
    """The snapshot of a clean shutdown does not have it, and the marker may still be truncated."""
    log_manager, log = new_log(disk)
    log.high_watermark = 0
    append(log, batch([b"plain"]))
    write(log, 1, 0)
    log.high_watermark = 2
    end_transaction(log, 1, commits=True)
    log_manager.close(NOW)
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    again.high_watermark = 2
    assert again.last_stable_offset == 1
    again.high_watermark = 3
    assert again.last_stable_offset == 3


def test_a_truncation_leaves_what_is_not_committed_undecided(disk: Disk) -> None:
    _, log = new_log(disk)
    log.high_watermark = 0
    write(log, 1, 0)
    write(log, 2, 0)
    end_transaction(log, 1, commits=True)
    log.roll(NOW)
    end_transaction(log, 2, commits=True)
    log.high_watermark = 1
    log.truncate_to(3, NOW)
    assert log.transactions.opened == {2: 1}
    assert log.last_stable_offset == 0
    log.high_watermark = 3
    assert log.last_stable_offset == 1


# ---- transaction index


def three_segments(log: Log) -> list[AbortedTransaction]:
    """Write aborted transactions within a segment and across segments; return the expected
    index."""
    write(log, 1, 0)
    write(log, 2, 0)
    end_transaction(log, 1, commits=False)
    log.roll(NOW)
    write(log, 3, 0)
    end_transaction(log, 3, commits=True)
    log.roll(NOW)
    end_transaction(log, 2, commits=False)
    write(log, 1, 1)
    end_transaction(log, 1, commits=False)
    return [
        AbortedTransaction(1, 0, 2, 1),
        AbortedTransaction(2, 1, 5, 6),
        AbortedTransaction(1, 6, 7, 8),
    ]


def index_name(base_offset: int) -> str:
    return f"t-0/{base_offset:020d}{TRANSACTION_INDEX}"


def test_the_index_is_kafkas_file_of_34_bytes_an_entry(disk: Disk) -> None:
    log_manager, log = new_log(disk)
    entries = three_segments(log)
    assert log.aborted_between(0, 8) == entries
    log_manager.close(NOW)
    files = [disk.read_file(index_name(base)) for base in (0, 3, 5)]
    assert files == [
        pack(">hqqqq", 0, 1, 0, 2, 1),
        b"",
        pack(">hqqqq", 0, 2, 1, 5, 6) + pack(">hqqqq", 0, 1, 6, 7, 8),
    ]
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    assert again.aborted_between(0, 8) == entries
    assert again.aborted_between(3, 4) == entries[1:2]
    assert again.aborted_between(6, 8) == entries[2:]
    assert again.aborted_between(0, 1) == entries[:1]
    assert again.aborted_between(8, 9) == []


def test_the_index_can_be_dumped(tmp_path) -> None:  # type: ignore[no-untyped-def]
    disk = RealDisk(tmp_path)
    log_manager, log = new_log(disk)
    three_segments(log)
    log_manager.close(NOW)
    lines = [line for item in dump.dump(tmp_path / index_name(5)) for line in dump.describe(item)]
    assert lines == [
        "version 0 producer_id 2 first_offset 1 last_offset 5 last_stable_offset 6 at 0",
        "version 0 producer_id 1 first_offset 6 last_offset 7 last_stable_offset 8 at 34",
    ]


DAMAGES = {
    "missing": lambda _: None,
    "short": lambda data: data[:-1],
    "of another version": lambda data: b"\0\1" + data[2:],
    "of another segment": lambda data: data[:18] + pack(">q", 99) + data[26:],
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_a_missing_or_damaged_index_is_rebuilt(damage: str, with_snapshots: bool) -> None:
    disk = MemoryDisk()
    log_manager, log = new_log(disk)
    entries = three_segments(log)
    log_manager.close(NOW)
    for base in (0, 3, 5):
        data = DAMAGES[damage](disk.read_file(index_name(base)))
        disk.remove(index_name(base))
        if data is not None:
            disk.create(index_name(base)).append(data)
    if not with_snapshots:
        for name in disk.list("t-0"):
            if name.endswith(SNAPSHOT):
                disk.remove(f"t-0/{name}")
    log_manager = open_log_manager(disk, CONFIG)
    again = log_manager.logs["t", 0]
    assert again.aborted_between(0, 8) == entries
    assert disk.read_file(index_name(0)) == entries[0].encode()
    # New entries are added to the loaded ones.
    write(again, 5, 0)
    end_transaction(again, 5, commits=False)
    log_manager.close(NOW)
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    assert again.aborted_between(0, 10) == [*entries, AbortedTransaction(5, 8, 9, 10)]


def test_a_log_without_any_index_is_not_searched_for_what_cannot_be_there() -> None:
    """As Kafka leaves a log without aborted transactions: a rebuild would take long."""
    disk = MemoryDisk()
    log_manager, log = new_log(disk)
    for number in range(20):
        append(log, batch([b"%d" % number * 20]))
    log_manager.close(NOW)
    for name in disk.list("t-0"):
        if name.endswith(TRANSACTION_INDEX):
            disk.remove(f"t-0/{name}")
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    assert len(again.segments) > 3
    assert all(segment.aborted is not None for segment in again.segments)
    assert again.aborted_between(0, 20) == []
    assert not any(segment.file for segment in again.segments[:-1])
    names = [name for name in disk.list("t-0") if name.endswith(TRANSACTION_INDEX)]
    assert len(names) == len(again.segments)


def test_the_index_is_cut_with_the_log(disk: Disk) -> None:
    log_manager, log = new_log(disk)
    entries = three_segments(log)
    log.truncate_to(7, NOW)
    assert log.aborted_between(0, 8) == entries[:2]
    assert log.transactions.opened == {1: 6}
    assert end_transaction(log, 1, commits=True) == 7
    log_manager.close(NOW)
    again = open_log_manager(disk, CONFIG).logs["t", 0]
    assert again.aborted_between(0, 8) == entries[:2]
    again.truncate_to(4, NOW)
    assert again.aborted_between(0, 8) == entries[:1]
    assert again.transactions.opened == {2: 1, 3: 3}
    again.restart_at(20, NOW)
    assert (again.aborted_between(0, 30), again.last_stable_offset) == ([], 20)
    assert not again.transactions.opened


def test_nothing_is_left_of_the_index_of_a_segment_that_was_emptied(disk: Disk) -> None:
    log_manager, log = new_log(disk)
    write(log, 1, 0)
    log.roll(NOW)
    end_transaction(log, 1, commits=False)
    log.roll(NOW)
    log.truncate_to(1, NOW)
    log_manager.close(NOW)
    log = open_log_manager(disk, CONFIG).logs["t", 0]
    write(log, 1, 1)
    assert log.aborted_between(0, 5) == []
    end_transaction(log, 1, commits=False)
    assert log.aborted_between(0, 5) == [AbortedTransaction(1, 0, 2, 3)]


def test_the_index_goes_with_its_segment(disk: Disk) -> None:
    log_manager, log = new_log(disk)
    entries = three_segments(log)
    flush(log)
    log.delete_records(5)
    for minutes in range(1, 20):
        run_jobs(log_manager, NOW + minutes * 60_000)
    assert log.segments.bases == [5]
    left = [name for name in disk.list("t-0") if TRANSACTION_INDEX in name]
    assert left == []
    # A transaction that began in a deleted segment is still known as aborted.
    assert log.aborted_between(5, 8) == entries[1:]


def test_many_indexes_are_kept_in_files_only() -> None:
    disk = MemoryDisk()
    log_manager, log = new_log(disk, segment_bytes=200)
    for number in range(300):
        write(log, number, 0)
        end_transaction(log, number, commits=False)
    log_manager.close(NOW)
    files = OpenFiles(64)
    again = load(disk, "t", 0, CONFIG, files, CheckpointedState(True, log.end_offset, 0), NOW)
    for at in range(0, 600, 2):
        assert [e.producer_id for e in again.aborted_between(at, at + 2)] == [at // 2]
        list(again.segments[again.segments.index_of(at)].headers())
    assert sum(1 for segment in again.segments if segment.aborted) <= 70


def test_a_follower_knows_what_the_leader_knows(disk: Disk) -> None:
    _, leader = new_log(MemoryDisk(), segment_bytes=5000)
    three_segments(leader)
    write(leader, 7, 0)
    _, follower = new_log(disk)
    while follower.end_offset < leader.end_offset:
        part = leader.read(follower.end_offset, 150, leader.end_offset)
        assert part is not None
        follower.append_fetched(memoryview(part.file.read(part.position, part.length)), NOW)
    end = leader.end_offset
    assert follower.aborted_between(0, end) == leader.aborted_between(0, end)
    assert follower.transactions.opened == leader.transactions.opened == {7: 8}
    assert follower.last_stable_offset == 8
    assert follower.producers == leader.producers


# ---- any sequence of operations


class TransactionsAgainstList(LogAgainstList):
    """The model: batches and open transactions."""

    def __init__(self) -> None:
        super().__init__()
        # Offset, producer id, and whether a marker commits (None for a batch).
        self.events: list[tuple[int, int, bool | None]] = []

    @property
    def history(self) -> TransactionHistory:
        history = TransactionHistory()
        for offset, producer_id, is_commit in self.events:
            if is_commit is None:
                history.wrote(producer_id, offset)
            else:
                history.marked(producer_id, offset, is_commit)
        return history

    @rule(
        values=st.lists(st.binary(max_size=30), min_size=1, max_size=3),
        producer_id=st.integers(10, 13),
    )
    def writes_in_a_transaction(self, values: list[bytes], producer_id: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(values)
        data = batch(
            values,
            timestamp=self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        assert append(self.log, data, self.end // 20, self.now_ms)[0] == self.end
        self.events.append((self.end, producer_id, None))
        self.model.append([r._replace(offset=self.end + r.offset) for r in records(data)])
        self.end += len(values)

    @rule(producer_id=st.integers(10, 13), commits=st.booleans())
    def ends_a_transaction(self, producer_id: int, commits: bool) -> None:
        offset = end_transaction(
            self.log,
            producer_id,
            commits=commits,
            leader_epoch=self.end // 20,
            now_ms=self.now_ms,
        )
        if offset is None:
            assert producer_id not in self.history.open
            return
        assert offset == self.end
        part = self.log.read(offset, 1, offset + 1)
        assert part is not None
        self.model.append(list(records(part.file.read(part.position, part.length))))
        self.events.append((offset, producer_id, commits))
        self.end += 1

    def cut(self, offset: int) -> None:
        super().cut(offset)
        self.events = [event for event in self.events if event[0] < self.end]

    @invariant()
    def what_is_open_and_aborted_is_as_the_list_says(self) -> None:
        history = self.history
        self.log.transactions.check_all()
        assert self.log.transactions.opened == history.open
        assert self.log.last_stable_offset == max(self.start, history.stable(self.end))
        assert self.log.aborted_between(0, self.end) == [
            e for e in history.aborted() if e.last_offset >= self.log.segments.bases[0]
        ]

    @rule(data=st.data())
    def asks_for_a_range(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.start, self.end))
        end = data.draw(st.integers(start, self.end))
        assert self.log.aborted_between(start, end) == self.history.aborted_between(start, end)

    @rule()
    def reads_what_is_committed(self) -> None:
        history = self.history
        hidden: set[int] = set()
        for offset, producer_id, is_commit in self.events:
            for ended in history.ended:
                in_it = ended.first_offset <= offset <= ended.marker_offset
                if producer_id == ended.producer_id and in_it and not ended.is_commit:
                    hidden.add(offset)
            if is_commit is not None:
                hidden.add(offset)
        stable = history.stable(self.end)
        wanted: list[Record] = [
            record
            for written in self.model
            if written[0].offset not in hidden and written[-1].offset < stable
            for record in written
            if record.offset >= self.start
        ]
        assert read_committed(self.log) == wanted


TransactionsAgainstList.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTransactionsAgainstList = TransactionsAgainstList.TestCase
