"""One partition as brokers and a controller see it, each with its own outdated view.

Leader and follower are the real state machines.  Around them are brokers with logs in memory, a
controller that decides in one place, and a network: proposals and fetches that arrive late or
never, decisions that arrive late or several at once, brokers that stop, crash, lose the tail of
their log and come back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from hightide.core.partition.follower import Action, FetchPosition, Follower, divergence
from hightide.core.partition.isr import Proposal
from hightide.core.partition.leader import NOTHING, Changes, Leader
from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr
from hightide.log.leader_epochs import LeaderEpochs
from hightide.wire.errors import ErrorCode

LAG_MS = 10


class Loss(AssertionError):
    """A committed record is lost, or will be as soon as a trusted replica leads."""


class Record(NamedTuple):
    epoch: int
    value: int


class MemoryLog:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.epochs = LeaderEpochs()
        self.start_offset = 0

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, records: list[Record]) -> None:
        for record in records:
            if record.epoch > self.epochs.latest:
                self.epochs.assign(record.epoch, self.end_offset)
            self.records.append(record)

    def truncate_to(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(offset)


class Decision(NamedTuple):
    """Everything that the controller publishes, at one moment."""

    state: PartitionState
    live: dict[int, int]
    shutting_down: frozenset[int]
    min_isr: int


@dataclass(eq=False)
class Envelope:
    """A proposal in flight, or its answer."""

    broker: Broker
    leader: Leader
    proposal: Proposal
    answer: ErrorCode | PartitionState | None = None


@dataclass(frozen=True)
class Fetch:
    broker: Broker
    broker_epoch: int
    position: FetchPosition
    leader: int


class Broker:
    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.epoch = -1
        self.is_up = True
        self.was_clean = True
        self.log = MemoryLog()
        self.stored_high_watermark = 0
        self.role: Leader | Follower | None = None
        self.heard = -1

    @property
    def high_watermark(self) -> int:
        return self.role.high_watermark if self.role else self.stored_high_watermark

    def follow(self, state: PartitionState) -> None:
        self.role = Follower(state, self.log, self.stored_high_watermark)

    def lead(self, decision: Decision, now_ms: int) -> None:
        self.log.epochs.assign(decision.state.leader_epoch, self.log.end_offset)
        self.role = Leader(
            self.id,
            self.epoch,
            decision.state,
            end_offset=self.log.end_offset,
            high_watermark=min(self.stored_high_watermark, self.log.end_offset),
            min_isr=decision.min_isr,
            lag_ms=LAG_MS,
            live=decision.live,
            shutting_down=decision.shutting_down,
            now_ms=now_ms,
        )

    def rest(self) -> None:
        self.stored_high_watermark = min(self.high_watermark, self.log.end_offset)
        self.role = None


class Controller:
    """Rules 4 and 5 of docs/internals/replication.md in few lines, decided and written at once."""

    def __init__(self, replicas: tuple[int, ...], live: dict[int, int], min_isr: int) -> None:
        state = PartitionState(replicas, replicas[0], 0, replicas)
        self.history = [Decision(state, live, frozenset(), min_isr)]

    @property
    def now(self) -> Decision:
        return self.history[-1]

    def publish(self, **changes: Any) -> None:
        """Publish a change of something other than the partition's state."""
        self.history.append(self.now._replace(**changes))

    def decide(self, state: PartitionState) -> None:
        before = self.now.state
        if state.leader != before.leader:
            state = replace(state, leader_epoch=before.leader_epoch + 1)
        if state != before:
            state = replace(state, partition_epoch=before.partition_epoch + 1)
            state.check()
            self.history.append(self.now._replace(state=state))

    def with_isr(
        self, state: PartitionState, isr: set[int], distrusted: frozenset[int]
    ) -> PartitionState:
        """Return `state` with this ISR: a replica that leaves a too small one stays eligible."""
        least = effective_min_isr(self.now.min_isr, state.replicas)
        elr = {*state.elr, *state.isr} - isr - distrusted if len(isr) < least else set()
        return replace(
            state,
            isr=tuple(replica for replica in state.replicas if replica in isr),
            elr=tuple(replica for replica in state.replicas if replica in elr),
        )

    def reelect(self, distrusted: frozenset[int] = frozenset()) -> None:
        state, live = self.now.state, self.now.live
        trusted = {replica for replica in live if replica not in distrusted}
        after = self.with_isr(state, trusted & set(state.isr), distrusted)
        last = state.leader if state.leader != NO_BROKER else state.last_known_leader
        staying = [
            replica for replica in after.isr if replica not in self.now.shutting_down
        ] or after.isr
        eligible = [replica for replica in after.elr if replica in trusted]
        if state.leader in staying:
            leader = state.leader
        elif staying:
            leader = staying[0]
        elif eligible:
            leader = eligible[0]
            after = self.with_isr(after, {leader}, distrusted)
        elif not after.elr and last in live and last in state.replicas:
            leader = last
            after = self.with_isr(after, {leader}, distrusted)
        else:
            leader = NO_BROKER
        is_lossy = leader != NO_BROKER and not staying and not eligible
        bounced = leader == state.leader and leader in distrusted
        if bounced:
            self.decide(replace(after, leader=NO_BROKER, isr=(), last_known_leader=last))
            after = replace(after, partition_epoch=self.now.state.partition_epoch)
            after = replace(after, leader_epoch=self.now.state.leader_epoch)
        recovery_epoch = state.recovery_epoch
        if is_lossy:
            recovery_epoch = self.now.state.leader_epoch + 1
        self.decide(
            replace(
                after,
                leader=leader,
                recovery_epoch=recovery_epoch,
                last_known_leader=last if leader == NO_BROKER else NO_BROKER,
                is_recovering=is_lossy or (state.is_recovering and leader == state.leader),
            )
        )

    def proposed(self, proposal: Proposal) -> ErrorCode | PartitionState:
        """AlterPartition."""
        state = self.now.state
        if proposal.leader_epoch != state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if set(proposal.isr) == set(state.isr):
            return state
        if proposal.partition_epoch != state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in set(proposal.isr) - set(state.isr):
            is_same_epoch = self.now.live.get(member) == proposal.broker_epochs[member]
            if not is_same_epoch or member in self.now.shutting_down:
                return ErrorCode.INELIGIBLE_REPLICA
        self.decide(self.with_isr(state, set(proposal.isr), frozenset()))
        return self.now.state


class World:
    """The brokers, the controller, the network between them, and the committed records."""

    looks_for_loss_only = False
    """Whether to ignore errors that have not led to a loss yet."""

    def __init__(self, broker_count: int, replica_count: int, min_isr: int) -> None:
        self.now_ms = 0
        self.brokers = {number: Broker(number) for number in range(1, broker_count + 1)}
        self.next_epoch = 100
        for broker in self.brokers.values():
            broker.epoch = self.new_epoch()
        live = {broker.id: broker.epoch for broker in self.brokers.values()}
        self.controller = Controller(tuple(range(1, replica_count + 1)), live, min_isr)
        self.network: list[Envelope] = []
        self.fetches: list[Fetch] = []
        self.next_value = 0
        self.committed: list[Record] = []
        self.recovery_epoch = -1
        """The last epoch of a leader that was not known to have every committed record."""
        self.has_lost = False
        """Whether that leader did lack some."""
        self.watermarks: dict[tuple[int, int], int] = {}
        for broker in self.brokers.values():
            self.hear(broker)

    def new_epoch(self) -> int:
        self.next_epoch += 1
        return self.next_epoch

    # Brokers ------------------------------------------------------------------------------------

    def hear(self, broker: Broker, count: int = 1_000_000) -> None:
        """The broker learns of the decision `count` further on, and skips those before it."""
        latest = len(self.controller.history) - 1
        broker.heard = min(latest, broker.heard + count)
        decision = self.controller.history[broker.heard]
        state, role = decision.state, broker.role
        if role is not None and role.state.leader_epoch == state.leader_epoch:
            if isinstance(role, Leader):
                self.follow_up(broker, role.brokers_changed(decision.live, decision.shutting_down))
                self.follow_up(broker, role.configured(decision.min_isr, LAG_MS))
                self.follow_up(broker, role.published(state))
                return
            if broker.id in state.replicas:
                role.published(state)
                return
        broker.rest()
        if broker.id not in state.replicas:
            broker.log, broker.stored_high_watermark = MemoryLog(), 0
        if broker.id == state.leader:
            broker.lead(decision, self.now_ms)
            self.follow_up(broker, Changes())
        elif broker.id in state.replicas and state.leader != NO_BROKER:
            broker.follow(state)

    def follow_up(self, broker: Broker, changes: Changes) -> None:
        leader = broker.role
        assert isinstance(leader, Leader)
        if changes.proposal is not None:
            assert changes.proposal is leader.proposal
            self.network.append(Envelope(broker, leader, changes.proposal))
        self.note_committed(broker, leader)

    def append(self, broker: Broker, leader: Leader, count: int) -> None:
        for _ in range(count):
            self.next_value += 1
            broker.log.append([Record(leader.state.leader_epoch, self.next_value)])
        committed = leader.appended(broker.log.end_offset)
        self.follow_up(broker, Changes(committed) if committed >= 0 else NOTHING)

    def tick(self, broker: Broker) -> None:
        if isinstance(broker.role, Leader):
            self.follow_up(broker, broker.role.tick(self.now_ms))

    # Fetches --------------------------------------------------------------------------------------

    def send_fetch(self, broker: Broker) -> Fetch | None:
        if not isinstance(broker.role, Follower):
            return None
        position = broker.role.position()
        if position is None:
            return None
        return Fetch(broker, broker.epoch, position, broker.role.state.leader)

    def serve(self, fetch: Fetch, max_records: int, is_answered: bool = True) -> None:
        """The fetch arrives at the leader, and its response, if at all, at the follower."""
        broker, leader = self.brokers[fetch.leader], self.brokers[fetch.leader].role
        asked, follower = fetch.position, fetch.broker.role
        diverging, records, error = None, [], ErrorCode.NOT_LEADER_OR_FOLLOWER
        if isinstance(leader, Leader):
            error = self.fence(leader, fetch)
            if error is ErrorCode.NONE:
                diverging = divergence(
                    broker.log.epochs,
                    broker.log.end_offset,
                    asked.offset,
                    asked.last_fetched_epoch,
                )
            if error is ErrorCode.NONE and diverging is None:
                if asked.offset > broker.log.end_offset:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    changes = leader.fetched(
                        fetch.broker.id, asked.offset, fetch.broker_epoch, self.now_ms
                    )
                    self.follow_up(broker, changes)
                    records = broker.log.records[asked.offset : asked.offset + max_records]
        is_same_epoch = fetch.broker.is_up and fetch.broker.epoch == fetch.broker_epoch
        if is_answered and is_same_epoch and isinstance(follower, Follower):
            high_watermark = leader.high_watermark if isinstance(leader, Leader) else -1
            self.answer(fetch, follower, error, diverging, records, high_watermark)

    def fence(self, leader: Leader, fetch: Fetch) -> ErrorCode:
        if fetch.position.leader_epoch < leader.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if fetch.position.leader_epoch > leader.state.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return leader.fetch_error(fetch.broker.id, fetch.broker_epoch)

    def answer(
        self,
        fetch: Fetch,
        follower: Follower,
        error: ErrorCode,
        diverging: tuple[int, int] | None,
        records: list[Record],
        high_watermark: int,
    ) -> None:
        log = fetch.broker.log
        step = follower.answered(
            fetch.position, error, diverging=diverging, leader_log_start_offset=0
        )
        if step.action is Action.APPEND:
            log.append(records)
            follower.appended(high_watermark, 0)
        elif step.action is Action.TRUNCATE:
            if step.lost and not follower.expects_loss:
                raise Loss("the leader lacks what was committed")
            log.truncate_to(step.offset)
            follower.truncated()
        else:
            assert step.action is not Action.RESTART

    # Proposals ------------------------------------------------------------------------------------

    def arrive(self, envelope: Envelope, is_busy: bool = False) -> None:
        """A proposal arrives at the controller, or its answer at the leader."""
        self.network.remove(envelope)
        leader, answer = envelope.leader, envelope.answer
        if answer is None:
            if is_busy:
                answer = ErrorCode.OPERATION_NOT_ATTEMPTED
            else:
                answer = self.controller.proposed(envelope.proposal)
            self.network.append(replace(envelope, answer=answer))
        elif envelope.broker.role is leader:
            if isinstance(answer, PartitionState):
                self.follow_up(envelope.broker, leader.accepted(answer))
            elif answer in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
                self.follow_up(envelope.broker, leader.refused(envelope.proposal))

    def time_out(self, envelope: Envelope, is_lost: bool) -> None:
        """The leader stops waiting and sends again, whether or not this copy arrives."""
        if is_lost:
            self.network.remove(envelope)
        leader = envelope.leader
        if envelope.broker.role is leader and leader.proposal is envelope.proposal:
            leader.unanswered()
            self.network.append(Envelope(envelope.broker, leader, envelope.proposal))

    # Brokers come and go --------------------------------------------------------------------------

    def stop(self, broker: Broker, is_clean: bool, lost_count: int) -> None:
        if is_clean:
            self.shut_down(broker)
        broker.rest()
        broker.is_up, broker.was_clean = False, is_clean
        if lost_count:
            broker.log.truncate_to(max(0, broker.log.end_offset - lost_count))
            broker.stored_high_watermark = min(broker.stored_high_watermark, broker.log.end_offset)
        if is_clean:
            self.notice(broker)

    def shut_down(self, broker: Broker) -> None:
        self.controller.publish(shutting_down=self.controller.now.shutting_down | {broker.id})
        self.elect()

    def notice(self, broker: Broker) -> None:
        """The session of a broker ends."""
        now = self.controller.now
        live = {number: epoch for number, epoch in now.live.items() if number != broker.id}
        self.controller.publish(live=live, shutting_down=now.shutting_down - {broker.id})
        self.elect()

    def start(self, broker: Broker) -> None:
        """A broker registers, after a stop or because its session ended behind a partition."""
        if broker.id in self.controller.now.live:
            self.notice(broker)
        broker.rest()
        broker.is_up, broker.epoch = True, self.new_epoch()
        self.controller.publish(live={**self.controller.now.live, broker.id: broker.epoch})
        self.elect(frozenset() if broker.was_clean else frozenset({broker.id}))
        broker.was_clean = True
        self.hear(broker)

    def elect(self, distrusted: frozenset[int] = frozenset()) -> None:
        before = self.controller.now.state.leader_epoch
        self.controller.reelect(distrusted)
        state = self.controller.now.state
        if state.is_recovering and state.leader_epoch != before:
            records = self.brokers[state.leader].log.records
            kept = 0
            while self.committed[kept : kept + 1] and records[kept : kept + 1] == [
                self.committed[kept]
            ]:
                kept += 1
            self.recovery_epoch = state.leader_epoch
            self.has_lost = self.has_lost or kept < len(self.committed)
            del self.committed[kept:]

    def remove_replica(self, broker: Broker) -> None:
        """Remove a replica, which deletes its log when it learns of it.  Its fetches until then
        are fenced: the leader epoch grows."""
        state = self.controller.now.state
        self.controller.decide(
            replace(
                state,
                leader_epoch=state.leader_epoch + 1,
                replicas=tuple(replica for replica in state.replicas if replica != broker.id),
                isr=tuple(replica for replica in state.isr if replica != broker.id),
                elr=tuple(replica for replica in state.elr if replica != broker.id),
            )
        )

    def add_replica(self, broker: Broker) -> None:
        state = self.controller.now.state
        self.controller.decide(replace(state, replicas=(*state.replicas, broker.id)))

    # Invariants -----------------------------------------------------------------------------------

    def note_committed(self, broker: Broker, leader: Leader) -> None:
        key = broker.id, leader.state.leader_epoch
        before = self.watermarks.get(key, -1)
        self.watermarks[key] = leader.high_watermark
        assert leader.high_watermark >= before, "it went back"
        if leader.high_watermark == before:
            return
        if before >= 0 and not self.looks_for_loss_only:
            least = effective_min_isr(leader._min_isr, leader.state.replicas)
            assert len(leader.state.isr) >= least, "committed with too few"
        if leader.state.leader_epoch < self.recovery_epoch:
            # It does not know yet that the cluster continued without its records.
            self.has_lost = True
            return
        below = broker.log.records[: leader.high_watermark]
        common = min(len(below), len(self.committed))
        if below[:common] != self.committed[:common]:
            raise Loss("another record is committed in its place")
        self.committed.extend(below[common:])

    def check(self) -> None:
        state = self.controller.now.state
        up = [broker for broker in self.brokers.values() if broker.is_up]
        for broker in up:
            if broker.role is not None:
                broker.role.check()
            is_whole = broker.log.records[: len(self.committed)] == self.committed
            if broker.id in (*state.isr, *state.elr) and not is_whole:
                raise Loss(f"{broker.id} is trusted and lacks something")
            is_current = broker.role and broker.role.state.leader_epoch == state.leader_epoch
            if is_current and isinstance(broker.role, Leader) and not self.looks_for_loss_only:
                assert set(state.isr) <= broker.role.maximal_isr
        if not self.has_lost:
            for one, other in combinations(up, 2):
                least = min(one.high_watermark, other.high_watermark)
                if one.log.records[:least] != other.log.records[:least]:
                    raise Loss(f"{one.id} and {other.id} show different records")

    def heal(self) -> None:
        """End all faults with all brokers up: then all replicas must get into the ISR."""
        self.fetches.clear()
        for broker in self.brokers.values():
            if broker.is_up and broker.id in self.controller.now.shutting_down:
                self.stop(broker, is_clean=True, lost_count=0)
            if broker.id not in self.controller.now.live or not broker.is_up:
                self.start(broker)
        for _ in range(60):
            self.now_ms += 1
            for broker in self.brokers.values():
                self.hear(broker)
                self.tick(broker)
                if fetch := self.send_fetch(broker):
                    self.serve(fetch, 10)
            for envelope in [*self.network]:
                self.arrive(envelope)
            self.check()
        state = self.controller.now.state
        assert state.leader != NO_BROKER
        leader = self.brokers[state.leader]
        assert set(state.isr) == set(state.replicas)
        for number in state.replicas:
            assert self.brokers[number].log.records == leader.log.records
        assert self.committed == leader.log.records
