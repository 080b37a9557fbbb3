"""Committed offsets: a function of the offset records in the log, in the order of the log.

    commit ──▶ record ──▶ written ──▶ committed
    commit in a transaction ──▶ record ──▶ written ──▶ held back ──▶ marker ──▶ committed, or not

Of two commits the later record counts.  A transaction that commits is as late as its records are,
not as its marker is: what compaction leaves of the log must mean the same.
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

    __slots__ = ("_committed", "_transactional", "_under_way")

    def __init__(self, under_way: Collection[Write] = ()) -> None:
        self._committed: dict[str, _Offsets] = {}
        # Written in transactions that have not ended: producer id → group → offsets.
        self._transactional: dict[int, dict[str, _Offsets]] = {}
        # What is being written, of offsets and of anything else.  It is asked for so seldom, and
        # changes so often, that it is looked through instead of being kept by groups.
        self._under_way = under_way

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

    def is_in_transaction(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._transactional.values())

    def unstable(self, group_id: str) -> set[TopicPartition]:
        """Where another offset may turn out to be committed already."""
        found = {_of(key) for key in self._on_their_way() if key.group == group_id}
        for groups in self._transactional.values():
            found.update(groups.get(group_id, ()))
        return found

    def _on_their_way(self) -> Iterator[OffsetCommitKey]:
        for write in self._under_way:
            for key, _ in write.records:
                if isinstance(key, OffsetCommitKey):
                    yield key

    def is_void(self, group_id: str) -> bool:
        """Whether the group has no offsets and none are on their way."""
        return group_id not in self._committed and not self.unstable(group_id)

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """What takes back all that the group has, and all that is on its way."""
        partitions = self.of(group_id).keys() | self.unstable(group_id)
        return [tombstone(group_id, each) for each in sorted(partitions)]

    def tombstones_of(self, topic: str) -> Iterator[GroupRecord]:
        """What takes back the offsets that any group has in a topic."""
        on_their_way = {key.group for key in self._on_their_way() if key.topic == topic}
        groups = {*self._committed, *on_their_way}.union(*self._transactional.values())
        for group_id in sorted(groups):
            partitions = {*self.of(group_id)}
            if group_id in on_their_way or self.is_in_transaction(group_id):
                partitions |= self.unstable(group_id)
            for each in sorted(partitions):
                if each.topic == topic:
                    yield tombstone(group_id, each)

    # -- changes ---------------------------------------------------------------------------

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
    # As TopicPartition(…) makes it, in half the time.
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
