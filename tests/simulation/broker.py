"""A broker of a simulated cluster: the state machines of the core, wired as in the real broker.

This module only connects them: it sends requests, applies responses, and keeps state on disk.  The
state machines make every decision.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from hightide.core.controller.leader_election import LogEnd
from hightide.core.metadata.image import (
    Delete,
    Follow,
    Lead,
    MetadataImage,
    NoLeader,
    RoleChange,
    Stop,
)
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode
from hightide.zookeeper.operation import Create, SetData
from hightide.zookeeper.zookeeper_errors import NoNode
from tests.simulation.checkers import Checker
from tests.simulation.controller_shell import UNCLEAN, Control
from tests.simulation.disk import SimLog
from tests.simulation.following_shell import Following
from tests.simulation.leading_shell import Leading
from tests.simulation.messages import (
    CONSUMER,
    Decided,
    DeleteRecords,
    Fetch,
    Fetched,
    Latest,
    Partition,
    Produce,
    Produced,
    Propose,
    Publish,
    ReadLogs,
    ShutDown,
    WhoLeads,
)
from tests.simulation.world import Process, Reply, World
from tests.simulation.zookeeper import TreeClient, failed

LISTENER = "L"
TICK_MS = 40


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all brokers of a cluster."""

    topic_ids: dict[str, uuid.UUID]
    partitions: dict[Partition, tuple[int, ...]]
    min_isr: int
    lag_ms: int
    unclean: bool


class SimBroker(Process):
    """A broker. Its disk survives a restart; `begin` creates everything else."""

    is_read = True

    def __init__(
        self,
        world: World,
        broker_id: int,
        checker: Checker,
        cluster: dict[int, SimBroker],
        settings: Settings,
    ) -> None:
        super().__init__(world, f"broker-{broker_id}")
        self.id = broker_id
        self.checker = checker
        self.cluster = cluster
        self.topic_ids, self.partitions = settings.topic_ids, settings.partitions
        self.min_isr, self.lag_ms, self.unclean = (
            settings.min_isr,
            settings.lag_ms,
            settings.unclean,
        )
        self.logs: dict[Partition, SimLog] = {}
        self.clean_epoch = UNCLEAN
        """The broker epoch in the clean-shutdown file."""
        self.epoch = -1
        self.has_retention = False
        """Whether retention deletes the beginnings of logs now and then."""
        self.disk_ms = 0
        """How long a disk operation takes at present."""
        self.control: Control | None = None
        cluster[broker_id] = self

    # -- start and stop --------------------------------------------------------------------

    def begin(self) -> None:
        self.epoch = -1
        self.previous_epoch, self.clean_epoch = self.clean_epoch, UNCLEAN
        self.metadata_image = MetadataImage(self.id, LISTENER)
        self.roles: dict[Partition, Leading | Following] = {}
        lost = sum(log.recover() for log in self.logs.values())
        if lost:
            self.world.tell(f"{self.name} recovers, {lost} records are lost")
        self.high_watermarks = {
            partition: log.checkpointed_hw for partition, log in self.logs.items()
        }
        self.control = None
        # Counted over controller epochs: a controller in doubt may continue in the same epoch.
        self.publications = 0
        self.is_leaving = False
        self.tree = TreeClient(self, self._connected)
        self.tree.on_doubt = self._doubt
        self.after(TICK_MS, self._tick)

    def lose_power(self) -> bool:
        """Cut the power; return whether that tore a write."""
        self.crash()
        is_torn = False
        for partition, log in self.logs.items():
            torn = log.lose_power(self.world.random)
            if torn is not None:
                is_torn = True
                self.world.tell(
                    f"{self.name} tears {partition} at {torn}: {log.synced} synced"
                    f" of {log.end_offset}"
                )
        return is_torn

    def lose_disk(self) -> None:
        self.crash()
        self.logs.clear()

    def leave(self) -> None:
        """Shut down cleanly: hand over leaderships, sync logs, write the clean-shutdown file."""
        self.is_leaving = True

        def handed_over(_answer: Any) -> None:
            for partition, log in self.logs.items():
                log.sync()
                log.checkpoint(self.high_watermark(partition))
            self.clean_epoch = self.epoch
            self.tree.close()
            self.crash()

        request = ShutDown(self.id, self.epoch)
        self.ask(f"broker-{self.controller_id}", request, 800, handed_over)

    @property
    def controller_id(self) -> int:
        known = self.metadata_image.controller_id
        return self.id if known == NO_BROKER else known

    # -- the disk --------------------------------------------------------------------------

    def high_watermark(self, partition: Partition) -> int:
        """Return the high watermark as last known or checkpointed, within the bounds of the log."""
        log = self.logs[partition]
        known = max(self.high_watermarks.get(partition, 0), log.start_offset)
        return min(known, log.end_offset)

    def when_disk_is_done(self, function: Reply, value: Any) -> None:
        if self.disk_ms:
            self.after(self.disk_ms, function, value)
        else:
            function(value)

    def delete_before(self, partition: Partition, log: SimLog, offset: int) -> None:
        if offset > log.start_offset:
            self.checker.deletes(self, partition, log, offset)
            log.delete_before(offset)

    def configure(self, min_isr: int) -> None:
        """Apply a new `min.insync.replicas`, now or at the next start."""
        self.min_isr = min_isr
        if self.is_up:
            for role in list(self.roles.values()):
                if isinstance(role, Leading):
                    role.follow_up(role.machine.configured(min_isr, self.lag_ms))
            if self.control is not None:
                self.control.settings_changed()

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
        previous = self.epoch if self.epoch >= 0 else self.previous_epoch

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
        if self.is_leaving or self.epoch < 0:
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
        """Another broker is the controller."""
        self.world.tell(f"{self.name} is fenced as controller")
        self.control = None
        self.look()

    # -- requests --------------------------------------------------------------------------

    def told(self, _sender: str, message: Any) -> None:
        if isinstance(message, Produce):
            self._produce(message, lambda _answer: None)
        else:
            self.tree.happened(*message)

    def asked(self, sender: str, request: Any, answer: Reply) -> None:
        match request:
            case Fetch():
                self._fetch(request, answer)
            case Produce():
                self._produce(request, answer)
            case WhoLeads(partition):
                state = self.metadata_image.state(*partition)
                answer(NO_BROKER if state is None else self.metadata_image.leader(state))
            case Latest(partition) | DeleteRecords(partition):
                role = self.roles.get(partition)
                if not isinstance(role, Leading):
                    answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))
                elif isinstance(request, Latest):
                    answer(role.latest())
                else:
                    role.delete_records(request, answer)
            case Publish(message):
                answer(self._published(message))
            case Propose():
                if self.control is None:
                    answer(Decided(ErrorCode.NOT_CONTROLLER))
                else:
                    self.control.proposed(request, answer)
            case ReadLogs(partitions):
                answer((self.epoch, self._log_ends(partitions)))
            case ShutDown(broker_id, broker_epoch):
                if self.control is None:
                    answer(ErrorCode.NOT_CONTROLLER)
                else:
                    self.control.shuts_down(broker_id, broker_epoch, answer)

    def _log_ends(self, partitions: tuple[Partition, ...]) -> dict[Partition, tuple[int, LogEnd]]:
        """Return where the logs of partitions end of which this broker knows that they have no
        leader, with the leader epoch in which it knows that."""
        found = {}
        for partition in partitions:
            state = self.metadata_image.state(*partition)
            if state is not None and state.leader == NO_BROKER and partition not in self.roles:
                log = self.logs.get(partition) or SimLog()
                found[partition] = (state.leader_epoch, LogEnd(log.epochs.latest, log.end_offset))
        return found

    def _fetch(self, request: Fetch, answer: Reply) -> None:
        role = self.roles.get(request.partition)
        if role is not None and request.replica == CONSUMER:
            role.consume(request, answer)
        elif isinstance(role, Leading):
            role.fetch(request, answer)
        else:
            answer(Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _produce(self, request: Produce, answer: Reply) -> None:
        role = self.roles.get(request.partition)
        if isinstance(role, Leading):
            role.produce(request, answer)
        else:
            answer(Produced(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- requests of the controller --------------------------------------------------------

    def _published(self, message: Any) -> ErrorCode:
        received = self.metadata_image.receive(message, self.epoch)
        self.metadata_image.check()
        self.checker.published(self, message, received)
        for change in received.changes:
            self.change_role(change)
        if received.brokers_changed:
            live, leaving = self.metadata_image.live, self.metadata_image.shutting_down
            for role in list(self.roles.values()):
                if isinstance(role, Leading):
                    role.follow_up(role.machine.brokers_changed(live, leaving))
        return received.error_code

    def change_role(self, change: RoleChange) -> None:
        partition = (change.topic, change.index)
        match change:
            case Lead() | Follow():
                self._end_role(partition)
                log = self.logs.setdefault(partition, SimLog())
                role = (Leading if isinstance(change, Lead) else Following)(
                    self, partition, log, change.state
                )
                self.roles[partition] = role
                self.world.tell(
                    f"{self.name} {type(change).__name__.lower()}s {partition} {change.state}"
                    f" at {log.end_offset}"
                )
                role.begin()
            case NoLeader():
                self._end_role(partition)
            case Stop() | Delete():
                self._end_role(partition)
                if self.logs.pop(partition, None) is not None:
                    self.world.tell(f"{self.name} gives up {partition}")
                self.high_watermarks.pop(partition, None)
            case _:
                if partition in self.roles:
                    self.roles[partition].published(change.state)

    def _end_role(self, partition: Partition) -> None:
        role = self.roles.pop(partition, None)
        if role is not None:
            role.end()

    # -- timers ----------------------------------------------------------------------------

    def _tick(self) -> None:
        random = self.world.random
        for role in list(self.roles.values()):
            role.tick()
        if random.random() < 0.1:
            for partition, log in self.logs.items():
                if random.random() < 0.5 and not self.disk_ms:
                    log.sync()
                if self.has_retention and random.random() < 0.1:
                    end_offset = self.high_watermark(partition)
                    self.delete_before(partition, log, random.randint(log.start_offset, end_offset))
                log.checkpoint(self.high_watermark(partition))
        if self.control is not None and random.random() < 0.02:
            self.control.audit()
        self.after(TICK_MS, self._tick)
