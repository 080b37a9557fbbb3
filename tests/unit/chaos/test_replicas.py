"""Replicas are compared byte by byte, below the high watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from hightide.wire import batch
from tests.chaos.replicas import compare_replicas

PARTITION = "orders-0"


def batch_at(offset: int, *values: bytes) -> bytes:
    """A batch as it is on disk, with its base offset."""
    data = bytearray(batch.build([batch.Record(i, 1, None, v, ()) for i, v in enumerate(values)]))
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


A, B, C = batch_at(0, b"a", b"b"), batch_at(2, b"c"), batch_at(3, b"d")


@pytest.fixture
def brokers(tmp_path: Path) -> dict[int, Path]:
    """Two replicas with the same bytes in different segments, and a high watermark of 4."""
    found = {number: tmp_path / str(number) for number in (1, 2)}
    for data in found.values():
        (data / PARTITION).mkdir(parents=True)
        (data / "replication-offset-checkpoint").write_text("0\n1\norders 0 4\n")
    write(found[1], 0, A + B + C)
    write(found[2], 0, A)
    write(found[2], 2, B + C)
    return found


def write(data: Path, offset: int, content: bytes) -> None:
    (data / PARTITION / f"{offset:020}.log").write_bytes(content)


def texts(brokers: dict[int, Path], **given: object) -> list[str]:
    return [found.text for found in compare_replicas(brokers, **given)]  # type: ignore[arg-type]


def test_equal_replicas_have_no_anomaly(brokers: dict[int, Path]) -> None:
    assert texts(brokers) == []


def test_bytes_above_the_high_watermark_may_differ(brokers: dict[int, Path]) -> None:
    write(brokers[1], 0, A + B + C + batch_at(4, b"only here"))
    assert texts(brokers) == []


def test_a_replica_may_start_later(brokers: dict[int, Path]) -> None:
    (brokers[2] / PARTITION / f"{0:020}.log").unlink()
    assert texts(brokers) == []


def test_another_record_is_a_difference(brokers: dict[int, Path]) -> None:
    write(brokers[2], 2, batch_at(2, b"x") + C)
    assert texts(brokers) == ["brokers 1 and 2 differ in 1 batches, the first is at 2"]


def test_a_missing_batch_is_a_difference(brokers: dict[int, Path]) -> None:
    write(brokers[2], 2, C)
    assert texts(brokers) == ["brokers 1 and 2 differ in 1 batches, the first is at 2"]


def test_a_replica_that_ends_below_the_high_watermark_is_reported(
    brokers: dict[int, Path],
) -> None:
    write(brokers[2], 2, B)
    assert texts(brokers)[0] == "broker 2 ends at 3, the high watermark is 4"


def test_a_flipped_bit_is_reported_even_if_all_replicas_have_it(brokers: dict[int, Path]) -> None:
    damaged = bytearray(A)
    damaged[-2] ^= 1
    write(brokers[1], 0, bytes(damaged) + B + C)
    write(brokers[2], 0, bytes(damaged))
    assert texts(brokers) == [
        f"broker {number} has a damaged batch from offset 0 on" for number in (1, 2)
    ]


def test_replicas_of_a_compacted_topic_may_differ(brokers: dict[int, Path]) -> None:
    write(brokers[2], 2, C)
    assert texts(brokers, compacted=["orders"]) == []


def test_compaction_may_remove_what_is_before_a_high_watermark(brokers: dict[int, Path]) -> None:
    """The checkpoint is older than the log, and later records replaced those before it."""
    write(brokers[1], 0, A + batch_at(7, b"newer"))
    assert texts(brokers, compacted=["orders"]) == []


def test_a_client_may_know_a_higher_end(brokers: dict[int, Path]) -> None:
    assert texts(brokers, until={PARTITION: 5}) == [
        f"broker {number} ends at 4, the high watermark is 5" for number in (1, 2)
    ]
