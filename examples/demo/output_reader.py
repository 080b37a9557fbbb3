"""Reads the pipeline's output topics to their ends, again and again.

It reads with isolation level `read_committed`, so records of aborted transactions do not count.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from examples.demo.order_check import OrderCheck
from examples.demo.pipeline import PipelineProcess
from examples.demo.topics import REVENUE
from examples.demo.traffic import order_number
from hightide.client.broker_connection import ConnectionFailed
from hightide.spark.blocking_client import BlockingClient, FetchedBatches
from hightide.spark.pipelines.status import AppStatus
from hightide.wire import batch
from hightide.wire.batch import Record
from hightide.wire.errors import KafkaError

PAUSE_S = 0.5
REVENUE_ROWS = 50
LATEST = -1


def committed(fetched: FetchedBatches, start: int, end: int) -> Iterator[Record]:
    """Yield the records of a fetch that are in the range and in no aborted transaction."""
    aborted = fetched.aborted
    for at, header in batch.batches(fetched.data):
        if header.is_control:
            # The marker ends a transaction; the producer's next one has its own outcome.
            marker = header.producer_id, header.base_offset
            aborted = [entry for entry in aborted if entry[0] != marker[0] or entry > marker]
        elif not header.is_transactional or not any(
            producer_id == header.producer_id and first_offset <= header.base_offset
            for producer_id, first_offset in aborted
        ):
            yield from (
                record for record in batch.records(fetched.data, at) if start <= record.offset < end
            )


class OutputReader:
    """A thread that reads topics as they grow, and waits for topics that do not exist yet."""

    def __init__(
        self,
        brokers: BlockingClient,
        check: OrderCheck,
        run: str,
        topics: tuple[str, ...],
        pipeline: PipelineProcess | None,
    ) -> None:
        self._brokers = brokers
        self._check = check
        self._run_name = run
        self._topics = topics
        self._pipeline = pipeline
        self._positions: dict[tuple[str, int], int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-output-reader", daemon=True)
        self.revenue: deque[dict[str, Any]] = deque(maxlen=REVENUE_ROWS)
        self.app: AppStatus | None = None
        """The pipeline's latest status."""

    def start(self) -> None:
        """Start at the current ends of the topics."""
        existing = self._brokers.topics()
        for topic in self._topics:
            self._positions |= self._ends(topic, existing.get(topic, 0))
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            # The demo kills brokers, so requests fail now and then; read again.
            with contextlib.suppress(KafkaError, ConnectionFailed):
                self._poll()

    def _poll(self) -> None:
        existing = self._brokers.topics()
        for topic in self._topics:
            for partition, end in self._ends(topic, existing.get(topic, 0)).items():
                start = self._positions.get(partition, 0)
                if start < end:
                    self._read(partition, start, end)
                    self._positions[partition] = end
        if self._pipeline is not None and self._pipeline.is_running():
            self.app = self._pipeline.status() or self.app

    def _ends(self, topic: str, partitions: int) -> dict[tuple[str, int], int]:
        wanted = {(topic, partition): LATEST for partition in range(partitions)}
        return self._brokers.offsets(wanted, read_committed=True)

    def _read(self, partition: tuple[str, int], start: int, end: int) -> None:
        for fetched in self._brokers.read(*partition, start, end, read_committed=True):
            for record in committed(fetched, start, end):
                if partition[0] == REVENUE:
                    self.revenue.append(json.loads(record.value or b"{}"))
                elif (number := order_number(record.value, self._run_name)) is not None:
                    self._check.add_read_back(number)
