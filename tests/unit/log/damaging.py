"""Damaged files of a log, and a reader that gets records as a consumer of a broker does."""

from __future__ import annotations

from hightide.log.damage import Extent, check_part
from hightide.log.disk import Disk
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.wire.batch import Record, batches, records
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import NOW, run_jobs


def overwrite(disk: Disk, path: str, data: bytes | bytearray) -> None:
    disk.create(path).append(data)


def flip(disk: Disk, path: str, bit: int) -> None:
    data = bytearray(disk.read_file(path))
    data[bit // 8] ^= 1 << bit % 8
    overwrite(disk, path, data)


def served(
    log_manager: LogManager, log: Log, max_bytes: int = 1 << 20
) -> tuple[list[Record], set[int]]:
    """Read a log from its start to its end, as a consumer does that skips what is refused.

    Return the records and the offsets that were refused.
    """
    found: list[Record] = []
    refused: set[int] = set()
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            part = log.read(offset, max_bytes, log.end_offset)
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            run_jobs(log_manager, NOW)
            if log.damage.suspects or log.damage.pending:
                continue
            if (hole := log.damage.hole_at(offset)) is not None:
                refused.update(range(hole.start, hole.end))
                offset = hole.end
            continue
        if part is None:
            break
        if part.segment is not None:
            checked = check_part(part, Extent.of(log, part.segment), 0)
            if not checked.is_intact:
                if checked.damage:
                    log.damage.found(log, part.segment, checked.damage, NOW)
                else:
                    part.segment.rebuild_indexes()
                continue
        data = part.file.read(part.position, part.length)
        for at, header in batches(data):
            found += [r for r in records(data[at : at + header.size]) if r.offset >= offset]
            offset = header.last_offset + 1
    return [record for record in found if record.offset >= log.start_offset], refused
