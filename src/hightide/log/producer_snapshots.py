"""The state of a log's producers on disk: Kafka's .snapshot files, and what follows them.

A snapshot is named after the offset it was taken at, which is the base of the segment that begins
there, or the end of the log at a clean stop. The state at any later offset is the newest snapshot
before it plus the batch headers in between. A damaged snapshot is passed over for an older one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from hightide.core.partition.producer_state import BATCHES_KEPT, ProducerStates, Written
from hightide.core.transactions.aborted_index import Aborted
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.disk import Disk
from hightide.log.segment import SNAPSHOT, Segment, file_name
from hightide.wire.batch import BatchHeader, records
from hightide.wire.control import ControlType, parse_marker
from hightide.wire.errors import Corrupt

# Five batches of the largest usual size, and as much again of other producers between them.
_RECALL_BYTES = 10 * 1024 * 1024

_log = logging.getLogger(__name__)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the snapshots among the files of a log, ascending."""
    return sorted(
        int(name[:20]) for name in names if name.endswith(SNAPSHOT) and name[:20].isdecimal()
    )


def newest_snapshot(
    disk: Disk, directory: str, names: Iterable[str], end_offset: int, now_ms: int
) -> tuple[ProducerStates, int] | None:
    """The newest readable state at or before `end_offset`, and its offset."""
    for offset in reversed(snapshot_offsets(names)):
        name = file_name(offset, SNAPSHOT)
        if offset > end_offset:
            continue
        try:
            return ProducerStates.decode(disk.read_file(f"{directory}/{name}"), now_ms), offset
        except Corrupt as damage:
            _log.warning("ignoring %s/%s/%s: %s", disk.name, directory, name, damage)
    return None


def replay(
    transactions: PartitionTransactions,
    segments: Sequence[Segment],
    from_offset: int,
    end_offset: int,
    now_ms: int,
) -> None:
    """Bring the state at `from_offset` to `end_offset`, by the headers of the batches between."""
    for segment, position, header in _headers(segments, from_offset, end_offset):
        if header.producer_id >= 0:
            follow(transactions, header, segment, position, now_ms)


def _headers(
    segments: Sequence[Segment], from_offset: int, end_offset: int
) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Each batch between two offsets, with its place."""
    for segment in segments:
        if segment.base_offset >= end_offset or from_offset >= end_offset:
            return
        if segment.limit_offset <= from_offset or not segment.size:
            continue
        for position, header in segment.headers(segment.locate(from_offset)):
            if header.base_offset >= end_offset:
                return
            yield segment, position, header


def recall_ended(
    transactions: PartitionTransactions,
    disk: Disk,
    segments: Sequence[Segment],
    high_watermark: int,
    end_offset: int,
) -> None:
    """Find the transactions whose markers are there but not committed.

    A snapshot tells only what is open. A marker behind the high watermark may still be lost, and
    until it cannot be, nothing of its transaction may be shown as decided.
    """
    if high_watermark >= end_offset or not len(transactions.producers):
        return
    behind = _headers(segments, high_watermark, end_offset)
    if not any(header.is_control for _, _, header in behind):
        return
    directory = segments[0].directory
    names = disk.list(directory)
    found = newest_snapshot(disk, directory, names, high_watermark, 0)
    producers, since = found or (ProducerStates(), segments[0].base_offset)
    replayed = PartitionTransactions(producers)
    replay(replayed, segments, since, end_offset, 0)
    replayed.high_watermark_moved(high_watermark)
    transactions.recall_ended(replayed)


def batches_before(
    segments: Sequence[Segment], producer_id: int, epoch: int, offset: int
) -> list[Written]:
    """A producer's batches in the last megabytes before `offset`, the newest first."""
    found: list[Written] = []
    left = _RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= offset or not segment.size:
            continue
        try:
            end = segment.size if segment.limit_offset <= offset else segment.locate(offset)
            start = segment.offsets.boundary_before(max(0, end - left))
            here: list[Written] = []
            for position, header in segment.headers(start):
                if position >= end:
                    break
                sender = (header.producer_id, header.producer_epoch)
                if sender == (producer_id, epoch) and not header.is_control:
                    here.append(Written.of(header))
        except Corrupt as damage:
            _log.warning("%s", damage)
            return found
        found += reversed(here)
        left -= end - start
        if left <= 0 or len(found) >= BATCHES_KEPT:
            break
    return found


def follow(
    transactions: PartitionTransactions,
    header: BatchHeader,
    segment: Segment,
    position: int,
    now_ms: int,
) -> Aborted | None:
    """Take one batch of a producer into account; the transaction that it aborts, if any."""
    if header.is_control:
        return _follow_marker(transactions, header, segment, position, now_ms)
    is_transactional = header.is_transactional
    transactions.producers.appended(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_offset,
        header.last_offset,
        header.max_timestamp,
        now_ms,
        is_transactional,
    )
    if is_transactional:
        transactions.appended(header.producer_id, header.base_offset)
    return None


def _follow_marker(
    transactions: PartitionTransactions,
    header: BatchHeader,
    segment: Segment,
    position: int,
    now_ms: int,
) -> Aborted | None:
    # A batch that compaction has emptied says nothing any more.
    for record in records(segment.read_batch(position, header.size)):
        marker = parse_marker(record)
        if marker is None:
            continue
        transactions.producers.marked(
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
            record.timestamp,
            now_ms,
        )
        is_commit = marker.type is ControlType.COMMIT
        return transactions.marked(header.producer_id, header.base_offset, is_commit)
    return None


def remove_snapshots(disk: Disk, directory: str, names: Iterable[str], after_offset: int) -> bool:
    """Remove the snapshots taken behind `after_offset`; says whether there were any."""
    stale = [offset for offset in snapshot_offsets(names) if offset > after_offset]
    for offset in stale:
        disk.remove(f"{directory}/{file_name(offset, SNAPSHOT)}")
    return bool(stale)
