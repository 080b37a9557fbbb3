"""What the pipeline has made of it: the output topics, read to their ends again and again.

Only what is committed counts, as for everybody who reads with `read_committed`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from hightide.client.connection import ConnectionFailed
from hightide.demo.ledger import Ledger
from hightide.demo.names import REVENUE
from hightide.demo.pipeline import PipelineProcess
from hightide.demo.traffic import number_in
from hightide.spark.blocking_client import Brokers, Fetched
from hightide.spark.pipelines.status import AppStatus
from hightide.wire import batch
from hightide.wire.batch import Record
from hightide.wire.errors import KafkaError

PAUSE_S = 0.5
SHOWN = 50
LATEST = -1


def committed(fetched: Fetched, start: int, end: int) -> Iterator[Record]:
    """The records of a fetch that belong to the range and to no aborted transaction."""
    aborted = fetched.aborted
    for at, header in batch.batches(fetched.data):
        if header.is_control:
            # A transaction ends here, so the producer's next one is another matter.
            marked = header.producer_id, header.base_offset
            aborted = [each for each in aborted if each[0] != marked[0] or each > marked]
        elif not header.is_transactional or not any(
            who == header.producer_id and first <= header.base_offset for who, first in aborted
        ):
            yield from (
                record for record in batch.records(fetched.data, at) if start <= record.offset < end
            )


class Results:
    """A thread that reads topics as they grow; topics that are not there yet are waited for."""

    def __init__(
        self,
        brokers: Brokers,
        ledger: Ledger,
        run: str,
        topics: tuple[str, ...],
        pipeline: PipelineProcess | None,
    ) -> None:
        self._brokers = brokers
        self._ledger = ledger
        self._run_name = run
        self._topics = topics
        self._pipeline = pipeline
        self._positions: dict[tuple[str, int], int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-results", daemon=True)
        self.counts: dict[str, int] = dict.fromkeys(topics, 0)
        self.revenue: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.app: AppStatus | None = None
        """How the pipeline is doing."""

    def start(self) -> None:
        """Begin where the topics end now."""
        there = self._brokers.topics()
        for topic in self._topics:
            self._positions |= self._ends(topic, there.get(topic, 0))
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            # Whoever watches a cluster in trouble goes on watching.
            with contextlib.suppress(KafkaError, ConnectionFailed):
                self._look()

    def _look(self) -> None:
        there = self._brokers.topics()
        for topic in self._topics:
            for place, end in self._ends(topic, there.get(topic, 0)).items():
                start = self._positions.get(place, 0)
                if start < end:
                    self._read(place, start, end)
                    self._positions[place] = end
        if self._pipeline is not None and self._pipeline.is_running():
            self.app = self._pipeline.status() or self.app

    def _ends(self, topic: str, partitions: int) -> dict[tuple[str, int], int]:
        wanted = {(topic, partition): LATEST for partition in range(partitions)}
        return self._brokers.offsets(wanted, read_committed=True)

    def _read(self, place: tuple[str, int], start: int, end: int) -> None:
        for fetched in self._brokers.read(*place, start, end, read_committed=True):
            for record in committed(fetched, start, end):
                self.counts[place[0]] += 1
                if place[0] == REVENUE:
                    self.revenue.append(json.loads(record.value or b"{}"))
                elif (number := number_in(record.value, self._run_name)) is not None:
                    self._ledger.arrive(number)
