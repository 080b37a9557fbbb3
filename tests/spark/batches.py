"""Record batches made and read without the pipeline's own codecs: what tests compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hightide.spark.blocking_client import FetchedBatches, Identity
from hightide.wire import batch

NOBODY = Identity(-1, -1)


def made(
    values: Sequence[bytes],
    identity: Identity = NOBODY,
    sequence: int = -1,
    *,
    key: bytes | None = None,
    **named: bool,
) -> bytes:
    """One batch."""
    return bytes(
        batch.build(
            [(at, 1_000 + at, key, value, ()) for at, value in enumerate(values)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            **named,
        )
    )


def values(fetched: Iterable[FetchedBatches], start: int, end: int) -> list[bytes]:
    """The values in a range, those of aborted transactions left out."""
    found = []
    for each in fetched:
        aborted = each.aborted
        for at, header in batch.batches(each.data):
            spoiled = any(
                header.producer_id == who and header.base_offset >= first for who, first in aborted
            )
            if header.is_control:
                marked = header.producer_id, header.base_offset
                aborted = [pair for pair in aborted if pair[0] != marked[0] or pair > marked]
            elif not (header.is_transactional and spoiled):
                records = batch.records(each.data, at)
                found += [record.value for record in records if start <= record.offset < end]
    return found
