"""Opening a log again after its disk failed, without a restart of the broker.

A write or a sync that failed may have lost bytes after the recovery point, although a read finds
them in the page cache: the kernel marks pages as clean when it could not write them. So the files
that reach past the recovery point are written again, to new files, and synced. Then recovery reads
and checks them, as after a crash.
"""

from __future__ import annotations

from bisect import bisect_right

from hightide.log.disk import Disk
from hightide.log.flush import flush_recovered
from hightide.log.log import Log
from hightide.log.recovery import CheckpointedState, load
from hightide.log.segment import LOG, OpenFiles, file_name

_CHUNK_BYTES = 1 << 20


def reopen(log: Log, files: OpenFiles, now_ms: int) -> Log:
    """Return a new log from the files of one that has failed. May be called in any thread.

    Raise DiskFailed if the disk still fails.
    """
    high_watermark = log.committed_offset
    state = CheckpointedState(
        clean=False,
        recovery_point=log.recovery_point,
        start_offset=log.start_offset,
        high_watermark=high_watermark,
        cleaned_offset=log.cleaned_offset,
    )
    names = (name for name in log.disk.list(log.directory) if name.endswith(LOG))
    bases = sorted(int(name[:20]) for name in names if name[:20].isdecimal())
    for base in bases[max(0, bisect_right(bases, log.recovery_point) - 1) :]:
        _write_again(log.disk, f"{log.directory}/{file_name(base, LOG)}")
    log.disk.sync_directory(log.directory)
    opened = load(log.disk, log.topic, log.partition, log.config, files, state, now_ms)
    opened.cleaned_offset = min(opened.cleaned_offset, opened.end_offset)
    flush_recovered(opened)
    opened.recovery_point_written = min(log.recovery_point_written, opened.recovery_point)
    opened.high_watermark = min(max(high_watermark, opened.start_offset), opened.end_offset)
    opened.transactions.verifies = log.transactions.verifies
    opened.producers.continue_from(log.producers, now_ms)
    return opened


def _write_again(disk: Disk, path: str) -> None:
    """Replace a file by a copy of it, which is on disk."""
    old, new = disk.open(path), disk.create(f"{path}.tmp")
    while new.size < old.size:
        data = old.read(new.size, _CHUNK_BYTES)
        if not data:
            break
        new.append(data)
    new.sync()
    disk.rename(f"{path}.tmp", path)
