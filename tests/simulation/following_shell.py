"""A follower on a simulated broker, in one leader epoch: it fetches, and applies responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.core.partition.follower import Action, FetchPosition, Follower, Step
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode
from tests.simulation.disk import SimLog
from tests.simulation.messages import Fetch, Fetched, Partition
from tests.simulation.world import Reply

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker

FETCH_MS = 400


class Following:
    """The follower of a partition, in one leader epoch."""

    def __init__(
        self, broker: SimBroker, partition: Partition, log: SimLog, state: PartitionState
    ) -> None:
        self.broker, self.partition, self.log = broker, partition, log
        self.machine = Follower(state, log, broker.high_watermark(partition))
        self.compared = 0
        """The offset up to which the checker has compared the log with the committed records."""

    @property
    def is_in_office(self) -> bool:
        return self.broker.roles.get(self.partition) is self

    def begin(self) -> None:
        self._fetch()

    def end(self) -> None:
        """A follower has no delayed requests."""

    def tick(self) -> None:
        """A follower only fetches."""

    def published(self, state: PartitionState) -> None:
        self.machine.published(state)

    def _fetch(self) -> None:
        if not self.is_in_office:
            return
        machine = self.machine
        machine.check()
        position = machine.position()
        if position is None:
            return
        request = Fetch(
            self.partition,
            position.offset,
            self.broker.id,
            self.broker.epoch,
            position.leader_epoch,
            position.last_fetched_epoch,
            position.log_start_offset,
        )

        def answered(answer: Fetched | None) -> None:
            if answer is None:
                self.broker.after(20, self._fetch)
            else:
                self.broker.when_disk_is_done(take, answer)

        def take(answer: Fetched) -> None:
            if self.is_in_office:
                self._take(position, answer)

        leader = f"broker-{machine.state.leader}"
        self.broker.ask(leader, request, FETCH_MS, answered, channel="fetch")

    def _take(self, position: FetchPosition, answer: Fetched) -> None:
        step = self.machine.answered(
            position,
            answer.code,
            diverging=answer.diverging,
            leader_log_start_offset=answer.log_start_offset,
        )
        pause_ms = 0
        match step.action:
            case Action.APPEND:
                self._append(answer)
                pause_ms = 1 if answer.entries else 25
            case Action.TRUNCATE | Action.RESTART:
                self._cut(step)
            case Action.BACK_OFF:
                pause_ms = 60
            case Action.WAIT:
                return
        self.broker.after(pause_ms, self._fetch)

    def _append(self, answer: Fetched) -> None:
        log = self.log
        for entry in answer.entries:
            log.append(entry)
        moved = self.machine.appended(answer.high_watermark, answer.log_start_offset)
        if moved.high_watermark is not None:
            self.broker.high_watermarks[self.partition] = moved.high_watermark
        # Before consumers see more: records below the leader's start offset cannot be compared
        # with the records that were committed there.
        if moved.log_start_offset is not None:
            self.broker.delete_before(self.partition, log, moved.log_start_offset)
        if moved.high_watermark is not None:
            self.broker.checker.heard(self, moved.high_watermark)

    def _cut(self, step: Step) -> None:
        broker = self.broker
        self._tell(f"{step.action.name} at {step.offset}")
        broker.checker.truncates(self, step.offset)
        if step.lost and not self.machine.expects_loss:
            broker.checker.loses_committed(self, step.lost)
        if step.action is Action.RESTART:
            self.log.restart(step.offset)
        else:
            self.log.truncate(step.offset)
        self.machine.truncated()
        broker.high_watermarks[self.partition] = self.machine.high_watermark

    def _tell(self, text: str) -> None:
        self.broker.world.tell(f"{self.broker.name} follows {self.partition}: {text}")

    def consume(self, request: Fetch, answer: Reply) -> None:
        """A consumer fetches from this follower (KIP-392): only up to its high watermark."""
        log, end = self.log, self.machine.high_watermark
        if not log.start_offset <= request.offset <= log.end_offset:
            answer(Fetched(ErrorCode.OFFSET_OUT_OF_RANGE))
            return
        self.broker.checker.shows(self, end)
        answer(
            Fetched(ErrorCode.NONE, tuple(log.entries[request.offset : end]), end, log.start_offset)
        )
