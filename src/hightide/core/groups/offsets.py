"""Committed offsets: a function of the offset records, in the order of the log.

    OffsetCommit ──▶ record ──▶ written ──▶ committed
    TxnOffsetCommit ──▶ record ──▶ written ──▶ pending ──▶ marker ──▶ committed, or dropped

Of two commits the later record wins.  The offsets of a committed transaction are ordered by their
own records, not by its marker, so that a compacted log means the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from hightide.core.groups.turn import NO_PRODUCER, Write
from hightide.wire.records.consumer_offsets import (
    NO_EXPIRY,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The committed offset of a group in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int
    record_offset: int
    """The offset of the commit's record in `__consumer_offsets`."""

    def is_expired(self, since_ms: int, now_ms: int, retention_ms: int) -> bool:
        """Whether the retention is over.  Old clients set the expiry time in the commit itself."""
        if self.expires_ms != NO_EXPIRY:
            return now_ms >= self.expires_ms
        return now_ms - since_ms >= retention_ms


_Offsets = dict[TopicPartition, CommittedOffset]


class Offsets:
    """The committed and pending offsets of all groups of a coordinator."""

    __slots__ = ("_committed", "_in_flight", "_transactional")

    def __init__(self, in_flight: Collection[Write] = ()) -> None:
        self._committed: dict[str, _Offsets] = {}
        # Written in open transactions: producer id → group → offsets.
        self._transactional: dict[int, dict[str, _Offsets]] = {}
        # All writes in flight, not only of offsets.  It changes with every commit and is needed
        # rarely, so it is scanned instead of being indexed by group.
        self._in_flight = in_flight

    def __eq__(self, other: object) -> bool:
        """Compare what a replay of the log can restore."""
        if not isinstance(other, Offsets):
            return NotImplemented
        return (self._committed, self._transactional) == (other._committed, other._transactional)

    __hash__ = None  # type: ignore[assignment]

    # -- questions -------------------------------------------------------------------------

    def of(self, group_id: str) -> _Offsets:
        """Return the committed offsets of a group.  The caller must not change the mapping."""
        return self._committed.get(group_id, {})

    def groups(self) -> list[str]:
        """Return the groups with committed offsets."""
        return list(self._committed)

    def is_in_transaction(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._transactional.values())

    def unstable(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions with an offset that is written or pending but not yet committed."""
        partitions = {_of(key) for key in self._in_flight_keys() if key.group == group_id}
        for groups in self._transactional.values():
            partitions.update(groups.get(group_id, ()))
        return partitions

    def _in_flight_keys(self) -> Iterator[OffsetCommitKey]:
        for write in self._in_flight:
            for key, _ in write.records:
                if isinstance(key, OffsetCommitKey):
                    yield key

    def is_void(self, group_id: str) -> bool:
        """Whether the group has no offsets, committed, pending or in flight."""
        return group_id not in self._committed and not self.unstable(group_id)

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """Return tombstones for all offsets of a group, including those in flight."""
        partitions = self.of(group_id).keys() | self.unstable(group_id)
        return [tombstone(group_id, partition) for partition in sorted(partitions)]

    def tombstones_of(self, topic: str) -> Iterator[GroupRecord]:
        """Yield tombstones for the offsets of all groups in a topic."""
        in_flight_groups = {key.group for key in self._in_flight_keys() if key.topic == topic}
        groups = {*self._committed, *in_flight_groups}.union(*self._transactional.values())
        for group_id in sorted(groups):
            partitions = {*self.of(group_id)}
            if group_id in in_flight_groups or self.is_in_transaction(group_id):
                partitions |= self.unstable(group_id)
            for partition in sorted(partitions):
                if partition.topic == topic:
                    yield tombstone(group_id, partition)

    # -- changes ---------------------------------------------------------------------------

    def apply(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER,
    ) -> None:
        """Apply a record that is in the log at this offset."""
        partition = _of(key)
        if value is None:
            _discard(self._committed, key.group, partition)
            for groups in self._transactional.values():
                _discard(groups, key.group, partition)
            return
        groups = self._committed
        if producer_id != NO_PRODUCER:
            groups = self._transactional.setdefault(producer_id, {})
        offsets = groups.get(key.group)
        if offsets is None:
            offsets = groups[key.group] = {}
        offsets[partition] = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            record_offset,
        )

    def transaction_ended(self, producer_id: int, is_committed: bool) -> set[str]:
        """Apply a transaction marker; return the groups with offsets in the transaction."""
        groups = self._transactional.pop(producer_id, {})
        if is_committed:
            for group_id, offsets in groups.items():
                committed = self._committed.setdefault(group_id, {})
                for partition, offset in offsets.items():
                    known = committed.get(partition)
                    if known is None or known.record_offset < offset.record_offset:
                        committed[partition] = offset
                if not committed:
                    del self._committed[group_id]
        return {*groups}


def _of(key: OffsetCommitKey) -> TopicPartition:
    # Equal to TopicPartition(…), in half the time.
    return tuple.__new__(TopicPartition, (key.topic, key.partition))


def tombstone(group_id: str, partition: TopicPartition) -> GroupRecord:
    topic, index = partition
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=index), None)


def _discard(groups: dict[str, _Offsets], group_id: str, partition: TopicPartition) -> None:
    offsets = groups.get(group_id)
    if offsets is not None:
        offsets.pop(partition, None)
        if not offsets:
            del groups[group_id]
