"""A leader on a simulated broker, in one leader epoch: requests in, responses out.

This module only connects the state machine (`core/partition/leader.py`) with the log, the network
and delayed requests.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from hightide.core.partition.follower import divergence
from hightide.core.partition.isr import Proposal
from hightide.core.partition.leader import NOTHING, Changes, Leader
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode
from tests.simulation.disk import Entry, SimLog
from tests.simulation.messages import (
    Decided,
    DeleteRecords,
    Fetch,
    Fetched,
    Partition,
    Produce,
    Produced,
    Propose,
)
from tests.simulation.world import Reply

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker

PROPOSE_MS = 700
COMMIT_MS = 1000
_RETRY = {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}


class Leading:
    """The leader of a partition, in one leader epoch."""

    def __init__(
        self, broker: SimBroker, partition: Partition, log: SimLog, state: PartitionState
    ) -> None:
        self.broker, self.partition, self.log = broker, partition, log
        # Heaps of (offset, serial, reply).
        self._uncommitted: list[tuple[int, int, Reply]] = []
        self._undeleted: list[tuple[int, int, Reply]] = []
        self._serial = 0
        # Written before any record of the epoch, so that the epoch's start offset is never in
        # doubt.
        log.epochs.assign(state.leader_epoch, log.end_offset)
        self.machine = Leader(
            broker.id,
            broker.epoch,
            state,
            end_offset=log.end_offset,
            high_watermark=broker.high_watermark(partition),
            min_isr=broker.min_isr,
            lag_ms=broker.lag_ms,
            live=broker.metadata_image.live,
            shutting_down=broker.metadata_image.shutting_down,
            now_ms=broker.clock_ms(),
        )

    def begin(self) -> None:
        before = self.broker.high_watermark(self.partition)
        self.broker.checker.leads(self)
        if self.machine.high_watermark > before:
            self.follow_up(Changes(self.machine.high_watermark))

    @property
    def is_in_office(self) -> bool:
        return self.broker.roles.get(self.partition) is self

    def end(self) -> None:
        for _, _, answer in sorted(
            self._uncommitted + self._undeleted, key=lambda record: record[:2]
        ):
            answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def published(self, state: PartitionState) -> None:
        self.follow_up(self.machine.published(state))

    def tick(self) -> None:
        deadline_ms, now_ms = self.machine.deadline_ms(), self.broker.clock_ms()
        if deadline_ms is not None and now_ms >= deadline_ms:
            self.follow_up(self.machine.tick(now_ms))

    # -- effects ---------------------------------------------------------------------------

    def follow_up(self, changes: Changes) -> None:
        machine = self.machine
        machine.check()
        if changes.high_watermark is not None:
            self.broker.high_watermarks[self.partition] = changes.high_watermark
            self.broker.checker.committed(self, changes.high_watermark)
            waiting = self._uncommitted
            while waiting:
                verdict = machine.commit_result(waiting[0][0])
                if verdict is None:
                    break
                end_offset, _, answer = heappop(waiting)
                answer(Produced(verdict, end_offset - 1))
        if changes.proposal is not None:
            self._propose(changes.proposal)

    def _propose(self, proposal: Proposal) -> None:
        machine, broker = self.machine, self.broker
        broker.world.tell(f"{broker.name} proposes {self.partition} {proposal}")

        def is_due() -> bool:
            return self.is_in_office and machine.proposal is proposal

        def answered(answer: Decided | None) -> None:
            if not is_due():
                return
            if answer is None:
                machine.unanswered()
                broker.after(50, again)
            elif answer.code == ErrorCode.NONE and answer.state is not None:
                self.follow_up(machine.accepted(answer.state))
            elif answer.code in _RETRY:
                self.follow_up(machine.refused(proposal))
            else:
                broker.after(200, again)

        def again() -> None:
            if is_due():
                request = Propose(self.partition, broker.id, broker.epoch, proposal)
                broker.ask(f"broker-{broker.controller_id}", request, PROPOSE_MS, answered)

        again()

    def _once(self, heap: list[tuple[int, int, Reply]], offset: int, answer: Reply) -> None:
        """Respond when `offset` is reached, or after a timeout."""
        answered: list[bool] = []

        def once(result: Produced) -> None:
            if not answered:
                answered.append(True)
                answer(result)

        self._serial += 1
        heappush(heap, (offset, self._serial, once))
        self.broker.after(COMMIT_MS, once, Produced(ErrorCode.REQUEST_TIMED_OUT))

    # -- producers -------------------------------------------------------------------------

    def produce(self, request: Produce, answer: Reply) -> None:
        machine, log = self.machine, self.log
        if request.acks == -1 and machine.write_error() != ErrorCode.NONE:
            answer(Produced(machine.write_error()))
            return
        log.append(Entry(machine.state.leader_epoch, request.value))
        if request.acks == -1:
            self._once(self._uncommitted, log.end_offset, answer)
        else:
            self.broker.when_disk_is_done(answer, Produced(ErrorCode.NONE, log.end_offset - 1))
        committed = machine.appended(log.end_offset)
        self.follow_up(Changes(committed) if committed >= 0 else NOTHING)

    # -- followers -------------------------------------------------------------------------

    def fetch(self, request: Fetch, answer: Reply) -> None:
        """Serve a follower's fetch."""
        verdict = self._fetch_verdict(request)
        if verdict is not None:
            answer(verdict)
            return
        machine = self.machine
        self.broker.checker.fetched(self, request.replica, request.broker_epoch)
        changes = machine.fetched(
            request.replica,
            request.offset,
            request.broker_epoch,
            self.broker.clock_ms(),
            request.log_start_offset,
            self.log.start_offset,
        )
        self.follow_up(changes)
        self._tell_deleted()
        self.send(answer, self.read(request))

    def _fetch_verdict(self, request: Fetch) -> Fetched | None:
        """Return the response to a fetch that must not count as progress; None if it counts."""
        machine, log = self.machine, self.log
        if request.leader_epoch != machine.state.leader_epoch:
            older = request.leader_epoch < machine.state.leader_epoch
            return Fetched(
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        verdict = machine.fetch_error(request.replica, request.broker_epoch)
        if verdict != ErrorCode.NONE:
            return Fetched(verdict)
        if request.offset < log.start_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log.start_offset)
        parts = divergence(log.epochs, log.end_offset, request.offset, request.last_epoch)
        if parts is not None:
            start_offset = log.start_offset
            return Fetched(ErrorCode.NONE, log_start_offset=start_offset, diverging=parts)
        if request.offset > log.end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log.start_offset)
        return None

    def read(self, request: Fetch) -> Fetched:
        log = self.log
        count = self.broker.world.random.choice((1, 2, 5, 100))
        entries = tuple(log.entries[request.offset : request.offset + count])
        return Fetched(ErrorCode.NONE, entries, self.machine.high_watermark, log.start_offset)

    def send(self, answer: Reply, fetched: Fetched) -> None:
        """Send a response with the state of the time of the read, however long the read took."""
        self.broker.when_disk_is_done(answer, fetched)

    # -- consumers -------------------------------------------------------------------------

    def consume(self, request: Fetch, answer: Reply) -> None:
        log, machine = self.log, self.machine
        if not log.start_offset <= request.offset <= log.end_offset:
            answer(Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=log.start_offset))
            return
        preferred = NO_BROKER
        if request.may_be_sent_elsewhere:
            nominated = machine.readable_from(request.offset)
            if nominated:
                preferred = self.broker.world.random.choice(nominated)
                self.broker.checker.nominates(self, preferred, request.offset)
        end = machine.high_watermark
        entries = tuple(log.entries[request.offset : end])
        self.broker.checker.shows(self, end)
        answer(Fetched(ErrorCode.NONE, entries, end, log.start_offset, preferred=preferred))

    def latest(self) -> Produced:
        if not self.machine.is_hw_trusted:
            return Produced(ErrorCode.OFFSET_NOT_AVAILABLE)
        self.broker.checker.tells_end(self, self.machine.high_watermark)
        return Produced(ErrorCode.NONE, self.machine.high_watermark)

    # -- deletion --------------------------------------------------------------------------

    def delete_records(self, request: DeleteRecords, answer: Reply) -> None:
        high_watermark = self.machine.high_watermark
        offset = high_watermark if request.offset == -1 else request.offset
        if not self.log.start_offset <= offset <= high_watermark:
            answer(Produced(ErrorCode.OFFSET_OUT_OF_RANGE))
            return
        self.broker.delete_before(self.partition, self.log, offset)
        self._once(self._undeleted, offset, answer)
        self._tell_deleted()

    def _tell_deleted(self) -> None:
        waiting = self._undeleted
        if waiting:
            low_watermark = self.machine.low_watermark(self.log.start_offset)
            while waiting and waiting[0][0] <= low_watermark:
                heappop(waiting)[2](Produced(ErrorCode.NONE, low_watermark))
