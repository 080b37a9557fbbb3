"""Committed offsets: a function of the offset records in the log, in the order of the log.

    commit ──▶ record ──▶ written ──▶ committed
    commit in a transaction ──▶ record ──▶ written ──▶ held back ──▶ marker ──▶ committed, or not

Of two commits the later record counts.  A transaction that commits is as late as its records are,
not as its marker is: what compaction leaves of the log must mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hightide.core.groups.turn import NO_PRODUCER
from hightide.wire.records.consumer_offsets import (
    NO_EXPIRY,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Committed(NamedTuple):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int
    record_offset: int
    """Where in the log the commit is."""

    def is_expired(self, since_ms: int, now_ms: int, retention_ms: int) -> bool:
        """A commit may bring a time of its own, as those of old clients do."""
        if self.expires_ms != NO_EXPIRY:
            return now_ms >= self.expires_ms
        return now_ms - since_ms >= retention_ms


_Offsets = dict[TopicPartition, Committed]


class Offsets:
    """The offsets of all groups of a coordinator."""

    __slots__ = ("_committed", "_in_flight", "_transactional")

    def __init__(self) -> None:
        self._committed: dict[str, _Offsets] = {}
        # What is being written and may still fail, with the number of writes.
        self._in_flight: dict[str, dict[TopicPartition, int]] = {}
        # Written in transactions that have not ended: producer id → group → offsets.
        self._transactional: dict[int, dict[str, _Offsets]] = {}

    def __eq__(self, other: object) -> bool:
        """Equal in what a replay of the log can know."""
        if not isinstance(other, Offsets):
            return NotImplemented
        return (self._committed, self._transactional) == (other._committed, other._transactional)

    __hash__ = None  # type: ignore[assignment]

    # -- questions -------------------------------------------------------------------------

    def of(self, group_id: str) -> _Offsets:
        """What the group has committed.  Not to be changed."""
        return self._committed.get(group_id, {})

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether another offset may turn out to be committed already."""
        return partition in self._in_flight.get(group_id, ()) or any(
            partition in groups.get(group_id, ()) for groups in self._transactional.values()
        )

    def is_in_transaction(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._transactional.values())

    def unstable(self, group_id: str) -> set[TopicPartition]:
        found = set(self._in_flight.get(group_id, ()))
        for groups in self._transactional.values():
            found.update(groups.get(group_id, ()))
        return found

    def is_void(self, group_id: str) -> bool:
        """Whether the group has no offsets and none are on their way."""
        return (
            group_id not in self._committed
            and group_id not in self._in_flight
            and not self.is_in_transaction(group_id)
        )

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """What takes back all that the group has, and all that is on its way."""
        partitions = self.of(group_id).keys() | self.unstable(group_id)
        return [tombstone(group_id, each) for each in sorted(partitions)]

    def tombstones_of(self, topic: str) -> Iterator[GroupRecord]:
        """What takes back the offsets that any group has in a topic."""
        groups = {*self._committed, *self._in_flight}.union(*self._transactional.values())
        for group_id in sorted(groups):
            partitions = self.of(group_id).keys() | self.unstable(group_id)
            for each in sorted(partitions):
                if each.topic == topic:
                    yield tombstone(group_id, each)

    # -- changes ---------------------------------------------------------------------------

    def begun(self, key: OffsetCommitKey) -> None:
        """A record is being written."""
        partitions = self._in_flight.get(key.group)
        if partitions is None:
            partitions = self._in_flight[key.group] = {}
        partition = _of(key)
        partitions[partition] = partitions.get(partition, 0) + 1

    def ended(self, key: OffsetCommitKey) -> None:
        """It has been written, or not."""
        partitions = self._in_flight[key.group]
        partition = _of(key)
        count = partitions[partition]
        if count > 1:
            partitions[partition] = count - 1
            return
        del partitions[partition]
        if not partitions:
            del self._in_flight[key.group]

    def apply(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER,
    ) -> None:
        """A record is in the log at this offset."""
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
        offsets[partition] = Committed(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            record_offset,
        )

    def transaction_ended(self, producer_id: int, is_committed: bool) -> set[str]:
        """The marker is in the log.  Returns the groups that the transaction touched."""
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
    # As TopicPartition(…) makes it, in half the time: it is done three times for each offset.
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
