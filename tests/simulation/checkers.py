"""The invariants of a cluster, checked from outside.

The checker sees what no part of a real cluster sees: the longest prefix that any leader ever
declared committed, and every log.  These methods check the invariants:

    I1  nothing acknowledged is lost        acks, decided (recovery), leads; finished
    I2  ISR and ELR have all of it          decided, committed, leads
    I3  logs agree below high watermarks    committed, heard, shows; finished: they are equal
    I4  one leader and start per epoch      decided, leads; epochs in a log rise: SimLog.append
    I5  high watermarks and ends never      committed, and Leader.check after every fact
        go back, and are reached by all
        of the maximal ISR
    I6  maximal ISR ⊇ ISR of the            decided, committed; PartitionState.check
        controller; ELR only if too few
    I7  nothing is committed with too few   committed
    I8  an offset's record never changes    committed, reads (what is committed only grows)
    I9  no reader sees uncommitted data     shows, reads, nominates (KIP-392)
    I10 real time: later is behind, what    finished, tells_end
        is acknowledged can be read
    I11 only the newest controller writes;  decided, published
        no broker obeys an older one, or a
        request for a former broker epoch
    I12 an unclean restart leaves ISR and   decided, with fetched and registered
        ELR until it has fetched again
    I13 ISR and ELR truncate nothing        truncates; Leading.fetch: a fetch that diverges
        that is committed                   is ignored
    I21 states change by compare and set,   decided, published
        epochs never go back
    I22 recovery keeps a prefix             SimLog.recover
        log starts ≤ high watermark, and    deletes; finished
        followers learn of them
    I25 a leader that was replaced and      serves
        has no session stops serving
    L1, L3, L4, L7 and rest                 finished
    L2  sends are answered, readers read    Simulation._rest
        to the end

A partition may lose data if an unclean election was allowed, or if more replicas lost data than
`min.insync.replicas` provides for.  Only the other invariants hold for such a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hightide.core.metadata.image import ImageUpdate
from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr
from hightide.wire.errors import ErrorCode
from tests.simulation.disk import NOTHING, Entry, SimLog
from tests.simulation.messages import Partition

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker
    from tests.simulation.following_shell import Following
    from tests.simulation.leading_shell import Leading
    from tests.simulation.shape import Shape


class Violated(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Truth:
    """Facts of one partition that no replica knows alone."""

    committed: list[Entry] = field(default_factory=list)
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Value: its offset, and when it was acknowledged (acks=all)."""
    sent: dict[str, int] = field(default_factory=dict)
    """Value: when it was sent."""
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Leader epoch: the leader, and its incarnation."""
    led_since_ms: dict[int, int] = field(default_factory=dict)
    """Leader epoch: when its leader began to lead."""
    fetched: dict[tuple[int, int, int], None] = field(default_factory=dict)
    """The replicas that have fetched, each with its broker epoch and leader epoch."""
    state: PartitionState | None = None
    deleted_offset: int = 0
    """No request ever deleted records from this offset on."""
    is_lossy: bool = False
    """Data may be lost without a bug: too many disks were lost, or an election was unclean."""


class Checker:
    """Gets every event of a run, and raises when an invariant is violated."""

    def __init__(self, shape: Shape, brokers: dict[int, SimBroker]) -> None:
        self._shape = shape
        self._brokers = brokers
        self.truths: dict[Partition, Truth] = {}
        self.controller = ""
        """The controller that was elected last."""
        self.lost: dict[int, None] = {}
        """Brokers that have lost data since all replicas were in sync."""
        # Broker epoch: the broker epoch that it continues after a clean shutdown.
        self._previous: dict[tuple[int, int], int] = {}
        # Incarnation of a broker: the newest controller and partition epochs that it knows.
        self._heard: dict[tuple[int, int], int] = {}
        self._known_epochs: dict[tuple[int, int, Partition], int] = {}
        # The offset up to which a leader's log has been compared with the committed records.
        self._compared: dict[tuple[Partition, int], int] = {}

    def truth(self, partition: Partition) -> Truth:
        truth = self.truths.get(partition)
        if truth is None:
            truth = self.truths[partition] = Truth()
        return truth

    def committed_offset(self, partition: Partition) -> int:
        return len(self.truth(partition).committed)

    def is_current(self, leading: Leading) -> bool:
        """Return whether the broker is the leader that the controller knows."""
        state = self.truth(leading.partition).state
        return state is not None and state.leader_epoch == leading.machine.state.leader_epoch

    # -- decisions of the controller -------------------------------------------------------

    def decided(self, partition: Partition, state: PartitionState, writer: str) -> None:
        """The state znode was written.  I1, I2, I4, I6, I11, I12, I21."""
        state.check()
        truth = self.truth(partition)
        before, truth.state = truth.state, state
        if writer != self.controller:
            raise Violated(f"I11 {writer} wrote {state}, the controller is {self.controller}")
        if before is not None:
            self._follows(partition, before, state)
        least = effective_min_isr(self._shape.min_isr, state.replicas)
        if state.elr and len(state.isr) >= least and not self._shape.is_reconfigured:
            raise Violated(f"I6 {partition} has an ELR with enough in sync: {state}")
        if state.is_recovering and (before is None or before.leader_epoch < state.leader_epoch):
            self._recovers(partition, truth, before, state)
        if not truth.is_lossy:
            for member, log in self._members(partition, state):
                self._has(partition, f"I2 member {member}", log, len(truth.committed))
        self._counts_all(partition, state)

    def _follows(self, partition: Partition, before: PartitionState, state: PartitionState) -> None:
        if state.partition_epoch != before.partition_epoch + 1:
            raise Violated(f"I21 {partition} was not compared and set: {before} {state}")
        if state.leader_epoch < before.leader_epoch:
            raise Violated(f"I21 leader epoch of {partition} went back: {before} {state}")
        if state.leader != before.leader and state.leader_epoch == before.leader_epoch:
            raise Violated(f"I4 {partition} changed its leader within an epoch: {before} {state}")
        known = before.broker_epochs
        for member in state.isr + state.elr:
            epoch = state.broker_epochs[member]
            is_known = epoch == known.get(member) or (
                member in known and self._previous.get((member, epoch)) == known[member]
            )
            has_fetched = (member, epoch, before.leader_epoch) in self.truth(partition).fetched
            was_needed = state.is_recovering and member == state.leader
            if not (is_known or has_fetched or was_needed):
                raise Violated(f"I12 {partition} counts on {member} untried: {before} {state}")

    def _recovers(
        self,
        partition: Partition,
        truth: Truth,
        before: PartitionState | None,
        state: PartitionState,
    ) -> None:
        """Check an elected leader that may lack committed records.  With unclean election, the
        previous leader may continue for a while, and what it commits is lost.  Without it, no
        member of the last ISR and ELR may have a committed record that the leader lacks."""
        truth.is_lossy = truth.is_lossy or self._shape.unclean
        broker = self._brokers[state.leader]
        if not broker.is_up or not broker.is_read:
            return  # it has died since, and another election must follow
        log = broker.logs.get(partition) or SimLog()
        if not truth.is_lossy and before is not None:
            self._is_longest(partition, log, before)
        try:
            self._has(partition, "I1 the recovering leader", log, len(truth.committed))
        except Violated:
            if not (truth.is_lossy or self.lost):
                raise
            truth.is_lossy = True

    def _is_longest(self, partition: Partition, log: SimLog, before: PartitionState) -> None:
        known = self.truth(partition).committed
        kept = _common_end(log, known)
        for member in before.last_known_elr:
            other = self._brokers[member]
            if other.is_up and other.is_read:
                more = _common_end(other.logs.get(partition) or SimLog(), known)
                if more > kept:
                    raise Violated(
                        f"I1 recovery of {partition} keeps {kept} committed records, {member} has"
                        f" {more}: {before}"
                    )

    def _counts_all(self, partition: Partition, state: PartitionState) -> None:
        """I6: the leader waits for every replica that the controller counts on."""
        broker = self._brokers.get(state.leader)
        role = broker.roles.get(partition) if broker is not None and broker.is_up else None
        if role is not None and role.machine.state.leader_epoch == state.leader_epoch:
            counted = getattr(role.machine, "maximal_isr", ())
            if not set(state.isr) <= set(counted):
                raise Violated(f"I6 {state.leader} waits for {counted} only: {partition} {state}")

    def _members(self, partition: Partition, state: PartitionState) -> Iterator[tuple[int, SimLog]]:
        """Return the replicas that are alive in the broker epoch that the controller counts on."""
        for member in (*state.isr, *state.elr):
            broker = self._brokers[member]
            if broker.is_up and broker.epoch == state.broker_epochs.get(member):
                yield member, broker.logs.get(partition) or SimLog()

    # -- actions of brokers ----------------------------------------------------------------

    def registered(self, broker_id: int, epoch: int, previous_epoch: int) -> None:
        self._previous[broker_id, epoch] = previous_epoch

    def published(self, broker: SimBroker, message: Any, received: ImageUpdate) -> None:
        """A broker got a request of a controller.  I11, I21."""
        if received.error_code != ErrorCode.NONE:
            return
        incarnation = (broker.id, broker.incarnation)
        newest = self._heard.setdefault(incarnation, message.controller_epoch)
        if message.controller_epoch < newest or (
            (received.changes or received.brokers_changed) and message.broker_epoch != broker.epoch
        ):
            raise Violated(f"I11 {broker.name} obeyed what was not for it any more: {message}")
        self._heard[incarnation] = message.controller_epoch
        for topic in broker.metadata_image:
            for index, state in topic.partitions.items():
                key = (*incarnation, (topic.name, index))
                if state.partition_epoch < self._known_epochs.get(key, 0):
                    raise Violated(f"I21 {broker.name} went back to {state}")
                self._known_epochs[key] = state.partition_epoch

    def leads(self, leading: Leading) -> None:
        """A broker became a leader.  I1, I2, I4."""
        broker, partition, state = leading.broker, leading.partition, leading.machine.state
        truth, me = self.truth(partition), (broker.id, broker.incarnation)
        other = truth.leaders.setdefault(state.leader_epoch, me)
        if other != me:
            raise Violated(
                f"I4 {partition} has two leaders in epoch {state.leader_epoch}: {other} and {me}"
            )
        self._compared[partition, state.leader_epoch] = 0
        if self.is_current(leading) and not truth.is_lossy:
            self._has(
                partition, f"I2 the new leader {broker.id}", leading.log, len(truth.committed)
            )

    def fetched(self, leading: Leading, replica: int, broker_epoch: int) -> None:
        """A follower fetched, in agreement with its leader."""
        epoch = leading.machine.state.leader_epoch
        self.truth(leading.partition).fetched[replica, broker_epoch, epoch] = None

    def committed(self, leading: Leading, high_watermark: int) -> None:
        """A leader's high watermark moved.  I2, I3, I5, I6, I7, I8."""
        partition, log, state = leading.partition, leading.log, leading.machine.state
        truth = self.truth(partition)
        if len(state.isr) < effective_min_isr(leading.broker.min_isr, state.replicas):
            raise Violated(f"I7 {partition} committed with {state.isr} in sync")
        key = (partition, state.leader_epoch)
        start = self._compared[key]
        if not start <= high_watermark <= log.end_offset:
            raise Violated(
                f"I5 {partition} high watermark {high_watermark}: from {start}, of {log.end_offset}"
            )
        self._compared[key] = high_watermark
        known = truth.committed
        if truth.is_lossy:
            if high_watermark > len(known):
                truth.committed = log.entries[:high_watermark]
            return
        self._agrees(partition, f"I8 leader {leading.broker.id}", log, start, high_watermark)
        start = len(known)
        if high_watermark <= start:
            return
        known += log.entries[start:high_watermark]
        if truth.state is not None:
            for member, copy in self._members(partition, truth.state):
                self._has(partition, f"I2 member {member}", copy, high_watermark, start)
            if self.is_current(leading):
                self._counts_all(partition, truth.state)
                self._is_reached(leading, truth.state, high_watermark)

    def _is_reached(self, leading: Leading, state: PartitionState, high_watermark: int) -> None:
        """I5: every member of the maximal ISR has the records below the high watermark."""
        for member in sorted(leading.machine.maximal_isr):
            broker = self._brokers[member]
            known = leading.machine._followers.get(member)
            if broker.is_up and known is not None and known.broker_epoch == broker.epoch:
                log = broker.logs.get(leading.partition) or SimLog()
                self._has(leading.partition, f"I5 member {member}", log, high_watermark)

    def heard(self, following: Following, high_watermark: int) -> None:
        """A follower's high watermark moved.  I3, I5."""
        truth, log = self.truth(following.partition), following.log
        if truth.is_lossy:
            return
        name = f"I3 follower {following.broker.id}"
        if high_watermark > len(truth.committed):
            raise Violated(
                f"{name} of {following.partition} takes {high_watermark} for committed,"
                f" {len(truth.committed)} are"
            )
        self._agrees(following.partition, name, log, following.compared, high_watermark)
        following.compared = high_watermark

    def truncates(self, following: Following, end_offset: int) -> None:
        """I13: a replica in ISR or ELR truncates no committed record.  Other replicas may have to:
        their logs may diverge from the leader's further back."""
        truth, broker = self.truth(following.partition), following.broker
        state = truth.state
        if truth.is_lossy or state is None:
            return
        is_counted_on = state.broker_epochs.get(broker.id) == broker.epoch
        if is_counted_on and end_offset < len(truth.committed):
            raise Violated(
                f"I13 {broker.id} cuts {following.partition} at {end_offset},"
                f" {len(truth.committed)} are committed"
            )

    def loses_committed(self, following: Following, records: int) -> None:
        """I1: a leader lacks records that its follower knows to be committed, and no unclean
        election explains it.  That holds for a lossy partition too: it loses records only in a
        recovery."""
        raise Violated(
            f"I1 {following.broker.id} would lose {records} committed records of"
            f" {following.partition} with no recovery: {following.machine.state}"
        )

    def deletes(
        self, broker: SimBroker, partition: Partition, log: SimLog, start_offset: int
    ) -> None:
        """A log start offset moves: only committed records may be deleted."""
        truth = self.truth(partition)
        truth.deleted_offset = max(truth.deleted_offset, start_offset)
        known = broker.high_watermark(partition)
        if not log.start_offset < start_offset <= known <= log.end_offset:
            raise Violated(
                f"{broker.name} must start {partition} at {start_offset}, of {log.start_offset},"
                f" {known} committed, to {log.end_offset}"
            )

    def _agrees(
        self, partition: Partition, name: str, log: SimLog, start: int, end_offset: int
    ) -> None:
        """Compare a log with the committed records where both have some."""
        known = self.truth(partition).committed
        start, end = max(start, log.start_offset), min(end_offset, len(known), log.end_offset)
        if log.entries[start:end] != known[start:end]:
            at = next(
                offset for offset in range(start, end) if log.entries[offset] != known[offset]
            )
            raise Violated(
                f"{name} of {partition} has {log.entries[at]} at {at}, {known[at]} was committed"
            )

    def _has(
        self, partition: Partition, name: str, log: SimLog, end_offset: int, start: int = 0
    ) -> None:
        if log.end_offset < end_offset:
            raise Violated(f"{name} of {partition} ends at {log.end_offset}, not {end_offset}")
        self._agrees(partition, name, log, start, end_offset)

    # -- observations of clients -----------------------------------------------------------

    def sends(self, partition: Partition, value: str, now_ms: int) -> None:
        self.truth(partition).sent[value] = now_ms

    def acks(self, partition: Partition, value: str, offset: int, now_ms: int) -> None:
        truth = self.truth(partition)
        truth.acked[value] = (offset, now_ms)
        if truth.is_lossy:
            return
        if offset >= len(truth.committed) or truth.committed[offset].value != value:
            raise Violated(f"I1 {value} was acknowledged at {offset} of {partition} uncommitted")

    def shows(self, role: Leading | Following, end_offset: int) -> None:
        """I9: a replica shows consumers only records that it knows to be committed."""
        truth = self.truth(role.partition)
        if end_offset > role.machine.high_watermark or (
            end_offset > len(truth.committed) and not truth.is_lossy
        ):
            raise Violated(
                f"I9 {role.broker.name} shows {role.partition} up to {end_offset},"
                f" {len(truth.committed)} are committed"
            )

    def serves(
        self, partition: Partition, name: str, leader_epoch: int, now_ms: int, most_ms: int
    ) -> None:
        """I25: a leader without a session answers a client; most_ms after another began to lead."""
        for epoch, since_ms in self.truth(partition).led_since_ms.items():
            if epoch > leader_epoch and now_ms - since_ms > most_ms:
                raise Violated(
                    f"I25 {name} serves {partition} in epoch {leader_epoch}, {now_ms - since_ms} ms"
                    f" after a leader of epoch {epoch} began"
                )

    def nominates(self, leading: Leading, follower: int, offset: int) -> None:
        """I9: the preferred read replica of a consumer is in sync, and has the wanted offset."""
        broker = self._brokers[follower]
        known = leading.machine._followers[follower]
        if not self.is_current(leading) or self.truth(leading.partition).is_lossy:
            return
        if broker.is_up and known.broker_epoch == broker.epoch:
            log = broker.logs.get(leading.partition) or SimLog()
            if offset > log.end_offset:
                raise Violated(f"I9 {follower} does not have {offset} of {leading.partition}")

    def tells_end(self, leading: Leading, end_offset: int) -> None:
        """I10: all acknowledged records are below the end offset that the leader reports."""
        truth = self.truth(leading.partition)
        if self.is_current(leading) and not truth.is_lossy and end_offset < len(truth.committed):
            raise Violated(
                f"I10 {leading.partition} ends at {end_offset}, says {leading.broker.name},"
                f" {len(truth.committed)} are committed"
            )

    def reads(self, partition: Partition, offset: int, entries: Iterable[Entry]) -> None:
        """I8, I9: a record that a consumer read is committed, and stays committed."""
        truth = self.truth(partition)
        if truth.is_lossy:
            return
        for at, entry in enumerate(entries, offset):
            if at >= len(truth.committed) or truth.committed[at] != entry or entry == NOTHING:
                raise Violated(f"I9 a consumer was shown {entry} at {at} of {partition}")

    # -- at the end ------------------------------------------------------------------------

    def finished(self) -> None:
        """Check the end of a run, after all faults are healed.  I1, I3, I10 and liveness."""
        for partition, truth in self.truths.items():
            state = truth.state
            if state is None or state.leader == NO_BROKER:
                raise Violated(f"L1 no broker leads {partition}: {state}")
            if set(state.isr) != set(state.replicas):
                raise Violated(f"L4 not all are in sync: {partition} {state}")
            if state.is_reassigning:
                raise Violated(f"L7 {partition} is on its way still: {state}")
            leader = self._brokers[state.leader].logs[partition]
            for broker_id in state.replicas:
                self._is_equal(partition, broker_id, leader)
            if not truth.is_lossy:
                self._nothing_is_lost(partition, truth, leader)
                self._in_order(partition, truth)

    def _is_equal(self, partition: Partition, broker_id: int, leader: SimLog) -> None:
        log = self._brokers[broker_id].logs[partition]
        start = max(log.start_offset, leader.start_offset)
        if log.entries[start:] != leader.entries[start:] or log.end_offset != leader.end_offset:
            raise Violated(f"I3 {broker_id} and the leader of {partition} differ")
        if log.start_offset < leader.start_offset:
            raise Violated(
                f"L3 {broker_id} starts {partition} at {log.start_offset},"
                f" its leader at {leader.start_offset}"
            )

    def _nothing_is_lost(self, partition: Partition, truth: Truth, leader: SimLog) -> None:
        for value, (offset, _) in truth.acked.items():
            if offset < leader.start_offset <= truth.deleted_offset:
                continue
            if offset >= leader.end_offset or leader.entries[offset].value != value:
                raise Violated(f"I1 {value}, acknowledged at {offset} of {partition}, is lost")

    def _in_order(self, partition: Partition, truth: Truth) -> None:
        acked = sorted((at, offset) for offset, at in truth.acked.values())
        sent = sorted((truth.sent[value], offset) for value, (offset, _) in truth.acked.items())
        highest, done = -1, 0
        for sent_ms, offset in sent:
            while done < len(acked) and acked[done][0] < sent_ms:
                highest = max(highest, acked[done][1])
                done += 1
            if offset <= highest:
                raise Violated(f"I10 {partition}: {offset} was sent after {highest} was done")


def _common_end(log: SimLog, committed: list[Entry]) -> int:
    """Return where a log stops to agree with the committed records."""
    end = min(log.end_offset, len(committed))
    for offset in range(log.start_offset, end):
        if log.entries[offset] != committed[offset]:
            return offset
    return end
