"""Compare the replicas of a partition byte by byte, below the high watermark.

    anomalies = compare_replicas({1: folder_of_broker_1, 2: …, 3: …})

It reads the segment files by itself, so a broken reader of ours cannot hide a difference. It may
run beside the brokers: bytes below the high watermark do not change. Where segments begin may
differ, and where a log starts; replicas of compacted topics may differ, and are only checked for
damage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from tests.chaos.findings import Anomaly

FOLDER = re.compile(r"^(?P<partition>.+-\d+)$")
CHECKPOINT = "replication-offset-checkpoint"
_HEAD = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes and last offset delta."""
_CRC_FROM = 21
_OVERHEAD = 12


class Batch(NamedTuple):
    first: int
    end: int
    data: bytes
    is_damaged: bool


def batches(folder: Path) -> Iterator[Batch]:
    """Yield the batches of a log, segment by segment; stop where a batch is not complete."""
    for segment in sorted(folder.glob("*.log")):
        data = segment.read_bytes()
        at = 0
        while at + _HEAD.size <= len(data):
            first, length, _, magic, crc, _, delta = _HEAD.unpack_from(data, at)
            end = at + _OVERHEAD + length
            if length <= 0 or end > len(data):
                break
            batch = data[at:end]
            is_damaged = magic != 2 or crc32c(memoryview(batch)[_CRC_FROM:]) != crc
            yield Batch(first, first + delta + 1, batch, is_damaged)
            at = end


def high_watermarks(data: Path) -> dict[str, int]:
    """Return the high watermarks that a broker wrote down, as `topic partition offset`."""
    try:
        lines = (data / CHECKPOINT).read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        fields = line.split(" ")
        if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
            found[f"{fields[0]}-{fields[1]}"] = int(fields[2])
    return found


def compare_replicas(
    brokers: Mapping[int, Path],
    *,
    until: Mapping[str, int] | None = None,
    compacted: Iterable[str] = (),
) -> list[Anomaly]:
    """Return how the replicas of all partitions in these log directories differ.

    `until` has high watermarks that are known otherwise, such as ends that a client has read.
    Those in the checkpoints of the brokers count too. Each replica must reach the high watermark,
    so call it when all replicas are in sync.
    """
    wanted: dict[str, int] = defaultdict(int, until or {})
    replicas: dict[str, dict[int, Path]] = defaultdict(dict)
    for broker, data in brokers.items():
        for partition, offset in high_watermarks(data).items():
            wanted[partition] = max(wanted[partition], offset)
        for folder in data.iterdir():
            if folder.is_dir() and FOLDER.match(folder.name):
                replicas[folder.name][broker] = folder
    found: list[Anomaly] = []
    for partition, folders in sorted(replicas.items()):
        topic = partition.rpartition("-")[0]
        is_compacted = topic in compacted or topic.startswith("__")
        found += _compared(partition, folders, wanted[partition], is_compacted=is_compacted)
    return found


def _compared(
    partition: str, folders: Mapping[int, Path], until: int, *, is_compacted: bool
) -> Iterator[Anomaly]:
    whole = {broker: list(batches(folder)) for broker, folder in folders.items()}
    logs = {
        broker: [batch for batch in log if batch.first < until] for broker, log in whole.items()
    }
    for broker, log in logs.items():
        for batch in log:
            if batch.is_damaged:
                text = f"broker {broker} has a damaged batch from offset {batch.first} on"
                yield Anomaly("replicas-differ", partition, text, offsets=(batch.first,))
        # Compaction may remove what is directly before the high watermark, but not the end.
        end = whole[broker][-1].end if whole[broker] else 0
        if end < until:
            text = f"broker {broker} ends at {end}, the high watermark is {until}"
            yield Anomaly("replicas-differ", partition, text, offsets=(end,))
    if is_compacted or len(logs) < 2:
        return
    start = max((log[0].first for log in logs.values() if log), default=0)
    first, *others = sorted(logs)
    expected = {batch.first: batch.data for batch in logs[first] if batch.first >= start}
    for broker in others:
        actual = {batch.first: batch.data for batch in logs[broker] if batch.first >= start}
        wrong = sorted(
            offset
            for offset in expected.keys() | actual.keys()
            if expected.get(offset) != actual.get(offset)
        )
        if wrong:
            text = f"brokers {first} and {broker} differ in {len(wrong)} batches, the first is at"
            text += f" {wrong[0]}"
            offsets = (wrong[0],)
            yield Anomaly("replicas-differ", partition, text, offsets=offsets, count=len(wrong))
