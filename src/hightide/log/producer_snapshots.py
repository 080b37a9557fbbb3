"""Producer state on disk: Kafka's .snapshot files, and the replay of batches after them.

A snapshot is named after its offset: the base offset of a segment, or the log end offset at a clean
shutdown. The state at any later offset is the newest snapshot before it plus the batch headers in
between. If a snapshot is damaged, an older one is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from hightide.core.partition.producer_state import BATCHES_KEPT, AppendedBatch, ProducerStates
from hightide.core.transactions.aborted_index import AbortedTransaction
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.disk import Disk
from hightide.log.segment import SNAPSHOT, Segment, file_name
from hightide.wire.batch import BatchHeader, records
from hightide.wire.control import ControlType, parse_marker
from hightide.wire.errors import Corrupt

# Five batches of the largest usual size, and as many bytes of other producers between them.
_RECALL_BYTES = 10 * 1024 * 1024

_log = logging.getLogger(__name__)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among the files of a log, ascending."""
    return sorted(
        int(name[:20]) for name in names if name.endswith(SNAPSHOT) and name[:20].isdecimal()
    )


def newest_snapshot(
    disk: Disk, directory: str, names: Iterable[str], end_offset: int, now_ms: int
) -> tuple[ProducerStates, int] | None:
    """Return the newest readable state at or before `end_offset`, and its offset."""
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
    """Advance the state from `from_offset` to `end_offset` by the batch headers in between."""
    for segment, position, header in _headers(segments, from_offset, end_offset):
        if header.producer_id >= 0:
            follow(transactions, header, segment, position, now_ms)


def _headers(
    segments: Sequence[Segment], from_offset: int, end_offset: int
) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Yield each batch between two offsets, with its segment and position."""
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
    """Find the transactions whose markers are in the log but not committed.

    A snapshot holds open transactions only. A marker at or after the high watermark may still be
    lost. Until it is committed, its transaction counts as undecided.
    """
    if high_watermark >= end_offset or not len(transactions.producers):
        return
    uncommitted = _headers(segments, high_watermark, end_offset)
    if not any(header.is_control for _, _, header in uncommitted):
        return
    directory = segments[0].directory
    names = disk.list(directory)
    found = newest_snapshot(disk, directory, names, high_watermark, 0)
    producers, since = found or (ProducerStates(), segments[0].base_offset)
    replayed = PartitionTransactions(producers)
    replay(replayed, segments, since, end_offset, 0)
    replayed.high_watermark_moved(high_watermark)
    transactions.recall_ended(replayed)


def recall_batches(
    producers: ProducerStates, segments: Sequence[Segment], producer_id: int, epoch: int
) -> None:
    """Read a producer's latest batches from the log if its snapshot had no room for all of them.

    A sequence that seems out of order may then turn out to be a repeated batch.
    """
    state = producers.get(producer_id)
    if state is not None and state.is_partial and epoch == state.epoch:
        before = state.batches[0].base_offset
        producers.recall(producer_id, _batches_before(segments, producer_id, epoch, before))


def _batches_before(
    segments: Sequence[Segment], producer_id: int, epoch: int, offset: int
) -> list[AppendedBatch]:
    """Return a producer's batches in the last megabytes before `offset`, newest first."""
    found: list[AppendedBatch] = []
    left = _RECALL_BYTES
    for segment in reversed(segments):
        if segment.base_offset >= offset or not segment.size:
            continue
        try:
            end = segment.size if segment.limit_offset <= offset else segment.locate(offset)
            start = segment.offsets.boundary_before(max(0, end - left))
            here: list[AppendedBatch] = []
            for position, header in segment.headers(start):
                if position >= end:
                    break
                sender = (header.producer_id, header.producer_epoch)
                if sender == (producer_id, epoch) and not header.is_control:
                    here.append(AppendedBatch.of(header))
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
) -> AbortedTransaction | None:
    """Apply one batch to the producer state; return the transaction that it aborts, if any."""
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
) -> AbortedTransaction | None:
    # A batch that compaction emptied has no marker.
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
    """Remove the snapshots after `after_offset`; return whether there were any."""
    stale = [offset for offset in snapshot_offsets(names) if offset > after_offset]
    for offset in stale:
        disk.remove(f"{directory}/{file_name(offset, SNAPSHOT)}")
    return bool(stale)
