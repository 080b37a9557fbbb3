"""A broker of a simulated cluster: the machines of the core, wired as the real one wires them.

What is here is only what connects them: who is asked, what an answer leads to, what is kept on
disk.  Every decision is the machines'.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from checkers import Checker
from control import UNCLEAN, Control
from coordinator import TreeClient, failed
from disk import Entry, SimLog
from messages import (
    CONSUMER,
    Decided,
    Fetch,
    Fetched,
    Partition,
    Produce,
    Produced,
    Propose,
    Publish,
    ShutDown,
    WhoLeads,
)
from world import Process, Reply, World

from hightide.coordination.errors import MultiFailed, NoNode
from hightide.coordination.operation import Create, SetData
from hightide.core.follower import Do, Follower, divergence
from hightide.core.partition import NOBODY, PartitionState
from hightide.core.picture import Delete, Follow, Lead, NoLeader, Picture, RoleChange, Stop
from hightide.core.replica import Changes, Leader, Proposal
from hightide.wire.errors import ErrorCode

LISTENER = "L"
TICK_MS = 40
FETCH_MS = 400
PROPOSE_MS = 700
COMMIT_MS = 1000
_RETRY = {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED}


@dataclass(slots=True)
class Leading:
    machine: Leader
    waiting: list[tuple[int, int, Reply]] = field(default_factory=list)
    """(end offset, serial, whom to answer), a heap."""


@dataclass(slots=True)
class Following:
    machine: Follower


class SimBroker(Process):
    """Its disk outlives it; everything else is made anew by `begin`."""

    def __init__(
        self,
        world: World,
        broker_id: int,
        checker: Checker,
        cluster: dict[int, SimBroker],
        topic_ids: dict[str, uuid.UUID],
        partitions: dict[Partition, tuple[int, ...]],
        *,
        min_isr: int,
        lag_ms: int,
        unclean: bool,
    ) -> None:
        super().__init__(world, f"broker-{broker_id}")
        self.id = broker_id
        self.checker = checker
        self.cluster = cluster
        self.topic_ids = topic_ids
        self.partitions = partitions
        self.min_isr, self.lag_ms, self.unclean = min_isr, lag_ms, unclean
        self.logs: dict[Partition, SimLog] = {}
        self.clean_epoch = UNCLEAN
        """What the clean-shutdown file says."""
        self.epoch = -1
        cluster[broker_id] = self

    # -- life ------------------------------------------------------------------------------

    def begin(self) -> None:
        self.epoch = -1
        self._previous_epoch, self.clean_epoch = self.clean_epoch, UNCLEAN
        self.picture = Picture(self.id, LISTENER)
        self.roles: dict[Partition, Leading | Following] = {}
        self.high_watermarks = {
            partition: min(log.checkpointed_hw, log.end_offset)
            for partition, log in self.logs.items()
        }
        self.control: Control | None = None
        # Counted over terms: whoever was in doubt may go on in the same epoch.
        self.publications = 0
        self._serial = 0
        self._is_leaving = False
        self.tree = TreeClient(self, self._connected)
        self.tree.on_doubt = self._doubt
        self.after(TICK_MS, self._tick)

    def lose_power(self) -> None:
        self.crash()
        lost = sum(log.lose_power(self.world.random) for log in self.logs.values())
        self.world.tell(f"{self.name} loses {lost} records")

    def leave(self) -> None:
        """Shut down cleanly: hand over, write everything, say so on disk, go."""
        self._is_leaving = True
        self.world.tell(f"{self.name} leaves")

        def handed_over(_answer: Any) -> None:
            for partition, log in self.logs.items():
                log.sync()
                log.checkpointed_hw = self.high_watermarks.get(partition, 0)
            self.clean_epoch = self.epoch
            self.tree.close()
            self.crash()

        request = ShutDown(self.id, self.epoch)
        self.ask(f"broker-{self._controller()}", request, 800, handed_over)

    def _controller(self) -> int:
        known = self.picture.controller_id
        return self.id if known == NOBODY else known

    # -- the session -----------------------------------------------------------------------

    def _connected(self, is_new: bool) -> None:
        if is_new:
            self._register()
        elif self.epoch >= 0:
            self.look()
            if self.control is not None:
                self.control.brokers_may_have_changed()

    def _doubt(self) -> None:
        if self.control is not None:
            self.world.tell(f"{self.name} stands down in doubt")
            self.control = None

    def _register(self) -> None:
        path, session_id = f"/brokers/ids/{self.id}", self.tree.session_id
        previous = self.epoch if self.epoch >= 0 else self._previous_epoch

        def looked(answer: Any) -> None:
            if session_id != self.tree.session_id:
                return
            if not failed(answer) and answer[1].ephemeral_owner == session_id:
                self.epoch = answer[1].czxid
                self.world.tell(f"{self.name} is registered in epoch {self.epoch} ({previous})")
                self.look()
            elif isinstance(answer, NoNode):
                self.tree.write([Create(path, str(previous).encode(), ephemeral=True)], written)
            else:
                self.after(100, again)

        def written(_answer: Any) -> None:
            again()

        def again() -> None:
            if session_id == self.tree.session_id:
                self.tree.read(path, looked)

        again()

    # -- the election of a controller ------------------------------------------------------

    def look(self) -> None:
        self.tree.read("/controller", self._looked, self.look)

    def _looked(self, answer: Any) -> None:
        if self._is_leaving or self.epoch < 0:
            return
        if answer is None:
            self.after(300, self.look)
        elif isinstance(answer, NoNode):
            self.tree.read("/controller_epoch", self._stand)
        elif answer[1].ephemeral_owner == self.tree.session_id:
            if self.control is None:
                self.tree.read("/controller_epoch", self._take_up)
        else:
            self.control = None

    def _stand(self, answer: Any) -> None:
        if failed(answer):
            self.after(100, self.look)
            return
        data, stat = answer
        self.tree.write(
            [
                Create("/controller", str(self.id).encode(), ephemeral=True),
                SetData("/controller_epoch", str(int(data) + 1).encode(), stat.version),
            ],
            lambda _answer: self.look(),
        )

    def _take_up(self, answer: Any) -> None:
        if failed(answer):
            self.after(100, self.look)
            return
        data, stat = answer
        if self.control is None and not self.tree.is_doubtful:
            self.control = Control(self, int(data), stat.version)
            self.control.start()

    def fenced(self) -> None:
        """Somebody else is the controller."""
        self.world.tell(f"{self.name} is fenced as controller")
        self.control = None
        self.look()

    # -- requests --------------------------------------------------------------------------

    def told(self, _sender: str, message: Any) -> None:
        self.tree.happened(*message)

    def asked(self, sender: str, request: Any, answer: Reply) -> None:
        match request:
            case Produce():
                self._produce(request, answer)
            case Fetch() if request.replica == CONSUMER:
                answer(self._consumed(request))
            case Fetch():
                answer(self._fetched(request))
            case WhoLeads(partition):
                state = self.picture.state(*partition)
                answer(NOBODY if state is None else self.picture.leader(state))
            case Publish(message):
                answer(self._published(message))
            case Propose():
                if self.control is None:
                    answer(Decided(ErrorCode.NOT_CONTROLLER))
                else:
                    self.control.proposed(request, answer)
            case ShutDown(broker_id, broker_epoch):
                if self.control is None:
                    answer(ErrorCode.NOT_CONTROLLER)
                else:
                    self.control.shuts_down(broker_id, broker_epoch, answer)

    # -- what the controller says ----------------------------------------------------------

    def _published(self, message: Any) -> ErrorCode:
        received = self.picture.receive(message, self.epoch)
        self.picture.check()
        for change in received.changes:
            self._change_role(change)
        if received.brokers_changed:
            for partition, role in list(self.roles.items()):
                if isinstance(role, Leading):
                    live, leaving = self.picture.live, self.picture.shutting_down
                    self._follow_up(partition, role, role.machine.brokers_changed(live, leaving))
        return received.error_code

    def _change_role(self, change: RoleChange) -> None:
        partition = (change.topic, change.index)
        match change:
            case Lead(state=state):
                self._lead(partition, state)
            case Follow(state=state):
                self._end_role(partition)
                log = self.logs.setdefault(partition, SimLog())
                machine = Follower(state, log, self.high_watermarks.get(partition, 0))
                role = self.roles[partition] = Following(machine)
                self._fetch(partition, role)
            case NoLeader():
                self._end_role(partition)
            case Stop() | Delete():
                self._end_role(partition)
                self.logs.pop(partition, None)
                self.high_watermarks.pop(partition, None)
            case _:
                role = self.roles.get(partition)
                if isinstance(role, Leading):
                    self._follow_up(partition, role, role.machine.published(change.state))
                elif role is not None:
                    role.machine.published(change.state)

    def _end_role(self, partition: Partition) -> None:
        role = self.roles.pop(partition, None)
        if isinstance(role, Leading):
            for _, _, answer in sorted(role.waiting, key=lambda each: each[:2]):
                answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- leading ---------------------------------------------------------------------------

    def _lead(self, partition: Partition, state: PartitionState) -> None:
        self._end_role(partition)
        log = self.logs.setdefault(partition, SimLog())
        # Before any record of the epoch exists, so that the epoch's start is never in doubt.
        log.epochs.assign(state.leader_epoch, log.end_offset)
        self.checker.leads(partition, self.id, state, log)
        before = self.high_watermarks.get(partition, 0)
        machine = Leader(
            self.id,
            self.epoch,
            state,
            end_offset=log.end_offset,
            high_watermark=before,
            min_isr=self.min_isr,
            lag_ms=self.lag_ms,
            live=self.picture.live,
            shutting_down=self.picture.shutting_down,
            now_ms=self.world.now_ms,
        )
        role = self.roles[partition] = Leading(machine)
        self.world.tell(f"{self.name} leads {partition} {state} from {log.end_offset}")
        if machine.high_watermark > before:
            self._follow_up(partition, role, Changes(machine.high_watermark))

    def _follow_up(self, partition: Partition, role: Leading, changes: Changes) -> None:
        machine = role.machine
        machine.check()
        if changes.high_watermark is not None:
            self.high_watermarks[partition] = changes.high_watermark
            self.checker.committed(
                partition,
                self.id,
                machine.state,
                self.logs[partition],
                changes.high_watermark,
            )
            while role.waiting:
                verdict = machine.commit_verdict(role.waiting[0][0])
                if verdict is None:
                    break
                end_offset, _, answer = heappop(role.waiting)
                answer(Produced(verdict, end_offset - 1))
        if changes.proposal is not None:
            self._propose(partition, role, changes.proposal)

    def _propose(self, partition: Partition, role: Leading, proposal: Proposal) -> None:
        machine = role.machine

        def is_due() -> bool:
            return self.roles.get(partition) is role and machine.proposal is proposal

        def answered(answer: Decided | None) -> None:
            if not is_due():
                return
            if answer is None:
                machine.unanswered()
                self.after(50, again)
            elif answer.code == ErrorCode.NONE and answer.state is not None:
                self._follow_up(partition, role, machine.accepted(answer.state))
            elif answer.code in _RETRY:
                self._follow_up(partition, role, machine.refused(proposal))
            else:
                self.after(200, again)

        def again() -> None:
            if is_due():
                request = Propose(partition, self.id, self.epoch, proposal)
                self.ask(f"broker-{self._controller()}", request, PROPOSE_MS, answered)

        again()

    def _produce(self, request: Produce, answer: Reply) -> None:
        role = self.roles.get(request.partition)
        if not isinstance(role, Leading):
            answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        machine = role.machine
        if request.acks == -1 and machine.write_verdict() != ErrorCode.NONE:
            answer(Produced(machine.write_verdict()))
            return
        log = self.logs[request.partition]
        log.append(Entry(machine.state.leader_epoch, request.value))
        end_offset = log.end_offset
        if request.acks == -1:
            self._serial += 1
            answered: list[bool] = []

            def once(result: Produced) -> None:
                if not answered:
                    answered.append(True)
                    answer(result)

            heappush(role.waiting, (end_offset, self._serial, once))
            self.after(COMMIT_MS, once, Produced(ErrorCode.REQUEST_TIMED_OUT))
        else:
            answer(Produced(ErrorCode.NONE, end_offset - 1))
        self._follow_up(request.partition, role, machine.appended(end_offset))

    def _fetched(self, request: Fetch) -> Fetched:
        """A follower's fetch."""
        role = self.roles.get(request.partition)
        if not isinstance(role, Leading):
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        machine, log = role.machine, self.logs[request.partition]
        if request.leader_epoch != machine.state.leader_epoch:
            older = request.leader_epoch < machine.state.leader_epoch
            return Fetched(
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        verdict = machine.fetch_verdict(request.replica, request.broker_epoch)
        if verdict != ErrorCode.NONE:
            return Fetched(verdict)
        parts = divergence(log.epochs, log.end_offset, request.offset, request.last_epoch)
        if parts is not None:
            return Fetched(ErrorCode.NONE, diverging=parts)
        if request.offset > log.end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
        changes = machine.fetched(
            request.replica, request.offset, request.broker_epoch, self.world.now_ms
        )
        entries = tuple(log.entries[request.offset : request.offset + self._batch()])
        self._follow_up(request.partition, role, changes)
        return Fetched(ErrorCode.NONE, entries, machine.high_watermark)

    def _batch(self) -> int:
        return self.world.random.choice((1, 2, 5, 100))

    def _consumed(self, request: Fetch) -> Fetched:
        role, log = self.roles.get(request.partition), self.logs.get(request.partition)
        if role is None or log is None:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.offset > log.end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
        end = role.machine.high_watermark
        return Fetched(ErrorCode.NONE, tuple(log.entries[request.offset : end]), end)

    # -- following -------------------------------------------------------------------------

    def _fetch(self, partition: Partition, role: Following) -> None:
        if self.roles.get(partition) is not role:
            return
        machine = role.machine
        machine.check()
        position = machine.position()
        if position is None:
            return

        def answered(answer: Fetched | None) -> None:
            if self.roles.get(partition) is not role:
                return
            if answer is None:
                self.after(20, self._fetch, partition, role)
                return
            step = machine.answered(
                position, answer.code, diverging=answer.diverging, leader_log_start_offset=0
            )
            log = self.logs[partition]
            pause_ms = 0
            match step.do:
                case Do.APPEND:
                    for entry in answer.entries:
                        log.append(entry)
                    machine.appended(answer.high_watermark, 0)
                    self.high_watermarks[partition] = machine.high_watermark
                    pause_ms = 1 if answer.entries else 25
                case Do.TRUNCATE | Do.RESTART:
                    self.checker.truncates(partition, self.id, self.epoch, step.offset)
                    self.world.tell(f"{self.name} truncates {partition} to {step.offset}")
                    log.truncate(step.offset)
                    machine.truncated()
                    self.high_watermarks[partition] = machine.high_watermark
                case Do.BACK_OFF:
                    pause_ms = 60
                case Do.WAIT | Do.HALT:
                    if step.do is Do.HALT:
                        self.world.tell(f"{self.name} halts {partition} at {step.offset}")
                    return
            self.after(pause_ms, self._fetch, partition, role)

        self.ask(
            f"broker-{machine.state.leader}",
            Fetch(
                partition,
                position.offset,
                self.id,
                self.epoch,
                position.leader_epoch,
                position.last_fetched_epoch,
            ),
            FETCH_MS,
            answered,
        )

    # -- as time goes by -------------------------------------------------------------------

    def _tick(self) -> None:
        now_ms, random = self.world.now_ms, self.world.random
        for partition, role in list(self.roles.items()):
            if isinstance(role, Leading):
                deadline_ms = role.machine.deadline_ms()
                if deadline_ms is not None and now_ms >= deadline_ms:
                    self._follow_up(partition, role, role.machine.tick(now_ms))
        if random.random() < 0.1:
            for partition, log in self.logs.items():
                if random.random() < 0.5:
                    log.sync()
                log.checkpointed_hw = self.high_watermarks.get(partition, 0)
        if self.control is not None and random.random() < 0.02:
            self.control.audit()
        self.after(TICK_MS, self._tick)


def refused(answer: Any) -> bool:
    return isinstance(answer, MultiFailed)
