"""The check at the start of a log: does each segment meet the next, and is the end where it was?

    segment 0 ─────▶ 100 │ 100 ─────▶ 180 │ 200 ─────▶     offsets 180 to 199 are lost

It costs one lookup for each segment. A segment is as long as its last index entry and the batches
after that entry say. Only where two segments do not meet, a segment is read completely.

Three other traces show lost files. A clean shutdown writes a producer snapshot that is named after
the end of the log. The first leader epoch begins at the start of the log. And the holes that were
known before are in a file.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from hightide.log.damage import Damage, DamagedBytes, Epochs, Extent, Scan
from hightide.log.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from hightide.log.segment import LOG, MAX_OFFSET, OpenFiles, Segment
from hightide.wire.batch import BatchHeader
from hightide.wire.errors import Corrupt

_log = logging.getLogger(__name__)


class DamagedSegment(Exception):
    """A segment has damaged bytes. They must be set aside before the log can be loaded."""

    def __init__(self, segment: Segment, damaged: list[DamagedBytes]) -> None:
        super().__init__(damaged[0].why)
        self.segment = segment
        self.damaged = damaged


def damage_of(
    segment: Segment, limit_offset: int, epochs: Epochs, safe_before: int, least_end: int
) -> list[DamagedBytes]:
    """Return the damage in a segment that must hold every offset up to `limit_offset`, or up to
    an unknown end, which is `least_end` or later. `epochs` is complete before `safe_before`."""
    extent = Extent(
        segment.base_offset,
        limit_offset,
        segment.size,
        segment.gaps_before,
        epochs,
        safe_before,
    )
    found = Scan(segment.disk.open(segment.path(LOG)), extent).run()
    if limit_offset != MAX_OFFSET:
        return found
    return [
        damaged._replace(end_offset=max(damaged.start_offset, least_end))
        if damaged.end_offset == MAX_OFFSET
        else damaged
        for damaged in found
        if damaged.position < damaged.end
    ]


class StartCheck:
    """Finds what is missing between the segments of one log."""

    def __init__(
        self,
        segments: list[Segment],
        damage: Damage,
        epochs: Epochs,
        recovery_point: int,
        is_clean: bool,
    ) -> None:
        """A crash may have lost records after the recovery point, a clean shutdown none."""
        self._segments = segments
        self._damage = damage
        self._epochs = epochs
        self._recovery_point = recovery_point
        self._safe_before = MAX_OFFSET if is_clean else recovery_point

    def run(self) -> None:
        """Note the holes between segments. Raise DamagedSegment for one that has other damage."""
        known, self._damage.holes = self._damage.holes, []
        for segment, following in pairwise(self._segments):
            self._meet(segment, following, {hole.end: hole for hole in known})
        tail = self._segments[-1]
        for hole in known:
            if hole in self._damage.holes:
                continue
            # The intact batches were not in files of their own when the process stopped.
            for segment in self._segments:
                if segment.base_offset <= hole.start < segment.limit_offset:
                    limit = segment.limit_offset if segment is not tail else MAX_OFFSET
                    self._check_bytes(segment, limit)

    def _meet(
        self, segment: Segment, following: Segment, known: dict[int, tuple[int, int]]
    ) -> None:
        base = following.base_offset
        is_safe = base <= self._safe_before
        try:
            end = segment.tail_offset()
        except Corrupt:
            if not is_safe:
                return  # recovery reads it
            end = -1
        if end == base:
            return
        if end >= 0 and known.get(base, (-1, -1))[0] == end:
            segment.limit_offset = end
            self._damage.lost(end, base)
            return
        if not is_safe or (segment.base_offset <= end < base <= segment.gaps_before):
            return
        self._check(segment, base)

    def _check(self, segment: Segment, limit_offset: int) -> None:
        """Check a segment that must end at `limit_offset`."""
        damaged = self._check_bytes(segment, limit_offset)
        if damaged:
            # Nothing but batches at the end of the file are missing.
            (lost,) = damaged
            _log.error("records are lost: %s", lost.why)
            segment.limit_offset = lost.start_offset
            self._damage.lost(lost.start_offset, lost.end_offset)

    def _check_bytes(self, segment: Segment, limit_offset: int) -> list[DamagedBytes]:
        damaged = damage_of(
            segment, limit_offset, self._epochs, self._safe_before, self._recovery_point
        )
        # After a crash, damage behind the recovery point is the torn end of the last writes.
        safe = [found for found in damaged if found.start_offset < self._safe_before]
        if any(found.position < found.end for found in safe):
            raise DamagedSegment(segment, safe)
        return safe


def begin_lost_start(
    segments: list[Segment], damage: Damage, epochs: Epochs, start_offset: int, now_ms: int
) -> None:
    """Begin the log where it began at the last clean shutdown, if its first files are lost."""
    first = segments[0]
    if not epochs or max(epochs[0][1], start_offset) >= first.base_offset:
        return
    begin = max(epochs[0][1], start_offset)
    _log.error(
        "records are lost: %s begins at offset %d, not at %d",
        first.directory,
        first.base_offset,
        begin,
    )
    damage.lost(begin, first.base_offset)
    segments.insert(0, _empty(first, begin, first.files, now_ms))


def continue_after_lost_end(
    segments: list[Segment], damage: Damage, end_offset: int, now_ms: int
) -> None:
    """Continue the log at `end_offset`: an offset is never assigned twice."""
    last = segments[-1]
    lost_from = last.next_offset()
    if lost_from >= end_offset:
        return
    _log.error(
        "records are lost: %s ends at offset %d, not at %d", last.directory, lost_from, end_offset
    )
    damage.lost(lost_from, end_offset)
    last.limit_offset = lost_from
    segments.append(_empty(last, end_offset, last.files, now_ms))


def _empty(like: Segment, base_offset: int, files: OpenFiles, now_ms: int) -> Segment:
    segment = Segment.create(like.disk, like.directory, base_offset, files, now_ms)
    segment.gaps_before = like.gaps_before
    segment.index_interval_bytes = like.index_interval_bytes
    return segment


# ---- leader epochs


def check_epochs(
    segments: list[Segment], epochs: LeaderEpochs, start_offset: int, safe_before: int
) -> None:
    """Compare the file of leader epochs, which has no checksum, with the batches at each start of
    an epoch. If the two disagree, take the epochs from all batches before `safe_before`."""
    entries = epochs.entries
    if _agree(segments, entries, start_offset, safe_before):
        return
    found = _epochs_of(segments, entries, start_offset, safe_before)
    _log.warning(
        "the leader epochs of %s do not agree with its batches: taking %s for %s",
        segments[0].directory,
        found,
        entries,
    )
    epochs.replace([*found, *(entry for entry in entries if entry[1] >= safe_before)])


def _agree(segments: list[Segment], entries: Epochs, start_offset: int, safe_before: int) -> bool:
    begin = max(start_offset, segments[0].base_offset)
    first = _batch_at(segments, begin)
    if (
        first is not None
        and begin < safe_before
        and first.leader_epoch >= 0
        and (not entries or entries[0][1] > max(begin, first.base_offset))
    ):
        return False  # the first entry covers the first record
    try:
        end = min(segments[-1].next_offset(), safe_before)
    except Corrupt:
        end = safe_before
    before = UNDEFINED_EPOCH
    for epoch, start in entries:
        if start >= end:
            break  # nothing was written in it
        last = _batch_at(segments, start - 1) if start > begin and before >= 0 else None
        if last is not None and last.base_offset < start and last.leader_epoch != before:
            return False
        batch = _batch_at(segments, start) if start >= begin else None
        if batch is not None and batch.base_offset <= start:
            is_start = start in (batch.base_offset, begin)
            if batch.leader_epoch != epoch or not is_start:
                return False
        before = epoch
    last = _batch_at(segments, end - 1)
    if last is None or last.base_offset >= end:
        return True
    return last.leader_epoch in (before, UNDEFINED_EPOCH)


def _batch_at(segments: list[Segment], offset: int) -> BatchHeader | None:
    """Return the batch that holds `offset`, or the next one; None if it cannot be found."""
    for segment in reversed(segments):
        if segment.base_offset <= offset:
            try:
                return next((h for _, h in segment.headers(segment.locate(offset))), None)
            except Corrupt:
                return None
    return None


def _epochs_of(
    segments: list[Segment], known: Epochs, start_offset: int, safe_before: int
) -> list[tuple[int, int]]:
    """Return the leader epochs that the batches show. An epoch never goes back, so a batch whose
    epoch is larger than that of the next one has a damaged header. Compaction may have removed the
    first batches of an epoch; then it begins where the file says, if no batch contradicts."""
    batches = [batch for batch in _epoch_batches(segments, known) if batch[1] < safe_before]
    largest = max((epoch for epoch, _ in known), default=MAX_OFFSET)
    starts = dict(known)
    found: list[tuple[int, int]] = []
    # The end of the batches whose epoch is certain: the next epoch does not begin before.
    earliest = segments[0].base_offset
    for at, (epoch, base, end) in enumerate(batches):
        latest = found[-1][0] if found else UNDEFINED_EPOCH
        following = batches[at + 1][0] if at + 1 < len(batches) else largest
        if epoch < latest or (epoch > latest and following < epoch):
            earliest = min(earliest, base)
            continue
        if epoch > latest:
            start = starts.get(epoch, base)
            found.append((epoch, start if earliest <= start <= base else base))
        earliest = end
    if found and found[0][1] < start_offset:
        kept = [entry for entry in found if entry[1] > start_offset]
        first = [entry for entry in found if entry[1] <= start_offset][-1]
        found = [(first[0], start_offset), *kept]
    return found


def _epoch_batches(segments: list[Segment], known: Epochs) -> list[tuple[int, int, int]]:
    """Return the epoch, first and next offset of each batch. Where batches cannot be read, the
    known starts of epochs take their place."""
    found: list[tuple[int, int, int]] = []
    for segment in segments:
        end = segment.base_offset
        try:
            for _, header in segment.headers():
                end = header.last_offset + 1
                if header.leader_epoch >= 0:
                    found.append((header.leader_epoch, header.base_offset, end))
        except Corrupt:
            unread = [entry for entry in known if end <= entry[1] < segment.limit_offset]
            found += [(epoch, start, start + 1) for epoch, start in unread]
    return found
