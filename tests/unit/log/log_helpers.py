"""Helpers for the tests of logs: settings, batches, and reading a log back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.transaction import Producer
from hightide.log.batch_validation import NotInline, check_records
from hightide.log.disk import Disk
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.settings import Broker, Topic
from hightide.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    batches,
    build,
    check,
    read_header,
    records,
)

NOW = 1_700_000_000_000
Buffer = bytes | bytearray | memoryview


def topic(**settings: Any) -> Topic:
    """Return topic settings, by attribute names."""
    return Topic.effective(broker(), {n.replace("_", "."): str(v) for n, v in settings.items()})


def broker(**settings: Any) -> Broker:
    return Broker.read({n.replace("_", "."): str(v) for n, v in settings.items()})


def open_log_manager(
    disk: Disk, config: Topic, now_ms: int = NOW, *, has_roles: bool = True, **settings: Any
) -> LogManager:
    """Open a log manager. With roles, every log has a leader without followers, so that every
    record is committed."""
    disk.unlock()
    log_manager = LogManager([disk], broker(**settings), lambda _: config)
    log_manager.open(now_ms)
    if has_roles:
        for log in log_manager.logs.values():
            log.high_watermark = None
    return log_manager


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = NOW,
    **fields: Any,
) -> bytearray:
    """Build a batch as a producer sends it."""
    return build(
        [
            Record(i, timestamp + i, keys[i] if keys else None, value, ())
            for i, value in enumerate(values)
        ],
        **fields,
    )


def append(
    log: Log, data: Buffer, leader_epoch: int = 0, now_ms: int = NOW
) -> tuple[int, int, int]:
    """Append as a leader does; the transaction coordinator verifies every transaction."""
    buf = bytearray(data)
    guard = None
    header = read_header(buf) if len(buf) >= HEADER_BYTES else None
    if header is not None and header.is_transactional and header.producer_id >= 0:
        producer = Producer(header.producer_id, header.producer_epoch)
        guard = log.transactions.begin_verification(producer, header.base_sequence, now_ms)
    try:
        return log.append(buf, memoryview(buf), 0, len(buf), leader_epoch, now_ms, guard)
    except NotInline:
        checked = check_records(buf, log.rules)  # the broker does this in a thread
        return log.append(buf, memoryview(buf), 0, len(buf), leader_epoch, now_ms, guard, checked)


def end_transaction(
    log: Log,
    producer_id: int,
    *,
    commits: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    now_ms: int = NOW,
) -> int | None:
    """Write a marker, as transaction version 1 does."""
    producer = Producer(producer_id, epoch)
    return log.append_marker(producer, coordinator_epoch, commits, 1, leader_epoch, now_ms)


def stored_batches(
    log: Log, max_bytes: int = 1 << 20, end_offset: int | None = None
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield every batch that a reader of the whole log gets, after a check of each."""
    end_offset = log.end_offset if end_offset is None else end_offset
    offset = log.start_offset
    while offset < end_offset:
        part = log.read(offset, max_bytes, end_offset)
        if part is None:
            return
        data = part.file.read(part.position, part.length)
        assert len(data) == part.length
        at = 0
        for at, header in batches(data):
            check(data, at, at + header.size, stored=True)
            assert header.last_offset >= offset
            yield header, data[at : at + header.size]
            offset = header.last_offset + 1
            at += header.size
        assert at == len(data), "a slice ends where a batch ends"


def stored(log: Log, max_bytes: int = 1 << 20) -> list[Record]:
    return [
        record
        for _, data in stored_batches(log, max_bytes)
        for record in records(data)
        if record.offset >= log.start_offset
    ]


def run_jobs(log_manager: LogManager, now_ms: int) -> int:
    """Run all housekeeping jobs that are due; return their number."""
    count = 0
    for job in log_manager.jobs(now_ms):
        job.run()
        job.finish()
        count += 1
    return count


def replayed(log: Log) -> tuple[ProducerStates, list[tuple[int, int]]]:
    """Return producer states and leader epochs, computed from all batches of the log."""
    producers = ProducerStates()
    epochs: list[tuple[int, int]] = []
    for header, _ in stored_batches(log):
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs.append((header.leader_epoch, header.base_offset))
        if header.producer_id >= 0 and not header.is_control:
            producers.appended(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                NOW,
            )
    return producers, epochs


def newest(producers: ProducerStates) -> dict[int, tuple[int, int, int, int]]:
    """Return the part of each producer state that a snapshot holds."""
    return {
        producer_id: (
            state.epoch,
            state.batches[-1].last_sequence,
            state.batches[-1].base_offset,
            state.last_offset,
        )
        for producer_id, state in producers
        if state.batches
    }
