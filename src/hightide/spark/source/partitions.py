"""The partitions that a query reads, and where their logs start and end.

The driver asks before each micro-batch, so this asks for little: the topics at most once per
second, and the ends of all logs with one request to each leader.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from hightide.client.retry import Backoff
from hightide.spark.source.batch_plan import changes
from hightide.spark.source.offsets import (
    EARLIEST,
    LATEST,
    LogEnd,
    Offsets,
    Position,
    PositionError,
    TopicPartition,
    questions,
    resolved,
)
from hightide.spark.source.source_options import PREFIX, SourceOptions
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.spark.blocking_client import BlockingClient

_log = logging.getLogger(__name__)


class Partitions:
    """The partitions of one query. No broker is asked before it is necessary."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._found: list[TopicPartition] = []
        self._asked_at = float("-inf")
        # A topic was deleted: list all topics, because asking for one by name retries for long.
        self._is_one_missing = False

    @property
    def _brokers(self) -> BlockingClient:
        from hightide.spark.blocking_client import shared_client

        return shared_client(self._options.client)

    def now(self, *, again: bool = False) -> list[TopicPartition]:
        """Return all partitions, as of a moment ago."""
        age_ms = (time.monotonic() - self._asked_at) * 1000
        if again or age_ms >= self._options.metadata_age_ms:
            self._found = self._ask()
            self._asked_at = time.monotonic()
        return self._found

    def _ask(self) -> list[TopicPartition]:
        wanted = self._options.subscription
        if wanted.partitions:
            counts = self._existing(sorted({topic for topic, _ in wanted.partitions}))
            return [
                partition
                for partition in wanted.partitions
                if partition[1] < counts.get(partition[0], 0)
            ]
        if wanted.pattern:
            matches = re.compile(wanted.pattern).fullmatch
            counts = {
                topic: count for topic, count in self._brokers.topics().items() if matches(topic)
            }
        else:
            counts = self._existing(wanted.topics)
        return [(topic, index) for topic, count in sorted(counts.items()) for index in range(count)]

    def _existing(self, names: Collection[str]) -> dict[str, int]:
        """Return the topics that exist; the query itself reports a deleted one."""
        if not self._is_one_missing:
            try:
                return self._brokers.topics(sorted(names))
            except KafkaError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        found = {topic: count for topic, count in self._brokers.topics().items() if topic in names}
        self._is_one_missing = len(found) < len(names)
        return found

    def check(self) -> None:
        """Check names before a query starts, so that it does not wait for a misspelt topic."""
        from hightide.spark.blocking_client import ignored_options

        wanted = self._options.subscription
        names = set(wanted.topics) | {topic for topic, _ in wanted.partitions}
        if names:
            counts = self._brokers.topics(sorted(names))
            for topic, partition in wanted.partitions:
                if partition >= counts[topic]:
                    raise PositionError(
                        f"Partition {partition} of {topic!r} is assigned to the query, but the "
                        f"topic has {counts[topic]} partitions."
                    )
        ignored = ignored_options(self._options.client)
        if ignored:
            _log.warning(
                "These options have no effect: %s.",
                ", ".join(PREFIX + name for name in ignored),
            )

    def latest(self, known: Mapping[TopicPartition, int]) -> Offsets:
        """Return the ends of the logs.

        A leader that has just been elected may not know its high watermark yet, and a broker that
        has just started may not know all topics. So an end before a known offset is asked for again
        before it is believed. A topic may also be deleted between two requests.
        """
        interval_s = self._options.retry_interval_ms / 1000
        backoff = Backoff.every(interval_s, attempts=self._options.retries)
        again = False
        while True:
            try:
                found = self._offsets(dict.fromkeys(self.now(again=again), LATEST))
                differs = changes(known, found)
                if backoff.is_over or not (differs.behind or differs.gone):
                    return found
            except KafkaError as error:
                if backoff.is_over or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            backoff.sleep()
            again = True

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the start offsets of some logs."""
        return self._offsets(dict.fromkeys(sorted(partitions), EARLIEST))

    def resolve(self, position: Position, latest: Mapping[TopicPartition, int]) -> Offsets:
        """Return the offsets of a position, for the partitions whose ends are given."""
        if position == LogEnd(LATEST):
            return dict(latest)
        wanted = questions(position, latest)
        known = {
            partition: latest[partition] for partition, asked in wanted.items() if asked == LATEST
        }
        answers = self._offsets(
            {partition: wanted[partition] for partition in wanted if partition not in known}
        )
        return resolved(position, answers | known, latest)

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        return self._brokers.offsets(wanted, read_committed=self._options.read_committed)
