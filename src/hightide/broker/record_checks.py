"""Checks the records of large batches in threads, off the event loop.

    Produce ──▶ small: `Log.append` walks the records ──────────────────────────▶ log
           └──▶ large: a copy of the batch ──▶ thread: inflate, walk, recompress ─┘

A Produce that waits for this stays in the buffer of its connection, which serves nothing else
meanwhile, as for a verification (`broker/transactions/partition_verifier.py`).  So a producer's
batches stay in order.  The batch that was checked is the one that is appended: the thread works on
a copy, and the copy is stored.

The threads are those of the `WorkPool`, which limits the bytes of the batches that it works on.  A
decompressed batch is limited by itself (`max.decompressed.message.bytes`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from hightide.broker.network.connection import CHECKING, Connection
from hightide.broker.work_pool import WorkPool
from hightide.log.batch_validation import CheckedBatch, ValidationRules, check_records
from hightide.wire.errors import KafkaError

log = logging.getLogger(__name__)


class UncheckedBatch(NamedTuple):
    """A batch whose records must be checked, at a position in its request."""

    position: int
    batch: bytearray
    rules: ValidationRules


class RecordChecks:
    """Checks batches for all connections of a broker, in the order of their arrival."""

    def __init__(self, pool: WorkPool) -> None:
        self._pool = pool
        self._checking: set[asyncio.Task[None]] = set()

    def start(self, connection: Connection, batches: list[UncheckedBatch]) -> None:
        """Check the batches of a Produce request, which is served again when all are checked."""
        checking = asyncio.get_running_loop().create_task(self._check(connection, batches))
        self._checking.add(checking)
        checking.add_done_callback(self._checking.discard)

    async def _check(self, connection: Connection, batches: list[UncheckedBatch]) -> None:
        usage = connection.usage_of_checks
        try:
            for position, batch, rules in batches:
                if connection.is_closed:
                    return
                usage.asked()
                verdict = await self._pool.run(usage, len(batch), _verdict, batch, rules)
                connection.checked[position] = verdict
            connection.unblock(CHECKING)
        except Exception:
            log.exception("checking the records of a request failed")
            connection.abort("a request failed inside the broker")

    async def stop(self) -> None:
        """Cancel all checks; their connections are closed."""
        for checking in self._checking:
            checking.cancel()
        if self._checking:
            await asyncio.wait(self._checking)


def _verdict(batch: bytearray, rules: ValidationRules) -> CheckedBatch | KafkaError:
    try:
        return check_records(batch, rules)
    except KafkaError as refusal:
        return refusal.copied()
