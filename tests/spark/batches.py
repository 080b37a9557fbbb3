"""Record batches made and parsed without the pipeline's codecs, for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hightide.spark.blocking_client import FetchedBatches, Identity
from hightide.wire import batch

NO_PRODUCER = Identity(-1, -1)


def made(
    values: Sequence[bytes],
    identity: Identity = NO_PRODUCER,
    sequence: int = -1,
    *,
    key: bytes | None = None,
    **named: Any,
) -> bytes:
    """Return one batch."""
    return bytes(
        batch.build(
            [(at, 1_000 + at, key, value, ()) for at, value in enumerate(values)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            **named,
        )
    )


def values(fetched: Iterable[FetchedBatches], start: int, end: int) -> list[bytes | None]:
    """Return the values in a range, without those of aborted transactions."""
    found = []
    for response in fetched:
        aborted = response.aborted
        for at, header in batch.batches(response.data):
            is_aborted = any(
                header.producer_id == producer_id and header.base_offset >= first
                for producer_id, first in aborted
            )
            if header.is_control:
                marked = header.producer_id, header.base_offset
                aborted = [pair for pair in aborted if pair[0] != marked[0] or pair > marked]
            elif not (header.is_transactional and is_aborted):
                records = batch.records(response.data, at)
                found += [record.value for record in records if start <= record.offset < end]
    return found
