"""A log behaves like a plain list of batches, for any sequence of operations."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.wire.batch import Record, read_header, records
from hightide.wire.compression import Codec
from hightide.wire.errors import ErrorCode, KafkaError
from tests.unit.log.log_helpers import (
    NOW,
    append,
    batch,
    newest,
    open_log_manager,
    replayed,
    run_jobs,
    stored,
    topic,
)

# Long enough for all housekeeping except the expiration of producers.
A_WHILE_MS = 6 * 60_000


class LogAgainstList(RuleBasedStateMachine):
    """The model is a list of batches, each a list of records."""

    def __init__(self) -> None:
        super().__init__()
        self.model: list[list[Record]] = []
        self.start = 0
        self.end = 0
        self.now_ms = NOW
        self.sequences: dict[int, int] = {}

    def make_disk(self) -> Disk:
        return MemoryDisk()

    @initialize(
        segment_bytes=st.sampled_from([400, 1000, 5000]),
        index_interval_bytes=st.sampled_from([0, 200, 4096]),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int) -> None:
        self.disk = self.make_disk()
        self.config = topic(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            file_delete_delay_ms=0,
            retention_ms=-1,
        )
        self.log_manager = open_log_manager(self.disk, self.config)
        self.log = self.log_manager.create("t", 0, UUID(int=5))

    @property
    def known(self) -> list[Record]:
        return [r for written in self.model for r in written if r.offset >= self.start]

    @rule(
        values=st.lists(st.binary(max_size=60), min_size=1, max_size=5),
        pid=st.integers(-1, 2),
        step_ms=st.integers(-5, 5),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP]),
    )
    def appends(self, values: list[bytes], pid: int, step_ms: int, codec: Codec) -> None:
        fields: dict[str, Any] = {}
        if pid >= 0:
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + len(values)
            fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequence}
        data = batch(values, timestamp=self.now_ms + step_ms, codec=codec, **fields)
        self.now_ms += 1
        offsets = append(self.log, data, leader_epoch=self.end // 20, now_ms=self.now_ms)
        assert offsets == (self.end, self.end + len(values), -1)
        self.model.append(
            [Record(self.end + i, r.timestamp, r.key, r.value) for i, r in enumerate(records(data))]
        )
        self.end += len(values)

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 150, 700, 1 << 20]))
    def reads(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.integers(offset, self.end))
        part = self.log.read(offset, max_bytes, limit)
        ahead = [b for b in self.model if b[-1].offset >= offset and b[-1].offset < limit]
        if not ahead:
            assert part is None
            return
        assert part is not None
        got = part.file.read(part.position, part.length)
        first = read_header(got)
        assert first.base_offset == ahead[0][0].offset
        assert part.length <= max(max_bytes, first.size)
        assert list(records(got)) == ahead[0]

    @rule()
    def reads_outside(self) -> None:
        for offset in (self.start - 1, self.end + 1):
            with pytest.raises(KafkaError) as caught:
                self.log.read(offset, 1, self.end)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    @rule(step_ms=st.integers(-20, 20))
    def looks_up_a_time(self, step_ms: int) -> None:
        at = self.now_ms + step_ms
        found = self.log.offset_for_timestamp(at)
        wanted = next((r for r in self.known if r.timestamp >= at), None)
        assert (found.offset if found else None) == (wanted.offset if wanted else None)

    @rule()
    def rolls(self) -> None:
        self.log.roll(self.now_ms)

    @rule(data=st.data())
    def truncates(self, data: st.DataObject) -> None:
        self.cut(data.draw(st.integers(self.start, self.end)))

    def cut(self, offset: int) -> None:
        while self.model and self.model[-1][-1].offset >= offset:
            self.end = self.model.pop()[0].offset
        assert self.log.truncate_to(offset, self.now_ms) == self.end
        self.start = min(self.start, self.end)
        self.sequences = {
            pid: state.next_sequence for pid, state in self.log.producers if state.batches
        }

    @rule(data=st.data())
    def deletes_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        assert self.log.delete_records(self.start) == self.start

    @rule()
    def keeps_house(self) -> None:
        self.now_ms += A_WHILE_MS
        run_jobs(self.log_manager, self.now_ms)
        assert self.log.recovery_point >= self.log.active_segment.base_offset
        assert self.log.segments.bases[0] <= self.start

    @rule(keep=st.sampled_from([0, 600, 3000]))
    def drops_by_size(self, keep: int) -> None:
        self.keeps_house()
        self.log.reconfigure(
            topic(
                segment_bytes=self.config.segment_bytes,
                index_interval_bytes=self.config.index_interval_bytes,
                file_delete_delay_ms=0,
                retention_ms=-1,
                retention_bytes=keep,
            )
        )
        before = self.log.size_bytes
        self.now_ms += A_WHILE_MS
        run_jobs(self.log_manager, self.now_ms)
        assert self.log.size_bytes >= min(keep, before)
        self.log.reconfigure(self.config)
        assert self.log.start_offset >= self.start
        self.start = self.log.start_offset

    def reopen(self) -> None:
        self.log_manager = open_log_manager(self.disk, self.config, self.now_ms)
        self.log = self.log_manager.logs["t", 0]

    @rule()
    def stops_cleanly_and_starts(self) -> None:
        self.log_manager.close(self.now_ms)
        self.reopen()
        assert self.log.recovery_point == self.end

    # A kill may undo a start offset that is not in the checkpoint yet; jobs write it.
    @precondition(lambda self: self.start == self.log.segments.bases[0])
    @rule()
    def is_killed_and_starts(self) -> None:
        self.reopen()

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        assert stored(self.log) == self.known

    @invariant()
    def producers_and_epochs_are_as_the_batches_say(self) -> None:
        producers, epochs = replayed(self.log)
        assert newest(producers).items() <= newest(self.log.producers).items()
        expected = [(epoch, max(start, self.start)) for epoch, start in epochs]
        known = self.log.epochs.entries
        assert known[len(known) - len(expected) :] == expected

    def teardown(self) -> None:
        del self.log, self.log_manager


class RealLogAgainstList(LogAgainstList):
    def make_disk(self) -> Disk:
        self.root = tempfile.mkdtemp(prefix="hightide-")
        return RealDisk(Path(self.root))

    def teardown(self) -> None:
        super().teardown()
        self.disk.unlock()
        shutil.rmtree(self.root)


LogAgainstList.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
RealLogAgainstList.TestCase.settings = settings(LogAgainstList.TestCase.settings, max_examples=25)
TestOnMemory = LogAgainstList.TestCase
TestOnARealDisk = RealLogAgainstList.TestCase
