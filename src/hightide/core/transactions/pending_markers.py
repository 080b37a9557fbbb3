"""The markers that end transactions, waiting to be written by the leaders of their partitions.

    add(ending) ──▶ due(leader_of) ──▶ WriteTxnMarkers, one at a time per broker
                        ▲                  ├─▶ answered ──▶ Progress ──▶ Coordinator.marked
                        └── again later ◀──┴─▶ unanswered

One `PendingMarkers` serves all coordinators of a broker: markers for the same leader share a
request.  A marker is sent until its partition has it, to the leader of the moment; markers for
partitions without a leader wait.  Deleted partitions need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from itertools import groupby
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition
from hightide.core.partition.state import NO_BROKER
from hightide.core.transactions.transaction_coordinator import Ending
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

RETRY_MS = 50
MOST_AT_ONCE = 1_000
MOST_PARTITIONS_AT_ONCE = 20_000

_DONE = (
    ErrorCode.NONE,
    # A partition that cannot take a marker has not taken the transaction's records either.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_VERSION,
)
# Only a newer coordinator can have made a newer epoch of the producer, or its own, known there.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)

_Unsent = dict[Ending, set[Partition]]


class Progress(NamedTuple):
    """Progress of a transaction's markers, to report to its coordinator."""

    ending: Ending
    marked: frozenset[Partition]
    is_fenced: bool = False


class Due(NamedTuple):
    """The requests to send, by broker, and progress that needs no request."""

    requests: dict[int, WriteTxnMarkersRequest]
    progress: list[Progress]


class PendingMarkers:
    """The markers that a broker must deliver."""

    __slots__ = ("_again_ms", "_later", "_ready", "_sent")

    def __init__(self) -> None:
        self._ready: _Unsent = {}
        # Markers that could not be delivered, and when to try again.
        self._later: _Unsent = {}
        self._again_ms = 0
        self._sent: dict[int, list[tuple[Ending, frozenset[Partition]]]] = {}

    def add(self, ending: Ending) -> None:
        self._ready[ending] = set(ending.partitions)

    def drop(self, endings: Iterable[Ending]) -> None:
        """Drop the markers of coordinators that ended.  Late responses for them are ignored."""
        for ending in endings:
            self._ready.pop(ending, None)
            self._later.pop(ending, None)
            for broker, sent in self._sent.items():
                self._sent[broker] = [entry for entry in sent if entry[0] != ending]

    def due(self, leader_of: Callable[[Partition], int | None], now_ms: int) -> Due:
        """Return what can be sent now.  `leader_of` returns NO_BROKER for a partition without a
        leader, and None for one that does not exist (any more).

        Call this whenever markers were added, a request was answered or timed out, and at the
        deadline.
        """
        if now_ms >= self._again_ms:
            for ending, partitions in self._later.items():
                self._ready.setdefault(ending, set()).update(partitions)
            self._later.clear()
        unsent, self._ready = self._ready, {}
        batches: dict[int, dict[Ending, set[Partition]]] = {}
        counts: dict[int, int] = {}
        progress: list[Progress] = []
        for ending, partitions in unsent.items():
            gone = set()
            for partition in sorted(partitions):
                leader = leader_of(partition)
                if leader is None:
                    gone.add(partition)
                elif leader == NO_BROKER:
                    self._postpone(ending, {partition}, now_ms)
                else:
                    batch = batches.setdefault(leader, {})
                    count = counts[leader] = counts.get(leader, 0) + 1
                    has_room = ending in batch or len(batch) < MOST_AT_ONCE
                    has_room = has_room and count <= MOST_PARTITIONS_AT_ONCE
                    fits = has_room and leader not in self._sent
                    queue = batch if fits else self._ready
                    queue.setdefault(ending, set()).add(partition)
            if gone:
                progress.append(Progress(ending, frozenset(gone)))
        sent = {broker: batch for broker, batch in batches.items() if batch}
        for broker, batch in sent.items():
            self._sent[broker] = [(ending, frozenset(batch[ending])) for ending in batch]
        return Due({broker: _request(self._sent[broker]) for broker in sent}, progress)

    def deadline_ms(self) -> int | None:
        """Return when to call `due` again, or None."""
        return self._again_ms if self._later else None

    def answered(
        self, broker: int, response: WriteTxnMarkersResponse, now_ms: int
    ) -> list[Progress]:
        """A request was answered.  Return the progress; the rest is sent again."""
        errors = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        progress = []
        for ending, partitions in self._sent.pop(broker, ()):
            # A partition that the response does not mention has no marker.
            found = {
                partition: errors.get(
                    (ending.producer.id, *partition), ErrorCode.UNKNOWN_SERVER_ERROR
                )
                for partition in partitions
            }
            if any(error in _FENCED for error in found.values()):
                progress.append(Progress(ending, frozenset(), is_fenced=True))
                self.drop([ending])
                continue
            done = {partition for partition, error in found.items() if error in _DONE}
            if done:
                progress.append(Progress(ending, frozenset(done)))
            self._postpone(ending, partitions - done, now_ms)
        return progress

    def unanswered(self, broker: int, now_ms: int) -> list[Ending]:
        """No response came.  The markers may be written or not, and are sent again; return their
        endings."""
        sent = self._sent.pop(broker, [])
        for ending, partitions in sent:
            self._postpone(ending, partitions, now_ms)
        return [ending for ending, _ in sent]

    def _postpone(self, ending: Ending, partitions: Set[Partition], now_ms: int) -> None:
        if not partitions:
            return
        if not self._later:
            self._again_ms = now_ms + RETRY_MS
        self._later.setdefault(ending, set()).update(partitions)


def _request(sent: list[tuple[Ending, frozenset[Partition]]]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=ending.producer.id,
                producer_epoch=ending.producer.epoch,
                transaction_result=ending.is_commit,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=[i for _, i in group])
                    for name, group in groupby(sorted(partitions), key=lambda p: p[0])
                ],
                coordinator_epoch=ending.coordinator_epoch,
                transaction_version=ending.version,
            )
            for ending, partitions in sent
        ]
    )
