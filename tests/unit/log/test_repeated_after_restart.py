"""A producer repeats its batches in flight to a broker that has restarted.

Kafka's snapshots hold one batch of each producer; a client may repeat any of its last five.
"""

from typing import Any
from uuid import UUID

import pytest

from hightide.log.disk import Disk, MemoryDisk
from hightide.log.flush import flush
from hightide.log.log import Log
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import NOW, append, batch, open_log_manager, run_jobs, topic


def numbered(sequence: int, producer_id: int = 7, epoch: int = 0, size: int = 40) -> bytearray:
    value = b"%d" % sequence + b"x" * size
    fields: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "base_sequence": sequence,
    }
    return batch([value], **fields)


def reopened(disk: Disk, clean: bool, **settings: int) -> Log:
    return open_log_manager(disk, topic(**settings)).logs["t", 0]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("before_the_roll", range(1, 9))
def test_each_of_the_last_five_batches_is_known_again(clean: bool, before_the_roll: int):
    disk = MemoryDisk()
    log_manager = open_log_manager(disk, topic())
    log = log_manager.create("t", 0, UUID(int=1))
    for sequence in range(9):
        if sequence == before_the_roll:
            log.roll(NOW)
            flush(log)
            run_jobs(log_manager, NOW + 200_000)
        append(log, numbered(sequence))
        append(log, numbered(sequence, producer_id=8))
    if clean:
        log_manager.close(NOW)
    log = reopened(disk, clean)
    for sequence in reversed(range(4, 9)):
        assert append(log, numbered(sequence))[0] == 2 * sequence
    assert log.end_offset == 18
    assert append(log, numbered(9))[0] == 18


def test_what_was_never_written_is_still_refused():
    disk = MemoryDisk()
    log_manager = open_log_manager(disk, topic())
    log = log_manager.create("t", 0, UUID(int=1))
    for sequence in range(9):
        append(log, numbered(sequence))
    log_manager.close(NOW)
    log = reopened(disk, clean=True)
    for sequence in (11, 3, 2):
        with pytest.raises(KafkaError) as refused:
            append(log, numbered(sequence))
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 9


def test_batches_of_an_older_epoch_are_not_taken_for_the_producers():
    disk = MemoryDisk()
    log_manager = open_log_manager(disk, topic())
    log = log_manager.create("t", 0, UUID(int=1))
    for sequence in range(4):
        append(log, numbered(sequence))
    for sequence in range(2):
        append(log, numbered(sequence, epoch=1))
    log_manager.close(NOW)
    log = reopened(disk, clean=True)
    assert append(log, numbered(0, epoch=1))[0] == 4
    with pytest.raises(KafkaError) as refused:
        append(log, numbered(3, epoch=1))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_search_goes_back_over_segments_but_not_over_the_whole_log():
    disk = MemoryDisk()
    log_manager = open_log_manager(disk, topic(segment_bytes=200_000))
    log = log_manager.create("t", 0, UUID(int=1))
    for sequence in range(5):
        append(log, numbered(sequence, size=150_000))
    log_manager.close(NOW)
    log = reopened(disk, clean=True, segment_bytes=200_000)
    assert len(log.segments) == 5
    assert append(log, numbered(0, size=150_000))[0] == 0
