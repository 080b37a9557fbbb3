"""What must hold of a cluster whatever happens, looked at from outside.

The checker sees what no part of a real cluster sees: the longest prefix that any leader ever
declared committed.  The names I1 to I21 are those of the invariants in the notes of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from disk import Entry, SimLog
from messages import Partition

from hightide.core.partition import NOBODY, PartitionState, effective_min_isr

Members = Callable[[Partition, PartitionState], Iterable[tuple[int, SimLog]]]
"""The replicas that are alive in the life in which the controller counts on them."""


class Violated(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Truth:
    """What is true of one partition, beyond what its replicas know."""

    committed: list[Entry] = field(default_factory=list)
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Value: its offset, and when it was acknowledged (acks=all)."""
    sent: dict[str, int] = field(default_factory=dict)
    """Value: when it was sent."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch: who led."""
    state: PartitionState | None = None
    is_lossy: bool = False
    """An unclean election happened, or more was lost than can be survived: data may be gone."""


class Checker:
    """Is told everything, and complains."""

    def __init__(self, min_isr: int, members: Members) -> None:
        self.min_isr = min_isr
        self._members = members
        self.truths: dict[Partition, Truth] = {}

    def truth(self, partition: Partition) -> Truth:
        return self.truths.setdefault(partition, Truth())

    # -- what brokers did

    def decided(self, partition: Partition, state: PartitionState) -> None:
        """The state znode was written.  I2, I6, I21."""
        state.check()
        truth = self.truth(partition)
        before = truth.state
        if before is not None:
            if state.leader_epoch < before.leader_epoch:
                raise Violated(f"I21 leader epoch of {partition} went back: {before} {state}")
            if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
                raise Violated(f"I4 {partition} changed its leader within an epoch: {state}")
        if state.elr and len(state.isr) >= effective_min_isr(self.min_isr, state.replicas):
            raise Violated(f"I6 {partition} has an ELR with enough in sync: {state}")
        if state.is_recovering and (before is None or not before.is_recovering):
            truth.is_lossy = True
        truth.state = state
        if not truth.is_lossy:
            for member, log in self._members(partition, state):
                self._has(partition, f"I2 member {member}", log, len(truth.committed))

    def leads(
        self, partition: Partition, broker_id: int, state: PartitionState, log: SimLog
    ) -> None:
        """A broker took up leading.  I4, and that a leader has everything that is committed."""
        truth = self.truth(partition)
        other = truth.leaders.setdefault(state.leader_epoch, broker_id)
        if other != broker_id:
            raise Violated(
                f"I4 {partition} has two leaders in epoch {state.leader_epoch}:"
                f" {other} and {broker_id}"
            )
        current = truth.state
        is_current = current is not None and current.leader_epoch == state.leader_epoch
        if is_current and not state.is_recovering and not truth.is_lossy:
            self._has(partition, f"I2 the new leader {broker_id}", log, len(truth.committed))

    def committed(
        self,
        partition: Partition,
        broker_id: int,
        state: PartitionState,
        log: SimLog,
        high_watermark: int,
    ) -> None:
        """A leader's high watermark moved.  I2, I3, I7, I8."""
        truth = self.truth(partition)
        if len(state.isr) < effective_min_isr(self.min_isr, state.replicas):
            raise Violated(f"I7 {partition} committed with {state.isr} in sync")
        known = truth.committed
        if truth.is_lossy:
            if (
                high_watermark >= len(known)
                or log.entries[:high_watermark] != known[:high_watermark]
            ):
                truth.committed = log.entries[:high_watermark]
            return
        start = len(known)
        for offset in range(min(start, high_watermark)):
            if log.entries[offset] != known[offset]:
                raise Violated(
                    f"I8 {partition} offset {offset}: {known[offset]} was committed,"
                    f" {broker_id} has {log.entries[offset]}"
                )
        known += log.entries[start:high_watermark]
        if high_watermark > start and truth.state is not None:
            for member, copy in self._members(partition, truth.state):
                self._has(partition, f"I2 member {member}", copy, high_watermark, start)

    def truncates(
        self, partition: Partition, broker_id: int, broker_epoch: int, end_offset: int
    ) -> None:
        """I13: who is counted on cuts nothing that is committed.  Others may have to: their logs
        may part from the leader's further back."""
        truth = self.truth(partition)
        state = truth.state
        if truth.is_lossy or state is None:
            return
        is_counted_on = state.broker_epochs.get(broker_id) == broker_epoch
        if is_counted_on and end_offset < len(truth.committed):
            raise Violated(
                f"I13 {broker_id} truncates {partition} to {end_offset},"
                f" {len(truth.committed)} are committed"
            )

    def _has(
        self, partition: Partition, who: str, log: SimLog, end_offset: int, start: int = 0
    ) -> None:
        known = self.truth(partition).committed
        if log.end_offset < end_offset:
            raise Violated(f"{who} of {partition} ends at {log.end_offset}, not {end_offset}")
        if log.entries[start:end_offset] != known[start:end_offset]:
            raise Violated(f"{who} of {partition} has other records below {end_offset}")

    # -- what clients saw

    def sends(self, partition: Partition, value: str, now_ms: int) -> None:
        self.truth(partition).sent[value] = now_ms

    def acks(self, partition: Partition, value: str, offset: int, now_ms: int) -> None:
        truth = self.truth(partition)
        truth.acked[value] = (offset, now_ms)
        if truth.is_lossy:
            return
        if offset >= len(truth.committed) or truth.committed[offset].value != value:
            raise Violated(f"I1 {value} was acknowledged at {offset} of {partition} uncommitted")

    def reads(self, partition: Partition, offset: int, entries: Iterable[Entry]) -> None:
        """I9: nobody is shown what is not committed."""
        truth = self.truth(partition)
        if truth.is_lossy:
            return
        for at, entry in enumerate(entries, offset):
            if at >= len(truth.committed) or truth.committed[at] != entry:
                raise Violated(f"I9 a consumer was shown {entry} at {at} of {partition}")

    # -- at the end

    def finished(self, logs: dict[Partition, dict[int, tuple[Any, SimLog]]]) -> None:
        """After everything healed.  I1, I3, I10 and liveness."""
        for partition, truth in self.truths.items():
            state = truth.state
            if state is None:
                continue
            if state.leader == NOBODY:
                raise Violated(f"L1 nobody leads {partition}: {state}")
            if set(state.isr) != set(state.replicas):
                raise Violated(f"L4 not all are in sync: {partition} {state}")
            leader = logs[partition][state.leader][1]
            for broker_id in state.replicas:
                if logs[partition][broker_id][1].entries != leader.entries:
                    raise Violated(f"I3 {broker_id} and the leader of {partition} differ")
            if not truth.is_lossy:
                self._nothing_is_lost(partition, truth, leader)
            self._in_order(partition, truth)

    def _nothing_is_lost(self, partition: Partition, truth: Truth, leader: SimLog) -> None:
        for value, (offset, _) in truth.acked.items():
            if offset >= leader.end_offset or leader.entries[offset].value != value:
                raise Violated(f"I1 {value}, acknowledged at {offset} of {partition}, is lost")

    def _in_order(self, partition: Partition, truth: Truth) -> None:
        if truth.is_lossy:
            return
        acked = sorted((at, offset) for offset, at in truth.acked.values())
        sent = sorted((truth.sent[value], offset) for value, (offset, _) in truth.acked.items())
        highest, done = -1, 0
        for sent_ms, offset in sent:
            while done < len(acked) and acked[done][0] < sent_ms:
                highest = max(highest, acked[done][1])
                done += 1
            if offset <= highest:
                raise Violated(f"I10 {partition}: {offset} was sent after {highest} was done")
